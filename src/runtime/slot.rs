//! A slot of the engine (one of its sequences), and the segments its state has absorbed.

use std::sync::Arc;

use super::path::Path;
use super::segments;
use super::{Done, State};
use crate::engine::protocol::{
    Cancel, CheckpointImage, Command, EngineFault, Generate, Job, RowSource, Scoring, SequenceId, Token,
};
use crate::store::{NewSegment, SegmentKind, StoredRows, TextBoundary};

/// What follows a prompt.
#[derive(Clone, Debug)]
pub(super) enum Last {
    Generate(Generate),
    /// A text to score; the state does not change.
    Score(Scoring),
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) sequence: SequenceId,
    /// Segments that the state has absorbed.
    pub(super) live: Path,
    /// After a failure: the slot counts as empty and is restored before use.
    doubtful: bool,
    /// Rows of the live state that may still be in flight to the device.
    pub(super) in_flight: Vec<Arc<StoredRows>>,
    pub(super) cancel: Cancel,
    /// A server's token count of the live path up to a position: (position, tokens).
    pub(super) counted: Option<(u64, u64)>,
}

impl Slot {
    pub(super) fn of(sequence: SequenceId) -> Slot {
        Slot { sequence, ..Slot::default() }
    }

    /// Displayed token count: the server's own if it covers exactly this path.
    pub(super) fn shown_position(&self) -> u64 {
        let position = self.live.position();
        self.counted.filter(|(at, _)| *at == position).map_or(position, |(_, tokens)| tokens)
    }

    /// The state is unknown: it counts as empty until it is restored.
    pub(super) fn lose(&mut self) {
        self.live = Path::default();
        self.doubtful = true;
        self.in_flight.clear();
    }

    /// A later stop applies to the work that begins now.
    pub(super) fn begin(&mut self) {
        self.cancel = Cancel::default();
    }

    pub(super) fn stopped(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The read share of the rows in flight; `None` if none is pending.
    pub(super) fn share_in_flight(&self) -> Option<f64> {
        let sum = |of: fn(&StoredRows) -> usize| -> usize { self.in_flight.iter().map(|rows| of(rows)).sum() };
        let (read, all) = (sum(StoredRows::read_bytes), sum(StoredRows::bytes));
        (read < all).then(|| read as f64 / all as f64)
    }

    pub(super) fn made(&mut self, path: Path) {
        self.live = path;
        self.doubtful = false;
    }

    /// Whether the engine's state is exactly this path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let common = self.live.common(path);
        !self.doubtful && common == self.live.segments().len() && common == path.segments().len()
    }

    /// Two texts may have the same tokens: the state then counts as read from the text of `path`.
    pub(super) fn read_as(&mut self, path: &Path) {
        if self.live.text_bytes() != path.text_bytes() {
            self.live = path.clone();
        }
    }
}

impl State {
    /// After any failure the slot's state is empty; after a fatal one the engine is down.
    pub(super) fn engine_failed(&mut self, fault: &EngineFault) {
        self.here.slot.lose();
        if let EngineFault::Fatal { why, exit } = fault {
            self.engine.down(why.clone(), *exit);
        }
    }

    fn command(&mut self, command: Command) -> Done {
        self.engine.send(command).map_err(|fault| {
            self.here.slot.lose();
            fault.into()
        })
    }

    /// Returns the job's id.
    pub(super) fn start_job(
        &mut self,
        sequence: SequenceId,
        prompt: Vec<Token>,
        last: Option<Last>,
        export: bool,
    ) -> Done<u64> {
        let (id, cancel) = (self.engine.id(), self.here.slot.cancel.clone());
        let (generate, score) = match last {
            None => (None, None),
            Some(Last::Generate(generate)) => (Some(generate), None),
            Some(Last::Score(score)) => (None, Some(score)),
        };
        self.command(Command::Run(Job { id, sequence, prompt, generate, score, export, cancel }))?;
        Ok(id)
    }

    pub(super) fn start_restore(
        &mut self,
        sequence: SequenceId,
        target: &Path,
        keep: u64,
        rows: Vec<Arc<StoredRows>>,
        end: Option<CheckpointImage>,
    ) -> Done<u64> {
        let id = self.engine.id();
        let rows = rows.into_iter().map(|rows| rows as Arc<dyn RowSource>).collect();
        self.command(Command::Restore { id, sequence, keep, rows, end, history: target.tokens() })?;
        Ok(id)
    }

    /// Begins to copy the state of one sequence to another.
    pub(super) fn start_fork(&mut self, from: SequenceId, to: SequenceId) -> Done<u64> {
        let id = self.engine.id();
        self.command(Command::Fork { id, from, to })?;
        Ok(id)
    }

    pub(super) fn content(
        &self,
        path: &Path,
        prompt: &[Token],
        completion: &[Token],
        boundary: TextBoundary,
        kind: SegmentKind,
    ) -> NewSegment {
        segments::content(self.engine.fingerprint(), path, prompt, completion, boundary, kind)
    }
}
