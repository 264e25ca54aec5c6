//! Chooses a token from a row's top logits, the same way for decoded and verified rows.
//!
//! The distribution of a row (docs/speculative.md §6.1): the repetition penalty over all accepted tokens, presence and
//! frequency penalties over those of this generation, each with the row's own path; temperature, top-k, top-p, min-p,
//! renormalise. Its input is the row's top logits, the [`crate::backend::TOP_LOGITS`] largest of the vocabulary, so
//! top-k never exceeds that.
//!
//! The draw (§6.2) is `argmax [ln p(v) + G(v)]` with Gumbel noise `G` keyed by (seed, position, token id). It depends
//! on nothing else, so a seed gives the same text at any draft depth, with any head, and after a resume. A draft with
//! the same noise on its own distribution matches the draw most of the time. Temperature 0 is `argmax`; ties resolve
//! to the lowest id. Drafting never influences a draw.

use std::collections::{HashMap, HashSet};

use crate::backend::TopLogits;
use crate::core::{GOLDEN, mix};
use crate::engine::protocol::{Sampling, Token};

/// Uniform in (0, 1), a function of its three keys alone: `mix(mix(mix(seed) + position) + token)`, each key spread by
/// the golden ratio first; the top 53 bits, centred between two representable values so that 0 and 1 never occur.
pub fn uniform(seed: u64, position: u64, token: Token) -> f64 {
    let a = mix(seed.wrapping_add(GOLDEN));
    let b = mix(a.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    let c = mix(b.wrapping_add(u64::from(token).wrapping_add(1).wrapping_mul(GOLDEN)));
    ((c >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

pub fn gumbel(seed: u64, position: u64, token: Token) -> f64 {
    -(-uniform(seed, position, token).ln()).ln()
}

/// The entry of `p` with the largest `ln p + noise`, ties to the lowest id: a draw from `p` when the noise is Gumbel.
fn gumbel_max(p: &[(Token, f64)], noise: impl Fn(Token) -> f64) -> Option<(Token, f64)> {
    let mut best: Option<(f64, Token, f64)> = None;
    for &(token, mass) in p {
        let score = mass.ln() + noise(token);
        if best.is_none_or(|(s, t, _)| score > s || (score == s && token < t)) {
            best = Some((score, token, mass));
        }
    }
    best.map(|(_, token, mass)| (token, mass))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafted {
    pub token: Token,
    /// The draft's probability after the request's temperature.
    pub confidence: f64,
}

#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// Accepted tokens, including the history; kept only for the repetition penalty.
    seen: HashSet<Token>,
    /// Occurrences of tokens of this generation; kept only when a penalty needs them.
    written: HashMap<Token, u32>,
}

impl Sampler {
    pub fn new(sampling: Sampling, history: &[Token]) -> Sampler {
        let mut sampler = Sampler { sampling, seen: HashSet::new(), written: HashMap::new() };
        if sampler.penalises_seen() {
            sampler.seen.extend(history);
        }
        sampler
    }

    fn penalises_seen(&self) -> bool {
        self.sampling.repeat_penalty != 1.0
    }

    fn penalises_written(&self) -> bool {
        self.sampling.presence_penalty != 0.0 || self.sampling.frequency_penalty != 0.0
    }

    pub fn accept(&mut self, token: Token) {
        if self.penalises_seen() {
            self.seen.insert(token);
        }
        if self.penalises_written() {
            *self.written.entry(token).or_insert(0) += 1;
        }
    }

    /// The token at output `position`, drawn from the row after the accepted tokens and `path`, the drafts between
    /// them and the row. `None` only for a row without top logits.
    pub fn draw(&self, row: &TopLogits, position: u64, path: &[Token]) -> Option<Token> {
        self.propose(row, position, path).map(|drafted| drafted.token)
    }

    /// The draft's proposal for output `position`: the same rule on the draft's distribution with the same noise.
    /// `row` holds ids of the model's vocabulary and the log-sum-exp of the draft's own logits.
    pub fn propose(&self, row: &TopLogits, position: u64, path: &[Token]) -> Option<Drafted> {
        if self.sampling.temperature <= 0.0 {
            let best = self.penalised(row, path).into_iter().next()?;
            let confidence = (best.1 - f64::from(row.log_sum_exp)).exp().min(1.0);
            return Some(Drafted { token: best.0, confidence });
        }
        let p = self.distribution(row, path);
        let noise = |token| gumbel(self.sampling.seed, position, token);
        gumbel_max(&p, noise).map(|(token, confidence)| Drafted { token, confidence })
    }

    /// (id, logit) after penalties, by (logit descending, id ascending).
    fn penalised(&self, row: &TopLogits, path: &[Token]) -> Vec<(Token, f64)> {
        let s = &self.sampling;
        let mut out: Vec<(Token, f64)> = row.ids.iter().zip(&row.logits).map(|(&t, &z)| (t, f64::from(z))).collect();
        if self.penalises_seen() || self.penalises_written() {
            for (t, z) in &mut out {
                let drafted = path.iter().filter(|&p| p == t).count();
                if drafted > 0 || self.seen.contains(t) {
                    let r = f64::from(s.repeat_penalty);
                    *z = if *z > 0.0 { *z / r } else { *z * r };
                }
                let written = self.written.get(t).copied().unwrap_or(0) as usize + drafted;
                if written > 0 {
                    *z -= f64::from(s.presence_penalty) + f64::from(s.frequency_penalty) * written as f64;
                }
            }
            out.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        }
        out
    }

    /// The row's distribution: (id, probability > 0), by (probability descending, id ascending). At temperature 0 the
    /// best token alone.
    pub fn distribution(&self, row: &TopLogits, path: &[Token]) -> Vec<(Token, f64)> {
        let s = &self.sampling;
        let mut p = self.penalised(row, path);
        let Some(&(_, top)) = p.first() else { return p };
        if s.temperature <= 0.0 {
            p.truncate(1);
            p.iter_mut().for_each(|e| e.1 = 1.0);
            return p;
        }
        let t = f64::from(s.temperature);
        p.iter_mut().for_each(|e| e.1 = ((e.1 - top) / t).exp());
        renormalise(&mut p);
        if s.top_k > 0 && (s.top_k as usize) < p.len() {
            p.truncate(s.top_k as usize);
            renormalise(&mut p);
        }
        if s.top_p < 1.0 {
            let mut mass = 0.0;
            let cut = p.iter().position(|e| {
                mass += e.1;
                mass >= f64::from(s.top_p)
            });
            p.truncate(cut.map_or(p.len(), |i| i + 1));
            renormalise(&mut p);
        }
        if s.min_p > 0.0 {
            let floor = f64::from(s.min_p) * p.first().map_or(0.0, |e| e.1);
            p.retain(|e| e.1 >= floor);
            renormalise(&mut p);
        }
        p.retain(|e| e.1 > 0.0);
        p
    }
}

fn renormalise(p: &mut [(Token, f64)]) {
    let sum: f64 = p.iter().map(|e| e.1).sum();
    p.iter_mut().for_each(|e| e.1 /= sum);
}

#[cfg(test)]
mod tests;
