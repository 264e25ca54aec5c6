//! Checksums inside the database: one for each message and one for each session's place in its tree. SQLite reads a
//! page with a flipped bit as if it were right; a seal shows the damage.
//!
//! A seal is the first 16 bytes of a BLAKE3 over the row's values, lengths before texts. It does not cover values that
//! change often: use counters, index flags, the owner of a shared message.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::Result;
use super::query::bytes_at;
use crate::core::transcript::SessionId;

pub(super) type Seal = [u8; 16];

/// A table with a seal in each row: its name, and its columns under the seal, in their order, before that of the seal.
#[derive(Clone, Copy)]
pub(super) struct Sealed {
    pub table: &'static str,
    pub columns: &'static str,
}

pub(super) const MESSAGE: Sealed =
    Sealed { table: "message", columns: "id, parent, depth, role, created_ms, meta, thinking, text, seal" };
pub(super) const SESSION: Sealed = Sealed {
    table: "session",
    columns: "id, name, head, settings, title, forked_from, forked_at, created_ms, trashed_ms, seal",
};

/// The seal of a row with these values.
pub(super) fn seal_of<'a>(Sealed { table, .. }: Sealed, values: impl IntoIterator<Item = ValueRef<'a>>) -> Seal {
    let mut hash = blake3::Hasher::new_derive_key(&format!("sala-chat {table} 1"));
    for value in values {
        match value {
            ValueRef::Integer(n) => hash.update(&[1]).update(&n.to_le_bytes()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                hash.update(&(bytes.len() as u64).to_le_bytes()).update(bytes)
            }
            ValueRef::Null | ValueRef::Real(_) => hash.update(&[0]),
        };
    }
    let mut seal = [0; 16];
    hash.finalize_xof().fill(&mut seal);
    seal
}

/// The seal of a row that begins with the columns of a sealed table, and whether the row has it.
fn look_at(of: Sealed, r: &Row<'_>) -> (Seal, bool) {
    let sealed = of.columns.split(',').count() - 1;
    let seal = seal_of(of, (0..sealed).map(|column| r.get_ref(column).unwrap_or(ValueRef::Null)));
    (seal, bytes_at(r, sealed) == seal)
}

pub(super) fn is_whole(of: Sealed, r: &Row<'_>) -> bool {
    look_at(of, r).1
}

/// Seals a session as it is now. Every change of a session calls it last.
pub(super) fn seal_session(db: &Connection, id: SessionId) -> Result<()> {
    Ok(seal_row(db, SESSION, id.0)?)
}

pub(super) fn seal_row(db: &Connection, of: Sealed, id: i64) -> rusqlite::Result<()> {
    let Sealed { table, columns } = of;
    let mut row = db.prepare_cached(&format!("SELECT {columns} FROM {table} WHERE id = ?1"))?;
    if let Some(seal) = row.query_row([id], |r| Ok(look_at(of, r).0)).optional()? {
        db.prepare_cached(&format!("UPDATE {table} SET seal = ?2 WHERE id = ?1"))?.execute(params![id, seal])?;
    }
    Ok(())
}

pub(super) fn seal_everything(db: &Connection) -> rusqlite::Result<()> {
    for of in [MESSAGE, SESSION] {
        let mut all = db.prepare(&format!("SELECT id FROM {}", of.table))?;
        for id in all.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()? {
            seal_row(db, of, id)?;
        }
    }
    Ok(())
}
