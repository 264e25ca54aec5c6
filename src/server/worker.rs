//! The thread between connections and engine: it takes requests from the queue, and each runs as one linear function
//! ([`request::Request`]) on the executor that conversations use too. The loop here waits for events and resumes the
//! request that each of them concerns.
//!
//! Each running request has a slot: a sequence of the engine with its own state. Slots run concurrently. A
//! slot stays live after its answer until another request needs it: a request that continues there restores nothing. A
//! request that shares its beginning with one in prefill waits for that prefill.
//!
//! This thread never blocks on a connection, on a disk (state on its way there is in memory, [`super::keep`]) or on
//! work over a long text (the planner does that, [`super::planner`]).

mod request;
mod slots;

use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, select, unbounded};

use super::keep::Keep;
use super::{Ask, EngineIs, Phase, Plan, Refusal, Result, Shared};
use crate::engine::protocol::{Cancel, EngineEvent, EngineFault};
use crate::runtime::EngineChannels;
use crate::runtime::baton::{Baton, Held, Running};
use crate::runtime::link::{Engine, EngineState};
use crate::store::Unsaved;
use request::Request;
use slots::Slots;

const TICK: Duration = Duration::from_millis(50);
const GONE: &str = "the engine is gone; start sala-chat serve again";

#[derive(Debug)]
enum Wait {
    /// For a turn; not before a state in another slot is there, or given up.
    Turn(Weak<usize>),
    /// For its plan, or for an event of its command.
    Event(u64),
}

impl Default for Wait {
    fn default() -> Wait {
        Wait::Turn(Weak::new())
    }
}

enum Wake {
    Go,
    Plan(Plan),
    Engine(EngineEvent),
}

struct Entry {
    /// Set when its client disconnects.
    cancel: Cancel,
    wait: Wait,
    wake: Option<Result<Wake>>,
    run: Running<()>,
}

impl Entry {
    /// Whether it takes no part in planning, prefill or decode.
    fn is_waiting(&self) -> bool {
        matches!((&self.wait, &self.wake), (Wait::Turn(_), None))
    }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    asks: Receiver<Option<Ask>>,
    engine: Engine,
    keep: Keep,
    planned: Sender<(u64, Result<Plan>)>,
    requests: Vec<Entry>,
    /// Of the request that runs.
    wait: Wait,
    wake: Option<Result<Wake>>,
    slots: Slots,
    baton: Baton<Worker>,
}

impl Worker {
    /// Runs until the last request, then saves the pending state.
    pub(super) fn run(
        shared: Arc<Shared>,
        asks: Receiver<Option<Ask>>,
        engine: EngineChannels,
        keep: Keep,
    ) -> Result<(), Unsaved> {
        let mut engine =
            Engine::new(engine, shared.renderer.clone(), shared.options.stop.clone(), shared.options.piece);
        engine.gone = GONE;
        let (planned, plans) = unbounded();
        let mut worker = Box::new(Worker {
            engine,
            shared,
            asks,
            keep,
            planned,
            requests: Vec::new(),
            wait: Wait::default(),
            wake: None,
            slots: Slots::default(),
            baton: Baton::default(),
        });
        let mut ending = false;
        loop {
            let stopping = *worker.shared.phase.borrow() == Phase::Stopping;
            if stopping {
                worker.refuse(&Refusal::broke_off(), |_| true);
            }
            worker.slots.cancel(stopping || ending);
            worker.refuse(&Refusal::gone(), |entry| entry.cancel.is_cancelled());
            worker = worker.advance();
            let busy = worker.busy();
            worker.shared.metrics.running.store(busy as u64, Ordering::Relaxed);
            let waiting = worker.requests.len() - busy + worker.asks.len();
            worker.shared.waiting.store(waiting, Ordering::Relaxed);
            if ending && busy == 0 {
                break;
            }
            let saves = worker.keep.events.clone();
            let tick = if busy > 0 { crossbeam_channel::after(TICK) } else { never() };
            select! {
                recv(worker.asks) -> ask => match ask {
                    Ok(Some(ask)) => worker.queue(ask),
                    Ok(None) | Err(_) => (ending, worker.asks) = (true, never()),
                },
                recv(plans) -> planned => if let Ok((id, plan)) = planned {
                    worker.wake(id, plan.map(Wake::Plan));
                },
                recv(worker.engine.events) -> event => {
                    let event = event.unwrap_or_else(|_| worker.engine.ended());
                    worker.on_engine(event);
                }
                recv(saves) -> event => match event {
                    Ok(event) => worker.keep.on_event(event),
                    Err(_) => worker.keep.events = never(),
                },
                recv(tick) -> _ => {}
            }
        }
        worker.engine.shutdown();
        let closed = worker.keep.close();
        if worker.shared.is_damaged() { Ok(()) } else { closed }
    }

