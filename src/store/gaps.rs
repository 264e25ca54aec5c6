//! Gaps in a database read from a damaged one: sessions without a row, messages without a parent, references to a lost
//! row.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::database::FAR;
use super::error::Result;
use super::messages::UNREADABLE;
use super::query;
use super::seal::{self, Sealed};
use super::summary::{free_name, refresh_session, touch_session};
use crate::core::transcript::{Role, SessionId};

/// Facts in indexes about rows on a damaged page.
pub(super) struct Remembered {
    pub parents: HashMap<i64, i64>,
    pub names: HashMap<i64, String>,
}

impl Remembered {
    pub fn of(old: &Connection) -> Remembered {
        let mut found = Remembered { parents: HashMap::new(), names: HashMap::new() };
        let each = |sql: &str, put: &mut dyn FnMut(&Row<'_>)| {
            let Ok(mut query) = old.prepare(sql) else { return };
            let Ok(mut rows) = query.query([]) else { return };
            while let Ok(Some(row)) = rows.next() {
                put(row);
            }
        };
        each("SELECT id, parent FROM message INDEXED BY message_parent WHERE parent IS NOT NULL", &mut |row| {
            found.parents.extend(seal::number_at(row, 0).zip(seal::number_at(row, 1)));
        });
        each("SELECT id, name FROM session INDEXED BY session_name", &mut |row| {
            found.names.extend(seal::number_at(row, 0).map(|id| (id, seal::text_at(row, 1))));
        });
        found
    }
}

pub(super) fn add_lost_sessions(tx: &Transaction<'_>, names: &HashMap<i64, String>) -> Result<()> {
    let sql = "SELECT DISTINCT session FROM message WHERE session NOT IN (SELECT id FROM session)";
    let without: Vec<i64> = query::rows(tx, sql, [], |r| r.get(0))?;
    for id in without {
        let name = names.get(&id).cloned().unwrap_or_else(|| format!("rescued-{id}"));
        let name = free_name(tx, &name)?;
        tx.execute(
            "INSERT OR IGNORE INTO session(id, name, head, settings, created_ms, updated_ms, used)
             SELECT ?1, ?2, coalesce(
                 (SELECT head FROM head_log WHERE session = ?1 AND head IN (SELECT id FROM message) ORDER BY key DESC),
                 max(id)), '{}', min(created_ms), max(created_ms), 0
             FROM message WHERE session = ?1",
            params![id, name],
        )?;
        touch_session(tx, SessionId(id))?;
    }
    Ok(())
}

const LOST_TEXT: &str = "[A message stood here that could not be read from the damaged database.]";

/// Puts a placeholder for each unreadable message that has children or is a head, so that the messages before it stay
/// on the path.
pub(super) fn fill_gaps(tx: &Transaction<'_>, parents: &HashMap<i64, i64>) -> Result<()> {
    let missing = "SELECT c.parent, c.session, c.depth - 1 FROM message c
                     WHERE c.parent IS NOT NULL AND c.parent NOT IN (SELECT id FROM message)
                   UNION SELECT head, id, messages FROM session
                     WHERE head IS NOT NULL AND head NOT IN (SELECT id FROM message)";
    let above =
        "SELECT id FROM message WHERE session = ?1 AND id < ?2 AND depth < ?3 ORDER BY depth DESC, id DESC LIMIT 1";
    loop {
        let gaps: Vec<(i64, i64, i64)> = query::rows(tx, missing, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
        let mut filled = 0;
        for (id, session, depth) in gaps {
            let depth = depth.max(1);
            let known = parents.get(&id).copied().filter(|parent| *parent < id && depth > 1);
            let parent: Option<i64> = match known {
                Some(parent) => Some(parent),
                // Without the index: the nearest message above it in its session.
                None => tx.prepare_cached(above)?.query_row([session, id, depth], |r| r.get(0)).optional()?,
            };
            let text = LOST_TEXT.as_bytes();
            let (role, meta) = (Role::User.name(), UNREADABLE.as_bytes());
            let role_bytes = role.as_bytes();
            let sealed = Sealed { id, parent, depth, role: role_bytes, created_ms: 0, meta, thinking: b"", text };
            filled += tx
                .prepare_cached(
                    "INSERT OR IGNORE INTO message(id, session, parent, depth, role, created_ms, meta, thinking, text, seal)
                     VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, '', ?7, ?8)",
                )?
                .execute(params![id, session, parent, depth, role, UNREADABLE, LOST_TEXT, sealed.seal()])?;
        }
        if filled == 0 {
            return Ok(());
        }
    }
}

pub(super) fn remove_dangling(tx: &Transaction<'_>) -> Result<()> {
    // The search index is rebuilt from the texts.
    tx.execute("UPDATE message SET indexed = 0", [])?;
    let without_base = "DELETE FROM segment WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM segment)";
    while tx.execute(without_base, [])? > 0 {}
    let ids = "SELECT id FROM message UNION ALL SELECT id FROM session";
    let used = "SELECT used FROM session UNION ALL SELECT used FROM segment UNION ALL SELECT used FROM document";
    tx.execute_batch(&format!(
        "UPDATE counter SET value = max(value, (SELECT coalesce(max(id), 0) + 1 FROM ({ids}) WHERE id < {FAR}))
           WHERE name = 'id';
         UPDATE counter SET value = max(value, (SELECT coalesce(max(used), 0) FROM ({used}))) WHERE name = 'use';
         DELETE FROM message_segment WHERE message NOT IN (SELECT id FROM message)
           OR segment NOT IN (SELECT id FROM segment);
         DELETE FROM document WHERE segment NOT IN (SELECT id FROM segment);
         DELETE FROM mark WHERE session NOT IN (SELECT id FROM session) OR message NOT IN (SELECT id FROM message);
         DELETE FROM head_log WHERE session NOT IN (SELECT id FROM session);"
    ))?;
    let all: Vec<i64> = query::rows(tx, "SELECT id FROM session", [], |r| r.get(0))?;
    for id in all {
        refresh_session(tx, SessionId(id))?;
    }
    Ok(())
}
