//! The feeder: the engine link and the live path. Knows tokens and where in a rendered text they end; what is on disk it
//! asks the keeper it is shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::link::{EngineChannels, EngineState, JobEnd, Link};
use super::path::Path;
use super::render::{Rendered, Renderer};
use super::segments::{self, Step};
use super::{Done, RuntimeError};
use crate::core::Exit;
use crate::engine::protocol::{
    Cancel, CheckpointImage, Command, EngineFault, Generate, Job, MAIN, ModelInfo, RowSource, Scoring, SequenceId,
    Token,
};
use crate::store::{NewSegment, SegmentKind, StoredRows, TextBoundary};
use crate::text::{TextModel, thoughts};

/// What follows a prompt.
#[derive(Clone, Debug)]
pub(super) enum Last {
    /// An answer.
    Generate(Generate),
    /// A text that is scored, and leaves no trace in the state.
    Score(Scoring),
}

/// Where a conversation stands in the engine. [`Feeder`] says what its parts are.
#[derive(Debug, Default)]
pub(super) struct Place {
    sequence: SequenceId,
    live: Path,
    doubtful: bool,
    in_flight: Vec<Arc<StoredRows>>,
    cancel: Cancel,
    counted: Option<(u64, u64)>,
}

impl Place {
    /// An empty sequence.
    pub(super) fn in_sequence(sequence: SequenceId) -> Place {
        Place { sequence, ..Place::default() }
    }

    /// The sequence.
    pub(super) fn sequence(&self) -> SequenceId {
        self.sequence
    }
}

/// The engine and what its state has absorbed.
#[derive(Debug)]
pub(super) struct Feeder {
    pub(super) link: Link,
    /// Which of the engine's sequences it is.
    pub(super) sequence: SequenceId,
    /// Sequences that are in use.
    taken: BTreeSet<SequenceId>,
    /// What the engine's state has absorbed.
    pub(super) live: Path,
    /// It failed since it was last made: it is empty, and made anew before anything rests on that.
    doubtful: bool,
    /// Rows of the live state that may still be in flight to the device.
    pub(super) in_flight: Vec<Arc<StoredRows>>,
    pub(super) renderer: Renderer,
    /// Ids that end a turn.
    pub(super) stop_ids: Vec<Token>,
    /// Tokens between two checkpoints inside a long document.
    pub(super) piece: usize,
    /// Of the loaded model; empty before.
    fingerprint: String,
    /// Ends what runs.
    pub(super) cancel: Cancel,
    /// Tokens of the live path up to here, as a server counted them.
    pub(super) counted: Option<(u64, u64)>,
}

impl Feeder {
    pub(super) fn new(engine: EngineChannels, text: TextModel, stop_ids: Vec<Token>, piece: usize) -> Feeder {
        Feeder {
            link: Link::new(engine),
            sequence: MAIN,
            taken: BTreeSet::from([MAIN]),
            live: Path::default(),
            doubtful: false,
            in_flight: Vec::new(),
            renderer: Renderer::new(text),
            stop_ids,
            piece,
            fingerprint: String::new(),
            cancel: Cancel::default(),
            counted: None,
        }
    }

    /// Tokens in the context as they are shown: a server's own count where it has counted just this path.
    pub(super) fn shown_position(&self) -> u64 {
        let position = self.live.position();
        self.counted.filter(|(at, _)| *at == position).map_or(position, |(_, tokens)| tokens)
    }

    /// The model, if it is loaded.
    pub(super) fn model(&self) -> Option<&ModelInfo> {
        match &self.link.state {
            EngineState::Ready(info) => Some(info),
            EngineState::Starting | EngineState::Down { .. } => None,
        }
    }

    /// The server that answers, if it is none of this machine's engines: its state is text, and counts are estimates.
    pub(super) fn server(&self) -> Option<&str> {
        self.model().and_then(|m| m.server.as_deref())
    }

