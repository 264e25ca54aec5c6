//! One engine for several users: each has its own command numbers and sequences. The server that loaded the model sees
//! an engine with [`TERMINALS`] fewer sequences, or with as many as it needs. Terminals share the rest: one sequence
//! for sure, up to [`MOST`] while there are some. When the server ends, running jobs end first;
//! [`Multiplexer::hurry`] stops them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};

use crate::core::Exit;
use crate::engine::protocol::{Cancel, Command, EngineEvent, EngineFault, ModelInfo, SequenceId};

/// Sequences that are kept for terminals, unless the server needs them.
const TERMINALS: usize = 6;
const MOST: usize = 5;
const UNKNOWN: usize = 16;
const COMMANDS: usize = 64;

pub(super) type User = u64;
const SERVER: User = 0;

enum Call {
    Join { user: User, events: Sender<EngineEvent>, accepted: Sender<bool> },
    Command(User, Command),
    Cancel(User, u64),
    Report(User, EngineEvent),
    Leave(User),
    Hurry,
}

#[derive(Clone, Debug)]
pub struct Multiplexer {
    calls: Sender<Call>,
    next: Arc<AtomicU64>,
}

/// The server's share of the engine: the same two channels as an engine of its own.
pub struct Share {
    pub commands: Sender<Command>,
    pub events: Receiver<EngineEvent>,
}

pub(super) struct Slot {
    user: User,
    calls: Sender<Call>,
}

impl Slot {
    pub(super) fn report(&self, event: EngineEvent) {
        let _ = self.calls.send(Call::Report(self.user, event));
    }

    pub(super) fn cancel(&self, id: u64) {
        let _ = self.calls.send(Call::Cancel(self.user, id));
    }

    pub(super) fn command(&self, command: Command) -> bool {
        self.calls.send(Call::Command(self.user, command)).is_ok()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A multiplexer that has ended needs no notice.
        let _ = self.calls.send(Call::Leave(self.user));
    }
}

impl Multiplexer {
    pub fn start(
        commands: Sender<Command>,
        events: Receiver<EngineEvent>,
        needed: usize,
    ) -> std::io::Result<(Multiplexer, Share)> {
        let (calls, inbox) = unbounded();
        let (reported, heard) = unbounded();
        let (server, orders) = bounded(COMMANDS);
        let table = Table::new(commands, reported, needed);
        std::thread::Builder::new().name("multiplexer".into()).spawn(move || table.run(&inbox, events))?;
        let to = calls.clone();
        // Ends with the server's channel, which ends the multiplexer.
        std::thread::Builder::new().name("server's commands".into()).spawn(move || {
            let mut commands = orders.into_iter().take_while(|c| !matches!(c, Command::Shutdown));
            let _ = commands.all(|command| to.send(Call::Command(SERVER, command)).is_ok());
            let _ = to.send(Call::Leave(SERVER));
        })?;
        let multiplexer = Multiplexer { calls, next: Arc::new(AtomicU64::new(SERVER + 1)) };
        Ok((multiplexer, Share { commands: server, events: heard }))
    }

    /// A slot for one more terminal and the channel of its events; `None` if all are taken.
    pub(super) fn join(&self) -> Option<(Slot, Receiver<EngineEvent>)> {
        let user = self.next.fetch_add(1, Ordering::Relaxed);
        let (events, heard) = unbounded();
        let (accepted, answer) = bounded(1);
        self.calls.send(Call::Join { user, events, accepted }).ok()?;
        let slot = Slot { user, calls: self.calls.clone() };
        answer.recv().is_ok_and(|accepted| accepted).then_some((slot, heard))
    }

    /// Stops the terminals' answers, so that the server can end at once.
    pub fn hurry(&self) {
        let _ = self.calls.send(Call::Hurry);
    }
}

struct Slots {
    events: Sender<EngineEvent>,
    sequences: BTreeMap<SequenceId, SequenceId>,
}

impl Slots {
    fn new(events: Sender<EngineEvent>) -> Slots {
        Slots { events, sequences: BTreeMap::new() }
    }
}

struct Open {
    user: User,
    id: u64,
    cancel: Option<Cancel>,
}

#[derive(Default)]
struct Table {
    /// `None`: the engine is ending or gone.
    commands: Option<Sender<Command>>,
    users: HashMap<User, Slots>,
    needed: usize,
    sequences: usize,
    free: BTreeSet<u32>,
    model: Option<ModelInfo>,
    loading: Option<(String, f64)>,
    open: HashMap<u64, Open>,
    next_id: u64,
    /// The server has left: running jobs end, and no further one begins.
    ending: bool,
    hurried: bool,
}

