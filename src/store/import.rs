//! Imports conversations: our own JSON and bundles, and the texts of ChatGPT's and Open WebUI's exports.
//!
//! An import reads its file one conversation at a time and writes in short transactions, between which others can
//! write. Its sessions are in the trash until all of the file is written, and then appear at once. After an error or a
//! stop nothing of the file stays. A conversation with an error is skipped and named; the others are imported.
//!
//! Memory holds the text of one conversation and its messages.

mod chatgpt;
mod open_webui;
mod tree;
mod values;

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use rusqlite::params;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use zip::ZipArchive;
use zip::result::ZipError;

use self::values::parsed;
use super::arrival::{Imported, Skipped, arrive, plain_name};
use super::bundle::is_bundle;
use super::commit::{Applied, Change, apply_one};
use super::database::Store;
use super::disk::Disk;
use super::error::{Result, StoreError, Watch, one_line};
use super::export::{JSON_FORMAT, JSON_VERSION, SessionJson};
use super::seal::seal_session;
use super::summary::{free_name, touch_session};
use crate::core::files;
use crate::core::now_ms;
use crate::core::transcript::SessionId;

/// How the names of files with conversations begin in the zip that ChatGPT sends.
const IN_ZIP: &str = "conversations";
const ZIP: &[u8] = b"PK\x03\x04";
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();
const PIECE_BYTES: usize = 1 << 20;
/// Sessions removed in one transaction.
const REMOVED: usize = 100;
/// (changes, bytes of text) of one transaction, for which every other writer waits.
const BATCH: (usize, usize) = (1_000, 1 << 20);
const UNKNOWN: &str = "neither a sala-chat, ChatGPT nor Open WebUI export";

impl Store {
    /// Imports a file. A taken name gets a number. `watch` receives the bytes read. Nothing is imported of one that has
    /// no known form, contradicts itself or is too large: [`StoreError::Import`].
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
        let begins = |with: &[u8]| self.disk.read_at(&real, 0, with.len() as u64).is_ok_and(|b| b == with);
        let at = if begins(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() as u64 } else { 0 };
        let pieces = Pieces { disk: &*self.disk, path: &real, at, bytes: look.bytes, watch };
        let mut reading = Reading {
            store: self,
            watch,
            bad: &bad,
            items: 0,
            batch: Vec::new(),
            batch_bytes: 0,
            sessions: Vec::new(),
            imported: Imported::default(),
            failed: None,
        };
        let whole = match begins(ZIP) {
            true => {
                let unusable = |e| watch.or_stopped(bad(format!("a zip without a readable {IN_ZIP}.json ({e})")));
                let mut zip = ZipArchive::new(pieces).map_err(unusable)?;
                let is_list = |name: &String| {
                    let file = name.rsplit('/').next().unwrap_or_default();
                    file.starts_with(IN_ZIP) && file.ends_with(".json")
                };
                let mut names: Vec<String> = zip.file_names().flatten().map(Cow::into_owned).filter(is_list).collect();
                names.sort_unstable();
                if names.is_empty() {
                    return Err(unusable(ZipError::FileNotFound));
                }
                names.iter().try_for_each(|name| {
                    let Ok(entry) = zip.by_name(name).map_err(|e| reading.failed = Some(unusable(e))) else {
                        return Ok(());
                    };
                    reading.read(BufReader::with_capacity(PIECE_BYTES, entry.take(files::IMPORT_BYTES)))
                })
            }
            false => reading.read(BufReader::with_capacity(PIECE_BYTES, pieces)),
        };
        let read = match (reading.failed.take(), whole) {
            (Some(e), _) => Err(e),
            (None, Err(e)) if e.is_io() => Err(watch.or_stopped(no_input(e.into()))),
            (None, whole) => whole.map_err(|e| {
                bad(format!(
                    "not JSON ({e}). What can be imported: an export as .json or --with-state, and those of ChatGPT and Open WebUI"
                ))
            }),
        };
        read.and_then(|()| reading.show()).inspect_err(|_| reading.remove())
    }
}

