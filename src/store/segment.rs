//! Segments: pieces of a model's past, named by their contents. Plain data and the hash that names it; no files.
//!
//! A segment's id is a pure function of the model's fingerprint, the parent's id, and its tokens, with prompt and
//! completion tokens kept apart: the same work has the same name in every session (docs/architecture.md §4).

use std::fmt;

use crate::engine::protocol::{Token, segment_name};

/// Name of a segment: BLAKE3 over everything its state depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub [u8; 32]);

impl SegmentId {
    /// 64 hexadecimal digits, the file's stem.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    pub fn short(&self) -> String {
        self.hex().chars().take(8).collect()
    }

    pub fn from_hex(text: &str) -> Option<SegmentId> {
        blake3::Hash::from_hex(text).ok().map(|h| SegmentId(*h.as_bytes()))
    }

    pub fn compute(fingerprint: &str, parent: Option<&SegmentId>, prompt: &[Token], completion: &[Token]) -> SegmentId {
        SegmentId(segment_name(fingerprint, parent.map(|id| &id.0), prompt, completion))
    }

    /// The name of imported state: `own` is [`SegmentId::compute`] of the same tokens, `origin` names the file.
    /// Prefill of those tokens here gives another name, so the state serves only the sessions of that file.
    pub(super) fn imported(own: &SegmentId, origin: &[u8; 32]) -> SegmentId {
        let mut hash = blake3::Hasher::new_derive_key("sala-chat imported segment 1");
        hash.update(origin).update(&own.0);
        SegmentId(*hash.finalize().as_bytes())
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.short())
    }
}

/// Where a segment's end lies in the rendered prompt: shows what a new rendering leaves unchanged without tokenizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBoundary {
    /// Bytes of the rendered text that the path up to here covers.
    pub bytes: u64,
    /// BLAKE3 of those bytes.
    pub hash: [u8; 32],
}

impl TextBoundary {
    /// A boundary no text has, for a state that ends inside a character: prefill then starts from an earlier segment.
    /// Its length is the largest that the database can hold.
    pub const NOWHERE: TextBoundary = TextBoundary { bytes: i64::MAX as u64, hash: [0; 32] };

    pub fn of(rendered: &str) -> TextBoundary {
        TextBoundary { bytes: rendered.len() as u64, hash: *blake3::hash(rendered.as_bytes()).as_bytes() }
    }
}

/// In the order of their numbers in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// A question and its answer: thinned with age.
    Turn,
    /// A piece of a longer document, not its end: thinned first.
    DocumentPart,
    /// End of a document, or of the system text: never thinned.
    DocumentEnd,
}

impl SegmentKind {
    const ALL: [SegmentKind; 3] = [SegmentKind::Turn, SegmentKind::DocumentPart, SegmentKind::DocumentEnd];

    pub(super) fn code(self) -> i64 {
        self as i64
    }

    pub(super) fn from_code(code: i64) -> Option<SegmentKind> {
        SegmentKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// On disk and, as far as is known, whole.
    Kept { bytes: u64 },
    /// Why is a phrase: `thinned`, `damaged: …`, `not written: disk full`.
    Missing { why: String },
}

impl Stored {
    pub fn bytes(&self) -> u64 {
        match self {
            Stored::Kept { bytes } => *bytes,
            Stored::Missing { .. } => 0,
        }
    }

    pub fn is_kept(&self) -> bool {
        matches!(self, Stored::Kept { .. })
    }
}

/// A segment to be recorded. Its tokens are kept in the database whether or not its state is.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSegment {
    /// [`crate::engine::protocol::ModelInfo::fingerprint`].
    pub fingerprint: String,
    /// `None` at position 0.
    pub parent: Option<SegmentId>,
    pub start: u64,
    pub prompt: Vec<Token>,
    /// Tokens generated after them that are in the state.
    pub completion: Vec<Token>,
    pub boundary: TextBoundary,
    pub kind: SegmentKind,
}

impl NewSegment {
    pub fn tokens(&self) -> u64 {
        (self.prompt.len() + self.completion.len()) as u64
    }

    pub fn id(&self) -> SegmentId {
        SegmentId::compute(&self.fingerprint, self.parent.as_ref(), &self.prompt, &self.completion)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub id: SegmentId,
    pub content: NewSegment,
    pub rows: Stored,
    pub end: Stored,
    pub used_ms: i64,
}

impl Segment {
    pub fn tokens(&self) -> u64 {
        self.content.tokens()
    }

    pub fn end_position(&self) -> u64 {
        self.content.start + self.tokens()
    }
}

/// How many segments of `path` (root first) cover a prefix of `rendered`, by their text boundaries.
pub fn unchanged_prefix(path: &[Segment], rendered: &str) -> usize {
    let mut beginning = Beginning::of(rendered);
    // If a boundary differs, a later one can agree only through a hash collision.
    path.iter().take_while(|segment| beginning.ends_at(segment.content.boundary)).count()
}

/// The entries of `ends`, in the order of their bytes, that match the beginning of `rendered`; the longest first. An end
/// at its last byte or beyond matches nothing.
pub fn ending_in<T>(rendered: &str, ends: impl IntoIterator<Item = (TextBoundary, T)>) -> Vec<T> {
    let mut beginning = Beginning::of(rendered);
    let inside = ends.into_iter().take_while(|(boundary, _)| boundary.bytes < rendered.len() as u64);
    let mut found: Vec<T> = inside.filter_map(|(boundary, of)| beginning.ends_at(boundary).then_some(of)).collect();
    found.reverse();
    found
}

/// Beginnings of a text, each longer than the one before, by their hashes.
struct Beginning<'a> {
    rest: &'a [u8],
    bytes: u64,
    hash: blake3::Hasher,
}

impl Beginning<'_> {
    fn of(text: &str) -> Beginning<'_> {
        Beginning { rest: text.as_bytes(), bytes: 0, hash: blake3::Hasher::new() }
    }

    /// Whether the text up to a boundary is that of the boundary. One outside or before the last one matches nothing.
    fn ends_at(&mut self, boundary: TextBoundary) -> bool {
        let more = boundary.bytes.checked_sub(self.bytes).and_then(|more| usize::try_from(more).ok());
        let Some((more, rest)) = more.and_then(|more| self.rest.split_at_checked(more)) else { return false };
        self.hash.update(more);
        (self.rest, self.bytes) = (rest, boundary.bytes);
        *self.hash.finalize().as_bytes() == boundary.hash
    }
}

pub(super) fn tokens_to_bytes(tokens: &[Token]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

pub(super) fn tokens_from_bytes(bytes: &[u8]) -> Option<Vec<Token>> {
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.iter().map(|w| Token::from_le_bytes(*w)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_exactly_where_the_state_differs() {
        let id = SegmentId::compute("m", None, &[1, 2], &[3]);
        assert_eq!(id, SegmentId::compute("m", None, &[1, 2], &[3]));
        let others = [
            SegmentId::compute("n", None, &[1, 2], &[3]),
            SegmentId::compute("m", Some(&id), &[1, 2], &[3]),
            SegmentId::compute("m", None, &[1], &[2, 3]),
            SegmentId::compute("m", None, &[1, 2, 3], &[]),
            SegmentId::compute("m", None, &[1, 2], &[4]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert!(*other != id && !others[..i].contains(other), "case {i}");
        }
        assert_eq!(SegmentId::from_hex(&id.hex()), Some(id));
        assert_eq!(SegmentId::from_hex("zz"), None);
    }
}
