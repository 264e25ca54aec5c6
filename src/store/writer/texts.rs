//! The text thread: applies the changes of one save after the other, and passes each on once its texts are on disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Queued, RETRY, SaveEvent, Shared, Work, bytes_of, replaces};
use crate::core::{bytes, now_ms};
use crate::engine::protocol::StateImage;
use crate::store::database::{Access, lock};
use crate::store::error::{StoreError, Watch};
use crate::store::segment::SegmentId;

pub(super) struct Texts {
    shared: Arc<Shared>,
    queue: Receiver<Queued>,
    states: Sender<Work>,
    /// Taken from the queue; the first is next.
    waiting: VecDeque<Queued>,
    /// Failures up to this save were reported.
    reported: u64,
    /// Texts were saved since the last housekeeping.
    saved: bool,
}

impl Texts {
    pub(super) fn new(shared: Arc<Shared>, queue: Receiver<Queued>, states: Sender<Work>) -> Texts {
        Texts { shared, queue, states, waiting: VecDeque::new(), reported: 0, saved: false }
    }

    pub(super) fn run(mut self) {
        // The first of those that wait has failed: when it is tried again.
        let mut retry: Option<Instant> = None;
        // Closed, and the last attempt began after that.
        let mut at_end = false;
        loop {
            if self.waiting.is_empty() || retry.is_some() {
                if retry.is_none() && self.queue.is_empty() {
                    self.tidy();
                }
                let received = match retry {
                    None => self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    Some(at) => self.queue.recv_deadline(at),
                };
                match received {
                    Ok(queued) => self.push(queued),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) if self.waiting.is_empty() || at_end => return,
                    Err(RecvTimeoutError::Disconnected) => {}
                }
            }
            while let Ok(queued) = self.queue.try_recv() {
                self.push(queued);
            }
            at_end = self.shared.is_closing();
            let Some(queued) = self.waiting.pop_front() else { continue };
            retry = self.write(queued).map(|()| Instant::now() + RETRY);
        }
    }

    fn push(&mut self, mut queued: Queued) {
        if self.waiting.back().is_some_and(|last| replaces(&queued.save, &last.save))
            && let Some(last) = self.waiting.pop_back()
        {
            queued.merged = last.merged;
            queued.merged.push(last.id);
        }
        self.waiting.push_back(queued);
    }

    /// Writes the texts of a save; `Some` if it waits for another attempt.
    fn write(&mut self, mut queued: Queued) -> Option<()> {
        let (id, was_stuck) = (queued.id, lock(&self.shared.status).stuck.is_some());
        let applied = match self.shared.store.apply(&queued.save.changes) {
            Err(e) if e.is_disk() => {
                self.wait_for_disk(queued, self.reason(&e));
                return Some(());
            }
            Err(e) => {
                let earlier = lock(&self.shared.status).given_up.clone().filter(|_| e.lacks_another());
                Err(earlier.unwrap_or_else(|| self.reason(&e)))
            }
            Ok(applied) => Ok(applied),
        };
        // Before the events: a receiver may close the writer at once.
        self.shared.update(|status| {
            (status.texts, status.stuck) = (id, None);
            if let Err(why) = &applied {
                status.given_up.get_or_insert(why.clone());
            }
        });
        let (images, grown) = match applied {
            Ok(applied) => {
                self.saved = true;
                for (session, name) in applied.named {
                    self.shared.send(SaveEvent::Named { session, name });
                }
                if was_stuck {
                    self.shared.send(SaveEvent::Recovered);
                }
                let why_not = queued.skipped.map(str::to_owned).or(applied.state_problem);
                (self.acknowledge(&mut queued, why_not), applied.grown)
            }
            Err(reason) => {
                self.report(&queued, |id| SaveEvent::NotSaved { id, reason: reason.clone(), lasting: true });
                (Vec::new(), Vec::new())
            }
        };
        // Of state that is not written after all.
        let dropped = bytes_of(&queued.save.images);
        self.shared.pending_bytes.fetch_sub(dropped, Ordering::Relaxed);
        let _ = self.states.send(Work { id, images, grown });
        None
    }

    /// Reports that the texts are on disk, and returns the state to write.
    fn acknowledge(&self, queued: &mut Queued, why_not: Option<String>) -> Vec<(SegmentId, StateImage)> {
        let at_ms = now_ms();
        let kept = if why_not.is_none() { std::mem::take(&mut queued.save.images) } else { Vec::new() };
        self.report(queued, |id| match &why_not {
            Some(reason) => SaveEvent::TextOnly { id, at_ms, reason: reason.clone() },
            None if kept.is_empty() => SaveEvent::Saved { id, at_ms },
            None => SaveEvent::Text { id },
        });
        kept
    }

    /// Order must hold, so the saves after a stuck one wait too. Each is reported once; of one that fails again the
    /// current reason.
    fn wait_for_disk(&mut self, queued: Queued, reason: String) {
        self.shared.update(|status| status.stuck = Some(reason.clone()));
        let first = queued.id;
        self.waiting.push_front(queued);
        let ids = self.waiting.iter().flat_map(|q| q.merged.iter().copied().chain([q.id]));
        let mut unreported: Vec<u64> = ids.filter(|id| *id > self.reported).collect();
        if unreported.is_empty() {
            unreported.push(first);
        }
        self.reported = unreported.iter().copied().fold(self.reported, u64::max);
        for id in unreported {
            self.shared.send(SaveEvent::NotSaved { id, reason: reason.clone(), lasting: false });
        }
    }

    /// Between saves: indexes new texts until there is something to save; the rest follows the next save.
    fn tidy(&mut self) {
        if matches!(&self.shared.store.access, Access::ReadOnly { .. }) || !std::mem::take(&mut self.saved) {
            return;
        }
        // First, so that damage of the log loses no text.
        self.shared.store.checkpoint();
        let wanted = || self.shared.is_closing() || !self.queue.is_empty();
        let _ = self.shared.store.index_texts(&Watch { stop: &wanted, ..Watch::NONE });
    }

    fn reason(&self, e: &StoreError) -> String {
        let root = self.shared.store.root();
        if e.is_full() {
            let free = self.shared.store.disk.free_bytes(root).unwrap_or(0);
            return format!(
                "disk full on {} ({} free). State saving is off. Free space, then it continues by itself.",
                root.display(),
                bytes(free)
            );
        }
        if e.is_busy() {
            return format!("another program holds {}: it is tried again", self.shared.store.layout.database.display());
        }
        match e.damage() {
            Some(detail) => format!(
                "{} is damaged ({detail}): sala-chat doctor --check writes a new one of everything that can be read",
                self.shared.store.layout.database.display()
            ),
            None => e.to_string(),
        }
    }

    /// One event for the save and for each merged into it.
    fn report(&self, queued: &Queued, event: impl Fn(u64) -> SaveEvent) {
        for id in queued.merged.iter().chain([&queued.id]) {
            self.shared.send(event(*id));
        }
    }
}