struct Pieces<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    at: u64,
    bytes: u64,
    watch: &'a Watch<'a>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.go_on_io()?;
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        let piece = left.min(into.len());
        let Some(into) = into.get_mut(..piece).filter(|into| !into.is_empty()) else { return Ok(0) };
        self.disk.read_into(self.path, self.at, into)?;
        self.at += piece as u64;
        (self.watch.progress)(self.at, self.bytes);
        Ok(piece)
    }
}

impl Seek for Pieces<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = place.filter(|at| *at <= self.bytes).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// A file being imported.
struct Reading<'a> {
    store: &'a Store,
    watch: &'a Watch<'a>,
    bad: &'a dyn Fn(String) -> StoreError,
    items: u64,
    batch: Vec<Change>,
    batch_bytes: usize,
    /// All sessions so far and their wanted names.
    sessions: Vec<(SessionId, String)>,
    imported: Imported,
    failed: Option<StoreError>,
}

impl Reading<'_> {
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
        let title = item["title"].as_str().or(item["name"].as_str());
        let (program, read): (_, fn(&Value) -> _) = match (&item["mapping"], &item["chat"]) {
            (Value::Null, Value::Null) => return self.skip(title, "not a conversation".to_owned()),
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
        let arrived = arrive(session, self.store).map_err(self.bad)?;
        arrived.changes.into_iter().try_for_each(|change| self.put(change))?;
        self.imported.messages += messages;
        self.imported.without_place += u64::from(arrived.at_last_message);
        Ok(())
    }

    fn put(&mut self, change: Change) -> Result<()> {
        self.watch.go_on()?;
        if self.batch.len() >= BATCH.0 || self.batch_bytes >= BATCH.1 {
            self.write()?;
        }
        match &change {
            Change::CreateSession(new) => self.sessions.push((new.id, new.name.clone())),
            Change::PutMessage { message, .. } => self.batch_bytes += message.text.len() + message.thinking.len(),
            _ => {}
        }
        self.batch.push(change);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let (batch, watch) = (std::mem::take(&mut self.batch), self.watch);
        self.batch_bytes = 0;
        self.store.transaction(|tx| {
            for changes in batch.chunk_by(|a, b| a.session() == b.session()) {
                let mut applied = Applied::default();
                for change in changes {
                    watch.go_on()?;
                    apply_one(tx, change, &mut applied)?;
                }
                // If the process ends here, it leaves with the trash.
                if let Some(id) = changes.first().and_then(Change::session) {
                    tx.prepare_cached("UPDATE session SET trashed_ms = ?2 WHERE id = ?1")?
                        .execute(params![id.0, now_ms()])?;
                    seal_session(tx, id)?;
                }
            }
            Ok(())
        })
    }

    /// Takes all of it out of the trash.
    fn show(&mut self) -> Result<Imported> {
        if self.imported.text_only.is_none() {
            return Err((self.bad)(UNKNOWN.into()));
        }
        if self.sessions.is_empty() {
            let skipped = self.imported.skipped_in_words();
            let why = skipped.map_or_else(String::new, |skipped| format!(": {skipped}"));
            return Err((self.bad)(format!("there is no conversation in it{why}")));
        }
        self.write()?;
        self.imported.sessions = self.store.transaction(|tx| {
            let show = |(id, name): &(SessionId, String)| {
                let name = free_name(tx, name)?;
                let sql = "UPDATE session SET trashed_ms = NULL, name = ?2 WHERE id = ?1";
                if tx.prepare_cached(sql)?.execute(params![id.0, name])? == 0 {
                    // Another process has emptied the trash.
                    return Err(StoreError::NoSession { name });
                }
                touch_session(tx, *id)?;
                Ok((*id, name))
            };
            self.sessions.iter().map(show).collect::<Result<_>>()
        })?;
        Ok(std::mem::take(&mut self.imported))
    }

    /// Removes all of it, after an error or a stop.
    fn remove(&self) {
        for some in self.sessions.chunks(REMOVED) {
            let removed = self.store.transaction(|tx| {
                for (id, _) in some {
                    tx.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute([id.0])?;
                    tx.prepare_cached("DELETE FROM message WHERE session = ?1")?.execute([id.0])?;
                }
                Ok(())
            });
            if let Err(e) = removed {
                tracing::warn!("a part of the import stays in the trash: {e}");
            }
        }
    }
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
