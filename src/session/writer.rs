//! The writer thread: takes saves, makes them durable in order, says what became of each.
//!
//! Owns the queue and the failure latches. Handing over a save never waits for a disk, so decoding never does.
//!
//! - **Text** is never dropped. When it cannot be written it stays queued, is tried again with the next save and every
//!   30 seconds, and the queue goes on by itself when the disk does.
//! - **State** is a cache: it is skipped when more than [`Limits::max_pending_bytes`](super::Limits) wait already,
//!   when it does not fit, or after a failed write, until a probe file shows that the disk works again.
//!
//! The queue is bounded in state bytes; in texts it is bounded by what a person can type, since the steps of one
//! growing answer replace each other while they wait.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::commit::{Change, Save, apply};
use super::error::{Result, StoreError};
use super::save::image_bytes;
use super::segment::SegmentId;
use super::store::{Access, Store, lock, now_ms};
use crate::base::bytes;
use crate::transcript::SessionId;

/// How often a save that failed is tried again when nothing else happens.
const RETRY: Duration = Duration::from_secs(30);
/// Said when the thread itself has failed.
const STOPPED: &str = "saving has stopped after an internal error: restart sala-chat to go on saving";
/// Saves between two looks at the disk budget.
const BUDGET_EVERY: u64 = 16;

/// What became of a save. Sent after the commit it speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveEvent {
    /// The texts of this save are on disk; its state follows.
    Text {
        /// From [`Writer::save`].
        id: u64,
    },
    /// All of it is on disk.
    Saved {
        /// From [`Writer::save`].
        id: u64,
        /// When, ms since the epoch.
        at_ms: i64,
    },
    /// The texts are on disk, the state is not kept.
    TextOnly {
        /// From [`Writer::save`].
        id: u64,
        /// When, ms since the epoch.
        at_ms: i64,
        /// A sentence: why, and what it means.
        reason: String,
    },
    /// Nothing of it is on disk. It stays queued and is tried again, unless `lasting`.
    NotSaved {
        /// From [`Writer::save`]; 0 when the thread itself has failed and nothing more will be saved.
        id: u64,
        /// A sentence: why, and what to do.
        reason: String,
        /// It will not be tried again: the save contradicts what is in the database.
        lasting: bool,
    },
    /// After [`SaveEvent::NotSaved`] or a state failure: the disk works again.
    Recovered,
}

/// Text that was handed over and is not on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unsaved {
    /// A sentence: why, and what to do.
    pub reason: String,
    /// The disk is to blame, not what is in the database.
    pub disk: bool,
}

/// Handle on the writer thread.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    max_pending_bytes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something was queued, or the end was asked for.
    work: Condvar,
    /// A save was finished.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    saves: VecDeque<Queued>,
    /// Bytes of state in `saves` and in hand.
    pending_bytes: u64,
    last_id: u64,
    /// All saves up to this id are finished, for better or worse.
    finished: u64,
    closing: bool,
    /// The first of `saves` has failed and waits for a retry: `last_id` when it was tried.
    stuck: Option<u64>,
    /// Why the first of `saves` failed; stays until it is saved.
    stuck_why: Option<String>,
    /// Why a save was given up for good: it contradicted the database.
    given_up: Option<String>,
    ended: bool,
}

#[derive(Debug)]
struct Queued {
    id: u64,
    save: Save,
    /// State was left out when it was queued.
    skipped: Option<&'static str>,
    /// Ids this save has taken in; they are reported with it.
    merged: Vec<u64>,
}

impl Writer {
    /// Starts the thread `store-writer`. Events go to `events`, which should be unbounded or be read all the time.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(store: Arc<Store>, events: Sender<SaveEvent>) -> std::io::Result<Writer> {
        let shared = Arc::new(Shared::default());
        let max_pending_bytes = store.limits().max_pending_bytes;
        let worker = Worker {
            store,
            events,
            shared: Arc::clone(&shared),
            state_off: None,
            text_off: false,
            saves: 0,
            grown: Vec::new(),
            current: Vec::new(),
        };
        let (queue, last_words) = (Arc::clone(&shared), worker.events.clone());
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run())).is_err() {
                let _ = last_words.send(SaveEvent::NotSaved { id: 0, reason: STOPPED.into(), lasting: true });
            }
            lock(&queue.queue).ended = true;
            queue.done.notify_all();
        })?;
        Ok(Writer { shared, thread: Some(thread), max_pending_bytes })
    }

    /// Hands over a save and returns its id at once.
    pub fn save(&self, mut save: Save) -> u64 {
        let mut queue = lock(&self.shared.queue);
        queue.last_id += 1;
        let id = queue.last_id;
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
        self.wait(queue, deadline, |q| q.finished >= target || q.stuck.is_some() || q.ended).finished >= target
    }

    /// Saves what is queued and ends the thread, waiting until `deadline`. After the deadline the thread is left behind: it
    /// ends with the process, and what was acknowledged is safe.
    ///
    /// # Errors
    /// Something that was handed over in this writer's life is not on disk.
    pub fn close(mut self, deadline: Instant) -> Result<(), Unsaved> {
        let mut queue = lock(&self.shared.queue);
        queue.closing = true;
        self.shared.work.notify_one();
        let queue = self.wait(queue, deadline, |q| q.ended);
        let ended = queue.ended;
        let unsaved = match (&queue.given_up, &queue.stuck_why) {
            (Some(why), _) => Some(Unsaved { reason: why.clone(), disk: false }),
            _ if ended && queue.finished >= queue.last_id => None,
            (None, Some(why)) => Some(Unsaved { reason: why.clone(), disk: true }),
            (None, None) if ended => Some(Unsaved { reason: STOPPED.into(), disk: false }),
            (None, None) => Some(Unsaved { reason: "the disk takes too long".into(), disk: true }),
        };
        drop(queue);
        if let Some(thread) = self.thread.take_if(|_| ended) {
            // Only now has the thread let go of the store and its locks.
            let _ = thread.join();
        }
        unsaved.map_or(Ok(()), Err)
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
        // Not waited for: `close` is the orderly way. The thread still tries once to save what is queued.
        lock(&self.shared.queue).closing = true;
        self.shared.work.notify_one();
    }
}

