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

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};

use super::open;
use super::room::PATIENCE;
use super::schedule::Pace;
use super::seats::{Held, Seat};
use super::speculate::{DecodeError, Decoder};
use crate::backend::BackendError;
use crate::backend::draft::DraftOps;
use crate::base::Exit;
use crate::model::{Live, Model, ModelError};
use crate::protocol::engine::{Command, EngineEvent, EngineFault, EngineOptions, MAIN, ModelInfo, SequenceId};

/// Commands that may wait to be taken in, which happens between two turns.
const COMMANDS: usize = 64;

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
    start(move |inbox, outbox| open::run(&options, inbox, outbox))
}

/// The same on a device that is opened already, whatever [`EngineOptions::device`] says.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_on<B: DraftOps>(backend: B, options: EngineOptions) -> std::io::Result<Engine> {
    start(move |inbox, outbox| open::run_on(backend, &options, inbox, outbox))
}

fn start(
    run: impl FnOnce(&Receiver<Command>, &Sender<EngineEvent>) -> Result<(), open::Failure> + Send + 'static,
) -> std::io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        let run = AssertUnwindSafe(|| run(&inbox, &outbox));
        let failure = match catch_unwind(run) {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => {
                let words = panic_text(panic.as_ref());
                let error = format!(
                    "the engine stopped unexpectedly ({words}); the conversation is saved, start again to go on"
                );
                open::Failure { error, exit: Exit::Failure }
            }
        };
        let open::Failure { error: why, exit } = failure;
        // Nobody listens any more when the program is ending.
        let _ = outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, exit } });
    })?;
    Ok(Engine { commands, events, thread })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Does a part of one conversation's work: a panic in it is that conversation's failure, and nothing to the others.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    // What it leaves half done is emptied before anything else is done with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(DecodeError::Panic(panic_text(panic.as_ref()))))
}

/// A failed command in the desk's words.
fn fault_of(error: &DecodeError) -> EngineFault {
    match error {
        DecodeError::Model(ModelError::Backend(BackendError::Stopped)) => EngineFault::Stopped,
        DecodeError::Model(ModelError::Backend(BackendError::Rows(fault))) => EngineFault::RowsLost(fault.clone()),
        DecodeError::Stuck(_) => EngineFault::Stuck(error.to_string()),
        DecodeError::Model(_)
        | DecodeError::Draft(_)
        | DecodeError::NotFinite { .. }
        | DecodeError::OnlyLikeliest
        | DecodeError::Panic(_)
        | DecodeError::Order(_) => EngineFault::Device(error.to_string()),
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
    pub(super) seats: BTreeMap<SequenceId, Seat<B>>,
    /// Whose state is in `live` and `decoder`.
    pub(super) in_hand: SequenceId,
    /// Evicted ones that nobody has restored or released since.
    pub(super) evicted: BTreeSet<SequenceId>,
    /// What an empty sequence takes, with the memory that its first token comes to.
    pub(super) sequence_bytes: u64,
    /// Counts what is done, for the order of last use.
    pub(super) clock: u64,
    /// Memory was given back, or something new asked, since tasks that wait for memory were looked at.
    pub(super) moved: bool,
    /// Keys and values were to leave the device and could not, as memory is now.
    pub(super) stays_resident: bool,
    /// When a job last ended.
    pub(super) ended: Option<Instant>,
    /// Jobs that have rows in the pass that is being put together.
    pub(super) in_pass: usize,
    /// How prompts were read lately.
    pub(super) pace: Pace,
    /// Rounds since the last chunk of a prompt.
    pub(super) rounds: usize,
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
        let seats = BTreeMap::from([(MAIN, Seat::new(Held::InHand))]);
        let sequence_bytes = backend.memory().state + live.wants(&backend, 1);
        Worker {
            backend,
            model,
            live,
            decoder,
            info,
            events,
            seats,
            in_hand: MAIN,
            evicted: BTreeSet::new(),
            sequence_bytes,
            clock: 0,
            moved: false,
            stays_resident: false,
            ended: None,
            in_pass: 0,
            pace: Pace::default(),
            rounds: 0,
        }
    }

    /// Answers commands until told to end, or until the desk is gone.
    pub(super) fn serve(mut self, commands: &Receiver<Command>) {
        self.send(EngineEvent::Ready(self.info.clone()));
        let mut gone = false;
        loop {
            let idle = self.seats.values().all(|seat| seat.run.is_none());
            let waits = self.seats.values().any(|seat| seat.waits.is_some());
            let next = match (idle, gone, waits) {
                (true, true, _) => return,
                // Nobody is at work, but somebody may give memory back: not for ever.
                (true, false, true) => commands.recv_timeout(PATIENCE).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                (true, false, false) => commands.recv().map_err(|_| TryRecvError::Disconnected),
                (false, ..) => commands.try_recv(),
            };
            self.moved |= idle;
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

    /// Reports a failure and empties the sequence, so that its next command starts from something known.
    pub(super) fn fail(&mut self, sequence: SequenceId, id: u64, error: &DecodeError) {
        if let Some(seat) = self.seats.get_mut(&sequence) {
            (seat.run, seat.waits) = (None, None);
        }
        self.empty(sequence, Some((id, error)));
        self.cut(sequence);
        self.ended = Some(Instant::now());
        self.go_on();
    }

    /// Empties a sequence; says why, if there is somebody to be told.
    pub(super) fn empty(&mut self, sequence: SequenceId, why: Option<(u64, &DecodeError)>) {
        let emptied = guarded(|| {
            if !self.has_state(sequence) {
                return Ok(());
            }
            self.take(sequence)?;
            self.live.reset(&mut self.backend)?;
            self.decoder.restore(&mut self.backend, &[], None)
        });
        match (emptied, why) {
            (Ok(()), None) => {}
            (Ok(()), Some((id, error))) => self.send(EngineEvent::Failed { id, fault: fault_of(error) }),
            (Err(second), None) => self.lost(&second.to_string()),
            (Err(second), Some((id, error))) => {
                let why = format!("{error}; and the device did not recover: {second}");
                self.send(EngineEvent::Failed {
                    id,
                    fault: EngineFault::Fatal { why: why.clone(), exit: Exit::NoDevice },
                });
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
            self.send(EngineEvent::Failed {
                id,
                fault: EngineFault::Fatal { why: why.to_owned(), exit: Exit::NoDevice },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_that_is_stuck_is_no_failure_of_the_device() {
        let stuck = fault_of(&DecodeError::Stuck("too many rules".into()));
        assert!(matches!(&stuck, EngineFault::Stuck(why) if why.contains("too many rules")), "{stuck:?}");
        assert!(matches!(fault_of(&DecodeError::OnlyLikeliest), EngineFault::Device(_)));
    }
}
