//! Unsent input of a session, saved with the session so that it survives any end of the program.
//!
//! The draft of a session that another process holds is never overwritten. Sessions without a row use draft places;
//! each place belongs to one process and one session at a time. Later starts restore the drafts of an earlier run, one
//! at a time. A draft without a place is added to the prompt history of the next start.

use std::collections::BTreeMap;

use super::{Done, Notice, Rights, State};
use crate::config::commands::{is_command, message_text};
use crate::core::transcript::SessionId;
use crate::store::{Access, Change, SessionLock, Store, draft_places};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A full-screen interface reports drafts and restores them.
    Screen,
    /// No input, or line input that sends each line at once.
    Lines,
    /// Requests of a program, one after the other: a stop or a failure ends only its own request.
    Calls,
}

#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// By the serials of their sessions.
    held: BTreeMap<u64, Held>,
    /// The number of the save that contains each session's last draft.
    given: BTreeMap<SessionId, u64>,
}

/// The draft of a session that cannot save it itself. The place stays with the session.
#[derive(Debug, Default)]
struct Held {
    text: String,
    place: Option<(SessionId, SessionLock)>,
}

impl Drafts {
    /// The drafts without a place.
    pub(super) fn homeless(&mut self) -> impl Iterator<Item = String> {
        std::mem::take(&mut self.held).into_values().filter(|held| held.place.is_none()).map(|held| held.text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Session(SessionId),
    Rowless,
    /// Another process has the session, or it is deleted.
    Nowhere,
}

impl State {
    pub fn draft_changed(&mut self, serial: u64, text: String) -> Done {
        if !self.keeps_drafts() {
            return Ok(());
        }
        let home = self.home_of_draft(serial);
        let mut held = self.drafts.held.remove(&serial).unwrap_or_default();
        if home == Home::Rowless && held.place.is_none() && !text.is_empty() {
            held.place = free_place(&self.disk.store);
        }
        if let Some((place, _)) = &held.place {
            self.write_draft(*place, if home == Home::Rowless { text.clone() } else { String::new() });
        }
        match home {
            Home::Session(id) => {
                held.text.clear();
                self.write_draft(id, text);
            }
            Home::Rowless | Home::Nowhere => held.text = text,
        }
        self.drafts.held.insert(serial, held);
        Ok(())
    }

    /// Shows the draft of a session that was just opened. `known`: also an empty one, which may have changed.
    pub fn show_draft(&mut self, session: SessionId, known: bool) {
        if !self.keeps_drafts() {
            return;
        }
        // Another process held the session, so this draft was not saved; the input still shows it.
        let held = self.drafts.held.get_mut(&self.here.serial).filter(|held| !held.text.is_empty());
        if let Some(text) = held.map(|held| std::mem::take(&mut held.text)) {
            if let Some(before) = self.stored_draft(session).filter(|before| *before != text) {
                self.remember_draft(&before);
            }
            return self.write_draft(session, text);
        }
        // An unsaved draft is the interface's own and newer.
        let is_newer = self.drafts.given.get(&session).is_some_and(|save| !self.disk.is_saved(*save));
        if !is_newer && let Some(text) = self.stored_draft(session).filter(|text| known || !text.is_empty()) {
            self.report(Notice::Draft(text));
        }
    }

    pub fn show_rowless_draft(&mut self) {
        if !self.keeps_drafts() {
            return;
        }
        let left = self.disk.store.drafts_without_row().unwrap_or_else(|e| {
            self.warn(e.to_string());
            Vec::new()
        });
        for id in left {
            // Another terminal owns this place.
            let Ok(lock) = self.disk.store.lock_session(id, "") else { continue };
            if let Some(text) = self.stored_draft(id).filter(|text| !text.is_empty()) {
                let held = Held { text: text.clone(), place: Some((id, lock)) };
                self.drafts.held.insert(self.here.serial, held);
                return self.report(Notice::Draft(text));
            }
        }
    }

    pub fn draft_gets_row(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        let held = self.drafts.held.get_mut(&self.here.serial).filter(|held| !held.text.is_empty());
        let Some(Held { text, place: Some((place, _)) }) = held else { return };
        changes.push(Change::Draft { session: *place, text: String::new() });
        changes.push(Change::Draft { session, text: std::mem::take(text) });
    }

    pub fn remember_draft(&mut self, text: &str) {
        if !text.is_empty() && !is_command(text) {
            self.disk.remember(Change::Prompt(message_text(text)));
        }
    }

    fn keeps_drafts(&self) -> bool {
        let store = &self.disk.store;
        self.options.input == Input::Screen && !self.disk.discard && *store.access() == Access::Writable
    }

    fn write_draft(&mut self, session: SessionId, text: String) {
        let save = self.disk.remember(Change::Draft { session, text });
        self.drafts.given.insert(session, save);
    }

    fn stored_draft(&self, session: SessionId) -> Option<String> {
        match self.disk.store.draft(session) {
            Ok(text) => Some(text.unwrap_or_default()),
            Err(e) => {
                self.warn(e.to_string());
                None
            }
        }
    }

    fn home_of_draft(&mut self, serial: u64) -> Home {
        let home = |state: &mut State| match state.here.id {
            None => Home::Rowless,
            // A session that is view-only because its state was not read still belongs to this process.
            Some(id) if state.here.lock.is_some() || state.here.rights == Rights::Write => Home::Session(id),
            Some(_) => Home::Nowhere,
        };
        if let Some(home) = self.in_session(|session| session.serial == serial, home) {
            return home;
        }
        match self.opened.id_of(serial) {
            Some(None) => Home::Rowless,
            // The session was left and unlocked; another process may hold it.
            Some(Some(id)) if self.disk.store.lock_session(id, "").is_ok() => Home::Session(id),
            Some(Some(_)) | None => Home::Nowhere,
        }
    }
}

/// A place without a draft, also of an earlier run, that no other process has.
fn free_place(store: &Store) -> Option<(SessionId, SessionLock)> {
    let is_free = |id: &SessionId| matches!(store.draft(*id), Ok(None));
    // Checked again under the lock: another process may have left a draft meanwhile.
    let claim = |id| store.lock_session(id, "").ok().map(|lock| (id, lock)).filter(|(id, _)| is_free(id));
    draft_places().filter(is_free).find_map(claim)
}
