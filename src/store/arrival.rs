//! A session on its way in, from whatever file: made anew step by step, under numbers that it gets here. Writes nothing.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::commit::{Change, NewSession, TitleBy};
use super::error::{Result, StoreError};
use super::export::{MarkJson, SessionJson};
use crate::core::transcript::{Message, MessageId, SessionId};
use crate::text::sanitize::is_unseen;

/// Characters of a session's name, or of a mark's.
const MAX_NAME: usize = 200;

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
    /// What there is no place for here.
    pub left_out: LeftOut,
}

/// How much of an import was left out, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Messages of tools.
    pub tools: u64,
    /// System messages.
    pub system: u64,
    /// Pictures.
    pub pictures: u64,
    /// Attached files.
    pub files: u64,
    /// Thoughts that no answer followed.
    pub thoughts: u64,
    /// Parts and messages of other kinds.
    pub other: u64,
}

impl LeftOut {
    pub(super) fn add(&mut self, o: LeftOut) {
        self.tools += o.tools;
        self.system += o.system;
        self.pictures += o.pictures;
        self.files += o.files;
        self.thoughts += o.thoughts;
        self.other += o.other;
    }

    /// Each kind of which there is something, with its number, in words.
    pub fn in_words(&self) -> Vec<String> {
        let kinds = [
            (self.tools, "message of a tool", "messages of tools"),
            (self.system, "system message", "system messages"),
            (self.pictures, "picture", "pictures"),
            (self.files, "attached file", "attached files"),
            (self.thoughts, "thought without an answer", "thoughts without an answer"),
            (self.other, "part of another kind", "parts of other kinds"),
        ];
        let some = kinds.into_iter().filter(|(n, ..)| *n > 0);
        some.map(|(n, one, many)| format!("{n} {}", if n == 1 { one } else { many })).collect()
    }
}

/// A session as a file has it.
pub(super) struct Arrival<M> {
    pub name: String,
    pub title: Option<String>,
    /// An object; a string where it could not be read as one.
    pub settings: Value,
    pub head: Option<MessageId>,
    pub messages: Vec<M>,
    pub marks: Vec<MarkJson>,
}

impl From<SessionJson> for Arrival<Message> {
    fn from(json: SessionJson) -> Arrival<Message> {
        let SessionJson { name, title, settings, head, messages, marks, .. } = json;
        Arrival { name, title, settings, head, messages, marks }
    }
}

/// A message under the numbers that it has in its file.
pub(super) trait Incoming {
    fn id(&self) -> MessageId;
    fn parent(&self) -> Option<MessageId>;
    /// It under the numbers that it has here.
    fn message(self, id: MessageId, parent: Option<MessageId>) -> Message;
}

impl Incoming for Message {
    fn id(&self) -> MessageId {
        self.id
    }

    fn parent(&self) -> Option<MessageId> {
        self.parent
    }

    fn message(self, id: MessageId, parent: Option<MessageId>) -> Message {
        Message { id, parent, ..self }
    }
}

/// What makes a session anew, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Step {
    Create { session: SessionId, name: String, settings: String },
    Say { session: SessionId, message: Box<Message> },
    Mark { session: SessionId, name: String, message: MessageId },
    Head { session: SessionId, head: MessageId },
    Title { session: SessionId, title: String },
}

impl Step {
    /// It under the numbers from `first` on.
    pub(super) fn change(self, first: i64) -> Change {
        let of_session = |id: SessionId| SessionId(id.0 + first);
        let of_message = |id: MessageId| MessageId(id.0 + first);
        match self {
            Step::Create { session, name, settings } => Change::CreateSession(NewSession {
                id: of_session(session),
                name,
                settings,
                head: None,
                forked_from: None,
            }),
            Step::Say { session, mut message } => {
                message.id = of_message(message.id);
                message.parent = message.parent.map(of_message);
                Change::PutMessage { session: of_session(session), message }
            }
            Step::Mark { session, name, message } => {
                Change::Mark { session: of_session(session), name, message: of_message(message) }
            }
            Step::Head { session, head } => {
                Change::MoveHead { session: of_session(session), head: Some(of_message(head)) }
            }
            Step::Title { session, title } => {
                Change::Title { session: of_session(session), title, by: TitleBy::Person }
            }
        }
    }
}

/// A session that has become one of ours.
pub(super) struct Arrived {
    pub id: SessionId,
    /// By the ids that they had in the file.
    pub new_ids: HashMap<MessageId, MessageId>,
    pub place: Place,
}

