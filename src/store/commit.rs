//! The contents of a save, and their application inside one transaction. The only code that adds or changes text.
//!
//! Segments never delay text: [`Applied`] reports a faulty one, and the rest is committed.

use std::collections::HashSet;

use rusqlite::types::ValueRef;
use rusqlite::{Transaction, params};

use super::database::{Store, lock, next_use};
use super::error::{Result, StoreError};
use super::query;
use super::seal::{MESSAGE, seal_of};
use super::segment::{NewSegment, SegmentId, tokens_to_bytes};
use super::sessions::{put_property, trash};
use super::summary::{free_name, own_title, refresh_session, touch_session};
use crate::core::now_ms;
use crate::core::transcript::{Message, MessageId, SessionId};
use crate::engine::protocol::StateImage;

#[derive(Clone, Debug, PartialEq)]
pub struct NewSession {
    pub id: SessionId,
    /// The requested name; a taken one gets a number.
    pub name: String,
    /// JSON of the runtime.
    pub settings: String,
    /// In a fork: a message of another session.
    pub head: Option<MessageId>,
    pub forked_from: Option<SessionId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TitleBy {
    /// Typed by the user: replaces any other title.
    Person,
    /// Written by the model: replaces only a question's first words.
    Model,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewDocument {
    /// BLAKE3 of its text, hex.
    pub hash: String,
    pub name: String,
    pub path: Option<String>,
    pub prefix: Option<SegmentId>,
    pub segment: SegmentId,
    pub tokens: u64,
    pub lines: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    CreateSession(NewSession),
    /// Adds a message, or replaces its text (a growing answer). Its parent must be saved before or with it.
    PutMessage {
        session: SessionId,
        message: Box<Message>,
    },
    /// Moves a session's head. The old head stays reachable through the head log.
    MoveHead {
        session: SessionId,
        head: Option<MessageId>,
    },
    /// The title is one line, not empty.
    Title {
        session: SessionId,
        title: String,
        by: TitleBy,
    },
    Settings {
        session: SessionId,
        json: String,
    },
    Mark {
        session: SessionId,
        name: String,
        message: MessageId,
    },
    /// Sets a property that lists show, or removes it.
    Property {
        session: SessionId,
        property: &'static str,
        value: Option<String>,
    },
    /// A number about the program itself, for the next run.
    Measured {
        name: String,
        value: f64,
    },
    AddSegment(Box<NewSegment>),
    /// The path up to this message ends in this segment (under the segment's fingerprint).
    Link {
        message: MessageId,
        segment: SegmentId,
    },
    AddDocument(NewDocument),
    /// Moves the sessions with this head to the trash.
    Trash(MessageId),
    Prompt(String),
    /// Replaces the unsent input of a session, or of one of [`super::draft_places`]; an empty text removes it.
    Draft {
        session: SessionId,
        text: String,
    },
}

impl Change {
    /// The session it changes. `None` for a draft, which does not make its session the last one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            Change::CreateSession(new) => Some(new.id),
            Change::PutMessage { session, .. }
            | Change::MoveHead { session, .. }
            | Change::Title { session, .. }
            | Change::Settings { session, .. }
            | Change::Mark { session, .. }
            | Change::Property { session, .. } => Some(*session),
            _ => None,
        }
    }
}

/// One unit of saving. Changes are one transaction; images follow once it is durable.
#[derive(Clone, Debug, Default)]
pub struct Save {
    pub changes: Vec<Change>,
    pub images: Vec<(SegmentId, StateImage)>,
}

#[derive(Debug, Default)]
pub(super) struct Applied {
    pub sessions: Vec<SessionId>,
    pub grown: Vec<SessionId>,
    /// Sessions that got another name than the requested one, which was taken.
    pub named: Vec<(SessionId, String)>,
    pub state_problem: Option<String>,
}

impl Store {
    /// A long text is recorded step by step and linked at its end; until then its segments must not be collected.
    /// Segments of a stopped load stay until the process ends, within the disk budget.
    pub(super) fn apply(&self, changes: &[Change]) -> Result<Applied> {
        // Noted before the transaction and until the link, so that a collection in between spares them.
        for change in changes {
            if let Change::AddSegment(new) = change {
                lock(&self.unlinked).insert(new.id(), new.parent);
            }
        }
        let applied = self.transaction(|tx| apply(tx, changes))?;
        // A link keeps all segments that it reaches.
        for change in changes {
            let mut next = match change {
                Change::Link { segment, .. } => Some(*segment),
                Change::AddDocument(new) => Some(new.segment),
                _ => None,
            };
            let mut unlinked = lock(&self.unlinked);
            while let Some(parent) = next.and_then(|id| unlinked.remove(&id)) {
                next = parent;
            }
        }
        Ok(applied)
    }
}

