//! Keeping state: the server's own store, its writer, and the rows that list the state in use.
//!
//! Each request that added state is a session of one message; the message's link holds the path in the store. The
//! session with the oldest change is evicted first. The terminal has its own store and list.
//!
//! The server answers requests even when the disk fails. If the disk is slow or full, saves wait in memory up to a
//! limit ([`MOST_WAITING`], [`MOST_WAITING_BYTES`]); beyond it nothing is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::fresh::{Fresh, FreshState};
use super::records::{Record, Records};
use crate::core::transcript::{Message, MessageId, MessageMeta, Role};
use crate::core::{bytes, now_ms};
use crate::engine::protocol::{StateImage, Token};
use crate::store::{
    Change, NewSegment, NewSession, Save, SaveEvent, SegmentId, SessionFilter, Store, StoreError, Unsaved, Writer,
};

/// Maximum of remembered requests.
const REMEMBERED: usize = 2_000;
/// Requests between two evictions.
const TIDY_EVERY: u64 = 128;
/// Maximum of saves with a text that is not on disk yet; a request makes at least two.
const MOST_WAITING: usize = 1_000;
/// Maximum bytes of their texts and tokens, without those of the last one: each answer repeats all turns before it.
const MOST_WAITING_BYTES: u64 = 256 << 20;
/// Maximum of dropped answers in the list: far more than clients can name before they are on disk.
const MOST_LEFT_OUT: usize = 2_000;
/// How long shutdown waits for the writer.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Keep {
    pub store: Arc<Store>,
    writer: Writer,
    pub events: Receiver<SaveEvent>,
    pub fresh: Fresh,
    pending: HashMap<u64, SegmentId>,
    /// Saves with a pending text, oldest first, each with its bytes; then the sum of the bytes.
    waiting: VecDeque<(u64, u64)>,
    waiting_bytes: u64,
    most_waiting: (usize, u64),
    /// Answers dropped because the disk was too slow, oldest first: an answer on top of one cannot be kept either.
    left_out: VecDeque<MessageId>,
    /// Answers with a row on its way to disk, by save.
    rows: HashMap<u64, MessageId>,
    saves: u64,
    tidying: Option<JoinHandle<()>>,
    /// A failure is in the log already.
    warned: bool,
    /// The log already reports dropped saves.
    warned_left_out: bool,
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
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            most_waiting: (MOST_WAITING, MOST_WAITING_BYTES),
            left_out: VecDeque::new(),
            rows: HashMap::new(),
            saves: 0,
            tidying: None,
            warned: false,
            warned_left_out: false,
        })
    }

    pub(super) fn segment(&mut self, content: NewSegment, image: Option<StateImage>) {
        if self.is_full() {
            return;
        }
        let segment = content.id();
        if let Some(image) = &image {
            let most = self.store.limits().max_pending_bytes;
            self.fresh.add(FreshState { content: content.clone(), image: image.clone() }, most);
        }
        let images = image.map(|image| (segment, image)).into_iter().collect();
        let bytes = content.tokens() * size_of::<Token>() as u64;
        let id = self.hand_over(Save { changes: vec![Change::AddSegment(Box::new(content))], images }, bytes);
        self.pending.insert(id, segment);
    }

    fn hand_over(&mut self, save: Save, bytes: u64) -> u64 {
        let id = self.writer.save(save);
        self.waiting.push_back((id, bytes));
        self.waiting_bytes += bytes;
        id
    }

    fn is_full(&mut self) -> bool {
        let (most, most_bytes) = self.most_waiting;
        let full = self.waiting.len() >= most || self.waiting_bytes >= most_bytes;
        if full && !std::mem::replace(&mut self.warned_left_out, true) {
            tracing::warn!(
                "{} saves of {} wait for the disk: until it has taken them, answers and their state are not kept",
                self.waiting.len(),
                bytes(self.waiting_bytes)
            );
        }
        full
    }

    /// Stores a row that holds the path up to `tip`, for an answer or for its state alone; `None`: the answer has no
    /// kept state.
    pub(super) fn hold(&mut self, tip: Option<SegmentId>, record: Option<&Record>) {
        let on_nothing = record.and_then(|r| r.parent).is_some_and(|parent| self.left_out.contains(&parent));
        if on_nothing || self.is_full() {
            self.left_out.extend(record.map(|r| r.message));
            if self.left_out.len() > MOST_LEFT_OUT {
                self.left_out.pop_front();
            }
            return;
        }
        let message = record.map_or_else(|| self.store.new_message_id(None), |r| r.message);
        let session = self.store.new_session_id();
        let created_ms = now_ms();
        let text = record.map(Record::row).unwrap_or_default();
        let bytes = text.len() as u64;
        let row = Message {
            id: message,
            parent: record.and_then(|r| r.parent),
            role: Role::Assistant,
            text,
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
        let save = self.hand_over(Save { changes, images: Vec::new() }, bytes);
        if record.is_some() {
            self.rows.insert(save, message);
        }
        self.saves += 1;
        if self.saves.is_multiple_of(TIDY_EVERY) && self.tidying.as_ref().is_none_or(JoinHandle::is_finished) {
            let store = Arc::clone(&self.store);
            // If no thread starts, the eviction happens at the end.
            self.tidying = std::thread::Builder::new().name("tidy".into()).spawn(move || tidy(&store)).ok();
        }
    }

    /// Handles an event of the writer; returns the answer if its row is now on disk.
    pub(super) fn on_event(&mut self, event: SaveEvent) -> Option<MessageId> {
        match event {
            SaveEvent::Named { .. } => None,
            SaveEvent::Text { id } => {
                self.settle(id);
                None
            }
            SaveEvent::Saved { id, .. } => self.written(id),
            // The writer retries; until then the state is in memory.
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
                self.warned = false;
                None
            }
        }
    }

    /// The texts up to this save are on disk, or given up.
    fn settle(&mut self, save: u64) {
        while let Some((id, bytes)) = self.waiting.front().copied()
            && id <= save
        {
            self.waiting.pop_front();
            self.waiting_bytes -= bytes;
        }
        let (most, most_bytes) = self.most_waiting;
        if self.waiting.len() <= most / 2 && self.waiting_bytes <= most_bytes / 2 {
            self.warned_left_out = false;
        }
    }

    /// The save's state or row is on disk, or given up; returns the answer of the row.
    fn written(&mut self, save: u64) -> Option<MessageId> {
        self.settle(save);
        if let Some(segment) = self.pending.remove(&save) {
            self.fresh.remove(&segment);
        }
        self.rows.remove(&save)
    }

    fn warn(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("state of requests is not kept: {reason}");
        }
    }

    /// Writes the remaining saves, and evicts old requests.
    ///
    /// # Errors
    /// Some texts are not on disk.
    pub(super) fn close(mut self, records: &Records) -> Result<(), Unsaved> {
        if let Some(tidying) = self.tidying.take() {
            // The thread has no result; its panic is already printed.
            let _ = tidying.join();
        }
        let until = Instant::now() + PATIENCE;
        // Evict only after the writes: a pending save may build on an old request.
        if self.writer.flush(until) {
            records.forget();
            tidy(&self.store);
        }
        if let Some(why) = self.writer.close(until)? {
            tracing::warn!("not all state of requests is kept: {why}");
        }
        Ok(())
    }
}

