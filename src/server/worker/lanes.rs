//! Slots: sequences of the engine, each with its own state and at most one request in prefill or decode.

use std::collections::VecDeque;

use crate::engine::protocol::{Cancel, SequenceId};
use crate::runtime::path::Path;
use crate::runtime::segments::Step;
use crate::server::answer::Answer;
use crate::server::ask::Ask;
use crate::server::notice::Usage;

pub(super) enum Doing {
    /// Scoring the prompt, for its log-probabilities: the command.
    Scoring(u64),
    /// Restoring state: the command, and the path that is live afterwards.
    Restoring(u64, Path),
    /// Prefill of a step, or decode after the last one.
    Running(u64, Step),
}

impl Doing {
    pub(super) fn command(&self) -> u64 {
        match self {
            Doing::Scoring(id) | Doing::Restoring(id, _) | Doing::Running(id, _) => *id,
        }
    }
}

pub(super) struct Running {
    pub ask: Ask,
    pub doing: Doing,
    pub steps: VecDeque<Step>,
    pub answer: Answer,
    /// Prompt tokens in the state so far.
    pub read: u64,
    pub usage: Usage,
    /// The request has added kept state.
    pub grown: bool,
    pub attempts: u32,
    /// Ends its jobs: the client disconnected, or a stop text appeared.
    pub cancel: Cancel,
}

impl Running {
    /// Where in its text further state will be kept: the ends of the running step and of the later ones, without the
    /// answer's.
    fn ends_to_come(&self) -> impl Iterator<Item = usize> {
        let now = match &self.doing {
            Doing::Running(_, step) => Some(step.text_end),
            Doing::Scoring(_) | Doing::Restoring(..) => None,
        };
        let all = now.into_iter().chain(self.steps.iter().map(|s| s.text_end)).collect::<Vec<_>>();
        let but_last = all.len().saturating_sub(1);
        all.into_iter().take(but_last)
    }
}

pub(super) struct Lane {
    pub sequence: SequenceId,
    /// The path that its state has absorbed.
    pub live: Path,
    /// The whole live path is kept among the requests, or on its way to disk; state on top of any other path cannot be
    /// kept.
    pub kept: bool,
    pub running: Option<Box<Running>>,
    /// When its last answer began, counted in answers.
    pub used: u64,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    fn is_empty(&self) -> bool {
        self.live.segments().is_empty()
    }
}

#[derive(Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    pub(super) fn new(count: u32) -> Lanes {
        let lane = |n| Lane { sequence: SequenceId(n), live: Path::default(), kept: true, running: None, used: 0 };
        Lanes((0..count).map(lane).collect())
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Lane> {
        self.0.get_mut(at)
    }

    pub(super) fn get(&self, at: usize) -> Option<&Lane> {
        self.0.get(at)
    }

    /// Takes the requests out of all slots, and removes the slots.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Running>> {
        std::mem::take(&mut self.0).into_iter().filter_map(|l| l.running)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Running> {
        self.0.iter().filter_map(|l| l.running.as_deref())
    }

    pub(super) fn of(&self, command: u64) -> Option<usize> {
        self.0.iter().position(|l| l.running.as_ref().is_some_and(|r| r.doing.command() == command))
    }

    pub(super) fn job(&mut self, command: u64) -> Option<&mut Running> {
        let at = self.of(command)?;
        self.0.get_mut(at)?.running.as_deref_mut().filter(|r| matches!(&r.doing, Doing::Running(..)))
    }

    /// The engine gave a state up to free memory. A request that has just begun on it fails, and is planned again.
    pub(super) fn evicted(&mut self, sequence: SequenceId) {
        if let Some(lane) = self.0.iter_mut().find(|l| l.sequence == sequence) {
            lane.live = Path::default();
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Option<Box<Running>> {
        self.0.get_mut(at)?.running.take()
    }

    /// Live paths of idle slots.
    pub(super) fn live(&self) -> Vec<Path> {
        self.0.iter().filter(|l| l.is_idle() && !l.is_empty()).map(|l| l.live.clone()).collect()
    }

    /// Idle slots with state, least recently used first.
    pub(super) fn idle(&self) -> Vec<usize> {
        let mut idle: Vec<usize> =
            (0..self.0.len()).filter(|at| self.0.get(*at).is_some_and(|l| l.is_idle() && !l.is_empty())).collect();
        idle.sort_by_key(|at| self.0.get(*at).map(|l| l.used));
        idle
    }

    /// The slot for a request that begins with `base`: the idle one with exactly that state. Without one, and if the
    /// state can be restored: the one that shares more of it than it would lose, else an empty one, else the least
    /// recently used.
    pub(super) fn place_for(&self, base: &Path, can_be_put_back: bool) -> Option<usize> {
        let idle = || self.0.iter().enumerate().filter(|(_, l)| l.is_idle());
        let same = idle().find(|(_, l)| !l.is_empty() && l.live.head() == base.head());
        if same.is_some() || !can_be_put_back {
            return same.map(|(at, _)| at);
        }
        let shared = |l: &Lane| base.prefix(l.live.common(base)).position();
        let kin = idle().max_by_key(|(_, l)| shared(l)).filter(|(_, l)| {
            let shared = shared(l);
            shared > 0 && l.live.position() - shared <= shared
        });
        kin.or_else(|| idle().min_by_key(|(_, l)| (!l.is_empty(), l.used))).map(|(at, _)| at)
    }

    /// A running prefill that shares at least `least` bytes with `ask` after `from`, where `ask` would begin itself:
    /// its slot, and where in the text the usable state will end.
    pub(super) fn ahead_of(&self, ask: &Ask, from: usize, least: usize) -> Option<(usize, usize)> {
        let text = &ask.prompt.rendered.text;
        let same = |running: &Running, end: usize| {
            let theirs = running.ask.prompt.rendered.text.get(..end);
            end < text.len() && theirs.is_some_and(|t| text.get(..end) == Some(t))
        };
        let ahead = self.0.iter().enumerate().filter_map(|(at, lane)| {
            let running = lane.running.as_deref().filter(|r| r.ask.prompt.tokens.is_none() && r.ask.keep)?;
            let end = running.ends_to_come().filter(|end| *end >= from + least && same(running, *end)).max()?;
            Some((at, end))
        });
        ahead.filter(|_| ask.prompt.tokens.is_none()).max_by_key(|(_, end)| *end)
    }

    /// Whether a slot by now holds at least `least` bytes of `ask` after `from`, where `ask` would begin itself. The
    /// length is checked first, since the comparison of texts is slow.
    pub(super) fn have_more(&self, ask: &Ask, from: usize, least: usize) -> bool {
        let text = &ask.prompt.rendered.text;
        let holds =
            |path: &Path| path.text_bytes() >= from + least && path.unchanged(text).text_bytes() >= from + least;
        ask.prompt.tokens.is_none() && self.0.iter().any(|lane| lane.kept && holds(&lane.live))
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
            let lane = lanes.get_mut(i).unwrap();
            (lane.live, lane.used) = (path.clone(), 10 + i as u64);
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
