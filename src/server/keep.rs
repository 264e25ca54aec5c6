//! Keeping state: the server's own store, its writer, and the rows that list the state in use.
//!
//! Each request that added state is a session of one message; the message's link holds the path in the store. The
//! session with the oldest change is evicted first. The terminal has its own store and list.
//!
//! The server answers requests even when the disk fails. If the disk is slow or full, saves wait in memory up to a
//! limit ([`MOST_WAITING`], [`MOST_WAITING_BYTES`]); beyond it nothing is kept. A damaged store is moved aside.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::{Record, Shared};
use crate::core::transcript::{Message, MessageId, MessageMeta, Role};
use crate::core::{bytes, now_ms};
use crate::engine::protocol::{StateImage, Token};
use crate::store::{
    Access, Change, Limits, NewSegment, NewSession, RealDisk, Save, SaveEvent, SegmentId, SessionFilter, Store,
    StoreError, TextBoundary, Unsaved, Writer, ending_in,
};

const REMEMBERED: usize = 2_000;
const TIDY_EVERY: u64 = 128;
/// Maximum of saves with a text that is not on disk yet; a request makes at least two.
const MOST_WAITING: usize = 1_000;
/// Maximum bytes of their texts and tokens, without those of the last one: each answer repeats all turns before it.
const MOST_WAITING_BYTES: u64 = 256 << 20;
/// Maximum of dropped answers in the list: far more than clients can name before they are on disk.
const MOST_LEFT_OUT: usize = 2_000;
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Keep {
    store: Arc<Store>,
    pub writer: Arc<Writer>,
    pub events: Receiver<SaveEvent>,
    pub fresh: Fresh,
    pending: HashMap<u64, SegmentId>,
    /// Bytes of the saves with a pending text.
    waiting: BTreeMap<u64, u64>,
    most_waiting: (usize, u64),
    /// Answers dropped because the disk was too slow, oldest first: an answer on top of one cannot be kept either.
    left_out: VecDeque<MessageId>,
    saves: u64,
    tidying: Option<JoinHandle<()>>,
    warned: bool,
    warned_left_out: bool,
}

impl Keep {
    pub(super) fn new(store: Arc<Store>) -> std::io::Result<Keep> {
        let (to, events) = crossbeam_channel::unbounded();
        let writer = Arc::new(Writer::start(Arc::clone(&store), to)?);
        Ok(Keep {
            store,
            writer,
            events,
            fresh: Fresh::default(),
            pending: HashMap::new(),
            waiting: BTreeMap::new(),
            most_waiting: (MOST_WAITING, MOST_WAITING_BYTES),
            left_out: VecDeque::new(),
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
            let most = self.store.limits.max_pending_bytes;
            self.fresh.add(FreshState { content: content.clone(), image: image.clone() }, most);
        }
        let images = image.map(|image| (segment, image)).into_iter().collect();
        let bytes = content.tokens() * size_of::<Token>() as u64;
        let id = self.hand_over(Save { changes: vec![Change::AddSegment(Box::new(content))], images }, bytes);
        self.pending.insert(id, segment);
    }

    fn hand_over(&mut self, save: Save, bytes: u64) -> u64 {
        let id = self.writer.save(save);
        self.waiting.insert(id, bytes);
        id
    }

    fn waiting_bytes(&self) -> u64 {
        self.waiting.values().sum()
    }

    fn is_full(&mut self) -> bool {
        let (most, most_bytes) = self.most_waiting;
        let full = self.waiting.len() >= most || self.waiting_bytes() >= most_bytes;
        if full && !std::mem::replace(&mut self.warned_left_out, true) {
            tracing::warn!(
                "{} saves of {} wait for the disk: until it has taken them, answers and their state are not kept",
                self.waiting.len(),
                bytes(self.waiting_bytes())
            );
        }
        full
    }

    /// Stores a row that holds the path up to `tip` (`None`: no state is kept), for an answer or for its state alone.
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
        self.hand_over(Save { changes, images: Vec::new() }, bytes);
        self.saves += 1;
        if self.saves.is_multiple_of(TIDY_EVERY) && self.tidying.as_ref().is_none_or(JoinHandle::is_finished) {
            let store = Arc::clone(&self.store);
            // If no thread starts, the eviction happens at the end.
            self.tidying = std::thread::Builder::new().name("tidy".into()).spawn(move || tidy(&store)).ok();
        }
    }

    pub(super) fn on_event(&mut self, event: SaveEvent) {
        match event {
            SaveEvent::Named { .. } => {}
            SaveEvent::Text { id } => self.settle(id),
            // The writer retries; until then the state is in memory.
            SaveEvent::NotSaved { lasting: false, reason, .. } => self.warn(&reason),
            SaveEvent::Saved { id, .. } => self.written(id),
            SaveEvent::TextOnly { id, reason, .. } | SaveEvent::NotSaved { id, reason, .. } => {
                self.written(id);
                self.warn(&reason);
            }
            SaveEvent::Recovered => self.warned = false,
        }
    }

    fn settle(&mut self, save: u64) {
        self.waiting = self.waiting.split_off(&(save + 1));
        let (most, most_bytes) = self.most_waiting;
        if self.waiting.len() <= most / 2 && self.waiting_bytes() <= most_bytes / 2 {
            self.warned_left_out = false;
        }
    }

