//! Block-sparse attention: cache, attention and its mass; [`super::select`] chooses the blocks.

use std::ops::Range;

use super::super::cache::Cache;
use super::super::driver::{DevicePtr, Queue, TileMap};
use super::super::limits::BLOCK;
use super::super::selection::{Selection, Sums};
use super::super::tables::{Entry, TableId, Tables};
use super::super::tensors::{Buf, HEAD};
use super::super::{Cuda, check_shape, launch};
use super::check_rows;
use crate::backend::{BlockMass, MAX_VERIFY_ROWS, MassOf, Pass, Result, Sparse, internal, invariant};
use crate::core::spec::SparseSpec;

/// Both stages scale by 1/√128.
pub(super) fn softmax_scale() -> f32 {
    1.0 / (HEAD as f32).sqrt()
}

pub(super) fn only<T>(caches: &[T]) -> Result<&T> {
    match caches {
        [cache] => Ok(cache),
        _ => Err(internal("prefill", "a pass of several sequences")),
    }
}

/// Elements between tiles of keys and values, and of compressed keys: equal in all caches of a pass.
pub(super) fn tiles_of(caches: &[&Cache]) -> Result<[usize; 2]> {
    let first = caches.first().ok_or_else(|| internal("verify", "a pass of no sequence"))?.tiles();
    let holds = caches.iter().all(|cache| cache.tiles() == first);
    invariant(holds, "verify", "caches of a pass with tiles of two shapes")?;
    Ok(first)
}

pub(super) fn tile_map([k, v]: [DevicePtr; 2], tile: usize, spec: &SparseSpec, tiles: usize) -> TileMap {
    TileMap { at: k, second: v.wrapping_sub(k), width: spec.kv_heads * HEAD, rows: BLOCK, tile, tiles }
}

pub(super) fn kv_columns(x: &Buf, spec: &SparseSpec) -> [DevicePtr; 2] {
    [spec.heads, spec.heads + spec.kv_heads].map(|head| x.column(head * HEAD))
}

impl Cuda {
    pub(super) fn table_of(&mut self, caches: &[&Cache]) -> Result<DevicePtr> {
        let table = caches.first().ok_or_else(|| internal("verify", "a pass of no sequence"))?.table;
        self.bind(table, caches.iter().map(|cache| cache.entry()))?;
        self.tables.flush()?;
        Ok(self.tables.ptr(table))
    }

    pub(super) fn bind(&mut self, table: TableId, of: impl Iterator<Item = Entry>) -> Result<()> {
        self.tables.set(table, self.step.verify_groups().map(|group| group.rows), of)
    }
}

impl Sparse for Cuda {
    fn bind_caches(&mut self, layer: usize, caches: &mut [&mut Cache]) -> Result<()> {
        let table = Tables::of_layer(layer)?;
        for cache in caches.iter_mut() {
            cache.table = table;
            self.settle(cache)?;
        }
        let caches: Vec<&Cache> = caches.iter().map(|cache| &**cache).collect();
        self.bind(table, caches.iter().map(|cache| cache.entry()))?;
        self.bind_blocks(&caches)
    }

