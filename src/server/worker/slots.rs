//! Slots of the engine ([`Slot`]), each with at most one request in prefill or decode.

use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::engine::protocol::{Cancel, SequenceId};
use crate::runtime::link::Slot;
use crate::runtime::path::Path;
use crate::runtime::render::Rendered;
use crate::server::{Ask, Plan};

/// A request waits for another one's prefill only for at least this many bytes of shared text.
const WORTH_BYTES: usize = 1_024;

struct Occupant {
    client: Cancel,
    rendered: Arc<Rendered>,
    /// Where in its text further state will be kept, in bytes: the ends of the running step and of the later ones,
    /// without the answer's. Other requests wait until one is dropped.
    ends: Vec<Rc<usize>>,
}

pub(super) struct RequestSlot {
    pub engine: Slot,
    /// The whole live path is kept among the requests, or on its way to disk; on any other path no state can be kept.
    pub kept: bool,
    occupant: Option<Occupant>,
    /// When its last answer began, counted in answers.
    used: u64,
}

impl RequestSlot {
    fn is_idle(&self) -> bool {
        self.occupant.is_none()
    }

    fn is_empty(&self) -> bool {
        self.engine.live.segments().is_empty()
    }

    /// The state at the end of a step is live.
    pub(super) fn step_ended(&mut self) {
        let live = self.engine.live.text_bytes();
        if let Some(occupant) = &mut self.occupant {
            occupant.ends.retain(|end| **end > live);
        }
    }
}

#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<RequestSlot>,
    begun: u64,
}

impl Slots {
    pub(super) fn new(count: u32) -> Slots {
        let slot = |n| RequestSlot { engine: Slot::of(SequenceId(n)), kept: true, occupant: None, used: 0 };
        Slots { slots: (0..count).map(slot).collect(), begun: 0 }
    }

    pub(super) fn at(&mut self, at: usize) -> &mut RequestSlot {
        &mut self.slots[at]
    }

    /// A request begins in a slot. Its state is kept only on top of kept state.
    pub(super) fn occupy(&mut self, at: usize, ask: &mut Ask, plan: &Plan) {
        self.begun += 1;
        let slot = &mut self.slots[at];
        slot.used = self.begun;
        slot.kept = match &plan.kept {
            Some(kept) => !kept.of_library,
            None => plan.base.segments().is_empty() || slot.kept,
        };
        ask.keep &= slot.kept;
        let mut ends: Vec<_> =
            plan.steps.iter().map(|s| Rc::new(s.text_end)).filter(|_| ask.keep && ask.is_text()).collect();
        ends.pop();
        slot.engine.begin();
        slot.occupant = Some(Occupant { client: ask.cancel.clone(), rendered: Arc::clone(&ask.prompt.rendered), ends });
    }

    pub(super) fn leave(&mut self, at: usize) {
        self.slots[at].occupant = None;
    }

    /// Cancels the jobs of requests without a client, or of `all`.
    pub(super) fn cancel(&self, all: bool) {
        let gone = |slot: &&RequestSlot| slot.occupant.as_ref().is_some_and(|o| all || o.client.is_cancelled());
        self.slots.iter().filter(gone).for_each(|slot| slot.engine.cancel.cancel());
    }

    /// The engine evicted a state to free memory. A request that has just begun on it fails, and is planned again.
    pub(super) fn evicted(&mut self, sequence: SequenceId) {
        if let Some(slot) = self.slots.iter_mut().find(|l| l.engine.sequence == sequence) {
            slot.engine.lose();
        }
    }

    pub(super) fn live(&self) -> Vec<Path> {
        self.slots.iter().filter(|l| l.is_idle() && !l.is_empty()).map(|l| l.engine.live.clone()).collect()
    }