impl Table {
    fn new(commands: Sender<Command>, server: Sender<EngineEvent>, needed: usize) -> Table {
        Table {
            commands: Some(commands),
            users: HashMap::from([(SERVER, Slots::new(server))]),
            needed,
            sequences: UNKNOWN,
            ..Table::default()
        }
    }

    fn run(mut self, calls: &Receiver<Call>, mut events: Receiver<EngineEvent>) {
        while !(self.ending && self.open.is_empty() && self.users.is_empty()) {
            select! {
                recv(calls) -> call => match call {
                    Ok(call) => self.on_call(call),
                    Err(_) => return,
                },
                recv(events) -> event => match event {
                    Ok(event) => self.on_engine(event),
                    Err(_) => {
                        events = never();
                        self.lost();
                    }
                },
            }
            if self.ending {
                self.dismiss_idle();
            }
        }
        if let Some(commands) = self.commands.take() {
            // An engine that is gone has ended already.
            let _ = commands.send(Command::Shutdown);
        }
    }

    fn report(&self, user: User, event: EngineEvent) {
        if let Some(slots) = self.users.get(&user) {
            let _ = slots.events.send(event);
        }
    }

    fn report_all(&self, event: impl Fn(User) -> EngineEvent) {
        self.users.keys().for_each(|user| self.report(*user, event(*user)));
    }

    fn on_call(&mut self, call: Call) {
        match call {
            Call::Join { user, events, accepted } => {
                let room = !self.ending && self.commands.is_some() && self.has_room();
                let _ = accepted.send(room);
                if room {
                    self.users.insert(user, Slots::new(events));
                    self.greet(user);
                }
            }
            // It stays unanswered until the terminal's connection ends; then the terminal sends it elsewhere.
            Call::Command(..) if self.ending => {}
            Call::Command(user, command) => self.on_command(user, command),
            Call::Cancel(user, id) => {
                let jobs = self.open.values().filter(|open| open.user == user && open.id == id);
                jobs.filter_map(|open| open.cancel.as_ref()).for_each(Cancel::cancel);
            }
            Call::Report(user, event) => self.report(user, event),
            Call::Leave(user) => {
                self.leave(user);
                self.ending |= user == SERVER;
            }
            Call::Hurry => {
                self.hurried = true;
                self.open.values().filter_map(|o| o.cancel.as_ref()).for_each(Cancel::cancel);
            }
        }
    }

    fn greet(&self, user: User) {
        if let Some((what, done)) = self.loading.clone() {
            self.report(user, EngineEvent::Loading { what, done });
        }
        if let Some(info) = &self.model {
            self.report(user, EngineEvent::Ready(self.shown(user, info)));
        }
    }

    fn of_server(&self) -> usize {
        self.sequences.saturating_sub(TERMINALS).max(self.needed).min(self.sequences)
    }

    /// The model as a user sees it, with the user's share of the sequences.
    fn shown(&self, user: User, info: &ModelInfo) -> ModelInfo {
        let of_server = self.of_server();
        let most = if user == SERVER { of_server } else { (self.sequences - of_server).min(MOST) };
        ModelInfo { max_sequences: u32::try_from(most).unwrap_or(u32::MAX), ..info.clone() }
    }

    /// Whether the terminals can have one more sequence beyond the first of each.
    fn has_room(&self) -> bool {
        let terminals = self.users.iter().filter(|(user, _)| **user != SERVER);
        let taken: usize = terminals.map(|(_, slots)| slots.sequences.len().max(1)).sum();
        taken < self.sequences - self.of_server()
    }

    /// Replaces a user's number of a sequence by the engine's; false if the user may not have one more.
    fn place(&mut self, user: User, sequence: &mut SequenceId) -> bool {
        let (room, of_server) = (self.has_room(), self.of_server());
        let Some(slots) = self.users.get_mut(&user) else { return false };
        let may = match (user, slots.sequences.len()) {
            (SERVER, held) => held < of_server,
            // Each terminal has a right to its first sequence.
            (_, 0) => true,
            (_, held) => held < MOST && room,
        };
        let held = slots.sequences.get(sequence).copied();
        let Some(held) = held.or_else(|| may.then(|| self.free.pop_first()).flatten().map(SequenceId)) else {
            return false;
        };
        slots.sequences.insert(*sequence, held);
        *sequence = held;
        true
    }

