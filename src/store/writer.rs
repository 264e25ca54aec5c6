//! The writer: takes saves, makes them durable, and reports the result of each.
//!
//! Owns the queue, its two threads and the failure latches. Handing over a save never waits for a disk, so decode
//! never does. One thread makes the changes of all saves durable, in order. The other one writes their state, in the
//! same order, so that text does not wait for state. A row without a file is restored from the state before it.
//!
//! - **Text** is never dropped. A text that cannot be written stays queued and is tried again with the next save,
//!   every 30 seconds, and at the end.
//! - **State** is a cache: it is skipped when more than [`Limits::max_pending_bytes`](super::Limits) wait, when it
//!   does not fit, or after a failed write, until a probe file shows that the disk works again.
//!
//! The queue is bounded in state bytes. A user's typing bounds its texts, because the steps of a growing answer
//! replace each other; a server limits its own saves.

mod states;
mod texts;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::commit::{Change, Save};
use super::database::{Access, Store, lock};
use super::save::image_bytes;
use super::segment::SegmentId;
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
    /// The texts are on disk, the state is not kept.
    TextOnly {
        id: u64,
        at_ms: i64,
        /// A sentence: the cause and its effect.
        reason: String,
    },
    /// Nothing of it is on disk. It stays queued and is tried again, unless `lasting`. Sent once for each save, and
    /// for the first one after another failed attempt.
    NotSaved {
        /// From [`Writer::save`]; 0 when the thread itself has failed and no later save succeeds.
        id: u64,
        reason: String,
        /// No retry: the save contradicts the database.
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
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    max_pending_bytes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something was queued, or the writer is closing.
    work: Condvar,
    /// A text was saved, or no more will be; or uses were noted.
    state_work: Condvar,
    /// A text or a state was saved, or will not be.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    saves: VecDeque<Queued>,
    /// State that waits for the disk after its text. The first is being written.
    states: VecDeque<Arc<State>>,
    grown: Vec<SessionId>,
    uses_noted: bool,
    /// Bytes of state in `saves`, in `states`, and in progress.
    pending_bytes: u64,
    last_id: u64,
    last_text: u64,
    /// The texts of all saves up to this id are on disk or given up.
    texts: u64,
    closing: bool,
    /// The first of `saves` has failed and waits for a retry: `last_id` of the last attempt.
    stuck: Option<u64>,
    /// Why the first of `saves` failed; stays until it is saved.
    stuck_why: Option<String>,
    given_up: Option<String>,
    texts_over: bool,
    states_over: bool,
    ended: bool,
}

impl Shared {
    fn wake_for_uses(&self) {
        lock(&self.queue).uses_noted = true;
        self.state_work.notify_one();
    }
}

impl Queue {
    fn finished(&self, id: u64) -> bool {
        self.texts >= id && self.states.front().is_none_or(|state| state.id > id)
    }
}