pub(super) fn apply(tx: &Transaction<'_>, changes: &[Change]) -> Result<Applied> {
    let mut out = Applied::default();
    let mut known = HashSet::new();
    for change in changes {
        apply_one(tx, change, &mut out)?;
        if let Some(session) = change.session()
            && known.insert(session)
        {
            out.sessions.push(session);
        }
    }
    for session in &out.sessions {
        touch_session(tx, *session)?;
    }
    // A link alone changes where the state of a session ends.
    for session in out.grown.iter().filter(|session| known.insert(**session)) {
        refresh_session(tx, *session)?;
    }
    Ok(out)
}

/// Applies one change. The caller renews the session's list columns with [`touch_session`] after all of them.
pub(super) fn apply_one(tx: &Transaction<'_>, change: &Change, out: &mut Applied) -> Result<()> {
    match change {
        Change::CreateSession(new) => {
            let name = create_session(tx, new)?;
            if name != new.name {
                out.named.push((new.id, name));
            }
        }
        Change::PutMessage { session, message } => put_message(tx, *session, message)?,
        Change::MoveHead { session, head } => move_head(tx, *session, *head)?,
        Change::Title { session, title, by } => {
            let sql = match by {
                TitleBy::Person => "UPDATE session SET title = ?2 WHERE id = ?1",
                TitleBy::Model => &format!("UPDATE session SET title = ?2 WHERE id = ?1 AND NOT ({})", own_title()),
            };
            tx.prepare_cached(sql)?.execute(params![session.0, title])?;
        }
        Change::Settings { session, json } => {
            tx.execute("UPDATE session SET settings = ?2 WHERE id = ?1", params![session.0, json])?;
        }
        Change::Mark { session, name, message } => {
            tx.execute(
                "INSERT INTO mark VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET message = excluded.message, created_ms = excluded.created_ms",
                params![session.0, name, message.0, now_ms()],
            )?;
        }
        Change::Property { session, property, value } => put_property(tx, *session, property, value.as_deref())?,
        Change::Measured { name, value } => {
            tx.execute(
                "INSERT OR REPLACE INTO property VALUES ('measured ' || ?1, ?2)",
                params![name, format!("{value:.0}")],
            )?;
        }
        Change::AddSegment(new) => note(out, record_segment(tx, &new.id(), new, None)?),
        Change::Link { message, segment } => {
            note(out, link(tx, *message, segment)?);
            let sql = "SELECT session FROM message WHERE id = ?1";
            out.grown.extend(query::row(tx, sql, [message.0], |r| Ok(SessionId(r.get(0)?)))?);
        }
        Change::AddDocument(new) => note(out, add_document(tx, new)?),
        Change::Trash(head) => {
            let sql = "SELECT id FROM session WHERE head = ?1";
            let sessions: Vec<SessionId> = query::rows(tx, sql, [head.0], |r| Ok(SessionId(r.get(0)?)))?;
            sessions.into_iter().try_for_each(|session| trash(tx, session))?;
        }
        Change::Prompt(text) => super::typed::add_prompt(tx, text)?,
        Change::Draft { session, text } => super::typed::put_draft(tx, *session, text)?,
    }
    Ok(())
}

fn note(out: &mut Applied, problem: Option<String>) {
    if let Some(problem) = problem {
        out.state_problem.get_or_insert(problem);
    }
}

fn create_session(tx: &Transaction<'_>, new: &NewSession) -> Result<String> {
    let name = free_name(tx, &new.name)?;
    let forked_at = new.forked_from.and(new.head).map(|m| m.0);
    tx.prepare_cached(
        "INSERT INTO session(id, name, head, settings, forked_from, forked_at, created_ms, updated_ms, used)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, 0)",
    )?
    .execute(params![
        new.id.0,
        name,
        new.head.map(|m| m.0),
        new.settings,
        new.forked_from.map(|s| s.0),
        forked_at,
        now_ms()
    ])?;
    Ok(name)
}

