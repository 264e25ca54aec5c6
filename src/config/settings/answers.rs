//! The answer settings of one session, as fields. What reads and changes them by the rows of the table is in [`super::session`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::words::ThinkMode;
use crate::engine::protocol::{Sampling, SpecMode};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How tokens are chosen. Its `seed` is not used: see [`Settings::seed`].
    pub sampling: Sampling,
    /// `None`: a new one for each answer, shown with it.
    pub seed: Option<u64>,
    pub max_tokens: u64,
    pub stop_loops: bool,
    pub think: ThinkMode,
    /// Tokens of thought after which the answer begins; 0 is no limit.
    pub thinking_budget: u64,
    pub spec: SpecMode,
    /// The preset these came from, until one is changed.
    pub preset: String,
    /// Settings that hold for this run only, with the session's own value, which is kept.
    #[serde(skip)]
    pub for_run: BTreeMap<&'static str, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sampling: Sampling::default(),
            seed: None,
            max_tokens: 8192,
            stop_loops: true,
            think: ThinkMode::Auto,
            thinking_budget: 0,
            spec: SpecMode::Auto,
            preset: "default".into(),
            for_run: BTreeMap::new(),
        }
    }
}
