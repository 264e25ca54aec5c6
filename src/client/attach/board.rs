//! One engine for several users: each has command numbers and sequences of its own, as if the engine were its alone.
//!
//! The first user is the server that loaded the model; it is shown an engine with [`TERMINALS`] sequences less, or with as many as
//! it asked for if that is more. The others are terminals and share the rest: each has one sequence for sure, and up to
//! [`MOST`] while there are some. One that leaves takes its jobs and sequences with it. When the server ends, running answers end
//! first, and with them what their terminals ask next (`ending`); [`Board::hurry`] stops them.

mod ending;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select, unbounded};
use ending::Ending;

use crate::core::Exit;
use crate::engine::protocol::{Cancel, Command, EngineEvent, EngineFault, Job, ModelInfo, SequenceId};

/// Sequences that are kept for terminals, unless the server needs them.
const TERMINALS: usize = 6;
/// Sequences that one terminal may have.
const MOST: usize = 5;
/// Sequences of an engine that has not said how many it has.
const UNKNOWN: usize = 16;
/// Commands of the server that may wait.
const COMMANDS: usize = 64;

/// Who uses the engine.
pub(super) type User = u64;
/// The one that loaded it.
const SERVER: User = 0;

enum Call {
    Join { user: User, events: Sender<EngineEvent>, seated: Sender<bool> },
    Command(User, Command),
    Tell(User, EngineEvent),
    Leave(User),
    Hurry,
}

/// A way to the engine's board. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Board {
    calls: Sender<Call>,
    next: Arc<AtomicU64>,
}

/// The server's share of the engine: the same two channels as an engine of its own.
pub struct Share {
    /// To it.
    pub commands: Sender<Command>,
    /// From it.
    pub events: Receiver<EngineEvent>,
}

/// A terminal at the board. It leaves when this is dropped.
pub(super) struct Seat {
    user: User,
    calls: Sender<Call>,
}

impl Seat {
    /// Tells the terminal what the engine need not be asked for.
    pub(super) fn tell(&self, event: EngineEvent) {
        // A board that is gone ends the terminal's events.
        let _ = self.calls.send(Call::Tell(self.user, event));
    }

    /// Hands a command over; false when the board is gone.
    pub(super) fn command(&self, command: Command) -> bool {
        self.calls.send(Call::Command(self.user, command)).is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A board that is gone has nobody at it.
        let _ = self.calls.send(Call::Leave(self.user));
    }
}

impl Board {
    /// Puts an engine on a board. The server needs `needed` sequences.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        commands: Sender<Command>,
        events: Receiver<EngineEvent>,
        needed: usize,
    ) -> std::io::Result<(Board, Share)> {
        let (calls, inbox) = unbounded();
        let (told, heard) = unbounded();
        let (server, orders) = bounded(COMMANDS);
        let table = Table::new(commands, told, needed);
        std::thread::Builder::new().name("board".into()).spawn(move || table.run(&inbox, events))?;
        let to = calls.clone();
        // Ends with the server's channel, which ends the board.
        std::thread::Builder::new().name("server's commands".into()).spawn(move || {
            let mut commands = orders.into_iter().take_while(|c| !matches!(c, Command::Shutdown));
            let _ = commands.all(|command| to.send(Call::Command(SERVER, command)).is_ok());
            let _ = to.send(Call::Leave(SERVER));
        })?;
        let board = Board { calls, next: Arc::new(AtomicU64::new(SERVER + 1)) };
        Ok((board, Share { commands: server, events: heard }))
    }

    /// A place for one more terminal, whose events come through the channel; `None` where there is none.
    pub(super) fn join(&self) -> Option<(Seat, Receiver<EngineEvent>)> {
        let user = self.next.fetch_add(1, Ordering::Relaxed);
        let (events, heard) = unbounded();
        let (seated, answer) = bounded(1);
        self.calls.send(Call::Join { user, events, seated }).ok()?;
        let seat = Seat { user, calls: self.calls.clone() };
        answer.recv().is_ok_and(|seated| seated).then_some((seat, heard))
    }

    /// Stops what the terminals' answers are: the server is to end at once.
    pub fn hurry(&self) {
        let _ = self.calls.send(Call::Hurry);
    }
}

/// A user's.
struct Seats {
    events: Sender<EngineEvent>,
    /// Its sequences and those of the engine.
    sequences: BTreeMap<SequenceId, SequenceId>,
    /// When a command of its was last answered.
    answered: Option<Instant>,
}

impl Seats {
    fn new(events: Sender<EngineEvent>) -> Seats {
        Seats { events, sequences: BTreeMap::new(), answered: None }
    }
}

/// What was asked of the engine and is not answered.
struct Open {
    user: User,
    /// The user's number.
    id: u64,
    cancel: Option<Cancel>,
}