    fn send(&mut self, command: Command) {
        if self.commands.as_ref().is_some_and(|c| c.send(command).is_err()) {
            self.lost();
        }
    }

    fn on_command(&mut self, user: User, mut command: Command) {
        let placed = match &mut command {
            Command::Restore { sequence, .. } => self.place(user, sequence),
            Command::Run(job) => self.place(user, &mut job.sequence),
            Command::Fork { from, to, .. } => self.place(user, from) && self.place(user, to),
            Command::Release { sequence } => {
                let held = self.users.get_mut(&user).and_then(|slots| slots.sequences.remove(sequence));
                return self.give_back(held);
            }
            Command::MayEvict { sequence } => {
                let held = self.users.get(&user).and_then(|slots| slots.sequences.get(sequence));
                let Some(held) = held else { return };
                *sequence = *held;
                true
            }
            Command::Park | Command::Unpark => true,
            // Only the server sends it; it ends the server's forwarder.
            Command::Shutdown => return self.leave(user),
        };
        let cancel = if let Command::Run(job) = &command { Some(job.cancel.clone()) } else { None };
        if let Some(id) = command.id_mut() {
            if !placed {
                let fault = EngineFault::Device("no room for another conversation: sala-chat serve is full".to_owned());
                return self.report(user, EngineEvent::Failed { id: *id, fault });
            }
            self.next_id += 1;
            let id = std::mem::replace(id, self.next_id);
            if self.hurried {
                cancel.iter().for_each(Cancel::cancel);
            }
            self.open.insert(self.next_id, Open { user, id, cancel });
        }
        self.send(command);
    }

    fn on_engine(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Loading { what, done } => {
                self.report_all(|_| EngineEvent::Loading { what: what.clone(), done });
                self.loading = Some((what, done));
            }
            EngineEvent::Note(text) => self.report_all(|_| EngineEvent::Note(text.clone())),
            EngineEvent::Ready(info) => {
                // No user has a sequence before the model is ready the first time.
                if self.model.is_none() {
                    self.free = (0..info.max_sequences.max(1)).collect();
                    self.sequences = self.free.len();
                }
                self.report_all(|user| EngineEvent::Ready(self.shown(user, &info)));
                self.model = Some(info);
            }
            EngineEvent::Evicted { sequence } => self.evicted(sequence),
            EngineEvent::Failed { fault: EngineFault::Fatal { why, exit }, .. } => self.fatal(&why, exit),
            event => self.answered(event),
        }
    }

    fn answered(&mut self, mut event: EngineEvent) {
        let over = event.is_last();
        let Some(id) = event.id_mut() else { return };
        let Some(open) = self.open.get(id) else { return };
        let user = open.user;
        let number = std::mem::replace(id, open.id);
        if over {
            self.open.remove(&number);
        }
        self.report(user, event);
    }

    fn give_back(&mut self, sequences: impl IntoIterator<Item = SequenceId>) {
        for sequence in sequences {
            // Later commands to the sequence follow this one.
            self.send(Command::Release { sequence });
            self.free.insert(sequence.0);
        }
    }

    fn leave(&mut self, user: User) {
        self.open.values().filter(|o| o.user == user).filter_map(|o| o.cancel.as_ref()).for_each(Cancel::cancel);
        if let Some(slots) = self.users.remove(&user) {
            self.give_back(slots.sequences.into_values());
        }
    }

    fn dismiss_idle(&mut self) {
        let busy: BTreeSet<User> = self.open.values().map(|o| o.user).collect();
        let idle: Vec<User> = self.users.keys().copied().filter(|user| !busy.contains(user)).collect();
        idle.into_iter().for_each(|user| self.leave(user));
    }

    fn evicted(&self, evicted: SequenceId) {
        for (user, slots) in &self.users {
            if let Some((sequence, _)) = slots.sequences.iter().find(|(_, held)| **held == evicted) {
                self.report(*user, EngineEvent::Evicted { sequence: *sequence });
            }
        }
    }

    fn lost(&mut self) {
        if self.commands.is_some() {
            self.fatal("the engine is gone; start sala-chat serve again", Exit::Failure);
        }
    }

    fn fatal(&mut self, why: &str, exit: Exit) {
        self.commands = None;
        self.open.clear();
        let fault = EngineFault::Fatal { why: why.to_owned(), exit };
        self.report_all(|_| EngineEvent::Failed { id: 0, fault: fault.clone() });
    }
}

#[cfg(test)]
#[path = "multiplexer_tests.rs"]
mod tests;
