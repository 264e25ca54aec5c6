//! Chosen blocks of a sparse layer, the scratch of choosing and attending, and the sums of attention mass.

use std::ops::Range;

use super::device::{Account, Device, DeviceBuffer};
use super::tensors::HEAD;
use super::{launch, limits};
use crate::backend::{MAX_VERIFY_ROWS, MassOf, Result};
use crate::core::spec::{DenseRule, ScoreNorm, SparseSpec};

/// A prefill pass computes scores in parts of at most this size.
const SCORE_BYTES: usize = 32 << 20;

/// By [`MassOf`], sums over rows: `[score_blocks][2]` u64 each.
pub struct Sums(pub(super) [DeviceBuffer; 2]);

pub struct Selection {
    pub(super) lists: Lists,
    /// `[rows][kv_heads]` u32.
    pub(super) count: DeviceBuffer,
    pub(super) scores: DeviceBuffer,
    /// Parts of the log-sum-exp of a verify pass, or one value per row and head of a prefill pass.
    pub(super) lse: DeviceBuffer,
    /// Attention of the rows of a verify pass, `[16][score_blocks]` u32.
    pub(super) mass: DeviceBuffer,
    pub(super) sums: Sums,
    pub(super) hidden: Vec<Range<u32>>,
    pub(super) plan: SelectionPlan,
}

pub(super) struct Lists {
    /// `[rows][kv_heads][cap]` u32.
    pub(super) list: DeviceBuffer,
    /// Slots of the blocks that rows of a verify pass chose from paged caches, `[16][kv_heads][cap]` i32.
    pub(super) place: DeviceBuffer,
    pub(super) part_o: DeviceBuffer,
    pub(super) part_ml: DeviceBuffer,
    pub(super) part_block: DeviceBuffer,
}

impl Lists {
    fn new(device: &Device, spec: &SparseSpec, rows: usize, plan: &SelectionPlan) -> Result<Self> {
        let parts = MAX_VERIFY_ROWS * spec.heads * plan.attend_splits;
        let work = |bytes: usize| device.zeroed("block selection", bytes, Account::Work);
        Ok(Lists {
            list: work(rows * spec.kv_heads * plan.cap * 4)?,
            place: work(MAX_VERIFY_ROWS * spec.kv_heads * plan.cap * 4)?,
            part_o: work(parts * HEAD * 4)?,
            part_ml: work(parts * 8)?,
            part_block: work(parts * launch::ATTEND_BLOCKS * 8)?,
        })
    }
}

/// Largest list that a row can choose, or has to if it is dense, among `all` blocks of a context.
fn longest_list(spec: &SparseSpec, all: usize) -> usize {
    let dense = match spec.dense_rule {
        DenseRule::AsSparse => 0,
        DenseRule::Token | DenseRule::Call => spec.dense_len.div_ceil(spec.block),
        DenseRule::Always => all,
    };
    spec.topk.max(dense).min(all)
}

fn lse_splits(spec: &SparseSpec, limit: usize) -> usize {
    let keys = match spec.score_norm {
        ScoreNorm::Level2 => spec.level2_rows(limit),
        ScoreNorm::Level1 => spec.level1_rows(limit),
    };
    keys.div_ceil(launch::LSE_KEYS).max(1)
}

/// Sizes from the spec and the largest context; fixed, because CUDA graphs contain them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectionPlan {
    pub(super) cap: usize,
    pub(super) score_blocks: usize,
    pub(super) lse_splits: usize,
    pub(super) attend_splits: usize,
    /// Window and stride of the keys that norm the scores.
    pub(super) keys: [usize; 2],
}

fn norm_keys(spec: &SparseSpec) -> [usize; 2] {
    let times = match spec.score_norm {
        ScoreNorm::Level2 => 4,
        ScoreNorm::Level1 => 1,
    };
    [times * spec.kernel, times * spec.stride]
}

/// Rows at p with p + 1 below this take every block.
pub(super) fn dense_until(spec: &SparseSpec) -> usize {
    match spec.dense_rule {
        DenseRule::AsSparse => 0,
        DenseRule::Token | DenseRule::Call => spec.dense_len,
        DenseRule::Always => u32::MAX as usize,
    }
}

/// Rows before this position take every block.
pub(super) fn all_within(spec: &SparseSpec) -> usize {
    (spec.topk * spec.block).max(dense_until(spec).saturating_sub(1))
}

impl Selection {
    pub(super) fn new(device: &Device, spec: &SparseSpec, limit: usize, prefill_rows: usize) -> Result<Self> {
        limits::sparse(spec)?;
        limits::positions(limit)?;
        let score_blocks = limit.div_ceil(spec.block).next_multiple_of(64);
        let cap = longest_list(spec, score_blocks);
        let plan = SelectionPlan {
            cap,
            score_blocks,
            lse_splits: lse_splits(spec, limit),
            attend_splits: cap.div_ceil(launch::ATTEND_BLOCKS),
            keys: norm_keys(spec),
        };
        let rows = prefill_rows.max(MAX_VERIFY_ROWS);
        let (kv, heads, v) = (spec.kv_heads, spec.heads, MAX_VERIFY_ROWS);
        let work = |bytes: usize| device.zeroed("block selection", bytes, Account::Work);
        Ok(Selection {
            lists: Lists::new(device, spec, rows, &plan)?,
            count: work(rows * kv * 4)?,
            scores: work((v * kv * score_blocks * 2).max(SCORE_BYTES.min(rows * kv * score_blocks * 2)))?,
            lse: work((v * heads * plan.lse_splits * 8).max(rows * heads * 4))?,
            mass: work(v * score_blocks * 4)?,
            sums: sums(device, score_blocks)?,
            hidden: Vec::new(),
            plan,
        })
    }

    /// Makes room for another rule of selection, for comparisons; returns whether anything changed that CUDA graphs
    /// name. Lists get the greatest length that the rule allows.
    pub(super) fn adapt(&mut self, device: &Device, spec: &SparseSpec) -> Result<bool> {
        let cap = longest_list(spec, self.plan.score_blocks).max(self.plan.cap);
        let keys = norm_keys(spec);
        if cap == self.plan.cap && keys == self.plan.keys {
            return Ok(false);
        }
        let lse_splits = lse_splits(spec, self.plan.score_blocks * spec.block).max(self.plan.lse_splits);
        let attend_splits = cap.div_ceil(launch::ATTEND_BLOCKS);
        let plan = SelectionPlan { cap, attend_splits, lse_splits, keys, ..self.plan };
        if cap > self.plan.cap {
            let rows = self.count.bytes() / (spec.kv_heads * 4);
            self.lists = Lists::new(device, spec, rows, &plan)?;
        }
        let lse_bytes = MAX_VERIFY_ROWS * spec.heads * lse_splits * 8;
        if lse_bytes > self.lse.bytes() {
            self.lse = device.zeroed("block selection", lse_bytes, Account::Work)?;
        }
        self.plan = plan;
        Ok(true)
    }

    pub(super) fn sum(&self, of: MassOf) -> &DeviceBuffer {
        &self.sums.0[of as usize]
    }

    /// Rows of a prefill pass with scores over `blocks` blocks that fit at once; a multiple of 8.
    pub(super) fn score_rows(&self, kv_heads: usize, blocks: usize) -> usize {
        (self.scores.bytes() / (kv_heads * blocks * 2).max(1) / 8 * 8).max(8)
    }
}

pub(super) fn sums(device: &Device, score_blocks: usize) -> Result<Sums> {
    let sum = || device.zeroed("attention mass", score_blocks * 16, Account::Work);
    Ok(Sums([sum()?, sum()?]))
}
