//! The desk's side of the store: what is handed to the writer, what it said about it, and the open session's rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::path::Path;
use super::run::Event;
use super::{DeskError, Done, Rights, State, now_ms};
use crate::protocol::desk::{Level, Meters, Notice, Request, SaveState, TimelineRow, Unsaved};
use crate::protocol::engine::{EngineFault, RowSource, StateImage};
use crate::session::{Change, NewSegment, NewSession, RestorePlan, Save, SaveEvent, Segment, SegmentId, StoreError};
use crate::settings::SaveStates;
use crate::text::sanitize::shell_word;
use crate::transcript::{Message, MessageId, Role, SessionId};

/// How long a question may wait to be durable before the engine sees it anyway (the banner says that it is not).
const PATIENCE: Duration = Duration::from_secs(2);
/// How long going back waits for state that is being written.
const STATE_PATIENCE: Duration = Duration::from_secs(20);

/// What is with the writer.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Texts of all saves up to this one were committed or given up.
    texts: u64,
    /// Saves whose state is not on disk yet.
    states: HashMap<u64, SegmentId>,
    /// The last save.
    last: u64,
    /// Why something will never be on disk, once that is so: nothing that is saved later makes it whole.
    given_up: Option<String>,
    /// State to be written when the program ends, in order.
    held: Vec<(SegmentId, StateImage)>,
}

impl State {
    /// Whether the open session may grow.
    pub(super) fn may_write(&self) -> Done {
        match &self.open.rights {
            Rights::Write => Ok(()),
            Rights::View(why) => Err(DeskError::Refused(format!(
                "This session is open to view only: {why} /fork makes a copy to go on with."
            ))),
        }
    }

    fn save(&mut self, mut save: Save) -> u64 {
        if self.save_state == SaveStates::Exit {
            // Only the newest end state is of use when the program ends; rows are needed of all.
            for (_, image) in self.pending.held.iter_mut().filter(|_| !save.images.is_empty()) {
                image.end = None;
            }
            self.pending.held.append(&mut save.images);
        }
        let state = save.images.last().map(|(id, _)| *id);
        let id = self.writer.save(save);
        self.pending.last = id;
        if let Some(segment) = state {
            self.pending.states.insert(id, segment);
        }
        if !matches!(self.save, SaveState::NotSaved(_)) {
            self.saving(SaveState::Saving);
        }
        id
    }

    fn change(&mut self, changes: Vec<Change>) -> u64 {
        self.save(Save { changes, images: Vec::new() })
    }

    /// Shows how saving stands.
    pub(super) fn saving(&mut self, state: SaveState) {
        let state = match (&self.pending.given_up, self.discard) {
            (_, true) => SaveState::Off,
            (Some(why), false) => SaveState::NotSaved(why.clone()),
            (None, false) => state,
        };
        if self.save != state {
            self.save = state.clone();
            self.tell(Notice::Save(state));
        }
    }

    /// What the writer said.
    pub(super) fn on_save(&mut self, event: SaveEvent) {
        let pending = &mut self.pending;
        match event {
            SaveEvent::Text { id } => pending.texts = pending.texts.max(id),
            SaveEvent::Saved { id, at_ms } => {
                pending.texts = pending.texts.max(id);
                pending.states.remove(&id);
                if id == pending.last {
                    self.saving(SaveState::Saved(at_ms));
                }
            }
            SaveEvent::TextOnly { id, reason, .. } => {
                pending.texts = pending.texts.max(id);
                pending.states.remove(&id);
                self.saving(SaveState::TextOnly(reason));
            }
            SaveEvent::NotSaved { id, reason, lasting } => {
                pending.texts = pending.texts.max(id);
                pending.states.remove(&id);
                if lasting {
                    pending.given_up = Some(reason.clone());
                    self.note(Level::Error, format!("Something could not be saved: {reason}"));
                }
                self.saving(SaveState::NotSaved(reason));
            }
            SaveEvent::Recovered => self.saving(SaveState::Saved(now_ms())),
        }
    }

