//! `doctor --check`: examines everything in a data directory.
//!
//! A database with a damaged structure has been replaced before this check (`rescue.rs`). The check repairs: the
//! search index (rebuilt from the texts), sessions with a damaged row (the log of heads has their place), state with a
//! changed file (dropped and prefilled again), and the mark of a directory merged from two. It cannot repair the text of
//! a damaged message and names it.

use rusqlite::{Connection, Transaction, params};

use super::database::{Access, Store};
use super::directory;
use super::error::{Result, StoreError, Watch, is_damage};
use super::format::{Fault, FileKind};
use super::messages::UNREADABLE;
use super::query::{self, number_at};
use super::schema::{self, structure_fault};
use super::seal::{MESSAGE, SESSION, Sealed, is_whole, seal_session};
use super::segment::SegmentId;
use crate::core::transcript::SessionId;

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Checked {
    pub sessions: u64,
    /// Without placeholders for unreadable messages.
    pub messages: u64,
    pub states: u64,
    pub repaired: Vec<String>,
    pub damaged: Vec<String>,
}

/// Damage that the database itself shows, apart from the search index.
struct Faults {
    structure: Option<String>,
    sessions: Rows,
    messages: Rows,
    /// Placeholders for unreadable messages, after a rescue.
    stand_ins: u64,
    /// Messages that others name and that are not there.
    missing: Vec<i64>,
}

/// The rows of a table that can be found, and those among them that do not match their seal.
struct Rows {
    count: u64,
    broken: Vec<i64>,
}

impl Faults {
    fn of(db: &Connection) -> Result<Faults> {
        // One snapshot: rows removed by others during the check are no damage.
        let moment = db.unchecked_transaction()?;
        let structure = structure_fault(&moment)?;
        let missing =
            "SELECT id FROM (SELECT parent AS id FROM message WHERE parent IS NOT NULL UNION SELECT head FROM session
               WHERE head IS NOT NULL UNION SELECT message FROM mark) AS wanted
             WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.id = wanted.id)";
        let missing = match query::rows(&moment, missing, [], |r| r.get(0)) {
            Err(e) if structure.is_none() => return Err(e),
            missing => missing.unwrap_or_default(),
        };
        let stand_ins = "SELECT count(*) FROM message NOT INDEXED WHERE meta = ?1";
        Ok(Faults {
            stand_ins: moment.query_row(stand_ins, [UNREADABLE], |r| r.get(0)).unwrap_or(0),
            sessions: Rows::of(&moment, SESSION)?,
            messages: Rows::of(&moment, MESSAGE)?,
            structure,
            missing,
        })
    }

    /// A phrase.
    fn first(self) -> Option<String> {
        let messages = &self.messages.broken;
        let message = messages.first().map(|id| format!("message {id}, {} in all", messages.len()));
        let missing = self.missing.first().map(|id| format!("message {id} is missing"));
        let session = self.sessions.broken.first().map(|id| format!("session {id}"));
        self.structure.or(message).or(missing).or(session)
    }
}

impl Rows {
    fn of(db: &Connection, of: Sealed) -> Result<Rows> {
        let mut one = db.prepare_cached(&format!("SELECT {} FROM {} WHERE id = ?1", of.columns, of.table))?;
        let mut all = db.prepare(&format!("SELECT id FROM {} NOT INDEXED", of.table))?;
        let (mut all, mut rows) = (all.query([])?, Rows { count: 0, broken: Vec::new() });
        loop {
            let id = match all.next() {
                Ok(Some(row)) => number_at(row, 0).unwrap_or_default(),
                Err(e) if !is_damage(&e) => return Err(e.into()),
                // Below a damaged page the rest is not found; the structure shows that.
                Ok(None) | Err(_) => return Ok(rows),
            };
            rows.count += 1;
            match one.query_row([id], |r| Ok(is_whole(of, r))) {
                Ok(true) => {}
                Err(e) if !is_damage(&e) && e != rusqlite::Error::QueryReturnedNoRows => return Err(e.into()),
                Ok(false) | Err(_) => rows.broken.push(id),
            }
        }
    }
}

/// A sentence: the database was not checked on this start, and why.
pub fn not_looked_at(why: &impl std::fmt::Display) -> String {
    format!("The database was not looked at ({why}): sala-chat doctor --check does")
}

impl Store {
    /// A sentence about damage in a small database, or why the check failed. Reads the whole database on its own
    /// connection, so call it on a background thread.
    pub fn damage(&self) -> Option<String> {
        let copy = self.copy.as_ref().map(|copy| copy.path().join("sala.db"));
        let database = copy.as_ref().unwrap_or(&self.layout.database);
        if self.disk.look(database).map_or(0, |l| l.bytes) > schema::CHECKED_BYTES {
            return None;
        }
        let look = || -> Result<Option<String>> {
            Ok(Faults::of(&schema::open_readable(database, &self.layout.database)?)?.first())
        };
        let first = match look() {
            Ok(first) => first?,
            // A failing disk or a lock of another process says nothing about the database.
            Err(e) if e.is_disk() => return Some(not_looked_at(&e)),
            // Too damaged to be checked.
            Err(e) => e.to_string(),
        };
        Some(format!(
            "{} is damaged in places ({first}): what can be read is shown. sala-chat doctor --check names all of it and \
             writes a new database where that helps.",
            self.layout.database.display()
        ))
    }

