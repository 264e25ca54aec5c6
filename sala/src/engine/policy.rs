//! Decides every round whether to draft, from which source, and how far (docs/speculative.md §7, §8.2).
//!
//! Tokens per time is a renewal-reward ratio, so a draft pays while its chance of acceptance exceeds the achieved rate
//! times its addition to the round's time. Chances are counters by confidence ([`calibration`]), times are
//! measurements of this run ([`costs`]). Three arms compete: no draft, the head, the n-gram lookup.
//!
//! Two rules bound the cost of a wrong guess. While drafts are rejected, every window of 32 tokens stays within 1 /
//! 0.98 of the time of plain steps: a round is only drafted as deep as the window can bear if every draft is rejected;
//! where the window has gained time, part of the gain may be staked too ([`Policy::plan`]). And a head that does not
//! pay is paused, with a short probe now and then, less often the longer it fails.
//!
//! Callers pass the time in; nothing here reads a clock.

use std::collections::VecDeque;

use crate::engine::ngram::{Lookup, MIN_MATCH};
use crate::engine::protocol::{MAX_DEPTH, SpecMode};

pub mod calibration;
pub mod costs;

use calibration::Calibration;
use costs::Costs;

/// Over this many tokens plain decoding may be faster by at most [`SLACK`].
const WINDOW: usize = 32;
/// Loss of a window in plain steps: 32 / 0.98 - 32, and a reserve for noise of the measurements.
const SLACK: f64 = 0.5;
/// Extra slack while fewer tokens than this have been decoded: costs and chances are still unknown.
const WARM_UP: usize = 32;
const WARM_UP_SLACK: f64 = 4.0;
/// Limit of a window's gain that may be staked, in plain steps.
const STAKE: f64 = 8.0;
/// A draft must have at least this factor of expected gain.
const MARGIN: f64 = 1.04;
/// After this many rounds one plain step refreshes its measured time.
const PLAIN_REFRESH: u32 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Plain,
    Head,
    Ngram,
}

#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    pub mode: SpecMode,
    /// Tokens in the state: selects the bucket of costs.
    pub context: usize,
    /// A head exists and has read the last accepted row.
    pub head: bool,
    pub ngram: Option<&'a Lookup>,
    /// Limit of drafts (context limit, requested tokens).
    pub room: usize,
    /// Sequences with rows in the pass, this one included: all of them wait for a draft's row.
    pub sequences: usize,
}

/// For [`Source::Head`], `depth` is the limit; [`Policy::keeps`] and [`Policy::continues`] decide after each draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub source: Source,
    /// 0 for plain.
    pub depth: usize,
    pub at_least: usize,
}

const PLAIN: Plan = Plan { source: Source::Plain, depth: 0, at_least: 0 };

#[derive(Clone, Debug, Default)]
pub struct Outcome<'a> {
    pub context: usize,
    /// One per draft of the head, in order; empty for other sources.
    pub confidence: &'a [f64],
    pub drafted: usize,
    pub accepted: usize,
    /// Seconds to extend the draft window and make the first draft; 0 without the head.
    pub extend_s: f64,
    pub steps_s: f64,
    pub steps: usize,
    /// Seconds to verify `drafted + 1` rows, sampling included.
    pub verify_s: f64,
}

impl Outcome<'_> {
    fn seconds(&self) -> f64 {
        self.extend_s + self.steps_s + self.verify_s
    }
}

#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Chances of drafts. A session saves and restores them; the measured costs belong to the machine.
    pub calibration: Calibration,
    costs: Costs,
    /// Means over about the last 64 rounds: tokens and seconds of a round.
    rate: Option<(f64, f64)>,
    /// (tokens, plain steps lost; negative when gained) of the rounds of the current window.
    window: VecDeque<(usize, f64)>,
    decoded: usize,
    rounds_since_plain: u32,
    tokens_since_head: usize,
    probe_every: usize,
    refused: i32,
    ngram_misses: u32,
    ngram_demand: u32,
    spent_s: f64,
    plain_s: f64,
}

impl Policy {
    /// Starts a job: windows and times start anew, the measured costs stay.
    pub fn begin(&mut self) {
        self.window.clear();
        self.rate = None;
        (self.spent_s, self.plain_s) = (0.0, 0.0);
    }

    /// Time of this job's rounds divided by the time of plain steps; 0 if unknown.
    pub fn time_vs_plain(&self) -> f64 {
        if self.plain_s > 0.0 { self.spent_s / self.plain_s } else { 0.0 }
    }

    fn min_match(&self) -> usize {
        MIN_MATCH + if self.ngram_demand > 0 { 2 } else { 0 }
    }

    /// Tokens per second to beat: the recent rate, at least that of plain decoding.
    fn rate(&self, plain_s: f64) -> f64 {
        self.rate.map_or(0.0, |(tokens, seconds)| tokens / seconds.max(1e-12)).max(1.0 / plain_s)
    }

