//! A sequence: the location of its state, its job, and its task queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::speculate::Parked;
use super::speed::Speed;
use crate::backend::draft::DraftOps;
use crate::engine::protocol::{
    CheckpointImage, Ended, EngineFault, Job, JobStats, Likely, RowSource, SequenceId, Token,
};
use crate::model::Sequence;

pub(super) struct Aside<B: DraftOps> {
    pub(super) sequence: Sequence<B>,
    pub(super) conversation: Parked<B>,
}

pub(super) enum Held<B: DraftOps> {
    /// Empty, without memory.
    Nothing,
    InHand,
    Aside(Box<Aside<B>>),
}

pub(super) struct Slot<B: DraftOps> {
    pub(super) held: Held<B>,
    pub(super) run: Option<Run>,
    pub(super) queue: VecDeque<Task>,
    pub(super) may_evict: bool,
    /// Logical time of its last task; greater is later.
    pub(super) used: u64,
    /// Since when its next task waits for memory.
    pub(super) waits: Option<u64>,
}

impl<B: DraftOps> Slot<B> {
    pub(super) fn new(held: Held<B>) -> Self {
        Slot { held, run: None, queue: VecDeque::new(), may_evict: false, used: 0, waits: None }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.run.is_none() && self.queue.is_empty()
    }

    pub(super) fn aside(&mut self) -> Option<&mut Aside<B>> {
        match &mut self.held {
            Held::Aside(aside) => Some(aside),
            Held::InHand | Held::Nothing => None,
        }
    }
}

pub(super) enum Task {
    Restore {
        id: u64,
        keep: u64,
        rows: Vec<Arc<dyn RowSource>>,
        end: Option<CheckpointImage>,
        history: Arc<Vec<Token>>,
    },
    Run(Job),
    Lost {
        id: u64,
        fault: EngineFault,
    },
    /// Waits in the queues of both sequences; runs when it is the next task of both.
    Fork {
        id: u64,
        from: SequenceId,
        to: SequenceId,
    },
    Release,
    MayEvict,
}

impl Task {
    pub(super) fn id(&self) -> Option<u64> {
        match self {
            Task::Restore { id, .. } | Task::Fork { id, .. } | Task::Lost { id, .. } => Some(*id),
            Task::Run(job) => Some(job.id),
            Task::Release | Task::MayEvict => None,
        }
    }

    pub(super) fn is_fork(&self, fork: u64) -> bool {
        matches!(self, Task::Fork { id, .. } if *id == fork)
    }
}

pub(super) struct Run {
    pub(super) job: Job,
    pub(super) start: usize,
    pub(super) stage: Stage,
    pub(super) begun: Instant,
    pub(super) speed: Speed,
    pub(super) waited: u64,
    /// The context length of its reservation.
    pub(super) goal: usize,
    pub(super) stalled: bool,
    pub(super) prompt: usize,
    pub(super) stats: JobStats,
    pub(super) likely: Vec<Likely>,
}

pub(super) enum Stage {
    Reading,
    Writing(usize),
    Scoring(Box<Scores>),
}

impl Run {
    pub(super) fn id(&self) -> u64 {
        self.job.id
    }
}

pub(super) struct Scores {
    pub(super) at: usize,
    pub(super) end: CheckpointImage,
    pub(super) rows: usize,
    pub(super) lists: usize,
    /// Finished lists, then the current one.
    pub(super) done: Vec<Vec<f32>>,
    pub(super) now: Vec<f32>,
}

impl Scores {
    pub(super) fn left(&self) -> usize {
        (self.lists - self.done.len()) * self.rows - self.now.len()
    }
}

pub(super) enum Now {
    Continues,
    Stalled,
    Ended(Ended, Vec<Vec<f32>>),
}
