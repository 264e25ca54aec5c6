//! A request, from its plan to its record, as one function.

use std::sync::Arc;

use super::{GONE, Wait, Wake, Worker};
use crate::core::transcript::{Finish, MessageId};
use crate::engine::protocol::{
    Command, Ended, EngineEvent, EngineFault, Generate, JobDone, Look, RowsFault, Sampling, Scoring, StateImage, Token,
};
use crate::runtime::RuntimeError;
use crate::runtime::baton::Held;
use crate::runtime::executor::{Executor, PrefillStats, Progress, Sink, ToAnswer, Written};
use crate::runtime::link::{Engine, Last, Slot};
use crate::runtime::path::Path;
use crate::runtime::segments::Step;
use crate::server::answer::Answer;
use crate::server::planner::Wanted;
use crate::server::{Ask, Event, Notice, Plan, Refusal, Result, Usage, Whole};
use crate::store::{NewSegment, SegmentKind};
use crate::text::steer::steering;

/// How often a request is planned again because kept state turned out damaged.
const ATTEMPTS: u32 = 8;
/// Segments of requests end no message of a conversation.
const NO_MESSAGE: MessageId = MessageId(0);

pub(super) struct Request {
    worker: Held<Worker, ()>,
    ask: Ask,
    /// Its slot during an attempt.
    at: usize,
    /// The attempt has added kept state.
    grown: bool,
    /// The attempt failed and another plan may help: it must avoid these rows.
    again: Option<Option<RowsFault>>,
}

impl Request {
    pub(super) async fn run(worker: Held<Worker, ()>, ask: Ask) {
        let mut request = Request { worker, ask, at: 0, grown: false, again: None };
        let done = match request.worker.wake.take() {
            Some(Err(refusal)) => Err(refusal),
            _ => request.answer().await,
        };
        let Request { mut worker, mut ask, .. } = request;
        match done {
            Err(refusal) => _ = ask.to.report(Notice::Failed(refusal)),
            // Its prompt is scored; now it splits into its answers.
            Ok(()) if ask.params.score.take().is_some() && ask.params.max_tokens > 0 => {
                ask.keep = false;
                worker.queue(ask);
            }
            Ok(()) => {}
        }
    }

    async fn answer(&mut self) -> Result<()> {
        let mut lost = None;
        for attempt in 0.. {
            let plan = self.placed(lost.take()).await?;
            let done = match self.ask.params.score {
                None => self.attempt(plan, attempt == 0).await,
                Some(most) => self.score(plan, most).await,
            };
            self.worker.slots.leave(self.at);
            match self.again.take() {
                Some(rows) if attempt < ATTEMPTS => lost = rows,
                _ => return done,
            }
        }
        Ok(())
    }

    /// Has the request planned and takes a slot for it. Waits for a running prefill that shares its beginning.
    async fn placed(&mut self, mut lost: Option<RowsFault>) -> Result<Plan> {
        let mut anew = false;
        loop {
            let plan = self.planned(lost.take()).await?;
            let from = plan.base.text_bytes();
            if let Some(prefill) = self.worker.slots.ahead_of(&self.ask, from) {
                self.wait(Wait::Turn(prefill)).await?;
                anew = false;
                continue;
            }
            // Another prefill may have finished meanwhile. Plan again only once: state may exist and still be unusable.
            anew = !anew && self.worker.slots.have_more(&self.ask, from);
            let can_be_put_back = plan.kept.is_some() || plan.base.segments().is_empty();
            // Without a slot, another request has taken over the state of this plan.
            if let Some(at) = self.worker.slots.place_for(&plan.base, can_be_put_back).filter(|_| !anew) {
                self.at = at;
                self.worker.slots.occupy(at, &mut self.ask, &plan);
                return Ok(plan);
            }
        }
    }

    async fn planned(&mut self, lost: Option<RowsFault>) -> Result<Plan> {
        let Worker { engine, slots, keep, planned, shared, .. } = &mut *self.worker;
        let Ask { prompt, params, cancel, .. } = &self.ask;
        let (id, model) = (engine.id(), engine.info.clone());
        let (live, fresh, prompt, cancel) = (slots.live(), keep.fresh.clone(), prompt.clone(), cancel.clone());
        let wanted = Wanted { id, model, prompt, scored: params.score.is_some(), cancel, live, fresh, lost };
        let begun = wanted.begin(shared, planned.clone());
        begun.map_err(|e| Refusal::internal(format!("a request cannot be planned: {e}")))?;
        match self.wait(Wait::Event(id)).await? {
            Wake::Plan(plan) => Ok(plan),
            Wake::Engine(EngineEvent::Failed { fault, .. }) => Err(Refusal::internal(fault.to_string())),
            Wake::Go | Wake::Engine(_) => Err(Refusal::internal(GONE)),
        }
    }