    /// Thought and answer in a server's text whose template opened the thought in the prompt.
    pub(super) fn unopened_thought<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        self.server().and_then(|_| thoughts::unopened(text))
    }

    /// Names the model that state belongs to; empty until one is loaded.
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The model is loaded.
    pub(super) fn loaded(&mut self, info: &ModelInfo) {
        self.fingerprint = info.fingerprint.clone();
        self.link.state = EngineState::Ready(Box::new(info.clone()));
    }

    /// Whatever failed, the engine's state is empty; after some failures there is no engine.
    pub(super) fn failed(&mut self, fault: &EngineFault) {
        self.lose();
        if let EngineFault::Fatal { why, exit } = fault {
            self.link.down(why.clone(), *exit);
        }
    }

    /// What the engine's state holds is not known: it counts as empty until it was made anew.
    fn lose(&mut self) {
        self.live = Path::default();
        self.doubtful = true;
        self.in_flight.clear();
    }

    /// Takes another conversation's place, and leaves the present one there.
    pub(super) fn exchange(&mut self, place: &mut Place) {
        std::mem::swap(&mut self.sequence, &mut place.sequence);
        std::mem::swap(&mut self.live, &mut place.live);
        std::mem::swap(&mut self.doubtful, &mut place.doubtful);
        std::mem::swap(&mut self.in_flight, &mut place.in_flight);
        std::mem::swap(&mut self.cancel, &mut place.cancel);
        std::mem::swap(&mut self.counted, &mut place.counted);
    }

    /// From here on a stop is a new one.
    pub(super) fn begin(&mut self) {
        self.cancel = Cancel::default();
    }

    /// Whether a stop was asked for.
    pub(super) fn stopped(&self) -> bool {
        self.cancel.is_cancelled()
    }

    fn command(&mut self, command: Command) -> Done {
        if self.link.send(command) {
            return Ok(());
        }
        let why = "The engine is gone. Text is safe; sala-chat -c goes on with it.".to_owned();
        let fault = EngineFault::Fatal { why, exit: Exit::Failure };
        self.failed(&fault);
        Err(fault.into())
    }

    /// Starts a job on top of the live state; its number is returned.
    pub(super) fn start_job(&mut self, prompt: Vec<Token>, last: Option<Last>, export: bool) -> Done<u64> {
        self.start_job_in(self.sequence, prompt, last, export)
    }

    /// The same in any sequence.
    pub(super) fn start_job_in(
        &mut self,
        sequence: SequenceId,
        prompt: Vec<Token>,
        last: Option<Last>,
        export: bool,
    ) -> Done<u64> {
        let (id, cancel) = (self.link.id(), self.cancel.clone());
        let (generate, score) = match last {
            None => (None, None),
            Some(Last::Generate(generate)) => (Some(generate), None),
            Some(Last::Score(score)) => (None, Some(score)),
        };
        self.command(Command::Run(Job { id, sequence, prompt, generate, score, export, cancel }))?;
        Ok(id)
    }

    /// Begins to make the engine's state equal `target`: `rows` follow the first `keep` tokens.
    pub(super) fn start_restore(
        &mut self,
        target: &Path,
        keep: u64,
        rows: Vec<Arc<StoredRows>>,
        end: Option<CheckpointImage>,
    ) -> Done<u64> {
        match target.head() {
            None => self.in_flight.clear(),
            // Of what stays, some may still be coming.
            Some(_) => self.in_flight.extend(rows.iter().cloned()),
        }
        self.start_restore_in(self.sequence, target, keep, rows, end)
    }

    /// The same in another sequence than the conversation's.
    pub(super) fn start_restore_in(
        &mut self,
        sequence: SequenceId,
        target: &Path,
        keep: u64,
        rows: Vec<Arc<StoredRows>>,
        end: Option<CheckpointImage>,
    ) -> Done<u64> {
        let id = self.link.id();
        let rows = rows.into_iter().map(|rows| rows as Arc<dyn RowSource>).collect();
        self.command(Command::Restore { id, sequence, keep, rows, end, history: target.tokens() })?;
        Ok(id)
    }

    /// Begins to make the state of one sequence that of another, too.
    pub(super) fn start_fork(&mut self, from: SequenceId, to: SequenceId) -> Done<u64> {
        let id = self.link.id();
        self.command(Command::Fork { id, from, to })?;
        Ok(id)
    }

    /// A sequence nobody uses, if the engine has one more.
    pub(super) fn take_sequence(&mut self) -> Option<SequenceId> {
        let free = (0..self.sequences()).map(SequenceId).find(|s| !self.taken.contains(s))?;
        self.taken.insert(free);
        Some(free)
    }

    /// How many can be taken.
    pub(super) fn free_sequences(&self) -> usize {
        (self.sequences() as usize).saturating_sub(self.taken.len())
    }

    /// Sequences of the engine; 0 before it is ready.
    pub(super) fn sequences(&self) -> u32 {
        self.model().map_or(0, |m| m.max_sequences)
    }

    /// Gives a sequence back.
    pub(super) fn release(&mut self, sequence: SequenceId) -> Done {
        self.taken.remove(&sequence);
        self.command(Command::Release { sequence })
    }

    /// How much of the rows in flight has come; `None` when nothing is waited for.
    pub(super) fn share_in_flight(&self) -> Option<f64> {
        let sum = |of: fn(&StoredRows) -> usize| -> usize { self.in_flight.iter().map(|rows| of(rows)).sum() };
        let (read, all) = (sum(StoredRows::read_bytes), sum(StoredRows::bytes));
        (read < all).then(|| read as f64 / all as f64)
    }

    /// The engine's state was made that of a path.
    pub(super) fn made(&mut self, path: Path) {
        self.live = path;
        self.doubtful = false;
    }

    /// Whether the engine's state is just this path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let common = self.live.common(path);
        !self.doubtful && common == self.live.segments().len() && common == path.segments().len()
    }

    /// Where the state is just this path, its text may be another than it was read as: a tokenizer may write two texts as the same
    /// tokens.
    pub(super) fn read_as(&mut self, path: &Path) {
        if self.live.text_bytes() != path.text_bytes() {
            self.live = path.clone();
        }
    }

    /// Takes into the live path what a job did. Returns the segment, and whether all of the step was read; `None` when
    /// nothing was done.
    pub(super) fn absorb(
        &mut self,
        rendered: &Rendered,
        step: &Step,
        end: &JobEnd,
    ) -> Done<Option<(NewSegment, bool)>> {
        let mut live = std::mem::take(&mut self.live);
        let absorbed = self.absorb_in(&mut live, rendered, step, end);
        match absorbed {
            Ok(_) => self.live = live,
            Err(_) => self.lose(),
        }
        absorbed
    }

    /// The same into the path of any sequence.
    pub(super) fn absorb_in(
        &self,
        live: &mut Path,
        rendered: &Rendered,
        step: &Step,
        end: &JobEnd,
    ) -> Done<Option<(NewSegment, bool)>> {
        segments::absorb(&self.renderer, &self.fingerprint, live, rendered, step, (&end.done, &end.generated))
            .map_err(RuntimeError::Failed)
    }

    /// A segment behind `path`.
    pub(super) fn content(
        &self,
        path: &Path,
        prompt: &[Token],
        completion: &[Token],
        boundary: TextBoundary,
        kind: SegmentKind,
    ) -> NewSegment {
        segments::content(&self.fingerprint, path, prompt, completion, boundary, kind)
    }
}