fn put_message(tx: &Transaction<'_>, session: SessionId, m: &Message) -> Result<()> {
    let place = |id: i64| {
        let sql = "SELECT parent, depth, role, created_ms FROM message WHERE id = ?1";
        query::row(tx, sql, [id], |r| Ok((r.get(0)?, r.get::<_, i64>(1)?, r.get(2)?, r.get(3)?)))
    };
    // A new text keeps its message's place in the tree.
    let (parent, depth, role, created_ms): (Option<i64>, i64, String, i64) = match (place(m.id.0)?, m.parent) {
        (Some(there), _) => there,
        (None, None) => (None, 1, m.role.name().into(), m.created_ms),
        (None, Some(above)) => {
            let (_, depth, ..) = place(above.0)?.ok_or(StoreError::NoMessage { id: above.0 })?;
            (Some(above.0), depth + 1, m.role.name().into(), m.created_ms)
        }
    };
    let meta = serde_json::to_string(&m.meta)
        .map_err(|e| StoreError::Broken { what: "a record".into(), why: e.to_string() })?;
    let seal = seal_of(
        MESSAGE,
        [
            ValueRef::Integer(m.id.0),
            parent.map_or(ValueRef::Null, ValueRef::Integer),
            ValueRef::Integer(depth),
            role.as_str().into(),
            ValueRef::Integer(created_ms),
            meta.as_str().into(),
            m.thinking.as_str().into(),
            m.text.as_str().into(),
        ],
    );
    tx.prepare_cached(
        "INSERT INTO message(id, session, parent, depth, role, created_ms, meta, thinking, text, seal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT(id) DO UPDATE SET meta = excluded.meta, thinking = excluded.thinking, text = excluded.text,
           seal = excluded.seal",
    )?
    .execute(params![m.id.0, session.0, parent, depth, role, created_ms, meta, m.thinking, m.text, seal])?;
    Ok(())
}

fn move_head(tx: &Transaction<'_>, session: SessionId, head: Option<MessageId>) -> Result<()> {
    let head = head.map(|m| m.0);
    let changed = tx
        .prepare_cached("UPDATE session SET head = ?2 WHERE id = ?1 AND head IS NOT ?2")?
        .execute(params![session.0, head])?;
    if changed > 0 {
        tx.prepare_cached("INSERT INTO head_log(session, head) VALUES (?1, ?2)")?.execute(params![session.0, head])?;
    }
    Ok(())
}

/// `origin` names the bundle of an imported segment.
pub(super) fn record_segment(
    tx: &Transaction<'_>,
    id: &SegmentId,
    new: &NewSegment,
    origin: Option<&[u8; 32]>,
) -> Result<Option<String>> {
    if let Some(parent) = &new.parent
        && !tx.prepare_cached("SELECT 1 FROM segment WHERE id = ?1")?.exists([parent.0])?
    {
        return Ok(Some("the state it builds on is not kept".into()));
    }
    tx.prepare_cached(
        "INSERT INTO segment(id, fingerprint, parent, start, stop, kind, text_bytes, text_hash, used, used_ms, given, generated, origin)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT(id) DO UPDATE SET used = excluded.used, used_ms = excluded.used_ms,
           kind = max(kind, excluded.kind), text_bytes = excluded.text_bytes, text_hash = excluded.text_hash",
    )?
    .execute(params![
        id.0,
        new.fingerprint,
        new.parent.map(|p| p.0),
        new.start,
        new.start + new.tokens(),
        new.kind.code(),
        new.boundary.bytes,
        new.boundary.hash,
        next_use(tx)?,
        now_ms(),
        tokens_to_bytes(&new.prompt),
        tokens_to_bytes(&new.completion),
        origin,
    ])?;
    Ok(None)
}

pub(super) fn link(tx: &Transaction<'_>, message: MessageId, segment: &SegmentId) -> Result<Option<String>> {
    let changed = tx
        .prepare_cached(
            "INSERT OR REPLACE INTO message_segment(message, fingerprint, segment)
             SELECT m.id, s.fingerprint, s.id FROM message m, segment s WHERE m.id = ?1 AND s.id = ?2",
        )?
        .execute(params![message.0, segment.0])?;
    Ok((changed == 0).then(|| "the state it belongs to is not kept".into()))
}

/// Adds a document, or records its use. Returns a phrase when its segment is unknown.
fn add_document(tx: &Transaction<'_>, new: &NewDocument) -> Result<Option<String>> {
    if !tx.prepare_cached("SELECT 1 FROM segment WHERE id = ?1")?.exists([new.segment.0])? {
        return Ok(Some("the document's state is not kept".into()));
    }
    tx.prepare_cached(
        "INSERT INTO document(hash, name, path, prefix, segment, tokens, lines, used, used_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT(segment) DO UPDATE SET path = excluded.path, used = excluded.used, used_ms = excluded.used_ms",
    )?
    .execute(params![
        new.hash,
        new.name,
        new.path,
        new.prefix.map(|p| p.0),
        new.segment.0,
        new.tokens,
        new.lines,
        next_use(tx)?,
        now_ms()
    ])?;
    Ok(None)
}