/// The thread's own state.
struct Table {
    /// `None`: the engine is to end, or is gone.
    commands: Option<Sender<Command>>,
    users: HashMap<User, Seats>,
    /// Sequences that the server needs, and that the engine has.
    needed: usize,
    sequences: usize,
    /// Sequences of the engine that nobody has.
    free: BTreeSet<u32>,
    model: Option<ModelInfo>,
    /// The last word about loading it.
    loading: Option<(String, f64)>,
    open: HashMap<u64, Open>,
    next_id: u64,
    /// Set when the server has left.
    ending: Option<Ending>,
    /// Nobody is waited for.
    hurried: bool,
}

impl Table {
    fn new(commands: Sender<Command>, server: Sender<EngineEvent>, needed: usize) -> Table {
        Table {
            commands: Some(commands),
            users: HashMap::from([(SERVER, Seats::new(server))]),
            needed,
            sequences: UNKNOWN,
            free: BTreeSet::new(),
            model: None,
            loading: None,
            open: HashMap::new(),
            next_id: 0,
            ending: None,
            hurried: false,
        }
    }

    fn run(mut self, calls: &Receiver<Call>, mut events: Receiver<EngineEvent>) {
        let mut due: Receiver<Instant> = never();
        while !(self.ending.is_some() && self.open.is_empty() && self.users.is_empty()) {
            select! {
                recv(calls) -> call => match call {
                    Ok(call) => self.on_call(call),
                    Err(_) => return,
                },
                recv(events) -> event => match event {
                    Ok(event) => self.on_engine(event),
                    Err(_) => {
                        events = never();
                        self.lost("the engine is gone; start sala-chat serve again");
                    }
                },
                recv(due) -> _ => {}
            }
            if self.ending.is_some() {
                due = self.dismiss_idle().map_or_else(never, at);
            }
        }
        if let Some(commands) = self.commands.take() {
            // An engine that is gone has ended already.
            let _ = commands.send(Command::Shutdown);
        }
    }

    fn tell(&self, user: User, event: EngineEvent) {
        if let Some(seats) = self.users.get(&user) {
            // One that is gone says so by leaving.
            let _ = seats.events.send(event);
        }
    }

    fn fail(&self, user: User, id: u64, why: impl Into<String>) {
        self.tell(user, EngineEvent::Failed { id, fault: EngineFault::Device(why.into()) });
    }

    fn on_call(&mut self, call: Call) {
        match call {
            Call::Join { user, events, seated } => {
                let room = self.ending.is_none() && self.commands.is_some() && self.has_room();
                // Whoever asked may be gone by now.
                let _ = seated.send(room);
                if room {
                    self.users.insert(user, Seats::new(events));
                    self.greet(user);
                }
            }
            Call::Command(..) if self.begins_nothing() => {}
            Call::Command(user, command) => self.on_command(user, command),
            Call::Tell(user, event) => self.tell(user, event),
            Call::Leave(SERVER) => {
                self.leave(SERVER);
                self.ending = Some(Ending { last: self.next_id, until: None });
            }
            Call::Leave(user) => self.leave(user),
            Call::Hurry => {
                self.hurried = true;
                self.open.values().filter_map(|o| o.cancel.as_ref()).for_each(Cancel::cancel);
            }
        }
    }

    /// Says what the others were told already.
    fn greet(&self, user: User) {
        if let Some((what, done)) = self.loading.clone() {
            self.tell(user, EngineEvent::Loading { what, done });
        }
        if let Some(info) = &self.model {
            self.tell(user, EngineEvent::Ready(self.shown(user, info)));
        }
    }

    /// The server's part of the sequences.
    fn of_server(&self) -> usize {
        self.sequences.saturating_sub(TERMINALS).max(self.needed).min(self.sequences)
    }

    /// The model as a user sees it.
    fn shown(&self, user: User, info: &ModelInfo) -> ModelInfo {
        let of_server = self.of_server();
        let most = if user == SERVER { of_server } else { (self.sequences - of_server).min(MOST) };
        ModelInfo { max_sequences: u32::try_from(most).unwrap_or(u32::MAX), ..info.clone() }
    }

    /// Whether the terminals can have one more sequence, when each of them has its first.
    fn has_room(&self) -> bool {
        let terminals = self.users.iter().filter(|(user, _)| **user != SERVER);
        let taken: usize = terminals.map(|(_, seats)| seats.sequences.len().max(1)).sum();
        taken < self.sequences - self.of_server()
    }

    /// The engine's sequence for one of a user's; a new one if there is one.
    fn sequence(&mut self, user: User, sequence: SequenceId) -> Option<SequenceId> {
        let (room, of_server) = (self.has_room(), self.of_server());
        let seats = self.users.get_mut(&user)?;
        if let Some(found) = seats.sequences.get(&sequence) {
            return Some(*found);
        }
        let may = match (user, seats.sequences.len()) {
            (SERVER, held) => held < of_server,
            // The first one was promised to it.
            (_, 0) => true,
            (_, held) => held < MOST && room,
        };
        let new = SequenceId(may.then(|| self.free.pop_first()).flatten()?);
        seats.sequences.insert(sequence, new);
        Some(new)
    }

