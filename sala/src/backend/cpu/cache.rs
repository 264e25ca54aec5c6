//! Keys, values and compressed keys of one sparse layer on the CPU.
//!
//! Keys are transposed in panels, so that scores of a row are sums over lanes in one fixed order.

use std::ops::Range;

use super::pages::{Account, Pages};
use crate::backend::row_ranges;
use crate::core::spec::SparseSpec;

pub(super) const PANEL: usize = 64;
const PAGE_BLOCKS: usize = 16;
/// Panels of level-1 compressed keys per page; level 2 has one.
const LEVEL1_PANELS: usize = 4;

/// Of one KV head, in the order of [`ROW_ARRAYS`](crate::backend::ROW_ARRAYS): keys `[block][lane][token of block]`,
/// values `[token][lane]`, compressed keys of two levels `[panel][lane][key of panel]`.
pub(super) type HeadCache = [Pages; 4];

pub struct Cache {
    pub(super) heads: Vec<HeadCache>,
    pub(super) spec: SparseSpec,
    pub(super) dim: usize,
    pub(super) block: usize,
}

fn panel_of(at: usize, panel: usize, dim: usize) -> (usize, usize) {
    (at / panel * panel * dim, panel * dim)
}

impl Cache {
    pub(super) fn new(spec: &SparseSpec, account: &Account) -> Cache {
        let (dim, block) = (spec.head_dim, spec.block);
        let pages = |rows: usize| Pages::new(rows * dim, account);
        let head = || [PAGE_BLOCKS * block, PAGE_BLOCKS * block, LEVEL1_PANELS * PANEL, PANEL].map(pages);
        Cache { heads: (0..spec.kv_heads).map(|_| head()).collect(), spec: spec.clone(), dim, block }
    }

    /// Values of each array of a head for the first `limit` positions.
    fn values(&self, limit: usize) -> [usize; 4] {
        row_ranges(&self.spec, &(0..limit.next_multiple_of(self.block))).map(|rows| rows.end * self.dim)
    }

    fn each(&mut self, limit: usize, work: impl Fn(&mut Pages, usize)) {
        let values = self.values(limit);
        for head in &mut self.heads {
            head.iter_mut().zip(values).for_each(|(pages, values)| work(pages, values));
        }
    }

    pub(super) fn wants(&self, limit: usize) -> usize {
        let values = self.values(limit);
        let pages = self.heads.iter().flat_map(|head| head.iter().zip(values));
        pages.map(|(pages, values)| pages.wants(values)).sum()
    }

    pub(super) fn reserve(&mut self, limit: usize) {
        self.each(limit, Pages::grow);
    }

    /// Writes keys and values `[rows, kv_heads·d]` (rows of `x` at `columns`) from position `first` on, and every
    /// compressed key with a window that ends there.
    pub(super) fn append(&mut self, x: &[f32], width: usize, [k_column, v_column]: [usize; 2], first: usize) {
        let (dim, block) = (self.dim, self.block);
        for (g, [k, v, ..]) in self.heads.iter_mut().enumerate() {
            for (r, row) in x.chunks_exact(width).enumerate() {
                let p = first + r;
                let (start, len) = panel_of(p, block, dim);
                let lanes = k.at_mut(start, len)[p % block..].iter_mut().step_by(block);
                lanes.zip(&row[k_column + g * dim..][..dim]).for_each(|(to, key)| *to = *key);
                v.at_mut(p * dim, dim).copy_from_slice(&row[v_column + g * dim..][..dim]);
            }
        }
        self.compress(first..first + x.len() / width);
    }

    /// A test's injected error: `block` keeps the content of the previous block once `written` has reached its end.
    #[cfg(any(test, feature = "emulated"))]
    pub(super) fn make_stale(&mut self, written: Range<usize>, block: usize) {
        let size = self.block;
        if !written.contains(&((block + 1) * size - 1)) {
            return;
        }
        for t in block * size..(block + 1) * size {
            for array in 0..2 {
                let before = self.read(array, t - size..t - size + 1);
                self.write(array, t, &before);
            }
        }
    }

