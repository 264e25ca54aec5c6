//! The keeper: the store and its writer. What is handed over, what became of it, and what of it can be had back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::path::Path;
use super::verb::Wanted;
use super::{Done, Out, RuntimeError};
use crate::config::settings::SaveStates;
use crate::core::now_ms;
use crate::core::transcript::SessionId;
use crate::engine::protocol::{EngineFault, StateImage};
use crate::runtime::protocol::{Level, Notice, SaveState};
use crate::store::{
    Change, NewSegment, RestorePlan, Save, SaveEvent, Segment, SegmentId, SessionLock, Store, StoreError, Unsaved,
    Writer,
};

/// How long a question may wait to be durable before the engine sees it anyway (the banner says that it is not).
const PATIENCE: Duration = Duration::from_secs(2);
/// How long going back waits for state that is being written.
const STATE_PATIENCE: Duration = Duration::from_secs(20);

/// What is with the writer.
#[derive(Debug, Default)]
struct Pending {
    /// Texts of all saves up to this one were committed or given up, or could not be written for now.
    texts: u64,
    /// Saves whose state is not on disk yet. Texts of later saves may be.
    states: HashMap<u64, SegmentId>,
    /// Texts of all saves up to this one were committed, or will never be.
    done: u64,
    /// Those of them that will never be.
    refused: HashSet<u64>,
    /// The last save.
    last: u64,
    /// Saves whose text is not on disk yet, and their sessions.
    waiting: Vec<(u64, SessionId)>,
    /// Sessions of which some text will never be on disk.
    lost: HashSet<SessionId>,
    /// Why something will never be on disk, once that is so: nothing that is saved later makes it whole.
    given_up: Option<String>,
    /// Why the last state of the open session is not on disk though its text is.
    left_out: Option<String>,
    /// State to be written when the program ends, in order.
    held: Vec<Held>,
}

impl Pending {
    fn committed(&mut self, id: u64) {
        (self.texts, self.done) = (self.texts.max(id), self.done.max(id));
        self.waiting.retain(|(save, _)| *save > id);
    }

    /// Whether the writer has reported on everything.
    fn is_all_told(&self) -> bool {
        self.done >= self.last && self.states.is_empty()
    }
}

/// State that is written when the program ends.
#[derive(Debug)]
struct Held {
    /// `None` for a document that is only read into the library.
    session: Option<SessionId>,
    id: SegmentId,
    image: StateImage,
}

/// The store, the writer, and the state of saving.
#[derive(Debug)]
pub(super) struct Persistence {
    pub(super) store: Arc<Store>,
    writer: Writer,
    /// From the writer.
    pub(super) events: Receiver<SaveEvent>,
    pending: Pending,
    /// Sessions that are called otherwise on disk than was wished for: to be taken by [`Persistence::take_names`].
    named: Vec<(SessionId, String)>,
    /// When model state is written.
    pub(super) policy: SaveStates,
    /// `--no-save`: the store is temporary.
    discard: bool,
    shown: SaveState,
    /// Locks of sessions that were left before all of their text was on disk.
    leaving: Vec<(SessionId, SessionLock)>,
    out: Out,
}

impl Persistence {
    pub(super) fn new(
        store: Arc<Store>,
        writer: Writer,
        events: Receiver<SaveEvent>,
        policy: SaveStates,
        discard: bool,
        out: Out,
    ) -> Persistence {
        let (pending, named, shown) = (Pending::default(), Vec::new(), SaveState::Empty);
        let leaving = Vec::new();
        Persistence { store, writer, events, pending, named, policy, discard, shown, leaving, out }
    }

    /// Saves a segment of a session, another change with it, and its state.
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
                // Where the session went on from here, the end it had is of no use when the program ends; its rows are.
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

    /// Hands a save over.
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

    /// Hands changes over, in one transaction.
    pub(super) fn change(&mut self, changes: Vec<Change>) -> u64 {
        self.save(Save { changes, images: Vec::new() })
    }

