//! The step: what changes from pass to pass.

use super::{Memory, Pass, Result, StepKey, internal};
use crate::engine::protocol::Token;

/// The position of a sequence on a device. One sequence is active at a time; [`Steps::go_to`] changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Which sequence; 0 for the one a device begins with. No two that are alive have the same.
    pub id: u64,
    pub position: usize,
    /// Accepted rows that the recurrent states have not absorbed.
    pub pending: usize,
    /// Half of the pending ring that holds them, where a device has one.
    pub slot: usize,
}

impl Place {
    /// After the first `rows` rows of a pass are accepted, as in [`Steps::advance`].
    pub fn advanced(self, pass: Pass, rows: usize) -> Place {
        let position = self.position + rows;
        match pass {
            Pass::Prefill { .. } => Place { position, pending: 0, ..self },
            // The pass has absorbed the old half and written its rows to the other one.
            Pass::Verify { .. } => Place { position, pending: rows, slot: self.slot ^ 1, ..self },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub place: Place,
    pub rows: usize,
}

impl Group {
    /// The sequences of a pass: those that were `set` for a verify pass, or the one in `hand` with all rows. `given` is how many the
    /// operation was handed.
    pub(super) fn of_pass(set: &[Group], hand: Place, pass: Pass, given: usize) -> Result<Vec<Group>> {
        let groups = match (pass, set.is_empty()) {
            (Pass::Verify { .. }, false) => set.to_vec(),
            _ => vec![Group { place: hand, rows: pass.rows() }],
        };
        if groups.len() != given || groups.iter().map(|g| g.rows).sum::<usize>() != pass.rows() {
            return Err(internal("verify", "rows and sequences of a pass do not belong together"));
        }
        Ok(groups)
    }
}

/// Position, tokens and pending rows of the passes, and CUDA graphs of their work.
pub trait Steps: Memory {
    fn place(&self) -> Place;
    /// Activates another sequence, between two passes: position, pending rows and rows in flight are its own from now
    /// on.
    fn go_to(&mut self, place: Place) -> Result<()>;
    /// Activates a new sequence at position 0. Buffers made from now on belong to it.
    fn new_place(&mut self) -> Result<Place>;
    /// Drops what is kept for a sequence, which is not the active one.
    fn forget_place(&mut self, id: u64);
    fn position(&self) -> usize;
    /// Moves to `position` with nothing pending. Used by restore and reset.
    fn seek(&mut self, position: usize) -> Result<()>;
    /// Given tokens of the segment before the next prefill pass. A device may read a segment's first rows in another way
    /// than the rest; it may go by nothing else, so that state stays a function of the segment path.
    fn segment_at(&mut self, read: usize);
    /// Tokens of the next pass, all of the active sequence.
    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()>;
    /// Tokens of the next verify pass over several sequences, one after the other, with the position and number of
    /// rows of each. [`Steps::advance`] advances none of them; the caller does.
    fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()>;
    /// Runs `body`; a GPU runs it eagerly the first time, records it the second, and replays the CUDA graph later.
    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()>;
    /// Accepts the first `rows` rows of the last pass: position += rows; after a verify pass they become pending in
    /// every lightning layer, after a prefill pass nothing is pending.
    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()>;
    fn folded(&mut self);
    /// Waits until the device is done; reports what went wrong on it.
    fn synchronize(&mut self) -> Result<()>;
}
