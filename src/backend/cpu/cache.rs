//! Keys, values and compressed keys of one sparse layer on the CPU.
//!
//! Keys lie transposed in panels, so that scores of a row are sums over lanes in one fixed order.

use crate::spec::SparseSpec;

/// Compressed keys per panel.
pub(super) const PANEL: usize = 64;
/// One KV head of one layer.
pub(super) struct HeadCache {
    /// Keys, `[block][lane][token of block]`.
    pub(super) k: Vec<f32>,
    /// Values, `[token][lane]`.
    pub(super) v: Vec<f32>,
    /// Level-1 compressed keys, `[panel][lane][key of panel]`.
    pub(super) k1: Vec<f32>,
    /// Level-2 compressed keys, laid out alike.
    pub(super) k2: Vec<f32>,
}

/// KV and compressed keys of one sparse layer, f32.
pub struct Cache {
    pub(super) heads: Vec<HeadCache>,
    spec: SparseSpec,
    pub(super) dim: usize,
    pub(super) block: usize,
    /// Positions that can be written.
    capacity: usize,
}

/// Where lane `lane` of key `at` lies in panels of `panel` keys.
fn place(at: usize, lane: usize, panel: usize, dim: usize) -> usize {
    (at / panel * dim + lane) * panel + at % panel
}

impl Cache {
    pub(super) fn new(spec: &SparseSpec) -> Cache {
        let head = || HeadCache { k: Vec::new(), v: Vec::new(), k1: Vec::new(), k2: Vec::new() };
        Cache {
            heads: (0..spec.kv_heads).map(|_| head()).collect(),
            spec: spec.clone(),
            dim: spec.head_dim,
            block: spec.block,
            capacity: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.heads.iter().map(|h| 4 * (h.k.capacity() + h.v.capacity() + h.k1.capacity() + h.k2.capacity())).sum()
    }

    /// Makes positions below `limit` writable, in steps that grow with the cache.
    pub(super) fn reserve(&mut self, limit: usize) {
        if limit <= self.capacity {
            return;
        }
        // An eighth more than asked: few copies, little waste.
        let capacity = (limit + limit / 8).next_multiple_of(self.block * 16);
        let (dim, block) = (self.dim, self.block);
        let grow = |v: &mut Vec<f32>, len: usize| {
            if v.is_empty() {
                // Zero pages of the system, touched when they are used.
                *v = vec![0.0; len];
                return;
            }
            v.reserve_exact(len - v.len());
            v.resize(len, 0.0);
        };
        for h in &mut self.heads {
            grow(&mut h.k, capacity.next_multiple_of(block) * dim);
            grow(&mut h.v, capacity.next_multiple_of(block) * dim);
            grow(&mut h.k1, self.spec.level1_rows(capacity).next_multiple_of(PANEL) * dim);
            grow(&mut h.k2, self.spec.level2_rows(capacity).next_multiple_of(PANEL) * dim);
        }
        self.capacity = capacity;
    }

    /// Writes keys and values `[rows, kv_heads·d]` (rows of `x` at `columns`) from position `first` on, and every
    /// compressed key whose window they complete.
    pub(super) fn append(
        &mut self,
        spec: &SparseSpec,
        x: &[f32],
        width: usize,
        k_column: usize,
        v_column: usize,
        first: usize,
    ) {
        let (dim, block) = (self.dim, self.block);
        for (g, head) in self.heads.iter_mut().enumerate() {
            for (r, row) in x.chunks_exact(width).enumerate() {
                let p = first + r;
                for (lane, key) in row[k_column + g * dim..][..dim].iter().enumerate() {
                    head.k[place(p, lane, block, dim)] = *key;
                }
                head.v[p * dim..][..dim].copy_from_slice(&row[v_column + g * dim..][..dim]);
            }
        }
        self.compress(spec, first..first + x.len() / width);
    }

    /// Leaves in `block` what stood one block before, once `written` has reached its end.
    #[cfg(test)]
    pub(super) fn make_stale(&mut self, written: std::ops::Range<usize>, block: usize) {
        let (dim, size) = (self.dim, self.block);
        if !written.contains(&((block + 1) * size - 1)) {
            return;
        }
        for head in &mut self.heads {
            for t in block * size..(block + 1) * size {
                for lane in 0..dim {
                    head.k[place(t, lane, size, dim)] = head.k[place(t - size, lane, size, dim)];
                }
                head.v.copy_within((t - size) * dim..(t - size + 1) * dim, t * dim);
            }
        }
    }

    /// Writes the compressed keys whose window ends inside `positions`.
    fn compress(&mut self, spec: &SparseSpec, positions: std::ops::Range<usize>) {
        let (dim, block) = (self.dim, self.block);
        for head in &mut self.heads {
            for (factor, is_level1) in [(1, true), (4, false)] {
                let (kernel, stride) = (factor * spec.kernel, factor * spec.stride);
                let count = |length: usize| {
                    if is_level1 { spec.level1_rows(length) } else { spec.level2_rows(length) }
                };
                let dst = if is_level1 { &mut head.k1 } else { &mut head.k2 };
                for j in count(positions.start)..count(positions.end) {
                    for lane in 0..dim {
                        let mut sum = 0.0;
                        for t in j * stride..j * stride + kernel {
                            sum += head.k[place(t, lane, block, dim)];
                        }
                        dst[place(j, lane, PANEL, dim)] = sum / kernel as f32;
                    }
                }
            }
        }
    }

    /// Rows `range` of `k`, `v`, `k1` or `k2` as `[rows, kv_heads, d]`.
    pub(super) fn read(&self, part: Part, range: std::ops::Range<usize>) -> Vec<f32> {
        let mut out = Vec::with_capacity(range.len() * self.heads.len() * self.dim);
        for at in range {
            for head in &self.heads {
                match part.panel(self.block) {
                    None => out.extend_from_slice(&head.v[at * self.dim..][..self.dim]),
                    Some(panel) => {
                        out.extend((0..self.dim).map(|lane| head.part(part)[place(at, lane, panel, self.dim)]))
                    }
                }
            }
        }
        out
    }

    /// The inverse of [`Cache::read`], from row `first` on.
    pub(super) fn write(&mut self, part: Part, first: usize, values: &[f32]) {
        self.slots(part).write(first, values);
    }

    /// Copies whole panels until the first `positions` positions are here. Rows behind them are dead.
    pub(super) fn copy_from(&mut self, from: &Cache, spec: &SparseSpec, positions: usize) {
        let (dim, block) = (self.dim, self.block);
        for (part, _) in Part::ALL {
            let rows = part.rows(spec, 0..positions).end;
            let values = rows.next_multiple_of(part.panel(block).unwrap_or(1)) * dim;
            for (to, from) in self.heads.iter_mut().zip(&from.heads) {
                to.part_mut(part)[..values].copy_from_slice(&from.part(part)[..values]);
            }
        }
    }

    /// One of the four arrays, to be written beside the others.
    fn slots(&mut self, part: Part) -> Slots<'_> {
        Slots {
            dim: self.dim,
            panel: part.panel(self.block),
            heads: self.heads.iter_mut().map(|h| h.part_mut(part)).collect(),
        }
    }

