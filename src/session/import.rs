//! Conversations come in: our own JSON and bundles, and the texts of ChatGPT's and Open WebUI's exports.
//!
//! A file is read twice: once to know what it is, so that one which is none of these is refused before anything is written,
//! and once to take it, one conversation at a time, into a spool (`spool.rs`). Only then is all of it written, in one transaction:
//! stopped or broken off, nothing of it is there, and nobody waits for the database while a file is read. Names and ids are those
//! that are free when it is written.
//!
//! What is in memory is the conversation at hand, once as it is read and once as its messages: 2 MiB each of a file of many
//! talks, whatever its size. A file that is one conversation takes at most three and a half times its size (measured: 50 MB of the
//! shortest messages and nodes there can be), one of ours twice, and six times where somebody has left out of every message
//! what an export says of it. So what others export takes below 2 GiB up to [`files::IMPORT_BYTES`].

mod forms;
mod lenient;
mod nodes;
mod spool;
mod theirs;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use self::forms::{Form, form_of};
use self::lenient::{Fault, each};
use self::spool::Spool;
pub(super) use self::spool::Step;
use self::theirs::{ChatGpt, OpenWebUi};
use super::commit::{Applied, apply_one};
use super::disk::Disk;
use super::error::{Result, StoreError, one_line};
use super::export::{MarkJson, SessionJson};
use super::store::{Store, take_ids};
use super::summary::touch_session;
use super::watch::Watch;
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
/// Read at a time; whoever waits is asked and told that often.
const PIECE_BYTES: usize = 1 << 20;

impl Store {
    /// Imports a file. Names that are taken get a number. Whoever waits is told bytes taken, of so many.
    ///
    /// # Errors
    /// [`StoreError::NoInput`] when it is not there; [`StoreError::Import`] when it is of no known form, contradicts itself or
    /// is too large; the database cannot be written; [`StoreError::Stopped`], and then nothing was imported.
    pub fn import(&self, path: &Path, watch: &Watch<'_>) -> Result<Imported> {
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
            return self.import_bundle(&real, watch);
        }
        if look.bytes > files::IMPORT_BYTES {
            return Err(bad(format!("{} bytes, at most {} can be imported as text", look.bytes, files::IMPORT_BYTES)));
        }
        let file = |watch| {
            let pieces = Pieces { disk: &*self.disk, path: &real, at: 0, bytes: look.bytes, watch };
            BufReader::with_capacity(PIECE_BYTES, pieces)
        };
        let unread = |e: serde_json::Error, what: &dyn Fn(serde_json::Error) -> String| match e.classify() {
            serde_json::error::Category::Io => watch.or_stopped(no_input(e.into())),
            _ => bad(what(e)),
        };
        let no_json = |e| {
            unread(e, &|e| {
                format!(
                    "not JSON ({e}). What can be imported: an export as .json or --with-state, and those of ChatGPT and Open WebUI"
                )
            })
        };
        let form = form_of(file(Watch { told: &|_, _| {}, ..*watch })).map_err(no_json)?.map_err(bad)?;
        self.writable()?;
        let text_only = Some(form.text_only().to_owned());
        let mut reading = Reading {
            spool: Spool::within(&self.layout.root),
            talks: Vec::new(),
            ids: 0,
            watch,
            bad: &bad,
            imported: Imported { text_only, ..Imported::default() },
        };
        let file = file(*watch);
        let read = match form {
            Form::Ours => {
                let session: SessionJson = serde_json::from_reader(file)
                    .map_err(|e| unread(e, &|e| format!("a damaged sala-chat export ({e})")))?;
                reading.take(Arrival::from(session)).map_err(Fault::Store)
            }
            Form::ChatGpt => each(file, &mut |ChatGpt(talk)| reading.take(talk)),
            Form::OpenWebUi => each(file, &mut |OpenWebUi(talk)| reading.take(talk)),
        };
        match read {
            Err(Fault::Store(e)) => Err(e),
            Err(Fault::Json(e)) => Err(no_json(e)),
            Ok(()) if reading.talks.is_empty() => Err(bad("there is no conversation in it".into())),
            Ok(()) => reading.write(self),
        }
    }
}

