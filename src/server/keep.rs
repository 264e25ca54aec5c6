//! Keeping state: the store of the server's own, its writer, and the rows that say which state is still of use.
//!
//! Each request that added state is a session of one message, whose link holds the path in the store; the session changed
//! longest ago goes first. The terminal's own store and list are another place.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::fresh::{Fresh, FreshState};
use super::records::{Record, Records};
use crate::base::now_ms;
use crate::protocol::engine::StateImage;
use crate::session::{
    Change, NewSegment, NewSession, Save, SaveEvent, SegmentId, SessionFilter, Store, StoreError, Unsaved, Writer,
};
use crate::transcript::{Message, MessageId, MessageMeta, Role};

/// Requests that are remembered, at most.
const REMEMBERED: usize = 2_000;
/// Requests between two looks at how many there are.
const TIDY_EVERY: u64 = 128;
/// How long the end waits for what is being written.
const PATIENCE: Duration = Duration::from_secs(20);

/// The store and its writer.
#[derive(Debug)]
pub(super) struct Keep {
    pub store: Arc<Store>,
    writer: Writer,
    pub events: Receiver<SaveEvent>,
    /// What is on its way to disk, and with which save.
    pub fresh: Fresh,
    pending: HashMap<u64, SegmentId>,
    /// Answers whose rows are on their way to disk, by their saves.
    rows: HashMap<u64, MessageId>,
    saves: u64,
    /// Forgets old requests.
    tidying: Option<JoinHandle<()>>,
    /// A failure was told.
    said: bool,
}

impl Keep {
    pub(super) fn new(store: Arc<Store>) -> std::io::Result<Keep> {
        let (to, events) = crossbeam_channel::unbounded();
        let writer = Writer::start(Arc::clone(&store), to)?;
        Ok(Keep {
            store,
            writer,
            events,
            fresh: Fresh::default(),
            pending: HashMap::new(),
            rows: HashMap::new(),
            saves: 0,
            tidying: None,
            said: false,
        })
    }

    /// Records a segment and its state.
    pub(super) fn segment(&mut self, content: NewSegment, image: Option<StateImage>) {
        let segment = content.id();
        if let Some(image) = &image {
            let most = self.store.limits().max_pending_bytes;
            self.fresh.add(FreshState { content: content.clone(), image: image.clone() }, most);
        }
        let images = image.map(|image| (segment, image)).into_iter().collect();
        let id = self.writer.save(Save { changes: vec![Change::AddSegment(Box::new(content))], images });
        self.pending.insert(id, segment);
    }

    /// Holds the path that ends in `tip` in the store, for an answer or for its state alone; an answer whose state is not kept has none.
    pub(super) fn hold(&mut self, tip: Option<SegmentId>, record: Option<&Record>) {
        let message = record.map_or_else(|| self.store.new_message_id(None), |r| r.message);
        let session = self.store.new_session_id();
        let created_ms = now_ms();
        let row = Message {
            id: message,
            parent: record.and_then(|r| r.parent),
            role: Role::Assistant,
            text: record.map(Record::row).unwrap_or_default(),
            thinking: String::new(),
            created_ms,
            meta: MessageMeta::default(),
        };
        let new = NewSession {
            id: session,
            name: format!("request {}", session.0),
            settings: "{}".into(),
            head: None,
            forked_from: None,
        };
        let mut changes = vec![
            Change::CreateSession(new),
            Change::PutMessage { session, message: Box::new(row) },
            Change::MoveHead { session, head: Some(message) },
        ];
        changes.extend(tip.map(|segment| Change::Link { message, segment }));
        let save = self.writer.save(Save { changes, images: Vec::new() });
        if record.is_some() {
            self.rows.insert(save, message);
        }
        self.saves += 1;
        if self.saves.is_multiple_of(TIDY_EVERY) && self.tidying.as_ref().is_none_or(JoinHandle::is_finished) {
            let store = Arc::clone(&self.store);
            // Without a thread it is done at the end.
            self.tidying = std::thread::Builder::new().name("tidy".into()).spawn(move || tidy(&store)).ok();
        }
    }

    /// What the writer said; the answer whose row is on disk from now on, if it was about one.
    pub(super) fn on_event(&mut self, event: SaveEvent) -> Option<MessageId> {
        match event {
            SaveEvent::Named { .. } | SaveEvent::Text { .. } => None,
            SaveEvent::Saved { id, .. } => self.written(id),
            // It is tried again: until then it is had from memory.
            SaveEvent::NotSaved { lasting: false, reason, .. } => {
                self.warn(&reason);
                None
            }
            SaveEvent::TextOnly { id, reason, .. } | SaveEvent::NotSaved { id, reason, .. } => {
                let row = self.written(id);
                self.warn(&reason);
                row
            }
            SaveEvent::Recovered => {
                self.said = false;
                None
            }
        }
    }

    /// Its state or its row is on disk, or will never be; whose row it is.
    fn written(&mut self, save: u64) -> Option<MessageId> {
        if let Some(segment) = self.pending.remove(&save) {
            self.fresh.remove(&segment);
        }
        self.rows.remove(&save)
    }

    fn warn(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!("state of requests is not kept: {reason}");
        }
    }

    /// Writes what is left, and forgets what is to be forgotten.
    ///
    /// # Errors
    /// What is not on disk.
    pub(super) fn close(mut self, records: &Records) -> Result<(), Unsaved> {
        if let Some(tidying) = self.tidying.take() {
            // It has no result; a panic of it was printed.
            let _ = tidying.join();
        }
        let until = Instant::now() + PATIENCE;
        // What is about to be written may build on what would be forgotten.
        if self.writer.flush(until) {
            records.forget();
            tidy(&self.store);
        }
        self.writer.close(until)
    }
}

/// Forgets the requests that are too many.
fn tidy(store: &Store) {
    let forget = || -> Result<(), StoreError> {
        for old in store.sessions(SessionFilter::Live, usize::MAX)?.iter().skip(REMEMBERED) {
            store.delete(old.id)?;
        }
        store.empty_trash(Some(0)).map(drop)
    };
    if let Err(e) = forget() {
        tracing::warn!("old requests are not forgotten: {e}");
    }
}
