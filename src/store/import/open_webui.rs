//! A chat of Open WebUI: a map of messages with parents, or a plain list, which older versions wrote and newer ones
//! add. The list is used if it has more texts. Skips and counts messages of the system and of tools.

use super::answer::split_answer;
use super::json::{each, fields, text, time_ms};
use super::parts::{attached, parts};
use super::tree::{Content, Tree, Words};
use crate::core::transcript::Role;
use crate::store::arrival::{Arrival, LeftOut};

pub(super) fn conversation(outer_title: &str, chat: &str) -> (Arrival, LeftOut) {
    let [title, history, list] = fields(chat, ["title", "history", "messages"]);
    let [head, map] = fields(history, ["currentId", "messages"]);
    let title = text(title).or_else(|| text(outer_title)).unwrap_or_default();
    let from_map = messages(title.clone(), text(head).as_deref(), map);
    let from_list = messages(title, None, list);
    let texts = |chat: &Arrival| chat.messages.iter().filter(|m| !m.text.trim().is_empty()).count();
    let is_list = texts(&from_list.0) > texts(&from_map.0) || from_map.0.messages.is_empty();
    if is_list { from_list } else { from_map }
}

fn messages(title: String, head: Option<&str>, json: &str) -> (Arrival, LeftOut) {
    let mut tree = Tree::default();
    let is_list = json.starts_with('[');
    each(json, &mut |name, message| {
        let [parent] = fields(message, ["parentId"]);
        let words = words(message, &mut tree.left_out);
        match words {
            Some(words) if is_list => tree.follow(words),
            None if is_list => {}
            words => {
                let content = words.map_or(Content::Nothing, |words| Content::Words(Box::new(words)));
                tree.put(name, text(parent).map(Into::into), content);
            }
        }
    });
    tree.conversation(title, head)
}

fn words(message: &str, left_out: &mut LeftOut) -> Option<Words> {
    let [role, content, files, created] = fields(message, ["role", "content", "files", "timestamp"]);
    let mut inside = LeftOut::default();
    let content = parts(content, &mut inside);
    let role = left_out.speaker(text(role).as_deref(), !content.is_empty())?;
    left_out.add(inside);
    left_out.add(attached(files));
    let (text, thinking) = match role {
        Role::Assistant => {
            let split = split_answer(content);
            left_out.add(split.left_out);
            (split.text, split.thinking)
        }
        Role::User | Role::System | Role::Document => (content, String::new()),
    };
    Some(Words { role, text, thinking, created_ms: time_ms(created) })
}