    fn wait_until(&mut self, patience: Duration, done: impl Fn(&Pending) -> bool) {
        let deadline = Instant::now() + patience;
        while !done(&self.pending) && Instant::now() < deadline {
            match self.next(Some(deadline)) {
                Event::Request(r) => self.on_busy_request(r),
                Event::Engine(e) => self.on_idle_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::Tick => return,
            }
        }
    }

    /// Waits until state that was handed over is on disk, or it is clear that it will not be.
    pub(super) fn wait_for_states(&mut self) {
        self.wait_until(STATE_PATIENCE, |p| p.states.is_empty());
    }

    /// Waits until all texts handed over are on disk, or it is clear that they will not be. Another session may be open
    /// afterwards: requests that were made meanwhile are for that one.
    pub(super) fn wait_for_texts(&mut self) {
        let (last, deadline) = (self.pending.last, Instant::now() + PATIENCE);
        while self.pending.texts < last && Instant::now() < deadline {
            match self.next(Some(deadline)) {
                Event::Request(r @ (Request::Stop | Request::Quit)) => self.on_busy_request(r),
                Event::Request(r) => self.queue.push_back(r),
                Event::Engine(e) => self.on_idle_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::Tick => return,
            }
        }
    }

    /// The same without serving anything meanwhile: for requests that may come while a job runs, whose events must not
    /// be taken away.
    pub(super) fn flush_briefly(&self) {
        self.writer.flush(Instant::now() + PATIENCE);
    }

    /// Makes the session's row if there is none yet, named after what begins it.
    fn session_row(&mut self, first: &Message, changes: &mut Vec<Change>) -> Done<SessionId> {
        if let Some(id) = self.open.id {
            return Ok(id);
        }
        let id = self.store.new_session_id();
        if self.open.name.is_empty() {
            let wish = session_name(first);
            self.open.name = self.store.free_name(&wish).unwrap_or(wish);
        }
        changes.push(Change::CreateSession(NewSession {
            id,
            name: self.open.name.clone(),
            settings: self.settings_json(),
            head: None,
            forked_from: None,
        }));
        self.open.id = Some(id);
        self.lock_session(id)?;
        Ok(id)
    }

    /// Adds a message at the head, shows it, and waits until its text is safe.
    pub(super) fn add_message(&mut self, message: Message) -> Done {
        let named = self.open.name.is_empty();
        let save = self.put_new(message.clone())?;
        self.tell(Notice::Added(message));
        match named && !self.open.name.is_empty() {
            true => self.show_session(),
            false => self.show_tree(),
        }
        self.wait_until(PATIENCE, |p| p.texts >= save);
        Ok(())
    }

    /// Adds a message at the head without showing it: one of many.
    pub(super) fn add_quietly(&mut self, message: Message) -> Done {
        self.put_new(message).map(|_| ())
    }

    fn put_new(&mut self, message: Message) -> Done<u64> {
        let mut changes = Vec::new();
        if message.role == Role::System && self.open.id.is_none() {
            // Named after the first question, which comes right behind it.
            self.open.conversation.add(message);
            return Ok(0);
        }
        let fresh = self.open.id.is_none();
        let session = self.session_row(&message, &mut changes)?;
        if fresh {
            let earlier = self.open.conversation.path().into_iter().cloned();
            changes.extend(earlier.map(|m| Change::PutMessage { session, message: Box::new(m) }));
        }
        self.open.conversation.add(message.clone());
        let head = Some(message.id);
        changes.push(Change::PutMessage { session, message: Box::new(message) });
        changes.push(Change::MoveHead { session, head });
        Ok(self.change(changes))
    }

    /// Saves a message that grew or is complete.
    pub(super) fn amend(&mut self, message: &Message) {
        self.open.conversation.amend(message.clone());
        if let Some(session) = self.open.id {
            self.change(vec![Change::PutMessage { session, message: Box::new(message.clone()) }]);
        }
    }

