//! The engine thread: owns backend, model, live state and decoder, and does one [`Command`] after another.
//!
//! It never touches files of a session, never knows text, and never waits for whoever reads its events. A panic in it
//! becomes a fatal [`EngineEvent::Failed`]. What a job leaves in the state is exactly what [`EngineEvent::Done`] says:
//! its given tokens (all of them, or whole chunks of them when it was stopped while reading) and its generated tokens,
//! except for the last one drawn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::open;
use super::speculate::{DecodeError, Decoder};
use super::speed::{Speed, rate};
use crate::backend::BackendError;
use crate::backend::draft::DraftOps;
use crate::model::score::log_prob;
use crate::model::{Live, Model, ModelError};
use crate::protocol::engine::{
    CheckpointImage, Command, Ended, EngineEvent, EngineFault, EngineOptions, Generate, Job, JobStats, LookedAt,
    ModelInfo, RowSource, Scoring, StateImage, Token,
};

/// Commands that may wait. The desk sends the next one after the last one's answer; more than two never wait.
const COMMANDS: usize = 4;

/// The engine thread as the desk holds it. Dropping it without [`Command::Shutdown`] also ends the thread: its channel
/// closes.
pub struct Engine {
    /// To it.
    pub commands: Sender<Command>,
    /// From it. Unbounded: at most one event per round or chunk, and the engine must never wait for the desk.
    pub events: Receiver<EngineEvent>,
    /// The thread.
    pub thread: JoinHandle<()>,
}

/// Starts the thread; the model is loaded on it.
///
/// # Errors
/// The system has no room for a thread.
pub fn spawn(options: EngineOptions) -> std::io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        let run = AssertUnwindSafe(|| open::run(&options, &inbox, &outbox));
        let failure = match catch_unwind(run) {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => open::Failure { error: panic_text(panic.as_ref()), code: 1 },
        };
        let open::Failure { error: why, code } = failure;
        // Nobody listens any more when the program is ending.
        let _ = outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, code } });
    })?;
    Ok(Engine { commands, events, thread })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("the engine stopped unexpectedly ({text}); the conversation is saved, start again to go on")
}

/// A failed command in the desk's words.
fn fault_of(error: &DecodeError) -> EngineFault {
    match error {
        DecodeError::Model(ModelError::Backend(BackendError::Stopped)) => EngineFault::Stopped,
        DecodeError::Model(ModelError::Backend(BackendError::Rows(fault))) => EngineFault::RowsLost(fault.clone()),
        DecodeError::Model(_) | DecodeError::Draft(_) | DecodeError::NotFinite { .. } | DecodeError::Order(_) => {
            EngineFault::Device(error.to_string())
        }
    }
}

/// The loaded engine.
pub(super) struct Worker<'c, B: DraftOps> {
    pub(super) backend: B,
    pub(super) model: Model<B>,
    pub(super) live: Live<B>,
    pub(super) decoder: Decoder<B>,
    pub(super) info: ModelInfo,
    pub(super) events: &'c Sender<EngineEvent>,
}

/// What a job did until it ended.
struct Outcome {
    ended: Ended,
    prompt: usize,
    generated: usize,
    stats: JobStats,
    looked_at: LookedAt,
    scored: Vec<Vec<f32>>,
}

