//! The state thread: writes the files of one save after the other, in the order in which their texts reached the disk,
//! with housekeeping of files in between. Only later state waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{BUDGET_EVERY, SaveEvent, Shared, USES_EVERY, Work, bytes_of};
use crate::core::transcript::SessionId;
use crate::core::{bytes, now_ms};
use crate::engine::protocol::StateImage;
use crate::store::database::Access;
use crate::store::error::{Result, StoreError};
use crate::store::keep::NOT_WRITTEN;
use crate::store::segment::SegmentId;

pub(super) struct States {
    shared: Arc<Shared>,
    work: Receiver<Work>,
    state_off: Option<String>,
    saves: u64,
    since_budget: u64,
    /// Sessions with new segments since they were thinned.
    grown: Vec<SessionId>,
    /// Segments of the last save with state: the running conversation, spared by the budget.
    current: Vec<SegmentId>,
    trash_seen: bool,
}

impl States {
    pub(super) fn new(shared: Arc<Shared>, work: Receiver<Work>) -> States {
        let (grown, current) = (Vec::new(), Vec::new());
        States { shared, work, state_off: None, saves: 0, since_budget: 0, grown, current, trash_seen: false }
    }

    pub(super) fn run(mut self) {
        let mut tidied = false;
        loop {
            if !tidied && self.work.is_empty() && !self.shared.is_closing() {
                self.tidy();
                tidied = true;
            }
            match self.work.recv_timeout(USES_EVERY) {
                Ok(Work { id, images, grown }) => {
                    for session in grown {
                        if !self.grown.contains(&session) {
                            self.grown.push(session);
                        }
                    }
                    if !images.is_empty() {
                        self.write(id, &images);
                        tidied = false;
                    }
                    self.shared.update(|status| status.states = id);
                }
                Err(RecvTimeoutError::Timeout) => self.shared.store.write_uses(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // A run of one answer has no other moment for it.
        if self.saves > 0 && self.state_off.is_none() {
            self.thin();
            self.look_at_budget();
        }
    }

    fn write(&mut self, id: u64, images: &[(SegmentId, StateImage)]) {
        self.current = images.iter().map(|(id, _)| *id).collect();
        let (problem, at_ms) = (self.save(images), now_ms());
        self.shared.send(match problem {
            None => SaveEvent::Saved { id, at_ms },
            Some(reason) => SaveEvent::TextOnly { id, at_ms, reason },
        });
        (self.saves, self.since_budget) = (self.saves + 1, self.since_budget + 1);
        self.shared.pending_bytes.fetch_sub(bytes_of(images), Ordering::Relaxed);
    }

    fn save(&mut self, images: &[(SegmentId, StateImage)]) -> Option<String> {
        if self.state_off.is_some() {
            match self.probe() {
                Ok(()) => {
                    self.state_off = None;
                    self.shared.send(SaveEvent::Recovered);
                }
                Err(e) => {
                    let why = format!("state saving is off: {e}");
                    self.state_off = Some(why.clone());
                    self.shared.store.note_why(images, &format!("{NOT_WRITTEN}{why}"));
                    return Some(why);
                }
            }
        }
        let error = self.shared.store.save_images(images).err()?;
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
        self.shared.store.note_why(images, &format!("{NOT_WRITTEN}{why}"));
        Some(why)
    }

    fn probe(&self) -> Result<()> {
        let path = self.shared.store.layout.probe();
        let io = |e| StoreError::io("write", &path)(e);
        let disk = &*self.shared.store.disk;
        let mut file = disk.create(&path).map_err(io)?;
        let written = file.write(&[0x5a; 1 << 16]).and_then(|()| file.sync());
        drop(file);
        disk.remove(&path).map_err(io)?;
        written.map_err(io)?;
        self.shared.store.require_room(0)
    }

    /// Between saves: empty the trash, thin, keep the budget. A failed step is repeated after the next save.
    fn tidy(&mut self) {
        if matches!(&self.shared.store.access, Access::ReadOnly { .. }) {
            return;
        }
        self.shared.store.write_uses();
        self.empty_trash();
        if self.saves == 0 {
            return;
        }
        // Moves the names of the written files into the database.
        self.shared.store.checkpoint();
        if self.state_off.is_some() {
            return;
        }
        self.shared.store.fill_reserve();
        self.thin();
        if self.since_budget >= BUDGET_EVERY {
            self.look_at_budget();
        }
    }

    fn thin(&mut self) {
        for session in std::mem::take(&mut self.grown) {
            let _ = self.shared.store.thin(session);
        }
    }

    fn look_at_budget(&mut self) {
        self.since_budget = 0;
        let _ = self.shared.store.keep_budget(&self.current);
    }

    /// Once per run, after their days in the trash. With a doubtful database they stay, and `prune` reports why.
    fn empty_trash(&mut self) {
        if std::mem::replace(&mut self.trash_seen, true)
            || self.shared.store.old_in_trash(None).is_ok_and(|old| old.is_empty())
        {
            return;
        }
        match self.shared.store.empty_trash(None) {
            Ok(freed) => tracing::info!(freed.sessions, freed.messages, "the trash was emptied"),
            Err(e) => tracing::warn!("the trash is not emptied: {e}"),
        }
    }
}