    fn compress(&mut self, positions: Range<usize>) {
        let (dim, block, spec) = (self.dim, self.block, &self.spec);
        let mut sums = vec![0.0; dim];
        let [.., level1, level2] = row_ranges(spec, &positions);
        for [k, _, k1, k2] in &mut self.heads {
            for (factor, rows, dst) in [(1, &level1, k1), (4, &level2, k2)] {
                let (kernel, stride) = (factor * spec.kernel, factor * spec.stride);
                for j in rows.clone() {
                    sums.fill(0.0);
                    for t in j * stride..j * stride + kernel {
                        let (start, len) = panel_of(t, block, dim);
                        let lanes = k.at(start, len)[t % block..].iter().step_by(block);
                        sums.iter_mut().zip(lanes).for_each(|(sum, key)| *sum += key);
                    }
                    let (start, len) = panel_of(j, PANEL, dim);
                    let lanes = dst.at_mut(start, len)[j % PANEL..].iter_mut().step_by(PANEL);
                    lanes.zip(&sums).for_each(|(to, sum)| *to = sum / kernel as f32);
                }
            }
        }
    }

    /// By array: number of rows that store their lanes together.
    fn panels(&self) -> [Option<usize>; 4] {
        [Some(self.block), None, Some(PANEL), Some(PANEL)]
    }

    /// Rows of an array, numbered as in [`HeadCache`].
    pub(super) fn read(&self, array: usize, range: Range<usize>) -> Vec<f32> {
        let mut out = Vec::with_capacity(range.len() * self.heads.len() * self.dim);
        for at in range {
            for head in &self.heads {
                match self.panels()[array] {
                    None => out.extend_from_slice(head[array].at(at * self.dim, self.dim)),
                    Some(panel) => {
                        let (start, len) = panel_of(at, panel, self.dim);
                        out.extend(head[array].at(start, len)[at % panel..].iter().step_by(panel));
                    }
                }
            }
        }
        out
    }

    pub(super) fn write(&mut self, array: usize, first: usize, values: &[f32]) {
        self.arrays()[array].write(first, values);
    }

    /// Shares the memory of another cache's first `positions` positions until either of them writes there. Later rows
    /// are dead.
    pub(super) fn share(&mut self, from: &Cache, positions: usize) {
        let values = self.values(positions);
        for (to, from) in self.heads.iter_mut().zip(&from.heads) {
            to.iter_mut().zip(from).zip(values).for_each(|((to, from), values)| to.share(from, values));
        }
    }

    /// Prepares a rewrite from `keep` on: shared memory there need not be copied.
    pub(super) fn own(&mut self, keep: usize) {
        self.each(keep, Pages::own);
    }

    pub(super) fn arrays(&mut self) -> [Slots<'_>; 4] {
        let dim = self.dim;
        let mut arrays = self.panels().map(|panel| Slots { dim, panel, heads: Vec::new() });
        for head in &mut self.heads {
            arrays.iter_mut().zip(head).for_each(|(array, pages)| array.heads.push(pages));
        }
        arrays
    }
}

/// One array of all heads.
pub(super) struct Slots<'a> {
    dim: usize,
    panel: Option<usize>,
    heads: Vec<&'a mut Pages>,
}

impl Slots<'_> {
    pub(super) fn row_width(&self) -> usize {
        self.dim * self.heads.len()
    }

    pub(super) fn write(&mut self, first: usize, values: &[f32]) {
        let (dim, heads) = (self.dim, self.heads.len());
        for (i, row) in values.chunks_exact(dim).enumerate() {
            let at = first + i / heads;
            let head = &mut self.heads[i % heads];
            match self.panel {
                None => head.at_mut(at * dim, dim).copy_from_slice(row),
                Some(panel) => {
                    let (start, len) = panel_of(at, panel, dim);
                    // Lanes of a panel lie `panel` apart.
                    let lanes = head.at_mut(start, len)[at % panel..].iter_mut().step_by(panel);
                    lanes.zip(row).for_each(|(to, value)| *to = *value);
                }
            }
        }
    }
}