    /// Gives the engine a command under a number of its own.
    fn hand_over(&mut self, user: User, id: u64, cancel: Option<Cancel>, command: impl FnOnce(u64) -> Command) {
        if self.hurried {
            cancel.iter().for_each(Cancel::cancel);
        }
        self.next_id += 1;
        let number = self.next_id;
        self.open.insert(number, Open { user, id, cancel });
        self.send(command(number));
    }

    fn send(&mut self, command: Command) {
        if self.commands.as_ref().is_some_and(|c| c.send(command).is_err()) {
            self.lost("the engine is gone; start sala-chat serve again");
        }
    }

    fn on_command(&mut self, user: User, command: Command) {
        let full = "no place for another conversation: sala-chat serve holds as many as it can";
        match command {
            Command::Restore { id, sequence, keep, rows, end, history } => match self.sequence(user, sequence) {
                None => self.fail(user, id, full),
                Some(sequence) => {
                    self.hand_over(user, id, None, |id| Command::Restore { id, sequence, keep, rows, end, history })
                }
            },
            Command::Run(mut job) => match self.sequence(user, job.sequence) {
                None => self.fail(user, job.id, full),
                Some(sequence) => {
                    job.sequence = sequence;
                    self.hand_over(user, job.id, Some(job.cancel.clone()), |id| Command::Run(Job { id, ..job }));
                }
            },
            Command::Fork { id, from, to } => match (self.sequence(user, from), self.sequence(user, to)) {
                (Some(from), Some(to)) => self.hand_over(user, id, None, |id| Command::Fork { id, from, to }),
                _ => self.fail(user, id, full),
            },
            Command::Release { sequence } => {
                let held = self.users.get_mut(&user).and_then(|seats| seats.sequences.remove(&sequence));
                self.give_back(held);
            }
            Command::MayEvict { sequence } => {
                let held = self.users.get(&user).and_then(|seats| seats.sequences.get(&sequence)).copied();
                held.into_iter().for_each(|sequence| self.send(Command::MayEvict { sequence }));
            }
            // The server's ends its forwarder, a terminal's is never sent.
            Command::Shutdown => self.leave(user),
        }
    }

    fn on_engine(&mut self, mut event: EngineEvent) {
        match &event {
            EngineEvent::Loading { what, done } => self.loading = Some((what.clone(), *done)),
            EngineEvent::Ready(info) => {
                // Nobody has a sequence before the model is there.
                self.free = (0..info.max_sequences.max(1)).collect();
                self.sequences = self.free.len();
                self.model = Some(info.clone());
                self.users.keys().for_each(|user| self.tell(*user, EngineEvent::Ready(self.shown(*user, info))));
                return;
            }
            EngineEvent::Evicted { sequence } => return self.evicted(*sequence),
            EngineEvent::Failed { fault: EngineFault::Fatal { why, exit }, .. } => {
                let (why, exit) = (why.clone(), *exit);
                return self.fatal(&why, exit);
            }
            _ => {}
        }
        let over = event.is_last();
        let Some(id) = event.id_mut() else {
            return self.tell_all(&event);
        };
        let Some(open) = self.open.get(id) else { return };
        let user = open.user;
        let number = std::mem::replace(id, open.id);
        if over {
            self.open.remove(&number);
            if let Some(seats) = self.users.get_mut(&user) {
                seats.answered = Some(Instant::now());
            }
        }
        self.tell(user, event);
    }

    /// The engine's sequence is empty: whoever has it is told by its own number.
    fn evicted(&self, evicted: SequenceId) {
        for (user, seats) in &self.users {
            if let Some((sequence, _)) = seats.sequences.iter().find(|(_, held)| **held == evicted) {
                self.tell(*user, EngineEvent::Evicted { sequence: *sequence });
            }
        }
    }

    /// A word that answers no command.
    fn tell_all(&self, event: &EngineEvent) {
        for user in self.users.keys() {
            match event {
                EngineEvent::Loading { what, done } => {
                    self.tell(*user, EngineEvent::Loading { what: what.clone(), done: *done });
                }
                EngineEvent::Note(text) => self.tell(*user, EngineEvent::Note(text.clone())),
                EngineEvent::Ready(_)
                | EngineEvent::Restored { .. }
                | EngineEvent::Reading { .. }
                | EngineEvent::Tokens { .. }
                | EngineEvent::Waiting { .. }
                | EngineEvent::Evicted { .. }
                | EngineEvent::Done { .. }
                | EngineEvent::Failed { .. } => {}
            }
        }
    }

    fn lost(&mut self, why: &str) {
        if self.commands.is_some() {
            self.fatal(why, Exit::Failure);
        }
    }

    /// The engine is of no more use to anybody.
    fn fatal(&mut self, why: &str, exit: Exit) {
        self.commands = None;
        self.open.clear();
        for user in self.users.keys() {
            let fault = EngineFault::Fatal { why: why.to_owned(), exit };
            self.tell(*user, EngineEvent::Failed { id: 0, fault });
        }
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
