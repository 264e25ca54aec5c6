//! The thread between connections and engine: takes requests from the queue, has them planned, makes the longest kept
//! prefix live, has the rest prefilled and the answer decoded, and keeps the resulting state.
//!
//! Each running request has a slot (a lane): a sequence of the engine with its own state. Slots run concurrently. A
//! slot stays live after its answer until another request needs it: a request that continues there restores nothing. A
//! request that shares its beginning with one in prefill waits for that prefill.
//!
//! This thread never blocks on a connection, on a disk (state on its way there is in memory, [`super::fresh`]) or on
//! work over a long text (the planner does that, [`super::planner`]).

mod begin;
mod events;
mod lanes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, select};

use super::ask::Ask;
use super::collected::BROKE_OFF;
use super::keep::Keep;
use super::notice::Notice;
use super::planner::{Planner, Wanted};
use super::refusal::Refusal;
use super::{Down, EngineIs, Phase, Shared};
use crate::core::Exit;
use crate::engine::protocol::{Command, EngineEvent, ModelInfo, RowsFault};
use crate::runtime::EngineChannels;
use crate::runtime::path::Path;
use crate::store::{SaveEvent, Unsaved};
use lanes::Lanes;

/// Interval of the search for requests without a client.
const TICK: Duration = Duration::from_millis(50);
const GONE: &str = "the engine is gone; start sala-chat serve again";

