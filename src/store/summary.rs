//! The columns that the session list shows without reading messages: name, title, counters, order. Updated with every
//! change.

use rusqlite::{Transaction, params};

use super::LAST;
use super::database::next_use;
use super::error::Result;
use super::query;
use super::recorded::KEPT;
use super::seal::seal_session;
use crate::core::now_ms;
use crate::core::transcript::SessionId;

macro_rules! first_words {
    () => {
        "replace(substr(ltrim(m.text), 1, 120), char(10), ' ')"
    };
}

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
pub(super) const OWN_TITLE: &str = concat!(
    "title <> '' AND NOT EXISTS (
  WITH RECURSIVE up(id, parent) AS (
    SELECT id, parent FROM message WHERE id IN (session.head, session.forked_at)
    UNION SELECT m.id, m.parent FROM up CROSS JOIN message m ON m.id = up.parent)
  SELECT 1 FROM message m WHERE m.role = 'user' AND (m.session = session.id OR m.id IN (SELECT id FROM up))
    AND ",
    first_words!(),
    " = session.title)"
);

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
    tx.prepare_cached(
        "UPDATE session SET messages = coalesce((SELECT depth FROM message WHERE id = session.head), 0) WHERE id = ?1",
    )?
    .execute([session.0])?;
    let tip = format!(
        "SELECT s.stop, CASE WHEN {KEPT} THEN s.fingerprint END FROM segment s WHERE s.id = (
               WITH RECURSIVE up(id, parent, depth) AS (
                 SELECT m.id, m.parent, m.depth FROM session s CROSS JOIN message m ON m.id = s.head WHERE s.id = ?1
                 UNION SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)
               SELECT s.id
               FROM up CROSS JOIN message_segment l ON l.message = up.id CROSS JOIN segment s ON s.id = l.segment
               ORDER BY up.depth DESC, s.used DESC LIMIT 1)"
    );
    let tip = query::row(tx, &tip, [session.0], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let tip: (i64, Option<String>) = tip.unwrap_or((0, None));
    tx.prepare_cached("UPDATE session SET tokens = ?2, state_of = ?3 WHERE id = ?1")?
        .execute(params![session.0, tip.0, tip.1])?;
    tx.prepare_cached(concat!(
        "UPDATE session SET title = coalesce((
           WITH RECURSIVE up(id, parent, depth) AS (
             SELECT id, parent, depth FROM message WHERE id = session.head
             UNION SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)
           SELECT ",
        first_words!(),
        " FROM up CROSS JOIN message m ON m.id = up.id
           WHERE m.role = 'user' ORDER BY up.depth LIMIT 1), '')
         WHERE id = ?1 AND title = ''"
    ))?
    .execute([session.0])?;
    seal_session(tx, session)
}