    /// All four, each to be written by its own thread.
    pub(super) fn all_slots(&mut self) -> [(Part, &'static str, Slots<'_>); 4] {
        let (dim, block) = (self.dim, self.block);
        let [mut k, mut v, mut k1, mut k2]: [Vec<&mut [f32]>; 4] = Default::default();
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

/// Where the rows of one array go.
pub(super) struct Slots<'a> {
    dim: usize,
    /// Rows of a panel, for arrays that have some.
    panel: Option<usize>,
    /// One for each KV head.
    heads: Vec<&'a mut [f32]>,
}

impl Slots<'_> {
    /// Values of one row.
    pub(super) fn row_width(&self) -> usize {
        self.dim * self.heads.len()
    }

    /// Puts rows `[rows, kv_heads, d]` in place, from row `first` on.
    pub(super) fn write(&mut self, first: usize, values: &[f32]) {
        let (dim, heads) = (self.dim, self.heads.len());
        for (i, row) in values.chunks_exact(dim).enumerate() {
            let at = first + i / heads;
            let head = &mut self.heads[i % heads];
            match self.panel {
                None => head[at * dim..][..dim].copy_from_slice(row),
                Some(panel) => {
                    // Lanes of a panel lie `panel` apart.
                    let lanes = head[place(at, 0, panel, dim)..].iter_mut().step_by(panel);
                    lanes.zip(row).for_each(|(to, value)| *to = *value);
                }
            }
        }
    }
}

/// The four arrays of a cache, in the order of images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    K,
    V,
    Level1,
    Level2,
}

impl Part {
    pub(super) const ALL: [(Part, &'static str); 4] =
        [(Part::K, "k"), (Part::V, "v"), (Part::Level1, "k1"), (Part::Level2, "k2")];

    /// Keys per panel; values are not in panels.
    fn panel(self, block: usize) -> Option<usize> {
        match self {
            Part::K => Some(block),
            Part::V => None,
            Part::Level1 | Part::Level2 => Some(PANEL),
        }
    }

    /// Rows that belong to the token positions `positions`.
    pub(super) fn rows(self, spec: &SparseSpec, positions: std::ops::Range<usize>) -> std::ops::Range<usize> {
        match self {
            Part::K | Part::V => positions,
            Part::Level1 => spec.level1_rows(positions.start)..spec.level1_rows(positions.end),
            Part::Level2 => spec.level2_rows(positions.start)..spec.level2_rows(positions.end),
        }
    }
}

impl HeadCache {
    fn part(&self, part: Part) -> &[f32] {
        match part {
            Part::K => &self.k,
            Part::V => &self.v,
            Part::Level1 => &self.k1,
            Part::Level2 => &self.k2,
        }
    }
    fn part_mut(&mut self, part: Part) -> &mut [f32] {
        match part {
            Part::K => &mut self.k,
            Part::V => &mut self.v,
            Part::Level1 => &mut self.k1,
            Part::Level2 => &mut self.k2,
        }
    }
}