/// A request that waits for another one's prefill.
struct Parked {
    ask: Ask,
    /// The other request's slot, and its number among the begun answers.
    at: usize,
    begun: u64,
    /// Where in the text the awaited state ends, in bytes.
    end: usize,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    asks: Receiver<Ask>,
    /// The thread ends when this channel closes.
    orders: Receiver<()>,
    commands: Option<Sender<Command>>,
    events: Receiver<EngineEvent>,
    keep: Keep,
    planner: Planner,
    /// Requests that wait, and the number in planning.
    queue: VecDeque<Ask>,
    planning: usize,
    parked: Vec<Parked>,
    lanes: Lanes,
    model: Option<ModelInfo>,
    next_id: u64,
    begun: u64,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        asks: Receiver<Ask>,
        orders: Receiver<()>,
        engine: EngineChannels,
        keep: Keep,
        planner: Planner,
    ) -> Worker {
        Worker {
            shared,
            asks,
            orders,
            commands: Some(engine.commands),
            events: engine.events,
            keep,
            planner,
            queue: VecDeque::new(),
            planning: 0,
            parked: Vec::new(),
            lanes: Lanes::default(),
            model: None,
            next_id: 0,
            begun: 0,
        }
    }

    /// Runs until its orders end, then saves the pending state.
    ///
    /// # Errors
    /// Lists the state that is not on disk.
    pub(super) fn run(mut self) -> Result<(), Unsaved> {
        let mut ending = false;
        loop {
            if *self.shared.phase.borrow() == Phase::Stopping {
                self.break_off();
            }
            self.look_for_gone();
            self.plan_next();
            if ending && self.busy() == 0 {
                break;
            }
            let saves = self.keep.events.clone();
            let plans = self.planner.plans.clone();
            let tick = if self.busy() > 0 { crossbeam_channel::after(TICK) } else { never() };
            select! {
                recv(self.asks) -> ask => match ask {
                    // The prompt is scored once, before the request splits into its answers.
                    Ok(ask) if ask.params.score.is_some() => self.queue.push_back(ask),
                    Ok(ask) => self.queue_each(ask, false),
                    Err(_) => self.asks = never(),
                },
                recv(plans) -> planned => if let Ok(planned) = planned {
                    self.planning -= 1;
                    self.on_plan(planned);
                },
                recv(self.events) -> event => match event {
                    Ok(event) => self.on_engine(event),
                    Err(_) => self.down(GONE.to_owned(), Exit::Failure),
                },
                recv(saves) -> event => match event {
                    Ok(event) => self.on_save(event),
                    Err(_) => self.keep.events = never(),
                },
                recv(self.orders) -> _ => {
                    ending = true;
                    self.orders = never();
                    self.lanes.running().for_each(|r| r.ask.cancel.cancel());
                }
                recv(tick) -> _ => {}
            }
        }
        if let Some(commands) = self.commands.take() {
            // The channel is bounded: a hanging engine must not keep the program from ending.
            let _ = commands.send_timeout(Command::Shutdown, Duration::from_secs(2));
        }
        let closed = self.keep.close(&self.shared.records);
        if self.shared.cache.is_damaged() { Ok(()) } else { closed }
    }

    /// Handles an event of the writer. If the answer was deleted while its row was on its way to disk, deletes the row.
    fn on_save(&mut self, event: SaveEvent) {
        let row = self.keep.on_event(event);
        let Some(message) = row.filter(|message| self.shared.records.is_deleted(*message)) else { return };
        let shared = Arc::clone(&self.shared);
        let forget = move || shared.records.forget_one(message);
        // If no thread starts, the deletion happens at the end.
        let _ = std::thread::Builder::new().name("forget".into()).spawn(forget);
    }

    /// Requests in planning, prefill or decode.
    fn busy(&self) -> usize {
        self.planning + self.lanes.running().count()
    }

    /// Queues a request once for each of its answers; `counted_anew` adds them to the number of waiting requests.
    fn queue_each(&mut self, ask: Ask, counted_anew: bool) {
        let more = ask.wanted - usize::from(!counted_anew);
        self.shared.waiting.fetch_add(more, Ordering::Relaxed);
        self.queue.extend(ask.each());
    }

    /// Cancels requests without a client.
    fn look_for_gone(&self) {
        self.lanes.running().filter(|r| r.ask.cancel.is_cancelled()).for_each(|r| r.cancel.cancel());
    }

    /// Ends running answers at once, and refuses waiting requests.
    fn break_off(&mut self) {
        self.lanes.running().for_each(|r| r.cancel.cancel());
        let waiting: Vec<Ask> = self.queue.drain(..).chain(self.parked.drain(..).map(|p| p.ask)).collect();
        self.shared.waiting.fetch_sub(waiting.len(), Ordering::Relaxed);
        waiting.iter().for_each(|ask| self.refuse(ask, Refusal::new(503, "shutting_down", BROKE_OFF)));
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Has the next requests planned, as long as their client is connected and a slot is free.
    fn plan_next(&mut self) {
        let waited = self.queue.len() + self.parked.len();
        self.queue.retain(|ask| !ask.cancel.is_cancelled());
        self.parked.retain(|p| !p.ask.cancel.is_cancelled());
        self.shared.waiting.fetch_sub(waited - self.queue.len() - self.parked.len(), Ordering::Relaxed);
        self.wake();
        let most = self.model.as_ref().map_or(0, |m| self.shared.side_by_side.min(m.max_sequences.max(1) as usize));
        while self.busy() < most
            && let Some(ask) = self.queue.pop_front()
        {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.want_plan(ask, 0, None, false);
        }
        self.shared.metrics.running.store(self.busy() as u64, Ordering::Relaxed);
    }

    /// Moves requests to the front of the queue when the prefill they wait for is over.
    fn wake(&mut self) {
        let lanes = &self.lanes;
        let waits = |p: &Parked| {
            let lane = lanes.get(p.at).filter(|l| l.running.is_some() && l.used == p.begun);
            lane.is_some_and(|l| l.live.text_bytes() < p.end)
        };
        let (waiting, ready) = std::mem::take(&mut self.parked).into_iter().partition(waits);
        self.parked = waiting;
        for parked in ready.into_iter().rev() {
            self.queue.push_front(parked.ask);
        }
    }

    /// Has a request planned with the present state; `anew`: planned again, since there is more state than at the
    /// first plan.
    fn want_plan(&mut self, ask: Ask, attempts: u32, lost: Option<RowsFault>, anew: bool) {
        let Some(model) = &self.model else {
            return self.refuse(&ask, Refusal::internal(GONE));
        };
        let (limit, fingerprint) = (model.context_limit, model.fingerprint.clone());
        let (live, fresh) = (self.lanes.live(), self.keep.fresh.clone());
        self.planning += 1;
        self.planner.want(Wanted { ask, attempts, anew, live, fresh, lost, limit, fingerprint });
    }

    fn refuse(&self, ask: &Ask, refusal: Refusal) {
        ask.to.report(Notice::Failed(refusal));
    }

    fn send(&mut self, command: Command) {
        if self.commands.as_ref().is_none_or(|c| c.send(command).is_err()) {
            self.down(GONE.to_owned(), Exit::Failure);
        }
    }

    /// Empties a slot with unknown or unwanted state.
    fn empty(&mut self, at: usize) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        lane.live = Path::default();
        let sequence = lane.sequence;
        self.send(Command::Release { sequence });
    }

    /// Refuses the present requests and all later ones.
    fn down(&mut self, why: String, exit: Exit) {
        self.commands = None;
        self.events = never();
        self.model = None;
        let running: Vec<Ask> = self.lanes.drain().map(|r| r.ask).collect();
        let waiting = self.queue.drain(..).chain(self.parked.drain(..).map(|p| p.ask)).collect::<Vec<_>>();
        self.shared.waiting.fetch_sub(waiting.len(), Ordering::Relaxed);
        for ask in running.into_iter().chain(waiting) {
            self.refuse(&ask, Refusal::internal(why.clone()));
        }
        self.shared.set_engine(EngineIs::Down(Down { why, exit }));
    }
}
