//! A conversation as Markdown and as plain text, with what its answers looked at.

use std::collections::{HashMap, HashSet};

use super::SessionJson;
use crate::transcript::{Message, MessageId, Passage, Role};

/// Lines of a passage that are shown; a passage of a few blocks has fewer.
const SHOWN_LINES: usize = 40;

/// What an answer looked at, in words.
struct Looked<'a> {
    /// Where and how much, and lines with their numbers.
    passages: Vec<(String, Vec<(u64, &'a str)>)>,
    /// A sentence, and what it looked at.
    sentences: Vec<(String, String)>,
}

impl<'a> Looked<'a> {
    /// Of the last message of a path; `None` where nothing is known of it.
    fn of(m: &Message, path: &[&'a Message]) -> Option<Looked<'a>> {
        let sources = m.meta.looked.as_ref()?;
        let place = |p: &Passage| format!("{} ({})", one_line(&p.place()), p.percent());
        let passages = sources.passages.iter().map(|p| {
            let holder = usize::try_from(p.number).ok().and_then(|n| path.get(n.checked_sub(1)?));
            (place(p), holder.map_or(Vec::new(), |holder| p.lines(&holder.text).take(SHOWN_LINES).collect()))
        });
        let passages: Vec<_> = passages.collect();
        let sentences = sources.by_sentence(&m.text).into_iter().filter(|(_, seen)| !seen.is_empty());
        let sentences =
            sentences.map(|(words, seen)| (one_line(words), seen.iter().map(place).collect::<Vec<_>>().join(", ")));
        let looked = Looked { passages, sentences: sentences.collect() };
        (!looked.passages.is_empty() || !looked.sentences.is_empty()).then_some(looked)
    }

    /// Numbered passages with their lines, then the sentences.
    fn markdown(&self) -> String {
        let mut out = String::new();
        if !self.passages.is_empty() {
            out.push_str("\n**Looked at**\n\n");
        }
        for (k, (place, lines)) in (1..).zip(&self.passages) {
            out.push_str(&format!("{k}. {place}\n"));
            if lines.is_empty() {
                continue;
            }
            // Below its number: as far in as what follows it.
            let (indent, text) = (" ".repeat(format!("{k}. ").len()), numbered(lines));
            let fence = fence(&text);
            out.push_str(&format!("\n{indent}{fence}text\n"));
            text.lines().for_each(|line| out.push_str(&format!("{indent}{line}\n")));
            out.push_str(&format!("{indent}{fence}\n\n"));
        }
        if !self.sentences.is_empty() {
            out.push_str("\n**Looked at, by sentence**\n\n");
        }
        for (words, places) in &self.sentences {
            out.push_str(&format!("- {words} *{places}*\n"));
        }
        out
    }

    /// The same without marks.
    fn plain(&self) -> String {
        let mut out = String::new();
        for (k, (place, lines)) in (1..).zip(&self.passages) {
            out.push_str(&format!("{}[{k}] {place}\n{}", if k == 1 { "Looked at:\n" } else { "" }, numbered(lines)));
        }
        for (n, (words, places)) in self.sentences.iter().enumerate() {
            let heading = if n == 0 { "Looked at, by sentence:\n" } else { "" };
            out.push_str(&format!("{heading}- {words}\n    {places}\n"));
        }
        out
    }
}

/// Lines behind their numbers.
fn numbered(lines: &[(u64, &str)]) -> String {
    lines.iter().map(|(n, line)| format!("{n:>7}  {}\n", line.trim_end())).collect()
}

/// Words of others on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The messages in reading order: the branch of the head first, then every other branch from where it leaves a shown
/// one. Each part begins with the message it continues from (`None`: the beginning).
fn branches(session: &SessionJson) -> Vec<(Option<usize>, Vec<usize>)> {
    let places = places(session);
    let index = |id: MessageId| places.get(&id).copied();
    let parents: HashSet<MessageId> = session.messages.iter().filter_map(|m| m.parent).collect();
    let leaves = session.messages.iter().enumerate().filter(|(_, m)| !parents.contains(&m.id));
    let mut leaves: Vec<usize> = leaves.map(|(i, _)| i).collect();
    if let Some(head) = session.head.and_then(index) {
        leaves.insert(0, head);
    }
    let mut shown = vec![false; session.messages.len()];
    let mut parts = Vec::new();
    for leaf in leaves {
        let (mut part, mut next) = (Vec::new(), Some(leaf));
        while let Some(i) = next
            && let Some(seen) = shown.get_mut(i)
            && !*seen
        {
            *seen = true;
            part.push(i);
            next = session.messages.get(i).and_then(|m| m.parent).and_then(index);
        }
        part.reverse();
        if !part.is_empty() {
            parts.push((next, part));
        }
    }
    parts
}

/// Where each message is in the list.
fn places(session: &SessionJson) -> HashMap<MessageId, usize> {
    session.messages.iter().enumerate().map(|(i, m)| (m.id, i)).collect()
}

/// The messages from the root to this one, which is `#n` at index n - 1.
fn path_to<'a>(session: &'a SessionJson, places: &HashMap<MessageId, usize>, m: &'a Message) -> Vec<&'a Message> {
    let above = |m: &&'a Message| m.parent.and_then(|p| session.messages.get(*places.get(&p)?));
    // A path has no message twice, whatever an import says of parents.
    let mut path: Vec<&Message> = std::iter::successors(Some(m), above).take(session.messages.len()).collect();
    path.reverse();
    path
}

/// Number of each message on its branch, from 1. Parents come before their children.
fn numbers(session: &SessionJson) -> Vec<usize> {
    let mut by_id: HashMap<MessageId, usize> = HashMap::new();
    let mut all = Vec::with_capacity(session.messages.len());
    for m in &session.messages {
        let n = m.parent.and_then(|p| by_id.get(&p).copied()).unwrap_or(0) + 1;
        by_id.insert(m.id, n);
        all.push(n);
    }
    all
}

/// As Markdown.
pub(super) fn markdown(session: &SessionJson) -> String {
    let mut out = format!("# {}\n", session.name);
    let (numbers, places) = (numbers(session), places(session));
    for (from, part) in branches(session) {
        if let Some(from) = from {
            out.push_str(&format!("\n---\n\n# Branch after #{}\n", numbers.get(from).copied().unwrap_or_default()));
        }
        for m in part.iter().filter_map(|i| session.messages.get(*i)) {
            match m.role {
                Role::Document => {
                    let fence = fence(&m.text);
                    out.push_str(&format!(
                        "\n## Document: {}\n\n{fence}text\n{}\n{fence}\n",
                        title(m),
                        m.text.trim_end()
                    ));
                }
                Role::System | Role::User | Role::Assistant => {
                    out.push_str(&format!("\n## {}\n", speaker(m.role)));
                    for line in m.thinking.lines() {
                        out.push_str(&format!("\n> {line}"));
                    }
                    if !m.thinking.is_empty() {
                        out.push('\n');
                    }
                    out.push_str(&format!("\n{}\n", m.text.trim_end()));
                    if let Some(looked) = Looked::of(m, &path_to(session, &places, m)) {
                        out.push_str(&looked.markdown());
                    }
                }
            }
        }
    }
    out
}

/// As plain text.
pub(super) fn plain(session: &SessionJson) -> String {
    let mut out = String::new();
    let (numbers, places) = (numbers(session), places(session));
    for (from, part) in branches(session) {
        if let Some(from) = from {
            out.push_str(&format!("----- branch after #{} -----\n\n", numbers.get(from).copied().unwrap_or_default()));
        }
        for m in part.iter().filter_map(|i| session.messages.get(*i)) {
            let who = match m.role {
                Role::Document => format!("Document {}", title(m)),
                Role::System | Role::User | Role::Assistant => speaker(m.role).to_owned(),
            };
            out.push_str(&format!("{who}:\n{}\n", m.text.trim_end()));
            if let Some(looked) = Looked::of(m, &path_to(session, &places, m)) {
                out.push_str(&looked.plain());
            }
            out.push('\n');
        }
    }
    out
}

fn speaker(role: Role) -> &'static str {
    match role {
        Role::System => "System",
        Role::User => "You",
        Role::Assistant => "Assistant",
        Role::Document => "Document",
    }
}

fn title(m: &Message) -> &str {
    m.meta.document.as_ref().map_or("untitled", |d| &d.name)
}

/// A code fence longer than any in the text.
fn fence(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat(longest.max(2) + 1)
}
