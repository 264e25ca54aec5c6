//! A bench's own data directory and documents.
//!
//! Most of a long document's state can be made up: the model reads the first two pieces; the others have the tokens of
//! the document and copies of the second piece's rows, meaningless values of the right sizes. The runtime finds the
//! pieces by their names when it loads the document, and reads the rest for real.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::clients::{EngineClient, failed};
use crate::backend::MAX_POSITIONS;
use crate::cli::args::BenchArgs;
use crate::cli::{Context, Exit, Failure, open};
use crate::config::settings::{Origin, SaveStates};
use crate::core::transcript::{DocumentInfo, Message, MessageId, MessageMeta, Role};
use crate::engine::protocol::{CheckpointImage, MAIN, RowsImage, StateImage, Token};
use crate::runtime::render::{Form, Renderer, nothing_known};
use crate::store::{Change, NewSegment, Save, SaveEvent, SegmentKind, Store, TextBoundary, Writer};
use crate::text::{Before, Halt, TextModel};

pub(super) const ROOM: u64 = 8_192;
pub(super) const SAVING: Duration = Duration::from_secs(120);
/// Entries of the shortest ledger: the questions name the 20th.
const LEAST_ENTRIES: u64 = 24;

/// A temporary folder on the disk of the sessions, and a context with its data directory in it, for documents of up to
/// `tokens` tokens. The context keeps all state and never asks for confirmation.
pub(super) fn scratch(context: &Context, tokens: u64) -> Result<(tempfile::TempDir, Context), Failure> {
    let data = &context.dirs.data;
    let made = std::fs::create_dir_all(data).and_then(|()| tempfile::Builder::new().prefix("bench-").tempdir_in(data));
    let folder = made.map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", data.display())))?;
    let mut own = context.clone();
    own.dirs.data = folder.path().join("data");
    // Changes from here on count as settings of its sessions.
    own.loaded.keep_all();
    // Overrides the recommendation of the model's folder.
    own.loaded.origins.insert("sampling.temperature".into(), Origin::BuiltIn);
    let config = &mut own.loaded.config;
    if config.model.max_context == 0 {
        // Later entries of the ledger have longer numbers than the estimate assumes.
        config.model.max_context = tokens + tokens / 8 + ROOM;
    }
    config.model.reserve_answer = config.model.reserve_answer.min(ROOM / 4);
    config.sampling.temperature = 0.0;
    (config.sessions.save_state, config.sessions.keep_turns) = (SaveStates::Turn, 64);
    (config.sessions.min_free_gib, config.sessions.max_state_gib) = (0.0, 1e6);
    (config.load.confirm_tokens, config.load.max_file_mib) = (u64::MAX, 1 << 20);
    Ok((folder, own))
}

/// The lengths of `--context`, or those given here. `with` names what else the range depends on.
pub(super) fn contexts(
    args: &BenchArgs,
    default: &[u64],
    range: RangeInclusive<u64>,
    with: &str,
) -> Result<Vec<u64>, Failure> {
    let contexts = if args.context.is_empty() { default } else { &args.context };
    match contexts.iter().find(|tokens| !range.contains(tokens)) {
        None => Ok(contexts.to_vec()),
        Some(tokens) => {
            let (least, most) = range.into_inner();
            Err(Failure::usage(format!("--context must be {least} to {most} here{with} (got {tokens})")))
        }
    }
}

/// Refuses more than `most` lengths in `--context`; `what` names those that the bench takes.
pub(super) fn at_most(args: &BenchArgs, most: usize, what: &str) -> Result<(), Failure> {
    match args.context.len() {
        given if given > most => Err(Failure::usage(format!("--context takes {what} (got {given})"))),
        _ => Ok(()),
    }
}

pub(super) fn longest(context: &Context) -> u64 {
    let all = MAX_POSITIONS as u64;
    match context.config().model.max_context {
        0 => (all - ROOM) / 9 * 8,
        set => set.min(all),
    }
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", path.display())))
}

/// A text of at least `tokens` tokens and at most one entry more, without two equal entries. Its length is measured,
/// since the tokens of an entry depend on the tokenizer and the number.
pub(super) fn ledger(text: &TextModel, tokens: u64) -> Result<String, Failure> {
    const WHO: [&str; 7] = ["Anna", "Marta", "Tom", "Ivan", "Lena", "Omar", "Ruth"];
    const WHAT: [&str; 5] = ["boxes", "letters", "coins", "lamps", "ropes"];
    const WHERE: [&str; 6] = ["Oslo", "Rome", "Lima", "Kyoto", "Bern", "Cairo"];
    let pick =
        |words: &[&'static str], n: u64| words.get((n % words.len() as u64) as usize).copied().unwrap_or_default();
    let entry = |i: u64| {
        let n = i.wrapping_mul(crate::core::GOLDEN) >> 20;
        let (who, what, place) = (pick(&WHO, n), pick(&WHAT, n >> 8), pick(&WHERE, n >> 16));
        format!("Entry {i}: {who} counted {} {what} in {place}.\n", n % 9000 + 10)
    };
    let some: String = (1000..1200).map(entry).collect();
    let each = (text.tokenizer.encode_plain(&some)?.len() as u64 / 200).max(1);
    let mut entries = LEAST_ENTRIES;
    let mut body: String = (1..=entries).map(entry).collect();
    loop {
        let missing = tokens.saturating_sub(text.tokenizer.encode_plain(&body)?.len() as u64);
        if missing == 0 {
            return Ok(body);
        }
        // Short steps at the end: the text must not exceed the room.
        let more = (missing * 15 / 16 / each).max(1);
        body.extend((entries + 1..=entries + more).map(entry));
        entries += more;
    }
}

pub(super) fn message(store: &Store, parent: Option<MessageId>, role: Role, text: String) -> Message {
    let (thinking, meta) = (String::new(), MessageMeta::default());
    Message { id: store.new_message_id(parent), parent, role, text, thinking, created_ms: 0, meta }
}

/// The same values at another position.
pub(super) fn moved(image: &StateImage, start: u64) -> StateImage {
    let rows = RowsImage { start, segment: None, ..image.rows.clone() };
    let end = image.end.clone().map(|end| CheckpointImage { position: start + rows.rows, ..end });
    StateImage { rows, end }
}

/// Ends a writer. All of its saves must be on disk.
pub(super) fn all_saved(writer: Writer, outcome: &Receiver<SaveEvent>) -> Result<(), Failure> {
    let late = writer.close(Instant::now() + SAVING).unwrap_or_else(|unsaved| Some(unsaved.to_string()));
    let lost = || {
        outcome.iter().find_map(|event| match event {
            SaveEvent::TextOnly { reason, .. } | SaveEvent::NotSaved { reason, .. } => Some(reason),
            _ => None,
        })
    };
    let why = late.or_else(lost);
    why.map_or(Ok(()), |why| Err(Failure::new(Exit::Disk, format!("not everything was saved: {why}"))))
}

pub(super) struct MadeUp<'a> {
    context: &'a Context,
    text: &'a TextModel,
    engine: EngineClient,
    writer: Writer,
    outcome: Receiver<SaveEvent>,
    read: Vec<StateImage>,
    tokens: u64,
    bytes: u64,
    seconds: f64,
}