/// Whether `new` makes `old` needless: both only reword the same message.
fn replaces(new: &Save, old: &Save) -> bool {
    let only = |save: &Save| match save.changes.as_slice() {
        [Change::PutMessage { message, .. }] if save.images.is_empty() => Some(message.id),
        _ => None,
    };
    only(new).is_some_and(|id| only(old) == Some(id))
}

struct Worker {
    store: Arc<Store>,
    events: Sender<SaveEvent>,
    shared: Arc<Shared>,
    /// State saving is off: the reason.
    state_off: Option<String>,
    /// The last attempt to save text failed.
    text_off: bool,
    saves: u64,
    /// Sessions that got state since they were last thinned.
    grown: Vec<SessionId>,
    /// Segments of the last save with state: the conversation going on, spared by the budget.
    current: Vec<SegmentId>,
}

enum Outcome {
    Finished,
    /// It will never be saved; why.
    GivenUp(String),
    /// Keep it and try again later; why.
    Stuck(String),
}

impl Worker {
    fn run(mut self) {
        while let Some(mut queued) = self.next() {
            let bytes: u64 = queued.save.images.iter().map(|(_, image)| image_bytes(image)).sum();
            // Read before trying: a save that arrives during the attempt is a reason to try again.
            let last_id = lock(&self.shared.queue).last_id;
            let outcome = self.process(&mut queued);
            let mut queue = lock(&self.shared.queue);
            let mut waiting = Vec::new();
            let mut reason = String::new();
            match outcome {
                Outcome::Finished | Outcome::GivenUp(_) => {
                    queue.pending_bytes = queue.pending_bytes.saturating_sub(bytes);
                    queue.finished = queue.finished.max(queued.id);
                    (queue.stuck, queue.stuck_why) = (None, None);
                    if let Outcome::GivenUp(why) = outcome {
                        queue.given_up.get_or_insert(why);
                    }
                }
                Outcome::Stuck(why) => {
                    reason = why;
                    queue.saves.push_front(queued);
                    queue.stuck = Some(last_id);
                    queue.stuck_why = Some(reason.clone());
                    waiting = queue.saves.iter().flat_map(|q| q.merged.iter().copied().chain([q.id])).collect();
                }
            }
            drop(queue);
            // Order must hold, so what is behind a stuck save is not saved either.
            for id in waiting {
                let _ = self.events.send(SaveEvent::NotSaved { id, reason: reason.clone(), lasting: false });
            }
            self.shared.done.notify_all();
        }
        if *self.store.access() == Access::Writable {
            self.store.checkpoint();
        }
    }