    async fn attempt(&mut self, plan: Plan, first: bool) -> Result<()> {
        let Plan { base, kept, steps } = plan;
        let cached_tokens = base.position();
        let prompt_tokens = cached_tokens + steps.iter().map(|s| s.prompt.len() as u64).sum::<u64>();
        if first {
            let begun = Usage { prompt_tokens, cached_tokens, ..Usage::default() };
            self.ask.to.report(Notice::Answer(self.ask.index, Event::Begun(begun)));
            self.worker.shared.metrics.tokens(&begun);
        }
        self.grown = false;
        let mut answer = Answer::new(&self.worker.shared, &self.ask);
        let last = Last::Generate(self.generate(&answer)?);
        let (common, kept) = (self.parts().1.live.common(&base), kept.unwrap_or_default());
        let live = self.make_live(base, kept.rows.into_iter().skip(common).collect(), kept.end).await;
        live.map_err(|e| self.failed(e, true, 0))?;
        let rendered = Arc::clone(&self.ask.prompt.rendered);
        let last = ToAnswer { last, message: Some(NO_MESSAGE) };
        let stats = self.run(&rendered, steps, Some(last), &mut answer).await;
        let stats = stats.map_err(|e| self.failed(e, false, answer.tokens))?;
        self.complete(answer, prompt_tokens, &stats);
        Ok(())
    }

    fn generate(&self, answer: &Answer) -> Result<Generate> {
        let (params, shared) = (&self.ask.params, &self.worker.shared);
        let steering = steering(params.watched(), &shared.renderer.model().tokenizer, answer.begin, 0)
            .map_err(|e| Refusal::internal(e.to_string()))?;
        // Each of several answers samples with its own seed.
        let seed = params.sampling.seed.wrapping_add(self.ask.index as u64);
        let stop: Vec<Token> = shared.options.stop.iter().chain(&params.limits.stop).copied().collect();
        let constraint = params.limits.around(params.constraint.clone(), &stop);
        Ok(Generate {
            sampling: Sampling { seed, ..params.sampling },
            max_tokens: params.max_tokens,
            stop,
            spec: params.spec,
            steering,
            look: Look::default(),
            constraint,
            likely: params.likely,
        })
    }

    fn complete(&mut self, mut answer: Answer, prompt_tokens: u64, stats: &PrefillStats) {
        answer.close(&self.ask);
        let ended = stats.end.as_ref().map_or(Finish::Stopped, |end| end.ended.finish());
        let finish = if answer.ended_itself() { Finish::Stop } else { ended };
        let last = stats.end.as_ref().map(|end| end.stats.clone()).unwrap_or_default();
        let usage = Usage {
            prompt_tokens,
            cached_tokens: stats.reused,
            completion_tokens: answer.tokens,
            thought_tokens: answer.decoder.thought_tokens(),
            prompt_ms: stats.prefill_ms,
            predicted_ms: last.decode_ms,
            drafted_tokens: last.spec.drafted,
            accepted_tokens: last.spec.accepted,
        };
        self.hold(&answer, &usage, finish);
        // The slot stays live for a request that continues here, until the memory is needed.
        let (engine, slot) = self.parts();
        // If it fails, the engine is down, which the loop reports to all requests.
        let _ = engine.send(Command::MayEvict { sequence: slot.sequence });
        // Count before the event: a client that has its answer finds it in the counters.
        let written = Usage { prompt_tokens: 0, cached_tokens: 0, ..usage };
        self.worker.shared.metrics.tokens(&written);
        answer.finish(&self.ask, finish, written);
    }

    /// Stores the answer's record before the answer is reported complete: a client that names the answer finds it.
    fn hold(&mut self, answer: &Answer, usage: &Usage, finish: Finish) {
        let mut named = self.ask.record.take().filter(|_| finish != Finish::Stopped);
        if let Some(record) = &mut named {
            record.complete(&answer.sent, usage, finish);
        }
        let Worker { slots, keep, shared, .. } = &mut *self.worker;
        let slot = slots.at(self.at);
        slot.kept &= self.ask.keep;
        let tip = slot.engine.live.head().filter(|_| self.ask.keep);
        if !shared.is_damaged() && (named.is_some() || (self.grown && tip.is_some())) {
            keep.hold(tip, named.as_ref());
        }
        if let Some(record) = named {
            shared.records.add(record);
        }
    }