    fn on_engine(&mut self, mut event: EngineEvent) {
        let id = event.id_mut().copied().unwrap_or_default();
        match event {
            // A parked model accepts requests while it returns.
            EngineEvent::Loading { what, .. } if self.engine.is_parked() => tracing::debug!("{what}"),
            EngineEvent::Loading { what, done } => self.shared.set_engine(EngineIs::Loading { what, done }),
            EngineEvent::Ready(info) => {
                if self.engine.model().is_none() {
                    self.slots = Slots::new(info.max_sequences.max(1));
                }
                self.engine.loaded(&info);
                self.shared.set_engine(EngineIs::Ready(Box::new(info)));
            }
            EngineEvent::Failed { fault: EngineFault::Fatal { why, exit }, .. } => self.engine.down(why, exit),
            // Concerns the engine as a whole, not one answer.
            EngineEvent::Note(note) => tracing::warn!("{note}"),
            EngineEvent::Evicted { sequence } => self.slots.evicted(sequence),
            event => self.wake(id, Ok(Wake::Engine(event))),
        }
    }

    fn busy(&self) -> usize {
        self.requests.iter().filter(|entry| !entry.is_waiting()).count()
    }

    fn queue(&mut self, ask: Ask) {
        for ask in ask.each() {
            let (baton, cancel) = (self.baton.clone(), ask.cancel.clone());
            let run = Running::new(async move { Request::run(Held::new(baton, ()), ask).await });
            self.requests.push(Entry { cancel, wait: Wait::default(), wake: None, run });
        }
    }

    fn refuse(&mut self, refusal: &Refusal, picked: impl Fn(&Entry) -> bool) {
        for entry in self.requests.iter_mut().filter(|entry| entry.is_waiting() && picked(entry)) {
            entry.wake = Some(Err(refusal.clone()));
        }
    }

    fn wake(&mut self, id: u64, wake: Result<Wake>) {
        if let Some(entry) = self.requests.iter_mut().find(|entry| matches!(entry.wait, Wait::Event(of) if of == id)) {
            entry.wake = Some(wake);
        }
    }

    /// Resumes requests at the end of their wait, and begins others while a slot is free.
    fn advance(mut self: Box<Worker>) -> Box<Worker> {
        loop {
            self.refuse_all_if_down();
            match self.requests.iter().position(|entry| entry.wake.is_some()) {
                Some(at) => self = self.resume(at),
                None if self.begin_next() => {}
                None => return self,
            }
        }
    }

    /// Runs a request up to its next wait or its end.
    fn resume(mut self: Box<Worker>, at: usize) -> Box<Worker> {
        let mut entry = self.requests.remove(at);
        self.wake = entry.wake.take();
        let baton = self.baton.clone();
        let (mut worker, polled) = entry.run.poll(&baton, self);
        if polled.is_pending() {
            entry.wait = std::mem::take(&mut worker.wait);
            worker.requests.insert(at, entry);
        }
        worker
    }

    /// Begins the first request that may begin, if fewer are at work than may be. False if there is none.
    fn begin_next(&mut self) -> bool {
        let most = self.engine.model().map_or(0, |m| m.max_sequences.max(1) as usize);
        if self.busy() >= most.min(self.shared.options.serve.side_by_side) {
            return false;
        }
        let may_begin = |entry: &&mut Entry| matches!(&entry.wait, Wait::Turn(state) if state.strong_count() == 0);
        let Some(entry) = self.requests.iter_mut().find(may_begin) else { return false };
        entry.wake = Some(Ok(Wake::Go));
        true
    }

    /// An engine that is down refuses the present requests and all later ones.
    fn refuse_all_if_down(&mut self) {
        let EngineState::Down { why, exit } = self.engine.state.clone() else { return };
        for entry in &mut self.requests {
            entry.wake.get_or_insert_with(|| match entry.wait {
                Wait::Event(id) => {
                    let fault = EngineFault::Fatal { why: why.clone(), exit };
                    Ok(Wake::Engine(EngineEvent::Failed { id, fault }))
                }
                Wait::Turn(_) => Err(Refusal::internal(why.clone())),
            });
        }
        if !matches!(self.shared.engine(), EngineIs::Down { .. }) {
            self.shared.set_engine(EngineIs::Down { why, exit });
        }
    }
}
