//! Conversations come in: our own JSON and bundles, and the texts of ChatGPT's and Open WebUI's exports.
//!
//! Parses at the edge; a file that is none of these is refused before anything is written. One transaction per file.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::commit::{Change, NewSession, TitleBy, apply};
use super::error::{Result, StoreError, one_line};
use super::export::{JSON_FORMAT, JSON_VERSION, SessionJson};
use super::store::Store;
use crate::text::files;
use crate::text::sanitize::is_unseen;
use crate::transcript::{Message, MessageId, MessageMeta, Role, SessionId};

/// What an import brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// New sessions and their names.
    pub sessions: Vec<(SessionId, String)>,
    /// Messages in all.
    pub messages: u64,
    /// Tokens whose state came along.
    pub state_tokens: u64,
    /// A sentence when only texts came, and why.
    pub text_only: Option<String>,
    /// Sessions whose place in them could not be had from the file: they stand at their last message.
    pub without_place: u64,
}

/// Characters of a session's name, or of a mark's.
const MAX_NAME: usize = 200;

impl Store {
    /// Imports a file. Names that are taken get a number.
    ///
    /// # Errors
    /// [`StoreError::NoInput`] when it is not there; [`StoreError::Import`] when it is of no known form, contradicts itself or
    /// is too large; the database cannot be written.
    pub fn import(&self, path: &Path) -> Result<Imported> {
        let no_input = |source| StoreError::NoInput { path: path.to_owned(), source };
        let real = path.canonicalize().map_err(no_input)?;
        let look = self.disk.look(&real).map_err(no_input)?;
        let bad = |why: String| StoreError::Import { path: path.to_owned(), why: one_line(&why) };
        if look.is_dir {
            return Err(bad("a folder. Name a file in it: an export can be imported".into()));
        }
        if !look.is_file {
            return Err(bad("not a regular file. Copy it to a file first".into()));
        }
        if super::bundle::is_bundle(&*self.disk, &real) {
            return self.import_bundle(&real);
        }
        if look.bytes > files::IMPORT_BYTES {
            return Err(bad(format!("{} bytes, at most {} can be imported as text", look.bytes, files::IMPORT_BYTES)));
        }
        let bytes = self.disk.read_at(&real, 0, look.bytes).map_err(no_input)?;
        let no_json = |e: serde_json::Error| {
            bad(format!(
                "not JSON ({e}). What can be imported: an export as .json or --with-state, and those of ChatGPT and Open WebUI"
            ))
        };
        let json: Value = serde_json::from_slice(&bytes).map_err(no_json)?;
        drop(bytes);
        let (sessions, text_only) = match sessions(json).map_err(bad)? {
            Form::Ours(session) => (vec![*session], "Text only: model state is exported with --with-state."),
            Form::Theirs(sessions, whose) => (sessions, whose),
        };
        if sessions.is_empty() {
            return Err(bad("there is no conversation in it".into()));
        }
        let mut imported = Imported { text_only: Some(text_only.into()), ..Imported::default() };
        let mut changes = Vec::new();
        for session in sessions {
            imported.messages += session.messages.len() as u64;
            let (id, _, place) = self.import_changes(session, &mut changes).map_err(bad)?;
            imported.sessions.push((id, String::new()));
            imported.without_place += u64::from(place == Place::LastMessage);
        }
        let names = self.transaction(|tx| {
            apply(tx, &changes)?;
            let mut named = tx.prepare_cached("SELECT name FROM session WHERE id = ?1")?;
            imported
                .sessions
                .iter()
                .map(|(id, _)| Ok(named.query_row([id.0], |r| r.get(0))?))
                .collect::<Result<Vec<_>>>()
        })?;
        imported.sessions.iter_mut().zip(names).for_each(|((_, name), given)| *name = given);
        Ok(imported)
    }

    /// Appends the changes that make `session` anew, and returns its id, the new ids of its messages, and where it stands.
    ///
    /// # Errors
    /// A phrase: messages that contradict each other.
    pub(super) fn import_changes(
        &self,
        session: SessionJson,
        changes: &mut Vec<Change>,
    ) -> Result<(SessionId, HashMap<MessageId, MessageId>, Place), String> {
        let id = self.new_session_id();
        changes.push(Change::CreateSession(NewSession {
            id,
            name: plain_name(&session.name),
            settings: match session.settings {
                settings @ Value::Object(_) => settings.to_string(),
                Value::String(damaged) => damaged,
                _ => "{}".into(),
            },
            head: None,
            forked_from: None,
        }));
        let last = last_leaf(&session.messages);
        let mut new_ids: HashMap<MessageId, MessageId> = HashMap::new();
        for mut message in parents_first(session.messages)? {
            let new = self.new_message_id(None);
            new_ids.insert(message.id, new);
            message.id = new;
            if let Some(parent) = &mut message.parent {
                *parent =
                    *new_ids.get(parent).ok_or("internal error: a message came before the one that it follows")?;
            }
            changes.push(Change::PutMessage { session: id, message: Box::new(message) });
        }
        for mark in session.marks {
            if let Some(message) = new_ids.get(&mark.message) {
                changes.push(Change::Mark { session: id, name: plain_name(&mark.name), message: *message });
            }
        }
        let place = match session.head {
            Some(head) if !new_ids.contains_key(&head) && last.is_some() => Place::LastMessage,
            Some(_) | None => Place::AsSaid,
        };
        let head = if place == Place::LastMessage { last } else { session.head };
        if let Some(head) = head.and_then(|h| new_ids.get(&h)) {
            changes.push(Change::MoveHead { session: id, head: Some(*head) });
        }
        if let Some(title) = session.title.map(|t| plain_name(&t)).filter(|t| !t.is_empty()) {
            changes.push(Change::Title { session: id, title, by: TitleBy::Person });
        }
        Ok((id, new_ids, place))
    }
}