    /// Scores a prompt, read on an empty state. The state is not kept: scoring clients send thousands of texts.
    async fn score(&mut self, plan: Plan, most: u8) -> Result<()> {
        let tokens: Vec<Token> = plan.steps.into_iter().flat_map(|s| s.prompt).collect();
        let last = Last::Score(Scoring { tokens: tokens.clone(), likely: Some(most), hidden: vec![Vec::new()] });
        let none = Step { prompt: Vec::new(), text_start: 0, text_end: 0, kind: SegmentKind::Turn, message: None };
        self.empty(self.at);
        let rendered = Arc::clone(&self.ask.prompt.rendered);
        let stats = self.run(&rendered, vec![none], Some(ToAnswer { last, message: None }), &mut ()).await;
        let stats = stats.map_err(|e| self.failed(e, false, 0))?;
        let Some(end) = stats.end.filter(|end| end.ended != Ended::Cancelled) else { return Err(Refusal::gone()) };
        let (to, prompt_tokens) = (&self.ask.to, tokens.len() as u64);
        to.report(Notice::Scored { tokens, likely: end.likely });
        if self.ask.params.max_tokens == 0 {
            let begun = Usage { prompt_tokens, ..Usage::default() };
            for index in 0..self.ask.params.wanted {
                to.report(Notice::Answer(index, Event::Begun(begun)));
                let whole = Whole { finish: Finish::Length, stopped_by: None, usage: Usage::default(), calls: 0 };
                to.report(Notice::Answer(index, Event::Ended(whole)));
            }
            self.worker.shared.metrics.tokens(&begun);
        }
        Ok(())
    }

    /// Empties the slot after a failure. Another plan may help before the first token.
    fn failed(&mut self, error: RuntimeError, restoring: bool, tokens: u64) -> Refusal {
        self.empty(self.at);
        self.again = match &error {
            _ if tokens > 0 => None,
            RuntimeError::Engine(EngineFault::RowsLost(rows)) => Some(Some(rows.clone())),
            RuntimeError::Engine(EngineFault::Device(_)) if !self.release_idle() && !restoring => None,
            error => error.is_of_the_slot().then_some(None),
        };
        match error {
            RuntimeError::Engine(EngineFault::RowsLost(rows)) => Refusal::internal(rows.to_string()),
            RuntimeError::Engine(EngineFault::Parked(why)) => Refusal::new(503, "model_parked", why),
            // Neither memory nor a retry helps, and clients retry automatically after a 500.
            RuntimeError::Engine(EngineFault::Stuck(why)) => Refusal::new(422, "grammar_stuck", why),
            RuntimeError::Stopped => Refusal::gone(),
            error => Refusal::internal(error.to_string()),
        }
    }

    /// Frees the memory of idle slots; true if there was any.
    fn release_idle(&mut self) -> bool {
        let idle = self.worker.slots.idle();
        idle.iter().for_each(|at| self.empty(*at));
        !idle.is_empty()
    }

    /// Empties a slot with unknown or unwanted state.
    fn empty(&mut self, at: usize) {
        let Worker { engine, slots, .. } = &mut *self.worker;
        let slot = &mut slots.at(at).engine;
        slot.made(Path::default());
        // If it fails, the engine is down, which the loop reports to all requests.
        let _ = engine.send(Command::Release { sequence: slot.sequence });
    }

    async fn wait(&mut self, wait: Wait) -> Result<Wake> {
        self.worker.wait = wait;
        self.worker.hand_back().await;
        self.worker.wake.take().unwrap_or(Ok(Wake::Go))
    }
}

impl Sink<Request> for Answer {
    fn reading(&mut self, request: &mut Request, progress: Progress) -> bool {
        let Progress { done, total, position, .. } = progress;
        request.ask.to.report(Notice::Reading { done: position, total: position - done + total })
    }

    fn tokens(&mut self, request: &mut Request, written: &Written<'_>) {
        if !self.take(&request.worker.shared, &request.ask, written.tokens, written.likely) {
            request.parts().1.cancel.cancel();
        }
    }
}

impl Executor for Request {
    fn parts(&mut self) -> (&mut Engine, &mut Slot) {
        let Worker { engine, slots, .. } = &mut *self.worker;
        (engine, &mut slots.at(self.at).engine)
    }

    async fn event(&mut self, command: u64, _restores: bool) -> (Option<EngineEvent>, bool) {
        let wake = self.wait(Wait::Event(command)).await;
        (if let Ok(Wake::Engine(event)) = wake { Some(event) } else { None }, false)
    }

    fn keeps(&self) -> bool {
        self.ask.keep
    }

    fn keep(&mut self, segment: NewSegment, image: Option<StateImage>, _message: Option<MessageId>) {
        if !self.worker.shared.is_damaged() {
            self.worker.keep.segment(segment, image);
            self.grown = true;
        }
    }

    fn step_ended(&mut self, _stats: &PrefillStats, _done: &JobDone) {
        self.worker.slots.at(self.at).step_ended();
    }
}
