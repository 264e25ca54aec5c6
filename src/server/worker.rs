//! The thread between connections and engine: takes questions from the queue, makes the longest kept prefix live, has the rest
//! read and answered, and keeps what came of it.
//!
//! Each question that is read or answered has a lane: a sequence of the engine with a state of its own, and they go on side by
//! side. A lane stays live when its answer is complete: whoever goes on with it has nothing to put back. Nothing here waits for a
//! connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, select};

use super::Shared;
use super::answer::Answer;
use super::ask::{Ask, Said};
use super::keep::Keep;
use super::prefix;
use super::refusal::Refusal;
use super::{Down, EngineIs};
use crate::base::grouped;
use crate::desk::EngineChannels;
use crate::desk::path::Path;
use crate::desk::segments::{self, Absorbed, Step};
use crate::protocol::engine::{
    Cancel, Command, Ended, EngineEvent, EngineFault, Generate, Job, JobStats, Likely, Look, ModelInfo, RowSource,
    Scoring, SequenceId, StateImage, Token,
};
use crate::session::Unsaved;
use crate::text::{Halt, TextError};
use crate::transcript::Finish;

/// How often questions are looked for that nobody waits for any more.
const TICK: Duration = Duration::from_millis(50);
/// Times a question is planned anew because kept state turned out damaged.
const ATTEMPTS: u32 = 8;
/// Why nothing can be answered once the engine's thread is gone.
const GONE: &str = "the engine is gone; start sala-chat serve again";

/// What the engine is doing for a question.
enum Doing {
    /// Scoring the prompt, for a request that wants to know how likely it is: the command.
    Scoring(u64),
    /// Putting state back: the command, and the path that is live then.
    Restoring(u64, Path),
    /// Reading a step, or answering the last one.
    Running(u64, Step),
}

/// A question that has the engine.
struct Running {
    ask: Ask,
    doing: Doing,
    steps: VecDeque<Step>,
    answer: Answer,
    /// Prompt tokens that need not be read, that have been, and in all.
    cached: u64,
    read: u64,
    prompt: u64,
    /// Something was added to what is kept.
    grown: bool,
    attempts: u32,
    /// Ends its jobs: the client is gone, or a stop text was written.
    cancel: Cancel,
}

/// A sequence of the engine.
struct Lane {
    sequence: SequenceId,
    /// What its state has absorbed.
    live: Path,
    running: Option<Box<Running>>,
    /// When its last answer began, counted in answers.
    used: u64,
}

/// The thread's own state.
pub(super) struct Worker {
    shared: Arc<Shared>,
    asks: Receiver<Ask>,
    /// Closed: end.
    orders: Receiver<()>,
    commands: Option<Sender<Command>>,
    events: Receiver<EngineEvent>,
    keep: Keep,
    /// Questions that wait.
    queue: VecDeque<Ask>,
    lanes: Vec<Lane>,
    model: Option<ModelInfo>,
    next_id: u64,
    /// Answers begun.
    begun: u64,
}

