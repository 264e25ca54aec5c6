//! The engine thread: owns backend, model, the sequences and their decoders, and does what [`Command`]s ask for.
//!
//! It never touches files of a session, never knows text, and never waits for whoever reads its events. A panic in it
//! becomes a fatal [`EngineEvent::Failed`]. What a job leaves in the state is exactly what [`EngineEvent::Done`] says:
//! its given tokens (all of them, or whole chunks of them when it was stopped while reading) and its generated tokens,
//! except for the last one drawn.
//!
//! Each sequence has a queue of what was asked of it. Jobs of different sequences take turns ([`super::schedule`]); one
//! sequence at a time is in hand, the others are put aside. What becomes of one is nothing to the others, unless the device
//! itself is lost.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::jobs::Run;
use super::open;
use super::speculate::{DecodeError, Decoder, Parked};
use crate::backend::draft::DraftOps;
use crate::backend::{BackendError, MAX_VERIFY_ROWS};
use crate::model::{Live, Model, ModelError, Sequence};
use crate::protocol::engine::{
    CheckpointImage, Command, EngineEvent, EngineFault, EngineOptions, Job, MAIN, ModelInfo, RowSource, SequenceId,
    Token,
};

/// Commands that may wait to be taken in, which happens between two turns.
const COMMANDS: usize = 64;
/// Sequences that may be live at a time: as many as a pass has rows, so that all of them can write.
pub(super) const MAX_SEQUENCES: usize = MAX_VERIFY_ROWS;

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

/// What was asked of a sequence.
enum Task {
    Restore {
        id: u64,
        keep: u64,
        rows: Vec<Arc<dyn RowSource>>,
        end: Option<CheckpointImage>,
        history: Arc<Vec<Token>>,
    },
    Run(Job),
    /// A fork of what failed.
    Lost {
        id: u64,
    },
    /// Waits in the queues of both, and is done when it is the next of both.
    Fork {
        id: u64,
        from: SequenceId,
        to: SequenceId,
    },
    Release,
}

impl Task {
    /// Whose answer is waited for, if one is.
    fn id(&self) -> Option<u64> {
        match self {
            Task::Restore { id, .. } | Task::Fork { id, .. } | Task::Lost { id } => Some(*id),
            Task::Run(job) => Some(job.id),
            Task::Release => None,
        }
    }
}

/// A sequence that is not in hand.
pub(super) struct Aside<B: DraftOps> {
    pub(super) sequence: Sequence<B>,
    talk: Parked<B>,
}

/// A sequence, what it does and what it is to do.
pub(super) struct Seat<B: DraftOps> {
    /// `None` while it is in hand.
    pub(super) aside: Option<Aside<B>>,
    /// The job under way.
    pub(super) run: Option<Run>,
    queue: VecDeque<Task>,
}

/// The loaded engine.
pub(super) struct Worker<'c, B: DraftOps> {
    pub(super) backend: B,
    pub(super) model: Model<B>,
    pub(super) live: Live<B>,
    pub(super) decoder: Decoder<B>,
    pub(super) info: ModelInfo,
    pub(super) events: &'c Sender<EngineEvent>,
    pub(super) seats: BTreeMap<SequenceId, Seat<B>>,
    /// Whose state is in `live` and `decoder`.
    in_hand: SequenceId,
    /// How fast the last chunk was read beside others.
    pub(super) read_per_s: Option<f64>,
}

impl<'c, B: DraftOps> Worker<'c, B> {
    pub(super) fn new(
        backend: B,
        model: Model<B>,
        live: Live<B>,
        decoder: Decoder<B>,
        info: ModelInfo,
        events: &'c Sender<EngineEvent>,
    ) -> Self {
        let seats = BTreeMap::from([(MAIN, Seat { aside: None, run: None, queue: VecDeque::new() })]);
        Worker { backend, model, live, decoder, info, events, seats, in_hand: MAIN, read_per_s: None }
    }

    /// Answers commands until told to end, or until the desk is gone.
    pub(super) fn serve(mut self, commands: &Receiver<Command>) {
        self.send(EngineEvent::Ready(self.info.clone()));
        let mut gone = false;
        loop {
            let idle = self.seats.values().all(|seat| seat.run.is_none());
            let next = match (idle, gone) {
                (true, true) => return,
                (true, false) => commands.recv().map_err(|_| TryRecvError::Disconnected),
                (false, _) => commands.try_recv(),
            };
            match next {
                Ok(Command::Shutdown) => return,
                Ok(command) => {
                    self.take_in(command);
                    self.start();
                    // All that waits is known before the next turn.
                    continue;
                }
                Err(TryRecvError::Disconnected) => gone = true,
                Err(TryRecvError::Empty) => {}
            }
            self.turn();
            self.start();
        }
    }