    /// Moves the head of the open session. Texts of the new branch are read if they are not here.
    pub(super) fn move_head(&mut self, head: Option<MessageId>) {
        if head == self.open.conversation.head() {
            return;
        }
        if let Some(id) = head
            && let Ok(path) = self.store.path(id)
        {
            // Messages said in this run may be ahead of the disk; they are whole here.
            for m in path.into_iter().filter(|m| self.open.cut.remove(&m.id)) {
                self.open.conversation.amend(m);
            }
        }
        self.open.conversation.go(head);
        if let Some(session) = self.open.id {
            self.change(vec![Change::MoveHead { session, head }]);
        }
    }

    /// Remembers a typed prompt for the input's history.
    pub(super) fn remember_prompt(&mut self, text: &str) {
        self.change(vec![Change::Prompt(text.to_owned())]);
    }

    /// Records a segment and, with `image`, its state; `message` ends in it.
    pub(super) fn save_segment(&mut self, content: NewSegment, image: Option<StateImage>, message: Option<MessageId>) {
        let id = content.id();
        let mut changes = vec![Change::AddSegment(Box::new(content))];
        if let Some(message) = message {
            self.open.ends.insert(message, id);
            changes.push(Change::Link { message, segment: id });
        }
        self.save(Save { changes, images: image.map(|i| (id, i)).into_iter().collect() });
    }

    /// Says in the store that a message ends in a segment that is there already.
    pub(super) fn point(&mut self, message: MessageId, segment: SegmentId) {
        if self.open.ends.insert(message, segment) != Some(segment) {
            self.change(vec![Change::Link { message, segment }]);
        }
    }

    /// Gives a message a name.
    pub(super) fn save_mark(&mut self, name: &str, message: MessageId) {
        self.open.labels.retain(|_, label| label != name);
        self.open.labels.insert(message, name.to_owned());
        if let Some(session) = self.open.id {
            self.change(vec![Change::Mark { session, name: name.to_owned(), message }]);
        }
    }

    /// Keeps the session's settings.
    pub(super) fn save_settings(&mut self) {
        if let Some(session) = self.open.id {
            let json = self.settings_json();
            self.change(vec![Change::Settings { session, json }]);
        }
    }

    pub(super) fn settings_json(&self) -> String {
        serde_json::to_string(&self.open.settings).unwrap_or_else(|_| "{}".into())
    }