/// How a job ended.
struct JobDone {
    ended: Ended,
    prompt: u64,
    generated: u64,
    image: Option<StateImage>,
    stats: JobStats,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        asks: Receiver<Ask>,
        orders: Receiver<()>,
        engine: EngineChannels,
        keep: Keep,
    ) -> Worker {
        Worker {
            shared,
            asks,
            orders,
            commands: Some(engine.commands),
            events: engine.events,
            keep,
            queue: VecDeque::new(),
            lanes: Vec::new(),
            model: None,
            next_id: 0,
            begun: 0,
        }
    }

    /// Runs until told to end; then what was handed over is saved.
    ///
    /// # Errors
    /// What is not on disk.
    pub(super) fn run(mut self) -> Result<(), Unsaved> {
        let mut ending = false;
        loop {
            self.look_for_gone();
            self.begin_next();
            if ending && !self.is_busy() {
                break;
            }
            let saves = self.keep.events.clone();
            let tick = if self.is_busy() { crossbeam_channel::after(TICK) } else { never() };
            select! {
                recv(self.asks) -> ask => match ask {
                    Ok(ask) => self.queue.push_back(ask),
                    Err(_) => self.asks = never(),
                },
                recv(self.events) -> event => match event {
                    Ok(event) => self.on_engine(event),
                    Err(_) => self.down(GONE.to_owned(), 1),
                },
                recv(saves) -> event => match event {
                    Ok(event) => self.keep.on_event(event),
                    Err(_) => self.keep.events = never(),
                },
                recv(self.orders) -> _ => {
                    ending = true;
                    self.orders = never();
                    self.running().for_each(|r| r.ask.cancel.cancel());
                }
                recv(tick) -> _ => {}
            }
        }
        if let Some(commands) = self.commands.take() {
            // Bounded channel: an engine that hangs must not keep the program from ending.
            let _ = commands.send_timeout(Command::Shutdown, Duration::from_secs(2));
        }
        self.keep.close()
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.lanes.iter().filter_map(|l| l.running.as_deref())
    }

    fn is_busy(&self) -> bool {
        self.running().next().is_some()
    }

    /// Ends what nobody waits for any more.
    fn look_for_gone(&self) {
        self.running().filter(|r| r.ask.cancel.is_cancelled()).for_each(|r| r.cancel.cancel());
    }

    /// A number no command had before.
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Takes the next questions that somebody still waits for, as long as there is a lane for them.
    fn begin_next(&mut self) {
        let waited = self.queue.len();
        self.queue.retain(|ask| !ask.cancel.is_cancelled());
        self.shared.waiting.fetch_sub(waited - self.queue.len(), Ordering::Relaxed);
        while self.model.is_some()
            && self.lanes.iter().any(|l| l.running.is_none())
            && let Some(ask) = self.queue.pop_front()
        {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.begin(ask, 0);
        }
        self.shared.metrics.running.store(self.running().count() as u64, Ordering::Relaxed);
    }

    /// The free lane whose live state is the longest beginning of a prompt; else the one used longest ago.
    fn lane_for(&self, ask: &Ask) -> Option<usize> {
        let free = self.lanes.iter().enumerate().filter(|(_, l)| l.running.is_none());
        let fit = |lane: &Lane| match prefix::of_live(&lane.live, &ask.prompt) {
            (path, true) => path.text_bytes(),
            (_, false) => 0,
        };
        free.max_by_key(|(_, lane)| (fit(lane), std::cmp::Reverse(lane.used))).map(|(i, _)| i)
    }

    fn refuse(&mut self, ask: &Ask, refusal: Refusal) {
        ask.to.tell(Said::Failed(refusal));
    }

    /// Plans a question and begins with it on a free lane.
    fn begin(&mut self, ask: Ask, attempts: u32) {
        let (Some(model), Some(lane)) = (&self.model, self.lane_for(&ask)) else {
            return self.refuse(&ask, Refusal::internal("internal error: there is no lane for it"));
        };
        let (limit, fingerprint) = (model.context_limit, model.fingerprint.clone());
        match self.plan(lane, &ask, limit, &fingerprint) {
            Err(refusal) => self.refuse(&ask, refusal),
            Ok((base, steps)) => {
                if let Some(most) = ask.wish.score {
                    let mut tokens = base.tokens().to_vec();
                    tokens.extend(steps.iter().flat_map(|s| s.prompt.iter().copied()));
                    return self.begin_scoring(lane, ask, tokens, most);
                }
                let cached = base.position();
                let to_read: u64 = steps.iter().map(|s| s.prompt.len() as u64).sum();
                let prompt = cached + to_read;
                let answer = Answer::new(&self.shared, &ask);
                if attempts == 0 {
                    ask.to.tell(Said::Begun { index: ask.given, prompt_tokens: prompt, cached_tokens: cached });
                    self.shared.metrics.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
                    self.shared.metrics.cached_tokens.fetch_add(cached, Ordering::Relaxed);
                }
                self.begun += 1;
                if let Some(lane) = self.lanes.get_mut(lane) {
                    lane.used = self.begun;
                }
                let doing = Doing::Restoring(0, base.clone());
                let (read, grown, cancel) = (0, false, Cancel::default());
                let running = Running { ask, doing, steps, answer, cached, read, prompt, grown, attempts, cancel };
                self.make_live(lane, Box::new(running), base);
            }
        }
    }

    /// The longest kept prefix and what has to be read behind it.
    fn plan(
        &mut self,
        lane: usize,
        ask: &Ask,
        limit: u64,
        fingerprint: &str,
    ) -> Result<(Path, VecDeque<Step>), Refusal> {
        let live = self.lanes.get(lane).map(|l| l.live.clone()).unwrap_or_default();
        if live.segments().is_empty() || !prefix::of_live(&live, &ask.prompt).1 {
            self.keep.settle();
        }
        let internal =
            |e: crate::session::StoreError| Refusal::internal(format!("kept state cannot be looked up: {e}"));
        // What is scored is the prompt as it is cut into tokens, from its first one on.
        let base = match ask.wish.score {
            Some(_) => Path::default(),
            None => prefix::longest(&self.keep.store, fingerprint, &live, &ask.prompt).map_err(internal)?,
        };
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let too_long = |tokens: String| {
            let field = ask.prompt.field;
            let mut refusal = Refusal::field(
                field,
                format!("{field}: the prompt has {tokens} tokens, the context holds {}", grouped(limit)),
            );
            refusal.code = "context_length_exceeded";
            refusal
        };
        let steps = match &ask.prompt.tokens {
            Some(tokens) => {
                let from = usize::try_from(base.position()).unwrap_or(usize::MAX);
                let prompt = tokens.get(from..).unwrap_or_default().to_vec();
                let (text_end, kind) = (ask.prompt.rendered.text.len(), crate::session::SegmentKind::Turn);
                vec![Step { prompt, text_end, kind, message: None }]
            }
            None => {
                let cancel = &ask.cancel;
                let halt = Halt { stop: &|| cancel.is_cancelled(), most };
                let shared = &self.shared;
                segments::steps(&shared.renderer, shared.piece, &ask.prompt.rendered, &base, &halt).map_err(
                    |e| match e {
                        TextError::TooLong { .. } => too_long(format!("more than {}", grouped(limit))),
                        TextError::Stopped => Refusal::gone(),
                        other => Refusal::internal(other.to_string()),
                    },
                )?
            }
        };
        let total = base.position() + steps.iter().map(|s| s.prompt.len() as u64).sum::<u64>();
        if total >= limit {
            return Err(too_long(grouped(total)));
        }
        if steps.last().is_none_or(|s| s.prompt.is_empty()) {
            return Err(Refusal::field(
                ask.prompt.field,
                format!("{}: there is nothing to answer to", ask.prompt.field),
            ));
        }
        Ok((base, steps.into()))
    }

    fn send(&mut self, command: Command) {
        if self.commands.as_ref().is_none_or(|c| c.send(command).is_err()) {
            self.down(GONE.to_owned(), 1);
        }
    }

    /// Makes `base` live in a lane; rows it shares with the live path stay where they are.
    fn make_live(&mut self, at: usize, mut running: Box<Running>, base: Path) {
        let Some(lane) = self.lanes.get(at) else {
            return self.fail(*running, Refusal::internal("internal error: there is no such lane"));
        };
        let (sequence, common) = (lane.sequence, lane.live.common(&base));
        if common == lane.live.segments().len() && common == base.segments().len() {
            return self.next_step(at, running);
        }
        let (rows, end) = match base.head() {
            None => (Vec::new(), None),
            Some(tip) => match self.keep.store.open_path(&tip, common) {
                Ok(opened) if opened.plan.usable == base.segments().len() => (opened.rows, opened.end),
                Ok(_) => return self.plan_again(*running, "kept state is damaged"),
                Err(e) => return self.fail(*running, Refusal::internal(e.to_string())),
            },
        };
        let id = self.id();
        let keep = base.prefix(common).position();
        let rows = rows.into_iter().map(|r| r as Arc<dyn RowSource>).collect();
        let history = base.tokens();
        running.doing = Doing::Restoring(id, base);
        self.put(at, running);
        self.send(Command::Restore { id, sequence, keep, rows, end, history });
    }

    /// Gives a lane its question.
    fn put(&mut self, at: usize, running: Box<Running>) {
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.running = Some(running);
        }
    }

    /// Begins the next step.
    fn next_step(&mut self, at: usize, mut running: Box<Running>) {
        let (Some(step), Some(sequence)) = (running.steps.pop_front(), self.lanes.get(at).map(|l| l.sequence)) else {
            return self.fail(*running, Refusal::internal("internal error: there is nothing to answer to"));
        };
        let generate = match running.steps.is_empty() {
            false => None,
            true => match self.generate(&running) {
                Ok(generate) => Some(generate),
                Err(refusal) => return self.fail(*running, refusal),
            },
        };
        let id = self.id();
        let cancel = running.cancel.clone();
        let job = Job { id, sequence, prompt: step.prompt.clone(), generate, score: None, export: true, cancel };
        running.doing = Doing::Running(id, step);
        self.put(at, running);
        self.send(Command::Run(job));
    }

    fn generate(&self, running: &Running) -> Result<Generate, Refusal> {
        let wish = &running.ask.wish;
        let steering = running.answer.steering(&self.shared, wish).map_err(|e| Refusal::internal(e.to_string()))?;
        // Each of several answers has noise of its own.
        let seed = wish.sampling.seed.wrapping_add(running.ask.given as u64);
        Ok(Generate {
            sampling: crate::protocol::engine::Sampling { seed, ..wish.sampling },
            max_tokens: wish.max_tokens,
            stop: self.shared.stop_ids.clone(),
            spec: wish.spec,
            steering,
            look: Look::default(),
            constraint: wish.constraint.clone(),
            likely: wish.likely,
        })
    }

    fn on_engine(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Loading { what, done } => {
                self.shared.set_engine(EngineIs::Loading { what, done });
            }
            EngineEvent::Ready(info) => {
                self.shared.set_engine(EngineIs::Ready(Box::new(info.clone())));
                let most = u32::try_from(self.shared.side_by_side).unwrap_or(u32::MAX).min(info.max_sequences.max(1));
                let lane = |n| Lane { sequence: SequenceId(n), live: Path::default(), running: None, used: 0 };
                self.lanes = (0..most).map(lane).collect();
                self.model = Some(info);
            }
            EngineEvent::Failed { id, fault } => self.failed(id, fault),
            EngineEvent::Restored { id, .. } => {
                if let Some(at) = self.lane_of(id)
                    && let Some(lane) = self.lanes.get_mut(at)
                    && let Some(mut running) = lane.running.take()
                {
                    match &mut running.doing {
                        Doing::Restoring(_, path) => {
                            lane.live = std::mem::take(path);
                            self.next_step(at, running);
                        }
                        Doing::Scoring(_) | Doing::Running(..) => lane.running = Some(running),
                    }
                }
            }
            // Told by an engine that is a server itself.
            EngineEvent::Note(note) => tracing::warn!("{note}"),
            EngineEvent::Waiting { .. } => {}
            EngineEvent::Reading { id, done, .. } => {
                if let Some(running) = self.running_job(id) {
                    let done = running.cached + running.read + done;
                    running.ask.to.tell(Said::Reading { done, total: running.prompt });
                }
            }
            EngineEvent::Tokens { id, tokens, likely, .. } => {
                let shared = Arc::clone(&self.shared);
                if let Some(running) = self.running_job(id) {
                    let Running { answer, ask, cancel, .. } = running;
                    if !answer.take(&shared, ask, &tokens, likely) {
                        cancel.cancel();
                    }
                }
            }
            EngineEvent::Done { id, likely, ended, .. } if self.is_scoring(id) => self.scored(id, ended, likely),
            EngineEvent::Done { id, ended, prompt_in_state, generated_in_state, image, stats, .. } => {
                let done = JobDone { ended, prompt: prompt_in_state, generated: generated_in_state, image, stats };
                if self.running_job(id).is_some()
                    && let Some(at) = self.lane_of(id)
                    && let Some(running) = self.lanes.get_mut(at).and_then(|l| l.running.take())
                {
                    self.job_done(at, running, done);
                }
            }
        }
    }

    fn is_scoring(&self, id: u64) -> bool {
        self.running().any(|r| matches!(&r.doing, Doing::Scoring(of) if *of == id))
    }

    /// A prompt was scored: tells it, and begins with the answer.
    fn scored(&mut self, id: u64, ended: Ended, likely: Vec<Likely>) {
        let Some(at) = self.lane_of(id) else { return };
        let Some(running) = self.lanes.get_mut(at).and_then(|l| l.running.take()) else { return };
        if ended == Ended::Cancelled {
            return self.fail(*running, Refusal::gone());
        }
        let mut ask = running.ask;
        ask.wish.score = None;
        ask.to.tell(Said::Scored { tokens: running.answer.generated, likely });
        self.begin(ask, 0);
    }

    /// Has the prompt scored, on an empty state.
    fn begin_scoring(&mut self, lane: usize, ask: Ask, tokens: Vec<Token>, most: u8) {
        let id = self.id();
        let cancel = Cancel::default();
        let score = Scoring { tokens: tokens.clone(), likely: Some(most), hidden: vec![Vec::new()] };
        self.empty(lane);
        let Some(sequence) = self.lanes.get(lane).map(|l| l.sequence) else {
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
        let (cached, read, prompt, grown, attempts) = (0, 0, 0, false, 0);
        let running =
            Running { ask, doing, steps: VecDeque::new(), answer, cached, read, prompt, grown, attempts, cancel };
        self.put(lane, Box::new(running));
        self.send(Command::Run(job));
    }

    /// The lane that a command belongs to.
    fn lane_of(&self, id: u64) -> Option<usize> {
        self.lanes.iter().position(|l| {
            l.running.as_ref().is_some_and(|r| match &r.doing {
                Doing::Scoring(of) | Doing::Restoring(of, _) | Doing::Running(of, _) => *of == id,
            })
        })
    }

    /// The question that a job belongs to.
    fn running_job(&mut self, id: u64) -> Option<&mut Running> {
        let at = self.lane_of(id)?;
        self.lanes.get_mut(at)?.running.as_deref_mut().filter(|r| matches!(&r.doing, Doing::Running(..)))
    }

    fn job_done(&mut self, at: usize, mut running: Box<Running>, done: JobDone) {
        let placeholder = Doing::Restoring(0, Path::default());
        let doing = std::mem::replace(&mut running.doing, placeholder);
        let (Doing::Running(_, step), Some(lane)) = (doing, self.lanes.get_mut(at)) else {
            return self.fail(*running, Refusal::internal("internal error: a job nobody asked for"));
        };
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let absorbed = Absorbed {
            prompt: count(done.prompt),
            generated: &running.answer.generated,
            generated_in_state: count(done.generated),
        };
        let fingerprint = self.model.as_ref().map_or("", |m| m.fingerprint.as_str());
        let rendered = &running.ask.prompt.rendered;
        match segments::absorb(&self.shared.renderer, fingerprint, &mut lane.live, rendered, &step, absorbed) {
            Ok(Some((content, _))) => {
                self.keep.segment(content, done.image);
                running.grown = true;
            }
            Ok(None) => {}
            Err(why) => {
                self.empty(at);
                return self.fail(*running, Refusal::internal(why));
            }
        }
        running.read += done.prompt;
        if done.ended == Ended::Read && !running.steps.is_empty() {
            return self.next_step(at, running);
        }
        let metrics = &self.shared.metrics;
        metrics.drafted_tokens.fetch_add(done.stats.spec.drafted, Ordering::Relaxed);
        metrics.accepted_tokens.fetch_add(done.stats.spec.accepted, Ordering::Relaxed);
        self.answered(at, *running, done.ended);
    }

    /// What a lane's state is, is not known any more, or not wanted.
    fn empty(&mut self, at: usize) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        lane.live = Path::default();
        let sequence = lane.sequence;
        self.send(Command::Release { sequence });
    }

    /// An answer is complete, or was given up.
    fn answered(&mut self, at: usize, mut running: Running, ended: Ended) {
        let finish = match ended {
            Ended::Stop | Ended::Read => Finish::Stop,
            Ended::Length => Finish::Length,
            Ended::Context => Finish::Context,
            Ended::Repeats => Finish::Repeats,
            Ended::Cancelled => Finish::Stopped,
        };
        running.answer.close(&running.ask);
        self.hold(at, &mut running, finish);
        running.answer.finish(&running.ask, finish);
        self.shared.metrics.generated_tokens.fetch_add(running.answer.tokens(), Ordering::Relaxed);
        let mut ask = running.ask;
        ask.given += 1;
        let gone = finish == Finish::Stopped && !running.answer.stopped_by_text();
        if ask.given < ask.wanted && !gone {
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
            self.queue.push_front(ask);
        }
    }

    /// Keeps what the state belongs to, before the answer is told to be complete: whoever names it finds it.
    fn hold(&mut self, at: usize, running: &mut Running, finish: Finish) {
        let named = running.ask.record.take().filter(|_| finish != Finish::Stopped || running.answer.stopped_by_text());
        let named = named.map(|mut record| {
            record.turns.push(running.answer.turn());
            record
        });
        let tip = self.lanes.get(at).and_then(|l| l.live.head());
        if let Some(tip) = tip.filter(|_| running.grown || named.is_some()) {
            self.keep.hold(tip, named.as_ref());
        }
        if let Some(record) = named {
            self.shared.records.add(record);
        }
    }

    fn fail(&mut self, running: Running, refusal: Refusal) {
        self.refuse(&running.ask, refusal);
    }

    /// Begins anew with what is kept after all.
    fn plan_again(&mut self, running: Running, why: &str) {
        let attempts = running.attempts + 1;
        if attempts > ATTEMPTS {
            return self.fail(running, Refusal::internal(why.to_owned()));
        }
        self.begin(running.ask, attempts);
    }

    fn failed(&mut self, id: u64, fault: EngineFault) {
        if let EngineFault::Fatal { why, code } = fault {
            return self.down(why, code);
        }
        let Some(at) = self.lane_of(id) else { return };
        let Some(running) = self.lanes.get_mut(at).and_then(|l| l.running.take()) else { return };
        self.empty(at);
        match fault {
            EngineFault::RowsLost(fault) => match self.keep.store.note_fault(&fault) {
                Ok(true) if running.answer.generated.is_empty() => self.plan_again(*running, &fault.why),
                Ok(_) => self.fail(*running, Refusal::internal(fault.to_string())),
                Err(e) => self.fail(*running, Refusal::internal(e.to_string())),
            },
            EngineFault::Stopped => self.fail(*running, Refusal::gone()),
            // It may be memory: what is live and not at work has some.
            EngineFault::Device(why) if running.answer.generated.is_empty() && self.release_idle() => {
                self.plan_again(*running, &why);
            }
            EngineFault::Device(why) | EngineFault::Fatal { why, .. } => self.fail(*running, Refusal::internal(why)),
        }
    }

    /// Gives back the memory of lanes that have nothing to do; whether there was any.
    fn release_idle(&mut self) -> bool {
        let idle = |l: &Lane| l.running.is_none() && !l.live.segments().is_empty();
        let idle: Vec<usize> = self.lanes.iter().enumerate().filter(|(_, l)| idle(l)).map(|(i, _)| i).collect();
        idle.iter().for_each(|at| self.empty(*at));
        !idle.is_empty()
    }

    /// Nothing can be answered any more.
    fn down(&mut self, why: String, code: i32) {
        self.commands = None;
        self.events = never();
        self.model = None;
        for lane in std::mem::take(&mut self.lanes) {
            if let Some(running) = lane.running {
                self.fail(*running, Refusal::internal(why.clone()));
            }
        }
        while let Some(ask) = self.queue.pop_front() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.refuse(&ask, Refusal::internal(why.clone()));
        }
        self.shared.set_engine(EngineIs::Down(Down { why, code }));
    }
}
