//! What this process notes about segments in memory: those it recorded and has not linked yet, and when state was last
//! used.
//!
//! A long text is recorded step by step and linked at its end; until then its segments must not be collected. Segments
//! of a stopped load stay until the process ends, within the disk budget.
//!
//! The disk budget drops the least recently used state first. A use is noted in memory, so that restoring waits for no
//! disk; the writer stores it when idle, so that other processes see it. A killed process loses its notes, which affects
//! only the order of dropping.

use rusqlite::params;

use super::commit::{Applied, Change, apply};
use super::database::{Access, Store, lock, next_use};
use super::error::Result;
use super::segment::{Segment, SegmentId};
use crate::core::now_ms;

impl Store {
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

    pub(super) fn note_use(&self, path: &[Segment]) {
        if *self.access() != Access::Writable {
            return;
        }
        let mut noted = lock(&self.uses);
        noted.count += 1;
        let now = (noted.count, now_ms());
        noted.last.extend(path.iter().map(|segment| (segment.id, now)));
        let notify = noted.noted.clone();
        drop(noted);
        if let Some(notify) = notify {
            notify();
        }
    }

    pub(super) fn noted_uses(&self) -> Vec<SegmentId> {
        lock(&self.uses).last.keys().copied().collect()
    }

    /// Stores the noted uses. Best effort: they only order dropping, and a failed write keeps them noted.
    pub(super) fn write_uses(&self) {
        let noted = std::mem::take(&mut lock(&self.uses).last);
        if noted.is_empty() {
            return;
        }
        let mut noted: Vec<(SegmentId, (u64, i64))> = noted.into_iter().collect();
        noted.sort_unstable_by_key(|(_, (path, _))| *path);
        let written = self.transaction(|tx| {
            let mut update = tx.prepare_cached("UPDATE segment SET used = ?2, used_ms = ?3 WHERE id = ?1")?;
            for path in noted.chunk_by(|(_, (a, _)), (_, (b, _))| a == b) {
                let used = next_use(tx)?;
                for (id, (_, ms)) in path {
                    update.execute(params![id.0, used, ms])?;
                }
            }
            Ok(())
        });
        if let Err(e) = written {
            tracing::debug!("which state was used is not written: {e}");
            // A use noted meanwhile is newer.
            let mut uses = lock(&self.uses);
            for (id, at) in noted {
                uses.last.entry(id).or_insert(at);
            }
        }
    }
}