/// Where an imported session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Where its file says.
    AsSaid,
    /// At its last message: the file names one that is not in it.
    LastMessage,
}

/// The last message that no other hangs on.
fn last_leaf(messages: &[Message]) -> Option<MessageId> {
    let parents: HashSet<MessageId> = messages.iter().filter_map(|m| m.parent).collect();
    messages.iter().rev().map(|m| m.id).find(|id| !parents.contains(id))
}

/// A name of one short line.
fn plain_name(name: &str) -> String {
    let seen = name.chars().filter(|c| c.is_control() || !is_unseen(*c));
    let name: String = seen.map(|c| if c.is_control() { ' ' } else { c }).take(MAX_NAME).collect();
    name.trim().to_owned()
}

enum Form {
    Ours(Box<SessionJson>),
    /// Sessions and a sentence.
    Theirs(Vec<SessionJson>, &'static str),
}

fn sessions(json: Value) -> Result<Form, String> {
    if json.get("format").and_then(Value::as_str) == Some(JSON_FORMAT) {
        match json.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(JSON_VERSION) => {}
            Some(version) if version > u64::from(JSON_VERSION) => {
                return Err("written by a newer sala-chat: update this one".into());
            }
            _ => return Err(format!("a damaged sala-chat export (its version is not {JSON_VERSION})")),
        }
        let session = serde_json::from_value(json).map_err(|e| format!("a damaged sala-chat export ({e})"))?;
        return Ok(Form::Ours(Box::new(session)));
    }
    let list = match json {
        Value::Array(list) => list,
        one @ Value::Object(_) => vec![one],
        _ => return Err(UNKNOWN.into()),
    };
    if list.iter().any(|c| c.get("mapping").is_some()) {
        let sessions = list.iter().filter_map(chatgpt).collect();
        return Ok(Form::Theirs(sessions, "Texts of a ChatGPT export: the model reads them when you go on."));
    }
    if list.iter().any(|c| c.get("chat").is_some()) {
        let sessions = list.iter().filter_map(open_webui).collect();
        return Ok(Form::Theirs(sessions, "Texts of an Open WebUI export: the model reads them when you go on."));
    }
    Err(UNKNOWN.into())
}

const UNKNOWN: &str = "neither a sala-chat, ChatGPT nor Open WebUI export";

/// A tree under construction, whose nodes are named by strings.
#[derive(Default)]
struct Tree {
    messages: Vec<Message>,
    ids: HashMap<String, MessageId>,
}

impl Tree {
    fn id(&mut self, key: &str) -> MessageId {
        let next = MessageId(self.ids.len() as i64 + 1);
        *self.ids.entry(key.to_owned()).or_insert(next)
    }

    fn add(&mut self, key: &str, parent: Option<&str>, role: Role, text: String, created_s: f64) {
        let message = Message {
            id: self.id(key),
            parent: parent.map(|p| self.id(p)),
            role,
            text,
            thinking: String::new(),
            created_ms: (created_s * 1000.0) as i64,
            meta: MessageMeta::default(),
        };
        self.messages.push(message);
    }

