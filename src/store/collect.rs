//! Removes unreachable segments and sessions long enough in the trash, and wipes deleted texts; computes sizes.
//!
//! Reachability decides, never age alone. Text is removed only with a session that its user deleted, after its days in
//! the trash, and only if no other session shows it.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, Transaction};

use super::database::{Access, Store, lock};
use super::error::{Result, StoreError};
use super::format::FileKind;
use super::keep::Freed;
use super::query::{self, PLACES, count_at};
use super::recorded::{ids, light, with_ancestors};
use super::schema::structure_fault;
use super::segment::SegmentId;
use super::sessions::{SessionFilter, SessionRecord, WRITTEN, properties};
use crate::core::now_ms;
use crate::core::transcript::{SessionId, SessionSizes};

const DAY_MS: i64 = 24 * 3600 * 1000;
/// Unreachable state stays this long while other processes may be about to use it.
const LEFT_ALONE_MS: i64 = DAY_MS;
/// A database up to this size is rewritten to wipe deleted texts.
const SMALL_BYTES: u64 = 64 << 20;
/// Pages of the search index that are merged in one transaction, for which other writers wait.
const MERGED_PAGES: i64 = 2_000;
/// Property of a database: a wipe of deleted texts is due.
const WIPE: &str = "wipe";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub state_bytes: u64,
    pub database_bytes: u64,
    pub sessions: HashMap<SessionId, SessionSizes>,
}

impl Store {
    /// Removes segments that no message, no document and no load in progress reaches, with their files.
    pub fn collect(&self) -> Result<Freed> {
        self.write_uses();
        let cutoff = if self.is_alone() { i64::MAX } else { now_ms() - LEFT_ALONE_MS };
        let gone = self.transaction(|tx| {
            let tree = light(tx)?;
            let mut roots = ids(tx, "SELECT segment FROM message_segment UNION SELECT segment FROM document")?;
            roots.extend(tree.values().filter(|l| l.used_ms >= cutoff).map(|l| l.id));
            roots.extend(lock(&self.unlinked).keys().copied());
            let reached = with_ancestors(&tree, roots);
            let mut gone = Vec::new();
            for l in tree.values().filter(|l| !reached.contains(&l.id)) {
                tx.prepare_cached("DELETE FROM segment WHERE id = ?1")?.execute([l.id.0])?;
                gone.push((l.id, FileKind::Rows, l.rows_bytes));
                gone.push((l.id, FileKind::End, l.end_bytes));
            }
            Ok(gone)
        })?;
        let mut freed = self.remove_files(&gone);
        freed.segments = gone.len() as u64 / 2;
        Ok(freed)
    }

    /// Removes state files that no row names, of any age. Returns their number.
    pub fn remove_orphans(&self) -> u64 {
        self.sweep(true)
    }

    /// Sessions that have been in the trash for `days` (`None`: the configured number) and that no process has open. 0
    /// days select all, whatever the clock shows; other values skip damaged rows, which may not belong there.
    pub fn old_in_trash(&self, days: Option<u32>) -> Result<Vec<SessionId>> {
        let days = days.unwrap_or(self.limits.trash_days);
        let mut trashed = self.sessions(SessionFilter::Trashed, usize::MAX)?;
        trashed.retain(|r| days == 0 || !r.damaged && r.trashed_ms.is_some_and(|at| is_old(at, now_ms(), days)));
        Ok(trashed.into_iter().map(|r| r.id).filter(|id| !self.is_in_use(*id)).collect())
    }

    /// When a session leaves the trash, ms since the epoch; `None` if only emptying all of it removes it.
    pub fn leaves_trash_ms(&self, session: &SessionRecord) -> Option<i64> {
        let days = i64::from(self.limits.trash_days);
        let at = session.trashed_ms.filter(|_| days > 0 && !session.damaged)?;
        Some(at.saturating_add(days * DAY_MS))
    }

