//! The work of the writer thread: one save after the other, and the housekeeping in between.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::{BUDGET_EVERY, Queued, RETRY, SaveEvent, Shared};
use crate::base::bytes;
use crate::session::commit::Save;
use crate::session::error::{Result, StoreError};
use crate::session::save::image_bytes;
use crate::session::segment::SegmentId;
use crate::session::store::{Access, Store, lock, now_ms};
use crate::transcript::SessionId;

/// The thread's own state.
pub(super) struct Worker {
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
    pub(super) fn new(store: Arc<Store>, events: Sender<SaveEvent>, shared: Arc<Shared>) -> Worker {
        Worker {
            store,
            events,
            shared,
            state_off: None,
            text_off: false,
            saves: 0,
            grown: Vec::new(),
            current: Vec::new(),
        }
    }

    /// Saves until the end is asked for and everything is saved, or has been tried once more.
    pub(super) fn run(mut self) {
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
        let applied = match self.store.apply(changes) {
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
        for (session, name) in applied.named {
            let _ = self.events.send(SaveEvent::Named { session, name });
        }
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