    fn session(self, name: &str, head: Option<&str>) -> Option<SessionJson> {
        let head = head.and_then(|h| self.ids.get(h).copied()).or(self.messages.last().map(|m| m.id));
        (!self.messages.is_empty()).then(|| SessionJson {
            format: JSON_FORMAT.into(),
            version: JSON_VERSION,
            name: name.to_owned(),
            title: None,
            settings: Value::Null,
            created_ms: 0,
            head,
            messages: self.messages,
            marks: Vec::new(),
        })
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn role(name: Option<&str>) -> Option<Role> {
    match name {
        Some("user") => Some(Role::User),
        Some("assistant") => Some(Role::Assistant),
        _ => None,
    }
}

/// Who says something, what, and when in seconds.
type Words = (Role, String, f64);

/// Text that is in parts: strings, or objects with a text; others, such as pictures, have none.
fn joined(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|p| p.as_str().or_else(|| p.get("text")?.as_str()));
    texts.filter(|t| !t.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// A conversation of nodes that name their parents, of which those without words are stepped over. `head`: where it is read on.
fn of_nodes(
    name: &str,
    nodes: &Map<String, Value>,
    parent: &str,
    head: Option<String>,
    words: impl Fn(&Value) -> Option<Words>,
) -> Option<SessionJson> {
    // The nearest node above that says something. What was found for a silent one counts for all below it, so that a long
    // row of them is gone through once.
    let mut known: HashMap<String, Option<String>> = HashMap::new();
    let mut spoken = |key: Option<String>| -> Option<String> {
        let mut silent = Vec::new();
        let mut next = key;
        let found = loop {
            let Some((key, node)) = next.as_ref().and_then(|k| nodes.get_key_value(k)) else { break None };
            if words(node).is_some() {
                break Some(key.clone());
            }
            if let Some(found) = known.get(key) {
                break found.clone();
            }
            if silent.len() > nodes.len() {
                break None;
            }
            silent.push(key.clone());
            next = text(node, parent);
        };
        for key in silent {
            known.insert(key, found.clone());
        }
        found
    };
    let mut tree = Tree::default();
    for (key, node) in nodes {
        if let Some((role, words, created)) = words(node) {
            tree.add(key, spoken(text(node, parent)).as_deref(), role, words, created);
        }
    }
    let head = spoken(head);
    tree.session(name, head.as_deref())
}

/// `conversations.json`: nodes with parents; empty, system and tool nodes are stepped over.
fn chatgpt(conversation: &Value) -> Option<SessionJson> {
    let mapping = conversation.get("mapping")?.as_object()?;
    let words = |node: &Value| {
        let message = node.get("message")?;
        let role = role(message.pointer("/author/role").and_then(Value::as_str))?;
        let text = joined(message.pointer("/content/parts").and_then(Value::as_array)?);
        let created = message.get("create_time").and_then(Value::as_f64).unwrap_or(0.0);
        (!text.is_empty()).then_some((role, text, created))
    };
    let title = text(conversation, "title").unwrap_or_default();
    of_nodes(&title, mapping, "parent", text(conversation, "current_node"), words)
}

/// An exported chat: a map of messages with parents, or (older) a plain list; system and tool messages are stepped over.
fn open_webui(conversation: &Value) -> Option<SessionJson> {
    let chat = conversation.get("chat")?;
    let title = text(chat, "title").or_else(|| text(conversation, "title")).unwrap_or_default();
    let words = |m: &Value| {
        let role = role(m.get("role").and_then(Value::as_str))?;
        let text = match m.get("content") {
            Some(Value::Array(parts)) => joined(parts),
            _ => text(m, "content").unwrap_or_default(),
        };
        Some((role, text, m.get("timestamp").and_then(Value::as_f64).unwrap_or(0.0)))
    };
    if let Some(map) = chat.pointer("/history/messages").and_then(Value::as_object) {
        let head = chat.pointer("/history/currentId").and_then(Value::as_str).map(str::to_owned);
        return of_nodes(&title, map, "parentId", head, words);
    }
    let mut tree = Tree::default();
    let mut last: Option<String> = None;
    for (i, m) in chat.get("messages")?.as_array()?.iter().enumerate() {
        if let Some((role, words, created)) = words(m) {
            let key = i.to_string();
            tree.add(&key, last.as_deref(), role, words, created);
            last = Some(key);
        }
    }
    tree.session(&title, last.as_deref())
}

/// Reorders so that every parent precedes its children. Takes one look at each.
fn parents_first(messages: Vec<Message>) -> Result<Vec<Message>, String> {
    let mut known: HashMap<MessageId, usize> = HashMap::with_capacity(messages.len());
    for (i, m) in messages.iter().enumerate() {
        if known.insert(m.id, i).is_some() {
            return Err(format!("two messages have the number {}", m.id.0));
        }
    }
    let mut children: HashMap<Option<MessageId>, Vec<usize>> = HashMap::new();
    for (i, m) in messages.iter().enumerate() {
        // As a root it would be in the file's tree, and no longer in its conversation.
        if let Some(parent) = m.parent.filter(|p| !known.contains_key(p)) {
            return Err(format!("message {} follows message {}, which is not in the file", m.id.0, parent.0));
        }
        children.entry(m.parent).or_default().push(i);
    }
    let all = messages.len();
    let mut slots: Vec<Option<Message>> = messages.into_iter().map(Some).collect();
    let mut ordered: Vec<Message> = Vec::with_capacity(all);
    let mut todo: std::collections::VecDeque<usize> = children.remove(&None).unwrap_or_default().into();
    while let Some(i) = todo.pop_front() {
        if let Some(m) = slots.get_mut(i).and_then(Option::take) {
            todo.extend(children.remove(&Some(m.id)).unwrap_or_default());
            ordered.push(m);
        }
    }
    match slots.into_iter().flatten().next() {
        // Neither a root nor below one: its parents go round.
        Some(m) => Err(format!("message {} is among its own ancestors", m.id.0)),
        None => Ok(ordered),
    }
}