    /// Removes the sessions of [`Store::old_in_trash`] with messages no other session reaches, collects their state,
    /// and wipes their remains from the database.
    pub fn empty_trash(&self, days: Option<u32>) -> Result<Freed> {
        self.require_sound()?;
        let old = self.old_in_trash(days)?;
        let (mut sessions, mut messages) = (0, 0);
        for session in old {
            // One transaction per session, because other writers wait for it.
            let purged = self.transaction(|tx| {
                // The session may have left the trash meanwhile.
                let sql = "SELECT 1 FROM session WHERE id = ?1 AND trashed_ms IS NOT NULL";
                if !tx.prepare_cached(sql)?.exists([session.0])? {
                    return Ok(None);
                }
                tx.execute("INSERT OR REPLACE INTO property VALUES (?1, '')", [WIPE])?;
                purge(tx, session).map(Some)
            })?;
            sessions += u64::from(purged.is_some());
            messages += purged.unwrap_or(0);
        }
        let mut freed = Freed { sessions, messages, ..Freed::default() };
        if sessions > 0 {
            freed.add(self.collect()?);
        }
        // This also finishes a wipe that an earlier run left incomplete.
        self.wipe();
        Ok(freed)
    }

    /// Refuses to remove unreachable messages from a database with structural damage. The check is slow, so it uses
    /// its own connection and readers do not wait.
    fn require_sound(&self) -> Result<()> {
        let path = &self.layout.database;
        let fault = match &self.access {
            Access::Writable => structure_fault(&super::schema::open_readable(path, path)?)?,
            Access::ReadOnly { .. } => self.read(structure_fault)?,
        };
        fault.map_or(Ok(()), |fault| Err(StoreError::Doubtful { path: path.clone(), fault }))
    }

    pub fn database_bytes(&self) -> u64 {
        self.disk.look(&self.layout.database).map_or(0, |l| l.bytes)
    }

    /// All sizes. Reads the messages of one session or of all; [`Store::state_sizes`] reads none.
    pub fn sizes(&self, of: Option<SessionId>) -> Result<Sizes> {
        let mut sizes = self.state_sizes()?;
        self.read(move |db| {
            let which = of.map_or(String::new(), |session| format!(" WHERE session = {}", session.0));
            let sum = "SELECT session, sum(octet_length(text) + octet_length(thinking)) FROM message";
            let sql = format!("{sum}{which} GROUP BY session");
            let texts: Vec<_> = query::rows(db, &sql, [], |r| Ok((SessionId(r.get(0)?), count_at(r, 1))))?;
            for (session, text) in texts {
                sizes.sessions.entry(session).or_default().text = text;
            }
            for (session, written) in properties(db, WRITTEN)? {
                sizes.sessions.entry(session).or_default().written = written.parse().unwrap_or_default();
            }
            Ok(sizes)
        })
    }

    /// As [`Store::sizes`], of state alone: neither texts nor what was written so far.
    pub fn state_sizes(&self) -> Result<Sizes> {
        self.read(|db| {
            let (tree, links, library) = (light(db)?, links(db)?, ids(db, "SELECT segment FROM document")?);
            let library = with_ancestors(&tree, library);
            let reach = links.into_iter().map(|(session, tips)| (session, with_ancestors(&tree, tips)));
            let reach: Vec<(SessionId, HashSet<SegmentId>)> = reach.collect();
            let mut reached_by: HashMap<SegmentId, u32> = HashMap::new();
            reach.iter().flat_map(|(_, reached)| reached).for_each(|id| *reached_by.entry(*id).or_default() += 1);
            let is_own = |id: &&SegmentId| reached_by.get(id) == Some(&1) && !library.contains(id);
            let bytes = |id: &SegmentId| tree.get(id).map_or(0, |l| l.rows_bytes + l.end_bytes);
            let sizes = |(session, reached): (SessionId, HashSet<SegmentId>)| {
                let own = reached.iter().filter(is_own).map(bytes).sum();
                (session, SessionSizes { state: reached.iter().map(bytes).sum(), own, ..SessionSizes::default() })
            };
            let sessions = reach.into_iter().map(sizes).collect();
            let state_bytes = tree.values().map(|l| l.rows_bytes + l.end_bytes).sum();
            Ok(Sizes { state_bytes, database_bytes: self.database_bytes(), sessions })
        })
    }

