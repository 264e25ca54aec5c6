//! Sessions and their messages: reading, naming, deleting. Changes of text are in `commit.rs`.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::commit::{free_name, role_of};
use super::error::{Result, StoreError};
use super::segment::SegmentId;
use super::store::{Store, now_ms};
use crate::transcript::{Message, MessageId, MessageMeta, SessionId};

/// A session as the list shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord {
    /// Its row.
    pub id: SessionId,
    /// Its name, unique among those not in the trash.
    pub name: String,
    /// Where it stands.
    pub head: Option<MessageId>,
    /// JSON of the desk.
    pub settings: String,
    /// First words of the first question.
    pub title: String,
    /// Messages from root to head.
    pub messages: u64,
    /// Tokens of that path, as far as known.
    pub tokens: u64,
    /// Fingerprint of the model whose state the head has; `None` without state.
    pub state_of: Option<String>,
    /// The session it was forked from.
    pub forked_from: Option<SessionId>,
    /// ms since the epoch.
    pub created_ms: i64,
    /// Last change, ms since the epoch. The list is ordered by an own counter, not by this.
    pub updated_ms: i64,
    /// When it was put into the trash.
    pub trashed_ms: Option<i64>,
}

/// Which sessions to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFilter {
    /// The usual ones.
    Live,
    /// Those in the trash.
    Trashed,
}

/// A message in the tree of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageNode {
    /// The message. Its text may be left out, see [`Store::tree`].
    pub message: Message,
    /// Its number on its own branch, from 1.
    pub number: u64,
    /// The segment that ends at it, under the fingerprint asked for.
    pub segment: Option<SegmentId>,
    /// That segment's rows and end state are on disk.
    pub kept: bool,
}

/// A named place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRecord {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub message: MessageId,
    /// ms since the epoch.
    pub created_ms: i64,
}

const SESSION: &str =
    "id, name, head, settings, title, messages, tokens, state_of, forked_from, created_ms, updated_ms, trashed_ms";

fn session_row(r: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    Ok(SessionRecord {
        id: SessionId(r.get(0)?),
        name: r.get(1)?,
        head: r.get::<_, Option<i64>>(2)?.map(MessageId),
        settings: r.get(3)?,
        title: r.get(4)?,
        messages: r.get(5)?,
        tokens: r.get(6)?,
        state_of: r.get(7)?,
        forked_from: r.get::<_, Option<i64>>(8)?.map(SessionId),
        created_ms: r.get(9)?,
        updated_ms: r.get(10)?,
        trashed_ms: r.get(11)?,
    })
}

/// Columns of [`message_row`], of a table called `m`.
pub(super) const MESSAGE: &str = "m.id, m.parent, m.role, m.created_ms, m.meta, m.thinking, m.text";

/// Reads a message. What is unreadable in it is said in its text rather than hiding the rest of the conversation.
pub(super) fn message_row(r: &Row<'_>) -> rusqlite::Result<Message> {
    let meta: String = r.get(4)?;
    let role: String = r.get(2)?;
    let text: String = r.get(6)?;
    let (role, text) = match role_of(&role) {
        Some(role) => (role, text),
        None => (crate::transcript::Role::User, format!("[message of unknown kind {role:?}]\n{text}")),
    };
    Ok(Message {
        id: MessageId(r.get(0)?),
        parent: r.get::<_, Option<i64>>(1)?.map(MessageId),
        role,
        created_ms: r.get(3)?,
        // Facts beside the text are worth less than the text: defaults rather than an error.
        meta: serde_json::from_str::<MessageMeta>(&meta).unwrap_or_default(),
        thinking: r.get(5)?,
        text,
    })
}

/// Messages a session can show: said in it, or above its head, its marks, or anything said in it.
pub(super) const REACHED_BY_SESSION: &str = "
WITH RECURSIVE reached(id) AS (
  SELECT id FROM message WHERE session = ?1
  UNION SELECT head FROM session WHERE id = ?1 AND head IS NOT NULL
  UNION SELECT message FROM mark WHERE session = ?1
  UNION SELECT m.parent FROM reached CROSS JOIN message m ON m.id = reached.id WHERE m.parent IS NOT NULL)";

