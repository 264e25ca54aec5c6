//! The chosen blocks of the CPU's sparse layers for the rows of a pass, and the attention mass of these blocks.

use std::ops::Range;

use crate::backend::sparse::is_hidden;
use crate::backend::{BlockMass, MAX_VERIFY_ROWS, Result, invariant};
use crate::core::spec::SparseSpec;

pub(super) const ALL: u32 = u32::MAX;

/// By [`MassOf`](crate::backend::MassOf): sums over rows. `[ld]` each
pub type Sums = [Vec<BlockMass>; 2];

pub(super) fn empty_sums(ld: usize) -> Sums {
    [(); 2].map(|()| vec![BlockMass::default(); ld])
}

pub struct Selection {
    /// Blocks in each list, or [`ALL`]. `[rows, kv_heads]`
    pub(super) counts: Vec<u32>,
    /// Ascending. `[rows, kv_heads, topk]`
    pub(super) blocks: Vec<u32>,
    pub(super) positions: Vec<usize>,
    /// Of the rows of a verify pass, `[16, ld]`.
    pub(super) mass: Vec<u32>,
    pub(super) ld: usize,
    pub(super) block: usize,
    pub(super) sums: Sums,
    pub(super) hidden: Vec<Range<u32>>,
}

impl Selection {
    pub(super) fn new(spec: &SparseSpec, rows: usize, limit: usize) -> Selection {
        let (lists, ld) = (rows * spec.kv_heads, limit.div_ceil(spec.block).max(1));
        Selection {
            counts: vec![ALL; lists],
            blocks: vec![0; lists * spec.topk],
            positions: Vec::new(),
            mass: vec![0; MAX_VERIFY_ROWS * ld],
            ld,
            block: spec.block,
            sums: empty_sums(ld),
            hidden: Vec::new(),
        }
    }

    pub(super) fn leave_out_hidden(&mut self, spec: &SparseSpec, rows: usize) -> Result<()> {
        if self.hidden.is_empty() {
            return Ok(());
        }
        for row in 0..rows {
            let own = (self.position(row) / spec.block) as u32;
            for (g, mut left) in self.read(spec, row).into_iter().enumerate() {
                left.retain(|b| !is_hidden(&self.hidden, *b, own));
                let list = row * spec.kv_heads + g;
                let to = self.blocks.get_mut(list * spec.topk..(list + 1) * spec.topk).unwrap_or_default();
                invariant(left.len() <= to.len(), "hide_blocks", "a dense row has more blocks than a list holds")?;
                to.iter_mut().zip(&left).for_each(|(to, b)| *to = *b);
                self.counts[list] = left.len() as u32;
            }
        }
        Ok(())
    }

    fn position(&self, row: usize) -> usize {
        self.positions.get(row).copied().unwrap_or_default()
    }

    pub(super) fn read(&self, spec: &SparseSpec, row: usize) -> Vec<Vec<u32>> {
        let own = self.position(row) / spec.block;
        (0..spec.kv_heads)
            .map(|g| {
                let list = row * spec.kv_heads + g;
                match self.counts[list] {
                    ALL => (0..=own as u32).collect(),
                    n => self.blocks[list * spec.topk..][..n as usize].to_vec(),
                }
            })
            .collect()
    }
}
