//! The trait's buffers in device memory.
//!
//! Layouts: a matrix is row-major `[out, inner]` bf16, or packed ([`crate::backend::forms`]); gate and up rows are interleaved in eights (packed row
//! `16b + r` is gate row `8b + r` for r < 8, up row `8b + r − 8` otherwise), so that one block of the SwiGLU GEMM
//! holds both halves. Norm weights are f32. Everything keeps its address from the day it is made.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::bf16;

use super::device::{Account, Device, DeviceBuffer};
use super::driver::{DevicePtr, Home};
use super::joined::{Column, Columns, Joined};
use super::lazy_restore::InFlight;
use super::pool::Paged;
use super::stretch::Stretch;
use super::tables::{Entry, TableId};
use super::{host_pages, launch, limits, shape, u32_of};
use crate::backend::{BufKind, Form, MAX_VERIFY_ROWS, MassOf, Result, internal};
use crate::protocol::engine::Dtype;
use crate::spec::{DenseRule, ScoreNorm, SparseSpec};

/// Width of a head that the kernels are written for.
pub(super) const HEAD: usize = 128;
/// Memory left to others when caches grow.
pub(super) const SPARE_BYTES: u64 = 256 << 20;
/// The same where keys and values are not there: what grows is small.
pub(super) const PAGED_SPARE_BYTES: u64 = 128 << 20;
/// The same in the host's memory.
pub(super) const HOST_SPARE_BYTES: u64 = 256 << 20;
/// Scores of a prefill pass are made in parts that fit into this.
const SCORE_BYTES: usize = 32 << 20;

/// Where a buffer may begin inside of memory that it shares.
const ALIGNED: usize = 256;

/// Activations `[rows, width]`.
pub struct Buf {
    memory: Arc<DeviceBuffer>,
    /// Where in that memory.
    at: usize,
    /// Where that memory is free while these rows are in use.
    spare: usize,
    pub(super) width: usize,
    pub(super) kind: BufKind,
    pub(super) rows: usize,
}

impl Buf {
    pub(super) fn new(device: &Device, width: usize, kind: BufKind, prefill_rows: usize) -> Result<Self> {
        Self::with_rows(device, width, kind, rows_of_kind(kind, prefill_rows))
    }

    pub(super) fn with_rows(device: &Device, width: usize, kind: BufKind, rows: usize) -> Result<Self> {
        let spare = rows * width * size_of_kind(kind);
        let memory = Arc::new(device.zeroed("working buffers", spare, Account::Work)?);
        Ok(Buf { memory, at: 0, spare, width, kind, rows })
    }

