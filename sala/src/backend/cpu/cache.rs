//! Keys, values and compressed keys of one sparse layer on the CPU.
//!
//! Keys are transposed in panels, so that scores of a row are sums over lanes in one fixed order.

use super::pages::{Account, Pages};
use crate::backend::ROW_ARRAYS;
use crate::core::spec::SparseSpec;

pub(super) const PANEL: usize = 64;
const PAGE_BLOCKS: usize = 16;
/// Panels of level-1 compressed keys per page; level 2 has one.
const LEVEL1_PANELS: usize = 4;

pub(super) struct HeadCache {
    /// `[block][lane][token of block]`
    pub(super) k: Pages,
    /// `[token][lane]`
    pub(super) v: Pages,
    /// `[panel][lane][key of panel]`
    pub(super) k1: Pages,
    /// `[panel][lane][key of panel]`
    pub(super) k2: Pages,
}

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
        let head = || HeadCache {
            k: pages(PAGE_BLOCKS * block),
            v: pages(PAGE_BLOCKS * block),
            k1: pages(LEVEL1_PANELS * PANEL),
            k2: pages(PANEL),
        };
        Cache { heads: (0..spec.kv_heads).map(|_| head()).collect(), spec: spec.clone(), dim, block }
    }

    fn values(&self, part: Part, limit: usize) -> usize {
        part.rows(&self.spec, 0..limit.next_multiple_of(self.block)).end * self.dim
    }

    pub(super) fn wants(&self, limit: usize) -> usize {
        let of = |head: &HeadCache| -> usize {
            Part::ALL.iter().map(|(part, _)| head.part(*part).wants(self.values(*part, limit))).sum()
        };
        self.heads.iter().map(of).sum()
    }

    pub(super) fn reserve(&mut self, limit: usize) {
        for (part, _) in Part::ALL {
            let values = self.values(part, limit);
            self.heads.iter_mut().for_each(|head| head.part_mut(part).grow(values));
        }
    }

    /// Writes keys and values `[rows, kv_heads·d]` (rows of `x` at `columns`) from position `first` on, and every
    /// compressed key with a window that ends there.
    pub(super) fn append(&mut self, x: &[f32], width: usize, [k_column, v_column]: [usize; 2], first: usize) {
        let (dim, block) = (self.dim, self.block);
        for (g, head) in self.heads.iter_mut().enumerate() {
            for (r, row) in x.chunks_exact(width).enumerate() {
                let p = first + r;
                let (start, len) = panel_of(p, block, dim);
                let lanes = head.k.at_mut(start, len)[p % block..].iter_mut().step_by(block);
                lanes.zip(&row[k_column + g * dim..][..dim]).for_each(|(to, key)| *to = *key);
                head.v.at_mut(p * dim, dim).copy_from_slice(&row[v_column + g * dim..][..dim]);
            }
        }
        self.compress(first..first + x.len() / width);
    }

    /// A test's injected error: `block` keeps the content of the previous block once `written` has reached its end.
    #[cfg(any(test, feature = "emulated"))]
    pub(super) fn make_stale(&mut self, written: std::ops::Range<usize>, block: usize) {
        let size = self.block;
        if !written.contains(&((block + 1) * size - 1)) {
            return;
        }
        for t in block * size..(block + 1) * size {
            for part in [Part::K, Part::V] {
                let before = self.read(part, t - size..t - size + 1);
                self.write(part, t, &before);
            }
        }
    }

    fn compress(&mut self, positions: std::ops::Range<usize>) {
        let (dim, block, spec) = (self.dim, self.block, &self.spec);
        let mut sums = vec![0.0; dim];
        for HeadCache { k, k1, k2, .. } in &mut self.heads {
            for (factor, part, dst) in [(1, Part::Level1, k1), (4, Part::Level2, k2)] {
                let (kernel, stride) = (factor * spec.kernel, factor * spec.stride);
                for j in part.rows(spec, positions.clone()) {
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

    pub(super) fn read(&self, part: Part, range: std::ops::Range<usize>) -> Vec<f32> {
        let mut out = Vec::with_capacity(range.len() * self.heads.len() * self.dim);
        for at in range {
            for head in &self.heads {
                let array = head.part(part);
                match part.panel(self.block) {
                    None => out.extend_from_slice(array.at(at * self.dim, self.dim)),
                    Some(panel) => {
                        let (start, len) = panel_of(at, panel, self.dim);
                        out.extend(array.at(start, len)[at % panel..].iter().step_by(panel));
                    }
                }
            }
        }
        out
    }

    pub(super) fn write(&mut self, part: Part, first: usize, values: &[f32]) {
        self.slots(part).write(first, values);
    }

    /// Shares the memory of another cache's first `positions` positions until either of them writes there. Later rows
    /// are dead.
    pub(super) fn share(&mut self, from: &Cache, positions: usize) {
        for (part, _) in Part::ALL {
            let values = self.values(part, positions);
            for (to, from) in self.heads.iter_mut().zip(&from.heads) {
                to.part_mut(part).share(from.part(part), values);
            }
        }
    }

    /// Prepares a rewrite from `keep` on: shared memory there need not be copied.
    pub(super) fn own(&mut self, keep: usize) {
        for (part, _) in Part::ALL {
            let values = self.values(part, keep);
            self.heads.iter_mut().for_each(|head| head.part_mut(part).own(values));
        }
    }

    fn slots(&mut self, part: Part) -> Slots<'_> {
        Slots {
            dim: self.dim,
            panel: part.panel(self.block),
            heads: self.heads.iter_mut().map(|h| h.part_mut(part)).collect(),
        }
    }

    pub(super) fn all_slots(&mut self) -> [(Part, &'static str, Slots<'_>); 4] {
        let (dim, block) = (self.dim, self.block);
        let [mut k, mut v, mut k1, mut k2]: [Vec<&mut Pages>; 4] = Default::default();
        for h in &mut self.heads {
            k.push(&mut h.k);
            v.push(&mut h.v);
            k1.push(&mut h.k1);
            k2.push(&mut h.k2);
        }
        let mut heads = [k, v, k1, k2].into_iter();
        Part::ALL.map(|(part, name)| {
            let heads = heads.next().unwrap_or_default();
            let panel = part.panel(block);
            (part, name, Slots { dim, panel, heads })
        })
    }
}

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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    K,
    V,
    Level1,
    Level2,
}

impl Part {
    pub(super) const ALL: [(Part, &'static str); 4] = {
        let [k, v, level1, level2] = ROW_ARRAYS;
        [(Part::K, k), (Part::V, v), (Part::Level1, level1), (Part::Level2, level2)]
    };

    fn panel(self, block: usize) -> Option<usize> {
        match self {
            Part::K => Some(block),
            Part::V => None,
            Part::Level1 | Part::Level2 => Some(PANEL),
        }
    }

    pub(super) fn rows(self, spec: &SparseSpec, positions: std::ops::Range<usize>) -> std::ops::Range<usize> {
        match self {
            Part::K | Part::V => positions,
            Part::Level1 => spec.level1_rows(positions.start)..spec.level1_rows(positions.end),
            Part::Level2 => spec.level2_rows(positions.start)..spec.level2_rows(positions.end),
        }
    }
}

impl HeadCache {
    fn part(&self, part: Part) -> &Pages {
        match part {
            Part::K => &self.k,
            Part::V => &self.v,
            Part::Level1 => &self.k1,
            Part::Level2 => &self.k2,
        }
    }
    fn part_mut(&mut self, part: Part) -> &mut Pages {
        match part {
            Part::K => &mut self.k,
            Part::V => &mut self.v,
            Part::Level1 => &mut self.k1,
            Part::Level2 => &mut self.k2,
        }
    }
}