    /// Plain steps that the next round may lose. While drafts are rejected, no window of [`WINDOW`] tokens, wherever
    /// it starts, loses more than [`SLACK`]: the loss of the worst run of rounds up to now is subtracted. The window's
    /// gain may be staked too, half as much after every consecutive round with all drafts rejected.
    fn slack(&self) -> f64 {
        let (mut tokens, mut lost, mut worst, mut gained) = (1, 0.0, 0.0f64, 0.0);
        for &(n, loss) in self.window.iter().rev() {
            tokens += n;
            // A round that begins before the window may not contribute its gain.
            let loss = if tokens > WINDOW { loss.max(0.0) } else { loss };
            lost += loss;
            worst = worst.max(lost);
            gained += (-loss).max(0.0);
            if tokens > WINDOW {
                break;
            }
        }
        let stake = gained.min(STAKE) * 0.5f64.powi(self.refused.min(30));
        SLACK + stake - worst + if self.decoded < WARM_UP { WARM_UP_SLACK } else { 0.0 }
    }

    fn seconds(&self, source: Source, depth: usize, context: usize, sequences: usize) -> f64 {
        let verify = self.costs.verify_shared(context, depth + 1, sequences);
        match source {
            Source::Head if depth > 0 => {
                self.costs.extend(context) + (depth - 1) as f64 * self.costs.step(context) + verify
            }
            Source::Head | Source::Ngram | Source::Plain => verify,
        }
    }

    /// The deepest round that the window can bear when every draft is rejected.
    fn bearable(&self, source: Source, room: usize, context: usize, sequences: usize) -> usize {
        let plain = self.costs.verify(context, 1);
        let slack = self.slack();
        (1..=room)
            .take_while(|&k| self.seconds(source, k, context, sequences) / plain - 1.0 <= slack)
            .last()
            .unwrap_or(0)
    }

    /// The depth of the highest expected rate, and that rate. `chance(j)`: draft j + 1 is right if those before are.
    fn best(&self, source: Source, room: usize, offer: &Offer<'_>, chance: impl Fn(usize) -> f64) -> (usize, f64) {
        let (mut survival, mut tokens, mut best) = (1.0, 1.0, (0, 0.0));
        for depth in 1..=room {
            survival *= chance(depth - 1);
            tokens += survival;
            let rate = tokens / self.seconds(source, depth, offer.context, offer.sequences).max(1e-12);
            if rate > best.1 {
                best = (depth, rate);
            }
        }
        best
    }

    pub fn plan(&self, offer: Offer<'_>) -> Plan {
        let room = offer.room.min(MAX_DEPTH);
        let usable = offer.ngram.filter(|l| l.matched >= self.min_match());
        let found = usable.map_or(0, |l| l.tokens.len()).min(room);
        let head_room = if offer.head { room } else { 0 };
        let by_lookup = |room| match offer.ngram {
            Some(l) => self.best(Source::Ngram, room, &offer, |j| self.calibration.ngram(l.matched, l.agreement, j)),
            None => (0, 0.0),
        };
        let by_head = |room| self.best(Source::Head, room, &offer, |j| self.calibration.head_depth(j));
        match offer.mode {
            SpecMode::Off => PLAIN,
            SpecMode::Depth(n) => {
                let n = usize::from(n);
                let (head, lookup) = (by_head(head_room.min(n)), by_lookup(found.min(n)));
                let (source, depth) =
                    if lookup.1 > head.1 { (Source::Ngram, found.min(n)) } else { (Source::Head, head_room.min(n)) };
                if depth == 0 { PLAIN } else { Plan { source, depth, at_least: depth } }
            }
            SpecMode::On => {
                let (head, lookup) = (by_head(head_room), by_lookup(found));
                match (head.0, lookup.0) {
                    (0, 0) => PLAIN,
                    (_, depth) if lookup.1 > head.1 => Plan { source: Source::Ngram, depth, at_least: 1 },
                    (_, _) => Plan { source: Source::Head, depth: head_room, at_least: 1 },
                }
            }
            SpecMode::Auto => self.plan_auto(&offer, head_room, found, by_head, by_lookup),
        }
    }

    fn plan_auto(
        &self,
        offer: &Offer<'_>,
        head_room: usize,
        found: usize,
        by_head: impl Fn(usize) -> (usize, f64),
        by_lookup: impl Fn(usize) -> (usize, f64),
    ) -> Plan {
        let Offer { context, sequences, .. } = *offer;
        if !self.costs.knows_plain(context) || self.rounds_since_plain >= PLAIN_REFRESH {
            return PLAIN;
        }
        let plain = 1.0 / self.costs.verify(context, 1);
        let head_limit = self.bearable(Source::Head, head_room, context, sequences);
        let (head, lookup) = (by_head(head_limit), by_lookup(self.bearable(Source::Ngram, found, context, sequences)));
        if head.1.max(lookup.1) >= plain * MARGIN {
            return if lookup.1 > head.1 {
                Plan { source: Source::Ngram, depth: lookup.0, at_least: 0 }
            } else {
                Plan { source: Source::Head, depth: head_limit, at_least: 0 }
            };
        }
        if head_limit > 0 && self.tokens_since_head >= self.probe_every.max(WINDOW) {
            let depth = head_limit.min(2);
            return Plan { source: Source::Head, depth, at_least: depth };
        }
        PLAIN
    }