impl<'a> MadeUp<'a> {
    pub(super) fn start(context: &'a Context, store: &Arc<Store>, text: &'a TextModel) -> Result<Self, Failure> {
        let engine = EngineClient::start(context)?;
        let (events, outcome) = crossbeam_channel::unbounded();
        let writer = Writer::start(Arc::clone(store), events)?;
        Ok(MadeUp { context, text, engine, writer, outcome, read: Vec::new(), tokens: 0, bytes: 0, seconds: 0.0 })
    }

    /// Stores all pieces of a document but the last, cut as the runtime cuts them. The runtime reads the last one.
    pub(super) fn document(&mut self, store: &Store, name: &str, body: &str) -> Result<(), Failure> {
        let config = self.context.config();
        let piece = open::piece(self.context);
        let renderer = Renderer::new(self.text.clone());
        let mut document = message(store, None, Role::Document, body.to_owned());
        document.meta.document =
            Some(DocumentInfo { name: name.to_owned(), complete: true, ..DocumentInfo::default() });
        let rendered = renderer.render(&[&document], Form::Past, config.thinking.mode, &Halt::NEVER, &nothing_known)?;
        let tokens = self.text.tokenizer.encode_prompt(&rendered.text)?;
        let ends = renderer.piece_ends(&rendered.text, &tokens, Before::Edge, piece);
        // The runtime reads all of a document of one piece.
        if tokens.len() - ends.last().map_or(0, |(end, _)| *end) > piece {
            return Err(failed("the tokens of the document do not spell it"));
        }
        let (mut start, mut parent) = (0usize, None);
        for (n, (end, covered)) in ends.iter().enumerate() {
            let prompt: Vec<Token> = tokens.get(start..*end).unwrap_or_default().to_vec();
            let image = self.image(n, start as u64, &prompt)?;
            let state = image.end.iter().flat_map(|end| &end.tensors).chain(&image.rows.tensors);
            self.bytes += state.map(|t| t.bytes() as u64).sum::<u64>();
            let segment = NewSegment {
                fingerprint: self.engine.info.fingerprint.clone(),
                parent,
                start: start as u64,
                prompt,
                completion: Vec::new(),
                boundary: TextBoundary::of(rendered.text.get(..*covered).unwrap_or_default()),
                kind: SegmentKind::DocumentPart,
            };
            let id = segment.id();
            let begun = Instant::now();
            self.writer.save(Save { changes: vec![Change::AddSegment(Box::new(segment))], images: vec![(id, image)] });
            self.writer.flush(begun + SAVING);
            self.seconds += begun.elapsed().as_secs_f64();
            parent = Some(id);
            start = *end;
        }
        self.tokens += start as u64;
        Ok(())
    }

    /// The state after piece `n` of a document.
    fn image(&mut self, n: usize, start: u64, prompt: &[Token]) -> Result<StateImage, Failure> {
        match self.read.get(n.min(1)) {
            Some(image) if image.rows.rows == prompt.len() as u64 => Ok(moved(image, start)),
            Some(_) => Err(failed("a piece of the document would end inside a character")),
            None => {
                let image = self.engine.read(MAIN, prompt.to_vec())?;
                self.read.push(image.clone());
                Ok(image)
            }
        }
    }

    /// Tokens with made-up state, and the speed of the writer in GB/s.
    pub(super) fn end(self) -> Result<(u64, f64), Failure> {
        self.engine.end();
        all_saved(self.writer, &self.outcome)?;
        Ok((self.tokens, self.bytes as f64 / 1e9 / self.seconds.max(1e-9)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_has_the_requested_tokens() {
        let text = crate::client::remote::text_model().unwrap();
        for tokens in [1, 6_000, 8_192, 30_000] {
            let body = ledger(&text, tokens).unwrap();
            let has = text.tokenizer.encode_plain(&body).unwrap().len() as u64;
            let least = ledger(&text, 1).unwrap();
            let at_least_entries = body.starts_with(&least);
            assert!(at_least_entries && has >= tokens, "{has} of {tokens}");
            assert!(body == least || has < tokens + 40, "{has} of {tokens}");
        }
    }
}