    fn append_kv(&mut self, caches: &mut [&mut Cache], x: &Buf, spec: &SparseSpec, pass: Pass) -> Result<()> {
        self.step.flush()?;
        x.narrow("append_kv", (spec.heads + 2 * spec.kv_heads) * HEAD)?;
        let groups = self.step.groups(pass, caches.len())?;
        for (group, cache) in groups.iter().zip(caches.iter()) {
            // Windows of compressed keys that end in the new rows begin before them. With several sequences, this waits
            // for all rows.
            let at = group.place.position;
            cache.wait_for(if groups.len() > 1 { 0 } else { at.saturating_sub(4 * spec.kernel) }..at)?;
        }
        for cache in caches.iter_mut() {
            self.settle(cache)?;
        }
        let [xk, xv] = kv_columns(x, spec);
        let (ldx, kv_heads) = (x.width, spec.kv_heads);
        match pass {
            Pass::Verify { rows } => {
                let caches: Vec<&Cache> = caches.iter().map(|cache| &**cache).collect();
                let (of, [row_tile, key_tile]) = (self.table_of(&caches)?, tiles_of(&caches)?);
                let at = self.step.rows_ptr();
                let append = launch::AppendKvVerify { xk, xv, ldx, at, of, kv_heads, row_tile, key_tile, rows };
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe { append.launch(self.device.driver()) }
            }
            Pass::Prefill { rows } => {
                let cache = only(caches)?;
                let ([k, v, k1, k2], paged) = (cache.entry(), cache.paged.is_some());
                let [row_tile, key_tile] = cache.tiles();
                cache.forget(self.step.place.position)?;
                let step = self.step.ptr();
                let append = launch::AppendKv { k, v, k1, k2, xk, xv, ldx, step, kv_heads, row_tile, key_tile, rows };
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe { append.launch(self.device.driver())? };
                if paged { self.pools.ring(&self.device, spec, self.prefill_rows)?.appended() } else { Ok(()) }
            }
        }
    }