impl Form {
    /// Why no state came along.
    fn text_only(self) -> &'static str {
        match self {
            Form::Ours => "Text only: model state is exported with --with-state.",
            Form::ChatGpt => "Texts of a ChatGPT export: the model reads them when you go on.",
            Form::OpenWebUi => "Texts of an Open WebUI export: the model reads them when you go on.",
        }
    }
}

/// A file as it was found, read through the disk.
struct Pieces<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    at: u64,
    bytes: u64,
    watch: Watch<'a>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.go_on_io()?;
        (self.watch.told)(self.at, self.bytes);
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        let piece = left.min(into.len());
        let Some(into) = into.get_mut(..piece).filter(|into| !into.is_empty()) else { return Ok(0) };
        self.disk.read_into(self.path, self.at, into)?;
        self.at += piece as u64;
        Ok(piece)
    }
}

/// A file on its way in. Sessions and messages have numbers of its own, from 0, until it is written.
struct Reading<'a> {
    spool: Spool,
    /// Sessions and the steps that make each.
    talks: Vec<(SessionId, u64)>,
    /// Numbers given so far.
    ids: i64,
    watch: &'a Watch<'a>,
    bad: &'a dyn Fn(String) -> StoreError,
    imported: Imported,
}

impl Reading<'_> {
    fn take<M: Incoming>(&mut self, session: Arrival<M>) -> Result<()> {
        let Reading { spool, talks, ids, watch, bad, imported } = self;
        imported.messages += session.messages.len() as u64;
        let mut next = || {
            *ids += 1;
            Ok(*ids - 1)
        };
        let mut steps = 0;
        let mut put = |step: Step| {
            watch.go_on()?;
            steps += 1;
            spool.put(&step)
        };
        let Arrived { id, place, .. } = arrive(session, &mut next, &mut put, *bad)?;
        talks.push((id, steps));
        imported.without_place += u64::from(place == Place::LastMessage);
        Ok(())
    }

    /// Writes all of it, or nothing.
    fn write(self, store: &Store) -> Result<Imported> {
        let Reading { spool, talks, ids, watch, imported, .. } = self;
        let spool = RefCell::new(spool);
        let sessions = store.transaction(|tx| {
            let mut spool = spool.borrow_mut();
            let mut steps = spool.from_the_first()?;
            let first = take_ids(tx, ids, 0)?;
            let mut named = tx.prepare_cached("SELECT name FROM session WHERE id = ?1")?;
            let mut sessions: Vec<(SessionId, String)> = Vec::with_capacity(talks.len());
            for (session, count) in &talks {
                let mut applied = Applied::default();
                for _ in 0..*count {
                    watch.go_on()?;
                    apply_one(tx, &steps.step()?.change(first), &mut applied)?;
                }
                let id = SessionId(session.0 + first);
                touch_session(tx, id)?;
                sessions.push((id, named.query_row([id.0], |r| r.get(0))?));
            }
            Ok(sessions)
        })?;
        Ok(Imported { sessions, ..imported })
    }
}

/// A session as a file has it.
pub(super) struct Arrival<M> {
    name: String,
    title: Option<String>,
    /// An object; a string where it could not be read as one.
    settings: Value,
    head: Option<MessageId>,
    messages: Vec<M>,
    marks: Vec<MarkJson>,
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

/// A message of another program, which says no more of it: a tenth of the memory of one of ours.
struct Said {
    id: MessageId,
    parent: Option<MessageId>,
    role: Role,
    text: String,
    created_ms: i64,
}

impl Incoming for Said {
    fn id(&self) -> MessageId {
        self.id
    }

    fn parent(&self) -> Option<MessageId> {
        self.parent
    }

    fn message(self, id: MessageId, parent: Option<MessageId>) -> Message {
        let Said { role, text, created_ms, .. } = self;
        Message { id, parent, role, text, thinking: String::new(), created_ms, meta: MessageMeta::default() }
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
