//! Messages, one by one and as the path from a root. A damaged one stays in its place with a note, and hides no other.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row};

use super::database::Store;
use super::error::{Result, StoreError, one_line};
use super::query::{self, PLACES, REACHED_BY_SESSION, UP, bytes_at, count_at, number_at, text_at};
use super::seal::{MESSAGE, is_whole};
use super::segment::SegmentId;
use crate::core::counted;
use crate::core::transcript::{Message, MessageId, MessageMeta, Role, SessionId};

/// The facts of a placeholder for an unreadable message, after a rescue.
pub(super) const UNREADABLE: &str = r#"{"damaged":true}"#;
const DAMAGED: &str = "[This message is damaged: it does not match its checksum. What is left of it follows.]";

/// Reads a message. Its text names unreadable columns, so that the rest of the conversation is not hidden.
fn message_row(r: &Row<'_>) -> rusqlite::Result<Message> {
    let mut message = bare_message(r)?;
    if !is_whole(MESSAGE, r) {
        message.text = format!("{DAMAGED}\n{}", message.known_text());
        message.meta.damaged = true;
    }
    Ok(message)
}

/// As [`message_row`], but without the seal check, because some columns are cut.
pub(super) fn bare_message(r: &Row<'_>) -> rusqlite::Result<Message> {
    let role = text_at(r, 3);
    let text = text_at(r, 7);
    // Facts matter less than the text: use defaults rather than an error.
    let mut meta = serde_json::from_slice::<MessageMeta>(bytes_at(r, 5)).unwrap_or_default();
    let (role, text) = match Role::named(&role) {
        Some(role) => (role, text),
        None => {
            meta.damaged = true;
            (Role::User, format!("[message of unknown kind {role:?}]\n{text}"))
        }
    };
    Ok(Message {
        id: MessageId(r.get(0)?),
        parent: number_at(r, 1).map(MessageId),
        role,
        created_ms: number_at(r, 4).unwrap_or_default(),
        meta,
        thinking: text_at(r, 6),
        text,
    })
}

fn unreadable(id: MessageId, parent: Option<MessageId>, why: &str) -> Message {
    Message {
        id,
        parent,
        role: Role::User,
        text: format!("[This message is damaged and cannot be read ({why}).]"),
        thinking: String::new(),
        created_ms: 0,
        meta: MessageMeta { damaged: true, ..MessageMeta::default() },
    }
}

/// One message; an unreadable one as [`unreadable`], with its parent from the index of parents if that still has it.
fn one_message(db: &Connection, id: MessageId) -> Result<Option<Message>> {
    let mut query = db.prepare_cached(&format!("SELECT {} FROM message WHERE id = ?1", MESSAGE.columns))?;
    let found = query.query_row([id.0], message_row).optional();
    let why = match found {
        Ok(Some(message)) => return Ok(Some(message)),
        Ok(None) => None,
        Err(e) => Some(one_line(&e)),
    };
    // Scans the index from end to end, because the row is unreadable.
    let parent = db
        .prepare_cached("SELECT parent FROM message INDEXED BY message_parent WHERE +id = ?1 LIMIT 1")
        .and_then(|mut query| query.query_row([id.0], |r| Ok(number_at(r, 0))).optional());
    Ok(match (parent, why) {
        (Ok(Some(parent)), why) => {
            Some(unreadable(id, parent.map(MessageId), why.as_deref().unwrap_or("its row is gone")))
        }
        (_, why) => why.map(|why| unreadable(id, None, &why)),
    })
}

/// Messages from `head` up to a root, however damaged. A message that names the damage ends a broken path.
fn climb(db: &Connection, head: MessageId) -> Result<Vec<Message>> {
    let mut path: Vec<Message> = Vec::new();
    let mut seen = HashSet::new();
    let mut next = Some(head);
    while let Some(id) = next {
        let end = |why| unreadable(MessageId(-id.0.saturating_abs()), None, why);
        let message = if seen.insert(id) { one_message(db, id)? } else { Some(end("the ones before it form a ring")) };
        let message = match message {
            Some(message) => message,
            None if path.is_empty() => break,
            None => unreadable(id, None, "its row is gone, and with it what came before"),
        };
        next = message.parent;
        path.push(message);
    }
    path.reverse();
    // Parents give the same order as the path.
    let mut above = None;
    for message in &mut path {
        message.parent = above.replace(message.id);
    }
    Ok(path)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub messages: u64,
    pub branches: u64,
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&counted(self.messages, "message"))?;
        match self.branches {
            0 | 1 => Ok(()),
            several => write!(f, " on {several} branches"),
        }
    }
}

impl Store {
    pub fn extent(&self, session: SessionId) -> Result<Extent> {
        self.read(|db| {
            // A branch ends at a message without children.
            let sql = format!(
                "{REACHED_BY_SESSION} SELECT count(*), count(*) - count(DISTINCT m.parent)
                 FROM reached CROSS JOIN message m ON m.id = reached.id"
            );
            let extent = |r: &Row<'_>| Ok(Extent { messages: count_at(r, 0), branches: count_at(r, 1) });
            Ok(db.prepare_cached(&sql)?.query_row([session.0], extent)?)
        })
    }

    /// Messages of a session that is undone to its beginning: `head` and all above are system texts. Else 0.
    pub fn undone(&self, session: SessionId, head: Option<MessageId>) -> Result<u64> {
        let above = format!("{UP} SELECT 1 FROM up CROSS JOIN message m ON m.id = up.id WHERE m.role <> 'system'");
        let all = format!(
            "{REACHED_BY_SESSION} SELECT count(*) FROM reached CROSS JOIN message m ON m.id = reached.id
             WHERE m.role <> 'system'"
        );
        self.read(|db| match head {
            Some(head) if db.prepare_cached(&above)?.exists([head.0])? => Ok(0),
            _ => Ok(query::row(db, &all, [session.0], |r| Ok(count_at(r, 0)))?.unwrap_or_default()),
        })
    }

    pub fn message(&self, id: MessageId) -> Result<Message> {
        self.read(|db| one_message(db, id))?.ok_or(StoreError::NoMessage { id: id.0 })
    }

    /// Messages from the root to `head`. Message `#n` is at index n - 1. A damaged message is noted in its place.
    pub fn path(&self, head: MessageId) -> Result<Vec<Message>> {
        let found = self.read(|db| climb(db, head))?;
        if found.is_empty() { Err(StoreError::NoMessage { id: head.0 }) } else { Ok(found) }
    }

    /// Whether anything besides `session` uses a message: another session owns it or has its head, mark or fork point
    /// there, or it has children. True for a message that is not on disk.
    pub fn is_had_by_others(&self, message: MessageId, session: SessionId) -> Result<bool> {
        let sql = format!(
            "WITH {PLACES} SELECT m.session <> ?2 OR EXISTS (SELECT 1 FROM message c WHERE c.parent = m.id)
               OR EXISTS (SELECT 1 FROM place p WHERE p.message = m.id AND p.session <> ?2)
             FROM message m WHERE m.id = ?1"
        );
        let had = self.read(|db| query::row(db, &sql, [message.0, session.0], |r| r.get(0)))?;
        Ok(had.unwrap_or(true))
    }

    pub fn message_ending(&self, segment: &SegmentId) -> Result<Option<MessageId>> {
        let sql = "SELECT min(message) FROM message_segment WHERE segment = ?1";
        let id = self.read(|db| query::row(db, sql, [segment.0], |r| Ok(number_at(r, 0))))?;
        Ok(id.flatten().map(MessageId))
    }
}
