//! A slot of the engine (one of its sequences), and the segments its state has absorbed.

use std::sync::Arc;

use super::{Path, State};
use crate::engine::protocol::{Cancel, EngineFault, Generate, Scoring, SequenceId};
use crate::store::StoredRows;

#[derive(Clone, Debug)]
pub(crate) enum Last {
    Generate(Generate),
    /// A text to score; the state does not change.
    Score(Scoring),
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) sequence: SequenceId,
    pub(crate) live: Path,
    /// After a failure: the slot counts as empty and is restored before use.
    doubtful: bool,
    /// Rows of the live state that may still be in flight to the device.
    pub(super) in_flight: Vec<Arc<StoredRows>>,
    pub(crate) cancel: Cancel,
    /// A server's token count of the live path up to a position: (position, tokens).
    pub(super) counted: Option<(u64, u64)>,
}

impl Slot {
    pub(crate) fn of(sequence: SequenceId) -> Slot {
        Slot { sequence, ..Slot::default() }
    }

    /// A server's own token count, if it covers exactly this position.
    pub(super) fn counted_at(&self, position: u64) -> Option<u64> {
        self.counted.filter(|(at, _)| *at == position).map(|(_, tokens)| tokens)
    }

    /// The state is unknown: it counts as empty until it is restored.
    pub(crate) fn lose(&mut self) {
        self.live = Path::default();
        self.doubtful = true;
        self.in_flight.clear();
    }

    /// A later stop applies to the work that begins now.
    pub(crate) fn begin(&mut self) {
        self.cancel = Cancel::default();
    }

    pub(crate) fn stopped(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The read share of the rows in flight; `None` if none is pending.
    pub(super) fn share_in_flight(&self) -> Option<f64> {
        let sum = |of: fn(&StoredRows) -> usize| -> usize { self.in_flight.iter().map(|rows| of(rows)).sum() };
        let (read, all) = (sum(StoredRows::read_bytes), sum(StoredRows::bytes));
        (read < all).then(|| read as f64 / all as f64)
    }

    pub(crate) fn made(&mut self, path: Path) {
        self.live = path;
        self.doubtful = false;
    }

    /// Whether the engine's state is exactly this path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let common = self.live.common(path);
        !self.doubtful && common == self.live.segments().len() && common == path.segments().len()
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
}
