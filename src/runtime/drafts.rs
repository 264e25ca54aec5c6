//! Unsent text in the input of a session, kept with the session so that it is there again after any end of the
//! program.
//!
//! A draft of a session that another process holds is never overwritten. Sessions without a row have draft places;
//! each place belongs to one process and one session at a time. Drafts that an earlier run left in them are restored
//! at the next starts, one at a time. A draft without a place is among the prompts of the next start.

use std::collections::BTreeMap;

use super::State;
use super::session::Rights;
use crate::config::commands::{is_command, message_text};
use crate::core::transcript::SessionId;
use crate::runtime::protocol::{Level, Notice};
use crate::store::{Access, Change, SessionLock, Store, draft_places};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// On the screen: the interface reports it, and it is restored.
    Screen,
    /// Nowhere, or line by line: what is entered is sent.
    Lines,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Drafts {
    input: Input,
    /// The places for sessions without a row that are ours.
    places: Vec<Place>,
    /// Those without a place, by the serials of their sessions.
    homeless: BTreeMap<u64, String>,
    /// The save that each session's last one went with.
    given: BTreeMap<SessionId, u64>,
}

impl Drafts {
    pub(super) fn new(input: Input) -> Drafts {
        Drafts { input, places: Vec::new(), homeless: BTreeMap::new(), given: BTreeMap::new() }
    }

    /// Takes the draft of a session without a row out of its place.
    fn take_out(&mut self, serial: u64) -> Option<(SessionId, String)> {
        self.places.iter_mut().find_map(|place| {
            let (_, text) = place.holds.take_if(|(of, _)| *of == serial)?;
            Some((place.id, text))
        })
    }
}

/// A place for the draft of a session without a row.
#[derive(Debug)]
struct Place {
    id: SessionId,
    /// Makes it ours.
    _lock: SessionLock,
    /// The serial of the session, and its draft.
    holds: Option<(u64, String)>,
}

impl Place {
    /// None where it is another process's.
    fn claim(store: &Store, id: SessionId) -> Option<Place> {
        let lock = store.lock_session(id, "").ok()?;
        Some(Place { id, _lock: lock, holds: None })
    }
}

/// Where a draft belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// With its session.
    Session(SessionId),
    /// Its session has no row.
    Rowless,
    /// Its session is somebody else's, or gone.
    Nowhere,
}

impl State {
    /// Saves the unsent input of a session; empty once it was sent or cleared.
    pub(super) fn keep_draft(&mut self, serial: u64, text: String) {
        if !self.keeps_drafts() {
            return;
        }
        let home = self.home_of_draft(serial);
        if (home != Home::Rowless || text.is_empty())
            && let Some((place, _)) = self.drafts.take_out(serial)
        {
            self.write_draft(place, String::new());
        }
        self.drafts.homeless.remove(&serial);
        match home {
            Home::Session(id) => self.write_draft(id, text),
            Home::Rowless | Home::Nowhere if text.is_empty() => {}
            Home::Rowless => match self.place_for(serial) {
                Some(place) => {
                    place.holds = Some((serial, text.clone()));
                    let id = place.id;
                    self.write_draft(id, text);
                }
                None => drop(self.drafts.homeless.insert(serial, text)),
            },
            Home::Nowhere => drop(self.drafts.homeless.insert(serial, text)),
        }
    }

    /// Shows the draft of a session that was just opened. Another terminal may have changed the draft of a session
    /// that was open before: then an empty one is shown, too.
    pub(super) fn tell_draft(&mut self, session: SessionId, known: bool) {
        if !self.keeps_drafts() {
            return;
        }
        // It is in the input still, and could not be saved while another process held the session.
        if let Some(text) = self.drafts.homeless.remove(&self.here.session.serial) {
            if let Some(before) = self.stored_draft(session).filter(|before| *before != text) {
                self.remember_draft(&before);
            }
            return self.write_draft(session, text);
        }
        // What is not on the disk is the interface's own, and newer.
        let is_newer = self.drafts.given.get(&session).is_some_and(|save| !self.disk.is_saved(*save));
        if !is_newer && let Some(text) = self.stored_draft(session).filter(|text| known || !text.is_empty()) {
            self.tell(Notice::Draft(text));
        }
    }

