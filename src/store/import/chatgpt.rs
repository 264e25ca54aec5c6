//! A conversation of ChatGPT's `conversations.json`: nodes with parents. Skips and counts messages of the system, of
//! and to tools, and those that ChatGPT itself hides.

use super::json::{each, fields, text, time_ms};
use super::parts::{attached, code_block, parts};
use super::tree::{Content, Tree, Words};
use crate::core::transcript::Role;
use crate::store::arrival::{Arrival, LeftOut};

pub(super) fn conversation(title: String, head: &str, mapping: &str) -> (Arrival, LeftOut) {
    let mut tree = Tree::default();
    each(mapping, &mut |name, node| {
        let [parent, message] = fields(node, ["parent", "message"]);
        let content = content(message, &mut tree.left_out);
        tree.put(name, text(parent).map(Into::into), content);
    });
    tree.conversation(title, text(head).as_deref())
}

fn content(message: &str, left_out: &mut LeftOut) -> Content {
    let [author, content, created, metadata, recipient] =
        fields(message, ["author", "content", "create_time", "metadata", "recipient"]);
    let [role] = fields(author, ["role"]);
    let [hidden, files] = fields(metadata, ["is_visually_hidden_from_conversation", "attachments"]);
    let [kind, pieces, own, language, thoughts] =
        fields(content, ["content_type", "parts", "text", "language", "thoughts"]);
    let (kind, recipient) = (text(kind), text(recipient));
    let kind = kind.as_deref().unwrap_or("text");
    let mut inside = LeftOut::default();
    let shown = if pieces.starts_with('[') { parts(pieces, &mut inside) } else { String::new() };
    let own = text(own).unwrap_or_default();
    let says_something = !shown.is_empty() || !own.is_empty();
    let Some(role) = left_out.speaker(text(role).as_deref(), says_something) else { return Content::Nothing };
    if hidden == "true" {
        left_out.hidden += 1;
        return Content::Nothing;
    }
    // Code for ChatGPT's own interpreter is part of the visible answer.
    let to_tool = recipient.is_some_and(|to| to != "all" && !(to == "python" && kind == "code"));
    if role == Role::Assistant && to_tool {
        left_out.tools += 1;
        return Content::Nothing;
    }
    left_out.add(inside);
    left_out.files += attached(files).files;
    let words = match kind {
        "code" => code_block(&own, text(language).as_deref()),
        "thoughts" => {
            let text = thoughts_of(thoughts);
            return if text.is_empty() { Content::Nothing } else { Content::Thought { text, answered: false } };
        }
        "text" | "multimodal_text" => shown,
        _ if !shown.is_empty() => shown,
        _ => {
            left_out.other += 1;
            String::new()
        }
    };
    if words.is_empty() {
        return Content::Nothing;
    }
    Content::Words(Box::new(Words { role, text: words, thinking: String::new(), created_ms: time_ms(created) }))
}

fn thoughts_of(list: &str) -> String {
    let mut all = Vec::new();
    each(list, &mut |_, thought| {
        let parts = fields(thought, ["summary", "content"]).map(|part| text(part).unwrap_or_default());
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        all.extend((!parts.is_empty()).then(|| parts.join("\n")));
    });
    all.join("\n\n")
}
