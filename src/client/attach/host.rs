//! The server's side: a socket, and for each terminal a thread that reads its commands and one that writes its events.
//!
//! A terminal that reads no events blocks only its own writer; the events of its last command wait in memory.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::multiplexer::{Multiplexer, Slot};
use super::place::{Held, Place};
use super::wire::{self, Greeting, Order, Refused, VERSION, Welcome};
use super::{Loads, PATIENCE};
use crate::engine::protocol::{
    Command, EngineEvent, EngineFault, Job, Quoting, RowSource, RowsFault, RowsPlace, Watching,
};
use crate::text::steer::steering;
use crate::text::{Begin, THESAURUS_BYTES, Tokenizer, quotes};

const CONNECTIONS: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);

pub type Opener = fn(&RowsPlace) -> Result<Arc<dyn RowSource>, RowsFault>;

struct Shared {
    multiplexer: Multiplexer,
    tokenizer: Arc<Tokenizer>,
    opener: Opener,
    welcome: Welcome,
    open: Mutex<HashMap<u64, UnixStream>>,
    ended: AtomicBool,
}

pub struct Host {
    shared: Arc<Shared>,
    held: Held,
    thread: JoinHandle<()>,
}

/// Listens for terminals of the same data directory. `None`: another server already does.
pub fn open_host(
    place: &Place,
    address: &str,
    loads: Loads,
    multiplexer: Multiplexer,
    tokenizer: Arc<Tokenizer>,
    opener: Opener,
) -> io::Result<Option<Host>> {
    let Some((held, listener)) = place.take(address)? else { return Ok(None) };
    let welcome = Welcome {
        version: VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        address: address.to_owned(),
        loads,
    };
    let (open, ended) = (Mutex::default(), AtomicBool::new(false));
    let shared = Arc::new(Shared { multiplexer, tokenizer, opener, welcome, open, ended });
    let of = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("terminals".into()).spawn(move || accept(&of, &listener))?;
    Ok(Some(Host { shared, held, thread }))
}

impl Host {
    pub fn close(self) {
        let Host { shared, held, thread } = self;
        shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for the next connection.
        let woken = held.place.connect().is_ok_and(|found| found.is_some());
        drop(held);
        for stream in locked(&shared.open).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if woken {
            let _ = thread.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for number in 0.. {
        let stream = match listener.accept() {
            Ok(_) if shared.ended.load(Ordering::Relaxed) => return,
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a terminal was not let in: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Ok(kept) = stream.try_clone() else { continue };
        if locked(&shared.open).len() >= CONNECTIONS {
            continue;
        }
        locked(&shared.open).insert(number, kept);
        let of = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("terminal".into()).spawn(move || {
            if let Err(e) = serve(&of, stream) {
                tracing::debug!("a terminal is gone: {e}");
            }
            locked(&of.open).remove(&number);
        });
        if let Err(e) = spawned {
            tracing::warn!("a terminal was not let in: {e}");
            locked(&shared.open).remove(&number);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(shared: &Arc<Shared>, stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    wire::send_head(&mut &stream, &shared.welcome)?;
    let mut from = BufReader::new(stream.try_clone()?);
    let Some(greeting) = wire::receive_head::<Greeting>(&mut from)? else { return Ok(()) };
    let Some((slot, events)) = shared.multiplexer.join() else {
        let why: Refused = Some("it has no slot for another terminal".to_owned());
        return wire::send_head(&mut &stream, &why);
    };
    if greeting == Greeting::Park {
        slot.command(Command::Park);
        let parked = events.iter().any(|event| matches!(event, EngineEvent::Ready(info) if info.parked));
        let refused: Refused = (!parked).then(|| "its model has ended".to_owned());
        return wire::send_head(&mut &stream, &refused);
    }
    wire::send_head(&mut &stream, &Refused::None)?;
    // From here on no timeout: a model loads slowly, and Ctrl-Z stops a terminal.
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let to = stream.try_clone()?;
    let writer = std::thread::Builder::new().name("to terminal".into()).spawn(move || write(&to, &events))?;
    let read = read(shared, &mut from, &slot);
    // This ends its jobs, and with them the events.
    drop(slot);
    let _ = stream.shutdown(Shutdown::Both);
    let _ = writer.join();
    read
}

fn write(stream: &UnixStream, events: &Receiver<EngineEvent>) {
    let mut to = BufWriter::with_capacity(64 << 10, stream);
    for event in events {
        if wire::send(&mut to, event).and_then(|()| to.flush()).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn read(shared: &Shared, from: &mut BufReader<UnixStream>, slot: &Slot) -> io::Result<()> {
    while let Some(order) = wire::receive::<Order>(from)? {
        let (mut command, places, watching, quoting) = match order {
            Order::Command { command, rows, watching, quoting } => (*command, rows, watching, quoting),
            Order::Cancel { id } => {
                slot.cancel(id);
                continue;
            }
        };
        let fault = match &mut command {
            Command::Restore { id, sequence, rows, .. } => match places.iter().map(shared.opener).collect() {
                Ok(opened) => {
                    *rows = opened;
                    None
                }
                Err(fault) => {
                    // The terminal assumes that the old state is replaced, so it must not stay.
                    slot.command(Command::Release { sequence: *sequence });
                    Some((*id, EngineFault::RowsLost(fault)))
                }
            },
            Command::Run(job) => {
                complete(shared, job, watching, quoting).err().map(|why| (job.id, EngineFault::Device(why)))
            }
            _ => None,
        };
        match fault {
            Some((id, fault)) => slot.report(EngineEvent::Failed { id, fault }),
            None if slot.command(command) => {}
            None => return Ok(()),
        }
    }
    Ok(())
}

fn complete(
    shared: &Shared,
    job: &mut Job,
    watching: Option<Watching>,
    quoting: Option<Quoting>,
) -> Result<(), String> {
    let Some(generate) = &mut job.generate else { return Ok(()) };
    if let Some(watching) = watching {
        let begin = if watching.in_thought { Begin::Thought } else { Begin::Answer };
        let made = steering(watching.watched, &shared.tokenizer, begin, watching.spent);
        generate.steering = made.map_err(|e| e.to_string())?;
    }
    if let Some(quoting) = quoting {
        let bytes = quoting.thesaurus.len() as u64;
        if bytes > THESAURUS_BYTES {
            return Err(format!("related words of {bytes} bytes, at most {THESAURUS_BYTES} are taken"));
        }
        generate.constraint = Some(quotes::constraint(&quoting, &shared.tokenizer, &generate.stop));
    }
    Ok(())
}
