//! Jobs in turns: a chunk of a prompt, a decode round, and the end of a job.

use std::time::Instant;

use super::failure::guarded;
use super::room;
use super::schedule::{self, Read, Want};
use super::sequence::{Now, Run, Stage};
use super::speculate::{DecodeError, Proposal, Proposed, Round};
use super::speed::{Speed, rate};
use super::worker::Worker;
use crate::backend::draft::DraftOps;
use crate::backend::{GRID, MAX_VERIFY_ROWS, TopLogits};
use crate::engine::protocol::{
    Ended, EngineEvent, Job, JobDone, JobStats, LookedAt, RowsImage, SequenceId, StateImage,
};
use crate::model::ModelError;

/// A chunk of fewer tokens gives no reliable speed.
const WHOLE: usize = 4 * GRID;

struct Waiting {
    sequence: SequenceId,
    run: Run,
    proposal: Box<Proposal>,
}

impl<B: DraftOps> Worker<'_, B> {
    pub(super) fn begin(&mut self, sequence: SequenceId, job: Job) -> Result<(), DecodeError> {
        self.take(sequence)?;
        self.backend.stop_on(Some(&job.cancel));
        let start = self.live.position();
        let needed = start + job.prompt.len();
        if needed > self.live.limit() {
            return Err(ModelError::Context { needed, limit: self.live.limit() }.into());
        }
        self.live.begin_segment();
        let begun = Instant::now();
        let (stage, speed) = (Stage::Reading, Speed::new(begun));
        let (stats, likely) = (JobStats::default(), Vec::new());
        let goal = self.promise(&job)?;
        let stalled = false;
        let run = Run { job, start, stage, begun, speed, waited: 0, goal, stalled, prompt: 0, stats, likely };
        match self.slots.get_mut(&sequence) {
            Some(slot) => slot.run = Some(run),
            None => return Err(DecodeError::Order("a job of a sequence that is not there")),
        }
        Ok(())
    }

    pub(super) fn never_begun(&self, id: u64) {
        let done = JobDone { ended: Ended::Cancelled, memory: self.backend.memory(), ..JobDone::default() };
        self.send(EngineEvent::Done { id, done: Box::new(done) });
    }

    pub(super) fn turn(&mut self) {
        let (mut ids, mut wants) = (Vec::new(), Vec::new());
        for (id, slot) in &self.slots {
            if let Some(run) = slot.run.as_ref().filter(|run| !run.stalled || run.job.cancel.is_cancelled()) {
                ids.push(*id);
                let left = match &run.stage {
                    Stage::Reading => run.job.prompt.len() - run.prompt,
                    Stage::Scoring(scores) => scores.left(),
                    Stage::Writing(_) => {
                        wants.push(Want::Write);
                        continue;
                    }
                };
                wants.push(Want::Read {
                    // A stopped job ends at once with its next part.
                    left: if run.job.cancel.is_cancelled() { 0 } else { left },
                    waited: run.waited,
                    fixed: self.backend.row_seconds(run.start + run.prompt),
                });
            }
        }
        let turn = schedule::turn(&wants, self.backend.prefill_rows(), self.pace, self.rounds);
        self.rounds = if turn.read.is_some() { 0 } else { self.rounds } + usize::from(!turn.write.is_empty());
        if let Some(read) = turn.read {
            for (i, id) in ids.iter().enumerate() {
                if let Some(run) = self.slots.get_mut(id).and_then(|slot| slot.run.as_mut()) {
                    run.waited = if i == read.reader { 0 } else { run.waited + 1 };
                }
            }
            if let Some(id) = ids.get(read.reader) {
                let shared = !turn.write.is_empty();
                self.part(*id, |worker, run| match run.stage {
                    Stage::Scoring(_) => worker.score(run, shared),
                    Stage::Reading | Stage::Writing(_) => worker.read(run, read, shared),
                });
            }
        }
        let writers: Vec<SequenceId> = turn.write.iter().filter_map(|i| ids.get(*i)).copied().collect();
        match writers.as_slice() {
            [] => {}
            [one] => self.part(*one, Self::write),
            several => self.write_several(several, turn.rows),
        }
    }

    /// Runs one part of a job. Its failure does not affect other sequences.
    fn part(&mut self, sequence: SequenceId, work: impl FnOnce(&mut Self, &mut Run) -> Result<Now, DecodeError>) {
        let Some(mut run) = self.slots.get_mut(&sequence).and_then(|slot| slot.run.take()) else { return };
        let done = guarded(|| {
            self.take(sequence)?;
            work(self, &mut run)
        });
        self.conclude(sequence, run, done);
    }

    fn conclude(&mut self, sequence: SequenceId, mut run: Run, done: Result<Now, DecodeError>) {
        let id = run.id();
        let done = done.and_then(|now| match now {
            Now::Continues | Now::Stalled => {
                run.stalled = matches!(now, Now::Stalled);
                Ok(Some(run))
            }
            Now::Ended(ended, scored) => guarded(|| self.finish(run, ended, scored)).map(|()| None),
        });
        match done {
            Ok(Some(run)) => {
                if let Some(slot) = self.slots.get_mut(&sequence) {
                    slot.run = Some(run);
                }
            }
            // The job's reservation is free.
            Ok(None) => {
                self.ended = Some(Instant::now());
                self.go_on();
            }
            Err(error) => self.fail(sequence, id, &error),
        }
    }

    fn read(&mut self, run: &mut Run, turn: Read, shared: bool) -> Result<Now, DecodeError> {
        let rows = turn.rows;
        let left = run.job.prompt.get(run.prompt..).unwrap_or_default();
        if !left.is_empty() && run.job.cancel.is_cancelled() {
            self.all_read(run)?;
            return Ok(Now::Ended(Ended::Cancelled, Vec::new()));
        }
        if let Some(chunk) = left.get(..rows.min(left.len())).filter(|chunk| !chunk.is_empty()) {
            if !self.room_for_rows(run.id(), chunk.len())? {
                return Ok(Now::Stalled);
            }
            let begun = Instant::now();
            let following = left.len() - chunk.len();
            match following {
                0 => self.live.prefill(&mut self.backend, &self.model, chunk)?,
                _ => self.live.prefill_state(&mut self.backend, &self.model, chunk)?,
            }
            self.live.advance(&mut self.backend, chunk.len())?;
            run.prompt += chunk.len();
            self.decoder.read(&mut self.backend, &self.model, &self.live, chunk, following)?;
            // The device's queue holds one chunk at a time: a request that arrives meanwhile waits for that one alone.
            // The device idles for the tenth of a millisecond that the next chunk's first launch takes.
            self.backend.synchronize().map_err(ModelError::from)?;
            let whole =
                if shared { chunk.len() == rows } else { chunk.len() >= WHOLE.min(rows) && run.prompt >= WHOLE };
            self.pace.note(chunk.len(), begun.elapsed().as_secs_f64(), turn.fixed, whole, shared);
            let tokens_per_s = run.speed.add(chunk.len() as u64, Instant::now());
            let (done, total) = (run.prompt as u64, run.job.prompt.len() as u64);
            self.send(EngineEvent::Reading { id: run.id(), done, total, tokens_per_s });
        }
        if run.prompt < run.job.prompt.len() {
            return Ok(Now::Continues);
        }
        self.all_read(run)?;
        match (run.job.generate.clone(), run.job.score.clone()) {
            (Some(request), _) => {
                run.begun = Instant::now();
                (run.stage, run.speed) = (Stage::Writing(self.live.position()), Speed::new(run.begun));
                let round = self.decoder.begin(&mut self.backend, &self.model, &mut self.live, &request)?;
                Ok(self.report(run, round))
            }
            (None, Some(scoring)) => self.begin_scores(run, &scoring),
            (None, None) => {
                if run.prompt > 0 {
                    self.decoder.keep_last(&mut self.backend, &self.model, &mut self.live)?;
                }
                Ok(Now::Ended(Ended::Read, Vec::new()))
            }
        }
    }

    fn all_read(&mut self, run: &mut Run) -> Result<(), DecodeError> {
        self.backend.synchronize().map_err(ModelError::from)?;
        run.stats.prefilled_tokens = run.prompt as u64;
        run.stats.prefill_ms = run.begun.elapsed().as_secs_f64() * 1e3;
        Ok(())
    }

    fn write(&mut self, run: &mut Run) -> Result<Now, DecodeError> {
        if run.job.cancel.is_cancelled() {
            return Ok(Now::Ended(Ended::Cancelled, Vec::new()));
        }
        if let Some(now) = self.no_room_to_write(run, MAX_VERIFY_ROWS)? {
            return Ok(now);
        }
        let round = self.decoder.round(&mut self.backend, &self.model, &mut self.live)?;
        Ok(self.report(run, round))
    }

    /// If no other sequence can free memory, an answer ends as at the end of its context.
    fn no_room_to_write(&mut self, run: &Run, rows: usize) -> Result<Option<Now>, DecodeError> {
        match self.room_for_rows(run.id(), rows) {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(Now::Stalled)),
            Err(error) if room::for_want_of_memory(&error) => {
                self.send(EngineEvent::Note(format!("An answer ends early: {error}.")));
                Ok(Some(Now::Ended(Ended::Context, Vec::new())))
            }
            Err(error) => Err(error),
        }
    }

    /// A decode round of several sequences: one pass over the weights for all of them, with at most `rows` rows each.
    fn write_several(&mut self, ids: &[SequenceId], rows: usize) {
        let mut proposed: Vec<Waiting> = Vec::with_capacity(ids.len());
        for id in ids {
            proposed.extend(self.propose(*id, rows, ids.len()));
            self.in_pass = proposed.len();
        }
        self.in_pass = 0;
        let Some(first) = proposed.first().map(|p| p.sequence) else { return };
        let verified = guarded(|| {
            self.take(first)?;
            self.verify(&proposed)
        });
        let mut rows = match verified {
            Ok(rows) => rows.into_iter(),
            Err(error) => {
                for waiting in proposed {
                    self.fail(waiting.sequence, waiting.run.id(), &error);
                }
                return;
            }
        };
        // Emptying a sequence drops the attention mass of this pass, so it follows after all sequences.
        let mut failed = Vec::new();
        for Waiting { sequence, mut run, proposal } in proposed {
            let own: Vec<TopLogits> = rows.by_ref().take(proposal.rows().len()).collect();
            let round = guarded(|| {
                self.take(sequence)?;
                let (b, model, live) = (&mut self.backend, &self.model, &mut self.live);
                self.decoder.settle(b, model, live, *proposal, &own, ids.len())
            });
            match round {
                Ok(round) => {
                    let now = self.report(&mut run, round);
                    self.conclude(sequence, run, Ok(now));
                }
                Err(error) => failed.push((sequence, run.id(), error)),
            }
        }
        for (sequence, id, error) in failed {
            self.fail(sequence, id, &error);
        }
    }

    /// The rows of one of `sequences` for a shared pass; `None` if its part ended without them.
    fn propose(&mut self, sequence: SequenceId, rows: usize, sequences: usize) -> Option<Waiting> {
        let mut run = self.slots.get_mut(&sequence)?.run.take()?;
        let proposed = guarded(|| {
            self.take(sequence)?;
            // Each sequence waits for its own rows in flight, so that other sequences do not wait.
            if run.job.cancel.is_cancelled() || self.backend.rows_in_flight() {
                return self.write(&mut run).map(Err);
            }
            if let Some(now) = self.no_room_to_write(&run, rows)? {
                return Ok(Err(now));
            }
            let (b, model) = (&mut self.backend, &self.model);
            match self.decoder.propose(b, model, &self.live, rows, sequences)? {
                Proposed::Over(round) => Ok(Err(self.report(&mut run, round))),
                Proposed::Rows(proposal) => Ok(Ok(proposal)),
            }
        });
        match proposed {
            Ok(Ok(proposal)) => return Some(Waiting { sequence, run, proposal }),
            Ok(Err(now)) => self.conclude(sequence, run, Ok(now)),
            Err(error) => self.conclude(sequence, run, Err(error)),
        }
        None
    }

    fn verify(&mut self, proposed: &[Waiting]) -> Result<Vec<TopLogits>, DecodeError> {
        let Some((own, others)) = proposed.split_first() else { return Ok(Vec::new()) };
        let mut rows_of_others = Vec::with_capacity(others.len());
        // Both are sorted by sequence number.
        let mut next = others.iter().peekable();
        for (id, slot) in &mut self.slots {
            if let Some(waiting) = next.next_if(|waiting| waiting.sequence == *id)
                && let Some(aside) = slot.aside()
            {
                rows_of_others.push((&mut aside.sequence, waiting.proposal.rows()));
            }
        }
        self.live.verify_alongside(&mut self.backend, &self.model, own.proposal.rows(), &mut rows_of_others)?;
        let rows = proposed.iter().map(|waiting| waiting.proposal.rows().len()).sum();
        Ok(self.live.top_logits(&mut self.backend, rows)?)
    }

    fn report(&mut self, run: &mut Run, round: Round) -> Now {
        run.stats.generated_tokens += round.tokens.len() as u64;
        let tokens_per_s = run.speed.add(round.tokens.len() as u64, Instant::now());
        if !round.tokens.is_empty() {
            let Round { tokens, looked, likely, .. } = round;
            self.send(EngineEvent::Tokens { id: run.id(), tokens, tokens_per_s, looked, likely });
        }
        match round.ended {
            Some(ended) => Now::Ended(ended, Vec::new()),
            None if run.job.cancel.is_cancelled() => Now::Ended(Ended::Cancelled, Vec::new()),
            None => Now::Continues,
        }
    }

    fn finish(&mut self, mut run: Run, ended: Ended, scored: Vec<Vec<f32>>) -> Result<(), DecodeError> {
        let (mut generated, mut looked_at) = (0, LookedAt::default());
        if let Stage::Writing(from) = run.stage {
            generated = self.live.position() - from;
            run.stats.decode_ms = run.begun.elapsed().as_secs_f64() * 1e3;
            run.stats.spec = self.decoder.stats().clone();
            looked_at = self.decoder.looked_at(&mut self.backend, &self.model, &mut self.live)?;
            let tokens_per_s = rate(run.stats.generated_tokens, run.begun.elapsed());
            tracing::debug!(tokens_per_s, ?ended, "answer");
        }
        let (at, read) = (self.live.position(), run.start + run.prompt);
        let (prompt, completion) = (run.job.prompt.get(..run.prompt), self.decoder.history().get(read..at));
        let segment = match (prompt, completion) {
            (Some(prompt), Some(completion)) => self.live.end_segment(&self.info.fingerprint, prompt, completion),
            _ => return Err(DecodeError::Order("a state without the tokens that it has read")),
        };
        let image = if run.job.export {
            let rows = self.live.export_rows(&mut self.backend, run.start..at)?;
            let rows = RowsImage { segment, ..rows };
            let mut end = self.live.export_end(&mut self.backend)?;
            end.tensors.extend(self.decoder.export(&mut self.backend, &self.model)?);
            Some(StateImage { rows, end: Some(end) })
        } else {
            None
        };
        // Rows may still be in flight: later waits for them belong to another job.
        self.backend.stop_on(None);
        let id = run.id();
        let done = JobDone {
            ended,
            prompt_in_state: run.prompt as u64,
            generated_in_state: generated as u64,
            image,
            stats: run.stats,
            looked_at,
            scored,
            likely: run.likely,
            memory: self.backend.memory(),
        };
        self.send(EngineEvent::Done { id, done: Box::new(done) });
        Ok(())
    }
}