    pub(super) fn idle(&self) -> Vec<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, l)| l.is_idle() && !l.is_empty());
        idle.map(|(at, _)| at).collect()
    }

    /// The slot for a request that begins with `base`: the idle one with exactly that state. Without one, and if the
    /// state can be restored: the one that shares more of it than it would lose, else an empty one, else the least
    /// recently used.
    pub(super) fn place_for(&self, base: &Path, can_be_put_back: bool) -> Option<usize> {
        let idle = || self.slots.iter().enumerate().filter(|(_, l)| l.is_idle());
        let same = idle().find(|(_, l)| !l.is_empty() && l.engine.live.head() == base.head());
        if same.is_some() || !can_be_put_back {
            return same.map(|(at, _)| at);
        }
        let shared = |l: &RequestSlot| base.prefix(l.engine.live.common(base)).position();
        let kin = idle().max_by_key(|(_, l)| shared(l)).filter(|(_, l)| {
            let shared = shared(l);
            shared > 0 && l.engine.live.position() - shared <= shared
        });
        kin.or_else(|| idle().min_by_key(|(_, l)| (!l.is_empty(), l.used))).map(|(at, _)| at)
    }

    /// The last state that `ask` can use of a running prefill, if it lies far enough after `from`, its own beginning.
    pub(super) fn ahead_of(&self, ask: &Ask, from: usize) -> Option<Weak<usize>> {
        let text = &ask.prompt.rendered.text;
        let same = |theirs: &str, end: usize| {
            end < text.len() && theirs.get(..end).is_some_and(|t| text.get(..end) == Some(t))
        };
        let occupants = self.slots.iter().filter_map(|slot| slot.occupant.as_ref()).filter(|_| ask.is_text());
        let ahead = occupants.filter_map(|Occupant { rendered, ends, .. }| {
            ends.iter().filter(|end| ***end >= from + WORTH_BYTES && same(&rendered.text, ***end)).max()
        });
        ahead.max().map(Rc::downgrade)
    }

    /// Whether a slot by now holds enough of `ask` after `from`, where `ask` would begin itself. The length is checked
    /// first, since the comparison of texts is slow.
    pub(super) fn have_more(&self, ask: &Ask, from: usize) -> bool {
        let text = &ask.prompt.rendered.text;
        let is_enough = |path: &Path| path.text_bytes() >= from + WORTH_BYTES;
        let holds = |path: &Path| is_enough(path) && is_enough(&path.unchanged(text));
        ask.is_text() && self.slots.iter().any(|slot| slot.kept && holds(&slot.engine.live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::Token;
    use crate::store::{NewSegment, SegmentKind, TextBoundary};

    fn path(segments: &[&[Token]]) -> Path {
        let mut path = Path::default();
        for tokens in segments {
            path.push(NewSegment {
                fingerprint: "f".into(),
                parent: path.head(),
                start: path.position(),
                prompt: tokens.to_vec(),
                completion: Vec::new(),
                boundary: TextBoundary::NOWHERE,
                kind: SegmentKind::Turn,
            });
        }
        path
    }

    fn slots(live: &[Path]) -> Slots {
        let mut slots = Slots::new(u32::try_from(live.len()).unwrap());
        for (i, path) in live.iter().enumerate() {
            let slot = slots.at(i);
            (slot.engine.live, slot.used) = (path.clone(), 10 + i as u64);
        }
        slots
    }

    #[test]
    fn a_question_runs_where_its_state_is_or_where_least_is_lost() {
        let rules: &[Token] = &[1; 50];
        let (short, long) = (path(&[rules, &[2; 10]]), path(&[rules, &[3; 90]]));
        let slots = slots(&[path(&[&[9; 5]]), long.clone(), short.clone(), Path::default()]);
        // Only the state itself if it cannot be restored.
        assert_eq!(slots.place_for(&short, false), Some(2));
        assert_eq!(slots.place_for(&path(&[rules]), false), None);
        // A slot that shares more than it loses; one that would lose more stays, and an empty one is taken.
        assert_eq!(slots.place_for(&path(&[rules, &[4; 3]]), true), Some(2));
        assert_eq!(slots.place_for(&path(&[&[7; 4]]), true), Some(3));
        assert_eq!(slots.place_for(&Path::default(), true), Some(3));
        assert_eq!(slots.idle(), [0, 1, 2]);
        let full = self::slots(&[long.clone(), path(&[&[9; 5]])]);
        assert_eq!(full.place_for(&path(&[rules, &[4; 3]]), true), Some(0));
        assert_eq!(full.place_for(&path(&[&[7; 4]]), true), Some(0));
    }
}
