//! Sparse attention: the cache, the choice of blocks, attention over them.

use super::{Memory, Pass, Result};
use crate::spec::SparseSpec;

/// Operations of the sparse layers (docs/model.md §5).
pub trait Sparse: Memory {
    /// Appends the k, v columns of `x` at the rows' positions and writes every compressed key whose window they
    /// complete (docs/model.md §5.3).
    fn append_kv(&mut self, cache: &mut Self::Cache, x: &Self::Buf, spec: &SparseSpec, pass: Pass) -> Result<()>;
    /// Chooses blocks per row and KV head (docs/model.md §5.4-5.6), every row by its own position.
    fn select_blocks(
        &mut self,
        sel: &mut Self::Selection,
        x: &Self::Buf,
        cache: &Self::Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Softmax attention over the chosen blocks (docs/model.md §5.7). `o [rows, heads·d]`
    fn attend(
        &mut self,
        o: &mut Self::Buf,
        x: &Self::Buf,
        sel: &Self::Selection,
        cache: &Self::Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()>;
    /// Blocks chosen in the last pass: `[rows][kv_heads]`, ascending. A row that ran densely reads as all its blocks.
    fn read_selection(&mut self, sel: &Self::Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>>;
}