    /// Saves something that belongs to no session: the state of saving shows it only if it fails.
    pub(super) fn remember(&mut self, change: Change) -> u64 {
        self.writer.save(Save { changes: vec![change], images: Vec::new() })
    }

    /// Whether the texts of a save are on disk.
    pub(super) fn is_saved(&self, save: u64) -> bool {
        self.pending.done >= save && !self.pending.refused.contains(&save)
    }

    /// Hands changes over and waits until they are on disk, or it is clear that they will not be.
    pub(super) fn change_now(&mut self, changes: Vec<Change>) {
        self.change(changes);
        self.wait_for_texts();
    }

    pub(super) fn shown(&self) -> &SaveState {
        &self.shown
    }

    /// Another session is open: state of the one before that is not kept no longer matters.
    pub(super) fn forget_left_out(&mut self) {
        self.pending.left_out = None;
    }

    pub(super) fn show(&mut self, state: SaveState) {
        let state = match (&self.pending.given_up, self.discard) {
            (_, true) => SaveState::Off,
            (Some(why), false) => SaveState::NotSaved(why.clone()),
            (None, false) => state,
        };
        if self.shown != state {
            self.shown = state.clone();
            self.out.tell(Notice::Save(state));
        }
    }

    /// All is on disk, but for a state that was left out and that no later one replaced.
    fn show_saved(&mut self, at_ms: i64) {
        let left_out = self.pending.left_out.clone();
        self.show(left_out.map_or(SaveState::Saved(at_ms), SaveState::TextOnly));
    }

