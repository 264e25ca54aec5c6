//! An incoming session from a file of any form, as changes that build it under new ids. Writes nothing.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;

use super::commit::{Change, NewSession, TitleBy};
use super::database::Store;
use super::export::SessionJson;
use crate::core::counted;
use crate::core::sanitize::is_unseen;
use crate::core::transcript::{Message, MessageId, Role, SessionId};

const MAX_NAME: usize = 200;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub sessions: Vec<(SessionId, String)>,
    pub messages: u64,
    pub state_tokens: u64,
    /// One sentence: why only texts were imported.
    pub text_only: Option<String>,
    /// Sessions that got their last message as head, because the file names no message it contains.
    pub without_place: u64,
    pub left_out: LeftOut,
    pub skipped: Vec<Skipped>,
}

const NAMED: usize = 10;

impl Imported {
    /// The skipped conversations by reason: `1 conversation without a message ("Other")`.
    pub fn skipped_in_words(&self) -> Option<String> {
        let (mut reasons, mut others) = (Vec::<(&str, Vec<&str>)>::new(), 0);
        for Skipped { name, why } in &self.skipped {
            let known = reasons.len();
            match reasons.iter_mut().find(|(reason, _)| reason == why) {
                Some((_, names)) => names.push(name),
                None if known >= NAMED => others += 1,
                None => reasons.push((why, vec![name])),
            }
        }
        let mut words: Vec<String> = Vec::new();
        for (why, names) in reasons {
            let more = if names.len() > NAMED { ", …" } else { "" };
            let count = counted(names.len() as u64, "conversation");
            let names: Vec<String> = names.iter().take(NAMED).map(|name| format!("\"{name}\"")).collect();
            let why = if why.starts_with("without") { format!(" {why}") } else { format!(", {why}") };
            words.push(format!("{count}{why} ({}{more})", names.join(", ")));
        }
        words.extend((others > 0).then(|| counted(others, "other conversation")));
        (!words.is_empty()).then(|| words.join("; "))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub tools: u64,
    pub system: u64,
    pub hidden: u64,
    pub pictures: u64,
    pub files: u64,
    pub thoughts: u64,
    pub other: u64,
}

impl LeftOut {
    pub(super) fn add(&mut self, o: LeftOut) {
        self.tools += o.tools;
        self.system += o.system;
        self.hidden += o.hidden;
        self.pictures += o.pictures;
        self.files += o.files;
        self.thoughts += o.thoughts;
        self.other += o.other;
    }

    /// The role of a message of another program. Counts a message that is neither a question nor an answer.
    pub(super) fn speaker(&mut self, role: Option<&str>, says_something: bool) -> Option<Role> {
        let something = u64::from(says_something);
        match role {
            Some("user") => return Some(Role::User),
            Some("assistant") => return Some(Role::Assistant),
            Some("tool" | "function") => self.tools += 1,
            Some("system") => self.system += something,
            Some(_) | None => self.other += something,
        }
        None
    }

    pub fn in_words(&self) -> Vec<String> {
        let kinds = [
            (self.tools, "message of a tool", "messages of tools"),
            (self.system, "system message", "system messages"),
            (self.hidden, "hidden message", "hidden messages"),
            (self.pictures, "picture", "pictures"),
            (self.files, "attached file", "attached files"),
            (self.thoughts, "thought without an answer", "thoughts without an answer"),
            (self.other, "part of another kind", "parts of other kinds"),
        ];
        let some = kinds.into_iter().filter(|(n, ..)| *n > 0);
        some.map(|(n, one, many)| format!("{n} {}", if n == 1 { one } else { many })).collect()
    }
}

pub(super) struct Arrived {
    pub id: SessionId,
    /// Builds the session.
    pub changes: Vec<Change>,
    /// Keyed by the ids of the file.
    pub new_ids: HashMap<MessageId, MessageId>,
    /// The head is the last message, because the file names one that it does not contain.
    pub at_last_message: bool,
}

/// A session under new ids of `store`. The error is a phrase: messages that contradict each other.
pub(super) fn arrive(session: SessionJson, store: &Store) -> Result<Arrived, String> {
    let SessionJson { name, title, settings, head, messages, marks, .. } = session;
    let order = parents_first(&messages)?;
    let session = store.new_session_id();
    let settings = match settings {
        settings @ Value::Object(_) => settings.to_string(),
        Value::String(damaged) => damaged,
        _ => "{}".into(),
    };
    let name = plain_name(&name);
    let new = NewSession { id: session, name, settings, head: None, forked_from: None };
    let mut changes = vec![Change::CreateSession(new)];
    let parents: HashSet<MessageId> = messages.iter().filter_map(|m| m.parent).collect();
    let last = messages.iter().rev().map(|m| m.id).find(|id| !parents.contains(id));
    let mut new_ids: HashMap<MessageId, MessageId> = HashMap::with_capacity(messages.len());
    let mut messages: Vec<Option<Message>> = messages.into_iter().map(Some).collect();
    for at in order {
        let Some(message) = messages.get_mut(at).and_then(Option::take) else { continue };
        let new = store.new_message_id(None);
        new_ids.insert(message.id, new);
        let parent = message.parent.and_then(|parent| new_ids.get(&parent).copied());
        changes.push(Change::PutMessage { session, message: Box::new(Message { id: new, parent, ..message }) });
    }
    for mark in marks {
        if let Some(message) = new_ids.get(&mark.message) {
            changes.push(Change::Mark { session, name: plain_name(&mark.name), message: *message });
        }
    }
    let at_last_message = head.is_some_and(|head| !new_ids.contains_key(&head)) && last.is_some();
    let head = if at_last_message { last } else { head };
    if let Some(head) = head.and_then(|h| new_ids.get(&h)) {
        changes.push(Change::MoveHead { session, head: Some(*head) });
    }
    if let Some(title) = title.map(|t| plain_name(&t)).filter(|t| !t.is_empty()) {
        changes.push(Change::Title { session, title, by: TitleBy::Person });
    }
    Ok(Arrived { id: session, changes, new_ids, at_last_message })
}

pub(super) fn plain_name(name: &str) -> String {
    let seen = name.chars().filter(|c| c.is_control() || !is_unseen(*c));
    let name: String = seen.map(|c| if c.is_control() { ' ' } else { c }).take(MAX_NAME).collect();
    name.trim().to_owned()
}

/// The order of messages by index: roots first, children of one parent together in file order.
fn parents_first(messages: &[Message]) -> Result<Vec<usize>, String> {
    let mut known: HashSet<MessageId> = HashSet::with_capacity(messages.len());
    if let Some(twice) = messages.iter().find(|m| !known.insert(m.id)) {
        return Err(format!("two messages have the number {}", twice.id.0));
    }
    let mut children: HashMap<Option<MessageId>, Vec<usize>> = HashMap::new();
    for (i, m) in messages.iter().enumerate() {
        // As a root, the message would leave its conversation.
        if let Some(parent) = m.parent.filter(|parent| !known.contains(parent)) {
            return Err(format!("message {} follows message {}, which is not in the file", m.id.0, parent.0));
        }
        children.entry(m.parent).or_default().push(i);
    }
    let mut ordered = children.remove(&None).unwrap_or_default();
    let mut at = 0;
    while let Some(parent) = ordered.get(at).and_then(|i| messages.get(*i)) {
        ordered.extend(children.remove(&Some(parent.id)).unwrap_or_default());
        at += 1;
    }
    match children.into_values().flatten().min().and_then(|i| messages.get(i)) {
        Some(round) => Err(format!("message {} is among its own ancestors", round.id.0)),
        None => Ok(ordered),
    }
}
