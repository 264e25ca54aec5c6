//! The terminal's side: a thread that serves as the runtime's engine and forwards commands to the server's. When the
//! server ends, pending commands fail with one line and all states are lost; the next command looks for a server again,
//! else loads the model here. Commands wait for the model; if its fingerprint changed, they fail, so that the runtime
//! plans anew.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, unbounded};

use super::place::Link;
use super::wire::{self, Order};
use crate::client::about;
use crate::core::Exit;
use crate::engine::protocol::{Cancel, Command, Engine, EngineEvent, EngineFault, ModelInfo, SequenceId};

const COMMANDS: usize = 4;
const TICK: Duration = Duration::from_millis(20);
/// A server that sends nothing for this long after a stop request counts as gone.
const SILENCE: Duration = Duration::from_secs(10);

pub struct Way {
    pub find: Box<dyn FnMut() -> Result<Option<Link>, String> + Send>,
    pub load: Box<dyn FnMut() -> io::Result<Engine> + Send>,
}

pub fn spawn(link: Link, way: Way) -> io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let side = Side::server(link)?;
    let connection = Connection {
        way,
        events: outbox,
        side,
        ready: false,
        known: None,
        held: VecDeque::new(),
        pending: HashMap::new(),
        used: BTreeSet::new(),
        lost: BTreeMap::new(),
        heard: Instant::now(),
    };
    let thread = std::thread::Builder::new().name("attached engine".into()).spawn(move || connection.run(&inbox))?;
    Ok(Engine { commands, events, thread })
}

enum Side {
    Server { to: UnixStream, from: Receiver<EngineEvent>, host: String },
    Here(Engine),
    Away,
}

impl Side {
    fn server(link: Link) -> io::Result<Side> {
        let Link { stream, mut from, host } = link;
        let (report, heard) = unbounded();
        std::thread::Builder::new().name("from server".into()).spawn(move || {
            let failed = |e: &io::Error| tracing::debug!("the server's events end: {e}");
            let mut next = || wire::receive(&mut from).inspect_err(failed).ok().flatten();
            while next().is_some_and(|event| report.send(event).is_ok()) {}
        })?;
        Ok(Side::Server { to: stream, from: heard, host })
    }

    fn events(&self) -> Receiver<EngineEvent> {
        match self {
            Side::Server { from, .. } => from.clone(),
            Side::Here(engine) => engine.events.clone(),
            Side::Away => never(),
        }
    }
}

struct Pending {
    cancel: Option<Cancel>,
    reported: Option<Instant>,
}

struct Connection {
    way: Way,
    events: Sender<EngineEvent>,
    side: Side,
    ready: bool,
    known: Option<String>,
    held: VecDeque<Command>,
    pending: HashMap<u64, Pending>,
    used: BTreeSet<SequenceId>,
    lost: BTreeMap<SequenceId, EngineFault>,
    heard: Instant,
}