    pub(super) fn send(&self, event: EngineEvent) {
        // The desk is gone only when the program ends; the command channel closes with it.
        let _ = self.events.send(event);
    }

    /// Puts a command into the queue of its sequence.
    fn take_in(&mut self, command: Command) {
        match command {
            Command::Restore { id, sequence, keep, rows, end, history } => {
                self.queue(sequence, Task::Restore { id, keep, rows, end, history });
            }
            Command::Run(job) => self.queue(job.sequence, Task::Run(job)),
            Command::Release { sequence } if self.seats.contains_key(&sequence) => self.queue(sequence, Task::Release),
            // It is empty already.
            Command::Release { .. } | Command::Shutdown => {}
            Command::Fork { id, from, to } if from == to => {
                let why = "a sequence cannot be a fork of itself".to_owned();
                self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
            }
            Command::Fork { id, from, to } => {
                if self.seat(from, id) && self.seat(to, id) {
                    self.queue(from, Task::Fork { id, from, to });
                    self.queue(to, Task::Fork { id, from, to });
                }
            }
        }
    }

    fn queue(&mut self, sequence: SequenceId, task: Task) {
        if self.seat(sequence, task.id().unwrap_or_default())
            && let Some(seat) = self.seats.get_mut(&sequence)
        {
            seat.queue.push_back(task);
        }
    }

    /// Sees that a sequence is there; `false`, and said to whoever asked with `id`, where there is no room for it.
    fn seat(&mut self, sequence: SequenceId, id: u64) -> bool {
        if self.seats.contains_key(&sequence) {
            return true;
        }
        if self.seats.len() >= MAX_SEQUENCES {
            let why = format!("{MAX_SEQUENCES} conversations are open at a time at most; close one");
            self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
            return false;
        }
        let made = self.live.another(&mut self.backend, &self.model).map_err(DecodeError::from);
        let made = made.and_then(|sequence| Ok(Aside { sequence, talk: self.decoder.another(&mut self.backend)? }));
        match made {
            Ok(aside) => {
                let seat = Seat { aside: Some(aside), run: None, queue: VecDeque::new() };
                self.seats.insert(sequence, seat);
                true
            }
            Err(error) => {
                self.send(EngineEvent::Failed { id, fault: fault_of(&error) });
                false
            }
        }
    }

    /// Takes a sequence in hand.
    pub(super) fn take(&mut self, sequence: SequenceId) -> Result<(), DecodeError> {
        if sequence == self.in_hand {
            return Ok(());
        }
        let aside = self.seats.get_mut(&sequence).and_then(|seat| seat.aside.take());
        let mut aside = aside.ok_or(DecodeError::Order("a sequence that is not there"))?;
        self.live.swap(&mut self.backend, &mut aside.sequence)?;
        self.decoder.swap(&mut aside.talk)?;
        if let Some(seat) = self.seats.get_mut(&self.in_hand) {
            seat.aside = Some(aside);
        }
        self.in_hand = sequence;
        Ok(())
    }

    /// Does what is next in the queues, as far as it is no job, and starts jobs.
    fn start(&mut self) {
        while let Some(sequence) = self.ready() {
            let Some(seat) = self.seats.get_mut(&sequence) else { return };
            let Some(task) = seat.queue.pop_front() else { return };
            let done = match task {
                Task::Restore { id, keep, rows, end, history } => self
                    .take(sequence)
                    .and_then(|()| self.restore(id, keep, &rows, end.as_ref(), &history))
                    .map_err(|e| (id, e)),
                Task::Run(job) => {
                    let id = job.id;
                    self.begin(sequence, job).map_err(|e| (id, e))
                }
                Task::Fork { id, from, to } => {
                    self.fork(id, from, to);
                    Ok(())
                }
                Task::Lost { id } => {
                    self.refuse(id);
                    self.empty(sequence, None);
                    self.cut(sequence);
                    Ok(())
                }
                Task::Release => {
                    self.release(sequence);
                    Ok(())
                }
            };
            if let Err((id, error)) = done {
                self.fail(sequence, id, &error);
            }
        }
    }

    fn refuse(&self, id: u64) {
        let why = "what it was to go on from failed; send it again behind a restore".to_owned();
        self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
    }

    /// What waits for a sequence that failed rests on what is gone: all of it up to what does not look back.
    fn cut(&mut self, sequence: SequenceId) {
        let Some(seat) = self.seats.get_mut(&sequence) else { return };
        let (mut refused, mut forks) = (Vec::new(), Vec::new());
        while let Some(task) = seat.queue.pop_front() {
            match task {
                Task::Run(job) => refused.push(job.id),
                Task::Fork { id, from, to } if from == sequence => forks.push((id, to)),
                Task::Fork { .. } | Task::Restore { .. } | Task::Release | Task::Lost { .. } => {
                    seat.queue.push_front(task);
                    break;
                }
            }
        }
        for id in refused {
            self.refuse(id);
        }
        for (fork, to) in forks {
            let queue = self.seats.get_mut(&to).into_iter().flat_map(|seat| &mut seat.queue);
            for task in queue.filter(|task| matches!(task, Task::Fork { id, .. } if *id == fork)) {
                *task = Task::Lost { id: fork };
            }
        }
    }