impl<B: DraftOps> Worker<'_, B> {
    /// Answers commands until told to end, or until the desk is gone.
    pub(super) fn serve(mut self, commands: &Receiver<Command>) {
        self.send(EngineEvent::Ready(self.info.clone()));
        for command in commands {
            let (id, failed) = match command {
                Command::Restore { id, keep, rows, end, history } => {
                    (id, self.restore(id, keep, &rows, end.as_ref(), &history).err())
                }
                Command::Run(job) => (job.id, self.run(&job).err()),
                Command::Shutdown => return,
            };
            if let Some(error) = failed {
                self.fail(id, &error);
            }
        }
    }

    fn send(&self, event: EngineEvent) {
        // The desk is gone only when the program ends; the command channel closes with it.
        let _ = self.events.send(event);
    }

    /// Reports a failure and empties the state, so that the next command starts from something known.
    fn fail(&mut self, id: u64, error: &DecodeError) {
        let reset = self.live.reset(&mut self.backend).map_err(DecodeError::from);
        let reset = reset.and_then(|()| self.decoder.restore(&mut self.backend, &[], None));
        let fault = match reset {
            Ok(()) => fault_of(error),
            Err(second) => {
                EngineFault::Fatal { why: format!("{error}; and the device did not recover: {second}"), code: 4 }
            }
        };
        self.send(EngineEvent::Failed { id, fault });
    }

    fn restore(
        &mut self,
        id: u64,
        keep: u64,
        rows: &[Arc<dyn RowSource>],
        end: Option<&CheckpointImage>,
        history: &[Token],
    ) -> Result<(), DecodeError> {
        let begun = Instant::now();
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let (live, backend, decoder) = (&mut self.live, &mut self.backend, &mut self.decoder);
        // The index over a long history is made while its rows are copied.
        std::thread::scope(|scope| {
            let index = scope.spawn(|| decoder.look_up_in(history));
            let restored = live.restore_from(backend, keep, rows, end);
            // It has no way to fail but a panic, which goes the way of this thread's own.
            if let Err(panic) = index.join() {
                std::panic::resume_unwind(panic);
            }
            restored
        })?;
        if history.len() != self.live.position() {
            let text = format!("{} tokens for a state of {}", history.len(), self.live.position());
            return Err(ModelError::Image(text).into());
        }
        self.decoder.restore(&mut self.backend, history, end)?;
        self.send(EngineEvent::Restored { id, ms: begun.elapsed().as_secs_f64() * 1e3 });
        Ok(())
    }

    fn run(&mut self, job: &Job) -> Result<(), DecodeError> {
        self.backend.stop_on(&job.cancel);
        let start = self.live.position();
        let (stats, looked_at) = (JobStats::default(), LookedAt::default());
        let mut outcome = Outcome { ended: Ended::Read, prompt: 0, generated: 0, stats, looked_at, scored: Vec::new() };
        let read_all = self.read(job, &mut outcome)?;
        match (&job.generate, read_all) {
            (_, false) => outcome.ended = Ended::Cancelled,
            (None, true) => {
                if let Some(scoring) = &job.score {
                    self.score(job, scoring, &mut outcome)?;
                }
            }
            (Some(generate), true) => self.generate(job, generate, &mut outcome)?,
        }
        let image = if job.export {
            let rows = self.live.export_rows(&mut self.backend, start..self.live.position())?;
            let mut end = self.live.export_end(&mut self.backend)?;
            end.tensors.extend(self.decoder.export(&mut self.backend, &self.model)?);
            Some(StateImage { rows, end: Some(end) })
        } else {
            None
        };
        self.send(EngineEvent::Done {
            id: job.id,
            ended: outcome.ended,
            prompt_in_state: outcome.prompt as u64,
            generated_in_state: outcome.generated as u64,
            image,
            stats: outcome.stats,
            looked_at: outcome.looked_at,
            scored: outcome.scored,
            memory: self.backend.memory(),
        });
        Ok(())
    }

    /// Prefill of the given tokens. False when it was stopped; what was read until then is in the state.
    fn read(&mut self, job: &Job, outcome: &mut Outcome) -> Result<bool, DecodeError> {
        let begun = Instant::now();
        let mut speed = Speed::new(begun);
        let needed = self.live.position() + job.prompt.len();
        if needed > self.live.limit() {
            return Err(ModelError::Context { needed, limit: self.live.limit() }.into());
        }
        self.live.begin_segment();
        for chunk in job.prompt.chunks(self.backend.prefill_rows()) {
            if job.cancel.is_cancelled() {
                break;
            }
            self.live.prefill(&mut self.backend, &self.model, chunk)?;
            self.live.advance(&mut self.backend, chunk.len())?;
            outcome.prompt += chunk.len();
            let following = job.prompt.len() - outcome.prompt;
            self.decoder.read(&mut self.backend, &self.model, &self.live, chunk, following)?;
            let tokens_per_s = speed.add(chunk.len() as u64, Instant::now());
            let (done, total) = (outcome.prompt as u64, job.prompt.len() as u64);
            self.send(EngineEvent::Reading { id: job.id, done, total, tokens_per_s });
        }
        self.backend.synchronize().map_err(ModelError::from)?;
        outcome.stats.prefilled_tokens = outcome.prompt as u64;
        outcome.stats.prefill_ms = begun.elapsed().as_secs_f64() * 1e3;
        Ok(outcome.prompt == job.prompt.len())
    }

    /// Scores a text behind the state once for each list of hidden blocks, and puts the state back each time.
    fn score(&mut self, job: &Job, scoring: &Scoring, outcome: &mut Outcome) -> Result<(), DecodeError> {
        let (b, live, model) = (&mut self.backend, &mut self.live, &self.model);
        let at = live.position();
        let Some((_, rows)) = scoring.tokens.split_last().filter(|(_, rows)| !rows.is_empty()) else {
            return Ok(());
        };
        let needed = at + rows.len();
        if needed > live.limit() {
            return Err(ModelError::Context { needed, limit: live.limit() }.into());
        }
        let end = live.export_end(b)?;
        for hidden in &scoring.hidden {
            if job.cancel.is_cancelled() {
                outcome.ended = Ended::Cancelled;
                break;
            }
            let mut scores = Vec::with_capacity(rows.len());
            live.hide_blocks(b, hidden);
            let done = live.score(b, model, rows, &|_| true, &mut |row, logits| {
                let token = scoring.tokens.get(row + 1).copied().unwrap_or_default();
                scores.push(log_prob(logits, token) as f32);
                Ok(())
            });
            live.hide_blocks(b, &[]);
            done?;
            live.restore(b, at, &[], Some(&end))?;
            outcome.scored.push(scores);
        }
        Ok(())
    }

    /// Decode until something ends it.
    fn generate(&mut self, job: &Job, generate: &Generate, outcome: &mut Outcome) -> Result<(), DecodeError> {
        let begun = Instant::now();
        let mut speed = Speed::new(begun);
        let from = self.live.position();
        let mut reported = 0u64;
        let mut round = self.decoder.begin(&mut self.backend, &self.model, &mut self.live, generate)?;
        outcome.ended = loop {
            reported += round.tokens.len() as u64;
            let tokens_per_s = speed.add(round.tokens.len() as u64, Instant::now());
            if !round.tokens.is_empty() {
                let (tokens, looked) = (round.tokens, round.looked);
                self.send(EngineEvent::Tokens { id: job.id, tokens, tokens_per_s, looked });
            }
            if let Some(ended) = round.ended {
                break ended;
            }
            if job.cancel.is_cancelled() {
                break Ended::Cancelled;
            }
            round = self.decoder.round(&mut self.backend, &self.model, &mut self.live)?;
        };
        outcome.generated = self.live.position() - from;
        outcome.stats.generated_tokens = reported;
        outcome.stats.decode_ms = begun.elapsed().as_secs_f64() * 1e3;
        outcome.stats.spec = self.decoder.stats().clone();
        outcome.looked_at = self.decoder.looked_at(&mut self.backend, &self.model, &mut self.live)?;
        tracing::debug!(tokens_per_s = rate(reported, begun.elapsed()), ?outcome.ended, "answer");
        Ok(())
    }
}
