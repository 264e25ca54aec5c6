//! The state thread: writes the files of one save after the other, in the order in which their texts reached the disk,
//! with housekeeping of files in between. Only later state waits for it.

use std::sync::{Arc, PoisonError};

use crossbeam_channel::Sender;

use super::{BUDGET_EVERY, STATES_STOPPED, SaveEvent, Shared, State};
use crate::core::{bytes, now_ms};
use crate::store::database::{Access, Store, lock};
use crate::store::error::{Result, StoreError};
use crate::store::keep::NOT_WRITTEN;
use crate::store::save::image_bytes;
use crate::store::segment::SegmentId;

pub(super) struct States {
    store: Arc<Store>,
    events: Sender<SaveEvent>,
    shared: Arc<Shared>,
    state_off: Option<String>,
    saves: u64,
    since_budget: u64,
    /// Segments of the last save with state: the running conversation, spared by the budget.
    current: Vec<SegmentId>,
    trash_seen: bool,
}

impl States {
    pub(super) fn new(store: Arc<Store>, events: Sender<SaveEvent>, shared: Arc<Shared>) -> States {
        let current = Vec::new();
        States { store, events, shared, state_off: None, saves: 0, since_budget: 0, current, trash_seen: false }
    }

    pub(super) fn run(mut self) {
        while let Some(state) = self.next() {
            self.current = state.images.iter().map(|(id, _)| *id).collect();
            let (id, problem, at_ms) = (state.id, self.save(&state), now_ms());
            // While closing no receiver is left; `close` returns the result.
            let _ = self.events.send(match problem {
                None => SaveEvent::Saved { id, at_ms },
                Some(reason) => SaveEvent::TextOnly { id, at_ms, reason },
            });
            (self.saves, self.since_budget) = (self.saves + 1, self.since_budget + 1);
            let mut queue = lock(&self.shared.queue);
            queue.states.pop_front();
            queue.pending_bytes = queue.pending_bytes.saturating_sub(state.bytes());
            drop(queue);
            self.shared.done.notify_all();
        }
        // A run of one answer has no other moment for it.
        if self.saves > 0 && self.state_off.is_none() {
            self.thin();
            self.look_at_budget();
        }
    }

    /// Runs after [`States::run`], also after a panic: the rest will not be written.
    pub(super) fn over(shared: &Shared, events: &Sender<SaveEvent>) {
        let mut queue = lock(&shared.queue);
        queue.states_over = true;
        let left = std::mem::take(&mut queue.states);
        let bytes: u64 = left.iter().map(|state| state.bytes()).sum();
        queue.pending_bytes = queue.pending_bytes.saturating_sub(bytes);
        drop(queue);
        for state in left {
            let (id, at_ms) = (state.id, now_ms());
            let _ = events.send(SaveEvent::TextOnly { id, at_ms, reason: STATES_STOPPED.into() });
        }
        shared.done.notify_all();
    }

    /// The next state to write, which stays the first of the queue until it is written; `None` at the end. Does the
    /// housekeeping while there is nothing to write.
    fn next(&mut self) -> Option<Arc<State>> {
        let mut tidied = false;
        let mut queue = lock(&self.shared.queue);
        loop {
            if let Some(state) = queue.states.front() {
                return Some(Arc::clone(state));
            }
            if queue.texts_over {
                return None;
            }
            let uses = queue.uses_noted && queue.saves.is_empty();
            if (!tidied || uses) && !queue.closing && queue.stuck.is_none() {
                queue.uses_noted = false;
                drop(queue);
                match std::mem::replace(&mut tidied, true) {
                    false => self.tidy(),
                    true => self.store.write_uses(),
                }
                queue = lock(&self.shared.queue);
                continue;
            }
            queue = self.shared.state_work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn save(&mut self, State { images, .. }: &State) -> Option<String> {
        if self.state_off.is_some() {
            match self.probe() {
                Ok(()) => {
                    self.state_off = None;
                    let _ = self.events.send(SaveEvent::Recovered);
                }
                Err(e) => {
                    let why = format!("state saving is off: {e}");
                    self.state_off = Some(why.clone());
                    self.store.note_why(images, &format!("{NOT_WRITTEN}{why}"));
                    return Some(why);
                }
            }
        }
        let error = self.store.save_images(images).err()?;
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
        self.store.note_why(images, &format!("{NOT_WRITTEN}{why}"));
        Some(why)
    }

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

    /// Between saves: empty the trash, thin, keep the budget. A failed step is repeated after the next save.
    fn tidy(&mut self) {
        if matches!(self.store.access(), Access::ReadOnly { .. }) {
            return;
        }
        self.store.write_uses();
        self.empty_trash();
        if self.saves == 0 {
            return;
        }
        // Moves the names of the written files into the database.
        self.store.checkpoint();
        if self.state_off.is_some() {
            return;
        }
        self.store.fill_reserve();
        self.thin();
        if self.since_budget >= BUDGET_EVERY {
            self.look_at_budget();
        }
    }

    fn thin(&mut self) {
        let grown = std::mem::take(&mut lock(&self.shared.queue).grown);
        for session in grown {
            let _ = self.store.thin(session);
        }
    }

    fn look_at_budget(&mut self) {
        self.since_budget = 0;
        let _ = self.store.keep_budget(&self.current);
    }

    /// Once per run, removes sessions after their days in the trash. With a doubtful database they stay, and `prune`
    /// reports why.
    fn empty_trash(&mut self) {
        if std::mem::replace(&mut self.trash_seen, true)
            || self.store.old_in_trash(None).is_ok_and(|old| old.is_empty())
        {
            return;
        }
        match self.store.empty_trash(None) {
            Ok(freed) => tracing::info!(freed.sessions, freed.messages, "the trash was emptied"),
            Err(e) => tracing::warn!("the trash is not emptied: {e}"),
        }
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.images.iter().map(|(_, image)| image_bytes(image)).sum()
    }
}
