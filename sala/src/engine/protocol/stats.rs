//! Measurements of a job.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecStats {
    pub rounds: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub mean_accept_length: f64,
    pub eagle_rounds: u64,
    pub ngram_rounds: u64,
    pub plain_rounds: u64,
    /// `[depth]`: (tried, accepted) at draft position depth + 1.
    pub per_position: Vec<(u64, u64)>,
    /// Time of the decode rounds divided by that of plain steps; 0 if unknown.
    pub time_vs_plain: f64,
}

impl SpecStats {
    pub fn add(&mut self, o: &SpecStats) {
        let emitted = self.mean_accept_length * self.rounds as f64 + o.mean_accept_length * o.rounds as f64;
        let weighted = self.time_vs_plain * self.rounds as f64 + o.time_vs_plain * o.rounds as f64;
        self.rounds += o.rounds;
        self.drafted += o.drafted;
        self.accepted += o.accepted;
        self.eagle_rounds += o.eagle_rounds;
        self.ngram_rounds += o.ngram_rounds;
        self.plain_rounds += o.plain_rounds;
        if self.rounds > 0 {
            self.mean_accept_length = emitted / self.rounds as f64;
            self.time_vs_plain = weighted / self.rounds as f64;
        }
        if self.per_position.len() < o.per_position.len() {
            self.per_position.resize(o.per_position.len(), (0, 0));
        }
        for (a, b) in self.per_position.iter_mut().zip(&o.per_position) {
            a.0 += b.0;
            a.1 += b.1;
        }
    }
}

/// A server's counts for one answer, in its own tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: u64,
    /// The part of the prompt tokens that the server did not have to read.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub thought_tokens: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStats {
    pub prefilled_tokens: u64,
    pub prefill_ms: f64,
    pub generated_tokens: u64,
    pub decode_ms: f64,
    pub spec: SpecStats,
    pub usage: Option<Usage>,
}