    fn select_blocks(
        &mut self,
        sel: &mut Selection,
        x: &Buf,
        caches: &[&Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.choose(sel, x, caches, spec, pass)
    }

    fn attend(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        sel: &mut Selection,
        caches: &[&Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        self.step.groups(pass, caches.len())?;
        // With several caches, all rows have arrived already.
        if let [cache] = caches {
            self.await_chosen(cache, sel, spec, pass.rows())?;
        }
        let q = x.narrow("attend", spec.heads * HEAD)?;
        let to = o.wide("attend", spec.heads * HEAD)?;
        check_rows("attend", o, pass.rows())?;
        let paged = caches.iter().filter(|cache| cache.paged.is_some()).count();
        let holds = paged == 0 || paged == caches.len();
        invariant(holds, "attend", "keys and values of some sequences are in host memory, of others not")?;
        let [row_tile, _] = tiles_of(caches)?;
        let operands = launch::Attend {
            q,
            ldq: x.width,
            o: to,
            ldo: o.width,
            step: self.step.ptr(),
            list: sel.lists.list.ptr(),
            count: sel.count.ptr(),
            cap: sel.plan.cap,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            row_tile,
            scale: softmax_scale(),
            rows: pass.rows(),
            ..launch::Attend::default()
        };
        match pass {
            Pass::Verify { .. } => {
                let of = self.table_of(caches)?;
                let leave = self.leave_gated(o.ptr(), spec.heads * HEAD, pass, x)?;
                let operands = launch::Attend {
                    at: self.step.rows_ptr(),
                    of,
                    part_o: sel.lists.part_o.ptr(),
                    part_ml: sel.lists.part_ml.ptr(),
                    part_block: sel.lists.part_block.ptr(),
                    splits: sel.plan.attend_splits,
                    all_until: self.all_within,
                    mass: sel.mass.ptr(),
                    ldm: sel.plan.score_blocks,
                    next_norm: leave.next.norm,
                    next_x: leave.next.x,
                    next_sums: leave.next.sums,
                    gate: leave.way.gate,
                    ldg: leave.way.ldg,
                    ..operands
                };
                if paged > 0 {
                    self.attend_pool(&operands, x, sel, caches, spec)?;
                } else {
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe { launch::AttendVerify(operands).launch(self.device.driver())? };
                }
                // SAFETY: as above.
                unsafe { launch::AttendCombine(operands).launch(self.device.driver()) }
            }
            Pass::Prefill { rows } => {
                self.ready.forget();
                let cache = only(caches)?;
                let [k, v, ..] = cache.entry();
                let d = self.device.driver();
                let operands = launch::Attend { k, v, slots: launch::attend_slots(d), ..operands };
                if paged > 0 {
                    return self.attend_staged(&operands, cache, spec);
                }
                let end = (self.step.place.position + rows).div_ceil(BLOCK);
                let map = d.tensor_map(&tile_map([k, v], row_tile, spec, end))?;
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe { launch::AttendPrefill(launch::Attend { map, ..operands }).launch(d) }
            }
        }
    }

    fn read_selection(&mut self, sel: &Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>> {
        let (kv, cap) = (spec.kv_heads, sel.plan.cap);
        let counts = self.words(sel.count.ptr(), rows * kv)?;
        let lists = self.words(sel.lists.list.ptr(), rows * kv * cap)?;
        let chosen: Vec<Vec<u32>> = lists
            .chunks_exact(cap)
            .zip(counts)
            .map(|(list, count)| list.iter().take(count as usize).copied().collect())
            .collect();
        Ok(chosen.chunks(kv).map(<[Vec<u32>]>::to_vec).collect())
    }

    fn hide_blocks(&mut self, sel: &mut Selection, blocks: &[Range<u32>]) {
        sel.hidden = blocks.to_vec();
    }

    fn add_mass(
        &mut self,
        sel: &mut Selection,
        spec: &SparseSpec,
        rows: Range<usize>,
        position: usize,
        of: MassOf,
    ) -> Result<()> {
        check_shape(rows.end <= MAX_VERIFY_ROWS, "add_mass", format_args!("at most {MAX_VERIFY_ROWS} rows"), rows.end)?;
        if rows.is_empty() {
            return Ok(());
        }
        let blocks = (position + rows.len()).div_ceil(spec.block);
        let launch = launch::MassAdd {
            sums: sel.sum(of).ptr(),
            mass: sel.mass.ptr(),
            ldm: sel.plan.score_blocks,
            // Position that row 0 would have in the same sequence; may be negative.
            position: (position as u32).wrapping_sub(rows.start as u32) as usize,
            blocks: blocks.min(sel.plan.score_blocks),
            init: spec.init_blocks,
            local: spec.local_blocks,
            row0: rows.start,
            rows: rows.len(),
        };
        // SAFETY: both have a value for each of `score_blocks` blocks, `mass` for 16 rows.
        unsafe { launch.launch(self.device.driver()) }
    }

    fn clear_mass(&mut self, sel: &mut Selection, rows: Range<usize>) -> Result<()> {
        let row = sel.plan.score_blocks * 4;
        let (from, to) = ((rows.start * row).min(sel.mass.bytes()), (rows.end * row).min(sel.mass.bytes()));
        // SAFETY: within the buffer.
        unsafe { self.device.driver().fill(sel.mass.ptr() + from as u64, 0, to - from, Queue::Compute) }
    }

    fn reset_mass(&mut self, sel: &mut Selection) -> Result<()> {
        for buffer in sel.sums.0.iter().chain([&sel.mass]) {
            // SAFETY: the buffer has this size.
            unsafe { self.device.driver().fill(buffer.ptr(), 0, buffer.bytes(), Queue::Compute)? };
        }
        Ok(())
    }

    fn exchange_sums(&mut self, sel: &mut Selection, sums: &mut Sums) {
        std::mem::swap(&mut sel.sums, sums);
    }

    fn read_mass(&mut self, sel: &Selection, of: MassOf) -> Result<Vec<BlockMass>> {
        let blocks = self.step.place.position.div_ceil(BLOCK).min(sel.plan.score_blocks);
        let data = self.staging.fetch(sel.sum(of).ptr(), blocks * 16)?;
        let pairs = data.chunks_exact(16).map(bytemuck::pod_read_unaligned);
        Ok(pairs.map(|[chosen, forced]: [u64; 2]| BlockMass { chosen, forced }).collect())
    }

    fn read_row_mass(&mut self, sel: &Selection, rows: Range<usize>, blocks: usize) -> Result<Vec<Vec<u32>>> {
        let ld = sel.plan.score_blocks;
        let (first, rows) = (rows.start.min(MAX_VERIFY_ROWS), rows.end.min(MAX_VERIFY_ROWS));
        let words = self.words(sel.mass.ptr() + (first * ld * 4) as u64, rows.saturating_sub(first) * ld)?;
        Ok(words.chunks_exact(ld).map(|row| row.iter().take(blocks).copied().collect()).collect())
    }
}
