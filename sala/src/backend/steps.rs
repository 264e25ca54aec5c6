//! The step: what changes from pass to pass.

use super::{Memory, Pass, Result, StepKey, check_shape, invariant};
use crate::engine::protocol::Token;

/// The position of a sequence on a device. One sequence is active at a time; [`Steps::go_to`] changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Identifies the sequence, unique among live ones; 0 for the first of a device.
    pub id: u64,
    pub position: usize,
    /// Accepted rows that the recurrent states have not absorbed.
    pub pending: usize,
    /// The half of the pending ring that holds them, where a device has one.
    pub slot: usize,
}

impl Place {
    /// The place after the first `rows` rows of a pass are accepted, as in [`Steps::advance`].
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
    /// The groups in `set` for a verify pass over several sequences, or the active sequence with all rows. `given`:
    /// number of caches or states that the operation received.
    pub(super) fn of_pass(set: &[Group], hand: Place, pass: Pass, given: usize) -> Result<Vec<Group>> {
        let groups = match (pass, set.is_empty()) {
            (Pass::Verify { .. }, false) => set.to_vec(),
            _ => vec![Group { place: hand, rows: pass.rows() }],
        };
        let holds = groups.len() == given && groups.iter().map(|g| g.rows).sum::<usize>() == pass.rows();
        invariant(holds, "verify", "rows and sequences of a pass do not belong together")?;
        Ok(groups)
    }
}

pub trait Steps: Memory {
    fn place(&self) -> Place;
    /// Activates another sequence, between two passes: position, pending rows and rows in flight are its own from now
    /// on.
    fn go_to(&mut self, place: Place) -> Result<()>;
    /// Activates a new sequence at position 0, which owns all buffers made from now on.
    fn new_place(&mut self) -> Result<Place>;
    fn forget_place(&mut self, _id: u64) {}
    fn position(&self) -> usize {
        self.place().position
    }
    /// Sets the position with nothing pending, for restore and reset.
    fn seek(&mut self, position: usize) -> Result<()> {
        self.go_to(Place { position, pending: 0, ..self.place() })
    }
    /// Sets the number of given tokens of the segment before the next prefill pass. A device may read a segment's
    /// first rows in another way than the rest; it may depend on nothing else, so that state stays a function of the
    /// segment path.
    fn segment_at(&mut self, read: usize);
    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()>;
    /// Sets position, number of rows and tokens of several sequences for the next verify pass. [`Steps::advance`]
    /// advances none of them; the caller does.
    fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()>;
    /// A GPU runs `body` eagerly the first time, records it the second, and replays the CUDA graph later.
    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()>;
    /// Accepts the first `rows` rows of the last pass: position += rows; after a verify pass they are pending in every
    /// lightning layer, after a prefill pass nothing is pending.
    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        check_shape(rows <= pass.rows(), "advance", format_args!("at most {} rows", pass.rows()), rows)?;
        self.go_to(self.place().advanced(pass, rows))
    }
    fn folded(&mut self);
    /// Waits until the device is idle; returns errors of its earlier work.
    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
