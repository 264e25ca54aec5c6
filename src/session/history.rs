//! Typed prompts, for the input's history and Ctrl-R. Text only.

use rusqlite::{OptionalExtension, Transaction, params};

use super::error::Result;
use super::store::Store;
use crate::base::now_ms;
use crate::transcript::SessionId;

/// Older prompts than this many are forgotten.
const KEEP: i64 = 10_000;
/// Longest prompt that is remembered, bytes: one with a pasted book in it is in its session, and all are read at each start.
const LONGEST: usize = 20_000;

/// Adds a prompt unless it repeats the last one.
pub(super) fn add(tx: &Transaction<'_>, text: &str) -> Result<()> {
    let last: Option<(i64, String)> = tx
        .prepare_cached("SELECT key, text FROM prompt ORDER BY key DESC LIMIT 1")?
        .query_row([], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    if text.trim().is_empty() || text.len() > LONGEST || last.as_ref().is_some_and(|(_, t)| t == text) {
        return Ok(());
    }
    tx.prepare_cached("INSERT INTO prompt(text, created_ms) VALUES (?1, ?2)")?.execute(params![text, now_ms()])?;
    if let Some((key, _)) = last {
        tx.prepare_cached("DELETE FROM prompt WHERE key <= ?1")?.execute([key + 1 - KEEP])?;
    }
    Ok(())
}

/// Forgets the prompts that asked what a session says, unless another session asks the same. What was typed and is no message, as
/// `/aside` questions, stays.
pub(super) fn forget_those_of(tx: &Transaction<'_>, session: SessionId) -> Result<()> {
    let asked = "SELECT text FROM message WHERE role = 'user' AND octet_length(text) <= ?2 AND session";
    let sql = format!("DELETE FROM prompt WHERE text IN ({asked} = ?1) AND text NOT IN ({asked} <> ?1)");
    tx.prepare_cached(&sql)?.execute(params![session.0, LONGEST as i64])?;
    Ok(())
}

impl Store {
    /// The newest `limit` prompts, newest first. Earlier programs kept longer ones, too.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn prompts(&self, limit: usize) -> Result<Vec<String>> {
        self.read(|db| {
            let sql = "SELECT text FROM prompt WHERE octet_length(text) <= ?2 ORDER BY key DESC LIMIT ?1";
            let rows_of = (i64::try_from(limit).unwrap_or(i64::MAX), LONGEST as i64);
            let mut query = db.prepare_cached(sql)?;
            let rows = query.query_map(rows_of, |r| r.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}