    /// Groups of buffers in the same memory, one group at a time.
    pub(super) fn alternating(
        device: &Device,
        groups: &[&[(usize, BufKind)]],
        prefill_rows: usize,
    ) -> Result<Vec<Vec<Self>>> {
        let bytes = |&(width, kind): &(usize, BufKind)| {
            (rows_of_kind(kind, prefill_rows) * width * size_of_kind(kind)).next_multiple_of(ALIGNED)
        };
        let sizes: Vec<usize> = groups.iter().map(|group| group.iter().map(bytes).sum()).collect();
        let most = sizes.iter().copied().max().unwrap_or_default();
        let memory = Arc::new(device.zeroed("working buffers", most, Account::Work)?);
        let group = |(group, spare): (&&[(usize, BufKind)], usize)| {
            let mut next = 0;
            let buf = |asked: &(usize, BufKind)| {
                let at = next;
                next += bytes(asked);
                let (width, kind) = *asked;
                Buf { memory: Arc::clone(&memory), at, spare, width, kind, rows: rows_of_kind(kind, prefill_rows) }
            };
            group.iter().map(buf).collect()
        };
        Ok(groups.iter().zip(sizes).map(group).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows * self.width * self.value_bytes()
    }

    /// Memory that is free while these rows are in use, if there is so much.
    pub(super) fn spare(&self, bytes: usize) -> Option<DevicePtr> {
        (self.spare + bytes <= self.memory.bytes()).then(|| self.memory.ptr() + self.spare as u64)
    }

    /// Bytes of one value.
    pub(super) fn value_bytes(&self) -> usize {
        size_of_kind(self.kind)
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr() + self.at as u64
    }

    /// Address of a column in row 0.
    pub(super) fn column(&self, column: usize) -> DevicePtr {
        self.ptr() + (column * self.value_bytes()) as u64
    }

    /// Address of a row.
    pub(super) fn row(&self, row: usize) -> DevicePtr {
        self.column(row * self.width)
    }

    /// An f32 buffer of at least this width.
    pub(super) fn wide(&self, op: &'static str, width: usize) -> Result<DevicePtr> {
        match self.kind {
            BufKind::Residual | BufKind::Wide | BufKind::Logits if self.width >= width => Ok(self.ptr()),
            _ => Err(shape(op, format!("f32 [rows, {width}]"), format!("{:?} [rows, {}]", self.kind, self.width))),
        }
    }

    /// A bf16 buffer of at least this width.
    pub(super) fn narrow(&self, op: &'static str, width: usize) -> Result<DevicePtr> {
        match self.kind {
            BufKind::Activation if self.width >= width => Ok(self.ptr()),
            _ => Err(shape(op, format!("bf16 [rows, {width}]"), format!("{:?} [rows, {}]", self.kind, self.width))),
        }
    }
}

fn rows_of_kind(kind: BufKind, prefill_rows: usize) -> usize {
    match kind {
        BufKind::Residual | BufKind::Activation | BufKind::Wide => prefill_rows.max(MAX_VERIFY_ROWS),
        BufKind::Logits => MAX_VERIFY_ROWS,
    }
}

fn size_of_kind(kind: BufKind) -> usize {
    match kind {
        BufKind::Activation => 2,
        BufKind::Residual | BufKind::Wide | BufKind::Logits => 4,
    }
}

/// Weight `[out, inner]`: parts one above the other, each in its own form.
pub struct Matrix {
    pub(super) parts: Vec<Part>,
    pub(super) out: usize,
    pub(super) inner: usize,
}

/// Neighbouring rows of a weight in one form.
pub(super) struct Part {
    pub(super) memory: DeviceBuffer,
    pub(super) form: Form,
    pub(super) rows: usize,
}

impl Matrix {
    /// One part.
    pub(super) fn whole(memory: DeviceBuffer, form: Form, out: usize, inner: usize) -> Matrix {
        Matrix { parts: vec![Part { memory, form, rows: out }], out, inner }
    }

