//! Prepared queries: all rows of one, or its first row, and values of a row, which may be damaged. Parts of queries: the messages a session shows, which are its
//! places, its own messages, and all above those.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::error::Result;

pub(super) fn rows<T, C: FromIterator<T>>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<C> {
    Ok(db.prepare_cached(sql)?.query_map(params, read)?.collect::<rusqlite::Result<C>>()?)
}

pub(super) fn row<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>> {
    Ok(db.prepare_cached(sql)?.query_row(params, read).optional()?)
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

macro_rules! places {
    () => {
        "place(message, session) AS (
  SELECT head, id FROM session WHERE head IS NOT NULL
  UNION ALL SELECT forked_at, id FROM session WHERE forked_at IS NOT NULL
  UNION ALL SELECT message, session FROM mark)"
    };
}

/// Places of sessions besides their own messages: heads, marks, and fork points, to which a fork can return. An
/// earlier version may have removed the message at a fork point.
pub(super) const PLACES: &str = places!();

/// Messages a session can show: its own, and those at or above one of its places or above one of its own.
pub(super) const REACHED_BY_SESSION: &str = concat!(
    "WITH RECURSIVE ",
    places!(),
    ", reached(id) AS (
  SELECT id FROM message WHERE session = ?1
  UNION SELECT message FROM place WHERE session = ?1
  UNION SELECT m.parent FROM reached CROSS JOIN message m ON m.id = reached.id WHERE m.parent IS NOT NULL)"
);

/// Message ?1 and all above it, itself first.
pub(super) const UP: &str = "WITH RECURSIVE up(id, parent, depth) AS (
  SELECT id, parent, depth FROM message WHERE id = ?1
  UNION SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)";
