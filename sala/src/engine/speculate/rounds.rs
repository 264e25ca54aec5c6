//! A round in two halves, so that one pass between them can verify rows of several conversations: the rows to verify,
//! and their outcome.

use std::time::Instant;

use super::generation::{Matched, draw_and_match};
use super::{DecodeError, Decoder, Result};
use crate::backend::draft::DraftOps;
use crate::backend::{MAX_VERIFY_ROWS, TopLogits};
use crate::engine::ngram::Lookup;
use crate::engine::policy::{Offer, Outcome, Plan, Source};
use crate::engine::protocol::{Ended, Likely, Looked, MAX_DEPTH, SpecMode, Token};
use crate::model::draft::Tables;
use crate::model::{Live, Model};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// New tokens of the text, in order. The last one is pending unless `ended` is [`Ended::Stop`].
    pub tokens: Vec<Token>,
    pub ended: Option<Ended>,
    pub looked: Vec<Looked>,
    pub likely: Vec<Likely>,
}

#[derive(Default)]
struct Drafts {
    tokens: Vec<Token>,
    confidence: Vec<f64>,
    extend_s: f64,
    steps_s: f64,
    steps: usize,
}

/// A round between its verify pass and its draw.
pub struct Proposal {
    rows: Vec<Token>,
    drafts: Drafts,
    plan: Plan,
    lookup: Option<Lookup>,
    position: usize,
    began: Instant,
}

impl Proposal {
    pub fn rows(&self) -> &[Token] {
        &self.rows
    }
}

pub enum Proposed {
    Rows(Box<Proposal>),
    Over(Round),
}

impl<B: DraftOps> Decoder<B> {
    /// Adds tokens to the text; `Some` if the generation is complete.
    pub(super) fn report(&mut self, tokens: &[Token]) -> Option<Ended> {
        self.now.index.extend(tokens);
        let generation = self.now.generation.as_mut()?;
        tokens.iter().for_each(|&t| generation.sampler.accept(t));
        generation.remaining = generation.remaining.saturating_sub(tokens.len() as u64);
        (generation.remaining == 0).then_some(Ended::Length)
    }