    /// Its address, if it is plain bf16 in one piece.
    pub(super) fn plain(&self) -> Option<DevicePtr> {
        match self.parts.as_slice() {
            [part] if part.form == Form::Bf16 => Some(part.memory.ptr()),
            _ => None,
        }
    }
}

/// Norm weight `[n]` f32.
pub struct Vector {
    pub(super) memory: DeviceBuffer,
    pub(super) n: usize,
}

/// What all caches of a sequence take together: they grow in step, so one refusal speaks for all.
#[derive(Default)]
pub(super) struct CacheLedger {
    /// Bytes per position over all living caches.
    pub(super) bytes_per_token: AtomicU64,
    /// The same in the host's memory.
    pub(super) host_bytes_per_token: AtomicU64,
    /// Positions that were found to fit.
    pub(super) approved: AtomicUsize,
}

impl CacheLedger {
    /// Bytes of the device that go with what the host's memory has room for; all where no keys and values lie there.
    pub(super) fn room_beside_host(&self) -> u64 {
        let [here, host] = [&self.bytes_per_token, &self.host_bytes_per_token].map(|n| n.load(Ordering::Relaxed));
        let free = if host > 0 { host_pages::free_bytes() } else { None };
        free.map_or(u64::MAX, |free| free.saturating_sub(HOST_SPARE_BYTES) / host * here)
    }
}

/// Keys, values and compressed keys of one sparse layer, bf16; the memory is that of all layers of its sequence.
pub struct Cache {
    joined: Arc<Mutex<Joined>>,
    /// Which layer of those.
    place: usize,
    /// k, v, k1, k2
    columns: Columns,
    /// Bytes of one position in k.
    pub(super) row_bytes: usize,
    /// Where kernels find it.
    pub(super) table: TableId,
    /// Rows of k and v that are still in flight. Goes before the memory that they come to.
    in_flight: Option<InFlight>,
    /// k and v are host memory, and this says which of their blocks are on the device.
    pub(super) paged: Option<Paged>,
    spec: SparseSpec,
}

impl Cache {
    /// One for each of `tables`: the layers of one sequence.
    pub(super) fn all(
        device: &Device,
        ledger: &Arc<CacheLedger>,
        spec: &SparseSpec,
        limit: usize,
        tables: &[TableId],
        home: Home,
    ) -> Result<Vec<Self>> {
        limits::sparse(spec)?;
        limits::positions(limit)?;
        // A block is loaded whole, so the last one has memory to its end.
        let limit = limit.next_multiple_of(spec.block);
        let (joined, columns) = Joined::new(device, ledger, spec, limit, home, tables.len())?;
        let joined = Arc::new(Mutex::new(joined));
        let one = |(place, (table, columns)): (usize, (&TableId, Columns))| {
            Ok(Cache {
                joined: Arc::clone(&joined),
                place,
                columns,
                row_bytes: spec.kv_heads * HEAD * 2,
                table: *table,
                in_flight: None,
                paged: match home {
                    Home::Device => None,
                    Home::Host => Some(Paged::new(device, spec, limit)?),
                },
                spec: spec.clone(),
            })
        };
        tables.iter().zip(columns).enumerate().map(one).collect()
    }

    /// The memory of its sequence.
    pub(super) fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of caches that are all layers of one sequence.
    pub(super) fn joined_of<'a>(caches: &'a [&mut Cache]) -> Result<MutexGuard<'a, Joined>> {
        let first = caches.first().ok_or_else(|| internal("cache", "no layer of a sequence"))?;
        let joined = first.joined();
        if joined.layers() != caches.len() || !caches.iter().all(|cache| first.is_beside(cache)) {
            return Err(internal("cache", "some layers of a sequence and not all"));
        }
        Ok(joined)
    }

    /// Whether both are layers of one sequence.
    pub(super) fn is_beside(&self, other: &Cache) -> bool {
        Arc::ptr_eq(&self.joined, &other.joined)
    }

    /// Rows from `position` on are written by something else than a verify pass.
    pub(super) fn forget(&self, position: usize) -> Result<()> {
        self.paged.as_ref().map_or(Ok(()), |paged| paged.forget(position))
    }

    /// `RowCache`
    pub(super) fn entry(&self) -> Entry {
        self.columns.each_ref().map(Column::ptr)
    }

    /// Elements between tiles of keys and values, and of compressed keys.
    pub(super) fn tiles(&self) -> Result<[u32; 2]> {
        let [k, _, k1, _] = &self.columns;
        Ok([k.tile()?, k1.tile()?])
    }

    /// k, v, k1, k2
    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Some rows of k, v, k1 or k2, and whose memory they are.
    pub(super) fn rows(&self, index: usize, rows: &Range<usize>) -> Result<(Stretch, Home)> {
        let column = self.columns.get(index).ok_or_else(|| internal("cache", "an array that is not there"))?;
        Ok((self.joined().rows(column, rows)?, column.home))
    }

    /// The shape it was made for.
    pub(super) fn spec(&self) -> &SparseSpec {
        &self.spec
    }

    /// Rows in flight, if an operation may have to wait for some.
    pub(super) fn in_flight(&self) -> Option<&InFlight> {
        self.in_flight.as_ref().filter(|a| !a.lazy_restore.complete())
    }

    /// Other rows than before are in flight, or none.
    pub(super) fn set_in_flight(&mut self, in_flight: Option<InFlight>) {
        self.in_flight = in_flight;
    }

    /// Bytes of the device that [`Cache::reserve`] of `limit` positions would take; the first layer answers for all.
    pub(super) fn wants(&self, limit: usize) -> u64 {
        if self.place == 0 { self.joined().wants(limit) } else { 0 }
    }

    /// Memory under positions below `limit`, of all layers of the sequence.
    pub(super) fn reserve(&mut self, limit: usize) -> Result<()> {
        self.joined().reserve(limit)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.in_flight = None;
    }
}

