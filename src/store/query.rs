//! Prepared queries: all rows of one, or its first row. Parts of queries: the messages a session shows, which are its
//! places, its own messages, and all above those.

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
