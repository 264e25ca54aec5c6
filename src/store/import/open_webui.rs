//! A chat of Open WebUI: a map of messages with parents, or a plain list, which older versions wrote and newer ones
//! add. The list is used if it has more texts. Skips and counts messages of the system and of tools.

use serde_json::Value;

use super::answer::split_answer;
use super::json::{items, time_ms};
use super::parts::{attached, parts};
use super::tree::{Content, Tree, Words};
use crate::core::transcript::Role;
use crate::store::arrival::LeftOut;
use crate::store::export::SessionJson;

pub(super) fn conversation(conversation: &Value) -> (SessionJson, LeftOut) {
    let chat = &conversation["chat"];
    let title = chat["title"].as_str().or(conversation["title"].as_str()).unwrap_or_default();
    let history = &chat["history"];
    let from_map = messages(title, history["currentId"].as_str(), &history["messages"]);
    let from_list = messages(title, None, &chat["messages"]);
    let texts = |chat: &SessionJson| chat.messages.iter().filter(|m| !m.text.trim().is_empty()).count();
    let is_list = texts(&from_list.0) > texts(&from_map.0) || from_map.0.messages.is_empty();
    if is_list { from_list } else { from_map }
}

fn messages(title: &str, head: Option<&str>, json: &Value) -> (SessionJson, LeftOut) {
    let mut tree = Tree::default();
    for (name, message) in items(json) {
        let words = words(message, &mut tree.left_out);
        match words {
            Some(words) if json.is_array() => tree.follow(words),
            None if json.is_array() => {}
            words => {
                let content = words.map_or(Content::Nothing, |words| Content::Words(Box::new(words)));
                tree.put(name, message["parentId"].as_str(), content);
            }
        }
    }
    tree.conversation(title, head)
}

fn words(message: &Value, left_out: &mut LeftOut) -> Option<Words> {
    let mut inside = LeftOut::default();
    let content = parts(&message["content"], &mut inside);
    let role = left_out.speaker(message["role"].as_str(), !content.is_empty())?;
    left_out.add(inside);
    left_out.add(attached(&message["files"]));
    let (text, thinking) = match role {
        Role::Assistant => {
            let split = split_answer(content);
            left_out.add(split.left_out);
            (split.text, split.thinking)
        }
        Role::User | Role::System | Role::Document => (content, String::new()),
    };
    Some(Words { role, text, thinking, created_ms: time_ms(&message["timestamp"]) })
}