impl Store {
    /// Sessions, the last changed first; at most `limit`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn sessions(&self, filter: SessionFilter, limit: usize) -> Result<Vec<SessionRecord>> {
        let which = match filter {
            SessionFilter::Live => "trashed_ms IS NULL",
            SessionFilter::Trashed => "trashed_ms IS NOT NULL",
        };
        self.read(|db| {
            let mut query =
                db.prepare_cached(&format!("SELECT {SESSION} FROM session WHERE {which} ORDER BY used DESC LIMIT ?1"))?;
            let rows = query.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], session_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The session called `name`; if there is none and `name` is a number, the one with this id.
    ///
    /// # Errors
    /// [`StoreError::NoSession`].
    pub fn session_named(&self, name: &str) -> Result<SessionRecord> {
        self.read(|db| find_session(db, name, "trashed_ms IS NULL"))
    }

    /// A session by its row, in the trash or not.
    ///
    /// # Errors
    /// [`StoreError::NoSession`].
    pub fn session(&self, id: SessionId) -> Result<SessionRecord> {
        self.read(|db| {
            db.prepare_cached(&format!("SELECT {SESSION} FROM session WHERE id = ?1"))?
                .query_row([id.0], session_row)
                .optional()?
                .ok_or_else(|| StoreError::NoSession { name: id.0.to_string() })
        })
    }

    /// The session changed last.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn last_session(&self) -> Result<Option<SessionRecord>> {
        Ok(self.sessions(SessionFilter::Live, 1)?.pop())
    }

