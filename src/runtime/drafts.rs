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
    places: Vec<Place>,
    /// Drafts without a place, by the serials of their sessions.
    pub(super) homeless: BTreeMap<u64, String>,
    /// The number of the save that contains each session's last draft.
    given: BTreeMap<SessionId, u64>,
}

impl Drafts {
    fn take_out(&mut self, serial: u64) -> Option<(SessionId, String)> {
        self.places.iter_mut().find_map(|place| {
            let (_, text) = place.holds.take_if(|(of, _)| *of == serial)?;
            Some((place.id, text))
        })
    }
}

#[derive(Debug)]
struct Place {
    id: SessionId,
    _lock: SessionLock,
    holds: Option<(u64, String)>,
}

impl Place {
    fn claim(store: &Store, id: SessionId) -> Option<Place> {
        let lock = store.lock_session(id, "").ok()?;
        Some(Place { id, _lock: lock, holds: None })
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
        if (home != Home::Rowless || text.is_empty())
            && let Some((place, _)) = self.drafts.take_out(serial)
        {
            self.write_draft(place, String::new());
        }
        self.drafts.homeless.remove(&serial);
        let to = match home {
            Home::Session(id) => Some(id),
            Home::Rowless if !text.is_empty() => self.hold(serial, &text),
            Home::Rowless | Home::Nowhere => None,
        };
        match to {
            Some(id) => self.write_draft(id, text),
            None if text.is_empty() => {}
            None => drop(self.drafts.homeless.insert(serial, text)),
        }
        Ok(())
    }

    /// Shows the draft of a session that was just opened. `known`: also an empty one, which may have changed.
    pub fn show_draft(&mut self, session: SessionId, known: bool) {
        if !self.keeps_drafts() {
            return;
        }
        // Another process held the session, so this draft was not saved; the input still shows it.
        if let Some(text) = self.drafts.homeless.remove(&self.here.serial) {
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
            let Some(mut place) = Place::claim(&self.disk.store, id) else { continue };
            if let Some(text) = self.stored_draft(id).filter(|text| !text.is_empty()) {
                place.holds = Some((self.here.serial, text.clone()));
                self.drafts.places.push(place);
                return self.report(Notice::Draft(text));
            }
        }
    }

    pub fn draft_gets_row(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        if let Some((place, text)) = self.drafts.take_out(self.here.serial) {
            changes.push(Change::Draft { session: place, text: String::new() });
            changes.push(Change::Draft { session, text });
        }
    }

    pub fn remember_draft(&mut self, text: &str) {
        if !text.is_empty() && !is_command(text) {
            self.disk.remember(Change::Prompt(message_text(text)));
        }
    }

    fn keeps_drafts(&self) -> bool {
        let store = &self.disk.store;
        self.options.input == Input::Screen && !self.disk.discard && store.access == Access::Writable
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

    /// Holds a draft in its session's place, or in a free one. One with the draft of an earlier run is not free.
    fn hold(&mut self, serial: u64, text: &str) -> Option<SessionId> {
        let (store, places) = (&self.disk.store, &mut self.drafts.places);
        let own = places.iter().position(|place| place.holds.as_ref().is_some_and(|(of, _)| *of == serial));
        let mut place = match own.or_else(|| places.iter().position(|place| place.holds.is_none())) {
            Some(at) => places.remove(at),
            None => {
                let is_free = |id: SessionId| matches!(store.draft(id), Ok(None));
                // Checked again under the lock: another process may have left a draft meanwhile.
                let claim = |id| Place::claim(store, id).filter(|place| is_free(place.id));
                draft_places().filter(|id| is_free(*id)).find_map(claim)?
            }
        };
        place.holds = Some((serial, text.to_owned()));
        let id = place.id;
        places.push(place);
        Some(id)
    }
}
