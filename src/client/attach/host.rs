//! The server's side: a socket, and for each terminal a thread that reads its commands and one that writes its events.
//!
//! A terminal that takes no events holds up its own writer alone; what its last command brought waits in memory.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::board::{Board, Seat};
use super::frame;
use super::place::{Held, Place};
use super::wire::{Greeting, Order, Seated, Task, VERSION, Welcome, Word};
use super::{Loads, PATIENCE};
use crate::engine::protocol::{Cancel, Command, EngineEvent, EngineFault, RowSource, RowsFault, RowsPlace};
use crate::text::{Begin, THESAURUS_BYTES, Tokenizer};

/// Terminals at a time, as far as connections go; places at the board are fewer.
const CONNECTIONS: usize = 64;
/// After a connection could not be accepted, as where there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens rows that a terminal has in a file.
pub type Opener = fn(&RowsPlace) -> Result<Arc<dyn RowSource>, RowsFault>;

/// What all connections share.
struct Shared {
    board: Board,
    tokenizer: Arc<Tokenizer>,
    opener: Opener,
    welcome: Welcome,
    /// Those that are open, to be closed at the end.
    open: Mutex<HashMap<u64, UnixStream>>,
    ended: AtomicBool,
}

/// A socket that listens for terminals.
pub struct Host {
    shared: Arc<Shared>,
    place: Place,
    held: Option<Held>,
    thread: Option<JoinHandle<()>>,
}

/// Listens for terminals of the same data directory. `None`: another server of it does.
///
/// # Errors
/// The socket cannot be made.
pub fn open_host(
    place: &Place,
    address: &str,
    loads: Loads,
    board: Board,
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
    let shared = Arc::new(Shared { board, tokenizer, opener, welcome, open, ended });
    let of = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("terminals".into()).spawn(move || accept(&of, &listener))?;
    Ok(Some(Host { shared, place: place.clone(), held: Some(held), thread: Some(thread) }))
}

impl Host {
    /// Ends it: nobody is let in any more, and who is in is gone.
    pub fn close(mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for the next one.
        let woken = self.place.connect().is_ok_and(|found| found.is_some());
        drop(self.held.take());
        for stream in self.shared.open().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for number in 0.. {
        let stream = match listener.accept() {
            Ok(_) if shared.ended() => return,
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a terminal was not let in: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Ok(kept) = stream.try_clone() else { continue };
        if shared.open().len() >= CONNECTIONS {
            continue;
        }
        shared.open().insert(number, kept);
        let of = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("terminal".into()).spawn(move || {
            if let Err(e) = serve(&of, stream) {
                tracing::debug!("a terminal is gone: {e}");
            }
            of.open().remove(&number);
        });
        if let Err(e) = spawned {
            tracing::warn!("a terminal was not let in: {e}");
            shared.open().remove(&number);
        }
    }
}

/// Cancels of jobs that are not done.
type Cancels = Arc<Mutex<HashMap<u64, Cancel>>>;

fn lock(cancels: &Cancels) -> std::sync::MutexGuard<'_, HashMap<u64, Cancel>> {
    cancels.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Talks to one terminal until it leaves.
fn serve(shared: &Arc<Shared>, stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    frame::send(&mut &stream, &shared.welcome, &[])?;
    let mut from = BufReader::new(stream.try_clone()?);
    let Some((Greeting::Join, _)) = frame::receive::<Greeting>(&mut from)? else { return Ok(()) };
    let Some((seat, events)) = shared.board.join() else {
        let why: Seated = Some("it has no place for one more terminal".to_owned());
        return frame::send(&mut &stream, &why, &[]);
    };
    frame::send(&mut &stream, &Seated::None, &[])?;
    // From here on both sides take their time: a model is loaded, a terminal is stopped by Ctrl-Z.
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let cancels = Cancels::default();
    let (to, known) = (stream.try_clone()?, Arc::clone(&cancels));
    let writer = std::thread::Builder::new().name("to terminal".into()).spawn(move || write(&to, &events, &known))?;
    let read = read(shared, &mut from, &seat, &cancels);
    // Its jobs end, and with them the events.
    drop(seat);
    let _ = stream.shutdown(Shutdown::Both);
    let _ = writer.join();
    read
}

/// Writes events until there are no more, or nobody takes them; then the connection is closed.
fn write(stream: &UnixStream, events: &Receiver<EngineEvent>, cancels: &Cancels) {
    let mut to = BufWriter::with_capacity(64 << 10, stream);
    for event in events {
        if let EngineEvent::Done { id, .. } | EngineEvent::Failed { id, .. } = &event {
            lock(cancels).remove(id);
        }
        let mut blobs = Vec::new();
        let word = Word::pack(event, &mut blobs);
        if frame::send(&mut to, &word, &blobs).and_then(|()| to.flush()).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn read(shared: &Shared, from: &mut BufReader<UnixStream>, seat: &Seat, cancels: &Cancels) -> io::Result<()> {
    while let Some((order, blobs)) = frame::receive::<Order>(from)? {
        let mut blobs = blobs.into_iter();
        let command = match order {
            Order::Cancel { id } => {
                if let Some(cancel) = lock(cancels).get(&id) {
                    cancel.cancel();
                }
                continue;
            }
            Order::Fork { id, from, to } => Command::Fork { id, from, to },
            Order::Release { sequence } => Command::Release { sequence },
            Order::MayEvict { sequence } => Command::MayEvict { sequence },
            Order::Run(task) => match job(shared, *task, cancels) {
                Ok(job) => job,
                Err((id, why)) => {
                    seat.tell(EngineEvent::Failed { id, fault: EngineFault::Device(why) });
                    continue;
                }
            },
            Order::Restore { id, sequence, keep, rows, end, history } => {
                let end = end.map(|end| end.unpack(&mut blobs)).transpose()?;
                match rows.iter().map(|place| (shared.opener)(place)).collect::<Result<Vec<_>, _>>() {
                    Ok(rows) => Command::Restore { id, sequence, keep, rows, end, history: Arc::new(history) },
                    Err(fault) => {
                        // What it holds is not what the terminal takes it for any more.
                        seat.command(Command::Release { sequence });
                        seat.tell(EngineEvent::Failed { id, fault: EngineFault::RowsLost(fault) });
                        continue;
                    }
                }
            }
        };
        if !seat.command(command) {
            return Ok(());
        }
    }
    Ok(())
}

/// The job of a task: with what steers it and keeps its quotes, and the flag that stops it.
fn job(shared: &Shared, task: Task, cancels: &Cancels) -> Result<Command, (u64, String)> {
    let (id, cancel) = (task.id, Cancel::default());
    let watching = task.wish.as_ref().and_then(|wish| wish.watching);
    let quoting = task.wish.as_ref().and_then(|wish| wish.quoting.clone());
    let mut job = task.unpack(cancel.clone());
    if let (Some(generate), Some(watching)) = (&mut job.generate, watching) {
        let begin = if watching.in_thought { Begin::Thought } else { Begin::Answer };
        let made = watching.watched.steering(&shared.tokenizer, begin, watching.spent);
        generate.steering = made.map_err(|e| (id, e.to_string()))?;
    }
    if let (Some(generate), Some(quoting)) = (&mut job.generate, quoting) {
        let bytes = quoting.thesaurus.len() as u64;
        if bytes > THESAURUS_BYTES {
            return Err((id, format!("related words of {bytes} bytes, at most {THESAURUS_BYTES} are taken")));
        }
        generate.constraint = Some(quoting.constraint(&shared.tokenizer, &generate.stop));
    }
    lock(cancels).insert(id, cancel);
    Ok(Command::Run(job))
}
