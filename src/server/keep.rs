//! Keeping state: the store of the server's own, its writer, and the rows that say which state is still of use.
//!
//! Each request that added state is a session of one message, whose link holds the path in the store; the session changed
//! longest ago goes first. The terminal's own store and list are another place.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::Receiver;

use super::records::Record;
use crate::protocol::engine::StateImage;
use crate::session::{
    Change, NewSegment, NewSession, Save, SaveEvent, SegmentId, SessionFilter, Store, StoreError, Unsaved, Writer,
};
use crate::transcript::{Message, MessageMeta, Role};

/// Requests that are remembered, at most.
const REMEMBERED: usize = 2_000;
/// Requests between two looks at how many there are.
const TIDY_EVERY: u64 = 128;
/// How long a request waits for state that is being written and that it may want.
const PATIENCE: Duration = Duration::from_secs(20);

/// The store and its writer.
#[derive(Debug)]
pub(super) struct Keep {
    pub store: Arc<Store>,
    writer: Writer,
    pub events: Receiver<SaveEvent>,
    /// Saves whose state is not on disk yet.
    pending: HashSet<u64>,
    saves: u64,
    /// A failure was told.
    said: bool,
}

impl Keep {
    pub(super) fn new(store: Arc<Store>) -> std::io::Result<Keep> {
        let (to, events) = crossbeam_channel::unbounded();
        let writer = Writer::start(Arc::clone(&store), to)?;
        Ok(Keep { store, writer, events, pending: HashSet::new(), saves: 0, said: false })
    }

    /// Records a segment and its state.
    pub(super) fn segment(&mut self, content: NewSegment, image: Option<StateImage>) {
        let images = image.map(|image| (content.id(), image)).into_iter().collect();
        let id = self.writer.save(Save { changes: vec![Change::AddSegment(Box::new(content))], images });
        self.pending.insert(id);
    }

    /// Holds the path that ends in `tip` in the store, for an answer or for its state alone.
    pub(super) fn hold(&mut self, tip: SegmentId, record: Option<&Record>) {
        let message = record.map_or_else(|| self.store.new_message_id(), |r| r.message);
        let session = self.store.new_session_id();
        let created_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
        let row = Message {
            id: message,
            parent: record.and_then(|r| r.parent),
            role: Role::Assistant,
            // Turns are plain data: they are always JSON.
            text: record.and_then(|r| serde_json::to_string(&r.turns).ok()).unwrap_or_default(),
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
        let changes = vec![
            Change::CreateSession(new),
            Change::PutMessage { session, message: Box::new(row) },
            Change::MoveHead { session, head: Some(message) },
            Change::Link { message, segment: tip },
        ];
        self.pending.insert(self.writer.save(Save { changes, images: Vec::new() }));
        self.saves += 1;
        if self.saves.is_multiple_of(TIDY_EVERY) {
            self.tidy();
        }
    }

    /// Forgets the requests that are too many.
    pub(super) fn tidy(&mut self) {
        let forget = || -> Result<(), StoreError> {
            for old in self.store.sessions(SessionFilter::Live, usize::MAX)?.iter().skip(REMEMBERED) {
                self.store.delete(old.id)?;
            }
            self.store.empty_trash(Some(0)).map(drop)
        };
        if let Err(e) = forget() {
            tracing::warn!("old requests are not forgotten: {e}");
        }
    }

    /// What the writer said.
    pub(super) fn on_event(&mut self, event: SaveEvent) {
        match event {
            SaveEvent::Text { .. } => {}
            SaveEvent::Saved { id, .. } => drop(self.pending.remove(&id)),
            SaveEvent::TextOnly { id, reason, .. } | SaveEvent::NotSaved { id, reason, .. } => {
                self.pending.remove(&id);
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!("state of requests is not kept: {reason}");
                }
            }
            SaveEvent::Recovered => self.said = false,
        }
    }

    /// Waits for what is being written.
    pub(super) fn settle(&mut self) {
        if !self.pending.is_empty() {
            self.writer.flush(Instant::now() + PATIENCE);
            while let Ok(event) = self.events.try_recv() {
                self.on_event(event);
            }
        }
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// What is not on disk.
    pub(super) fn close(mut self) -> Result<(), Unsaved> {
        self.tidy();
        self.writer.close(Instant::now() + PATIENCE)
    }
}
