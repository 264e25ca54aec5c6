//! From a plan to the first token: the slot, the state to restore, the steps of the prefill.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::lanes::{Doing, Running};
use super::{Parked, Worker};
use crate::engine::protocol::{Cancel, Command, Generate, Job, Look, RowsFault, Sampling, Scoring, Token};
use crate::runtime::path::Path;
use crate::server::answer::Answer;
use crate::server::ask::Ask;
use crate::server::notice::{Notice, Usage};
use crate::server::planner::{Plan, Planned};
use crate::server::prefix::Kept;
use crate::server::refusal::Refusal;

/// How often a request is planned again because kept state turned out damaged.
const ATTEMPTS: u32 = 8;
/// A request waits for another one's prefill only for at least this many bytes of shared text.
const WORTH_BYTES: usize = 1_024;

impl Worker {
    /// Begins with a finished plan, unless its state is gone or better state will soon exist.
    pub(super) fn on_plan(&mut self, planned: Planned) {
        let Planned { ask, attempts, anew, plan } = planned;
        let plan = match plan {
            Ok(plan) if self.model.is_some() => plan,
            Ok(_) => return self.refuse(&ask, Refusal::internal(super::GONE)),
            Err(refusal) => return self.refuse(&ask, refusal),
        };
        if ask.params.score.is_none()
            && let Some((at, end)) = self.lanes.ahead_of(&ask, plan.base.text_bytes(), WORTH_BYTES)
        {
            let begun = self.lanes.get(at).map_or(0, |l| l.used);
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
            self.parked.push(Parked { ask, at, begun, end });
            return;
        }
        // Another prefill finished during the planning. Plan again only once: state may exist and still be unusable.
        if ask.params.score.is_none() && !anew && self.lanes.have_more(&ask, plan.base.text_bytes(), WORTH_BYTES) {
            return self.want_plan(ask, attempts, None, true);
        }
        let free = plan.kept.is_some() || plan.base.segments().is_empty();
        match self.lanes.place_for(&plan.base, free) {
            Some(at) => self.begin(at, ask, attempts, plan),
            // Another request has taken over the state of this plan.
            None => self.want_plan(ask, attempts, None, false),
        }
    }

    fn begin(&mut self, at: usize, mut ask: Ask, attempts: u32, plan: Plan) {
        let Plan { base, kept, steps } = plan;
        self.begun += 1;
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.used = self.begun;
            lane.kept = match &kept {
                Some(kept) => !kept.of_library,
                None => base.segments().is_empty() || lane.kept,
            };
            ask.keep &= lane.kept;
        }
        if let Some(most) = ask.params.score {
            let tokens = steps.iter().flat_map(|s| s.prompt.iter().copied()).collect();
            return self.begin_scoring(at, ask, tokens, most);
        }
        let cached = base.position();
        let prompt = cached + steps.iter().map(|s| s.prompt.len() as u64).sum::<u64>();
        if attempts == 0 {
            ask.to.report(Notice::Begun { index: ask.index, prompt_tokens: prompt, cached_tokens: cached });
            self.shared.metrics.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
            self.shared.metrics.cached_tokens.fetch_add(cached, Ordering::Relaxed);
        }
        let answer = Answer::new(&self.shared, &ask);
        let doing = Doing::Restoring(0, Path::default());
        let (read, grown, cancel) = (0, false, Cancel::default());
        let usage = Usage { prompt_tokens: prompt, cached_tokens: cached, ..Usage::default() };
        let running = Running { ask, doing, steps, answer, read, usage, grown, attempts, cancel };
        self.make_live(at, Box::new(running), base, kept);
    }

    /// Plans again with the state that is still kept.
    pub(super) fn plan_again(&mut self, running: Running, why: &str, lost: Option<RowsFault>) {
        let attempts = running.attempts + 1;
        if attempts > ATTEMPTS {
            return self.refuse(&running.ask, Refusal::internal(why.to_owned()));
        }
        self.want_plan(running.ask, attempts, lost, false);
    }

    /// Makes `base` live in a slot; rows that it shares with the live path stay in place.
    fn make_live(&mut self, at: usize, mut running: Box<Running>, base: Path, kept: Option<Kept>) {
        let Some(lane) = self.lanes.get_mut(at) else {
            return self.refuse(&running.ask, Refusal::internal("internal error: there is no such lane"));
        };
        let (sequence, common) = (lane.sequence, lane.live.common(&base));
        if common == lane.live.segments().len() && common == base.segments().len() {
            // The same tokens may belong to another text.
            lane.live = base;
            return self.next_step(at, running);
        }
        let Kept { rows, end, .. } = kept.unwrap_or_default();
        let id = self.id();
        let keep = base.prefix(common).position();
        let rows = rows.into_iter().skip(common).collect();
        let history = base.tokens();
        running.doing = Doing::Restoring(id, base);
        self.put(at, running);
        self.send(Command::Restore { id, sequence, keep, rows, end, history });
    }

    pub(super) fn put(&mut self, at: usize, running: Box<Running>) {
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.running = Some(running);
        }
    }

    pub(super) fn next_step(&mut self, at: usize, mut running: Box<Running>) {
        let sequence = self.lanes.get(at).map(|l| l.sequence);
        let (Some(step), Some(sequence)) = (running.steps.pop_front(), sequence) else {
            return self.refuse(&running.ask, Refusal::internal("internal error: there is nothing to answer to"));
        };
        let generate = match running.steps.is_empty() {
            false => None,
            true => match self.generate(&running) {
                Ok(generate) => Some(generate),
                Err(refusal) => return self.refuse(&running.ask, refusal),
            },
        };
        let id = self.id();
        let (cancel, export) = (running.cancel.clone(), running.ask.keep);
        let job = Job { id, sequence, prompt: step.prompt.clone(), generate, score: None, export, cancel };
        running.doing = Doing::Running(id, step);
        self.put(at, running);
        self.send(Command::Run(job));
    }

    fn generate(&self, running: &Running) -> Result<Generate, Refusal> {
        let params = &running.ask.params;
        let steering = running.answer.steering(&self.shared, params).map_err(|e| Refusal::internal(e.to_string()))?;
        // Each of several answers samples with its own seed.
        let seed = params.sampling.seed.wrapping_add(running.ask.index as u64);
        let stop: Vec<Token> = self.shared.stop_ids.iter().chain(&params.limits.stop).copied().collect();
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

    /// Has the prompt scored, on an empty state.
    fn begin_scoring(&mut self, at: usize, ask: Ask, tokens: Vec<Token>, most: u8) {
        let id = self.id();
        let cancel = Cancel::default();
        let score = Scoring { tokens: tokens.clone(), likely: Some(most), hidden: vec![Vec::new()] };
        self.empty(at);
        let Some(sequence) = self.lanes.get(at).map(|l| l.sequence) else {
            return self.refuse(&ask, Refusal::internal("internal error: there is no such lane"));
        };
        let job = Job {
            id,
            sequence,
            prompt: Vec::new(),
            generate: None,
            score: Some(score),
            export: false,
            cancel: cancel.clone(),
        };
        let (mut answer, doing) = (Answer::new(&self.shared, &ask), Doing::Scoring(id));
        answer.generated = tokens;
        let (read, usage, grown, attempts) = (0, Usage::default(), false, 0);
        let running = Running { ask, doing, steps: VecDeque::new(), answer, read, usage, grown, attempts, cancel };
        self.put(at, Box::new(running));
        self.send(Command::Run(job));
    }
}
