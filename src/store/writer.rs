//! The writer: takes saves, makes them durable, and reports the result of each.
//!
//! Owns two threads, each with a queue. Handing over a save never waits for a disk, so decode never does. One thread
//! makes the changes of all saves durable, in order, and passes the saves on. The other one writes their state, so that
//! text does not wait for state. A row without a file is restored from the state before it.
//!
//! - **Text** is never dropped. A text that cannot be written stays queued and is tried again with the next save,
//!   every 30 seconds, and at the end.
//! - **State** is a cache: it is skipped when more than [`Limits::max_pending_bytes`](super::Limits) wait, when it
//!   does not fit, or after a failed write, until a probe file shows that the disk works again.
//!
//! The queues are bounded in state bytes. A user's typing bounds its texts, because the steps of a growing answer
//! replace each other; a server limits its own saves.

mod states;
mod texts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};

use super::commit::{Change, Save};
use super::database::{Access, Store, lock};
use super::save::bytes_of;
use super::segment::SegmentId;
use crate::core::now_ms;
use crate::core::transcript::SessionId;
use crate::engine::protocol::StateImage;
use states::States;
use texts::Texts;

/// Time between retries of a failed save when nothing else happens.
const RETRY: Duration = Duration::from_secs(30);
const STOPPED: &str = "saving has stopped after an internal error: restart sala-chat to go on saving";
const TOO_LONG: &str = "the disk takes too long";
const STATES_STOPPED: &str = "an internal error has stopped it: restart sala-chat to keep state again";
const BUDGET_EVERY: u64 = 16;
/// Time after which a use of state is stored while nothing is saved.
const USES_EVERY: Duration = Duration::from_secs(2);

/// The result of a save. Sent after the commit it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveEvent {
    /// A session has this name, because the requested one was taken. Sent before other events of its save.
    Named {
        session: SessionId,
        name: String,
    },
    /// The texts of this save are on disk; its state follows.
    Text {
        id: u64,
    },
    Saved {
        id: u64,
        at_ms: i64,
    },
    /// The texts are on disk, the state is not kept. The reason is a sentence: the cause and its effect.
    TextOnly {
        id: u64,
        at_ms: i64,
        reason: String,
    },
    /// Nothing of it is on disk. It stays queued and is tried again, unless the failure is `lasting`: the save contradicts
    /// the database. Sent once for each save, and for the first one after another failed attempt. The id is 0 when the
    /// thread itself has failed and no later save succeeds.
    NotSaved {
        id: u64,
        reason: String,
        lasting: bool,
    },
    /// After [`SaveEvent::NotSaved`] or a state failure: the disk works again.
    Recovered,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unsaved {
    pub reason: String,
    /// The disk is the cause, not the contents of the database.
    pub disk: bool,
}

#[derive(Debug)]
pub struct Writer {
    handed: Mutex<Handed>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Handed {
    last: u64,
    last_with_text: u64,
    /// `None` once closed.
    queue: Option<Sender<Queued>>,
}

/// What the writer shares with its threads.
#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    events: Sender<SaveEvent>,
    status: Mutex<Status>,
    changed: Condvar,
    /// Bytes of state that waits or is being written.
    pending_bytes: AtomicU64,
    closing: AtomicBool,
}

/// How far the threads are.
#[derive(Debug, Default)]
struct Status {
    /// The texts of all saves up to this id are on disk or given up.
    texts: u64,
    /// The state of all saves up to this id, too.
    states: u64,
    /// Why the oldest text is not on disk; it is tried again.
    stuck: Option<String>,
    given_up: Option<String>,
    ended: bool,
}

impl Shared {
    fn send(&self, event: SaveEvent) {
        // While closing no receiver is left; `close` returns the result.
        let _ = self.events.send(event);
    }

    fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut lock(&self.status));
        self.changed.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Queued {
    id: u64,
    save: Save,
    /// Why its state was skipped when it was queued.
    skipped: Option<&'static str>,
    /// Ids of the saves merged into this one; they are reported with it.
    merged: Vec<u64>,
}

/// For the state thread: a save with its texts on disk or given up, its state, and the sessions that grew.
#[derive(Debug)]
struct Work {
    id: u64,
    images: Vec<(SegmentId, StateImage)>,
    grown: Vec<SessionId>,
}