    /// The chance that all drafts up to `depth` (1-based) are right, if those before it are right with chance `before`
    /// and it has confidence `confidence`.
    pub fn survival(&self, depth: usize, before: f64, confidence: f64) -> f64 {
        before * self.calibration.head(depth - 1, confidence)
    }

    /// Whether the last draft, which survives with `survival`, is worth its verify row.
    pub fn keeps(&self, plan: &Plan, depth: usize, survival: f64, context: usize) -> bool {
        let row = self.costs.verify(context, depth + 1) - self.costs.verify(context, depth);
        depth <= plan.at_least || survival >= self.rate(self.costs.verify(context, 1)) * row
    }

    /// Whether to draft one more token after `depth` drafts that survive with probability `survival`.
    pub fn continues(&self, plan: &Plan, depth: usize, survival: f64, context: usize) -> bool {
        if depth >= plan.depth {
            return false;
        }
        let row = self.costs.verify(context, depth + 2) - self.costs.verify(context, depth + 1);
        let cost = self.rate(self.costs.verify(context, 1)) * (self.costs.step(context) + row);
        depth < plan.at_least || survival * self.calibration.head_depth(depth) >= cost
    }

    fn learn(&mut self, source: Source, outcome: &Outcome<'_>, lookup: Option<&Lookup>, emitted: &[u32]) {
        if let Some(l) = lookup {
            let right = l.tokens.iter().zip(emitted).take_while(|(a, b)| a == b).count();
            for j in 0..(right + 1).min(emitted.len()).min(l.tokens.len()) {
                self.calibration.learn_ngram(l.matched, l.agreement, j, j < right);
            }
        }
        for (j, &confidence) in outcome.confidence.iter().enumerate().take((outcome.accepted + 1).min(outcome.drafted))
        {
            self.calibration.learn_head(j, confidence, j < outcome.accepted);
        }
        match (outcome.drafted, outcome.accepted) {
            (0, _) => {}
            (_, 0) => self.refused = self.refused.saturating_add(1),
            (_, _) => self.refused = 0,
        }
        self.ngram_demand = self.ngram_demand.saturating_sub(1);
        if source == Source::Ngram {
            self.ngram_misses = if outcome.accepted == 0 { self.ngram_misses + 1 } else { 0 };
            if self.ngram_misses >= 2 {
                (self.ngram_misses, self.ngram_demand) = (0, 16);
            }
        }
    }

    /// Learns from a round in a shared pass: its time is meaningless, so the known cost of its drafts to all sequences
    /// counts as its loss. `lookup` and `emitted` as for [`Policy::observe`].
    pub fn learn_shared(
        &mut self,
        source: Source,
        outcome: &Outcome<'_>,
        lookup: Option<&Lookup>,
        emitted: &[u32],
        sequences: usize,
    ) {
        self.learn(source, outcome, lookup, emitted);
        let tokens = outcome.accepted + 1;
        let plain = self.costs.verify(outcome.context, 1);
        let seconds = self.costs.verify_shared(outcome.context, outcome.drafted + 1, sequences);
        self.lost(tokens, if outcome.drafted == 0 { 0.0 } else { seconds / plain - tokens as f64 });
    }

    fn lost(&mut self, tokens: usize, loss: f64) {
        self.window.push_back((tokens, loss));
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        self.decoded += tokens;
    }

    /// Learns from a round. `lookup`: the offer of the n-gram lookup, used or not; `emitted`: the round's tokens,
    /// which show whether the offer was right either way.
    pub fn observe(&mut self, source: Source, outcome: &Outcome<'_>, lookup: Option<&Lookup>, emitted: &[u32]) {
        self.learn(source, outcome, lookup, emitted);
        let tokens = outcome.accepted + 1;
        self.costs.observe(outcome);

        let plain = self.costs.verify(outcome.context, 1);
        let seconds = outcome.seconds();
        let loss = if source == Source::Plain { 0.0 } else { seconds / plain - tokens as f64 };
        self.lost(tokens, loss);
        self.spent_s += seconds;
        self.plain_s += tokens as f64 * plain;
        let (t, s) = self.rate.unwrap_or((1.0, plain));
        self.rate = Some((t + (tokens as f64 - t) / 32.0, s + (seconds - s) / 32.0));
        if source == Source::Head {
            self.tokens_since_head = 0;
            self.probe_every = if loss < 0.0 { WINDOW } else { (self.probe_every.max(WINDOW) * 2).min(16 * WINDOW) };
        } else {
            self.tokens_since_head += tokens;
        }
        self.rounds_since_plain = if source == Source::Plain { 0 } else { self.rounds_since_plain + 1 };
    }
}

#[cfg(test)]
mod tests;
