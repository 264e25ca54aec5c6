//! Sessions and their messages: reading, naming, deleting. Changes of text are in `commit.rs`.

use std::collections::HashMap;

use rusqlite::{Connection, Row, Transaction, params};

use super::LAST;
use super::database::Store;
use super::error::{Result, StoreError};
use super::messages::bare_message;
use super::query::{self, REACHED_BY_SESSION, UP, count_at, number_at, text_at};
use super::seal::{SESSION, is_whole, seal_session};
use super::segment::SegmentId;
use super::summary::{free_name, own_title};
use crate::core::now_ms;
use crate::core::transcript::{Message, MessageId, SessionId};

#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord {
    pub id: SessionId,
    /// Unique among the sessions not in the trash.
    pub name: String,
    pub head: Option<MessageId>,
    pub settings: String,
    /// A title given by the user or the model, or the first words of the first question.
    pub title: String,
    pub messages: u64,
    pub tokens: u64,
    /// Fingerprint of the model of the head's state; `None` without state.
    pub state_of: Option<String>,
    pub created_ms: i64,
    /// Last change, ms since the epoch. The list is ordered by an own counter, not by this.
    pub updated_ms: i64,
    pub trashed_ms: Option<i64>,
    /// The row does not match its seal: name and settings may be wrong, the head is the last one in the log of heads.
    pub damaged: bool,
}

/// Property of a session that is a single question of `-p`, until it is continued, renamed or pinned.
pub const ONCE: &str = "once";
/// Property of a session: the folder it was started in. Sessions of earlier versions have none.
pub const FOLDER: &str = "folder";
/// Property of a session: bytes of state written for it so far.
pub(super) const WRITTEN: &str = "written";

pub(super) fn put_property(
    tx: &Transaction<'_>,
    session: SessionId,
    property: &str,
    value: Option<&str>,
) -> Result<()> {
    let name = format!("{property} {}", session.0);
    match value {
        Some(value) => tx.execute("INSERT OR REPLACE INTO property VALUES (?1, ?2)", [name.as_str(), value])?,
        None => tx.execute("DELETE FROM property WHERE name = ?1", [name])?,
    };
    Ok(())
}

