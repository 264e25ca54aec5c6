//! The text thread: applies the changes of one save after the other, and passes the state of each on once they are on
//! disk.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::{Queued, RETRY, STATES_STOPPED, SaveEvent, Shared, State};
use crate::core::{bytes, now_ms};
use crate::store::database::{Access, Store, lock};
use crate::store::error::StoreError;
use crate::store::save::image_bytes;
use crate::store::watch::Watch;

pub(super) struct Texts {
    store: Arc<Store>,
    events: Sender<SaveEvent>,
    shared: Arc<Shared>,
    text_off: bool,
    /// Failures up to this save were reported.
    reported: u64,
    saves: u64,
    /// The last attempt began after the writer was closed.
    tried_to_end: bool,
}

enum Outcome {
    Saved(Option<State>),
    GivenUp(String),
    Stuck(String),
}

impl Texts {
    pub(super) fn new(store: Arc<Store>, events: Sender<SaveEvent>, shared: Arc<Shared>) -> Texts {
        Texts { store, events, shared, text_off: false, reported: 0, saves: 0, tried_to_end: false }
    }

    pub(super) fn run(mut self) {
        while let Some(mut queued) = self.next() {
            let bytes: u64 = queued.save.images.iter().map(|(_, image)| image_bytes(image)).sum();
            // Read before the attempt: a save or a close that arrives during it is a reason to try again.
            let last_id = {
                let queue = lock(&self.shared.queue);
                self.tried_to_end = queue.closing;
                queue.last_id
            };
            let outcome = self.process(&mut queued);
            let mut queue = lock(&self.shared.queue);
            let (mut waiting, mut reason) = (Vec::new(), String::new());
            // State that the state thread no longer accepts.
            let mut left = None;
            match outcome {
                Outcome::Saved(state) => {
                    queue.texts = queue.texts.max(queued.id);
                    (queue.stuck, queue.stuck_why) = (None, None);
                    match state {
                        Some(state) if !queue.states_over => queue.states.push_back(Arc::new(state)),
                        state => {
                            queue.pending_bytes = queue.pending_bytes.saturating_sub(bytes);
                            left = state;
                        }
                    }
                }
                Outcome::GivenUp(why) => {
                    queue.texts = queue.texts.max(queued.id);
                    queue.pending_bytes = queue.pending_bytes.saturating_sub(bytes);
                    (queue.stuck, queue.stuck_why) = (None, None);
                    queue.given_up.get_or_insert(why);
                }
                Outcome::Stuck(why) => {
                    reason = why;
                    queue.saves.push_front(queued);
                    queue.stuck = Some(last_id);
                    queue.stuck_why = Some(reason.clone());
                    // Order must hold, so the saves after a stuck one wait too. Each is reported once.
                    let ids = queue.saves.iter().flat_map(|q| q.merged.iter().copied().chain([q.id]));
                    waiting = ids.filter(|id| *id > self.reported).collect();
                    // The failure persists: report the current reason.
                    if waiting.is_empty() {
                        waiting.extend(queue.saves.front().map(|q| q.id));
                    }
                    self.reported = waiting.iter().copied().fold(self.reported, u64::max);
                }
            }
            drop(queue);
            if let Some(State { id, .. }) = left {
                let at_ms = now_ms();
                let _ = self.events.send(SaveEvent::TextOnly { id, at_ms, reason: STATES_STOPPED.into() });
            }
            for id in waiting {
                let _ = self.events.send(SaveEvent::NotSaved { id, reason: reason.clone(), lasting: false });
            }
            self.shared.state_work.notify_one();
            self.shared.done.notify_all();
        }
    }

    /// The next save to work on; `None` at the end. Does the housekeeping while there is nothing to save.
    fn next(&mut self) -> Option<Queued> {
        let mut tidied = false;
        let mut queue = lock(&self.shared.queue);
        let mut retry_at = Instant::now() + RETRY;
        loop {
            let may_try = match queue.stuck {
                None => true,
                // One last attempt at the end.
                Some(tried) => {
                    queue.last_id > tried || Instant::now() >= retry_at || (queue.closing && !self.tried_to_end)
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
        let applied = match self.store.apply(&queued.save.changes) {
            Ok(applied) => applied,
            Err(e) => {
                let lasting = !e.is_disk();
                let earlier = lock(&self.shared.queue).given_up.clone().filter(|_| e.lacks_another());
                let reason = earlier.unwrap_or_else(|| self.reason(&e));
                self.text_off = !lasting;
                if !lasting {
                    return Outcome::Stuck(reason);
                }
                self.report(queued, |id| SaveEvent::NotSaved { id, reason: reason.clone(), lasting });
                return Outcome::GivenUp(reason);
            }
        };
        self.saves += 1;
        let mut queue = lock(&self.shared.queue);
        for session in applied.grown {
            if !queue.grown.contains(&session) {
                queue.grown.push(session);
            }
        }
        drop(queue);
        for (session, name) in applied.named {
            let _ = self.events.send(SaveEvent::Named { session, name });
        }
        if std::mem::take(&mut self.text_off) {
            let _ = self.events.send(SaveEvent::Recovered);
        }
        let at_ms = now_ms();
        let images = std::mem::take(&mut queued.save.images);
        match (queued.skipped.map(str::to_owned).or(applied.state_problem), images.is_empty()) {
            (Some(reason), _) => {
                self.report(queued, |id| SaveEvent::TextOnly { id, at_ms, reason: reason.clone() });
            }
            (None, true) => self.report(queued, |id| SaveEvent::Saved { id, at_ms }),
            (None, false) => {
                self.report(queued, |id| SaveEvent::Text { id });
                return Outcome::Saved(Some(State { id: queued.id, images }));
            }
        }
        Outcome::Saved(None)
    }

    /// Between saves: indexes new texts until there is something to save; the rest follows the next save.
    fn tidy(&mut self) {
        if matches!(self.store.access(), Access::ReadOnly { .. }) || self.saves == 0 {
            return;
        }
        // First, so that damage of the log loses no text.
        self.store.checkpoint();
        let wanted = || {
            let queue = lock(&self.shared.queue);
            queue.closing || !queue.saves.is_empty()
        };
        let _ = self.store.index_texts(&Watch { stop: &wanted, ..Watch::NONE });
    }

    fn reason(&self, e: &StoreError) -> String {
        let root = self.store.root();
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
        match e.damage() {
            Some(detail) => format!(
                "{} is damaged ({detail}): sala-chat doctor --check writes a new one of everything that can be read",
                self.store.layout.database.display()
            ),
            None => e.to_string(),
        }
    }

    /// One event for the save and for each merged into it.
    fn report(&self, queued: &Queued, event: impl Fn(u64) -> SaveEvent) {
        for id in queued.merged.iter().chain([&queued.id]) {
            // While closing no receiver is left; `close` returns the result.
            let _ = self.events.send(event(*id));
        }
    }
}
