//! What stands in the input of a session and was not sent. The interface tells of it, and it is kept with the session, so that it
//! stands there again whatever ended the program.
//!
//! One of a session that somebody else has is never written over. There is one place for a session that has no row yet; it is
//! one process's at a time, and in it one session's. A draft that has no place is among the prompts of the next start.

use std::collections::BTreeMap;

use super::State;
use super::talk::Rights;
use crate::commands::{is_command, message_text};
use crate::protocol::desk::{Level, Notice};
use crate::session::{Access, Change, NO_ROW, SessionLock};
use crate::transcript::SessionId;

/// Where what is said to the desk is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// On the screen: what stands there is told, and comes back.
    Screen,
    /// Nowhere, or line by line: what is entered is sent.
    Lines,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Drafts {
    input: Input,
    /// The place for a session without a row is ours.
    lock: Option<SessionLock>,
    /// The session whose draft stands there, and the text.
    rowless: Option<(u64, String)>,
    /// Those without a place, by the serials of their sessions.
    homeless: BTreeMap<u64, String>,
    /// The save that each session's last one went with.
    given: BTreeMap<SessionId, u64>,
}

impl Drafts {
    pub(super) fn new(input: Input) -> Drafts {
        Drafts { input, lock: None, rowless: None, homeless: BTreeMap::new(), given: BTreeMap::new() }
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
    /// What stands in the input of a session now; empty once it was sent or cleared.
    pub(super) fn keep_draft(&mut self, serial: u64, text: String) {
        if !self.keeps_drafts() {
            return;
        }
        let home = self.home_of_draft(serial);
        if home != Home::Rowless && self.drafts.rowless.take_if(|(of, _)| *of == serial).is_some() {
            self.write_draft(NO_ROW, String::new());
        }
        self.drafts.homeless.remove(&serial);
        match home {
            Home::Session(id) => self.write_draft(id, text),
            Home::Rowless if self.takes_rowless(serial) => {
                self.drafts.rowless = (!text.is_empty()).then(|| (serial, text.clone()));
                self.write_draft(NO_ROW, text);
            }
            Home::Rowless | Home::Nowhere if text.is_empty() => {}
            Home::Rowless | Home::Nowhere => drop(self.drafts.homeless.insert(serial, text)),
        }
    }

    /// Tells what stands in the input of a session that was just opened. Where that was open before in this run, another terminal may
    /// have had it meanwhile: that nothing stands there is told as well.
    pub(super) fn tell_draft(&self, session: SessionId, known: bool) {
        // What is on its way to the disk is the interface's own, and newer.
        let comes = self.drafts.given.get(&session).is_some_and(|save| !self.keeper.is_told(*save));
        if self.keeps_drafts()
            && !comes
            && let Some(text) = self.stored_draft(session).filter(|text| known || !text.is_empty())
        {
            self.tell(Notice::Draft(text));
        }
    }

    /// What was typed into a session that got no row stands in the first new one of the next run.
    pub(super) fn tell_rowless_draft(&mut self) {
        if !self.keeps_drafts() {
            return;
        }
        // Another terminal's is left to it.
        let Ok(lock) = self.keeper.store.lock_session(NO_ROW, "") else { return };
        self.drafts.lock = Some(lock);
        if let Some(text) = self.stored_draft(NO_ROW).filter(|text| !text.is_empty()) {
            self.drafts.rowless = Some((self.talk.serial, text.clone()));
            self.tell(Notice::Draft(text));
        }
    }

    /// The open session gets its row: its draft is kept with it from now on.
    pub(super) fn draft_gets_row(&mut self, session: SessionId, changes: &mut Vec<Change>) {
        let serial = self.talk.serial;
        if let Some((_, text)) = self.drafts.rowless.take_if(|(of, _)| *of == serial) {
            changes.push(Change::Draft { session: NO_ROW, text: String::new() });
            changes.push(Change::Draft { session, text });
        }
    }

    /// At the end: what has no place is found with Up.
    pub(super) fn remember_homeless(&mut self) {
        for text in std::mem::take(&mut self.drafts.homeless).into_values().filter(|text| !is_command(text)) {
            self.remember_prompt(&message_text(&text));
        }
    }

    /// Whether there is an input, and what stands there may be kept.
    fn keeps_drafts(&self) -> bool {
        let store = &self.keeper.store;
        self.drafts.input == Input::Screen && self.keeper.lasts() && *store.access() == Access::Writable
    }

    fn write_draft(&mut self, session: SessionId, text: String) {
        let save = self.keeper.remember(Change::Draft { session, text });
        self.drafts.given.insert(session, save);
    }

    /// Empty where there is none; `None` where that cannot be read.
    fn stored_draft(&self, session: SessionId) -> Option<String> {
        match self.keeper.store.draft(session) {
            Ok(text) => Some(text.unwrap_or_default()),
            Err(e) => {
                self.note(Level::Warn, e.to_string());
                None
            }
        }
    }

    fn home_of_draft(&mut self, serial: u64) -> Home {
        if let Some(at) = self.seat_of(|talk| talk.serial == serial) {
            return self.beside(at, |desk| desk.home_in_hand());
        }
        if self.talk.serial == serial {
            return self.home_in_hand();
        }
        match self.opened.rows().find(|(of, _)| *of == serial) {
            Some((_, None)) => Home::Rowless,
            // It was left, and its lock given up: somebody else may have it.
            Some((_, Some(id))) if self.keeper.store.lock_session(id, "").is_ok() => Home::Session(id),
            Some((_, Some(_))) | None => Home::Nowhere,
        }
    }

    fn home_in_hand(&self) -> Home {
        match self.talk.id {
            None => Home::Rowless,
            // One that is only looked at because its state was not read is ours.
            Some(id) if self.keeper.lock.is_some() || self.talk.rights == Rights::Write => Home::Session(id),
            Some(_) => Home::Nowhere,
        }
    }

    /// Whether the place for a session without a row is this one's, or can be. What an earlier run left there waits for the start of
    /// a later one.
    fn takes_rowless(&mut self, serial: u64) -> bool {
        if self.drafts.lock.is_none() {
            let store = &self.keeper.store;
            let lock = store.lock_session(NO_ROW, "").ok();
            self.drafts.lock = lock.filter(|_| matches!(store.draft(NO_ROW), Ok(None)));
        }
        self.drafts.lock.is_some() && self.drafts.rowless.as_ref().is_none_or(|(of, _)| *of == serial)
    }
}
