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
//! what an export says of it; to that come at most 16 MiB of thoughts that several answers follow. So what others export takes
//! below 2 GiB up to [`files::IMPORT_BYTES`].

mod answer;
mod contents;
mod forms;
mod lenient;
mod nodes;
mod spool;
mod theirs;

use std::cell::RefCell;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use self::forms::{Form, form_of};
use self::lenient::{Fault, each};
use self::spool::Spool;
use self::theirs::{ChatGpt, OpenWebUi};
use super::arrival::{Arrival, Arrived, Imported, Incoming, LeftOut, Place, Step, arrive};
use super::bundle::is_bundle;
use super::commit::{Applied, apply_one};
use super::database::{Store, take_ids};
use super::disk::Disk;
use super::error::{Result, StoreError, one_line};
use super::export::SessionJson;
use super::summary::touch_session;
use super::watch::Watch;
use crate::core::transcript::{Message, MessageId, MessageMeta, Role, SessionId};
use crate::text::files;

/// In front of a text that some programs wrote.
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();
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
        if is_bundle(&*self.disk, &real) {
            return self.import_bundle(&real, watch);
        }
        if look.bytes > files::IMPORT_BYTES {
            return Err(bad(format!("{} bytes, at most {} can be imported as text", look.bytes, files::IMPORT_BYTES)));
        }
        let mark = BYTE_ORDER_MARK.len() as u64;
        let marked = self.disk.read_at(&real, 0, mark).is_ok_and(|b| b == BYTE_ORDER_MARK);
        let at = if marked { mark } else { 0 };
        let file = |watch| {
            let pieces = Pieces { disk: &*self.disk, path: &real, at, bytes: look.bytes, watch };
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
            Form::ChatGpt => each(file, &mut |ChatGpt(talk)| reading.take_theirs(talk)),
            Form::OpenWebUi => each(file, &mut |OpenWebUi(talk)| reading.take_theirs(talk)),
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
    fn take_theirs(&mut self, talk: Theirs) -> Result<()> {
        self.imported.left_out.add(talk.left_out);
        self.take(talk.session)
    }

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
            let mut steps = spool.again()?;
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

/// A message of another program, which says no more of it: a tenth of the memory of one of ours.
struct Said {
    id: MessageId,
    parent: Option<MessageId>,
    role: Role,
    text: String,
    thinking: Option<Rc<str>>,
    created_ms: i64,
}

/// A conversation of another program, and what of it is left out.
struct Theirs {
    session: Arrival<Said>,
    left_out: LeftOut,
}

impl Incoming for Said {
    fn id(&self) -> MessageId {
        self.id
    }

    fn parent(&self) -> Option<MessageId> {
        self.parent
    }

    fn message(self, id: MessageId, parent: Option<MessageId>) -> Message {
        let Said { role, text, thinking, created_ms, .. } = self;
        let thinking = thinking.as_deref().unwrap_or_default().to_owned();
        Message { id, parent, role, text, thinking, created_ms, meta: MessageMeta::default() }
    }
}
