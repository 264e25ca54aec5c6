//! Conversations with made-up state for the tests of the store.
#![allow(dead_code)]

pub mod fault;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use sala_chat::core::transcript::{Message, MessageId, MessageMeta, Role, SessionId};
use sala_chat::engine::protocol::{
    CheckpointImage, Dtype, ImageTensor, RowSource, RowsFault, RowsImage, StateImage, Token,
};
use sala_chat::store::{
    Change, Disk, Limits, NewSegment, NewSession, RestorePlan, Save, SaveEvent, Segment, SegmentId, SegmentKind, Store,
    StoreError, StoredRows, TextBoundary, Writer,
};

pub const MODEL: &str = "model-a";

pub fn limits() -> Limits {
    Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() }
}

pub fn open(root: &Path, disk: impl Disk + 'static) -> Store {
    Store::open(root, Arc::new(disk), limits()).unwrap()
}

pub fn message(store: &Store, parent: Option<MessageId>, role: Role, text: &str) -> Message {
    Message {
        id: store.new_message_id(None),
        parent,
        role,
        text: text.into(),
        thinking: String::new(),
        created_ms: 1_700_000_000_000,
        meta: MessageMeta::default(),
    }
}

/// Bytes that only this segment, tensor and length have.
fn noise(id: &SegmentId, name: &str, bytes: usize) -> Arc<Vec<u8>> {
    let mut hash = blake3::Hasher::new();
    hash.update(&id.0).update(name.as_bytes());
    let mut data = vec![0; bytes];
    hash.finalize_xof().fill(&mut data);
    // As numbers, bf16 and f32 alike: no exponent of all ones.
    data.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbf);
    Arc::new(data)
}

/// The state a model would leave at the end of `segment`.
pub fn image(segment: &NewSegment) -> StateImage {
    let id = segment.id();
    let rows = segment.prompt.len() + segment.completion.len();
    let tensor = |name: &str, dtype: Dtype, shape: Vec<usize>| {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        ImageTensor { name: name.into(), dtype, shape, data: noise(&id, name, bytes).into() }
    };
    StateImage {
        rows: RowsImage {
            start: segment.start,
            rows: rows as u64,
            tensors: vec![
                tensor("k.0", Dtype::Bf16, vec![rows, 1, 8]),
                tensor("v.0", Dtype::Bf16, vec![rows, 1, 8]),
                tensor("k1.0", Dtype::Bf16, vec![rows / 16, 1, 8]),
                tensor("k2.0", Dtype::Bf16, vec![rows / 64, 1, 8]),
            ],
            segment: None,
        },
        end: Some(CheckpointImage {
            position: segment.start + rows as u64,
            tensors: vec![tensor("state.0", Dtype::F32, vec![2, 8, 8]), tensor("draft.window", Dtype::F32, vec![3, 8])],
        }),
    }
}

pub fn same_rows(a: &RowsImage, b: &RowsImage) -> bool {
    (a.start, a.rows) == (b.start, b.rows) && same_tensors(&a.tensors, &b.tensors)
}

pub fn same_end(a: &CheckpointImage, b: &CheckpointImage) -> bool {
    a.position == b.position && same_tensors(&a.tensors, &b.tensors)
}

/// Same tensors, whatever their order.
fn same_tensors(a: &[ImageTensor], b: &[ImageTensor]) -> bool {
    let key = |t: &ImageTensor| (t.name.clone(), t.dtype, t.shape.clone(), t.data.clone());
    let sorted = |tensors: &[ImageTensor]| {
        let mut all: Vec<_> = tensors.iter().map(key).collect();
        all.sort_by(|x, y| x.0.cmp(&y.0));
        all
    };
    sorted(a) == sorted(b)
}

/// A conversation being had: makes the saves a runtime would make.
pub struct Chat {
    pub session: SessionId,
    pub head: Option<MessageId>,
    pub tip: Option<SegmentId>,
    pub position: u64,
    pub rendered: String,
    pub segments: Vec<NewSegment>,
}

impl Chat {
    pub fn begin(store: &Store, name: &str) -> (Chat, Save) {
        let session = store.new_session_id();
        let new = NewSession { id: session, name: name.into(), settings: "{}".into(), head: None, forked_from: None };
        let chat = Chat { session, head: None, tip: None, position: 0, rendered: String::new(), segments: Vec::new() };
        (chat, Save { changes: vec![Change::CreateSession(new)], images: vec![] })
    }

