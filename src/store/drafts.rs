//! Unsent input, one text for each session. Exports do not contain it.

use rusqlite::{Transaction, params};

use super::database::Store;
use super::error::Result;
use super::query;
use super::seal::text_at;
use crate::core::transcript::{LONGEST_PROMPT, SessionId};

/// The first place for the draft of a session without a row: ids begin at 1.
pub const NO_ROW: SessionId = SessionId(0);
/// Number of sessions without a row that can have drafts.
const PLACES: i64 = 8;

/// All places for drafts of sessions without a row. Each has a lock as sessions have.
pub fn draft_places() -> impl Iterator<Item = SessionId> {
    (0..PLACES).map(|n| SessionId(NO_ROW.0 - n))
}

/// Replaces the previous draft. An empty text removes it; a text that is too long keeps it.
pub(super) fn put(tx: &Transaction<'_>, session: SessionId, text: &str) -> Result<()> {
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

impl Store {
    pub fn drafts_without_row(&self) -> Result<Vec<SessionId>> {
        let sql = "SELECT session FROM draft WHERE session <= ?1 ORDER BY session DESC";
        self.read(|db| query::rows(db, sql, [NO_ROW.0], |r| Ok(SessionId(r.get(0)?))))
    }

    pub fn draft(&self, session: SessionId) -> Result<Option<String>> {
        let sql = "SELECT text FROM draft WHERE session = ?1";
        self.read(|db| query::row(db, sql, [session.0], |r| Ok(text_at(r, 0))))
    }
}