pub(super) fn properties(db: &Connection, property: &str) -> Result<HashMap<SessionId, String>> {
    let sql = "SELECT substr(name, length(?1) + 2), value FROM property WHERE name GLOB ?1 || ' *'";
    let rows: Vec<(String, String)> = query::rows(db, sql, [property], |r| Ok((text_at(r, 0), text_at(r, 1))))?;
    Ok(rows.into_iter().filter_map(|(id, value)| Some((SessionId(id.parse().ok()?), value))).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFilter {
    Live,
    Trashed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MessageNode {
    /// The text may be left out, see [`Store::tree`].
    pub message: Message,
    pub number: u64,
    pub segment: Option<SegmentId>,
    /// That segment's rows and end state are on disk.
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRecord {
    pub name: String,
    pub message: MessageId,
    pub created_ms: i64,
}

/// A query for [`session_row`].
fn select(rest: &str) -> String {
    format!("SELECT {}, messages, tokens, state_of, updated_ms FROM session {rest}", SESSION.columns)
}

fn session_row(r: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    Ok(SessionRecord {
        id: SessionId(r.get(0)?),
        name: text_at(r, 1),
        head: number_at(r, 2).map(MessageId),
        settings: text_at(r, 3),
        title: text_at(r, 4),
        created_ms: number_at(r, 7).unwrap_or_default(),
        trashed_ms: number_at(r, 8),
        damaged: !is_whole(SESSION, r),
        messages: count_at(r, 10),
        tokens: count_at(r, 11),
        state_of: Some(text_at(r, 12)).filter(|of| !of.is_empty()),
        updated_ms: number_at(r, 13).unwrap_or_default(),
    })
}

fn mend(db: &Connection, mut record: SessionRecord) -> SessionRecord {
    if record.damaged {
        let sql = "SELECT head FROM head_log WHERE session = ?1 ORDER BY key DESC LIMIT 1";
        if let Ok(Some(head)) = query::row(db, sql, [record.id.0], |r| Ok(number_at(r, 0))) {
            record.head = head.map(MessageId);
        }
        record.title = format!("(damaged) {}", record.title);
    }
    record
}

const LEFT: i64 = 100;

impl Store {
    pub fn sessions(&self, filter: SessionFilter, limit: usize) -> Result<Vec<SessionRecord>> {
        self.read(|db| {
            // Not by the index: a damaged one would hide a session silently.
            let mut found: Vec<SessionRecord> =
                query::rows(db, &select("NOT INDEXED ORDER BY used DESC"), [], session_row)?;
            found.retain(|record| match filter {
                // A damaged session is shown, because its trash mark may be wrong.
                SessionFilter::Live => record.trashed_ms.is_none() || record.damaged,
                SessionFilter::Trashed => record.trashed_ms.is_some(),
            });
            Ok(found.into_iter().take(limit).map(|record| mend(db, record)).collect())
        })
    }

    /// The session called `name`; if there is none and `name` is a number, the one with this id.
    pub fn session_named(&self, name: &str) -> Result<SessionRecord> {
        self.read(|db| find_session(db, name, "trashed_ms IS NULL"))
    }

    pub fn trashed_session(&self, name: &str) -> Result<Option<SessionRecord>> {
        StoreError::if_known(self.read(|db| find_session(db, name, "trashed_ms IS NOT NULL")))
    }

    pub fn session(&self, id: SessionId) -> Result<SessionRecord> {
        self.read(|db| {
            let found = query::row(db, &select("WHERE id = ?1"), [id.0], session_row)?;
            found.map(|record| mend(db, record)).ok_or_else(|| StoreError::NoSession { name: id.0.to_string() })
        })
    }

    pub fn own_title(&self, id: SessionId) -> Result<Option<String>> {
        let sql = format!("SELECT title FROM session WHERE id = ?1 AND {}", own_title());
        self.read(|db| query::row(db, &sql, [id.0], |r| Ok(text_at(r, 0))))
    }

    pub fn last_session(&self) -> Result<Option<SessionRecord>> {
        Ok(self.sessions(SessionFilter::Live, 1)?.pop())
    }

    pub fn free_name(&self, wanted: &str) -> Result<String> {
        self.read(|db| free_name(db, wanted))
    }

    /// Every reachable message of a session, undone branches included; parents before children, siblings in creation
    /// order. Texts are cut to `max_text` characters (a tree needs first words, not documents). An empty fingerprint
    /// means no model: the result then has no segments.
    pub fn tree(&self, session: SessionId, fingerprint: &str, max_text: usize) -> Result<Vec<MessageNode>> {
        self.read(|db| {
            // State is kept if no segment up to its end has lost its rows.
            let sql = format!(
                "{REACHED_BY_SESSION},
                 above(id, parent, has_rows) AS (
                   SELECT s.id, s.parent, s.rows_root IS NOT NULL FROM reached
                     CROSS JOIN message_segment l ON l.message = reached.id AND l.fingerprint = ?2
                     CROSS JOIN segment s ON s.id = l.segment
                   UNION SELECT s.id, s.parent, s.rows_root IS NOT NULL FROM above CROSS JOIN segment s ON s.id = above.parent),
                 lost(id) AS (
                   SELECT id FROM above WHERE NOT has_rows
                   UNION SELECT s.id FROM lost CROSS JOIN segment s ON s.parent = lost.id)
                 SELECT m.id, m.parent, m.depth, m.role, m.created_ms, m.meta, '', substr(m.text, 1, ?3), s.id,
                        s.end_root IS NOT NULL AND s.id NOT IN lost
                 FROM reached CROSS JOIN message m ON m.id = reached.id
                 LEFT JOIN message_segment l ON l.message = m.id AND l.fingerprint = ?2
                 LEFT JOIN segment s ON s.id = l.segment
                 ORDER BY m.depth, m.id"
            );
            let max_text = i64::try_from(max_text).unwrap_or(i64::MAX);
            query::rows(db, &sql, params![session.0, fingerprint, max_text], |r| {
                let segment = r.get::<_, Option<[u8; 32]>>(8)?.map(SegmentId);
                let kept = r.get::<_, Option<bool>>(9)?.unwrap_or_default();
                Ok(MessageNode { message: bare_message(r)?, number: r.get(2)?, segment, kept })
            })
        })
    }

    /// The last segment on the path to `head` under this fingerprint, and the message it ends at.
    pub fn tip_segment(&self, head: MessageId, fingerprint: &str) -> Result<Option<(MessageId, SegmentId)>> {
        let sql = format!(
            "{UP} SELECT up.id, l.segment
             FROM up CROSS JOIN message_segment l ON l.message = up.id AND l.fingerprint = ?2
             ORDER BY up.depth DESC LIMIT 1"
        );
        let found = |r: &Row<'_>| Ok((MessageId(r.get(0)?), SegmentId(r.get(1)?)));
        self.read(|db| query::row(db, &sql, params![head.0, fingerprint], found))
    }

    /// The fingerprint of the newest kept state on the branch of a session.
    pub fn state_on_branch(&self, head: MessageId) -> Result<Option<String>> {
        let sql = format!(
            "{UP} SELECT l.fingerprint FROM up CROSS JOIN message_segment l ON l.message = up.id
             ORDER BY up.depth DESC LIMIT 1"
        );
        self.read(|db| query::row(db, &sql, [head.0], |r| r.get(0)))
    }

    pub fn marks(&self, session: SessionId) -> Result<Vec<MarkRecord>> {
        self.read(|db| {
            let sql = "SELECT name, message, created_ms FROM mark WHERE session = ?1 ORDER BY created_ms, name";
            query::rows(db, sql, [session.0], |r| {
                Ok(MarkRecord { name: r.get(0)?, message: MessageId(r.get(1)?), created_ms: r.get(2)? })
            })
        })
    }

    /// Sessions forked from this one, not in the trash, with the message each was forked at: `/branch NAME`.
    pub fn forks(&self, session: SessionId) -> Result<Vec<(SessionRecord, Option<MessageId>)>> {
        let sql = select("WHERE forked_from = ?1 AND trashed_ms IS NULL ORDER BY id");
        let fork = |r: &Row<'_>| Ok((session_row(r)?, number_at(r, 6).map(MessageId)));
        self.read(|db| query::rows(db, &sql, [session.0], fork))
    }

    /// Earlier heads of a session, the last one last, as far back as `/redo` reaches.
    pub fn heads_left(&self, session: SessionId) -> Result<Vec<MessageId>> {
        let sql = "SELECT head FROM (SELECT key, head FROM head_log WHERE session = ?1 ORDER BY key DESC LIMIT ?2)
             ORDER BY key";
        let head = |r: &Row<'_>| Ok(number_at(r, 0).map(MessageId));
        let heads: Vec<Option<MessageId>> = self.read(|db| query::rows(db, sql, params![session.0, LEFT], head))?;
        Ok(heads.into_iter().flatten().collect())
    }

    /// Gives a session another name; [`StoreError::NoSession`] if it is not on disk yet.
    pub fn rename(&self, id: SessionId, name: &str) -> Result<()> {
        let name = name.trim();
        if name == LAST {
            return Err(StoreError::MeansLast);
        }
        self.transaction(|tx| {
            let sql = "SELECT id FROM session WHERE name = ?1 AND trashed_ms IS NULL";
            let other: Option<i64> = query::row(tx, sql, [name], |r| r.get(0))?;
            if name.is_empty() || other.is_some_and(|o| o != id.0) {
                return Err(StoreError::NameTaken { name: name.to_owned() });
            }
            let renamed = tx.execute("UPDATE session SET name = ?2 WHERE id = ?1", params![id.0, name])?;
            if renamed == 0 {
                return Err(StoreError::NoSession { name: id.0.to_string() });
            }
            put_property(tx, id, ONCE, None)?;
            seal_session(tx, id)
        })
    }

    /// Sets a property of a session that lists show, or removes it. It does not make the session the last one.
    pub fn set_property(&self, session: SessionId, property: &str, value: Option<&str>) -> Result<()> {
        self.transaction(|tx| put_property(tx, session, property, value))
    }

    /// The last [`Change::Measured`](super::Change::Measured) of this name.
    pub fn measured(&self, name: &str) -> Option<f64> {
        let sql = "SELECT value FROM property WHERE name = 'measured ' || ?1";
        let value = self.read(|db| Ok(db.query_row(sql, [name], |r| Ok(text_at(r, 0)))?)).ok()?;
        value.parse().ok()
    }

    /// The sessions with a property, and its values.
    pub fn properties(&self, property: &str) -> Result<HashMap<SessionId, String>> {
        self.read(|db| properties(db, property))
    }

    /// The last used session of those started in a folder that is not empty, damaged, a single question, or in use.
    pub fn last_of_folder(&self, folder: &str) -> Result<Option<SessionRecord>> {
        let (folders, once) = (self.properties(FOLDER)?, self.properties(ONCE)?);
        if !folders.values().any(|of| of == folder) {
            return Ok(None);
        }
        let sessions = self.sessions(SessionFilter::Live, usize::MAX)?;
        Ok(sessions.into_iter().find(|r| {
            let ours = folders.get(&r.id).is_some_and(|of| of == folder);
            ours && r.messages > 0 && !r.damaged && !once.contains_key(&r.id) && !self.is_in_use(r.id)
        }))
    }

    /// Moves a session to the trash. Nothing is removed until [`Store::empty_trash`].
    pub fn delete(&self, id: SessionId) -> Result<()> {
        self.transaction(|tx| trash(tx, id))
    }

    /// Takes a session out of the trash and returns its name, which differs if the old one was taken meanwhile.
    pub fn undelete(&self, name: &str) -> Result<String> {
        self.transaction(|tx| {
            let session = find_session(tx, name, "trashed_ms IS NOT NULL")?;
            let name = free_name(tx, &session.name)?;
            tx.execute("UPDATE session SET trashed_ms = NULL, name = ?2 WHERE id = ?1", params![session.id.0, name])?;
            seal_session(tx, session.id)?;
            Ok(name)
        })
    }
}

pub(super) fn trash(tx: &Transaction<'_>, id: SessionId) -> Result<()> {
    let sql = "UPDATE session SET trashed_ms = ?2 WHERE id = ?1 AND trashed_ms IS NULL";
    tx.execute(sql, params![id.0, now_ms()])?;
    seal_session(tx, id)
}

fn find_session(db: &Connection, name: &str, which: &str) -> Result<SessionRecord> {
    let sql = select(&format!(
        "NOT INDEXED WHERE {which} AND (name = ?1 OR id = ?2) ORDER BY name = ?1 DESC, used DESC LIMIT 1"
    ));
    let found = query::row(db, &sql, params![name, name.parse::<i64>().unwrap_or(-1)], session_row)?;
    found.map(|record| mend(db, record)).ok_or_else(|| StoreError::NoSession { name: name.to_owned() })
}
