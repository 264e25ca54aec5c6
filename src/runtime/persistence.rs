//! The store and its writer: hands saves over and tracks what is on disk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::{Done, Level, Notice, Options, Out, Path, RuntimeError, SaveState, Wanted};
use crate::config::settings::SaveStates;
use crate::core::now_ms;
use crate::core::transcript::SessionId;
use crate::engine::protocol::{EngineFault, StateImage};
use crate::store::{
    Change, DocumentRecord, NewSegment, RestorePlan, Save, SaveEvent, Segment, SegmentId, SessionLock, Store,
    StoreError, Unsaved, Writer,
};

/// How long the engine waits for a question to be durable. After that the answer begins anyway, and the banner warns.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long an undo waits for state that is being written.
pub(super) const STATE_PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Pending {
    /// Texts of all saves up to this one are committed, given up, or delayed.
    texts: u64,
    /// Saves without their state on disk. Texts of later saves may be on disk.
    states: HashMap<u64, SegmentId>,
    /// Texts of all saves up to this one are committed or given up.
    done: u64,
    last: u64,
    /// Saves without their text on disk, and their sessions.
    waiting: Vec<(u64, SessionId)>,
    lost: HashSet<SessionId>,
    /// The writer has failed: it reports on no further save.
    stopped: bool,
    /// Why a save was given up. Later saves cannot repair the loss.
    given_up: Option<String>,
    /// Why the last state of the open session is not on disk although its text is.
    left_out: Option<String>,
    /// State to be written when the program ends, in order.
    held: Vec<Held>,
}

impl Pending {
    fn committed(&mut self, id: u64) {
        (self.texts, self.done) = (self.texts.max(id), self.done.max(id));
        self.waiting.retain(|(save, _)| *save > id);
    }

    /// Whether the writer has reported on all saves.
    fn is_settled(&self) -> bool {
        self.done >= self.last && self.states.is_empty()
    }
}

#[derive(Debug)]
struct Held {
    /// `None` for a document that is only in the library.
    session: Option<SessionId>,
    id: SegmentId,
    image: StateImage,
}

#[derive(Debug)]
pub(super) struct Persistence {
    pub(super) store: Arc<Store>,
    writer: Writer,
    pub(super) events: Receiver<SaveEvent>,
    pending: Pending,
    /// Sessions with another name on disk than requested, for [`Persistence::take_names`].
    named: Vec<(SessionId, String)>,
    pub(super) policy: SaveStates,
    /// `--no-save`: the store is temporary.
    pub(super) discard: bool,
    /// The store of the saved sessions then: its state is used and not changed.
    kept: Option<Arc<Store>>,
    pub(super) shown: SaveState,
    /// Locks of closed sessions that have unsaved text.
    leaving: Vec<(SessionId, SessionLock)>,
    out: Out,
}

impl Persistence {
    pub(super) fn new(options: &Options, writer: Writer, events: Receiver<SaveEvent>, out: Out) -> Persistence {
        Persistence {
            store: Arc::clone(&options.store),
            kept: options.kept.clone(),
            writer,
            events,
            pending: Pending::default(),
            named: Vec::new(),
            policy: options.save_state,
            discard: options.discard,
            shown: SaveState::Empty,
            leaving: Vec::new(),
            out,
        }
    }

    pub(super) fn store_of(&self, id: &SegmentId) -> &Store {
        let kept = self.kept.as_ref().filter(|_| matches!(self.store.kept_of(id), Ok(None)));
        kept.unwrap_or(&self.store)
    }

    /// Saves a segment of a session, its state, and another change in the same transaction.
    pub(super) fn segment(
        &mut self,
        session: Option<SessionId>,
        content: NewSegment,
        more: Option<Change>,
        image: Option<StateImage>,
    ) -> u64 {
        let (id, parent) = (content.id(), content.parent);
        let changes = [Change::AddSegment(Box::new(content))].into_iter().chain(more).collect();
        match image {
            Some(image) if self.policy == SaveStates::Exit => {
                // The session continued from this state: only its rows are written at the program's end, no checkpoint.
                let gone_on = self.pending.held.iter_mut().find(|h| h.session == session && Some(h.id) == parent);
                if let Some(held) = gone_on {
                    held.image.end = None;
                }
                self.pending.held.push(Held { session, id, image });
                self.change(changes)
            }
            image => self.save(Save { changes, images: image.map(|image| (id, image)).into_iter().collect() }),
        }
    }

    fn save(&mut self, save: Save) -> u64 {
        let state = save.images.last().map(|(id, _)| *id);
        let sessions: HashSet<SessionId> = save.changes.iter().filter_map(Change::session).collect();
        let id = self.writer.save(save);
        self.pending.last = id;
        self.pending.waiting.extend(sessions.into_iter().map(|session| (id, session)));
        if let Some(segment) = state {
            self.pending.states.insert(id, segment);
        }
        if !matches!(self.shown, SaveState::NotSaved(_)) {
            self.show(SaveState::Saving);
        }
        id
    }

