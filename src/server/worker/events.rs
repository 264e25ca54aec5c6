//! The engine's events and their effect on a request: tokens, the end of a step, the end of an answer, failures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Worker;
use super::lanes::{Doing, Lanes, Running};
use crate::core::transcript::Finish;
use crate::engine::protocol::{Command, Ended, EngineEvent, EngineFault, JobDone, ModelInfo};
use crate::runtime::path::Path;
use crate::runtime::segments;
use crate::server::EngineIs;
use crate::server::answer::Answer;
use crate::server::notice::{Notice, Usage};
use crate::server::refusal::Refusal;

impl Worker {
    pub(super) fn on_engine(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Loading { what, done } => {
                self.shared.set_engine(EngineIs::Loading { what, done });
            }
            EngineEvent::Ready(info) => self.ready(info),
            EngineEvent::Failed { id, fault } => self.failed(id, fault),
            EngineEvent::Restored { id, .. } => self.restored(id),
            // Concerns the engine as a whole, not one answer.
            EngineEvent::Note(note) => tracing::warn!("{note}"),
            EngineEvent::Waiting { .. } => {}
            EngineEvent::Evicted { sequence } => self.lanes.evicted(sequence),
            EngineEvent::Reading { id, done, .. } => {
                if let Some(running) = self.lanes.job(id) {
                    let done = running.usage.cached_tokens + running.read + done;
                    running.ask.to.report(Notice::Reading { done, total: running.usage.prompt_tokens });
                }
            }
            EngineEvent::Tokens { id, tokens, likely, .. } => {
                let shared = Arc::clone(&self.shared);
                if let Some(running) = self.lanes.job(id) {
                    let Running { answer, ask, cancel, .. } = running;
                    if !answer.take(&shared, ask, &tokens, likely) {
                        cancel.cancel();
                    }
                }
            }
            EngineEvent::Done { id, done } if self.is_scoring(id) => self.scored(id, *done),
            EngineEvent::Done { id, done } => {
                if self.lanes.job(id).is_some()
                    && let Some(at) = self.lanes.of(id)
                    && let Some(running) = self.lanes.take(at)
                {
                    self.job_done(at, running, done);
                }
            }
        }
    }

    fn ready(&mut self, info: ModelInfo) {
        self.shared.set_engine(EngineIs::Ready(Box::new(info.clone())));
        self.lanes = Lanes::new(info.max_sequences.max(1));
        self.model = Some(info);
    }

    fn restored(&mut self, id: u64) {
        let Some(at) = self.lanes.of(id) else { return };
        let Some(mut running) = self.lanes.take(at) else { return };
        if let Doing::Restoring(_, path) = &mut running.doing
            && let Some(lane) = self.lanes.get_mut(at)
        {
            lane.live = std::mem::take(path);
            return self.next_step(at, running);
        }
        self.put(at, running);
    }

    fn is_scoring(&self, id: u64) -> bool {
        self.lanes.running().any(|r| matches!(&r.doing, Doing::Scoring(of) if *of == id))
    }

    /// Reports the scores of a prompt, and has the answer planned if the request wants one. The state is not kept:
    /// scoring clients send thousands of texts.
    fn scored(&mut self, id: u64, done: JobDone) {
        let Some(at) = self.lanes.of(id) else { return };
        let Some(running) = self.lanes.take(at) else { return };
        if done.ended == Ended::Cancelled {
            return self.refuse(&running.ask, Refusal::gone());
        }
        let Running { mut ask, answer, .. } = *running;
        ask.params.score = None;
        ask.keep = false;
        let tokens = answer.generated;
        let count = tokens.len() as u64;
        ask.to.report(Notice::Scored { tokens, likely: done.likely });
        if ask.params.max_tokens > 0 {
            return self.queue_each(ask, true);
        }
        for ask in ask.each() {
            ask.to.report(Notice::Begun { index: ask.index, prompt_tokens: count, cached_tokens: 0 });
            Answer::new(&self.shared, &ask).finish(&ask, Finish::Length, Usage::default());
        }
        self.shared.metrics.prompt_tokens.fetch_add(count, Ordering::Relaxed);
    }

    fn job_done(&mut self, at: usize, mut running: Box<Running>, done: Box<JobDone>) {
        let placeholder = Doing::Restoring(0, Path::default());
        let doing = std::mem::replace(&mut running.doing, placeholder);
        let (Doing::Running(_, step), Some(lane)) = (doing, self.lanes.get_mut(at)) else {
            return self.refuse(&running.ask, Refusal::internal("internal error: a job nobody asked for"));
        };
        let did = (&*done, running.answer.generated.as_slice());
        let fingerprint = self.model.as_ref().map_or("", |m| m.fingerprint.as_str());
        let rendered = &running.ask.prompt.rendered;
        match segments::absorb(&self.shared.renderer, fingerprint, &mut lane.live, rendered, &step, did) {
            Ok(Some((content, _))) if running.ask.keep && !self.shared.cache.is_damaged() => {
                self.keep.segment(content, done.image);
                running.grown = true;
            }
            Ok(_) => {}
            Err(why) => {
                self.empty(at);
                return self.refuse(&running.ask, Refusal::internal(why));
            }
        }
        running.read += done.prompt_in_state;
        running.usage.prompt_ms += done.stats.prefill_ms;
        running.usage.predicted_ms += done.stats.decode_ms;
        running.usage.drafted_tokens += done.stats.spec.drafted;
        running.usage.accepted_tokens += done.stats.spec.accepted;
        if done.ended == Ended::Read && !running.steps.is_empty() {
            return self.next_step(at, running);
        }
        let metrics = &self.shared.metrics;
        metrics.drafted_tokens.fetch_add(done.stats.spec.drafted, Ordering::Relaxed);
        metrics.accepted_tokens.fetch_add(done.stats.spec.accepted, Ordering::Relaxed);
        self.answered(at, *running, done.ended.finish());
    }

    /// An answer is complete, or was cancelled.
    fn answered(&mut self, at: usize, mut running: Running, finish: Finish) {
        running.answer.close(&running.ask);
        running.usage.completion_tokens = running.answer.tokens();
        running.usage.thought_tokens = running.answer.thought_tokens();
        self.hold(at, &mut running, finish);
        // The slot stays live for a request that continues here, until the memory is needed.
        if let Some(sequence) = self.lanes.get(at).map(|l| l.sequence) {
            self.send(Command::MayEvict { sequence });
        }
        // Count before the event: a client that has its answer finds it in the counters.
        self.shared.metrics.generated_tokens.fetch_add(running.answer.tokens(), Ordering::Relaxed);
        running.answer.finish(&running.ask, finish, running.usage);
    }

    /// Stores the answer's record before the answer is reported complete: a client that names the answer finds it.
    fn hold(&mut self, at: usize, running: &mut Running, finish: Finish) {
        let answer = &running.answer;
        let finish = if answer.ended_itself() { Finish::Stop } else { finish };
        let mut named = running.ask.record.take().filter(|_| finish != Finish::Stopped);
        if let Some(record) = &mut named {
            record.complete(answer.sent(), &running.usage, finish);
        }
        let keep = running.ask.keep;
        let mut tip = None;
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.kept &= keep;
            tip = lane.live.head().filter(|_| keep);
        }
        if !self.shared.cache.is_damaged() && (named.is_some() || (running.grown && tip.is_some())) {
            self.keep.hold(tip, named.as_ref());
        }
        if let Some(record) = named {
            self.shared.records.add(record);
        }
    }

    fn failed(&mut self, id: u64, fault: EngineFault) {
        if let EngineFault::Fatal { why, exit } = fault {
            return self.down(why, exit);
        }
        let Some(at) = self.lanes.of(id) else { return };
        let Some(running) = self.lanes.take(at) else { return };
        self.empty(at);
        match fault {
            EngineFault::RowsLost(fault) if running.answer.generated.is_empty() => {
                let why = fault.to_string();
                self.plan_again(*running, &why, Some(fault));
            }
            EngineFault::RowsLost(fault) => self.refuse(&running.ask, Refusal::internal(fault.to_string())),
            EngineFault::Stopped => self.refuse(&running.ask, Refusal::gone()),
            // Neither memory nor a retry helps, and clients retry automatically after a 500.
            EngineFault::Stuck(why) => self.refuse(&running.ask, Refusal::new(422, "grammar_stuck", why)),
            // Memory may be the cause: idle live slots hold some.
            EngineFault::Device(why) if running.answer.generated.is_empty() && self.release_idle() => {
                self.plan_again(*running, &why, None);
            }
            // The engine gave its slot to another request before it began, or the slot held too little state: it is
            // empty now.
            fault @ (EngineFault::Evicted | EngineFault::ReadAgain(_)) => {
                self.plan_again(*running, &fault.to_string(), None);
            }
            EngineFault::Device(why) if matches!(running.doing, Doing::Restoring(..)) => {
                self.plan_again(*running, &why, None);
            }
            EngineFault::Device(why)
            | EngineFault::TooLong(why)
            | EngineFault::Gone(why)
            | EngineFault::Fatal { why, .. } => {
                self.refuse(&running.ask, Refusal::internal(why));
            }
        }
    }

    /// Frees the memory of idle slots; true if there was any.
    fn release_idle(&mut self) -> bool {
        let idle = self.lanes.idle();
        idle.iter().for_each(|at| self.empty(*at));
        !idle.is_empty()
    }
}
