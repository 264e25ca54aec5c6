//! The segments that a model state has absorbed, root first. Pure bookkeeping without store or engine.
//!
//! Invariant: each segment's parent is the one before it, and its first token follows the last one before. The id of
//! the last segment therefore identifies the path.

use std::sync::Arc;

use crate::engine::protocol::Token;
use crate::store::{NewSegment, Segment, SegmentId, Stored, TextBoundary, unchanged_prefix};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    segments: Vec<Segment>,
}

impl Path {
    /// The longest well-formed prefix of `segments`.
    pub fn new(segments: Vec<Segment>) -> Path {
        let mut path = Path::default();
        let _whole = segments.into_iter().all(|segment| path.append(segment));
        path
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub fn head(&self) -> Option<SegmentId> {
        self.segments.last().map(|s| s.id)
    }

    pub fn position(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end_position)
    }

    /// Bytes of rendered text the path covers. A state that ends inside a character has no place in the text
    /// ([`TextBoundary::NOWHERE`]); then the segment before it counts.
    pub fn text_bytes(&self) -> usize {
        let known = self.segments.iter().rev().map(|s| s.content.boundary).find(|b| *b != TextBoundary::NOWHERE);
        known.map_or(0, |b| usize::try_from(b.bytes).unwrap_or(usize::MAX))
    }

    pub fn tokens(&self) -> Arc<Vec<Token>> {
        let mut all = Vec::with_capacity(self.position() as usize);
        for s in &self.segments {
            all.extend_from_slice(&s.content.prompt);
            all.extend_from_slice(&s.content.completion);
        }
        Arc::new(all)
    }

    /// The last completion; without one, the last prompt.
    pub fn last_tokens(&self) -> &[Token] {
        let last = self.segments.iter().rev().map(|s| match s.content.completion.as_slice() {
            [] => s.content.prompt.as_slice(),
            completion => completion,
        });
        last.into_iter().find(|tokens| !tokens.is_empty()).unwrap_or(&[])
    }

    pub fn common(&self, other: &Path) -> usize {
        self.segments.iter().zip(&other.segments).take_while(|(a, b)| a.id == b.id).count()
    }

    pub fn prefix(&self, count: usize) -> Path {
        Path { segments: self.segments.iter().take(count).cloned().collect() }
    }

    /// The prefix with unchanged text under a new rendering.
    pub fn unchanged(&self, rendered: &str) -> Path {
        self.prefix(unchanged_prefix(&self.segments, rendered))
    }

    /// Adds a recorded segment. False, and nothing is added, if it does not follow the last one.
    pub fn append(&mut self, segment: Segment) -> bool {
        let follows = segment.content.parent == self.head() && segment.content.start == self.position();
        self.segments.extend(Some(segment).filter(|_| follows));
        follows
    }

    /// Adds a segment without knowing whether its state is on disk.
    pub fn push(&mut self, content: NewSegment) {
        let missing = || Stored::Missing { why: "not written yet".into() };
        self.segments.push(Segment { id: content.id(), content, rows: missing(), end: missing(), used_ms: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{SegmentKind, TextBoundary};

    fn segment(path: &Path, prompt: &[Token], generated: &[Token], text: &str) -> NewSegment {
        NewSegment {
            fingerprint: "f".into(),
            parent: path.head(),
            start: path.position(),
            prompt: prompt.to_vec(),
            completion: generated.to_vec(),
            boundary: TextBoundary::of(text),
            kind: SegmentKind::Turn,
        }
    }

    #[test]
    fn a_changed_past_leads_back_to_the_last_unchanged_segment() {
        let mut p = Path::default();
        p.push(segment(&p, &[1, 2], &[], "user: a "));
        p.push(segment(&p, &[3], &[4, 5], "user: a bot: (hm) b "));
        assert_eq!((p.position(), p.tokens().as_slice()), (5, [1, 2, 3, 4, 5].as_slice()));
        assert_eq!(p.unchanged("user: a bot: (hm) b user: c").position(), 5);
        assert_eq!(p.unchanged("user: a bot: b user: c").position(), 2);
        assert_eq!(p.unchanged("user: other").position(), 0);
    }

    #[test]
    fn paths_share_what_has_the_same_name_only() {
        let mut a = Path::default();
        a.push(segment(&a, &[1, 2], &[], "x"));
        let mut b = a.clone();
        a.push(segment(&a, &[3], &[4], "xy"));
        b.push(segment(&b, &[3, 4], &[], "xy"));
        assert_eq!(a.common(&b), 1);
        assert_eq!(a.common(&a.clone()), 2);
    }

    #[test]
    fn segments_that_do_not_follow_each_other_are_cut_off() {
        let mut a = Path::default();
        a.push(segment(&a, &[1], &[], "x"));
        a.push(segment(&a, &[2], &[], "xy"));
        let broken: Vec<Segment> = a.segments().iter().rev().cloned().collect();
        assert_eq!(Path::new(broken), Path::default());
        assert_eq!(Path::new(a.segments().to_vec()), a);
    }
}
