//! Keeping state: the store of the server's own, its writer, and the rows that say which state is still of use.
//!
//! Each request that added state is a session of one message, whose link holds the path in the store; the session changed
//! longest ago goes first. The terminal's own store and list are another place.
//!
//! Requests are answered whatever the disk does. Where it takes nothing, or less than comes, so much waits for it in memory
//! ([`MOST_WAITING`], [`MOST_WAITING_BYTES`]); what comes beyond that is not kept.

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

/// Requests that are remembered, at most.
const REMEMBERED: usize = 2_000;
/// Requests between two looks at how many there are.
const TIDY_EVERY: u64 = 128;
/// Saves whose text is not on disk yet, at most; a request is two or more.
const MOST_WAITING: usize = 1_000;
/// Bytes of their texts and tokens, at most, but for those of the last one: each answer brings all turns before it.
const MOST_WAITING_BYTES: u64 = 256 << 20;
/// Answers that are known to have been left out, at most: many more than can be named without being on disk.
const MOST_LEFT_OUT: usize = 2_000;
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
    /// Saves whose text is neither on disk nor given up, oldest first, each with its bytes, and all their bytes.
    waiting: VecDeque<(u64, u64)>,
    waiting_bytes: u64,
    /// [`MOST_WAITING`] and [`MOST_WAITING_BYTES`].
    most_waiting: (usize, u64),
    /// Answers that were not handed over, oldest first: what builds on one cannot be kept either.
    left_out: VecDeque<MessageId>,
    /// Answers whose rows are on their way to disk, by their saves.
    rows: HashMap<u64, MessageId>,
    saves: u64,
    /// Forgets old requests.
    tidying: Option<JoinHandle<()>>,
    /// A failure was told.
    said: bool,
    /// It was told that not all is handed over.
    said_left_out: bool,
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
            said: false,
            said_left_out: false,
        })
    }

    /// Records a segment and its state.
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

    /// Whether too much waits for the disk for anything more to be handed over.
    fn is_full(&mut self) -> bool {
        let (most, most_bytes) = self.most_waiting;
        let full = self.waiting.len() >= most || self.waiting_bytes >= most_bytes;
        if full && !std::mem::replace(&mut self.said_left_out, true) {
            tracing::warn!(
                "{} saves of {} wait for the disk: until it has taken them, answers and their state are not kept",
                self.waiting.len(),
                bytes(self.waiting_bytes)
            );
        }
        full
    }

    /// Holds the path that ends in `tip` in the store, for an answer or for its state alone; an answer whose state is not kept has none.
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
            // Without a thread it is done at the end.
            self.tidying = std::thread::Builder::new().name("tidy".into()).spawn(move || tidy(&store)).ok();
        }
    }

    /// What the writer said; the answer whose row is on disk from now on, if it was about one.
    pub(super) fn on_event(&mut self, event: SaveEvent) -> Option<MessageId> {
        match event {
            SaveEvent::Named { .. } => None,
            SaveEvent::Text { id } => {
                self.settle(id);
                None
            }
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

    /// The texts up to this save are on disk, or will never be.
    fn settle(&mut self, save: u64) {
        while let Some((id, bytes)) = self.waiting.front().copied()
            && id <= save
        {
            self.waiting.pop_front();
            self.waiting_bytes -= bytes;
        }
        let (most, most_bytes) = self.most_waiting;
        if self.waiting.len() <= most / 2 && self.waiting_bytes <= most_bytes / 2 {
            self.said_left_out = false;
        }
    }

    /// Its state or its row is on disk, or will never be; whose row it is.
    fn written(&mut self, save: u64) -> Option<MessageId> {
        self.settle(save);
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
    /// Texts that are not on disk.
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
        if let Some(why) = self.writer.close(until)? {
            tracing::warn!("not all state of requests is kept: {why}");
        }
        Ok(())
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
            asked: serde_json::json!({}),
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
        assert_eq!((keep.waiting.len(), keep.left_out.len(), keep.said_left_out), (3, 2, true));

        // The disk is back: it takes what waited, and what comes then but for what builds on something that it never had.
        std::fs::rename(&away, &root).unwrap();
        keep.writer.save(Save::default());
        while !keep.waiting.is_empty() {
            let event = keep.events.recv_timeout(Duration::from_secs(20)).unwrap();
            keep.on_event(event);
        }
        // The next time that it takes nothing is told as well.
        assert_eq!((keep.waiting_bytes, keep.said_left_out), (0, false));
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
        // Numbers are taken while there is a database to take them from.
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