    /// The next save to work on; `None` at the end. Does the housekeeping while there is nothing to save.
    fn next(&mut self) -> Option<Queued> {
        let mut tidied = false;
        let mut queue = lock(&self.shared.queue);
        let closing_already = queue.closing;
        let mut retry_at = Instant::now() + RETRY;
        loop {
            let may_try = match queue.stuck {
                None => true,
                // Once more at the end, then no longer: the process wants to go.
                Some(tried) => {
                    queue.last_id > tried || Instant::now() >= retry_at || (queue.closing && !closing_already)
                }
            };
            if may_try && let Some(queued) = queue.saves.pop_front() {
                return Some(queued);
            }
            if queue.closing {
                return None;
            }
            if !tidied && queue.stuck.is_none() {
                drop(queue);
                self.tidy();
                tidied = true;
                queue = lock(&self.shared.queue);
                retry_at = Instant::now() + RETRY;
                continue;
            }
            let timeout = retry_at.saturating_duration_since(Instant::now());
            queue = match queue.stuck {
                None => self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(_) => self.shared.work.wait_timeout(queue, timeout).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn process(&mut self, queued: &mut Queued) -> Outcome {
        let changes = &queued.save.changes;
        let applied = match self.store.transaction(|tx| apply(tx, changes)) {
            Ok(applied) => applied,
            Err(e) => {
                let lasting = !e.is_disk();
                let reason = self.text_reason(&e);
                self.text_off = !lasting;
                if !lasting {
                    return Outcome::Stuck(reason);
                }
                self.tell(queued, |id| SaveEvent::NotSaved { id, reason: reason.clone(), lasting });
                return Outcome::GivenUp(reason);
            }
        };
        if std::mem::take(&mut self.text_off) {
            let _ = self.events.send(SaveEvent::Recovered);
        }
        if !queued.save.images.is_empty() {
            self.current = queued.save.images.iter().map(|(id, _)| *id).collect();
            self.grown.extend(applied.sessions.iter().filter(|s| !self.grown.contains(s)).collect::<Vec<_>>());
        }
        // Committed: should the state below be interrupted, the changes must not be applied twice.
        queued.save.changes.clear();
        let problem = match (queued.skipped, applied.state_problem, queued.save.images.is_empty()) {
            (Some(skipped), _, _) => Some(skipped.to_owned()),
            (None, Some(problem), _) => Some(problem),
            (None, None, true) => None,
            (None, None, false) => {
                self.tell(queued, |id| SaveEvent::Text { id });
                self.save_state(&queued.save)
            }
        };
        let at_ms = now_ms();
        match problem {
            None => self.tell(queued, |id| SaveEvent::Saved { id, at_ms }),
            Some(reason) => self.tell(queued, |id| SaveEvent::TextOnly { id, at_ms, reason: reason.clone() }),
        }
        self.saves += 1;
        Outcome::Finished
    }

    /// Writes state; returns why not.
    fn save_state(&mut self, save: &Save) -> Option<String> {
        if self.state_off.is_some() {
            match self.probe() {
                Ok(()) => {
                    self.state_off = None;
                    let _ = self.events.send(SaveEvent::Recovered);
                }
                Err(e) => {
                    let why = format!("state saving is off: {e}");
                    self.state_off = Some(why.clone());
                    self.store.note_why(&save.images, &why);
                    return Some(why);
                }
            }
        }
        let error = self.store.save_images(&save.images).err()?;
        if matches!(error, StoreError::Io { .. } | StoreError::Database(_) | StoreError::Full { .. }) {
            self.state_off = Some(error.to_string());
        }
        let why = match &error {
            StoreError::NoRoom { need_bytes, free_bytes, reserve_bytes } => format!(
                "State needs {}, {} free above the {} reserve.",
                bytes(*need_bytes),
                bytes(*free_bytes),
                bytes(*reserve_bytes)
            ),
            StoreError::StateLost { why, .. } => why.clone(),
            other => other.to_string(),
        };
        self.store.note_why(&save.images, &format!("not written: {why}"));
        Some(why)
    }

    /// Whether the disk takes files again.
    fn probe(&self) -> Result<()> {
        let path = self.store.layout.probe();
        let io = |e| StoreError::io("write", &path)(e);
        let disk = &*self.store.disk;
        let mut file = disk.create(&path).map_err(io)?;
        let written = file.write(&[0x5a; 1 << 16]).and_then(|()| file.sync());
        drop(file);
        disk.remove(&path).map_err(io)?;
        written.map_err(io)?;
        self.store.require_room(0)
    }

    /// Between saves: index new texts, thin, keep the budget. What fails is tried again after the next save.
    fn tidy(&mut self) {
        if matches!(self.store.access(), Access::ReadOnly { .. }) || self.saves == 0 {
            return;
        }
        // First: from here on a damaged log has nothing of what was said.
        self.store.checkpoint();
        let _ = self.store.index_texts();
        if self.text_off || self.state_off.is_some() {
            return;
        }
        self.store.fill_reserve();
        for session in self.grown.drain(..) {
            let _ = self.store.thin(session);
        }
        if self.saves.is_multiple_of(BUDGET_EVERY) {
            let _ = self.store.keep_budget(&self.current);
        }
    }

    fn text_reason(&self, e: &StoreError) -> String {
        let root: &Path = self.store.root();
        if e.is_full() {
            let free = self.store.disk.free_bytes(root).unwrap_or(0);
            return format!(
                "disk full on {} ({} free). State saving is off. Free space, then it continues by itself.",
                root.display(),
                bytes(free)
            );
        }
        if e.is_busy() {
            return format!("another program holds {}: it is tried again", self.store.layout.database.display());
        }
        e.to_string()
    }

    /// One event for the save and each it has taken in.
    fn tell(&self, queued: &Queued, event: impl Fn(u64) -> SaveEvent) {
        for id in queued.merged.iter().chain([&queued.id]) {
            // Nobody listens any more while closing: the result of `close` speaks.
            let _ = self.events.send(event(*id));
        }
    }
}
