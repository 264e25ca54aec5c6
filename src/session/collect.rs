//! What nothing needs any more: unreachable segments, sessions long in the trash; and what everything weighs.
//!
//! Reachability decides, never age alone. Text goes only with a session that was deleted by its user, after its days in
//! the trash, and only where no other session shows it.

use std::collections::{HashMap, HashSet};

use rusqlite::Transaction;

use super::error::{Result, StoreError};
use super::format::FileKind;
use super::keep::{ids, light, with_ancestors};
use super::segment::SegmentId;
use super::sessions::PLACES;
use super::store::{Store, now_ms};
use crate::transcript::SessionId;

/// What nothing reaches stays this long while other processes may be about to use it.
const LEFT_ALONE_MS: i64 = 24 * 3600 * 1000;

/// What a removal freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Files removed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Segments forgotten altogether.
    pub segments: u64,
    /// Messages removed, of sessions that were in the trash.
    pub messages: u64,
    /// Sessions removed from the trash.
    pub sessions: u64,
}

impl Freed {
    /// Adds another removal's numbers.
    pub fn add(&mut self, o: Freed) {
        self.files += o.files;
        self.bytes += o.bytes;
        self.segments += o.segments;
        self.messages += o.messages;
        self.sessions += o.sessions;
    }
}

/// Bytes of state on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// All sessions and the shelf.
    pub state_bytes: u64,
    /// The database.
    pub database_bytes: u64,
    /// For each session: (bytes it reaches, bytes only it reaches).
    pub sessions: HashMap<SessionId, (u64, u64)>,
}

impl Store {
    /// Removes segments that no message and no shelf entry reaches, with their files, except those this process is
    /// about to link.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn collect(&self) -> Result<Freed> {
        let cutoff = if self.is_alone() { i64::MAX } else { now_ms() - LEFT_ALONE_MS };
        let gone = self.transaction(|tx| {
            let tree = light(tx)?;
            let mut roots = ids(tx, "SELECT segment FROM message_segment UNION SELECT segment FROM document")?;
            roots.extend(tree.values().filter(|l| l.used_ms >= cutoff).map(|l| l.id));
            roots.extend(self.unlinked.ids());
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

    /// Removes files of state that no row names, however young. Returns how many.
    pub fn remove_orphans(&self) -> u64 {
        self.sweep(true)
    }

    /// Removes sessions that have been in the trash for longer than `days` (the configured number for `None`), with
    /// messages no other session reaches, and collects their state.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn empty_trash(&self, days: Option<u32>) -> Result<Freed> {
        // Messages go that nothing reaches: what is reached must be beyond doubt.
        if let Some(fault) = self.read(super::check::structure_fault)? {
            let path = self.layout.database.clone();
            return Err(StoreError::Doubtful { path, fault });
        }
        let before = now_ms() - i64::from(days.unwrap_or(self.limits.trash_days)) * 24 * 3600 * 1000;
        let (sessions, messages) = self.transaction(|tx| {
            let old: Vec<i64> = {
                let mut query = tx.prepare_cached("SELECT id FROM session WHERE trashed_ms <= ?1")?;
                let rows = query.query_map([before], |r| r.get(0))?;
                rows.collect::<Result<_, _>>()?
            };
            let mut messages = 0;
            for session in &old {
                messages += purge(tx, SessionId(*session))?;
            }
            Ok((old.len() as u64, messages))
        })?;
        let mut freed = Freed { sessions, messages, ..Freed::default() };
        if sessions > 0 {
            freed.add(self.collect()?);
        }
        Ok(freed)
    }

    /// Bytes by session: what it reaches, and what would be freed without it.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn sizes(&self) -> Result<Sizes> {
        let database_bytes = self.disk.look(&self.layout.database).map_or(0, |l| l.bytes);
        self.read(|db| {
            let tree = light(db)?;
            let mut query = db.prepare_cached(&format!(
                "WITH {PLACES} SELECT m.session, l.segment FROM message m JOIN message_segment l ON l.message = m.id
                 UNION SELECT p.session, l.segment FROM place p JOIN message_segment l ON l.message = p.message"
            ))?;
            let links: Vec<(i64, SegmentId)> =
                query.query_map([], |r| Ok((r.get(0)?, SegmentId(r.get(1)?))))?.collect::<Result<_, _>>()?;
            let mut by_session: HashMap<SessionId, Vec<SegmentId>> = HashMap::new();
            for (session, segment) in links {
                by_session.entry(SessionId(session)).or_default().push(segment);
            }
            let mut reached_by: HashMap<SegmentId, u32> = HashMap::new();
            let shelf = with_ancestors(&tree, ids(db, "SELECT segment FROM document")?);
            let mut reach: Vec<(SessionId, HashSet<SegmentId>)> = Vec::new();
            for (session, tips) in by_session {
                let reached = with_ancestors(&tree, tips);
                for id in &reached {
                    *reached_by.entry(*id).or_default() += 1;
                }
                reach.push((session, reached));
            }
            let bytes = |id: &SegmentId| tree.get(id).map_or(0, |l| l.rows_bytes + l.end_bytes);
            let sessions = reach
                .into_iter()
                .map(|(session, reached)| {
                    let all = reached.iter().map(bytes).sum();
                    let own = reached.iter().filter(|id| reached_by.get(id) == Some(&1) && !shelf.contains(id));
                    (session, (all, own.map(bytes).sum()))
                })
                .collect();
            let state_bytes = tree.values().map(|l| l.rows_bytes + l.end_bytes).sum();
            Ok(Sizes { state_bytes, database_bytes, sessions })
        })
    }
}

/// Removes a session for good. Its messages that other sessions stand on go over to one of those.
fn purge(tx: &Transaction<'_>, session: SessionId) -> Result<u64> {
    tx.execute("DELETE FROM session WHERE id = ?1", [session.0])?;
    // Everything above the other sessions' own messages and at or above their places stays.
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
    Ok(tx.execute("DELETE FROM message WHERE session = ?1", [session.0])? as u64)
}
