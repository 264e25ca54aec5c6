//! Imports conversations: our own JSON and bundles, and the texts of ChatGPT's and Open WebUI's exports.
//!
//! An import reads its file twice, one conversation at a time: first to check all of it, then to write it in short
//! transactions, between which others can write. A conversation appears once it is whole. After an error or a stop nothing of the file stays. A conversation with an error is skipped and named; the
//! others are imported.
//!
//! Memory holds the text of one conversation and its messages.

mod answer;
mod chatgpt;
mod json;
mod open_webui;
mod parts;
mod tree;

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use rusqlite::{Transaction, params};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use self::json::parsed;
use super::arrival::{Imported, Skipped, arrive, plain_name};
use super::bundle::is_bundle;
use super::commit::{Applied, Change, apply_one};
use super::database::{Store, take_ids};
use super::disk::Disk;
use super::error::{Result, StoreError, one_line};
use super::export::{JSON_FORMAT, JSON_VERSION, SessionJson};
use super::seal::seal_session;
use super::summary::{free_name, touch_session};
use super::watch::Watch;
use crate::core::files;
use crate::core::now_ms;
use crate::core::transcript::SessionId;

const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();
const PIECE_BYTES: usize = 1 << 20;
const REMOVED: i64 = 1_000;
/// (changes, bytes of text) of one transaction, for which every other writer waits.
const BATCH: (usize, usize) = (1_000, 1 << 20);
const UNKNOWN: &str = "neither a sala-chat, ChatGPT nor Open WebUI export";

impl Store {
    /// Imports a file. A taken name gets a number. `watch` receives the bytes read.
    ///
    /// # Errors
    /// [`StoreError::Import`] if it has no known form, contradicts itself or is too large. Nothing is then imported.
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
        self.writable()?;
        let mark = BYTE_ORDER_MARK.len() as u64;
        let marked = self.disk.read_at(&real, 0, mark).is_ok_and(|b| b == BYTE_ORDER_MARK);
        let at = if marked { mark } else { 0 };
        let bytes = look.bytes;
        let pass = |reading: &mut Reading<'_>, is_first: bool| {
            let pieces = Pieces { disk: &*self.disk, path: &real, at, bytes, is_first, watch };
            let whole = reading.read(BufReader::with_capacity(PIECE_BYTES, pieces));
            match (reading.failed.take(), whole) {
                (Some(e), _) => Err(e),
                (None, Err(e)) if e.is_io() => Err(watch.or_stopped(no_input(e.into()))),
                (None, whole) => whole.map_err(|e| {
                    bad(format!(
                        "not JSON ({e}). What can be imported: an export as .json or --with-state, and those of ChatGPT and Open WebUI"
                    ))
                }),
            }
        };
        let mut checked = Reading::new(0..i64::MAX, watch, &bad);
        pass(&mut checked, true)?;
        if checked.imported.text_only.is_none() {
            return Err(bad(UNKNOWN.into()));
        }
        if checked.ids.start == 0 {
            let skipped = checked.imported.skipped_in_words();
            let why = skipped.map_or_else(String::new, |skipped| format!(": {skipped}"));
            return Err(bad(format!("there is no conversation in it{why}")));
        }
        let first = self.transaction(|tx| take_ids(tx, checked.ids.start, 0))?;
        let ids = first..first + checked.ids.start;
        let mut reading = Reading { to: Some(self), ..Reading::new(ids.clone(), watch, &bad) };
        match pass(&mut reading, false).and_then(|()| reading.write(None)) {
            Ok(()) => Ok(reading.imported),
            Err(e) => {
                self.remove_imported(&ids);
                Err(e)
            }
        }
    }

    fn remove_imported(&self, ids: &Range<i64>) {
        for sql in [
            "DELETE FROM session WHERE id IN (SELECT id FROM session WHERE id >= ?1 AND id < ?2 LIMIT ?3)",
            // Children have greater ids than their parents.
            "DELETE FROM message WHERE id IN (SELECT id FROM message WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3)",
        ] {
            let remove = || self.transaction(|tx| Ok(tx.execute(sql, params![ids.start, ids.end, REMOVED])?));
            while remove().is_ok_and(|removed| removed > 0) {}
        }
    }
}

