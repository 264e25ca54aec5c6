//! The one executor: makes a path live in a slot of the engine, and runs steps after it as jobs, of which the last may
//! answer. Conversations, their branches (`execute`) and requests of the server run on it.
//!
//! After any failure the slot counts as empty; after a fatal one the engine is down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::Engine;
use super::{Done, Last, Path, Rendered, RuntimeError, Slot, Step, segments};
use crate::core::transcript::MessageId;
use crate::engine::protocol::{
    CheckpointImage, Command, Ended, EngineEvent, EngineFault, Job, JobDone, Likely, Looked, RowSource, SequenceId,
    StateImage, Token,
};
use crate::store::NewSegment;

#[derive(Debug, Default)]
pub(crate) struct PrefillStats {
    /// Tokens from kept or live state.
    pub(crate) reused: u64,
    pub(crate) read: u64,
    pub(crate) prefill_ms: f64,
    pub(super) ms: f64,
    /// The end of the last job, and the tokens that it generated.
    pub(crate) end: Option<Box<JobDone>>,
    pub(super) generated: Vec<Token>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) position: u64,
    /// Since the start of the first step.
    pub(super) elapsed: Duration,
}

pub(crate) struct Written<'a> {
    pub(crate) tokens: &'a [Token],
    pub(crate) looked: &'a [Looked],
    pub(crate) likely: &'a [Likely],
    pub(crate) tokens_per_s: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct ToAnswer {
    pub(crate) last: Last,
    /// The message that ends with the answer; `None` keeps nothing of the last step in the store (an aside).
    pub(crate) message: Option<MessageId>,
}

/// Receives the progress and the answer of [`Executor::run`]; `E` is the executor.
pub(crate) trait Sink<E> {
    /// True if it shows the progress.
    fn reading(&mut self, _executor: &mut E, _progress: Progress) -> bool {
        false
    }
    /// True if it added texts, which have to be on disk before the step is read.
    fn begins(&mut self, _executor: &mut E, _step: &Step) -> Done<bool> {
        Ok(false)
    }
    /// A step was read whole. `stats`: of the steps so far.
    fn ended(&mut self, _executor: &mut E, _step: &Step, _stats: &PrefillStats) {}
    fn tokens(&mut self, _executor: &mut E, _written: &Written<'_>) {}
    /// Called regularly, to save and to refresh numbers.
    fn tick(&mut self, _executor: &mut E) {}
}

impl<E> Sink<E> for () {}

pub(crate) trait Executor: Sized {
    fn parts(&mut self) -> (&mut Engine, &mut Slot);
    /// Waits for the next event of a command; `restores`: it makes a path live. True if a tick is due.
    async fn event(&mut self, command: u64, restores: bool) -> (Option<EngineEvent>, bool);

    fn keeps(&self) -> bool;
    fn exports(&self) -> bool {
        true
    }
    /// Keeps a segment with its state; `message` ends in it.
    fn keep(&mut self, segment: NewSegment, image: Option<StateImage>, message: Option<MessageId>);
    /// Called regularly before the first token of an answer; `tokens`: of the live path, or of the path to restore.
    fn not_answering(&mut self, _tokens: u64) {}
    async fn texts_on_disk(&mut self) {}
    /// `shown`: the sink shows it.
    fn reading(&mut self, _progress: Progress, _shown: bool) {}
    /// The job of a step has ended. `stats`: of the steps so far.
    fn step_ended(&mut self, stats: &PrefillStats, done: &JobDone);

    /// Makes a path live, if it is not yet, with the rows after the prefix that it shares with the live path, and the
    /// state at its end. Returns the duration in milliseconds.
    async fn make_live(
        &mut self,
        path: Path,
        rows: Vec<Arc<dyn RowSource>>,
        end: Option<CheckpointImage>,
    ) -> Done<f64> {
        let (_, slot) = self.parts();
        if slot.is_at(&path) {
            // The same tokens may belong to another text.
            slot.made(path);
            return Ok(0.0);
        }
        let (sequence, keep) = (slot.sequence, path.prefix(slot.live.common(&path)).position());
        let history = path.tokens();
        let id = start(self, |id| Command::Restore { id, sequence, keep, rows, end, history })?;
        restored(self, id, path).await
    }

    async fn copy(&mut self, from: SequenceId, path: Path) -> Done<f64> {
        let to = self.parts().1.sequence;
        let id = start(self, |id| Command::Fork { id, from, to })?;
        restored(self, id, path).await
    }