    pub(super) fn change(&mut self, changes: Vec<Change>) -> u64 {
        self.save(Save { changes, images: Vec::new() })
    }

    /// Saves something that belongs to no session: the save indicator shows it only on failure.
    pub(super) fn remember(&mut self, change: Change) -> u64 {
        self.writer.save(Save { changes: vec![change], images: Vec::new() })
    }

    /// False for all saves after one was given up.
    pub(super) fn is_saved(&self, save: u64) -> bool {
        self.pending.done >= save && self.pending.given_up.is_none()
    }

    /// The state of saving of a session that was just opened: missing state of the session before no longer matters.
    pub(super) fn show_anew(&mut self, state: SaveState) {
        self.pending.left_out = None;
        self.show(state);
    }

    pub(super) fn show(&mut self, state: SaveState) {
        let state = match (&self.pending.given_up, self.discard) {
            (_, true) => SaveState::Off,
            (Some(why), false) => SaveState::NotSaved(why.clone()),
            (None, false) => state,
        };
        if self.shown != state {
            self.shown = state.clone();
            self.out.report(Notice::Save(state));
        }
    }

    /// All texts are on disk; a left-out state without a later replacement is shown.
    fn show_saved(&mut self, at_ms: i64) {
        let left_out = self.pending.left_out.clone();
        self.show(left_out.map_or(SaveState::Saved(at_ms), SaveState::TextOnly));
    }

    /// Handles an event of the writer. True if it settled the last pending state.
    pub(super) fn on_event(&mut self, event: SaveEvent) -> bool {
        let pending = &mut self.pending;
        let waited = !pending.states.is_empty();
        match event {
            SaveEvent::Named { session, name } => self.named.push((session, name)),
            SaveEvent::Text { id } => pending.committed(id),
            SaveEvent::Saved { id, at_ms } => {
                pending.committed(id);
                if pending.states.remove(&id).is_some() {
                    pending.left_out = None;
                }
                // Saves without a session are reported too.
                if id <= pending.last && pending.is_settled() {
                    self.show_saved(at_ms);
                }
            }
            SaveEvent::TextOnly { id, reason, .. } => {
                pending.committed(id);
                pending.states.remove(&id);
                // The first reason is kept: later losses may follow from it.
                let first = pending.left_out.get_or_insert(reason).clone();
                self.show(SaveState::TextOnly(first));
            }
            SaveEvent::NotSaved { id, reason, lasting } => {
                pending.texts = pending.texts.max(id);
                pending.states.remove(&id);
                pending.stopped |= id == 0;
                if lasting {
                    let is_lost = |save: u64| save == id || id == 0;
                    pending.lost.extend(pending.waiting.iter().filter(|(save, _)| is_lost(*save)).map(|(_, of)| *of));
                    pending.committed(id);
                    // The first reason is kept: later failures mostly follow from it.
                    let first = pending.given_up.get_or_insert_with(|| {
                        self.out.note(Level::Error, format!("Something could not be saved: {reason}"));
                        reason.clone()
                    });
                    if *first != reason {
                        self.out.note(Level::Error, format!("Something else could not be saved: {reason}"));
                    }
                }
                self.show(SaveState::NotSaved(reason));
            }
            // Later saves are still pending.
            SaveEvent::Recovered if !pending.is_settled() => self.show(SaveState::Saving),
            SaveEvent::Recovered => self.show_saved(now_ms()),
        }
        let pending = &self.pending;
        self.leaving.retain(|(session, _)| pending.waiting.iter().any(|(_, of)| of == session));
        waited && self.pending.states.is_empty()
    }

    pub(super) fn take_names(&mut self) -> Vec<(SessionId, String)> {
        std::mem::take(&mut self.named)
    }

    /// Whether the wanted data is on disk, given up, or delayed.
    pub(super) fn has(&self, wanted: Wanted) -> bool {
        match wanted {
            _ if self.pending.stopped => true,
            Wanted::Texts(save) => self.pending.texts >= save,
            Wanted::States(save) => !self.pending.states.keys().any(|id| *id <= save),
        }
    }

    pub(super) fn texts(&self) -> Wanted {
        Wanted::Texts(self.pending.last)
    }

    pub(super) fn states(&self) -> Wanted {
        Wanted::States(self.pending.last)
    }

    /// Blocks until all texts are on disk, given up, or delayed, so that the store can be read. On a slow disk this
    /// may end too early: see [`Persistence::unsaved`].
    pub(super) fn wait_for_texts(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.has(self.texts())
            && let Ok(event) = self.events.recv_deadline(until)
        {
            self.on_event(event);
        }
    }