impl Connection {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let stops = self.pending.values().any(|p| p.cancel.is_some()) || !self.held.is_empty();
            let tick = if stops { after(TICK) } else { never() };
            select! {
                recv(commands) -> command => match command {
                    Ok(Command::Shutdown) | Err(_) => return self.end(),
                    Ok(command) => self.on_command(command),
                },
                recv(self.side.events()) -> event => match event {
                    Ok(event) => self.on_event(event),
                    Err(_) => self.gone(None),
                },
                recv(tick) -> _ => {}
            }
            self.look_for_stops();
        }
    }

    fn send(&self, event: EngineEvent) {
        // A runtime that is gone closes the other channel too.
        let _ = self.events.send(event);
    }

    fn fail(&self, id: u64, why: impl Into<String>) {
        self.send(EngineEvent::Failed { id, fault: EngineFault::Device(why.into()) });
    }

    fn fatal(&self, why: impl Into<String>) {
        let fault = EngineFault::Fatal { why: why.into(), exit: Exit::Failure };
        self.send(EngineEvent::Failed { id: 0, fault });
    }

    fn end(self) {
        match self.side {
            Side::Server { to, .. } => drop(to.shutdown(Shutdown::Both)),
            Side::Here(Engine { commands, events, thread }) => {
                // Bounded channel: an engine that hangs must not keep the program from ending.
                let reported = commands.send_timeout(Command::Shutdown, Duration::from_secs(2));
                drop((commands, events));
                if reported.is_ok() {
                    let _ = thread.join();
                }
            }
            Side::Away => {}
        }
    }

    fn on_command(&mut self, command: Command) {
        let (sequence, id, rests_on) = about(&command);
        if let (Some(id), Some(base)) = (id, rests_on)
            && let Some(fault) = self.lost.get(&base)
        {
            // The failed command rebuilds no state: `lost` keeps its entries.
            return self.send(EngineEvent::Failed { id, fault: fault.clone() });
        }
        if !matches!(command, Command::MayEvict { .. }) {
            self.lost.retain(|lost, _| Some(*lost) != sequence);
        }
        if matches!(self.side, Side::Away) {
            if id.is_none() && !matches!(command, Command::Park | Command::Unpark) {
                // Without an engine there is no sequence to release or evict.
                return;
            }
            if let Err(e) = self.enter(true) {
                return self.fail(id.unwrap_or_default(), format!("The model cannot be loaded here: {e}"));
            }
        }
        if self.ready { self.hand_on(command) } else { self.held.push_back(command) }
    }

    fn enter(&mut self, look: bool) -> io::Result<()> {
        self.ready = false;
        self.heard = Instant::now();
        let found = if look { (self.way.find)() } else { Ok(None) };
        let why = match found {
            Ok(Some(link)) => {
                self.side = Side::server(link)?;
                return Ok(());
            }
            Ok(None) => "No server runs any more".to_owned(),
            Err(why) => why,
        };
        self.side = Side::Here((self.way.load)()?);
        self.send(EngineEvent::Note(format!("{why}: the model is loaded here.")));
        Ok(())
    }

    fn hand_on(&mut self, command: Command) {
        let (sequence, id, _) = about(&command);
        match (&command, sequence) {
            (Command::Release { sequence }, _) => drop(self.used.remove(sequence)),
            (Command::MayEvict { .. }, _) | (_, None) => {}
            (_, Some(sequence)) => drop(self.used.insert(sequence)),
        }
        if let Some(id) = id {
            let cancel = if let Command::Run(job) = &command { Some(job.cancel.clone()) } else { None };
            self.pending.insert(id, Pending { cancel, reported: None });
        }
        let handed = match &mut self.side {
            Side::Server { to, .. } => match Order::of(command) {
                Ok(order) => wire::send(to, order).is_ok(),
                Err(why) => {
                    let id = id.unwrap_or_default();
                    self.pending.remove(&id);
                    return self.fail(id, why);
                }
            },
            Side::Here(engine) => engine.commands.send(command).is_ok(),
            Side::Away => false,
        };
        if !handed {
            self.gone(None);
        }
    }

    fn on_event(&mut self, event: EngineEvent) {
        self.heard = Instant::now();
        let at_server = matches!(self.side, Side::Server { .. });
        match event {
            EngineEvent::Ready(info) => self.now_ready(info),
            EngineEvent::Loading { what, done } => match self.held.front().and_then(|c| about(c).1) {
                Some(id) => self.send(EngineEvent::Waiting { id, what: format!("{what} {:.0}%", done * 100.0) }),
                None => self.send(EngineEvent::Loading { what, done }),
            },
            EngineEvent::Failed { fault: EngineFault::Fatal { why, .. }, .. } if at_server => self.gone(Some(why)),
            mut event => {
                if event.is_last()
                    && let Some(id) = event.id_mut()
                {
                    self.pending.remove(id);
                }
                self.send(event);
            }
        }
    }

    fn now_ready(&mut self, info: ModelInfo) {
        let host = if let Side::Server { host, .. } = &self.side { Some(host.clone()) } else { None };
        let changed = self.known.as_ref().is_some_and(|known| *known != info.fingerprint);
        self.known = Some(info.fingerprint.clone());
        self.ready = true;
        self.send(EngineEvent::Ready(ModelInfo { host, ..info }));
        // One by one: if the server ends meanwhile, the rest of the held commands fails with it.
        while let Some(command) = self.held.pop_front() {
            match about(&command).1 {
                Some(id) if changed => self.fail(id, "The model is in another form now than before. Ask again."),
                _ => self.hand_on(command),
            }
        }
    }

    fn gone(&mut self, why: Option<String>) {
        let host = match std::mem::replace(&mut self.side, Side::Away) {
            Side::Server { to, host, .. } => {
                let _ = to.shutdown(Shutdown::Both);
                host
            }
            Side::Here(_) => return self.fatal("The engine has stopped. Text is safe; sala-chat -c continues."),
            Side::Away => return,
        };
        if self.known.is_none() {
            // The server never had the model: continue as without a server.
            return self.enter(false).unwrap_or_else(|e| self.fatal(format!("no thread to run on: {e}")));
        }
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let next = "the next question looks for a server again, or loads the model here";
        let line = format!("{host}, which ran the model, has ended{why}. The text is kept; {next}.");
        let fault = EngineFault::Gone(line);
        let failed = |id| EngineEvent::Failed { id, fault: fault.clone() };
        self.lost.extend(std::mem::take(&mut self.used).into_iter().map(|sequence| (sequence, fault.clone())));
        // First the loss: the runtime may retry the failed commands at once, and none may rest on a lost state.
        self.send(failed(0));
        let pending = std::mem::take(&mut self.pending).into_keys();
        let held = std::mem::take(&mut self.held).into_iter().filter_map(|c| about(&c).1);
        let mut waiting: Vec<u64> = pending.chain(held).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|id| self.send(failed(id)));
    }

    fn look_for_stops(&mut self) {
        let stopped = |command: &Command| matches!(command, Command::Run(job) if job.cancel.is_cancelled());
        for command in std::mem::take(&mut self.held) {
            match about(&command).1 {
                Some(id) if stopped(&command) => self.send(EngineEvent::Failed { id, fault: EngineFault::Stopped }),
                _ => self.held.push_back(command),
            }
        }
        let Side::Server { to, .. } = &mut self.side else { return };
        let mut alive = true;
        for (id, pending) in &mut self.pending {
            let cancelled = pending.cancel.as_ref().is_some_and(Cancel::is_cancelled);
            match pending.reported {
                None if cancelled => {
                    pending.reported = Some(Instant::now());
                    alive &= wire::send(to, Order::Cancel { id: *id }).is_ok();
                }
                Some(reported) => alive &= reported.elapsed() < SILENCE || self.heard.elapsed() < SILENCE,
                None => {}
            }
        }
        if !alive {
            self.gone(Some("it does not answer".to_owned()));
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
