//! The pieces of a long document on disk without reading it: what `--fill random` puts behind a session.
//!
//! The first two pieces are read by the model; the others have the tokens of the document and the rows of the second piece
//! again: values that mean nothing there, of the right sizes. The desk finds the pieces by their names when it loads the
//! document, and reads the rest for real, so everything after that is what a user does.

use std::sync::Arc;
use std::time::Instant;

use super::direct::Direct;
use super::{PATIENCE, message};
use crate::desk::render::Renderer;
use crate::protocol::engine::{CheckpointImage, RowsImage, StateImage, Token};
use crate::session::{Change, NewSegment, Save, SaveEvent, SegmentKind, Store, TextBoundary, Writer};
use crate::shell::{Context, Exit, Failure};
use crate::text::{Before, Halt, TextModel};
use crate::transcript::{DocumentInfo, Role};

/// What making the pieces took.
pub(super) struct MadeUp {
    /// Tokens in them.
    pub(super) tokens: u64,
    /// Of the store's writer: checksums, writing, syncing.
    pub(super) save_gb_per_s: f64,
}

/// Puts the pieces of `body`, as the desk would cut them, into the store.
pub(super) fn make(
    context: &Context,
    store: &Arc<Store>,
    text: &TextModel,
    name: &str,
    body: &str,
) -> Result<MadeUp, Failure> {
    let config = context.config();
    let piece = usize::try_from(config.sessions.checkpoint_every).unwrap_or(usize::MAX).max(1024);
    let renderer = Renderer::new(text.clone());
    let mut document = message(store, None, Role::Document, body.to_owned());
    document.meta.document = Some(DocumentInfo {
        name: name.to_owned(),
        path: None,
        hash: String::new(),
        tokens: 0,
        lines: 0,
        complete: true,
    });
    let rendered = renderer.past(&[&document], config.thinking.mode, &Halt::NEVER)?;
    let tokens = text.tokenizer.encode_prompt(&rendered.text)?;
    let mut direct = Direct::start(context)?;
    let (events, outcome) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(store), events)?;
    let (mut start, mut bytes, mut seconds) = (0usize, 0u64, 0.0);
    let mut parent = None;
    let mut second: Option<StateImage> = None;
    // The last piece is what the desk reads.
    let ends = renderer.piece_ends(&rendered.text, &tokens, Before::Edge, piece);
    let whole = ends.last().is_some_and(|(end, _)| tokens.len() - end <= piece);
    if !whole {
        return Err(Failure::new(Exit::Failure, "the tokens of the document do not spell it"));
    }
    for (end, covered) in &ends {
        let given: Vec<Token> = tokens.get(start..*end).unwrap_or_default().to_vec();
        let last = ends.last().is_some_and(|(e, _)| e == end);
        let image = match &second {
            Some(image) if image.rows.rows == given.len() as u64 => again(image, start as u64, last),
            Some(_) => return Err(Failure::new(Exit::Failure, "a piece of the document would end inside a character")),
            None => {
                let read = direct.read(given.clone())?;
                if start > 0 {
                    second = Some(read.clone());
                }
                read
            }
        };
        let tensors = image.rows.tensors.iter();
        bytes += tensors.map(|t| t.data.len() as u64).sum::<u64>();
        let segment = NewSegment {
            fingerprint: direct.fingerprint().to_owned(),
            parent,
            start: start as u64,
            prompt: given,
            completion: Vec::new(),
            boundary: TextBoundary::of(rendered.text.get(..*covered).unwrap_or_default()),
            kind: SegmentKind::DocumentPart,
        };
        let id = segment.id();
        let begun = Instant::now();
        writer.save(Save { changes: vec![Change::AddSegment(Box::new(segment))], images: vec![(id, image)] });
        writer.flush(begun + PATIENCE);
        seconds += begun.elapsed().as_secs_f64();
        parent = Some(id);
        start = *end;
    }
    direct.end();
    writer.close(Instant::now() + PATIENCE).map_err(|e| Failure::new(Exit::Disk, e.to_string()))?;
    match outcome.iter().find(not_saved) {
        None => Ok(MadeUp { tokens: start as u64, save_gb_per_s: bytes as f64 / 1e9 / f64::max(seconds, 1e-9) }),
        Some(event) => Err(Failure::new(Exit::Disk, format!("the made-up state could not be saved: {event:?}"))),
    }
}

fn not_saved(event: &SaveEvent) -> bool {
    matches!(event, SaveEvent::TextOnly { .. } | SaveEvent::NotSaved { .. })
}

/// The same values elsewhere; only the last piece needs the state at its end.
fn again(image: &StateImage, start: u64, last: bool) -> StateImage {
    let rows = RowsImage { start, ..image.rows.clone() };
    let end =
        image.end.as_ref().filter(|_| last).map(|end| CheckpointImage { position: start + rows.rows, ..end.clone() });
    StateImage { rows, end }
}