/// Hands on the steps that make a session anew. `id` gives new ids, `bad` makes an error of a phrase.
///
/// # Errors
/// Messages that contradict each other; what `id` and `put` say.
pub(super) fn arrive<M: Incoming>(
    session: Arrival<M>,
    id: &mut dyn FnMut() -> Result<i64>,
    put: &mut dyn FnMut(Step) -> Result<()>,
    bad: &dyn Fn(String) -> StoreError,
) -> Result<Arrived> {
    let Arrival { name, title, settings, head, messages, marks } = session;
    let session = SessionId(id()?);
    let order = parents_first(&messages).map_err(bad)?;
    put(Step::Create {
        session,
        name: plain_name(&name),
        settings: match settings {
            settings @ Value::Object(_) => settings.to_string(),
            Value::String(damaged) => damaged,
            _ => "{}".into(),
        },
    })?;
    let last = last_leaf(&messages);
    let mut new_ids: HashMap<MessageId, MessageId> = HashMap::with_capacity(messages.len());
    let mut messages: Vec<Option<M>> = messages.into_iter().map(Some).collect();
    for at in order {
        let Some(message) = messages.get_mut(at).and_then(Option::take) else { continue };
        let new = MessageId(id()?);
        new_ids.insert(message.id(), new);
        let above = |parent| new_ids.get(&parent).copied();
        let parent = match message.parent() {
            None => None,
            Some(old) => Some(
                above(old)
                    .ok_or_else(|| bad("internal error: a message came before the one that it follows".into()))?,
            ),
        };
        put(Step::Say { session, message: Box::new(message.message(new, parent)) })?;
    }
    for mark in marks {
        if let Some(message) = new_ids.get(&mark.message) {
            put(Step::Mark { session, name: plain_name(&mark.name), message: *message })?;
        }
    }
    let place = match head {
        Some(head) if !new_ids.contains_key(&head) && last.is_some() => Place::LastMessage,
        Some(_) | None => Place::AsSaid,
    };
    let head = if place == Place::LastMessage { last } else { head };
    if let Some(head) = head.and_then(|h| new_ids.get(&h)) {
        put(Step::Head { session, head: *head })?;
    }
    if let Some(title) = title.map(|t| plain_name(&t)).filter(|t| !t.is_empty()) {
        put(Step::Title { session, title })?;
    }
    Ok(Arrived { id: session, new_ids, place })
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
fn last_leaf<M: Incoming>(messages: &[M]) -> Option<MessageId> {
    let parents: HashSet<MessageId> = messages.iter().filter_map(M::parent).collect();
    messages.iter().rev().map(M::id).find(|id| !parents.contains(id))
}

/// A name of one short line.
fn plain_name(name: &str) -> String {
    let seen = name.chars().filter(|c| c.is_control() || !is_unseen(*c));
    let name: String = seen.map(|c| if c.is_control() { ' ' } else { c }).take(MAX_NAME).collect();
    name.trim().to_owned()
}

/// The order in which every parent precedes its children. Takes one look at each.
fn parents_first<M: Incoming>(messages: &[M]) -> Result<Vec<usize>, String> {
    let mut known: HashMap<MessageId, usize> = HashMap::with_capacity(messages.len());
    for (i, m) in messages.iter().enumerate() {
        if known.insert(m.id(), i).is_some() {
            return Err(format!("two messages have the number {}", m.id().0));
        }
    }
    // Each with the place of its parent, roots first, those of one parent together in the order of the file.
    let mut below: Vec<(Option<usize>, usize)> = Vec::with_capacity(messages.len());
    for (i, m) in messages.iter().enumerate() {
        let above = match m.parent() {
            None => None,
            // As a root it would be in the file's tree, and no longer in its conversation.
            Some(parent) => Some(*known.get(&parent).ok_or_else(|| {
                format!("message {} follows message {}, which is not in the file", m.id().0, parent.0)
            })?),
        };
        below.push((above, i));
    }
    drop(known);
    below.sort_unstable();
    let children = |parent: Option<usize>| {
        let from = below.partition_point(|(above, _)| *above < parent);
        below.iter().skip(from).take_while(move |(above, _)| *above == parent).map(|(_, i)| *i)
    };
    let mut ordered: Vec<usize> = Vec::with_capacity(messages.len());
    ordered.extend(children(None));
    let mut at = 0;
    while let Some(parent) = ordered.get(at) {
        ordered.extend(children(Some(*parent)));
        at += 1;
    }
    if ordered.len() < messages.len() {
        let reached: HashSet<usize> = ordered.iter().copied().collect();
        // Neither a root nor below one: its parents go round.
        let round = messages.iter().enumerate().find(|(i, _)| !reached.contains(i));
        return Err(format!("message {} is among its own ancestors", round.map_or(0, |(_, m)| m.id().0)));
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::{MessageMeta, Role};

    #[test]
    fn numbers_count_again_one_that_is_free() {
        let (id, parent) = (MessageId(2), Some(MessageId(1)));
        let (text, thinking, meta) = ("text".to_owned(), String::new(), MessageMeta::default());
        let message = Message { id, parent, role: Role::User, text, thinking, created_ms: 7, meta };
        let step = Step::Say { session: SessionId(0), message: Box::new(message) };
        let Change::PutMessage { session, message } = step.change(100) else { panic!() };
        assert_eq!((session, message.id, message.parent), (SessionId(100), MessageId(102), Some(MessageId(101))));
    }
}