/// Recurrent state of one lightning layer `[heads, 128, 128]` f32 and the rows not yet in it.
pub struct Recurrent {
    pub(super) state: DeviceBuffer,
    /// `[2][16][kv_heads][128]` bf16; which half counts is in the step.
    pub(super) pend_k: DeviceBuffer,
    pub(super) pend_v: DeviceBuffer,
    /// Decay rates `[heads]`.
    pub(super) slopes: DeviceBuffer,
    /// Where kernels find it.
    pub(super) table: TableId,
}

impl Recurrent {
    /// `RowState`
    pub(super) fn entry(&self) -> Entry {
        [self.state.ptr(), self.pend_k.ptr(), self.pend_v.ptr(), self.slopes.ptr()]
    }
}

/// Sums over rows, of thoughts and of the answer: `[score_blocks][2]` u64 each.
pub struct Sums([DeviceBuffer; 2]);

impl Sums {
    pub(super) fn both(&self) -> [&DeviceBuffer; 2] {
        let Sums([thoughts, answer]) = self;
        [thoughts, answer]
    }
}

/// Chosen blocks of one sparse layer and the scratch that choosing and attending need.
pub struct Selection {
    /// What the longest list decides the size of.
    pub(super) lists: Lists,
    /// `[rows][kv_heads]` u32.
    pub(super) count: DeviceBuffer,
    /// bf16 block scores of one part of a pass.
    pub(super) scores: DeviceBuffer,
    /// Parts of the log-sum-exp of a verify pass, or one value per row and head of a prefill part.
    pub(super) lse: DeviceBuffer,
    /// Attention of the rows of a verify pass, `[16][score_blocks]` u32.
    pub(super) mass: DeviceBuffer,
    pub(super) sums: Sums,
    /// Blocks that rows of prefill passes do not attend to.
    pub(super) hidden: Vec<Range<u32>>,
    pub(super) plan: SelectionPlan,
}

/// Chosen blocks and what attending to them needs.
pub(super) struct Lists {
    /// `[rows][kv_heads][cap]` u32.
    pub(super) list: DeviceBuffer,
    /// Slots of the blocks that rows of a verify pass chose from paged caches, `[16][kv_heads][cap]` i32.
    pub(super) place: DeviceBuffer,
    /// Attention parts of a verify pass.
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
            part_block: work(parts * launch::ATTEND_BLOCKS as usize * 8)?,
        })
    }
}

/// Most blocks that a row can choose, or has to where it is dense, of `all` blocks of a context.
fn longest_list(spec: &SparseSpec, all: usize) -> usize {
    let dense = match spec.dense_rule {
        DenseRule::AsSparse => 0,
        DenseRule::Token | DenseRule::Call => spec.dense_len.div_ceil(spec.block),
        DenseRule::Always => all,
    };
    spec.topk.max(dense).min(all)
}

/// Parts of the log-sum-exp over the keys of a context of `limit` positions.
fn lse_splits(spec: &SparseSpec, limit: usize) -> usize {
    let keys = match spec.score_norm {
        ScoreNorm::Level2 => spec.level2_rows(limit),
        ScoreNorm::Level1 => spec.level1_rows(limit),
    };
    keys.div_ceil(launch::LSE_KEYS as usize).max(1)
}