    /// Wipes the remains of deleted texts from the database file. SQLite overwrites deleted rows (`secure_delete`, see
    /// `schema.rs`). Two kinds of remains are left: the search index keeps the words of deleted texts until its parts are
    /// merged, and rearranged pages may hold copies, also those of a database that an earlier program wrote. So the index
    /// is merged into one part, and a small database is rewritten. The deletion records that a wipe is due: the next
    /// call repeats a failed step.
    fn wipe(&self) {
        let sql = "SELECT 1 FROM property WHERE name = ?1";
        let is_due = || self.read(|db| Ok(db.prepare_cached(sql)?.exists([WIPE])?)).unwrap_or(false);
        if self.access != Access::Writable || !is_due() {
            return;
        }
        let done = self.merge_index().and_then(|()| {
            if self.database_bytes() <= SMALL_BYTES {
                lock(&self.writer).execute_batch("VACUUM")?;
            }
            self.transaction(|tx| Ok(tx.execute("DELETE FROM property WHERE name = ?1", [WIPE])?))
        });
        // The log holds the old texts until it is moved into the database.
        self.checkpoint();
        if let Err(e) = done {
            tracing::warn!("remains of deleted texts are not wiped yet: {e}");
        }
    }

    fn merge_index(&self) -> Result<()> {
        loop {
            let written = self.transaction(|tx| {
                let before = tx.total_changes();
                tx.execute("INSERT INTO message_text(message_text, rank) VALUES ('merge', ?1)", [-MERGED_PAGES])?;
                Ok(tx.total_changes() - before)
            })?;
            // The command itself counts for one.
            if written < 2 {
                return Ok(());
            }
        }
    }
}

/// The segments at which the messages of each session end.
fn links(db: &Connection) -> Result<HashMap<SessionId, Vec<SegmentId>>> {
    let sql = format!(
        "WITH {PLACES} SELECT m.session, l.segment FROM message m JOIN message_segment l ON l.message = m.id
         UNION SELECT p.session, l.segment FROM place p JOIN message_segment l ON l.message = p.message"
    );
    let links: Vec<(i64, SegmentId)> = query::rows(db, &sql, [], |r| Ok((r.get(0)?, SegmentId(r.get(1)?))))?;
    let mut by_session: HashMap<SessionId, Vec<SegmentId>> = HashMap::new();
    for (session, segment) in links {
        by_session.entry(SessionId(session)).or_default().push(segment);
    }
    Ok(by_session)
}

/// Of a time in the future, which means a wrong clock, the distance counts.
fn is_old(at: i64, now: i64, days: u32) -> bool {
    now.abs_diff(at) >= u64::from(days) * DAY_MS.unsigned_abs()
}

/// Messages that other sessions show move to one of them; the prompts of the others leave the history.
fn purge(tx: &Transaction<'_>, session: SessionId) -> Result<u64> {
    tx.execute("DELETE FROM session WHERE id = ?1", [session.0])?;
    // Everything at or above the places of other sessions, or above their own messages, stays.
    tx.execute_batch(
        "CREATE TEMP TABLE IF NOT EXISTS stays(id INTEGER PRIMARY KEY, owner INTEGER) STRICT; DELETE FROM stays;",
    )?;
    tx.execute(
        &format!(
            "WITH RECURSIVE {PLACES}, up(id, owner) AS (
               SELECT message, session FROM place
               UNION SELECT parent, session FROM message WHERE session <> ?1 AND parent IS NOT NULL
               UNION SELECT m.parent, up.owner FROM up CROSS JOIN message m ON m.id = up.id WHERE m.parent IS NOT NULL)
             INSERT OR IGNORE INTO stays SELECT id, owner FROM up WHERE id IN (SELECT id FROM message WHERE session = ?1)"
        ),
        [session.0],
    )?;
    tx.execute(
        "UPDATE message SET session = (SELECT owner FROM stays WHERE stays.id = message.id)
         WHERE session = ?1 AND id IN (SELECT id FROM stays)",
        [session.0],
    )?;
    super::typed::forget_prompts_of(tx, session)?;
    tx.execute("DELETE FROM property WHERE name GLOB '* ' || ?1", [session.0])?;
    Ok(tx.execute("DELETE FROM message WHERE session = ?1", [session.0])? as u64)
}

#[cfg(test)]
mod tests {
    use super::is_old;

    #[test]
    fn days_in_the_trash_are_counted_either_way_of_the_clock() {
        let (day, now) = (24 * 3600 * 1000, 100 * 24 * 3600 * 1000);
        for (at, days, old) in [
            (now, 7, false),
            (now - 7 * day + 1, 7, false),
            (now - 7 * day, 7, true),
            (now + day, 7, false),
            (now + 7 * day, 7, true),
            (i64::MAX, 7, true),
            (i64::MIN, 7, true),
            (now + 1, 0, true),
        ] {
            assert_eq!(is_old(at, now, days), old, "{at}");
        }
    }
}