    /// An event of the writer. True: the last state that was waited for is on disk now, or will never be.
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
                if id <= pending.last && pending.is_all_told() {
                    self.show_saved(at_ms);
                }
            }
            SaveEvent::TextOnly { id, reason, .. } => {
                pending.committed(id);
                pending.states.remove(&id);
                // The first: what is not kept after it may be so because of it.
                let first = pending.left_out.get_or_insert(reason).clone();
                self.show(SaveState::TextOnly(first));
            }
            SaveEvent::NotSaved { id, reason, lasting } => {
                pending.texts = pending.texts.max(id);
                pending.states.remove(&id);
                if lasting {
                    pending.lost.extend(pending.waiting.iter().filter(|(save, _)| *save == id).map(|(_, of)| *of));
                    pending.committed(id);
                    pending.refused.insert(id);
                    // The first: what fails after it mostly does so because of it.
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
            // Later saves follow.
            SaveEvent::Recovered if !pending.is_all_told() => self.show(SaveState::Saving),
            SaveEvent::Recovered => self.show_saved(now_ms()),
        }
        let pending = &self.pending;
        self.leaving.retain(|(session, _)| pending.waiting.iter().any(|(_, of)| of == session));
        waited && self.pending.states.is_empty()
    }

    /// The names of sessions on disk that differ from the requested ones.
    pub(super) fn take_names(&mut self) -> Vec<(SessionId, String)> {
        std::mem::take(&mut self.named)
    }

    /// Whether it is on disk, or will never be.
    pub(super) fn has(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Texts(save) => self.pending.texts >= save,
            Wanted::States(save) => !self.pending.states.keys().any(|id| *id <= save),
        }
    }

    /// All state that was handed over up to now.
    pub(super) fn states(&self) -> Wanted {
        Wanted::States(self.pending.last)
    }

    /// Until when to wait for something that is being written.
    pub(super) fn patience(wanted: Wanted) -> Instant {
        Instant::now()
            + match wanted {
                Wanted::Texts(_) => PATIENCE,
                Wanted::States(_) => STATE_PATIENCE,
            }
    }

    /// Waits until all texts are on disk, or will not be for now, so that the store can be read. Nothing else could be
    /// done meanwhile. A slow disk may take longer: see [`Persistence::unsaved`].
    pub(super) fn wait_for_texts(&mut self) {
        let wanted = Wanted::Texts(self.pending.last);
        let until = Persistence::patience(wanted);
        while !self.has(wanted)
            && let Ok(event) = self.events.recv_deadline(until)
        {
            self.on_event(event);
        }
    }

    /// The same for the state.
    pub(super) fn wait_for_states(&self) {
        self.writer.flush(Instant::now() + PATIENCE);
    }

    /// Why some text of a session is not on disk yet, if so: the store's version of it is older.
    pub(super) fn unsaved(&self, session: SessionId) -> Option<String> {
        let waits = self.pending.waiting.iter().any(|(_, of)| *of == session);
        waits.then(|| match &self.shown {
            SaveState::NotSaved(why) => why.trim_end_matches('.').to_owned(),
            _ => "the disk takes long".to_owned(),
        })
    }

    /// Whether some text of a session will never be on disk.
    pub(super) fn is_lost(&self, session: SessionId) -> bool {
        self.pending.lost.contains(&session)
    }

    /// A session was left. Its lock is released once all of its text is on disk, so that the next process finds it.
    pub(super) fn let_go(&mut self, session: Option<SessionId>, lock: Option<SessionLock>) {
        if let (Some(session), Some(lock)) = (session, lock)
            && self.unsaved(session).is_some()
        {
            self.leaving.push((session, lock));
        }
    }

    /// A recorded path, empty when the store does not know it any more.
    pub(super) fn stored_path(&self, tip: &SegmentId) -> Done<Path> {
        match self.store.load_path(tip) {
            Ok(segments) => Ok(Path::new(segments)),
            Err(StoreError::NoSegment { .. }) => Ok(Path::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// A recorded segment.
    pub(super) fn stored_segment(&self, id: &SegmentId) -> Done<Option<Segment>> {
        Ok(self.store.segment(id)?)
    }

    /// The place where reading just this text was stopped, after a path.
    pub(super) fn stopped_part(&self, path: &Path, fingerprint: &str, rendered: &str) -> Done<Option<Segment>> {
        Ok(self.store.part_below(path.head().as_ref(), fingerprint, rendered)?)
    }

    /// Whether the state at the end of a segment is on disk, or on its way there.
    pub(super) fn keeps(&self, id: &SegmentId) -> bool {
        let comes = self.pending.states.values().chain(self.pending.held.iter().map(|held| &held.id)).any(|s| s == id);
        comes || self.store.segment(id).is_ok_and(|s| s.is_some_and(|s| s.end.is_kept()))
    }

    /// What the store can restore of a path; `None` when it does not know the end of it.
    pub(super) fn restorable(&self, tip: &SegmentId) -> Done<Option<RestorePlan>> {
        match self.store.plan_restore(tip) {
            Ok(plan) => Ok(Some(plan)),
            Err(StoreError::NoSegment { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// After a failure: declares missing what was found damaged; the error then says that.
    pub(super) fn set_aside(&mut self, e: RuntimeError) -> RuntimeError {
        let RuntimeError::Engine(EngineFault::RowsLost(fault)) = e else {
            return e;
        };
        match self.store.give_up_on(&fault) {
            Ok(true) => RuntimeError::RowsLost(fault),
            Ok(false) => EngineFault::RowsLost(fault).into(),
            Err(e) => e.into(),
        }
    }

    /// Writes what is left and gives the session free. Returns why some state is not kept, if so.
    ///
    /// # Errors
    /// What was handed over and is not on disk: why.
    pub(super) fn close(mut self, patience: Duration) -> Result<Option<String>, Unsaved> {
        let until = Instant::now() + patience;
        for Held { id, image, .. } in std::mem::take(&mut self.pending.held) {
            // One after the other: none is left out for what waits before it, and one that cannot be kept takes no other
            // with it.
            self.writer.flush(until);
            // The document may have been removed from the library.
            if !matches!(self.store.segment(&id), Ok(None)) {
                self.writer.save(Save { changes: Vec::new(), images: vec![(id, image)] });
            }
        }
        let saved = self.writer.close(until);
        drop(self.leaving);
        // The first: what is not kept after it may be so because of it.
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

    /// Whether the store is kept after the program ends.
    pub(super) fn lasts(&self) -> bool {
        !self.discard
    }
}
