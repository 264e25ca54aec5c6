//! Prompts, for the input's history and Ctrl-R, and drafts, the unsent input of a session. Exports contain neither.

use rusqlite::{Transaction, params};

use super::database::Store;
use super::error::Result;
use super::query::{self, text_at};
use crate::core::now_ms;
use crate::core::transcript::{LONGEST_PROMPT, SessionId};

const KEEP: i64 = 10_000;
/// A repeated prompt among this many last ones moves to the end: a queued question is added again when it runs.
const RECENT: i64 = 64;
/// The first place for the draft of a session without a row: ids begin at 1.
pub const NO_ROW: SessionId = SessionId(0);
/// Number of sessions without a row that can have drafts.
const PLACES: i64 = 8;

/// All places for drafts of sessions without a row. Each has a lock as sessions have.
pub fn draft_places() -> impl Iterator<Item = SessionId> {
    (0..PLACES).map(|n| SessionId(NO_ROW.0 - n))
}

/// Replaces the previous draft. An empty text removes it; a text that is too long keeps it.
pub(super) fn put_draft(tx: &Transaction<'_>, session: SessionId, text: &str) -> Result<()> {
    if text.trim().is_empty() {
        tx.prepare_cached("DELETE FROM draft WHERE session = ?1")?.execute([session.0])?;
    } else if text.len() <= LONGEST_PROMPT {
        // Another process may have deleted the session meanwhile.
        tx.prepare_cached(
            "INSERT OR REPLACE INTO draft(session, text)
             SELECT ?1, ?2 WHERE ?1 <= ?3 OR EXISTS (SELECT 1 FROM session WHERE id = ?1)",
        )?
        .execute(params![session.0, text, NO_ROW.0])?;
    }
    Ok(())
}

pub(super) fn add_prompt(tx: &Transaction<'_>, text: &str) -> Result<()> {
    if text.trim().is_empty() || text.len() > LONGEST_PROMPT {
        return Ok(());
    }
    tx.prepare_cached("DELETE FROM prompt WHERE text = ?1 AND key > (SELECT max(key) FROM prompt) - ?2")?
        .execute(params![text, RECENT])?;
    tx.prepare_cached("INSERT INTO prompt(text, created_ms) VALUES (?1, ?2)")?.execute(params![text, now_ms()])?;
    let oldest = "DELETE FROM prompt WHERE key <= (SELECT key FROM prompt ORDER BY key DESC LIMIT 1 OFFSET ?1)";
    tx.prepare_cached(oldest)?.execute([KEEP])?;
    Ok(())
}

/// Forgets prompts that are messages of this session alone. Those that are no messages, as of `/aside`, stay.
pub(super) fn forget_prompts_of(tx: &Transaction<'_>, session: SessionId) -> Result<()> {
    let prompts = "SELECT text FROM message WHERE role = 'user' AND octet_length(text) <= ?2 AND session";
    let sql = format!("DELETE FROM prompt WHERE text IN ({prompts} = ?1) AND text NOT IN ({prompts} <> ?1)");
    tx.prepare_cached(&sql)?.execute(params![session.0, LONGEST_PROMPT as i64])?;
    Ok(())
}

impl Store {
    /// The newest `limit` prompts, newest first. Skips overlong ones, which earlier programs kept.
    pub fn prompts(&self, limit: usize) -> Result<Vec<String>> {
        self.read(|db| {
            let sql = "SELECT text FROM prompt WHERE octet_length(text) <= ?2 ORDER BY key DESC LIMIT ?1";
            let rows_of = (i64::try_from(limit).unwrap_or(i64::MAX), LONGEST_PROMPT as i64);
            query::rows(db, sql, rows_of, |r| r.get(0))
        })
    }

    pub fn drafts_without_row(&self) -> Result<Vec<SessionId>> {
        let sql = "SELECT session FROM draft WHERE session <= ?1 ORDER BY session DESC";
        self.read(|db| query::rows(db, sql, [NO_ROW.0], |r| Ok(SessionId(r.get(0)?))))
    }

    pub fn draft(&self, session: SessionId) -> Result<Option<String>> {
        let sql = "SELECT text FROM draft WHERE session = ?1";
        self.read(|db| query::row(db, sql, [session.0], |r| Ok(text_at(r, 0))))
    }
}
