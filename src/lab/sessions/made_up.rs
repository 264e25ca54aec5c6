//! Writes the pieces of a long document to disk without reading the document, for `--fill random`.
//!
//! The model reads the first two pieces; the others have the tokens of the document and copies of the rows of the
//! second piece: meaningless values of the right sizes. The runtime finds the pieces by their names when it loads the
//! document and reads the rest for real.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;

use super::direct::Direct;
use super::{PATIENCE, message};
use crate::cli::{Context, Exit, Failure};
use crate::core::transcript::{DocumentInfo, Role};
use crate::engine::protocol::{CheckpointImage, RowsImage, StateImage, Token};
use crate::runtime::render::{Renderer, nothing_known};
use crate::store::{Change, NewSegment, Save, SaveEvent, SegmentKind, Store, TextBoundary, Writer};
use crate::text::{Before, Halt, TextModel};

pub(in crate::lab) struct MadeUp {
    pub(in crate::lab) tokens: u64,
    pub(in crate::lab) save_gb_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lab) enum Ends {
    /// At the last piece.
    Last,
    /// At every piece, as after reading a document.
    All,
}

pub(in crate::lab) struct Maker<'a> {
    context: &'a Context,
    text: &'a TextModel,
    direct: Direct,
    writer: Writer,
    outcome: Receiver<SaveEvent>,
    read: Vec<StateImage>,
    tokens: u64,
    bytes: u64,
    seconds: f64,
}

/// Stores the pieces of `body`, cut as the runtime cuts them.
pub(super) fn make(
    context: &Context,
    store: &Arc<Store>,
    text: &TextModel,
    name: &str,
    body: &str,
) -> Result<MadeUp, Failure> {
    let mut maker = Maker::start(context, store, text)?;
    maker.document(store, name, body, Ends::Last)?;
    maker.end()
}

impl<'a> Maker<'a> {
    pub(in crate::lab) fn start(
        context: &'a Context,
        store: &Arc<Store>,
        text: &'a TextModel,
    ) -> Result<Maker<'a>, Failure> {
        let direct = Direct::start(context)?;
        let (events, outcome) = crossbeam_channel::unbounded();
        let writer = Writer::start(Arc::clone(store), events)?;
        Ok(Maker { context, text, direct, writer, outcome, read: Vec::new(), tokens: 0, bytes: 0, seconds: 0.0 })
    }

    /// Stores all pieces of a document but the last, which the runtime reads.
    pub(in crate::lab) fn document(
        &mut self,
        store: &Store,
        name: &str,
        body: &str,
        kept: Ends,
    ) -> Result<(), Failure> {
        let config = self.context.config();
        let piece = usize::try_from(config.sessions.checkpoint_every).unwrap_or(usize::MAX).max(1024);
        let renderer = Renderer::new(self.text.clone());
        let mut document = message(store, None, Role::Document, body.to_owned());
        document.meta.document = Some(DocumentInfo {
            name: name.to_owned(),
            path: None,
            hash: String::new(),
            tokens: 0,
            lines: 0,
            complete: true,
            once: false,
        });
        let rendered = renderer.past(&[&document], config.thinking.mode, &Halt::NEVER, &nothing_known)?;
        let tokens = self.text.tokenizer.encode_prompt(&rendered.text)?;
        let ends = renderer.piece_ends(&rendered.text, &tokens, Before::Edge, piece);
        // A document of one piece has none before it: the runtime reads all of it.
        if tokens.len() - ends.last().map_or(0, |(end, _)| *end) > piece {
            return Err(Failure::new(Exit::Failure, "the tokens of the document do not spell it"));
        }
        let (mut start, mut parent) = (0usize, None);
        for (n, (end, covered)) in ends.iter().enumerate() {
            let given: Vec<Token> = tokens.get(start..*end).unwrap_or_default().to_vec();
            let last = n + 1 == ends.len();
            let image = self.image(n, start as u64, &given, last || kept == Ends::All)?;
            let tensors = image.rows.tensors.iter();
            self.bytes += tensors.map(|t| t.bytes() as u64).sum::<u64>();
            let segment = NewSegment {
                fingerprint: self.direct.info().fingerprint.clone(),
                parent,
                start: start as u64,
                prompt: given,
                completion: Vec::new(),
                boundary: TextBoundary::of(rendered.text.get(..*covered).unwrap_or_default()),
                kind: SegmentKind::DocumentPart,
            };
            let id = segment.id();
            let begun = Instant::now();
            self.writer.save(Save { changes: vec![Change::AddSegment(Box::new(segment))], images: vec![(id, image)] });
            self.writer.flush(begun + PATIENCE);
            self.seconds += begun.elapsed().as_secs_f64();
            parent = Some(id);
            start = *end;
        }
        self.tokens += start as u64;
        Ok(())
    }

    /// The state after piece number `n` of a document. The engine computes the first two of all; the others are copies
    /// of theirs.
    fn image(&mut self, n: usize, start: u64, given: &[Token], end: bool) -> Result<StateImage, Failure> {
        match self.read.get(n.min(1)) {
            Some(image) if image.rows.rows == given.len() as u64 => Ok(again(image, start, end)),
            Some(_) => Err(Failure::new(Exit::Failure, "a piece of the document would end inside a character")),
            None => {
                let read = self.direct.read(given.to_vec())?;
                self.read.push(read.clone());
                Ok(read)
            }
        }
    }

    pub(in crate::lab) fn end(self) -> Result<MadeUp, Failure> {
        self.direct.end();
        self.writer.close(Instant::now() + PATIENCE).map_err(|e| Failure::new(Exit::Disk, e.to_string()))?;
        match self.outcome.iter().find(not_saved) {
            None => Ok(MadeUp {
                tokens: self.tokens,
                save_gb_per_s: self.bytes as f64 / 1e9 / f64::max(self.seconds, 1e-9),
            }),
            Some(event) => Err(Failure::new(Exit::Disk, format!("the made-up state could not be saved: {event:?}"))),
        }
    }
}

fn not_saved(event: &SaveEvent) -> bool {
    matches!(event, SaveEvent::TextOnly { .. } | SaveEvent::NotSaved { .. })
}

/// The same values at another position, with or without the state at the end.
pub(in crate::lab) fn again(image: &StateImage, start: u64, with_end: bool) -> StateImage {
    let rows = RowsImage { start, segment: None, ..image.rows.clone() };
    let end = image
        .end
        .as_ref()
        .filter(|_| with_end)
        .map(|end| CheckpointImage { position: start + rows.rows, ..end.clone() });
    StateImage { rows, end }
}
