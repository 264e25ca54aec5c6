//! The thread between connections and engine: takes questions from the queue, has them planned, makes the longest kept prefix live,
//! has the rest read and answered, and keeps what came of it.
//!
//! Each question that is read or answered has a lane: a sequence of the engine with a state of its own, and they go on side by
//! side. A lane stays live when its answer is complete, until its place is needed: whoever goes on with it has nothing to put
//! back. A question that begins as another does that is being read waits until that has been read.
//!
//! Nothing here waits: not for a connection, not for a disk (state on its way there is had from memory, [`super::fresh`]), not for
//! work on a long text (that is the planner's, [`super::planner`]).

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
use super::planner::{Planner, Wanted};
use super::refusal::Refusal;
use super::said::Said;
use super::{Down, EngineIs, Phase, Shared};
use crate::core::Exit;
use crate::engine::protocol::{Command, EngineEvent, ModelInfo, RowsFault};
use crate::runtime::EngineChannels;
use crate::runtime::path::Path;
use crate::store::{SaveEvent, Unsaved};
use lanes::Lanes;

/// How often questions are looked for that nobody waits for any more.
const TICK: Duration = Duration::from_millis(50);
/// Why nothing can be answered once the engine's thread is gone.
const GONE: &str = "the engine is gone; start sala-chat serve again";

/// A question that waits for what another is reading.
struct Parked {
    ask: Ask,
    /// The other's lane, and which of its questions.
    at: usize,
    begun: u64,
    /// Where in the text the state is that it waits for.
    end: usize,
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
    planner: Planner,
    /// Questions that wait, and how many are being planned.
    queue: VecDeque<Ask>,
    planning: usize,
    parked: Vec<Parked>,
    lanes: Lanes,
    model: Option<ModelInfo>,
    next_id: u64,
    /// Answers begun.
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

    /// Runs until told to end; then what was handed over is saved.
    ///
    /// # Errors
    /// What is not on disk.
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
                    // A prompt that is scored is so once, before its answers.
                    Ok(ask) if ask.wish.score.is_some() => self.queue.push_back(ask),
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
            // Bounded channel: an engine that hangs must not keep the program from ending.
            let _ = commands.send_timeout(Command::Shutdown, Duration::from_secs(2));
        }
        let closed = self.keep.close(&self.shared.records);
        if self.shared.cache.is_damaged() { Ok(()) } else { closed }
    }

    /// What the writer said. An answer that was deleted while its row was on the way is forgotten where it has come to.
    fn on_save(&mut self, event: SaveEvent) {
        let row = self.keep.on_event(event);
        let Some(message) = row.filter(|message| self.shared.records.is_deleted(*message)) else { return };
        let shared = Arc::clone(&self.shared);
        let forget = move || shared.records.forget_one(message);
        // Without a thread it is done at the end.
        let _ = std::thread::Builder::new().name("forget".into()).spawn(forget);
    }

    /// Questions that are planned, read or answered.
    fn busy(&self) -> usize {
        self.planning + self.lanes.running().count()
    }

    /// Puts a question into the queue once for each of its answers; it is counted as waiting if it was not before.
    fn queue_each(&mut self, ask: Ask, counted_anew: bool) {
        let more = ask.wanted - usize::from(!counted_anew);
        self.shared.waiting.fetch_add(more, Ordering::Relaxed);
        self.queue.extend(ask.each());
    }

    /// Ends what nobody waits for any more.
    fn look_for_gone(&self) {
        self.lanes.running().filter(|r| r.ask.cancel.is_cancelled()).for_each(|r| r.cancel.cancel());
    }

    /// Ends answers where they are, and refuses what waits.
    fn break_off(&mut self) {
        self.lanes.running().for_each(|r| r.cancel.cancel());
        let waiting: Vec<Ask> = self.queue.drain(..).chain(self.parked.drain(..).map(|p| p.ask)).collect();
        self.shared.waiting.fetch_sub(waiting.len(), Ordering::Relaxed);
        waiting.iter().for_each(|ask| self.refuse(ask, Refusal::new(503, "shutting_down", BROKE_OFF)));
    }

    /// A number no command had before.
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Has the next questions planned that somebody still waits for, as long as there is a lane for them.
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

    /// Questions whose wait for another is over come next.
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

    /// Has a question planned with what is there now; `anew`: once more, because that is more than before.
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
        ask.to.tell(Said::Failed(refusal));
    }

    fn send(&mut self, command: Command) {
        if self.commands.as_ref().is_none_or(|c| c.send(command).is_err()) {
            self.down(GONE.to_owned(), Exit::Failure);
        }
    }

    /// What a lane's state is, is not known any more, or not wanted.
    fn empty(&mut self, at: usize) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        lane.live = Path::default();
        let sequence = lane.sequence;
        self.send(Command::Release { sequence });
    }

    /// Nothing can be answered any more.
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
