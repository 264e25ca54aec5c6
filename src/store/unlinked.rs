//! Segments that this process has recorded and that nothing leads to yet: what is read in steps is recorded step by step
//! and linked when all of it is read. Until then it is nobody's garbage. What never is (a load that was stopped) stays
//! until the process ends; its files are within the disk budget as all are.

use super::commit::{Applied, Change, apply};
use super::database::{Store, lock};
use super::error::Result;
use super::segment::SegmentId;

impl Store {
    /// Applies changes in one transaction.
    pub(super) fn apply(&self, changes: &[Change]) -> Result<Applied> {
        // Before they are in the database and until their link is: a collection in between finds them here.
        self.note_recorded(changes);
        let applied = self.transaction(|tx| apply(tx, changes))?;
        self.note_linked(changes);
        Ok(applied)
    }

    pub(super) fn unlinked_segments(&self) -> Vec<SegmentId> {
        lock(&self.unlinked).keys().copied().collect()
    }

    fn note_recorded(&self, changes: &[Change]) {
        for change in changes {
            if let Change::AddSegment(new) = change {
                lock(&self.unlinked).insert(new.id(), new.parent);
            }
        }
    }

    /// Whatever a link reaches is kept by it from now on.
    fn note_linked(&self, changes: &[Change]) {
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
    }
}
