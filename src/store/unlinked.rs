//! Segments that this process has recorded and not linked yet. A long text is recorded step by step and linked at its
//! end; until then its segments must not be collected. Segments of a stopped load stay until the process ends, within
//! the disk budget.

use super::commit::{Applied, Change, apply};
use super::database::{Store, lock};
use super::error::Result;
use super::segment::SegmentId;

impl Store {
    pub(super) fn apply(&self, changes: &[Change]) -> Result<Applied> {
        // Noted before the transaction and until the link, so that a collection in between spares them.
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

    /// A link keeps all segments that it reaches.
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
