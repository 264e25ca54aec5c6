//! Decides which state is kept: thinning by age, and the disk budget.
//!
//! Never touches text. A removal changes the row first, then removes the file unless a row names it again. A crash in
//! between leaves a file without a row, which is removed some days later.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use rusqlite::params;

use super::database::{Access, Store, lock, next_use};
use super::error::Result;
use super::format::FileKind;
use super::query;
use super::recorded::{Light, forget, ids, light, light_of_session, with_ancestors};
use super::segment::{Segment, SegmentId, SegmentKind};
use super::summary::refresh_session;
use crate::core::now_ms;
use crate::core::transcript::SessionId;

/// The reason for state that a user removed, a phrase.
pub const PRUNED: &str = "it was pruned";

/// Prefix of the reason for state that was never written. The rest describes that moment.
pub const NOT_WRITTEN: &str = "not written: ";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Freed {
    pub files: u64,
    pub bytes: u64,
    pub segments: u64,
    pub messages: u64,
    pub sessions: u64,
}

impl Freed {
    pub fn add(&mut self, o: Freed) {
        self.files += o.files;
        self.bytes += o.bytes;
        self.segments += o.segments;
        self.messages += o.messages;
        self.sessions += o.sessions;
    }
}

/// Whether a turn's state is kept, by its age in turns (0 is the newest) and its number from the root. Beyond the
/// newest `keep` every 2nd, then every 4th, 8th … stays. The strides are powers of two over fixed numbers, so the
/// turns a later rule keeps are among those an earlier one kept.
pub(super) fn keeps_turn(age: u64, number: u64, keep: u64) -> bool {
    if age < keep {
        return true;
    }
    let stride_log = (age / keep.max(1)).ilog2() + 1;
    number.is_multiple_of(1 << stride_log.min(62))
}

impl Store {
    pub fn thin(&self, session: SessionId) -> Result<Freed> {
        let gone = self.transaction(|tx| {
            let tree = light_of_session(tx, session)?;
            let pinned: HashSet<SegmentId> = pinned(tx)?;
            let keep = kept_ends(&tree, &pinned, self.limits.keep_turns);
            // The part of a fork above its fork point belongs to another session and has its age there.
            let sql =
                "SELECT l.segment FROM message m CROSS JOIN message_segment l ON l.message = m.id WHERE m.session = ?1";
            let own: HashSet<SegmentId> = query::rows(tx, sql, [session.0], |r| Ok(SegmentId(r.get(0)?)))?;
            let thinned = |l: &&Light| l.end_bytes > 0 && own.contains(&l.id) && !keep.contains(&l.id);
            let gone: Vec<_> = tree.values().filter(thinned).map(|l| (l.id, FileKind::End, l.end_bytes)).collect();
            gone.iter().try_for_each(|(id, kind, _)| forget(tx, id, *kind, "thinned"))?;
            Ok(gone)
        })?;
        Ok(self.remove_files(&gone))
    }

    /// Drops the least recently used state until all fits into the budget: first end states that nothing pins, then
    /// whole segments from the tips downwards. Segments in `spare` (the open conversation's path) stay, and so does
    /// the state of marks with all that it builds on, unless the budget is 0.
    pub fn keep_budget(&self, spare: &[SegmentId]) -> Result<Freed> {
        self.drop_state_above(self.limits.max_state_bytes, spare, "dropped to stay within the disk budget")
    }

    pub fn drop_all_state(&self, spare: &[SegmentId]) -> Result<Freed> {
        self.drop_state_above(0, spare, PRUNED)
    }

    pub fn state_bytes_of(&self, ends: &[SegmentId]) -> Result<u64> {
        self.read(|db| {
            let tree = light(db)?;
            let reached = with_ancestors(&tree, ends.iter().copied());
            Ok(reached.iter().filter_map(|id| tree.get(id)).map(|l| l.rows_bytes + l.end_bytes).sum())
        })
    }

    /// Bytes of the state that the budget leaves to marks: their own, the rows it builds on, and those end states
    /// below it that are dropped only with their rows.
    pub fn state_bytes_of_marks(&self) -> Result<u64> {
        if self.limits.max_state_bytes == 0 {
            return Ok(0);
        }
        self.read(|db| {
            let tree = light(db)?;
            let reached = with_ancestors(&tree, ids(db, MARK_SEGMENTS)?);
            let pinned = pinned(db)?;
            let of_one = |l: &Light| l.rows_bytes + if end_is_removed_first(l, &pinned) { 0 } else { l.end_bytes };
            Ok(reached.iter().filter_map(|id| tree.get(id)).map(of_one).sum())
        })
    }