    /// A name no session has, as close to `wish` as possible.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn free_name(&self, wish: &str) -> Result<String> {
        self.read(|db| free_name(db, wish))
    }

    /// One message.
    ///
    /// # Errors
    /// [`StoreError::NoMessage`].
    pub fn message(&self, id: MessageId) -> Result<Message> {
        self.read(|db| {
            db.prepare_cached(&format!("SELECT {MESSAGE} FROM message m WHERE m.id = ?1"))?
                .query_row([id.0], message_row)
                .optional()?
                .ok_or(StoreError::NoMessage { id: id.0 })
        })
    }

    /// Messages from the root to `head`. Message `#n` is at index n - 1.
    ///
    /// # Errors
    /// [`StoreError::NoMessage`].
    pub fn path(&self, head: MessageId) -> Result<Vec<Message>> {
        let found: Vec<Message> = self.read(|db| {
            let mut query = db.prepare_cached(&format!(
                "WITH RECURSIVE up(id, parent, depth) AS (
                   SELECT id, parent, depth FROM message WHERE id = ?1
                   UNION ALL SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)
                 SELECT {MESSAGE} FROM up CROSS JOIN message m ON m.id = up.id ORDER BY up.depth"
            ))?;
            let rows = query.query_map([head.0], message_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        if found.is_empty() { Err(StoreError::NoMessage { id: head.0 }) } else { Ok(found) }
    }

    /// Every message a session can go to, undone branches included; parents before children, siblings in the order
    /// they were made. Texts are cut to `max_text` characters (a tree needs first words, not documents).
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tree(&self, session: SessionId, fingerprint: &str, max_text: usize) -> Result<Vec<MessageNode>> {
        self.read(|db| {
            let mut query = db.prepare_cached(&format!(
                "{REACHED_BY_SESSION}
                 SELECT m.id, m.parent, m.role, m.created_ms, m.meta, '', substr(m.text, 1, ?3), m.depth, s.id,
                        coalesce(s.rows_root IS NOT NULL AND s.end_root IS NOT NULL, 0)
                 FROM reached CROSS JOIN message m ON m.id = reached.id
                 LEFT JOIN message_segment l ON l.message = m.id AND l.fingerprint = ?2
                 LEFT JOIN segment s ON s.id = l.segment
                 ORDER BY m.depth, m.id"
            ))?;
            let max_text = i64::try_from(max_text).unwrap_or(i64::MAX);
            let rows = query.query_map(params![session.0, fingerprint, max_text], |r| {
                Ok(MessageNode {
                    message: message_row(r)?,
                    number: r.get(7)?,
                    segment: r.get::<_, Option<[u8; 32]>>(8)?.map(SegmentId),
                    kept: r.get(9)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Messages that follow `parent` directly (roots of the session for `None`), in the order they were made.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn children(&self, session: SessionId, parent: Option<MessageId>) -> Result<Vec<MessageId>> {
        self.read(|db| {
            let mut query = db.prepare_cached(&format!(
                "{REACHED_BY_SESSION} SELECT m.id FROM reached CROSS JOIN message m ON m.id = reached.id
                 WHERE m.parent IS ?2 ORDER BY m.id"
            ))?;
            let rows = query.query_map(params![session.0, parent.map(|m| m.0)], |r| Ok(MessageId(r.get(0)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The last segment on the path to `head` under this fingerprint, and the message it ends at. Messages after that
    /// one have no state and are read again.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tip_segment(&self, head: MessageId, fingerprint: &str) -> Result<Option<(MessageId, SegmentId)>> {
        self.read(|db| {
            Ok(db
                .prepare_cached(
                    "WITH RECURSIVE up(id, parent, depth) AS (
                       SELECT id, parent, depth FROM message WHERE id = ?1
                       UNION ALL SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)
                     SELECT up.id, l.segment FROM up CROSS JOIN message_segment l ON l.message = up.id AND l.fingerprint = ?2
                     ORDER BY up.depth DESC LIMIT 1",
                )?
                .query_row(params![head.0, fingerprint], |r| Ok((MessageId(r.get(0)?), SegmentId(r.get(1)?))))
                .optional()?)
        })
    }

    /// Where the head was before, the newest move first: `[0]` is where it is.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn head_log(&self, session: SessionId, limit: usize) -> Result<Vec<Option<MessageId>>> {
        self.read(|db| {
            let mut query =
                db.prepare_cached("SELECT head FROM head_log WHERE session = ?1 ORDER BY key DESC LIMIT ?2")?;
            let rows = query
                .query_map(params![session.0, limit as i64], |r| Ok(r.get::<_, Option<i64>>(0)?.map(MessageId)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Marks of a session, oldest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn marks(&self, session: SessionId) -> Result<Vec<MarkRecord>> {
        self.read(|db| {
            let mut query = db.prepare_cached(
                "SELECT name, message, created_ms FROM mark WHERE session = ?1 ORDER BY created_ms, name",
            )?;
            let rows = query.query_map([session.0], |r| {
                Ok(MarkRecord { name: r.get(0)?, message: MessageId(r.get(1)?), created_ms: r.get(2)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Where a mark is.
    ///
    /// # Errors
    /// [`StoreError::NoMark`].
    pub fn mark(&self, session: SessionId, name: &str) -> Result<MessageId> {
        self.read(|db| {
            db.prepare_cached("SELECT message FROM mark WHERE session = ?1 AND name = ?2")?
                .query_row(params![session.0, name], |r| Ok(MessageId(r.get(0)?)))
                .optional()?
                .ok_or_else(|| StoreError::NoMark { name: name.to_owned() })
        })
    }

    /// Sessions forked from this one, not in the trash, with the message each was forked at: `/branch NAME`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn forks(&self, session: SessionId) -> Result<Vec<(SessionRecord, Option<MessageId>)>> {
        self.read(|db| {
            let mut query = db.prepare_cached(&format!(
                "SELECT {SESSION}, forked_at FROM session WHERE forked_from = ?1 AND trashed_ms IS NULL ORDER BY id"
            ))?;
            let rows =
                query.query_map([session.0], |r| Ok((session_row(r)?, r.get::<_, Option<i64>>(12)?.map(MessageId))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Gives a session another name.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`]; the database cannot be written.
    pub fn rename(&self, id: SessionId, name: &str) -> Result<()> {
        let name = name.trim();
        self.transaction(|tx| {
            let other: Option<i64> = tx
                .query_row("SELECT id FROM session WHERE name = ?1 AND trashed_ms IS NULL", [name], |r| r.get(0))
                .optional()?;
            if name.is_empty() || other.is_some_and(|o| o != id.0) {
                return Err(StoreError::NameTaken { name: name.to_owned() });
            }
            tx.execute("UPDATE session SET name = ?2 WHERE id = ?1", params![id.0, name])?;
            Ok(())
        })
    }

    /// Puts a session into the trash. Nothing is removed until [`Store::empty_trash`].
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn delete(&self, id: SessionId) -> Result<()> {
        self.transaction(|tx| {
            tx.execute(
                "UPDATE session SET trashed_ms = ?2 WHERE id = ?1 AND trashed_ms IS NULL",
                params![id.0, now_ms()],
            )?;
            Ok(())
        })
    }

    /// Takes a session out of the trash and returns its name, which differs when the old one was taken meanwhile.
    ///
    /// # Errors
    /// [`StoreError::NoSession`]; the database cannot be written.
    pub fn undelete(&self, name: &str) -> Result<String> {
        self.transaction(|tx| {
            let session = find_session(tx, name, "trashed_ms IS NOT NULL")?;
            let name = free_name(tx, &session.name)?;
            tx.execute("UPDATE session SET trashed_ms = NULL, name = ?2 WHERE id = ?1", params![session.id.0, name])?;
            Ok(name)
        })
    }
}

fn find_session(db: &Connection, name: &str, which: &str) -> Result<SessionRecord> {
    let mut query = db.prepare_cached(&format!(
        "SELECT {SESSION} FROM session WHERE {which} AND (name = ?1 OR id = ?2) ORDER BY name = ?1 DESC, used DESC LIMIT 1"
    ))?;
    query
        .query_row(params![name, name.parse::<i64>().unwrap_or(-1)], session_row)
        .optional()?
        .ok_or_else(|| StoreError::NoSession { name: name.to_owned() })
}
