//! A generation in progress: drawing from rows, steering, and the outcome of drafts in verified rows.

use super::{DecodeError, Result};
use crate::backend::draft::DraftOps;
use crate::backend::{MassOf, TOP_LOGITS, TopLogits};
use crate::engine::look;
use crate::engine::protocol::{Constrain, Ended, Likely, Looked, SpecMode, Steer, Steered, Token};
use crate::engine::sampler::Sampler;
use crate::model::{Live, Model};

pub(super) struct Generation {
    pub(super) sampler: Sampler,
    pub(super) stop: Vec<Token>,
    pub(super) mode: SpecMode,
    pub(super) remaining: u64,
    pub(super) steer: Option<Box<dyn Steer>>,
    pub(super) constraint: Option<Box<dyn Constrain>>,
    pub(super) likely: Option<u8>,
    pub(super) each_token: bool,
    /// The token that ends the thoughts, while they are written.
    pub(super) thoughts_until: Option<Token>,
    pub(super) looked: [u64; 2],
}

impl Generation {
    /// Draws an allowed token from a row with the constraint's biases. A row holds only the likeliest tokens: if none
    /// is allowed, draws from the likeliest allowed of all logits of the row `[vocab]`, which `whole` returns.
    pub(super) fn draw(
        &mut self,
        row: &TopLogits,
        position: u64,
        path: &[Token],
        whole: impl FnOnce() -> Result<Vec<f32>>,
    ) -> Result<Option<Token>> {
        let Some(constraint) = &mut self.constraint else { return Ok(self.sampler.draw(row, position, path)) };
        let all = constraint.reaches_all();
        let mut may = |(token, logit)| constraint.favours(token).map(|favoured| (token, logit + favoured));
        let known = row.ids.iter().copied().zip(row.logits.iter().copied());
        let allowed = likeliest(known.filter(|_| !all).filter_map(&mut may).collect(), row.log_sum_exp);
        if let Some(token) = self.sampler.draw(&allowed, position, path) {
            return Ok(Some(token));
        }
        let all = (0..).zip(whole()?).filter_map(&mut may).collect();
        let token = self.sampler.draw(&likeliest(all, row.log_sum_exp), position, path);
        token.map(Some).ok_or_else(|| DecodeError::Stuck(constraint.stuck()))
    }

    /// Probe tokens before the first draw, chosen from the rows after those of the last call.
    pub(super) fn ahead(&mut self, rows: &[TopLogits]) -> Vec<Token> {
        let likeliest = |row: &TopLogits| row.ids.iter().copied().zip(row.logits.iter().copied()).collect();
        self.constraint.as_mut().map_or_else(Vec::new, |c| c.ahead(&rows.iter().map(likeliest).collect::<Vec<_>>()))
    }

    /// The token that replaces a drawn one; `None` ends the turn.
    pub(super) fn steered(&mut self, token: Token) -> Option<(Token, bool)> {
        let ends = self.stop.contains(&token);
        let (token, last) = match self.steer.as_mut().map_or(Steered::Take, |s| s.drawn(token, ends)) {
            Steered::Take if ends => return None,
            Steered::Take => (token, false),
            Steered::Instead(other) => (other, false),
            Steered::Last => (token, true),
        };
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        Some((token, last))
    }

    pub(super) fn likely(&self, row: &TopLogits, token: Token) -> Option<Likely> {
        let most = usize::from(self.likely?);
        let log_prob = |logit: f32| (f64::from(logit) - f64::from(row.log_sum_exp)) as f32;
        let known = row.ids.iter().zip(&row.logits);
        let own = known.clone().find(|(id, _)| **id == token).map(|(_, logit)| *logit);
        let least = row.logits.last().copied().unwrap_or(f32::NEG_INFINITY);
        Some(Likely {
            log_prob: log_prob(own.unwrap_or(least)),
            best: known.take(most).map(|(id, logit)| (*id, log_prob(*logit))).collect(),
        })
    }

    /// Counts the attention mass of the accepted rows of the last pass, before they are advanced: row i wrote
    /// `tokens[i]`.
    pub(super) fn look<B: DraftOps>(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &mut Live<B>,
        tokens: &[Token],
        rows: usize,
    ) -> Result<Vec<Looked>> {
        let thoughts = match self.thoughts_until {
            None => 0,
            Some(end) => match tokens.iter().position(|t| *t == end) {
                None => rows,
                // The row that wrote the end of the thoughts counts as a thought.
                Some(at) => {
                    self.thoughts_until = None;
                    (at + 1).min(rows)
                }
            },
        };
        live.add_mass(b, 0..thoughts, MassOf::Thoughts)?;
        live.add_mass(b, thoughts..rows, MassOf::Answer)?;
        self.looked[0] += thoughts as u64;
        self.looked[1] += (rows - thoughts) as u64;
        if !self.each_token {
            return Ok(Vec::new());
        }
        let (position, spec) = (live.position(), &model.spec().sparse);
        let rows = live.row_mass(b, tokens.len().min(rows))?;
        Ok(rows.iter().enumerate().map(|(i, mass)| look::row(mass, position + i, spec)).collect())
    }
}

fn likeliest(mut all: Vec<(Token, f32)>, log_sum_exp: f32) -> TopLogits {
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(TOP_LOGITS);
    let (ids, logits) = all.into_iter().unzip();
    TopLogits { ids, logits, log_sum_exp }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Matched {
    /// The accepted drafts and one more, unless it ends the turn.
    pub(super) tokens: Vec<Token>,
    pub(super) accepted: usize,
    /// [`Ended::Stop`]: a token that ends the turn was drawn after `tokens`. [`Ended::Repeats`]: the last one ends the
    /// turn.
    pub(super) ended: Option<Ended>,
    pub(super) likely: Vec<Likely>,
}

/// Whether a row's top logits and their sum are finite. `position`: of the token to draw.
pub(super) fn finite(row: &TopLogits, position: usize) -> Result<()> {
    // The sum runs over the whole vocabulary, so it reveals any value that is not finite.
    let whole = row.log_sum_exp.is_finite() && row.logits.first().is_none_or(|z| z.is_finite());
    if whole { Ok(()) } else { Err(DecodeError::NotFinite { position }) }
}

/// Draws a token from each row for as long as the draws equal the drafts (docs/speculative.md §6.2). Row i follows the
/// first i drafts and draws output position `position + i`. A draw never depends on a draft. `whole` returns all
/// logits of row i on demand.
pub(super) fn draw_and_match(
    generation: &mut Generation,
    rows: &[TopLogits],
    drafts: &[Token],
    position: usize,
    mut whole: impl FnMut(usize) -> Result<Vec<f32>>,
) -> Result<Matched> {
    let mut matched = Matched::default();
    for (i, row) in rows.iter().enumerate() {
        finite(row, position + i)?;
        let path = drafts.get(..i).unwrap_or_default();
        let Some(token) = generation.draw(row, (position + i) as u64, path, || whole(i))? else { break };
        // In order: tokens after a stop must not enter text or state.
        let Some((token, last)) = generation.steered(token) else {
            matched.ended = Some(Ended::Stop);
            break;
        };
        matched.likely.extend(generation.likely(row, token));
        matched.tokens.push(token);
        if last {
            matched.ended = Some(Ended::Repeats);
            break;
        }
        if drafts.get(i) != Some(&token) {
            break;
        }
        matched.accepted += 1;
    }
    Ok(matched)
}