    /// The save's state or row is on disk, or given up.
    fn written(&mut self, save: u64) {
        self.settle(save);
        if let Some(segment) = self.pending.remove(&save) {
            self.fresh.remove(&segment);
        }
    }

    fn warn(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("state of requests is not kept: {reason}");
        }
    }

    pub(super) fn close(self) -> Result<(), Unsaved> {
        if let Some(tidying) = self.tidying {
            // The thread has no result; its panic is already printed.
            let _ = tidying.join();
        }
        let until = Instant::now() + PATIENCE;
        // Evict only after the writes: a pending save may build on an old request.
        if self.writer.flush(until) {
            tidy(&self.store);
        }
        // A request that is deleting an answer this moment holds the writer, which then ends by itself.
        let closed = Arc::into_inner(self.writer).map_or(Ok(None), |writer| writer.close(until));
        if let Some(why) = closed? {
            tracing::warn!("not all state of requests is kept: {why}");
        }
        Ok(())
    }
}

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

/// A segment and its state from the engine. Shares its bytes with the writer.
pub(super) struct FreshState {
    pub content: NewSegment,
    pub image: StateImage,
}

/// Pending writes, by segment. Cheap to clone: a clone is a snapshot.
#[derive(Clone, Default)]
pub(super) struct Fresh {
    states: Arc<HashMap<SegmentId, Arc<FreshState>>>,
}

impl Fresh {
    /// Adds a state, unless the sum would exceed `most` bytes: a hanging disk must not fill the memory.
    pub(super) fn add(&mut self, state: FreshState, most: u64) {
        if self.bytes() + state.image.bytes() <= most {
            Arc::make_mut(&mut self.states).insert(state.content.id(), Arc::new(state));
        }
    }

    fn bytes(&self) -> u64 {
        self.states.values().map(|state| state.image.bytes()).sum()
    }

    pub(super) fn remove(&mut self, id: &SegmentId) {
        Arc::make_mut(&mut self.states).remove(id);
    }

    /// Segments with a state that ends in `text` before its last byte, and a recorded text that matches `text` up to
    /// there; the deepest first.
    pub(super) fn under(&self, fingerprint: &str, text: &str) -> Vec<SegmentId> {
        let has_end = |s: &FreshState| s.image.end.is_some() && s.content.fingerprint == fingerprint;
        let ends = self.states.iter().filter(|(_, s)| has_end(s)).map(|(id, s)| (s.content.boundary, *id));
        let mut ends: Vec<(TextBoundary, SegmentId)> = ends.collect();
        ends.sort_unstable_by_key(|(boundary, _)| boundary.bytes);
        ending_in(text, ends)
    }

    /// The states up to and with that of `tip`, root first, as far as they are in memory, and the segment on disk that
    /// they follow.
    pub(super) fn path(&self, tip: SegmentId) -> (Option<SegmentId>, Vec<Arc<FreshState>>) {
        let (mut next, mut path) = (Some(tip), Vec::new());
        while let Some(state) = next.and_then(|id| self.states.get(&id)) {
            next = state.content.parent;
            path.push(Arc::clone(state));
        }
        path.reverse();
        (next, path)
    }
}

/// Opens the store of requests. A damaged one is moved aside and a new one takes its place, with a notice for the
/// user. Fails if the folder is not ours, the disk fails, or the damaged store cannot be moved.
pub fn open_cache(folder: &Path, limits: &Limits) -> Result<(Arc<Store>, Option<String>), StoreError> {
    let open = || Store::open(folder, Arc::new(RealDisk), limits.clone()).map(Arc::new);
    let why = match open() {
        Ok(store) => match (&store.access, store.damage().filter(|why| why.contains("is damaged"))) {
            (_, Some(why)) => why,
            (Access::ReadOnly { why }, None) if store.broken => why.clone(),
            _ => return Ok((store, None)),
        },
        Err(e) if e.is_full() || !is_ours(folder) => return Err(e),
        Err(e) => e.to_string(),
    };
    let place = set_aside(folder)?;
    let moved = format!(
        "Kept state of requests was damaged ({why}) and is now in {}; answers go on without it.",
        place.display()
    );
    Ok((open()?, Some(moved)))
}

fn is_ours(folder: &Path) -> bool {
    ["sala.db", "sala-chat.id"].iter().any(|name| folder.join(name).symlink_metadata().is_ok())
}

fn set_aside(folder: &Path) -> Result<PathBuf, StoreError> {
    let mut place = folder.as_os_str().to_owned();
    place.push(format!(".damaged-{}", now_ms()));
    std::fs::rename(folder, &place).map_err(StoreError::io("move aside", folder))?;
    Ok(place.into())
}

/// Damage in the store of requests never keeps a request from its answer.
impl Shared {
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Handles a failed lookup: a damaged store is moved aside and stays unused until the next start.
    pub(super) fn lookup_failed(&self, e: &StoreError) {
        if e.damage().is_none() {
            tracing::warn!("kept state of requests cannot be looked up: {e}");
            return;
        }
        if self.damaged.swap(true, Ordering::Relaxed) {
            return;
        }
        let moved = match set_aside(self.options.store.root()) {
            Ok(place) => format!("it was moved to {}", place.display()),
            Err(io) => format!("it cannot be moved aside: {io}"),
        };
        tracing::warn!("kept state of requests is damaged ({e}): {moved}; nothing is kept until the next start");
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
