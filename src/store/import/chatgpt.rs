//! A conversation of ChatGPT's `conversations.json`: nodes with parents. Skips and counts messages of the system, of
//! and to tools, and those that ChatGPT itself hides.

use std::collections::{HashMap, HashSet};
use std::iter::successors;

use serde_json::Value;

use super::tree::{Content, Tree, Words};
use super::values::{attached, code_block, items, name, parsed, parts, time_ms};
use crate::core::transcript::Role;
use crate::store::arrival::LeftOut;
use crate::store::export::SessionJson;

pub(super) fn conversation(conversation: &Value) -> (SessionJson, LeftOut) {
    let mut tree = Tree::default();
    let nodes = items(&conversation["mapping"]);
    let known: HashSet<&String> = nodes.iter().map(|(id, _)| id).collect();
    let own = nodes.iter().filter_map(|(id, node)| Some((id.clone(), name(&node["parent"])?)));
    let mut parents: HashMap<String, String> = own.filter(|(_, parent)| known.contains(parent)).collect();
    // A node without a known parent is below the one that lists it, unless that one is not far below it.
    for (id, node) in &nodes {
        for child in items(&node["children"]).into_iter().filter_map(|(_, child)| name(child)) {
            let mut up = successors(Some(id), |at| parents.get(*at)).take(1_000);
            if !parents.contains_key(&child) && !up.any(|at| *at == child) {
                parents.insert(child, id.clone());
            }
        }
    }
    for (id, node) in nodes {
        let content = content(&node["message"], &mut tree.left_out);
        tree.put(id.clone(), parents.get(&id).cloned(), content);
    }
    let title = conversation["title"].as_str().unwrap_or_default();
    tree.conversation(title, name(&conversation["current_node"]))
}

fn content(message: &Value, left_out: &mut LeftOut) -> Content {
    let content = &message["content"];
    let kind = content["content_type"].as_str().unwrap_or("text");
    let mut inside = LeftOut::default();
    let shown = parts(Some(&content["parts"]).filter(|parts| !parts.is_null()).unwrap_or(content), &mut inside);
    let own = content["text"].as_str().unwrap_or_default();
    let says_something = !shown.is_empty() || !own.is_empty();
    let author = message["author"]["role"].as_str().or(message["author"].as_str());
    let Some(role) = left_out.speaker(author, says_something) else { return Content::Nothing };
    if message["metadata"]["is_visually_hidden_from_conversation"] == true {
        left_out.hidden += 1;
        return Content::Nothing;
    }
    // Code for ChatGPT's own interpreter is part of the visible answer.
    let to_tool = message["recipient"].as_str().is_some_and(|to| to != "all" && !(to == "python" && kind == "code"));
    if role == Role::Assistant && to_tool {
        left_out.tools += 1;
        return Content::Nothing;
    }
    let is_unread = shown.is_empty() && own.is_empty() && inside == LeftOut::default();
    left_out.add(inside);
    left_out.files += attached(&message["metadata"]["attachments"]).files;
    let words = match kind {
        "code" => code_block(own, content["language"].as_str()),
        "thoughts" => {
            let text = thoughts_of(&content["thoughts"]);
            return if text.is_empty() { Content::Nothing } else { Content::Thought(text) };
        }
        _ if !shown.is_empty() => without_marks(&shown),
        "text" | "multimodal_text" if !(is_unread && content["parts"].is_object()) => without_marks(own),
        _ => {
            left_out.other += 1;
            String::new()
        }
    };
    if words.is_empty() {
        return Content::Nothing;
    }
    let created_ms = time_ms(&message["create_time"]);
    Content::Words(Box::new(Words { role, text: words, thinking: String::new(), created_ms }))
}

/// Without ChatGPT's marks, `\u{e200}kind\u{e202}argument…\u{e201}`: names and titles stay, sources go.
fn without_marks(text: &str) -> String {
    let mut pieces = text.split('\u{e200}');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let Some((mark, after)) = piece.split_once('\u{e201}') else {
            out.push_str(piece);
            continue;
        };
        let mut arguments = mark.split('\u{e202}');
        out.push_str(&match (arguments.next(), arguments.next()) {
            (Some("entity"), Some(list)) => parsed(list)[1].as_str().unwrap_or_default().to_owned(),
            (Some("url"), Some(title)) => title.to_owned(),
            _ => String::new(),
        });
        out.push_str(after);
    }
    out
}

fn thoughts_of(list: &Value) -> String {
    let parts = |thought: &Value| {
        let parts = ["summary", "content"].into_iter().filter_map(|part| thought[part].as_str());
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let thoughts = items(list).into_iter().map(|(_, thought)| parts(thought)).filter(|thought| !thought.is_empty());
    thoughts.collect::<Vec<_>>().join("\n\n")
}
