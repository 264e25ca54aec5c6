//! Lanes: sequences of the engine, each with a state of its own and at most one question that is read or answered on it.

use std::collections::VecDeque;

use crate::engine::protocol::{Cancel, SequenceId};
use crate::runtime::path::Path;
use crate::runtime::segments::Step;
use crate::server::answer::Answer;
use crate::server::ask::Ask;
use crate::server::said::Usage;

/// What the engine is doing for a question.
pub(super) enum Doing {
    /// Scoring the prompt, for a request that wants to know how likely it is: the command.
    Scoring(u64),
    /// Putting state back: the command, and the path that is live then.
    Restoring(u64, Path),
    /// Reading a step, or answering the last one.
    Running(u64, Step),
}

impl Doing {
    /// The command it waits for.
    pub(super) fn command(&self) -> u64 {
        match self {
            Doing::Scoring(id) | Doing::Restoring(id, _) | Doing::Running(id, _) => *id,
        }
    }
}

/// A question that has the engine.
pub(super) struct Running {
    pub ask: Ask,
    pub doing: Doing,
    pub steps: VecDeque<Step>,
    pub answer: Answer,
    /// Prompt tokens that have been read.
    pub read: u64,
    pub usage: Usage,
    /// Something was added to what is kept.
    pub grown: bool,
    pub attempts: u32,
    /// Ends its jobs: the client is gone, or a stop text was written.
    pub cancel: Cancel,
}

impl Running {
    /// Where in its text state will be kept that is not yet: the end of what is being read, and of what is read after it, but
    /// for the answer's.
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

/// A sequence of the engine.
pub(super) struct Lane {
    pub sequence: SequenceId,
    /// What its state has absorbed.
    pub live: Path,
    /// All of that is kept among the requests, or on its way there; what builds on anything else cannot be.
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

/// All of them.
#[derive(Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    /// So many empty ones.
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

    /// Takes the questions out of all lanes, which are gone then.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Running>> {
        std::mem::take(&mut self.0).into_iter().filter_map(|l| l.running)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Running> {
        self.0.iter().filter_map(|l| l.running.as_deref())
    }

    /// The lane that a command belongs to.
    pub(super) fn of(&self, command: u64) -> Option<usize> {
        self.0.iter().position(|l| l.running.as_ref().is_some_and(|r| r.doing.command() == command))
    }

    /// The question that a job belongs to.
    pub(super) fn job(&mut self, command: u64) -> Option<&mut Running> {
        let at = self.of(command)?;
        self.0.get_mut(at)?.running.as_deref_mut().filter(|r| matches!(&r.doing, Doing::Running(..)))
    }

    /// The engine has given a state up for others' memory. What was just begun on it fails, and is planned anew.
    pub(super) fn evicted(&mut self, sequence: SequenceId) {
        if let Some(lane) = self.0.iter_mut().find(|l| l.sequence == sequence) {
            lane.live = Path::default();
        }
    }

    /// Takes a question off its lane.
    pub(super) fn take(&mut self, at: usize) -> Option<Box<Running>> {
        self.0.get_mut(at)?.running.take()
    }

    /// What is live and not at work.
    pub(super) fn live(&self) -> Vec<Path> {
        self.0.iter().filter(|l| l.is_idle() && !l.is_empty()).map(|l| l.live.clone()).collect()
    }

    /// Idle lanes that hold state, the one used longest ago first.
    pub(super) fn idle(&self) -> Vec<usize> {
        let mut idle: Vec<usize> =
            (0..self.0.len()).filter(|at| self.0.get(*at).is_some_and(|l| l.is_idle() && !l.is_empty())).collect();
        idle.sort_by_key(|at| self.0.get(*at).map(|l| l.used));
        idle
    }

    /// The lane for a question that begins with `base`: the idle one whose state that is. Where there is none, and the state can
    /// be put back: the one that shares more of it than it would lose, else an empty one, else the one used longest ago.
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

    /// The question that is reading what `ask` begins with, at least `least` bytes further than where it would begin itself: the
    /// lane, and where in the text the state is that it then can have.
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

    /// Whether a lane holds by now at least `least` bytes more of what `ask` begins with than it would begin with itself. Only texts
    /// that are long enough are looked through.
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
    fn a_question_goes_where_its_state_is_or_where_least_is_lost() {
        let rules: &[Token] = &[1; 50];
        let (short, long) = (path(&[rules, &[2; 10]]), path(&[rules, &[3; 90]]));
        let lanes = lanes(&[path(&[&[9; 5]]), long.clone(), short.clone(), Path::default()]);
        // The state itself, and nothing else if it cannot be put back.
        assert_eq!(lanes.place_for(&short, false), Some(2));
        assert_eq!(lanes.place_for(&path(&[rules]), false), None);
        // What shares more than it loses; one that would lose more is left alone, and an empty one is taken.
        assert_eq!(lanes.place_for(&path(&[rules, &[4; 3]]), true), Some(2));
        assert_eq!(lanes.place_for(&path(&[&[7; 4]]), true), Some(3));
        assert_eq!(lanes.place_for(&Path::default(), true), Some(3));
        assert_eq!(lanes.idle(), [0, 1, 2]);
        let full = self::lanes(&[long.clone(), path(&[&[9; 5]])]);
        assert_eq!(full.place_for(&path(&[rules, &[4; 3]]), true), Some(0));
        assert_eq!(full.place_for(&path(&[&[7; 4]]), true), Some(0));
    }
}
