//! The end of a job, and its results.

use serde::{Deserialize, Serialize};

use super::{JobStats, Likely, LookedAt, MemoryInfo, StateImage, exact};
use crate::core::transcript::Finish;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Read,
    Stop,
    Length,
    Context,
    Repeats,
    /// State and events agree: everything reported is in the state, nothing else.
    Cancelled,
}

impl Ended {
    pub fn finish(self) -> Finish {
        match self {
            Ended::Stop | Ended::Read => Finish::Stop,
            Ended::Length => Finish::Length,
            Ended::Context => Finish::Context,
            Ended::Repeats => Finish::Repeats,
            Ended::Cancelled => Finish::Stopped,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct JobDone {
    pub ended: Ended,
    /// Prompt tokens in the state now; fewer than requested if cancelled during prefill.
    pub prompt_in_state: u64,
    /// Generated tokens in the state now. The next job must repeat the other reported ones (at most one: the last
    /// drawn).
    pub generated_in_state: u64,
    /// On request. Covers exactly the state.
    pub image: Option<StateImage>,
    pub stats: JobStats,
    pub looked_at: LookedAt,
    /// For each list of [`Scoring::hidden`](super::Scoring::hidden) the natural logarithm of the probability of each
    /// token but the first; fewer lists if cancelled.
    #[serde(with = "exact")]
    pub scored: Vec<Vec<f32>>,
    /// For each token but the first, with nothing hidden, if [`Scoring::likely`](super::Scoring::likely) is set.
    pub likely: Vec<Likely>,
    pub memory: MemoryInfo,
}

impl JobDone {
    pub fn new(ended: Ended) -> JobDone {
        JobDone {
            ended,
            prompt_in_state: 0,
            generated_in_state: 0,
            image: None,
            stats: JobStats::default(),
            looked_at: LookedAt::default(),
            scored: Vec::new(),
            likely: Vec::new(),
            memory: MemoryInfo::default(),
        }
    }
}