struct Pieces<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    at: u64,
    bytes: u64,
    /// Only the first pass reports its progress.
    is_first: bool,
    watch: &'a Watch<'a>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.go_on_io()?;
        if self.is_first {
            (self.watch.progress)(self.at, self.bytes);
        }
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        let piece = left.min(into.len());
        let Some(into) = into.get_mut(..piece).filter(|into| !into.is_empty()) else { return Ok(0) };
        self.disk.read_into(self.path, self.at, into)?;
        self.at += piece as u64;
        Ok(piece)
    }
}

/// A file being read.
struct Reading<'a> {
    /// For its sessions and messages.
    ids: Range<i64>,
    items: u64,
    watch: &'a Watch<'a>,
    bad: &'a dyn Fn(String) -> StoreError,
    /// Where it is written; `None` while it is checked.
    to: Option<&'a Store>,
    batch: Vec<Change>,
    batch_bytes: usize,
    imported: Imported,
    failed: Option<StoreError>,
}

impl<'a> Reading<'a> {
    fn new(ids: Range<i64>, watch: &'a Watch<'a>, bad: &'a dyn Fn(String) -> StoreError) -> Reading<'a> {
        let imported = Imported::default();
        Reading { ids, items: 0, watch, bad, to: None, batch: Vec::new(), batch_bytes: 0, imported, failed: None }
    }

    fn read(&mut self, mut file: impl BufRead) -> serde_json::Result<()> {
        let is_list = loop {
            let ahead = file.fill_buf().map_err(serde_json::Error::io)?;
            let blank = ahead.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            match ahead.get(blank) {
                Some(byte) => break *byte == b'[',
                None if ahead.is_empty() => break false,
                None => file.consume(blank),
            }
        };
        let mut json = serde_json::Deserializer::from_reader(file);
        if is_list {
            (&mut json).deserialize_seq(List(self))?;
        } else {
            let one: Box<RawValue> = serde::Deserialize::deserialize(&mut json)?;
            json.end()?;
            let item = parsed(one.get());
            let ours = item["format"] == JSON_FORMAT;
            if let Err(e) = if ours { self.take_ours(item) } else { self.take(&item) } {
                self.failed = Some(e);
            }
        }
        json.end()
    }

    fn take_ours(&mut self, item: Value) -> Result<()> {
        match item["version"].as_f64() {
            Some(version) if version == f64::from(JSON_VERSION) => {}
            Some(version) if version > f64::from(JSON_VERSION) => {
                return Err((self.bad)("written by a newer sala-chat: update this one".into()));
            }
            _ => return Err((self.bad)(format!("a damaged sala-chat export (its version is not {JSON_VERSION})"))),
        }
        let session: SessionJson =
            serde_json::from_value(item).map_err(|e| (self.bad)(format!("a damaged sala-chat export ({e})")))?;
        self.imported.text_only = Some("Text only: model state is exported with --with-state.".into());
        self.arrive(session)
    }

    fn take(&mut self, item: &Value) -> Result<()> {
        self.items += 1;
        let (program, read): (_, fn(&Value) -> _) = match (&item["mapping"], &item["chat"]) {
            (Value::Null, Value::Null) => return self.skip(item["title"].as_str(), "not a conversation".to_owned()),
            (Value::Null, _) => ("an Open WebUI", open_webui::conversation),
            _ => ("a ChatGPT", chatgpt::conversation),
        };
        let text_only = || format!("Texts of {program} export: the model reads them when you go on.");
        self.imported.text_only.get_or_insert_with(text_only);
        let (session, left_out) = read(item);
        let name = session.name.clone();
        if session.messages.is_empty() {
            return self.skip(Some(&name), "without a message".to_owned());
        }
        match self.arrive(session) {
            Err(StoreError::Import { why, .. }) => return self.skip(Some(&name), why),
            arrived => arrived?,
        }
        self.imported.left_out.add(left_out);
        Ok(())
    }

    fn skip(&mut self, name: Option<&str>, why: String) -> Result<()> {
        let name = match plain_name(name.unwrap_or_default()) {
            name if name.is_empty() => format!("number {} of the file", self.items),
            name => name,
        };
        self.imported.skipped.push(Skipped { name, why });
        Ok(())
    }

    fn arrive(&mut self, session: SessionJson) -> Result<()> {
        let messages = session.messages.len() as u64;
        let mut ids = self.ids.clone();
        let changed = || StoreError::Broken { what: "the file".into(), why: "it changed during the import".into() };
        let (mut next, bad) = (|| ids.next().ok_or_else(changed), self.bad);
        let arrived = arrive(session, &mut next, &mut |change| self.put(change), bad)?;
        self.ids = ids;
        self.imported.messages += messages;
        self.imported.without_place += u64::from(arrived.at_last_message);
        Ok(())
    }

    fn put(&mut self, change: Change) -> Result<()> {
        self.watch.go_on()?;
        if self.to.is_none() {
            return Ok(());
        }
        if self.batch.len() >= BATCH.0 || self.batch_bytes >= BATCH.1 {
            self.write(change.session())?;
        }
        if let Change::PutMessage { message, .. } = &change {
            self.batch_bytes += message.text.len() + message.thinking.len();
        }
        self.batch.push(change);
        Ok(())
    }

    /// Writes what there is; `continued` is the session of the next change.
    fn write(&mut self, continued: Option<SessionId>) -> Result<()> {
        let (batch, watch) = (std::mem::take(&mut self.batch), self.watch);
        self.batch_bytes = 0;
        if let Some(store) = self.to {
            self.imported.sessions.extend(store.transaction(|tx| write_batch(tx, &batch, continued, watch))?);
        }
        Ok(())
    }
}

/// Writes changes and returns the complete sessions, without the one that the next batch continues.
fn write_batch(
    tx: &Transaction<'_>,
    batch: &[Change],
    continued: Option<SessionId>,
    watch: &Watch<'_>,
) -> Result<Vec<(SessionId, String)>> {
    let mut whole = Vec::new();
    for changes in batch.chunk_by(|a, b| a.session() == b.session()) {
        let mut applied = Applied::default();
        for change in changes {
            watch.go_on()?;
            apply_one(tx, change, &mut applied)?;
        }
        let Some(id) = changes.first().and_then(Change::session) else { continue };
        if continued == Some(id) {
            // An incomplete session is in the trash, so that it is emptied if the process ends here.
            tx.execute("UPDATE session SET trashed_ms = ?2 WHERE id = ?1", params![id.0, now_ms()])?;
            seal_session(tx, id)?;
            continue;
        }
        let sql = "SELECT name, trashed_ms IS NOT NULL FROM session WHERE id = ?1";
        let (mut name, hidden): (String, bool) =
            tx.prepare_cached(sql)?.query_row([id.0], |r| Ok((r.get(0)?, r.get(1)?)))?;
        if hidden {
            name = free_name(tx, &name)?;
            tx.execute("UPDATE session SET trashed_ms = NULL, name = ?2 WHERE id = ?1", params![id.0, name])?;
        }
        touch_session(tx, id)?;
        whole.push((id, name));
    }
    Ok(whole)
}

struct List<'a, 'b>(&'a mut Reading<'b>);

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<Box<RawValue>>()? {
            if let Err(e) = self.0.take(&parsed(item.get())) {
                self.0.failed = Some(e);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}
