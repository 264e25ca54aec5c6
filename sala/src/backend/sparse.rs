//! Sparse attention: the cache, the choice of blocks, attention over them.

use std::ops::Range;

use super::{Memory, Pass, Result};
use crate::core::spec::SparseSpec;

/// Unit of attention mass: the attention of one head in one layer. Mass is an integer, so that sums do not depend on
/// their order.
pub const MASS: u32 = 1 << 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MassOf {
    Thoughts,
    Answer,
}

/// Attention to a KV block, over rows, heads and sparse layers; [`MASS`] each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMass {
    pub chosen: u64,
    /// From rows that had to choose it: one of the first blocks, or in the local window before the row's own.
    pub forced: u64,
}

pub(crate) fn is_hidden(hidden: &[Range<u32>], block: u32, own: u32) -> bool {
    block != own && hidden.iter().any(|h| h.contains(&block))
}

/// See docs/model.md §5.
pub trait Sparse: Memory {
    /// Registers the caches of a layer, one for each group of the next verify pass. Runs outside of steps, before
    /// every replay; holds until the next call.
    fn bind_caches(&mut self, _layer: usize, _caches: &mut [&mut Self::Cache]) -> Result<()> {
        Ok(())
    }
    /// Appends the k, v columns of `x` at the rows' positions and writes every compressed key with a window that ends
    /// there (docs/model.md §5.3). One cache for each group of the pass.
    fn append_kv(
        &mut self,
        caches: &mut [&mut Self::Cache],
        x: &Self::Buf,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Every row chooses by its own position (docs/model.md §5.4-5.6).
    fn select_blocks(
        &mut self,
        sel: &mut Self::Selection,
        x: &Self::Buf,
        caches: &[&Self::Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Softmax attention over the chosen blocks (docs/model.md §5.7). `o [rows, heads·d]`. A verify pass adds each
    /// row's attention to the mass of its blocks.
    fn attend(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        sel: &mut Self::Selection,
        caches: &[&Self::Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Blocks of the last pass: `[rows][kv_heads]`, ascending. A dense row reads as all its blocks.
    fn read_selection(&mut self, sel: &Self::Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>>;
    /// For measurements: rows of later prefill passes do not attend to these blocks, except their own. Filters the
    /// chosen blocks without replacement; an empty list hides nothing.
    fn hide_blocks(&mut self, sel: &mut Self::Selection, blocks: &[Range<u32>]);
    /// Adds the mass of rows `rows` of the last verify pass, the first of which is at `position`, to one of the sums.
    /// Runs outside of steps; does not wait.
    fn add_mass(
        &mut self,
        sel: &mut Self::Selection,
        spec: &SparseSpec,
        rows: Range<usize>,
        position: usize,
        of: MassOf,
    ) -> Result<()>;
    /// Clears the mass of rows `rows` of the previous verify pass; runs first in the next one and does not wait.
    fn clear_mass(&mut self, sel: &mut Self::Selection, rows: Range<usize>) -> Result<()>;
    fn reset_mass(&mut self, sel: &mut Self::Selection) -> Result<()>;
    /// Exchanges the current sums with those of another sequence, between passes.
    fn exchange_sums(&mut self, sel: &mut Self::Selection, sums: &mut Self::Sums);
    /// One value per block, up to the position. Waits.
    fn read_mass(&mut self, sel: &Self::Selection, of: MassOf) -> Result<Vec<BlockMass>>;
    /// Mass of rows `rows` of the last verify pass before it is cleared, a value for each of `blocks` blocks. Waits.
    fn read_row_mass(&mut self, sel: &Self::Selection, rows: Range<usize>, blocks: usize) -> Result<Vec<Vec<u32>>>;
}
