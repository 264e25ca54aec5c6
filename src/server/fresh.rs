//! State on its way to disk. Readers get it from memory meanwhile, so that no request waits for a disk.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::protocol::StateImage;
use crate::store::{NewSegment, SegmentId, TextBoundary, ending_in};

/// A segment and its state from the engine. Shares its bytes with the writer.
#[derive(Debug)]
pub(super) struct FreshState {
    pub content: NewSegment,
    pub image: StateImage,
}

impl FreshState {
    fn bytes(&self) -> u64 {
        self.image.bytes()
    }
}

/// Pending writes, by segment. Cheap to clone: a clone is a snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct Fresh {
    states: Arc<HashMap<SegmentId, Arc<FreshState>>>,
    bytes: u64,
}

impl Fresh {
    /// Adds a state, unless the sum would exceed `most` bytes: a hanging disk must not fill the memory.
    pub(super) fn add(&mut self, state: FreshState, most: u64) {
        let bytes = state.bytes();
        if self.bytes + bytes <= most {
            self.bytes += bytes;
            let before = Arc::make_mut(&mut self.states).insert(state.content.id(), Arc::new(state));
            self.bytes -= before.map_or(0, |s| s.bytes());
        }
    }

    /// The state is on disk, or given up.
    pub(super) fn remove(&mut self, id: &SegmentId) {
        if self.states.contains_key(id) {
            let gone = Arc::make_mut(&mut self.states).remove(id);
            self.bytes -= gone.map_or(0, |s| s.bytes());
        }
    }

    /// Segments with a state that ends in `text` before its last byte, and a recorded text that matches `text` up to
    /// there; the deepest first.
    pub(super) fn under(&self, fingerprint: &str, text: &str) -> Vec<SegmentId> {
        let has_end = |s: &FreshState| s.image.end.is_some() && s.content.fingerprint == fingerprint;
        let ends = self.states.iter().filter(|(_, s)| has_end(s)).map(|(id, s)| (s.content.boundary, *id));
        let mut ends: Vec<(TextBoundary, SegmentId)> = ends.collect();
        ends.sort_unstable_by_key(|(boundary, _)| boundary.bytes);
        ending_in(text, ends)
    }

    /// The states up to and with that of `tip`, root first, as far as they are in memory, and the segment on disk that
    /// they follow.
    pub(super) fn path(&self, tip: SegmentId) -> (Option<SegmentId>, Vec<Arc<FreshState>>) {
        let (mut next, mut path) = (Some(tip), Vec::new());
        while let Some(state) = next.and_then(|id| self.states.get(&id)) {
            next = state.content.parent;
            path.push(Arc::clone(state));
        }
        path.reverse();
        (next, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor};
    use crate::store::SegmentKind;

    fn state(parent: Option<SegmentId>, start: u64, text: &str, ends: bool) -> FreshState {
        let tensor = ImageTensor { name: "k".into(), dtype: Dtype::U8, shape: vec![10], data: vec![0; 10].into() };
        let mut image = StateImage::default();
        image.rows.tensors.push(tensor);
        image.end = ends.then(CheckpointImage::default);
        let content = NewSegment {
            fingerprint: "f".into(),
            parent,
            start,
            prompt: vec![u32::try_from(text.len()).unwrap()],
            completion: Vec::new(),
            boundary: TextBoundary::of(text),
            kind: SegmentKind::Turn,
        };
        FreshState { content, image }
    }

    #[test]
    fn what_is_being_written_is_found_by_its_text_the_deepest_first() {
        let mut fresh = Fresh::default();
        let on_disk = SegmentId([7; 32]);
        let first = state(Some(on_disk), 5, "one ", true);
        let first_id = first.content.id();
        let second = state(Some(first_id), 6, "one two ", false);
        let second_id = second.content.id();
        let third = state(Some(second_id), 7, "one two three ", true);
        let third_id = third.content.id();
        for s in [first, second, third, state(None, 0, "other ", true)] {
            fresh.add(s, 1_000);
        }
        // The second has no state at its end, but its child has.
        assert_eq!(fresh.under("f", "one two three four"), [third_id, first_id]);
        assert_eq!(fresh.under("f", "one two three "), [first_id]);
        assert_eq!(fresh.under("g", "one two three four"), []);
        let (stored, path) = fresh.path(third_id);
        assert_eq!(stored, Some(on_disk));
        assert_eq!(path.iter().map(|s| s.content.start).collect::<Vec<_>>(), [5, 6, 7]);
        let before = fresh.clone();
        fresh.remove(&third_id);
        assert_eq!(fresh.under("f", "one two three four"), [first_id]);
        assert_eq!(before.under("f", "one two three four").len(), 2);
    }

    #[test]
    fn no_more_is_held_than_allowed_and_the_same_state_counts_once() {
        let mut fresh = Fresh::default();
        fresh.add(state(None, 0, "a", true), 25);
        fresh.add(state(None, 0, "a", true), 25);
        fresh.add(state(None, 0, "ab", true), 25);
        assert_eq!((fresh.bytes, fresh.states.len()), (20, 2));
        fresh.add(state(None, 0, "abc", true), 25);
        assert_eq!((fresh.bytes, fresh.states.len()), (20, 2));
        let ids: Vec<SegmentId> = fresh.states.keys().copied().collect();
        ids.iter().for_each(|id| fresh.remove(id));
        assert_eq!((fresh.bytes, fresh.states.len()), (0, 0));
    }
}