    pub(super) fn wait_for_states(&self) {
        self.writer.flush(Instant::now() + PATIENCE);
    }

    /// Why some text of a session is not on disk yet: the store's version is older.
    pub(super) fn unsaved(&self, session: SessionId) -> Option<String> {
        let waits = self.pending.waiting.iter().any(|(_, of)| *of == session);
        waits.then(|| match &self.shown {
            SaveState::NotSaved(why) => why.trim_end_matches('.').to_owned(),
            _ => "the disk takes long".to_owned(),
        })
    }

    pub(super) fn is_lost(&self, session: SessionId) -> bool {
        self.pending.lost.contains(&session)
    }

    /// Closes a session. Its lock is released after all its text is on disk, so that the next process finds it.
    pub(super) fn let_go(&mut self, session: Option<SessionId>, lock: Option<SessionLock>) {
        if let (Some(session), Some(lock)) = (session, lock)
            && self.unsaved(session).is_some()
        {
            self.leaving.push((session, lock));
        }
    }

    /// A recorded path; empty if the store no longer knows it.
    pub(super) fn stored_path(&self, tip: &SegmentId) -> Done<Path> {
        Ok(StoreError::if_known(self.store_of(tip).load_path(tip))?.map(Path::new).unwrap_or_default())
    }

    /// The segment of an interrupted read of the same text after a path.
    pub(super) fn stopped_part(&self, path: &Path, fingerprint: &str, rendered: &str) -> Done<Option<Segment>> {
        let part = |store: &Arc<Store>| store.part_below(path.head().as_ref(), fingerprint, rendered);
        match (part(&self.store)?, &self.kept) {
            (None, Some(kept)) => Ok(part(kept)?),
            (part, _) => Ok(part),
        }
    }

    /// Whether the state at the end of a segment is on disk or about to be written.
    pub(super) fn keeps(&self, id: &SegmentId) -> bool {
        let pending =
            self.pending.states.values().chain(self.pending.held.iter().map(|held| &held.id)).any(|s| s == id);
        pending || self.store.segment(id).is_ok_and(|s| s.is_some_and(|s| s.end.is_kept()))
    }

    /// The part of a path that the store can restore; `None` if it does not know the path's end.
    pub(super) fn restorable(&self, tip: &SegmentId) -> Done<Option<RestorePlan>> {
        Ok(StoreError::if_known(self.store_of(tip).plan_restore(tip))?)
    }

    pub(super) fn documents(&self) -> Done<Vec<DocumentRecord>> {
        let mut all = self.store.documents()?;
        if let Some(kept) = &self.kept {
            all.extend(kept.documents()?);
        }
        Ok(all)
    }

    /// Marks state as missing after a failure caused by damage; the returned error reports that.
    pub(super) fn set_aside(&mut self, e: RuntimeError) -> RuntimeError {
        let RuntimeError::Engine(EngineFault::RowsLost(fault)) = e else {
            return e;
        };
        let store = fault.segment.map_or(&*self.store, |id| self.store_of(&SegmentId(id)));
        match store.note_fault(&fault) {
            Ok(true) => RuntimeError::RowsLost(fault),
            Ok(false) => EngineFault::RowsLost(fault).into(),
            Err(e) => e.into(),
        }
    }

    /// Writes the state that waits for the end of the program: the engine has given up its copy.
    pub(super) fn write_held(&mut self) {
        for held in std::mem::take(&mut self.pending.held) {
            let (id, save) = (held.id, self.write(held));
            self.pending.last = save.max(self.pending.last);
            self.pending.states.insert(save, id);
        }
    }

    fn write(&self, Held { id, image, .. }: Held) -> u64 {
        // The document may have been removed from the library.
        let images = if matches!(self.store.segment(&id), Ok(None)) { Vec::new() } else { vec![(id, image)] };
        self.writer.save(Save { changes: Vec::new(), images })
    }

    /// Writes the remaining data and releases the session. Returns why some state is not kept, if so.
    ///
    /// # Errors
    /// Some text is not on disk.
    pub(super) fn close(mut self, patience: Duration) -> Result<Option<String>, Unsaved> {
        let until = Instant::now() + patience;
        for held in std::mem::take(&mut self.pending.held) {
            // One by one: each waits for the one before, and a failure affects no other.
            self.writer.flush(until);
            self.write(held);
        }
        let saved = self.writer.close(until);
        drop(self.leaving);
        // The first reason is kept: later losses may follow from it.
        let (mut before, mut lost) = (self.pending.left_out, None);
        for event in self.events.try_iter() {
            match event {
                SaveEvent::TextOnly { reason, .. } => drop(lost.get_or_insert(reason)),
                SaveEvent::Saved { id, .. } if self.pending.states.contains_key(&id) => before = None,
                _ => {}
            }
        }
        saved.map(|late| lost.or(before).or(late))
    }
}
