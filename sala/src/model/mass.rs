//! Attention mass of the current sequence's rows in the sparse layers, and blocks hidden from them.

use std::ops::Range;

use super::parts::Phase;
use super::state::Live;
use super::{ModelError, Result};
use crate::backend::{Backend, BlockMass, MassOf, Pass};

impl<B: Backend> Live<B> {
    /// Adds the attention mass of rows `rows` of the last verify pass, before its advance, to one of the sums. Call it
    /// for accepted rows only.
    pub fn add_mass(&mut self, b: &mut B, rows: Range<usize>, of: MassOf) -> Result<()> {
        match self.now.phase {
            Phase::Ran(Pass::Verify { rows: all }) if rows.end <= all => {}
            Phase::Ran(_) | Phase::Synced => {
                let reason = format!("rows {rows:?} are not of a verify pass that waits to be advanced");
                return Err(ModelError::Order { op: "add_mass", reason });
            }
        }
        let Some((_, selection)) = &mut self.work.sparse else { return Ok(()) };
        let (first, position) = (self.now.first_row, self.now.position + rows.start);
        let rows = first + rows.start..first + rows.end;
        Ok(b.add_mass(selection, &self.work.sparse_spec, rows, position, of)?)
    }

    /// Later prefill passes do not attend to these blocks of the sparse layers; an empty list shows all blocks again.
    pub fn hide_blocks(&mut self, b: &mut B, blocks: &[Range<u32>]) {
        if let Some((_, selection)) = &mut self.work.sparse {
            b.hide_blocks(selection, blocks);
        }
    }

    pub fn reset_mass(&mut self, b: &mut B) -> Result<()> {
        let Some((_, selection)) = &mut self.work.sparse else { return Ok(()) };
        Ok(b.reset_mass(selection)?)
    }

    /// One of the sums, a value a KV block; empty without sparse layers. Waits.
    pub fn mass(&mut self, b: &mut B, of: MassOf) -> Result<Vec<BlockMass>> {
        let Some((_, selection)) = &self.work.sparse else { return Ok(Vec::new()) };
        Ok(b.read_mass(selection, of)?)
    }

    /// Attention mass of each of the first `rows` rows of the last verify pass, before its advance: a value a KV
    /// block, in units of [`MASS`](crate::backend::MASS) a head and layer. Waits.
    pub fn row_mass(&mut self, b: &mut B, rows: usize) -> Result<Vec<Vec<u32>>> {
        let Some((_, selection)) = &self.work.sparse else { return Ok(Vec::new()) };
        let blocks = (self.now.position + rows).div_ceil(self.work.sparse_spec.block);
        Ok(b.read_row_mass(selection, self.now.first_row..self.now.first_row + rows, blocks)?)
    }
}