/// Sizes that follow from the spec and the largest context; fixed, because CUDA graphs contain them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectionPlan {
    /// Most blocks one row can choose.
    pub(super) cap: usize,
    /// Blocks of the largest context.
    pub(super) score_blocks: usize,
    pub(super) lse_splits: usize,
    pub(super) attend_splits: usize,
    /// The keys that normalise the scores.
    pub(super) keys: NormKeys,
}

/// Window and stride of the keys that normalise the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NormKeys {
    pub(super) window: u32,
    pub(super) stride: u32,
}

impl NormKeys {
    fn of(spec: &SparseSpec) -> Result<Self> {
        let times = match spec.score_norm {
            ScoreNorm::Level2 => 4,
            ScoreNorm::Level1 => 1,
        };
        Ok(NormKeys { window: u32_of(times * spec.kernel)?, stride: u32_of(times * spec.stride)? })
    }
}

/// Rows at p with p + 1 below this take every block.
pub(super) fn dense_until(spec: &SparseSpec) -> Result<u32> {
    match spec.dense_rule {
        DenseRule::AsSparse => Ok(0),
        DenseRule::Token | DenseRule::Call => u32_of(spec.dense_len),
        DenseRule::Always => Ok(u32::MAX),
    }
}

impl Selection {
    pub(super) fn new(device: &Device, spec: &SparseSpec, limit: usize, prefill_rows: usize) -> Result<Self> {
        limits::sparse(spec)?;
        limits::positions(limit)?;
        let score_blocks = limit.div_ceil(spec.block).next_multiple_of(64);
        let cap = longest_list(spec, score_blocks);
        let keys = NormKeys::of(spec)?;
        let plan = SelectionPlan {
            cap,
            score_blocks,
            lse_splits: lse_splits(spec, limit),
            attend_splits: cap.div_ceil(launch::ATTEND_BLOCKS as usize),
            keys,
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

    /// Makes room for another rule than the one it was made for, as comparisons use them; says whether anything changed that
    /// CUDA graphs name. Lists become at once as long as the rule can ever make them.
    pub(super) fn adapt(&mut self, device: &Device, spec: &SparseSpec) -> Result<bool> {
        let cap = longest_list(spec, self.plan.score_blocks).max(self.plan.cap);
        let keys = NormKeys::of(spec)?;
        if cap == self.plan.cap && keys == self.plan.keys {
            return Ok(false);
        }
        let lse_splits = lse_splits(spec, self.plan.score_blocks * spec.block).max(self.plan.lse_splits);
        let attend_splits = cap.div_ceil(launch::ATTEND_BLOCKS as usize);
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

    /// Those of another sequence.
    pub(super) fn empty_sums(&self, device: &Device) -> Result<Sums> {
        sums(device, self.plan.score_blocks)
    }

    /// The sum of thoughts or of the answer.
    pub(super) fn sum(&self, of: MassOf) -> &DeviceBuffer {
        let [thoughts, answer] = self.sums.both();
        match of {
            MassOf::Thoughts => thoughts,
            MassOf::Answer => answer,
        }
    }

    /// Rows of a prefill pass whose scores over `blocks` blocks fit at once; a multiple of 8.
    pub(super) fn score_rows(&self, kv_heads: usize, blocks: usize) -> usize {
        (self.scores.bytes() / (kv_heads * blocks * 2).max(1) / 8 * 8).max(8)
    }
}

fn sums(device: &Device, score_blocks: usize) -> Result<Sums> {
    let sum = || device.zeroed("attention mass", score_blocks * 16, Account::Work);
    Ok(Sums([sum()?, sum()?]))
}

/// Values of an array as f32.
pub(super) fn floats(dtype: Dtype, data: &[u8]) -> Result<Vec<f32>> {
    match dtype {
        Dtype::F32 => Ok(data.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()),
        Dtype::Bf16 => Ok(data.chunks_exact(2).map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32()).collect()),
        Dtype::U32 | Dtype::U8 => Err(shape("values", "f32 or bf16", format!("{dtype:?}"))),
    }
}