    /// A question, an answer and the segment that holds both.
    pub fn turn(&mut self, store: &Store, question: &str, answer: &str) -> Save {
        let asking = message(store, self.head, Role::User, question);
        let answered = message(store, Some(asking.id), Role::Assistant, answer);
        let segment = self.segment(question, answer, SegmentKind::Turn);
        let head = answered.id;
        let mut save = Save::default();
        for m in [asking, answered] {
            save.changes.push(Change::PutMessage { session: self.session, message: Box::new(m) });
        }
        self.finish(save, head, segment)
    }

    /// A document in `parts` segments.
    pub fn document(&mut self, store: &Store, text: &str, parts: usize) -> Save {
        let m = message(store, self.head, Role::Document, text);
        let head = m.id;
        let mut save = Save::default();
        save.changes.push(Change::PutMessage { session: self.session, message: Box::new(m) });
        for part in 1..parts {
            let segment = self.segment(&format!("{text} part {part}"), "", SegmentKind::DocumentPart);
            save.images.push((segment.id(), image(&segment)));
            save.changes.push(Change::AddSegment(Box::new(segment)));
        }
        let segment = self.segment(text, "", SegmentKind::DocumentEnd);
        self.finish(save, head, segment)
    }

    fn segment(&mut self, given: &str, generated: &str, kind: SegmentKind) -> NewSegment {
        let tokens = |text: &str| text.bytes().map(Token::from).collect::<Vec<Token>>();
        self.rendered.push_str(given);
        self.rendered.push_str(generated);
        let segment = NewSegment {
            fingerprint: MODEL.into(),
            parent: self.tip,
            start: self.position,
            prompt: tokens(given),
            completion: tokens(generated),
            boundary: TextBoundary::of(&self.rendered),
            kind,
        };
        self.position += (segment.prompt.len() + segment.completion.len()) as u64;
        self.tip = Some(segment.id());
        self.segments.push(segment.clone());
        segment
    }

    fn finish(&mut self, mut save: Save, head: MessageId, segment: NewSegment) -> Save {
        self.head = Some(head);
        let id = segment.id();
        save.images.push((id, image(&segment)));
        save.changes.push(Change::AddSegment(Box::new(segment)));
        save.changes.push(Change::Link { message: head, segment: id });
        save.changes.push(Change::MoveHead { session: self.session, head: Some(head) });
        save
    }
}

/// A writer with saves that a test can wait for.
pub struct Bench {
    pub store: Arc<Store>,
    pub writer: Writer,
    pub events: Receiver<SaveEvent>,
}

impl Bench {
    pub fn new(store: Store) -> Bench {
        let store = Arc::new(store);
        let (send, events) = unbounded();
        let writer = Writer::start(Arc::clone(&store), send).unwrap();
        Bench { store, writer, events }
    }

    /// Hands over a save and waits for the last word on it.
    pub fn save(&self, save: Save) -> SaveEvent {
        let id = self.writer.save(save);
        self.outcome(id)
    }

    pub fn outcome(&self, wanted: u64) -> SaveEvent {
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(120)).expect("an event about every save");
            match event {
                SaveEvent::Saved { id, .. } | SaveEvent::TextOnly { id, .. } | SaveEvent::NotSaved { id, .. }
                    if id == wanted =>
                {
                    return event;
                }
                _ => {}
            }
        }
    }

    pub fn close(self) -> bool {
        self.writer.close(soon()) == Ok(None)
    }
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A path loaded from disk.
pub struct Restored {
    pub plan: RestorePlan,
    pub rows: Vec<RowsImage>,
    pub end: Option<CheckpointImage>,
}

/// Loads the path that ends in `tip` as an engine would: opens it, takes the rows, and plans anew when they turn out damaged.
pub fn restore(store: &Store, tip: &SegmentId, have: usize) -> Result<Restored, StoreError> {
    loop {
        let opened = store.open_path(tip, have)?;
        let kept = opened.plan.path.iter().take(opened.plan.usable).skip(have);
        let rows: Result<Vec<RowsImage>, RowsFault> = kept.zip(&opened.rows).map(|(s, r)| rows_of(s, r)).collect();
        match rows {
            Ok(rows) => return Ok(Restored { plan: opened.plan, rows, end: opened.end }),
            Err(fault) => assert!(store.note_fault(&fault)?, "{fault}"),
        }
    }
}

fn rows_of(segment: &Segment, source: &StoredRows) -> Result<RowsImage, RowsFault> {
    let mut names: Vec<String> = image(&segment.content).rows.tensors.into_iter().map(|t| t.name).collect();
    names.retain(|name| source.array(name).is_some());
    let tensors = names.iter().map(|name| source.load(name)).collect::<Result<_, _>>()?;
    Ok(RowsImage { start: source.start(), rows: source.rows(), tensors, segment: None })
}

pub fn is_saved(event: &SaveEvent) -> bool {
    matches!(event, SaveEvent::Saved { .. })
}