impl Writer {
    /// Starts both threads. The receiver of `events` should be unbounded or be read all the time.
    pub fn start(store: Arc<Store>, events: Sender<SaveEvent>) -> std::io::Result<Writer> {
        let shared = Arc::new(Shared {
            store,
            events,
            status: Mutex::default(),
            changed: Condvar::new(),
            pending_bytes: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let (queue, queued) = unbounded();
        let (work, to_do) = unbounded();
        let (of_states, worker) = (Arc::clone(&shared), States::new(Arc::clone(&shared), to_do.clone()));
        let states = std::thread::Builder::new().name("store-states".into()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| worker.run())).is_ok() {
                return;
            }
            for Work { id, images, .. } in to_do {
                if !images.is_empty() {
                    of_states.send(SaveEvent::TextOnly { id, at_ms: now_ms(), reason: STATES_STOPPED.into() });
                }
                of_states.update(|status| status.states = id);
            }
        })?;
        let (of_texts, worker) = (Arc::clone(&shared), Texts::new(Arc::clone(&shared), queued, work));
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || {
            // The end of the texts is the end of the queue of states.
            if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                of_texts.send(SaveEvent::NotSaved { id: 0, reason: STOPPED.into(), lasting: true });
            }
            let _ = states.join();
            if of_texts.store.access == Access::Writable {
                of_texts.store.write_uses();
                of_texts.store.checkpoint();
            }
            of_texts.update(|status| status.ended = true);
        })?;
        let handed = Mutex::new(Handed { last: 0, last_with_text: 0, queue: Some(queue) });
        Ok(Writer { handed, shared, thread: Some(thread) })
    }

    pub fn save(&self, mut save: Save) -> u64 {
        let mut handed = lock(&self.handed);
        handed.last += 1;
        let id = handed.last;
        if !save.changes.is_empty() {
            handed.last_with_text = id;
        }
        let (bytes, mut skipped) = (bytes_of(&save.images), None);
        let pending = self.shared.pending_bytes.load(Ordering::Relaxed);
        if bytes > 0 && pending > 0 && pending + bytes > self.shared.store.limits.max_pending_bytes {
            save.images.clear();
            skipped = Some("the disk is still busy with earlier state");
        } else {
            self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(queue) = &handed.queue {
            // Without a thread `close` reports it.
            let _ = queue.send(Queued { id, save, skipped, merged: Vec::new() });
        }
        id
    }

    /// Waits until everything handed over so far is durable or has failed, at most until `deadline`. Returns whether
    /// all of it is finished and nothing waits for a retry.
    pub fn flush(&self, deadline: Instant) -> bool {
        let last = lock(&self.handed).last;
        self.wait(deadline, |status| status.states >= last || status.stuck.is_some() || status.ended);
        lock(&self.shared.status).states >= last
    }

    /// Saves the queue and ends the threads, waiting until `deadline`. After the deadline they end with the process,
    /// and acknowledged saves are safe. Returns why state is missing though all texts are on disk; earlier losses were
    /// reported with [`SaveEvent::TextOnly`]. Fails if some text that this writer took is not on disk.
    pub fn close(mut self, deadline: Instant) -> Result<Option<String>, Unsaved> {
        self.end_queue();
        let Handed { last, last_with_text, .. } = *lock(&self.handed);
        self.wait(deadline, |status| status.ended);
        let status = lock(&self.shared.status);
        let ended = status.ended;
        let late =
            |stopped: &str| status.stuck.clone().unwrap_or_else(|| if ended { stopped } else { TOO_LONG }.into());
        let closed = match &status.given_up {
            Some(why) => Err(Unsaved { reason: why.clone(), disk: false }),
            None if status.states >= last => Ok(None),
            None if status.texts >= last_with_text => Ok(Some(late(STATES_STOPPED))),
            None => Err(Unsaved { reason: late(STOPPED), disk: status.stuck.is_some() || !ended }),
        };
        drop(status);
        if let Some(thread) = self.thread.take_if(|_| ended) {
            // The thread releases the store and its locks only when it ends.
            let _ = thread.join();
        }
        closed
    }

    fn end_queue(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        lock(&self.handed).queue = None;
    }

    fn wait(&self, deadline: Instant, until: impl Fn(&Status) -> bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let status = lock(&self.shared.status);
        let waited = self.shared.changed.wait_timeout_while(status, left, |status| !until(status));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Does not wait: `close` is the orderly way. The thread still tries once to save the queue.
        self.end_queue();
    }
}

/// Whether `new` makes `old` needless: both only replace the text of the same message.
fn replaces(new: &Save, old: &Save) -> bool {
    let only = |save: &Save| match save.changes.as_slice() {
        [Change::PutMessage { message, .. }] if save.images.is_empty() => Some(message.id),
        _ => None,
    };
    only(new).is_some_and(|id| only(old) == Some(id))
}
