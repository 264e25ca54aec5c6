//! The sessions opened in this run, in order of opening.
//!
//! One session is on screen, others may work off screen ([`super::conversation`]). The rest are closed: text and state
//! are on disk, the lock is released, and a switch resumes them. Only an empty session, which has no row, stays in
//! memory.

use super::{Done, Notice, SaveState, Session, State, Verb, refused};
use crate::core::sanitize::command_word;
use crate::core::transcript::SessionId;
use crate::runtime::protocol::OpenSession;
use crate::store::SessionLock;

#[derive(Debug)]
struct Slot {
    serial: u64,
    id: Option<SessionId>,
    name: String,
    /// An empty session, which is not on disk.
    parked: Option<Session>,
}

#[derive(Debug, Default)]
pub(super) struct Opened {
    slots: Vec<Slot>,
    given: u64,
    /// An empty session that is left stays if the interface holds a draft for it; else it is dropped.
    pub(super) keeps_empty: bool,
    /// The last switch was by number; then a note that nothing is read again is suppressed.
    pub(super) quiet: bool,
}

impl Opened {
    /// The session of a serial; without a row, `Some(None)`.
    pub(super) fn id_of(&self, serial: u64) -> Option<Option<SessionId>> {
        self.slots.iter().find(|s| s.serial == serial).map(|s| s.id)
    }

    fn at(&mut self, serial: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.serial == serial)
    }

    pub(super) fn note(&mut self, session: &Session) {
        if let Some(slot) = self.at(session.serial) {
            (slot.id, slot.name) = (session.id, session.name.clone());
        }
    }

    pub(super) fn left(&mut self, session: Session, keeps_empty: bool) {
        self.note(&session);
        if session.id.is_some() {
            return;
        }
        if !keeps_empty {
            self.slots.retain(|s| s.serial != session.serial);
        } else if let Some(slot) = self.at(session.serial) {
            slot.parked = Some(session);
        }
    }

    pub(super) fn forget(&mut self, id: SessionId) {
        self.slots.retain(|s| s.id != Some(id));
    }

    pub(super) fn left_as(&self, name: &str) -> Option<SessionId> {
        self.slots.iter().find(|s| s.name == name).and_then(|s| s.id)
    }

    pub(super) fn has(&self, id: SessionId) -> bool {
        self.slots.iter().any(|s| s.id == Some(id))
    }
}

impl State {
    /// Replaces the open session, keeps it in the list, and releases its lock.
    pub fn open_in_place(&mut self, session: Session, lock: Option<SessionLock>) {
        self.disk.wait_for_texts();
        let before = std::mem::replace(&mut self.here.lock, lock);
        self.disk.let_go(self.here.id, before);
        self.opened.quiet = false;
        // The replaced session has no requests left, and its slot is free.
        self.here.typed = None;
        let left = std::mem::replace(&mut self.here.session, session);
        self.opened.left(left, self.opened.keeps_empty);
        let (serial, id) = (self.here.serial, self.here.id);
        let known =
            self.opened.slots.iter().find(|s| s.serial == serial || id.is_some() && s.id == id).map(|s| s.serial);
        self.here.serial = known.unwrap_or_else(|| {
            self.opened.given += 1;
            self.opened.slots.push(Slot { serial: self.opened.given, id, name: String::new(), parked: None });
            self.opened.given
        });
        if self.here.is_in_front() {
            self.screen = self.here.serial;
        }
        self.report_library();
    }

    /// Refuses to open another session for a conversation off screen: the one on screen must not change.
    pub fn leads_on_screen(&self) -> Done {
        if !self.here.is_in_front() {
            return refused("No other session was opened: you had left this one.");
        }
        Ok(())
    }

    pub fn opened(&self) -> Vec<OpenSession> {
        let name = |serial: u64| {
            let open = self.here.all.iter().filter(|other| other.apart.is_none());
            open.map(|c| &c.session).find(|session| session.serial == serial).map(|session| session.name.clone())
        };
        let row = |s: &Slot| OpenSession { serial: s.serial, name: name(s.serial).unwrap_or_else(|| s.name.clone()) };
        self.opened.slots.iter().map(row).collect()
    }

    /// The names on disk are authoritative: another terminal may have taken a name first.
    pub fn take_names(&mut self) {
        let names = self.disk.take_names();
        if names.is_empty() {
            return;
        }
        for (id, name) in names {
            self.opened.slots.iter_mut().filter(|s| s.id == Some(id)).for_each(|s| s.name.clone_from(&name));
            self.in_session(|session| session.id == Some(id), |runtime| runtime.here.name = name);
        }
        let opened = self.opened();
        let on_screen = opened.iter().find(|o| o.serial == self.screen).map(|o| o.name.clone());
        self.out.report(Notice::Named { name: on_screen.unwrap_or_default(), opened });
    }

    pub fn empty_session(&self) -> Session {
        Session::empty(self.options.settings.clone(), self.options.system.clone())
    }

    pub fn open_empty(&mut self, session: Session) {
        self.open_in_place(session, None);
        self.here.resume_pending = false;
        let state = match &self.disk.shown {
            SaveState::Saved(_) | SaveState::Saving | SaveState::TextOnly(_) => SaveState::Empty,
            state => state.clone(),
        };
        self.disk.show_anew(state);
        self.show_session();
        self.begin_meters(0);
    }
}

impl Verb {
    /// Alt-1 to Alt-9.
    pub async fn switch(&mut self, serial: u64) -> Done {
        self.leads_on_screen()?;
        if serial == self.here.serial {
            self.show_session();
            return Ok(());
        }
        let Some((id, parked)) = self.opened.at(serial).map(|s| (s.id, s.parked.take())) else {
            return refused("That session is not open any more; /sessions lists all.");
        };
        self.opened.keeps_empty = true;
        let done = match (self.at_work(|session| session.serial == serial), id) {
            (Some(at), _) => {
                self.take_up(at);
                Ok(())
            }
            (None, Some(id)) => self.back_to(id).await,
            (None, None) => {
                let session = parked.unwrap_or_else(|| Session { serial, ..self.empty_session() });
                self.open_empty(session);
                Ok(())
            }
        };
        self.opened.keeps_empty = false;
        self.opened.quiet = done.is_ok();
        done
    }

    async fn back_to(&mut self, id: SessionId) -> Done {
        self.disk.wait_for_texts();
        let name = self.opened.slots.iter().find(|s| s.id == Some(id)).map(|s| s.name.clone());
        self.refuse_unsaved(id, &name.unwrap_or_default())?;
        let record = self.disk.store.session(id)?;
        if record.trashed_ms.is_some() {
            self.opened.forget(id);
            self.show_session();
            return refused(format!(
                "\"{}\" was deleted. It is in the trash: /resume {} brings it back.",
                record.name,
                command_word(&record.name)
            ));
        }
        self.open_record(record).await
    }
}
