//! Checksums inside the database: one for each message and one for each session's place in its tree. SQLite reads a
//! page with a flipped bit as if it were right; a seal shows the damage.
//!
//! A seal is the first 16 bytes of a BLAKE3 over the row's values, lengths before texts. It does not cover values that
//! change often: use counters, index flags, the owner of a shared message.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use super::error::Result;
use super::query;
use crate::core::transcript::SessionId;

pub(super) type Seal = [u8; 16];

struct Sealer(blake3::Hasher);

impl Sealer {
    fn new(what: &str) -> Sealer {
        Sealer(blake3::Hasher::new_derive_key(what))
    }

    fn number(mut self, n: Option<i64>) -> Sealer {
        match n {
            None => self.0.update(&[0]),
            Some(n) => self.0.update(&[1]).update(&n.to_le_bytes()),
        };
        self
    }

    fn text(mut self, text: &[u8]) -> Sealer {
        self.0.update(&(text.len() as u64).to_le_bytes()).update(text);
        self
    }

    fn done(self) -> Seal {
        let mut seal = [0; 16];
        self.0.finalize_xof().fill(&mut seal);
        seal
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed<'a> {
    pub id: i64,
    pub parent: Option<i64>,
    pub depth: i64,
    pub role: &'a [u8],
    pub created_ms: i64,
    pub meta: &'a [u8],
    pub thinking: &'a [u8],
    pub text: &'a [u8],
}

impl Sealed<'_> {
    pub fn seal(&self) -> Seal {
        Sealer::new("sala-chat message 1")
            .number(Some(self.id))
            .number(self.parent)
            .number(Some(self.depth))
            .text(self.role)
            .number(Some(self.created_ms))
            .text(self.meta)
            .text(self.thinking)
            .text(self.text)
            .done()
    }
}

/// The bytes of a text column, even if damage has changed its type.
pub(super) fn bytes_at<'a>(r: &'a Row<'_>, column: usize) -> &'a [u8] {
    match r.get_ref(column) {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => bytes,
        Ok(ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_)) | Err(_) => &[],
    }
}

pub(super) fn text_at(r: &Row<'_>, column: usize) -> String {
    String::from_utf8_lossy(bytes_at(r, column)).into_owned()
}

pub(super) fn number_at(r: &Row<'_>, column: usize) -> Option<i64> {
    match r.get_ref(column) {
        Ok(ValueRef::Integer(n)) => Some(n),
        _ => None,
    }
}

pub(super) fn count_at(r: &Row<'_>, column: usize) -> u64 {
    number_at(r, column).and_then(|n| u64::try_from(n).ok()).unwrap_or_default()
}

pub(super) const MESSAGE: &str = "m.id, m.parent, m.role, m.created_ms, m.meta, m.thinking, m.text, m.depth, m.seal";
pub(super) const SESSION: &str =
    "m.id, m.name, m.head, m.settings, m.title, m.forked_from, m.forked_at, m.created_ms, m.trashed_ms, m.seal";

/// A table with a seal in each row.
pub(super) struct SealedTable {
    pub name: &'static str,
    /// Of a row `m`: the values under the seal, and last the seal itself.
    pub columns: &'static str,
    pub is_whole: fn(&Row<'_>) -> bool,
    seal: fn(&Row<'_>) -> Option<Seal>,
}

pub(super) const TABLES: [SealedTable; 2] = [
    SealedTable { name: "message", columns: MESSAGE, is_whole, seal: message_seal },
    SealedTable { name: "session", columns: SESSION, is_whole: is_whole_session, seal: |r| Some(session_seal(r)) },
];

/// `None` if a number is none.
fn message_seal(r: &Row<'_>) -> Option<Seal> {
    let sealed = Sealed {
        id: number_at(r, 0)?,
        parent: number_at(r, 1),
        depth: number_at(r, 7)?,
        role: bytes_at(r, 2),
        created_ms: number_at(r, 3)?,
        meta: bytes_at(r, 4),
        thinking: bytes_at(r, 5),
        text: bytes_at(r, 6),
    };
    Some(sealed.seal())
}

pub(super) fn is_whole(r: &Row<'_>) -> bool {
    message_seal(r).is_some_and(|seal| bytes_at(r, 8) == seal)
}

fn session_seal(r: &Row<'_>) -> Seal {
    let number = |column| number_at(r, column);
    let text = |column| bytes_at(r, column);
    Sealer::new("sala-chat session 1")
        .number(number(0))
        .text(text(1))
        .number(number(2))
        .text(text(3))
        .text(text(4))
        .number(number(5))
        .number(number(6))
        .number(number(7))
        .number(number(8))
        .done()
}

pub(super) fn is_whole_session(r: &Row<'_>) -> bool {
    bytes_at(r, 9) == session_seal(r)
}

/// Seals a session as it is now. Every change of a session calls it last.
pub(super) fn seal_session(db: &Connection, id: SessionId) -> Result<()> {
    let sql = format!("SELECT {SESSION} FROM session m WHERE m.id = ?1");
    let seal = query::row(db, &sql, [id.0], |r| Ok(session_seal(r)))?;
    if let Some(seal) = seal {
        db.prepare_cached("UPDATE session SET seal = ?2 WHERE id = ?1")?.execute(params![id.0, seal])?;
    }
    Ok(())
}

pub(super) fn seal_everything(db: &Connection) -> rusqlite::Result<()> {
    for SealedTable { name, columns, seal, .. } in TABLES {
        let mut all = db.prepare(&format!("SELECT id FROM {name}"))?;
        let ids: Vec<i64> = all.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
        let mut row = db.prepare(&format!("SELECT {columns} FROM {name} m WHERE m.id = ?1"))?;
        let mut update = db.prepare(&format!("UPDATE {name} SET seal = ?2 WHERE id = ?1"))?;
        for id in ids {
            let sealed = row.query_row([id], |r| Ok(seal(r)))?;
            update.execute(params![id, sealed])?;
        }
    }
    Ok(())
}
