//! Sparse attention: the cache, the choice of blocks, attention over them.

use std::ops::Range;

use super::{Memory, Pass, Result};
use crate::core::spec::SparseSpec;

/// All of one head's attention in one layer, as attention mass is counted: in whole numbers, which add up to the same in
/// whatever order.
pub const MASS: u32 = 1 << 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MassOf {
    Thoughts,
    Answer,
}

/// Attention that a KV block got, over rows, heads and sparse layers; [`MASS`] each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMass {
    pub chosen: u64,
    /// From rows that had to: it is one of the first blocks, or in the local window before the row's own.
    pub forced: u64,
}

pub(crate) fn is_hidden(hidden: &[Range<u32>], block: u32, own: u32) -> bool {
    block != own && hidden.iter().any(|h| h.contains(&block))
}

/// Operations of the sparse layers (docs/model.md §5).
pub trait Sparse: Memory {
    /// Registers the caches of a layer, one for each group of the next verify pass. Outside of steps, and before every
    /// one that is replayed; holds until the next call.
    fn bind_caches(&mut self, _layer: usize, _caches: &mut [&mut Self::Cache]) -> Result<()> {
        Ok(())
    }
    /// Appends the k, v columns of `x` at the rows' positions and writes every compressed key of a window that they
    /// complete (docs/model.md §5.3). A cache for each group of the pass.
    fn append_kv(
        &mut self,
        caches: &mut [&mut Self::Cache],
        x: &Self::Buf,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Chooses blocks per row and KV head (docs/model.md §5.4-5.6), every row by its own position.
    fn select_blocks(
        &mut self,
        sel: &mut Self::Selection,
        x: &Self::Buf,
        caches: &[&Self::Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Softmax attention over the chosen blocks (docs/model.md §5.7). `o [rows, heads·d]`. A verify pass adds each row's
    /// attention to the mass of the blocks it went to.
    fn attend(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        sel: &mut Self::Selection,
        caches: &[&Self::Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Blocks chosen in the last pass: `[rows][kv_heads]`, ascending. A row that ran densely reads as all its blocks.
    fn read_selection(&mut self, sel: &Self::Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>>;
    /// Rows of prefill passes from now on do not attend to these blocks, their own apart; nothing is hidden when there are none.
    /// For measurements: what was chosen is filtered, nothing else takes its place.
    fn hide_blocks(&mut self, sel: &mut Self::Selection, blocks: &[Range<u32>]);
    /// Where keys and values are not on the device, its pool has no block of this cache any more: for measurements. Outside of steps.
    fn forget_blocks(&mut self, _cache: &mut Self::Cache) -> Result<()> {
        Ok(())
    }
    /// Adds the mass of rows `rows` of the last verify pass, the first of which is at `position`, to one of the sums.
    /// Outside of steps; does not wait.
    fn add_mass(
        &mut self,
        sel: &mut Self::Selection,
        spec: &SparseSpec,
        rows: Range<usize>,
        position: usize,
        of: MassOf,
    ) -> Result<()>;
    /// Forgets the mass of rows `rows` of the verify pass before, as the first thing of the next one; does not wait.
    fn clear_mass(&mut self, sel: &mut Self::Selection, rows: Range<usize>) -> Result<()>;
    /// Both sums, and whatever a pass that failed left, become 0.
    fn reset_mass(&mut self, sel: &mut Self::Selection) -> Result<()>;
    /// Puts the sums of another sequence in the place of those that are here, and gives these. Between passes.
    fn exchange_sums(&mut self, sel: &mut Self::Selection, sums: &mut Self::Sums);
    /// One of the sums: a value a block, up to the position. Waits.
    fn read_mass(&mut self, sel: &Self::Selection, of: MassOf) -> Result<Vec<BlockMass>>;
    /// Mass of each of rows `rows` of the last verify pass, before it is cleared: a value for each of `blocks` blocks. Waits.
    fn read_row_mass(&mut self, sel: &Self::Selection, rows: Range<usize>, blocks: usize) -> Result<Vec<Vec<u32>>>;
}
