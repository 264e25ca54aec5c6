//! Scoring in turns: a few rows of a text after a state; at the end the state is restored.

use std::time::Instant;

use super::sequence::{Now, Run, Scores, Stage};
use super::speculate::DecodeError;
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::backend::{GRID, internal};
use crate::engine::protocol::{Ended, Scoring};
use crate::model::ModelError;
use crate::model::score::{likely, log_prob};

/// Each row of a turn takes a product with the whole head and a pass over all its logits on the host, together about
/// as long as a chunk of a prompt may take while others write. A fixed number: scores do not depend on other
/// sequences.
const TURN_ROWS: usize = 2 * GRID;

impl<B: DraftOps> Worker<'_, B> {
    pub(super) fn begin_scores(&mut self, run: &mut Run, scoring: &Scoring) -> Result<Now, DecodeError> {
        let (at, rows, lists) = (self.live.position(), scoring.tokens.len().saturating_sub(1), scoring.hidden.len());
        if rows == 0 || lists == 0 {
            return Ok(Now::Ended(Ended::Read, Vec::new()));
        }
        let needed = at + rows;
        if needed > self.live.limit() {
            return Err(ModelError::Context { needed, limit: self.live.limit() }.into());
        }
        let end = self.live.export_end(&mut self.backend)?;
        // The first list is read like the others, each after a restored state.
        self.live.begin_segment();
        let (done, now) = (Vec::with_capacity(lists), Vec::with_capacity(rows));
        run.stage = Stage::Scoring(Box::new(Scores { at, end, rows, lists, done, now }));
        Ok(Now::Continues)
    }

    pub(super) fn score(&mut self, run: &mut Run, shared: bool) -> Result<Now, DecodeError> {
        let id = run.id();
        let (Stage::Scoring(scores), Some(scoring)) = (&mut run.stage, &run.job.score) else {
            return Err(DecodeError::Order("scores that nobody asked for"));
        };
        let Scores { at, end, rows, lists, done, now } = &mut **scores;
        if run.job.cancel.is_cancelled() {
            self.live.restore(&mut self.backend, *at, &[], Some(end))?;
            return Ok(Now::Ended(Ended::Cancelled, std::mem::take(done)));
        }
        let (from, to) = (now.len(), (now.len() + TURN_ROWS).min(*rows));
        let (Some(chunk), Some(hidden)) = (scoring.tokens.get(from..to), scoring.hidden.get(done.len())) else {
            return Err(DecodeError::Order("scores beyond the end of a text"));
        };
        if !self.room_for_rows(id, chunk.len())? {
            return Ok(Now::Stalled);
        }
        let begun = Instant::now();
        let (b, live, model) = (&mut self.backend, &mut self.live, &self.model);
        let first_list = done.is_empty();
        let mut note = |row: usize, logits: &[f32]| {
            let Some(&token) = scoring.tokens.get(from + row + 1) else {
                return Err(internal("score", "a row with no token after it").into());
            };
            now.push(log_prob(logits, token) as f32);
            if let Some(most) = scoring.likely.filter(|_| first_list) {
                run.likely.push(likely(logits, token, most.into()));
            }
            Ok(())
        };
        // Other sequences have turns in between, and see all their blocks.
        live.hide_blocks(b, hidden);
        let scored = live.score(b, model, chunk, &|_| true, &mut note, None);
        live.hide_blocks(b, &[]);
        scored?;
        self.pace.note(chunk.len(), begun.elapsed().as_secs_f64(), 0.0, false, shared);
        if now.len() < *rows {
            return Ok(Now::Continues);
        }
        live.restore(b, *at, &[], Some(end))?;
        done.push(std::mem::take(now));
        Ok(if done.len() < *lists { Now::Continues } else { Now::Ended(Ended::Read, std::mem::take(done)) })
    }
}