    /// A sequence whose next task can be done now.
    fn ready(&self) -> Option<SequenceId> {
        let next = |id: &SequenceId| self.seats.get(id).filter(|s| s.run.is_none()).and_then(|s| s.queue.front());
        self.seats.keys().copied().find(|id| match next(id) {
            None => false,
            Some(Task::Fork { id: fork, from, to }) => {
                let same = |task: Option<&Task>| matches!(task, Some(Task::Fork { id, .. }) if id == fork);
                same(next(from)) && same(next(to))
            }
            Some(Task::Restore { .. } | Task::Run(_) | Task::Lost { .. } | Task::Release) => true,
        })
    }

    /// Both queues have come to it; it was taken from one of them.
    fn fork(&mut self, id: u64, from: SequenceId, to: SequenceId) {
        for side in [from, to] {
            let front = self.seats.get_mut(&side).map(|seat| &mut seat.queue);
            if let Some(queue) = front
                && matches!(queue.front(), Some(Task::Fork { id: other, .. }) if *other == id)
            {
                queue.pop_front();
            }
        }
        let begun = Instant::now();
        match self.copy(from, to) {
            Ok(()) => self.send(EngineEvent::Restored { id, ms: begun.elapsed().as_secs_f64() * 1e3 }),
            Err(error) => self.fail(to, id, &error),
        }
    }

    fn copy(&mut self, from: SequenceId, to: SequenceId) -> Result<(), DecodeError> {
        self.take(from)?;
        let missing = DecodeError::Order("a sequence that is not there");
        let aside = self.seats.get_mut(&to).and_then(|seat| seat.aside.as_mut()).ok_or(missing)?;
        self.live.copy_to(&mut self.backend, &mut aside.sequence)?;
        self.decoder.copy_to(&mut self.backend, &self.model, &mut aside.talk)
    }

    /// The conversation on screen is only emptied: there always is one.
    fn release(&mut self, sequence: SequenceId) {
        if sequence == MAIN {
            self.empty(MAIN, None);
            return;
        }
        if let Err(error) = self.take(MAIN) {
            self.lost(&error.to_string());
            return;
        }
        if let Some(mut seat) = self.seats.remove(&sequence) {
            if let Some(aside) = seat.aside.take() {
                Live::release(&mut self.backend, aside.sequence);
            }
            // What was asked for behind it is of a new one.
            for task in seat.queue.drain(..) {
                self.queue(sequence, task);
            }
        }
    }

    /// Reports a failure and empties the sequence, so that its next command starts from something known.
    pub(super) fn fail(&mut self, sequence: SequenceId, id: u64, error: &DecodeError) {
        if let Some(seat) = self.seats.get_mut(&sequence) {
            seat.run = None;
        }
        self.empty(sequence, Some((id, error)));
        self.cut(sequence);
    }

    /// Empties a sequence; says why, if there is somebody to be told.
    fn empty(&mut self, sequence: SequenceId, why: Option<(u64, &DecodeError)>) {
        let emptied = self.take(sequence).and_then(|()| {
            self.live.reset(&mut self.backend)?;
            self.decoder.restore(&mut self.backend, &[], None)
        });
        match (emptied, why) {
            (Ok(()), None) => {}
            (Ok(()), Some((id, error))) => self.send(EngineEvent::Failed { id, fault: fault_of(error) }),
            (Err(second), None) => self.lost(&second.to_string()),
            (Err(second), Some((id, error))) => {
                let why = format!("{error}; and the device did not recover: {second}");
                self.send(EngineEvent::Failed { id, fault: EngineFault::Fatal { why: why.clone(), code: 4 } });
                self.lost(&why);
            }
        }
    }

    /// The device is of no more use: everybody who waits is told.
    fn lost(&mut self, why: &str) {
        let seats = self.seats.values_mut();
        let waiting = seats.flat_map(|seat| {
            let tasks = seat.queue.drain(..).filter_map(|task| task.id());
            seat.run.take().map(|run| run.id()).into_iter().chain(tasks.collect::<Vec<_>>())
        });
        let mut waiting: Vec<u64> = waiting.collect();
        waiting.sort_unstable();
        waiting.dedup();
        for id in waiting {
            self.send(EngineEvent::Failed { id, fault: EngineFault::Fatal { why: why.to_owned(), code: 4 } });
        }
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
}