    /// A draft of an earlier session without a row is shown in the first new one.
    pub(super) fn tell_rowless_draft(&mut self) {
        if !self.keeps_drafts() {
            return;
        }
        let left = self.disk.store.drafts_without_row().unwrap_or_else(|e| {
            self.note(Level::Warn, e.to_string());
            Vec::new()
        });
        for id in left {
            // Another terminal's is left to it.
            let Some(mut place) = Place::claim(&self.disk.store, id) else { continue };
            if let Some(text) = self.stored_draft(id).filter(|text| !text.is_empty()) {
                place.holds = Some((self.here.session.serial, text.clone()));
                self.drafts.places.push(place);
                return self.tell(Notice::Draft(text));
            }
        }
    }

    /// The open session gets its row: its draft is kept with it from now on.
    pub(super) fn draft_gets_row(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        if let Some((place, text)) = self.drafts.take_out(self.here.session.serial) {
            changes.push(Change::Draft { session: place, text: String::new() });
            changes.push(Change::Draft { session, text });
        }
    }

    /// At the end: what has no place is found with Up.
    pub(super) fn remember_homeless(&mut self) {
        for text in std::mem::take(&mut self.drafts.homeless).into_values() {
            self.remember_draft(&text);
        }
    }

    fn remember_draft(&mut self, text: &str) {
        if !text.is_empty() && !is_command(text) {
            self.remember_prompt(&message_text(text));
        }
    }

    /// Whether there is an input whose drafts may be saved.
    fn keeps_drafts(&self) -> bool {
        let store = &self.disk.store;
        self.drafts.input == Input::Screen && self.disk.lasts() && *store.access() == Access::Writable
    }

    fn write_draft(&mut self, session: SessionId, text: String) {
        let save = self.disk.remember(Change::Draft { session, text });
        self.drafts.given.insert(session, save);
    }

    /// Empty where there is none; `None` where that cannot be read.
    fn stored_draft(&self, session: SessionId) -> Option<String> {
        match self.disk.store.draft(session) {
            Ok(text) => Some(text.unwrap_or_default()),
            Err(e) => {
                self.note(Level::Warn, e.to_string());
                None
            }
        }
    }

    fn home_of_draft(&mut self, serial: u64) -> Home {
        if let Some(at) = self.at_work(|session| session.serial == serial) {
            return self.beside(at, |runtime| runtime.home_in_hand());
        }
        if self.here.session.serial == serial {
            return self.home_in_hand();
        }
        match self.opened.rows().find(|(of, _)| *of == serial) {
            Some((_, None)) => Home::Rowless,
            // It was left, and its lock given up: somebody else may have it.
            Some((_, Some(id))) if self.disk.store.lock_session(id, "").is_ok() => Home::Session(id),
            Some((_, Some(_))) | None => Home::Nowhere,
        }
    }

    fn home_in_hand(&self) -> Home {
        match self.here.session.id {
            None => Home::Rowless,
            // One that is only looked at because its state was not read is ours.
            Some(id) if self.here.lock.is_some() || self.here.session.rights == Rights::Write => Home::Session(id),
            Some(_) => Home::Nowhere,
        }
    }

    /// The place of the draft of a session without a row, or one that is free: what an earlier run left in one waits for the start
    /// of a later one.
    fn place_for(&mut self, serial: u64) -> Option<&mut Place> {
        let places = &self.drafts.places;
        let own = places.iter().position(|place| place.holds.as_ref().is_some_and(|(of, _)| *of == serial));
        let at = match own.or_else(|| places.iter().position(|place| place.holds.is_none())) {
            Some(at) => at,
            None => {
                let store = &self.disk.store;
                let is_free = |id: SessionId| matches!(store.draft(id), Ok(None));
                // Checked again under the lock: another process may have left a draft meanwhile.
                let claim = |id| Place::claim(store, id).filter(|place| is_free(place.id));
                let free = draft_places().filter(|id| is_free(*id)).find_map(claim)?;
                self.drafts.places.push(free);
                self.drafts.places.len() - 1
            }
        };
        self.drafts.places.get_mut(at)
    }
}