    /// Runs steps of a text after the live path, and answers the last one if `answer` is given. A stop ends it early.
    async fn run(
        &mut self,
        rendered: &Rendered,
        steps: Vec<Step>,
        mut answer: Option<ToAnswer>,
        sink: &mut (impl Sink<Self> + ?Sized),
    ) -> Done<PrefillStats> {
        let mut stats = PrefillStats { reused: self.parts().1.live.position(), ..PrefillStats::default() };
        let total = steps.iter().map(|s| s.prompt.len() as u64).sum();
        let (since, count) = (Instant::now(), steps.len());
        for (step, left) in steps.into_iter().zip((0..count).rev()) {
            if sink.begins(self, &step)? {
                let base = self.parts().1.live.clone();
                self.texts_on_disk().await;
                if !self.parts().1.is_at(&base) {
                    // The model process has ended meanwhile.
                    break;
                }
            }
            let answer = answer.take_if(|_| left == 0);
            let kept = self.keeps() && answer.as_ref().is_none_or(|a| a.message.is_some());
            let message = answer.as_ref().map_or(step.message, |a| a.message);
            let export = kept && self.exports();
            let progress = |done| {
                let done = stats.read + done;
                Progress { done, total, position: stats.reused + done, elapsed: since.elapsed() }
            };
            let (mut done, generated) = job(self, &step, answer.map(|a| a.last), export, progress, sink).await?;
            stats.read += done.prompt_in_state;
            stats.prefill_ms += done.stats.prefill_ms;
            let image = done.image.take();
            let (Engine { renderer, info, .. }, slot) = self.parts();
            let did = (&*done, generated.as_slice());
            let absorbed = segments::absorb(renderer, &info.fingerprint, &mut slot.live, rendered, &step, did);
            if absorbed.is_err() {
                slot.lose();
            }
            if let Some((segment, complete)) = absorbed.map_err(RuntimeError::Failed)?
                && kept
            {
                self.keep(segment, image, message.filter(|_| complete));
            }
            self.step_ended(&stats, &done);
            if done.prompt_in_state == step.prompt.len() as u64 {
                sink.ended(self, &step, &stats);
            }
            let stopped = done.ended == Ended::Cancelled;
            (stats.end, stats.generated) = (Some(done), generated);
            if stopped {
                break;
            }
        }
        Ok(stats)
    }
}

fn start<E: Executor>(executor: &mut E, command: impl FnOnce(u64) -> Command) -> Done<u64> {
    let (engine, _) = executor.parts();
    let id = engine.id();
    engine.send(command(id)).map(|()| id).map_err(|fault| failed(executor, fault))
}

fn failed<E: Executor>(executor: &mut E, fault: EngineFault) -> RuntimeError {
    let (engine, slot) = executor.parts();
    engine.failed(slot, &fault);
    fault.into()
}

async fn restored<E: Executor>(executor: &mut E, id: u64, path: Path) -> Done<f64> {
    loop {
        match executor.event(id, true).await.0 {
            Some(EngineEvent::Restored { ms, .. }) => {
                executor.parts().1.made(path);
                return Ok(ms);
            }
            Some(EngineEvent::Failed { fault, .. }) => return Err(failed(executor, fault)),
            _ => executor.not_answering(path.position()),
        }
    }
}

async fn job<E: Executor>(
    executor: &mut E,
    step: &Step,
    last: Option<Last>,
    export: bool,
    progress: impl Fn(u64) -> Progress,
    sink: &mut (impl Sink<E> + ?Sized),
) -> Done<(Box<JobDone>, Vec<Token>)> {
    let (_, slot) = executor.parts();
    let (sequence, prompt, cancel) = (slot.sequence, step.prompt.clone(), slot.cancel.clone());
    let (generate, score) = match last {
        None => (None, None),
        Some(Last::Generate(generate)) => (Some(generate), None),
        Some(Last::Score(score)) => (None, Some(score)),
    };
    let id = start(executor, |id| Command::Run(Job { id, sequence, prompt, generate, score, export, cancel }))?;
    let mut generated = Vec::new();
    loop {
        let (event, due) = executor.event(id, false).await;
        match event {
            Some(EngineEvent::Reading { done, .. }) => {
                let shown = sink.reading(executor, progress(done));
                executor.reading(progress(done), shown);
            }
            Some(EngineEvent::Tokens { tokens, tokens_per_s, looked, likely, .. }) => {
                let written = Written { tokens: &tokens, looked: &looked, likely: &likely, tokens_per_s };
                sink.tokens(executor, &written);
                generated.extend_from_slice(&tokens);
            }
            Some(EngineEvent::Done { done, .. }) => return Ok((done, generated)),
            Some(EngineEvent::Failed { fault, .. }) => return Err(failed(executor, fault)),
            _ => {}
        }
        if due {
            sink.tick(executor);
            if generated.is_empty() {
                let position = executor.parts().1.live.position();
                executor.not_answering(position);
            }
        }
    }
}