/// Evicts the requests beyond the maximum.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::response::Sent;
    use crate::store::{Limits, RealDisk};

    fn record(message: MessageId, parent: Option<MessageId>) -> Record {
        let sent = Sent {
            id: Records::id(message),
            created: 7,
            completed: Arc::default(),
            model: "m".into(),
            repeated: serde_json::json!({}),
            thoughts_id: "rs".into(),
            message_id: "msg".into(),
            tools: Arc::default(),
        };
        Record::new(message, parent, Vec::new(), sent)
    }

    #[test]
    fn a_disk_that_takes_nothing_has_so_much_to_wait_for_it_and_the_rest_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (root, away) = (dir.path().join("data"), dir.path().join("away"));
        let limits = Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
        let open = || Arc::new(Store::open(&root, Arc::new(RealDisk), limits.clone()).unwrap());
        let store = open();
        let ids: Vec<MessageId> = (0..6).map(|_| store.new_message_id(None)).collect();
        let mut keep = Keep::new(Arc::clone(&store)).unwrap();
        keep.most_waiting.0 = 3;
        std::fs::rename(&root, &away).unwrap();
        for id in &ids[..5] {
            keep.hold(None, Some(&record(*id, None)));
        }
        assert_eq!((keep.waiting.len(), keep.left_out.len(), keep.warned_left_out), (3, 2, true));

        // The disk is back: it takes the waiting saves and new ones, except those that build on a dropped one.
        std::fs::rename(&away, &root).unwrap();
        keep.writer.save(Save::default());
        while !keep.waiting.is_empty() {
            let event = keep.events.recv_timeout(Duration::from_secs(20)).unwrap();
            keep.on_event(event);
        }
        // The next failure is reported again.
        assert_eq!((keep.waiting_bytes, keep.warned_left_out), (0, false));
        keep.hold(None, Some(&record(ids[5], Some(ids[4]))));
        assert!(keep.left_out.contains(&ids[5]));
        keep.hold(None, None);
        keep.close(&Records::new(Arc::clone(&store))).unwrap();
        drop(store);
        let store = open();
        let kept: Vec<bool> = ids.iter().map(|id| store.message(*id).is_ok()).collect();
        assert_eq!(kept, [true, true, true, false, false, false]);
        assert_eq!(store.sessions(SessionFilter::Live, usize::MAX).unwrap().len(), 4);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_as_well_and_what_was_left_out_is_known_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (root, away) = (dir.path().join("data"), dir.path().join("away"));
        let limits = Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
        let store = Arc::new(Store::open(&root, Arc::new(RealDisk), limits).unwrap());
        let mut keep = Keep::new(Arc::clone(&store)).unwrap();
        let answer = |keep: &mut Keep| keep.hold(None, Some(&record(store.new_message_id(None), None)));
        keep.most_waiting.1 = 1;
        // Numbers need a database, so take them before it fails.
        store.new_message_id(None);
        std::fs::rename(&root, &away).unwrap();
        answer(&mut keep);
        assert!(keep.waiting_bytes > 1 && keep.left_out.is_empty());
        for _ in 0..MOST_LEFT_OUT + 9 {
            answer(&mut keep);
        }
        assert_eq!((keep.waiting.len(), keep.left_out.len()), (1, MOST_LEFT_OUT));
        std::fs::rename(&away, &root).unwrap();
    }
}