    /// One pass over the weights: at least one more token.
    pub fn round(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<Round> {
        let proposal = match self.propose(b, model, live, MAX_VERIFY_ROWS, 1)? {
            Proposed::Over(round) => return Ok(round),
            Proposed::Rows(proposal) => proposal,
        };
        live.verify(b, model, proposal.rows())?;
        let top_logits = live.top_logits(b, proposal.rows().len())?;
        self.settle(b, model, live, *proposal, &top_logits, 1)
    }

    /// The first half of a round: the rows to verify, at most `most`, in a pass over this many `sequences`. In a shared
    /// pass a draft has to be worth the wait of all of them for its row.
    pub fn propose(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &Live<B>,
        most: usize,
        sequences: usize,
    ) -> Result<Proposed> {
        let began = Instant::now();
        let position = live.position();
        let Some(generation) = &self.now.generation else {
            return Err(DecodeError::Order("no generation is under way"));
        };
        let Some(&pending) = self.now.index.tokens().get(position) else {
            return Err(DecodeError::Order("no token is pending"));
        };
        let Some(room) = live.limit().checked_sub(position + 1) else {
            return Ok(Proposed::Over(Round { ended: Some(Ended::Context), ..Round::default() }));
        };
        let wanted = usize::try_from(generation.remaining.saturating_sub(1)).unwrap_or(usize::MAX);
        let room = room.min(wanted).min(MAX_DEPTH).min(most.saturating_sub(1));

        let lookup = match (generation.mode, &mut self.now.finder) {
            (SpecMode::Off, _) => None,
            (_, Some(finder)) => finder(self.now.index.tokens(), room),
            (_, None) => self.now.index.lookup(room, 0),
        };
        // The head drafts for one sequence after the other, while a row of the pass costs next to nothing: in a shared
        // pass only an explicit mode uses the head.
        let heads = sequences == 1 || generation.mode != SpecMode::Auto;
        let plan = self.now.policy.plan(Offer {
            mode: generation.mode,
            context: position,
            head: heads && self.head.as_ref().is_some_and(|h| h.ready(position)),
            ngram: lookup.as_ref(),
            room,
            sequences,
        });
        let drafts = match plan.source {
            Source::Plain => Drafts::default(),
            Source::Ngram => {
                let found = lookup.iter().flat_map(|l| &l.tokens).take(plan.depth);
                let tokens = found.take_while(|t| !generation.stop.contains(t)).copied().collect();
                Drafts { tokens, ..Drafts::default() }
            }
            Source::Head => self.draft(b, model, &plan, position)?,
        };
        let mut rows = vec![pending];
        rows.extend(&drafts.tokens);
        Ok(Proposed::Rows(Box::new(Proposal { rows, drafts, plan, lookup, position, began })))
    }

    /// The second half: draws from the verified rows, and advances `live` by the accepted ones. The time of a shared
    /// pass shows no cost of drafts: only their outcome is learned.
    pub fn settle(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &mut Live<B>,
        proposal: Proposal,
        top_logits: &[TopLogits],
        sequences: usize,
    ) -> Result<Round> {
        let Proposal { drafts, plan, lookup, position, began, .. } = proposal;
        let Some(generation) = &mut self.now.generation else {
            return Err(DecodeError::Order("no generation is under way"));
        };
        let first = live.first_row();
        // That was the last pass over the head: its logits are still there.
        let whole = |row: usize| Ok(live.logits_of(b, model, first + row)?);
        let Matched { tokens, accepted, ended: matched, likely } =
            draw_and_match(generation, top_logits, &drafts.tokens, position + 1, whole)?;
        if tokens.is_empty() && matched.is_none() {
            return Err(DecodeError::Order("the model made no top logits"));
        }
        let looked = generation.look(b, model, live, &tokens, accepted + 1)?;
        live.advance(b, accepted + 1)?;
        if let (Some(head), Some(aux_hidden)) = (&mut self.head, live.aux_hidden()) {
            let rows = first..first + accepted + 1;
            head.keep(b, &Tables::from(model), aux_hidden, rows, position, self.now.index.tokens())?;
        }
        let complete = self.report(&tokens);
        let ended = matched.or(complete);

        let outcome = Outcome {
            context: position,
            confidence: &drafts.confidence,
            drafted: drafts.tokens.len(),
            accepted,
            extend_s: drafts.extend_s,
            steps_s: drafts.steps_s,
            steps: drafts.steps,
            verify_s: began.elapsed().as_secs_f64() - drafts.extend_s - drafts.steps_s,
        };
        if sequences > 1 {
            self.now.policy.learn_shared(plan.source, &outcome, lookup.as_ref(), &tokens, sequences);
        } else if !b.rows_in_flight() {
            self.now.policy.observe(plan.source, &outcome, lookup.as_ref(), &tokens);
        }
        self.count(plan.source, outcome.drafted, accepted, tokens.len());
        Ok(Round { tokens, ended, looked, likely })
    }

    /// Chains drafts from the head as long as the policy expects the next one to pay.
    fn draft(&mut self, b: &mut B, model: &Model<B>, plan: &Plan, position: usize) -> Result<Drafts> {
        let (Some(head), Some(generation)) = (&mut self.head, &self.now.generation) else {
            return Ok(Drafts::default());
        };
        let tables = Tables::from(model);
        let mut drafts = Drafts::default();
        let mut at = Instant::now();
        let mut row = head.extend(b, &tables, self.now.index.tokens())?;
        drafts.extend_s = lap(&mut at);
        let mut survival = 1.0;
        loop {
            let proposed =
                generation.sampler.propose(&row, (position + 1 + drafts.tokens.len()) as u64, &drafts.tokens);
            // The row after a draft that ends the turn would be verified in vain.
            let Some(draft) = proposed.filter(|d| !generation.stop.contains(&d.token)) else { break };
            let depth = drafts.tokens.len() + 1;
            drafts.confidence.push(draft.confidence);
            survival = self.now.policy.survival(depth, survival, draft.confidence);
            if !self.now.policy.keeps(plan, depth, survival, position) {
                break;
            }
            drafts.tokens.push(draft.token);
            if !self.now.policy.continues(plan, depth, survival, position) {
                break;
            }
            row = head.step(b, &tables, draft.token)?;
            drafts.steps += 1;
            drafts.steps_s += lap(&mut at);
        }
        Ok(drafts)
    }

    fn count(&mut self, source: Source, drafted: usize, accepted: usize, tokens: usize) {
        let s = &mut self.now.stats;
        s.rounds += 1;
        s.drafted += drafted as u64;
        s.accepted += accepted as u64;
        match (drafted, source) {
            (0, _) | (_, Source::Plain) => s.plain_rounds += 1,
            (_, Source::Head) => s.eagle_rounds += 1,
            (_, Source::Ngram) => s.ngram_rounds += 1,
        }
        if s.per_position.len() < drafted {
            s.per_position.resize(drafted, (0, 0));
        }
        for (j, (tried, right)) in s.per_position.iter_mut().take(drafted).enumerate() {
            *tried += 1;
            *right += u64::from(j < accepted);
        }
        self.now.emitted += tokens as u64;
        s.mean_accept_length = self.now.emitted as f64 / s.rounds as f64;
        s.time_vs_plain = self.now.policy.time_vs_plain();
    }
}

fn lap(at: &mut Instant) -> f64 {
    let now = Instant::now();
    now.duration_since(std::mem::replace(at, now)).as_secs_f64()
}