    pub fn state_bytes(&self) -> Result<u64> {
        self.read(|db| {
            Ok(db.query_row("SELECT coalesce(sum(rows_bytes + end_bytes), 0) FROM segment", [], |r| r.get(0))?)
        })
    }

    fn drop_state_above(&self, budget: u64, spare: &[SegmentId], why: &str) -> Result<Freed> {
        let all = self.state_bytes()?;
        if all <= budget {
            return Ok(Freed::default());
        }
        self.write_uses();
        // A use counts even if it could not be written.
        let spare: Vec<SegmentId> = spare.iter().chain(lock(&self.uses).iter().flatten()).copied().collect();
        let gone = self.transaction(|tx| {
            let tree = light(tx)?;
            let spare: HashSet<SegmentId> = with_ancestors(&tree, spare.iter().copied());
            let pinned = pinned(tx)?;
            // A budget of 0 keeps no state of marks either.
            let marks = if budget == 0 { Vec::new() } else { ids(tx, MARK_SEGMENTS)? };
            let marked = with_ancestors(&tree, marks);
            let mut by_use: Vec<&Light> = tree.values().filter(|l| !spare.contains(&l.id)).collect();
            by_use.sort_by_key(|l| l.used);
            // Rows need all rows before them: a segment counts as used as late as those after it, and is dropped after them.
            let mut used: HashMap<SegmentId, i64> = HashMap::new();
            for last in by_use.iter().rev() {
                let mut next = Some(*last).filter(|l| l.rows_bytes > 0);
                while let Some(l) = next
                    && let Entry::Vacant(entry) = used.entry(l.id)
                {
                    entry.insert(last.used);
                    next = l.parent.and_then(|parent| tree.get(&parent));
                }
            }
            let mut tips_first: Vec<&Light> = by_use.iter().copied().filter(|l| !marked.contains(&l.id)).collect();
            tips_first.sort_by_key(|l| (used.get(&l.id).copied().unwrap_or(l.used), Reverse(l.start)));
            let ends = by_use.into_iter().filter(|l| end_is_removed_first(l, &pinned)).map(|l| (l, FileKind::End));
            let both = tips_first.into_iter().flat_map(|l| [(l, FileKind::End), (l, FileKind::Rows)]);
            let (mut total, mut gone, mut seen) = (all, Vec::new(), HashSet::new());
            for (l, kind) in ends.chain(both) {
                let bytes = if kind == FileKind::End { l.end_bytes } else { l.rows_bytes };
                if total > budget && bytes > 0 && seen.insert((l.id, kind)) {
                    total = total.saturating_sub(bytes);
                    gone.push((l.id, kind, bytes));
                }
            }
            gone.iter().try_for_each(|(id, kind, _)| forget(tx, id, *kind, why))?;
            let sql = "SELECT id FROM session WHERE state_of IS NOT NULL";
            let stale: Vec<i64> = query::rows(tx, sql, [], |r| r.get(0))?;
            stale.into_iter().try_for_each(|session| refresh_session(tx, SessionId(session)))?;
            Ok(gone)
        })?;
        Ok(self.remove_files(&gone))
    }

    pub(super) fn remove_files(&self, gone: &[(SegmentId, FileKind, u64)]) -> Freed {
        let had: Vec<_> = gone.iter().filter(|(.., bytes)| *bytes > 0).copied().collect();
        // Another process may have saved some again meanwhile.
        let removed = self.remove_unnamed(&had, |_| true);
        Freed { files: removed.len() as u64, bytes: removed.iter().sum(), ..Freed::default() }
    }
}

/// Uses of state. The budget drops the least recently used state first. A use is noted in memory, so that restoring
/// waits for no disk; the writer stores it when idle, so that other processes see it. A killed process loses its notes,
/// which affects only the order of dropping.
impl Store {
    pub(super) fn note_use(&self, path: &[Segment]) {
        if self.access != Access::Writable {
            return;
        }
        lock(&self.uses).push(path.iter().map(|segment| segment.id).collect());
    }