#[derive(Debug)]
struct State {
    id: u64,
    images: Vec<(SegmentId, StateImage)>,
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

impl Writer {
    /// Starts the threads `store-writer` and `store-states`. The receiver of `events` should be unbounded or be read
    /// all the time.
    pub fn start(store: Arc<Store>, events: Sender<SaveEvent>) -> std::io::Result<Writer> {
        let shared = Arc::new(Shared::default());
        let listener = Arc::downgrade(&shared);
        lock(&store.uses).noted = Some(Arc::new(move || {
            if let Some(shared) = listener.upgrade() {
                shared.wake_for_uses();
            }
        }));
        let max_pending_bytes = store.limits().max_pending_bytes;
        let worker = States::new(Arc::clone(&store), events.clone(), Arc::clone(&shared));
        let (last_words, queue) = (events.clone(), Arc::clone(&shared));
        let states = std::thread::Builder::new().name("store-states".into()).spawn(move || {
            // `over` reports the remaining state.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run()));
            States::over(&queue, &last_words);
        })?;
        let worker = Texts::new(Arc::clone(&store), events.clone(), Arc::clone(&shared));
        let (last_words, queue) = (events, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run())).is_err() {
                let _ = last_words.send(SaveEvent::NotSaved { id: 0, reason: STOPPED.into(), lasting: true });
            }
            end_states(&queue);
            let _ = states.join();
            if *store.access() == Access::Writable {
                store.write_uses();
                store.checkpoint();
            }
            drop(store);
            lock(&queue.queue).ended = true;
            queue.done.notify_all();
        });
        if thread.is_err() {
            end_states(&shared);
        }
        Ok(Writer { shared, thread: Some(thread?), max_pending_bytes })
    }

    pub fn save(&self, mut save: Save) -> u64 {
        let mut queue = lock(&self.shared.queue);
        queue.last_id += 1;
        let id = queue.last_id;
        if !save.changes.is_empty() {
            queue.last_text = id;
        }
        let bytes: u64 = save.images.iter().map(|(_, image)| image_bytes(image)).sum();
        let mut skipped = None;
        if bytes > 0 && queue.pending_bytes > 0 && queue.pending_bytes + bytes > self.max_pending_bytes {
            save.images.clear();
            skipped = Some("the disk is still busy with earlier state");
        } else {
            queue.pending_bytes += bytes;
        }
        let mut merged = Vec::new();
        if let Some(last) = queue.saves.back()
            && replaces(&save, &last.save)
            && let Some(last) = queue.saves.pop_back()
        {
            merged = last.merged;
            merged.push(last.id);
        }
        queue.saves.push_back(Queued { id, save, skipped, merged });
        self.shared.work.notify_one();
        id
    }

    /// Waits until everything handed over so far is durable or has failed, at most until `deadline`. Returns whether
    /// all of it is finished and nothing waits for a retry.
    pub fn flush(&self, deadline: Instant) -> bool {
        let queue = lock(&self.shared.queue);
        let target = queue.last_id;
        self.wait(queue, deadline, |q| q.finished(target) || q.stuck.is_some() || q.ended).finished(target)
    }

    /// Saves the queue and ends the threads, waiting until `deadline`. After the deadline they end with the process,
    /// and acknowledged saves are safe. Returns why state is missing though all texts are on disk; earlier losses were
    /// reported with [`SaveEvent::TextOnly`].
    ///
    /// # Errors
    /// Some text that this writer took is not on disk.
    pub fn close(mut self, deadline: Instant) -> Result<Option<String>, Unsaved> {
        let mut queue = lock(&self.shared.queue);
        queue.closing = true;
        self.shared.work.notify_one();
        let queue = self.wait(queue, deadline, |q| q.ended);
        let ended = queue.ended;
        let late = queue.stuck_why.as_deref().unwrap_or(TOO_LONG);
        let closed = match &queue.given_up {
            Some(why) => Err(Unsaved { reason: why.clone(), disk: false }),
            None if queue.finished(queue.last_id) => Ok(None),
            None if ended && queue.stuck_why.is_none() => Err(Unsaved { reason: STOPPED.into(), disk: false }),
            None if queue.texts >= queue.last_text => Ok(Some(late.to_owned())),
            None => Err(Unsaved { reason: late.to_owned(), disk: true }),
        };
        drop(queue);
        if let Some(thread) = self.thread.take_if(|_| ended) {
            // The thread releases the store and its locks only when it ends.
            let _ = thread.join();
        }
        closed
    }

    fn wait<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        deadline: Instant,
        until: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        while !until(&queue) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.shared.done.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Does not wait: `close` is the orderly way. The thread still tries once to save the queue.
        lock(&self.shared.queue).closing = true;
        self.shared.work.notify_one();
    }
}

/// No text follows: the state thread ends after its remaining work.
fn end_states(shared: &Shared) {
    lock(&shared.queue).texts_over = true;
    shared.state_work.notify_one();
}

/// Whether `new` makes `old` needless: both only replace the text of the same message.
fn replaces(new: &Save, old: &Save) -> bool {
    let only = |save: &Save| match save.changes.as_slice() {
        [Change::PutMessage { message, .. }] if save.images.is_empty() => Some(message.id),
        _ => None,
    };
    only(new).is_some_and(|id| only(old) == Some(id))
}