    pub fn check(&self) -> Result<Checked> {
        let mut out = Checked::default();
        let parts: [fn(&Store, &mut Checked) -> Result<()>; 3] =
            [Store::check_texts, Store::check_search, Store::check_states];
        for part in parts {
            if let Err(e) = part(self, &mut out) {
                let fault = format!("sala.db: {}", e.damage().ok_or(e)?);
                if !out.damaged.contains(&fault) {
                    out.damaged.push(fault);
                }
            }
        }
        if let (Ok(wanted), true) = (self.directory_id(), self.may_repair()) {
            let mark = directory::read_mark(&self.layout, &*self.disk);
            if mark.is_some_and(|mark| mark != wanted)
                && directory::write_mark(&self.layout, &*self.disk, &wanted).is_ok()
            {
                out.repaired.push("the folder is marked as the one of this sala.db".into());
            }
        }
        Ok(out)
    }

    fn may_repair(&self) -> bool {
        self.access == Access::Writable
    }

    fn check_texts(&self, out: &mut Checked) -> Result<()> {
        let Faults { structure, sessions, messages, stand_ins, missing } = self.read(Faults::of)?;
        (out.sessions, out.messages) = (sessions.count, messages.count.saturating_sub(stand_ins));
        out.damaged.extend(structure.map(|fault| format!("sala.db: {fault}")));
        for id in sessions.broken.into_iter().map(SessionId) {
            let Ok(record) = self.session(id) else { continue };
            let head = record.head.map(|m| m.0);
            let repair = |tx: &Transaction<'_>| {
                tx.execute("UPDATE session SET head = ?2 WHERE id = ?1", params![id.0, head])?;
                seal_session(tx, id)
            };
            let put_right = self.may_repair() && self.transaction(repair).is_ok();
            let line = format!("session \"{}\": its row was damaged; check its name and its last message", record.name);
            if put_right { out.repaired.push(line) } else { out.damaged.push(line) }
        }
        out.damaged.extend(missing.into_iter().map(|id| format!("message {id} is missing; show names its place")));
        for id in messages.broken {
            let sql = "SELECT s.name, m.depth FROM message m JOIN session s ON s.id = m.session WHERE m.id = ?1";
            let place =
                self.read(|db| Ok(db.query_row(sql, [id], |r| Ok((r.get::<_, String>(0)?, r.get::<_, i64>(1)?)))?));
            out.damaged.push(match place {
                Ok((name, number)) => format!("message #{number} of \"{name}\" is not what was saved; show names it"),
                Err(_) => format!("message {id} is not what was saved"),
            });
        }
        Ok(())
    }

    fn check_search(&self, out: &mut Checked) -> Result<()> {
        if !self.may_repair() {
            return Ok(());
        }
        // Texts that are not indexed yet would count as missing, including those saved by others since.
        let compare = "INSERT INTO message_text(rowid, text) SELECT id, text FROM message WHERE indexed = 0;
                       UPDATE message SET indexed = 1 WHERE indexed = 0;
                       INSERT INTO message_text(message_text, rank) VALUES ('integrity-check', 1)";
        let compared =
            self.index_texts(&Watch::NONE).and_then(|_| self.transaction(|tx| Ok(tx.execute_batch(compare)?)));
        if let Err(e) = compared {
            if e.is_disk() {
                return Err(e);
            }
            let again = "INSERT INTO message_text(message_text) VALUES ('rebuild'); UPDATE message SET indexed = 1";
            match self.transaction(|tx| Ok(tx.execute_batch(again)?)) {
                Ok(()) => out.repaired.push("the search index was rebuilt".into()),
                Err(e) => out.damaged.push(format!("the search index: {e}")),
            }
        }
        Ok(())
    }

    fn check_states(&self, out: &mut Checked) -> Result<()> {
        let mut lost = Vec::new();
        for (id, kind, root) in self.read(kept_files)? {
            out.states += 1;
            let read = || self.open_file(&id, kind, &root).and_then(|file| file.read());
            let Err(Fault { why, lasting }) = read().or_else(|_| read()) else { continue };
            match self.roots(&id).is_ok_and(|roots| roots.of(kind) == Some(root)) {
                // Another process has dropped the state meanwhile, or saved it anew.
                false => {}
                true if lasting => lost.push((id, kind, why)),
                true => out.damaged.push(StoreError::StateLost { id, why }.to_string()),
            }
        }
        let dropped = self.declare_missing(&lost);
        // Rows and end may be lost for the same reason.
        for of_one in lost.chunk_by(|(a, ..), (b, ..)| a == b) {
            let Some(&(id, ..)) = of_one.first() else { continue };
            let mut why: Vec<&str> = of_one.iter().map(|(.., why)| why.as_str()).collect();
            why.dedup();
            let why = why.join("; ");
            match dropped {
                true => out.repaired.push(format!("state {} was dropped and will be read again: {why}", id.short())),
                false => out.damaged.push(StoreError::StateLost { id, why }.to_string()),
            }
        }
        Ok(())
    }
}

/// The kept files of all segments, with their checksums.
fn kept_files(db: &Connection) -> Result<Vec<(SegmentId, FileKind, [u8; 32])>> {
    let files: Vec<_> = query::rows(db, "SELECT id, rows_root, end_root FROM segment", [], |r| {
        let id = SegmentId(r.get(0)?);
        let roots: [(_, Option<[u8; 32]>); 2] = [(FileKind::Rows, r.get(1)?), (FileKind::End, r.get(2)?)];
        Ok(roots.map(|(kind, root)| Some((id, kind, root?))))
    })?;
    Ok(files.into_iter().flatten().flatten().collect())
}