    /// Stores the noted uses. Best effort: they only order dropping, and a failed write keeps them noted.
    pub(super) fn write_uses(&self) {
        let noted = std::mem::take(&mut *lock(&self.uses));
        if noted.is_empty() {
            return;
        }
        let written = self.transaction(|tx| {
            let mut update = tx.prepare_cached("UPDATE segment SET used = ?2, used_ms = ?3 WHERE id = ?1")?;
            for path in &noted {
                let used = next_use(tx)?;
                for id in path {
                    update.execute(params![id.0, used, now_ms()])?;
                }
            }
            Ok(())
        });
        if let Err(e) = written {
            tracing::debug!("which state was used is not written: {e}");
            lock(&self.uses).splice(0..0, noted);
        }
    }
}

const HEAD_SEGMENTS: &str =
    "SELECT l.segment FROM session s JOIN message_segment l ON l.message = s.head WHERE s.trashed_ms IS NULL";

const MARK_SEGMENTS: &str = "SELECT l.segment FROM mark JOIN session s ON s.id = mark.session
  JOIN message_segment l ON l.message = mark.message WHERE s.trashed_ms IS NULL";

/// Segments that never lose their end state to thinning: marks, heads and fork points.
fn pinned(db: &rusqlite::Connection) -> Result<HashSet<SegmentId>> {
    let sql = format!(
        "SELECT l.segment FROM mark JOIN message_segment l ON l.message = mark.message
         UNION SELECT l.segment FROM session s JOIN message_segment l ON l.message = s.forked_at
         UNION {HEAD_SEGMENTS}"
    );
    Ok(ids(db, &sql)?.into_iter().collect())
}

fn end_is_removed_first(l: &Light, pinned: &HashSet<SegmentId>) -> bool {
    l.kind != SegmentKind::DocumentEnd && !pinned.contains(&l.id)
}

fn kept_ends(tree: &HashMap<SegmentId, Light>, pinned: &HashSet<SegmentId>, keep_turns: u64) -> HashSet<SegmentId> {
    let mut children: HashMap<SegmentId, u32> = HashMap::new();
    for parent in tree.values().filter_map(|l| l.parent) {
        *children.entry(parent).or_default() += 1;
    }
    let mut keep = HashSet::new();
    for tip in tree.values().filter(|l| !children.contains_key(&l.id)) {
        // A path through all segments is the longest possible; in a damaged database it may be a ring.
        let up = std::iter::successors(Some(tip), |l| tree.get(&l.parent?)).take(tree.len());
        let mut path: Vec<&Light> = up.collect();
        path.reverse();
        let turns = path.iter().filter(|l| l.kind == SegmentKind::Turn).count() as u64;
        let mut turn = 0u64;
        for l in path {
            let stays = match l.kind {
                // The number of kept document parts is a setting of its own: `/when` starts from them.
                SegmentKind::DocumentEnd | SegmentKind::DocumentPart => true,
                SegmentKind::Turn => {
                    turn += 1;
                    keeps_turn(turns - turn, turn, keep_turns)
                }
            };
            let fork = children.get(&l.id).is_some_and(|n| *n > 1);
            if stays || fork || pinned.contains(&l.id) {
                keep.insert(l.id);
            }
        }
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_is_monotonic_and_leaves_logarithmically_many() {
        for keep in [1, 4, 16] {
            for number in 1..500u64 {
                let mut kept = true;
                for age in 0..5_000 {
                    let keeps = keeps_turn(age, number, keep);
                    assert!(kept || !keeps, "turn {number} would be wanted back at age {age}");
                    kept = keeps;
                }
            }
            for turns in [10u64, 100, 1_000, 100_000] {
                let kept = (1..=turns).filter(|n| keeps_turn(turns - n, *n, keep)).count() as u64;
                assert!(kept >= keep.min(turns) && kept <= keep * (turns.ilog2() as u64 + 2), "{kept} of {turns}");
            }
        }
    }

    #[test]
    fn a_thinned_turn_is_never_far_from_a_kept_one() {
        let (turns, keep) = (1_000u64, 16);
        let mut last = 0;
        for n in (1..=turns).filter(|n| keeps_turn(turns - n, *n, keep)) {
            // Replay is never longer than about an eighth of the way back.
            assert!(n - last <= ((turns - last) / 8).max(1), "{last}..{n}");
            last = n;
        }
    }
}
