//! What the session list shows without reading messages: name, title, counters, order. Every change updates it.

use rusqlite::{Transaction, params};

use super::LAST;
use super::database::next_use;
use super::error::Result;
use super::query::{self, UP, number_at};
use super::recorded::KEPT;
use super::seal::seal_session;
use crate::core::now_ms;
use crate::core::transcript::SessionId;

/// The title of a session without one of its own, of its first question `m`.
const FIRST_WORDS: &str = "replace(substr(ltrim(m.text), 1, 120), char(10), ' ')";

pub(super) fn free_name(db: &rusqlite::Connection, wanted: &str) -> Result<String> {
    let mut taken = db.prepare_cached("SELECT 1 FROM session WHERE name = ?1 AND trashed_ms IS NULL")?;
    let wanted = if wanted.trim().is_empty() { "untitled" } else { wanted.trim() };
    if wanted != LAST && !taken.exists([wanted])? {
        return Ok(wanted.to_owned());
    }
    // The first free of wanted-2, wanted-4, wanted-8 …, then halfway back: a few look-ups in any case.
    let mut free = |n: u64| -> Result<bool> { Ok(!taken.exists([format!("{wanted}-{n}")])?) };
    let (mut low, mut high) = (1, 2);
    while !free(high)? {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if free(middle)? { high = middle } else { low = middle }
    }
    Ok(format!("{wanted}-{high}"))
}

/// Whether a row of `session` has a title of its own, other than the first words of one of its questions.
pub(super) fn own_title() -> String {
    format!(
        "title <> '' AND NOT EXISTS (
           WITH RECURSIVE up(id, parent) AS (
             SELECT id, parent FROM message WHERE id IN (session.head, session.forked_at)
             UNION SELECT m.id, m.parent FROM up CROSS JOIN message m ON m.id = up.parent)
           SELECT 1 FROM message m WHERE m.role = 'user' AND (m.session = session.id OR m.id IN (SELECT id FROM up))
             AND {FIRST_WORDS} = session.title)"
    )
}

pub(super) fn touch_session(tx: &Transaction<'_>, session: SessionId) -> Result<()> {
    tx.prepare_cached("UPDATE session SET used = ?2, updated_ms = ?3 WHERE id = ?1")?.execute(params![
        session.0,
        next_use(tx)?,
        now_ms()
    ])?;
    refresh_session(tx, session)
}

/// As [`touch_session`], without making it the most recent one.
pub(super) fn refresh_session(tx: &Transaction<'_>, session: SessionId) -> Result<()> {
    let head =
        query::row(tx, "SELECT head FROM session WHERE id = ?1", [session.0], |r| Ok(number_at(r, 0)))?.flatten();
    let tip = format!(
        "SELECT s.stop, CASE WHEN {KEPT} THEN s.fingerprint END FROM segment s WHERE s.id = (
           {UP} SELECT s.id
           FROM up CROSS JOIN message_segment l ON l.message = up.id CROSS JOIN segment s ON s.id = l.segment
           ORDER BY up.depth DESC, s.used DESC LIMIT 1)"
    );
    let tip = query::row(tx, &tip, [head], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let (tokens, state_of): (i64, Option<String>) = tip.unwrap_or((0, None));
    let title = format!(
        "{UP} SELECT {FIRST_WORDS} FROM up CROSS JOIN message m ON m.id = up.id
         WHERE m.role = 'user' ORDER BY up.depth LIMIT 1"
    );
    let columns = format!(
        "UPDATE session SET messages = coalesce((SELECT depth FROM message WHERE id = ?1), 0), tokens = ?3, state_of = ?4,
           title = iif(title = '', coalesce(({title}), ''), title)
         WHERE id = ?2"
    );
    tx.prepare_cached(&columns)?.execute(params![head, session.0, tokens, state_of])?;
    seal_session(tx, session)
}