    /// Other changes, in one transaction.
    pub(super) fn save_changes(&mut self, changes: Vec<Change>) {
        let save = self.change(changes);
        self.wait_until(PATIENCE, |p| p.texts >= save);
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

    /// What the store can restore of a path; `None` when it does not know the end of it.
    pub(super) fn restorable(&self, tip: &SegmentId) -> Done<Option<RestorePlan>> {
        match self.store.plan_restore(tip) {
            Ok(plan) => Ok(Some(plan)),
            Err(StoreError::NoSegment { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes `path` live; rows of its first `have` segments stay where they are. False when the store found that its state
    /// is not usable after all, and has noted it: the next plan is another one.
    pub(super) fn put_back(&mut self, path: &Path, have: usize) -> Done<bool> {
        let keep = path.prefix(have).position();
        let Some(tip) = path.head() else {
            self.coming.clear();
            self.run_restore(path, keep, Vec::new(), None)?;
            return Ok(true);
        };
        let begun = Instant::now();
        let opened = self.store.open_path(&tip, have)?;
        let open_ms = begun.elapsed().as_secs_f64() * 1e3;
        if opened.plan.usable != path.segments().len() {
            return Ok(false);
        }
        let feeds = opened.rows.iter().cloned();
        let feeds = feeds.map(|rows| rows as Arc<dyn RowSource>).collect();
        self.coming.extend(opened.rows.iter().cloned());
        match self.run_restore(path, keep, feeds, opened.end) {
            Ok(restore_ms) => {
                let bytes = opened.plan.bytes();
                tracing::debug!(open_ms, restore_ms, bytes, "state put back");
                self.coming = opened.rows;
                Ok(true)
            }
            // Rows are checked as they are read: damage shows only now.
            Err(e) => match self.set_aside(e)? {
                DeskError::RowsLost(_) => Ok(false),
                e => Err(e),
            },
        }
    }

    /// After a failure: declares missing what was found damaged; the error then says that.
    pub(super) fn set_aside(&mut self, e: DeskError) -> Done<DeskError> {
        Ok(match e {
            DeskError::Engine(EngineFault::RowsLost(fault)) if self.store.note_fault(&fault)? => {
                DeskError::RowsLost(fault)
            }
            e => e,
        })
    }

    /// Sends the numbers.
    pub(super) fn report_meters(&mut self) {
        self.meters.context_used = self.live.position();
        let path = self.open.conversation.path();
        self.meters.checkpoints = path.iter().filter(|m| self.open.ends.contains_key(&m.id)).count() as u64;
        // A number for a meter: the old one will do where the new one cannot be had.
        self.meters.state_bytes = self.store.state_bytes().unwrap_or(self.meters.state_bytes);
        let meters: Meters = self.meters.clone();
        self.tell(Notice::Meters(meters));
    }

    /// The open tree as rows, with what is kept now.
    pub(super) fn timeline_rows(&self) -> Vec<TimelineRow> {
        let fingerprint = self.meters.model.fingerprint.as_str();
        let kept: std::collections::HashSet<MessageId> = match self.open.id {
            Some(id) => self
                .store
                .tree(id, fingerprint, 0)
                .map(|nodes| nodes.into_iter().filter(|n| n.kept).map(|n| n.message.id).collect())
                .unwrap_or_default(),
            None => Default::default(),
        };
        self.open.conversation.timeline(|id| kept.contains(&id), |id| self.open.labels.get(&id).cloned())
    }

    /// Saves what is left, gives the session free, and says how to come back; or that not all is saved, and why.
    pub(super) fn close_all(mut self, patience: Duration) -> (Option<String>, Option<Unsaved>) {
        let name = self.open.id.map(|_| std::mem::take(&mut self.open.name));
        let held = std::mem::take(&mut self.pending.held);
        if !held.is_empty() {
            self.writer.save(Save { changes: Vec::new(), images: held });
        }
        let saved = self.writer.close(Instant::now() + patience);
        drop(self.open.lock.take());
        match (name, saved) {
            _ if self.discard => (None, None),
            (None, Ok(())) => (None, None),
            (Some(name), Ok(())) => (Some(format!("Saved. Come back with: sala-chat -r {}", shell_word(&name))), None),
            (name, Err(e)) => {
                let what = name.map_or_else(|| "What was done".to_owned(), |name| format!("Not all of \"{name}\""));
                let unsaved = Unsaved { reason: e.reason.clone(), code: if e.disk { 74 } else { 7 } };
                (Some(format!("{what} could not be saved: {}", e.reason)), Some(unsaved))
            }
        }
    }
}

/// A name for a session from its first question or document: a few words, as one would type them.
fn session_name(first: &Message) -> String {
    let text = match &first.meta.document {
        Some(d) => d.name.rsplit_once('.').map_or(d.name.as_str(), |(stem, _)| stem),
        None => first.text.as_str(),
    };
    let mut name = String::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).take(5) {
        if name.chars().count() + word.chars().count() > 32 && !name.is_empty() {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.extend(word.to_lowercase().chars().take(32));
    }
    if name.is_empty() { "untitled".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::{DocumentInfo, MessageMeta};

    fn message(text: &str, document: Option<&str>) -> Message {
        let document = document.map(|name| DocumentInfo {
            name: name.into(),
            path: None,
            hash: String::new(),
            tokens: 0,
            lines: 0,
            complete: true,
        });
        Message {
            id: MessageId(1),
            parent: None,
            role: Role::User,
            text: text.into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { document, ..MessageMeta::default() },
        }
    }

    #[test]
    fn a_session_is_named_after_its_first_words() {
        assert_eq!(
            session_name(&message("Who tells Pierre that Prince Andrei is dying?", None)),
            "who-tells-pierre-that-prince"
        );
        assert_eq!(session_name(&message("x", Some("war.and peace.txt"))), "war-and-peace");
        assert_eq!(session_name(&message("?!", None)), "untitled");
        assert_eq!(session_name(&message("你好，世界", None)), "你好-世界");
    }
}
