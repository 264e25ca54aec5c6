//! Slots of the engine ([`Slot`]), each with at most one request in prefill or decode.

use std::sync::Arc;

use crate::engine::protocol::{Cancel, SequenceId};
use crate::runtime::link::Slot;
use crate::runtime::path::Path;
use crate::runtime::render::Rendered;
use crate::server::{Ask, Plan};

pub(super) struct Occupant {
    pub client: Cancel,
    rendered: Arc<Rendered>,
    /// Where in its text further state will be kept, in bytes: the ends of the running step and of the later ones,
    /// without the answer's.
    ends: Vec<usize>,
}

pub(super) struct Lane {
    pub slot: Slot,
    /// The whole live path is kept among the requests, or on its way to disk; state on top of any other path cannot be
    /// kept.
    pub kept: bool,
    pub occupant: Option<Occupant>,
    /// When its last answer began, counted in answers.
    used: u64,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.occupant.is_none()
    }

    fn is_empty(&self) -> bool {
        self.slot.live.segments().is_empty()
    }

    /// The state at the end of a step is live.
    pub(super) fn step_ended(&mut self) {
        let live = self.slot.live.text_bytes();
        if let Some(occupant) = &mut self.occupant {
            occupant.ends.retain(|end| *end > live);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefill {
    at: usize,
    used: u64,
    /// Where in the text its state ends, in bytes.
    end: usize,
}

#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    begun: u64,
}

impl Lanes {
    pub(super) fn new(count: u32) -> Lanes {
        let lane = |n| Lane { slot: Slot::of(SequenceId(n)), kept: true, occupant: None, used: 0 };
        Lanes { lanes: (0..count).map(lane).collect(), begun: 0 }
    }

    pub(super) fn at(&mut self, at: usize) -> &mut Lane {
        &mut self.lanes[at]
    }

    /// A request begins in a slot. Its state is kept only on top of kept state.
    pub(super) fn occupy(&mut self, at: usize, ask: &mut Ask, plan: &Plan) {
        self.begun += 1;
        let lane = &mut self.lanes[at];
        lane.used = self.begun;
        lane.kept = match &plan.kept {
            Some(kept) => !kept.of_library,
            None => plan.base.segments().is_empty() || lane.kept,
        };
        ask.keep &= lane.kept;
        let mut ends = Vec::new();
        if ask.keep && ask.prompt.tokens.is_none() && ask.params.score.is_none() {
            ends.extend(plan.steps.iter().map(|s| s.text_end));
            ends.pop();
        }
        lane.slot.begin();
        lane.occupant = Some(Occupant { client: ask.cancel.clone(), rendered: Arc::clone(&ask.prompt.rendered), ends });
    }

    pub(super) fn leave(&mut self, at: usize) {
        self.lanes[at].occupant = None;
    }

    /// Cancels the jobs of requests without a client, or of `all`.
    pub(super) fn cancel(&self, all: bool) {
        let gone = |lane: &&Lane| lane.occupant.as_ref().is_some_and(|o| all || o.client.is_cancelled());
        self.lanes.iter().filter(gone).for_each(|lane| lane.slot.cancel.cancel());
    }

    /// The engine evicted a state to free memory. A request that has just begun on it fails, and is planned again.
    pub(super) fn evicted(&mut self, sequence: SequenceId) {
        if let Some(lane) = self.lanes.iter_mut().find(|l| l.slot.sequence == sequence) {
            lane.slot.lose();
        }
    }

    pub(super) fn live(&self) -> Vec<Path> {
        self.lanes.iter().filter(|l| l.is_idle() && !l.is_empty()).map(|l| l.slot.live.clone()).collect()
    }

    pub(super) fn idle(&self) -> Vec<usize> {
        let idle = self.lanes.iter().enumerate().filter(|(_, l)| l.is_idle() && !l.is_empty());
        idle.map(|(at, _)| at).collect()
    }

    /// The slot for a request that begins with `base`: the idle one with exactly that state. Without one, and if the
    /// state can be restored: the one that shares more of it than it would lose, else an empty one, else the least
    /// recently used.
    pub(super) fn place_for(&self, base: &Path, can_be_put_back: bool) -> Option<usize> {
        let idle = || self.lanes.iter().enumerate().filter(|(_, l)| l.is_idle());
        let same = idle().find(|(_, l)| !l.is_empty() && l.slot.live.head() == base.head());
        if same.is_some() || !can_be_put_back {
            return same.map(|(at, _)| at);
        }
        let shared = |l: &Lane| base.prefix(l.slot.live.common(base)).position();
        let kin = idle().max_by_key(|(_, l)| shared(l)).filter(|(_, l)| {
            let shared = shared(l);
            shared > 0 && l.slot.live.position() - shared <= shared
        });
        kin.or_else(|| idle().min_by_key(|(_, l)| (!l.is_empty(), l.used))).map(|(at, _)| at)
    }

    /// A running prefill that shares at least `least` bytes with `ask` after `from`, where `ask` would begin itself:
    /// up to the last state that `ask` can use.
    pub(super) fn ahead_of(&self, ask: &Ask, from: usize, least: usize) -> Option<Prefill> {
        if ask.prompt.tokens.is_some() || ask.params.score.is_some() {
            return None;
        }
        let text = &ask.prompt.rendered.text;
        let same = |theirs: &str, end: usize| {
            end < text.len() && theirs.get(..end).is_some_and(|t| text.get(..end) == Some(t))
        };
        let ahead = self.lanes.iter().enumerate().filter_map(|(at, lane)| {
            let Occupant { rendered, ends, .. } = lane.occupant.as_ref()?;
            let end = ends.iter().copied().filter(|end| *end >= from + least && same(&rendered.text, *end)).max()?;
            Some(Prefill { at, used: lane.used, end })
        });
        ahead.max_by_key(|prefill| prefill.end)
    }

    /// Whether the state that a request waits for does not exist yet.
    pub(super) fn is_running(&self, prefill: &Prefill) -> bool {
        let lane = self.lanes.get(prefill.at).filter(|lane| lane.used == prefill.used);
        lane.and_then(|lane| lane.occupant.as_ref()).is_some_and(|o| o.ends.contains(&prefill.end))
    }

    /// Whether a slot by now holds at least `least` bytes of `ask` after `from`, where `ask` would begin itself. The
    /// length is checked first, since the comparison of texts is slow.
    pub(super) fn have_more(&self, ask: &Ask, from: usize, least: usize) -> bool {
        let text = &ask.prompt.rendered.text;
        let holds =
            |path: &Path| path.text_bytes() >= from + least && path.unchanged(text).text_bytes() >= from + least;
        let by_text = ask.prompt.tokens.is_none() && ask.params.score.is_none();
        by_text && self.lanes.iter().any(|lane| lane.kept && holds(&lane.slot.live))
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

    fn lanes(live: &[Path]) -> Lanes {
        let mut lanes = Lanes::new(u32::try_from(live.len()).unwrap());
        for (i, path) in live.iter().enumerate() {
            let lane = lanes.at(i);
            (lane.slot.live, lane.used) = (path.clone(), 10 + i as u64);
        }
        lanes
    }

    #[test]
    fn a_question_runs_where_its_state_is_or_where_least_is_lost() {
        let rules: &[Token] = &[1; 50];
        let (short, long) = (path(&[rules, &[2; 10]]), path(&[rules, &[3; 90]]));
        let lanes = lanes(&[path(&[&[9; 5]]), long.clone(), short.clone(), Path::default()]);
        // Only the state itself if it cannot be restored.
        assert_eq!(lanes.place_for(&short, false), Some(2));
        assert_eq!(lanes.place_for(&path(&[rules]), false), None);
        // A slot that shares more than it loses; one that would lose more stays, and an empty one is taken.
        assert_eq!(lanes.place_for(&path(&[rules, &[4; 3]]), true), Some(2));
        assert_eq!(lanes.place_for(&path(&[&[7; 4]]), true), Some(3));
        assert_eq!(lanes.place_for(&Path::default(), true), Some(3));
        assert_eq!(lanes.idle(), [0, 1, 2]);
        let full = self::lanes(&[long.clone(), path(&[&[9; 5]])]);
        assert_eq!(full.place_for(&path(&[rules, &[4; 3]]), true), Some(0));
        assert_eq!(full.place_for(&path(&[&[7; 4]]), true), Some(0));
    }
}
