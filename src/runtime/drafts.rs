//! Unsent input of a session, saved with the session so that it survives any end of the program.
//!
//! The draft of a session that another process holds is never overwritten. One session without a row at a time has a
//! place for its draft, which the next start restores. All other drafts are added to the prompt history at the end.

use std::collections::BTreeMap;

use super::{Done, Notice, Rights, State};
use crate::config::commands::{is_command, message_text};
use crate::core::transcript::SessionId;
use crate::store::{Access, Change, NO_ROW, SessionLock};

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
    /// The place for a session without a row, once this process has it, and the session's serial and draft.
    place: Option<SessionLock>,
    rowless: Option<(u64, String)>,
    /// Drafts without a place, by the serials of their sessions.
    pub(super) homeless: BTreeMap<u64, String>,
    /// The number of the save that contains each session's last draft.
    given: BTreeMap<SessionId, u64>,
}

impl Drafts {
    fn take_out(&mut self, serial: u64) -> Option<String> {
        Some(self.rowless.take_if(|(of, _)| *of == serial)?.1)
    }
}

impl State {
    pub fn draft_changed(&mut self, serial: u64, text: String) -> Done {
        if !self.keeps_drafts() {
            return Ok(());
        }
        self.drafts.homeless.remove(&serial);
        let is_mine = self.drafts.take_out(serial).is_some();
        let home = self.home_of_draft(serial);
        if home == Some(NO_ROW) && !text.is_empty() {
            self.drafts.rowless = Some((serial, text.clone()));
        } else if is_mine {
            self.write_draft(NO_ROW, String::new());
        }
        match home {
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
        if self.has_place()
            && let Some(text) = self.stored_draft(NO_ROW).filter(|text| !text.is_empty())
        {
            self.drafts.rowless = Some((self.here.serial, text.clone()));
            self.report(Notice::Draft(text));
        }
    }

    pub fn draft_gets_row(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        if let Some(text) = self.drafts.take_out(self.here.serial) {
            changes.push(Change::Draft { session: NO_ROW, text: String::new() });
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

    /// Where the draft of this session is saved; `None` without a place, or if another process has the session.
    fn home_of_draft(&mut self, serial: u64) -> Option<SessionId> {
        let id_of = |state: &mut State| match state.here.id {
            None => Some(None),
            // A session that is view-only because its state was not read still belongs to this process.
            Some(id) => Some(Some(id)).filter(|_| state.here.lock.is_some() || state.here.rights == Rights::Write),
        };
        let id = match self.in_session(|session| session.serial == serial, id_of) {
            Some(id) => id?,
            // The session was left and unlocked; another process may hold it.
            None => self.opened.id_of(serial)?.filter(|id| self.disk.store.lock_session(*id, "").is_ok()),
        };
        if id.is_some() {
            return id;
        }
        if self.drafts.rowless.is_none() && self.drafts.place.is_none() && self.has_place() {
            // A run that began in a session has not shown this one.
            let before = self.stored_draft(NO_ROW)?;
            self.remember_draft(&before);
        }
        (self.drafts.rowless.is_none() && self.drafts.place.is_some()).then_some(NO_ROW)
    }

    fn has_place(&mut self) -> bool {
        self.drafts.place = self.drafts.place.take().or_else(|| self.disk.store.lock_session(NO_ROW, "").ok());
        self.drafts.place.is_some()
    }
}
