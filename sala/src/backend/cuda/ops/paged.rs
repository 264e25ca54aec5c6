//! Attention of paged caches: through the pool, and through the staging ring.

use super::super::cache::Cache;
use super::super::selection::Selection;
use super::super::tensors::Buf;
use super::super::{Cuda, launch};
use super::sparse::{kv_columns, tile_map};
use crate::backend::{Result, internal};
use crate::core::spec::SparseSpec;

impl Cuda {
    pub(super) fn settle(&mut self, cache: &mut Cache) -> Result<()> {
        let (place, spec) = (cache.place, cache.spec.clone());
        let Some(paged) = &mut cache.paged else { return Ok(()) };
        let made = self.pools.settle(&self.device, &spec, place, paged)?;
        // The next pass, which may be replayed, writes rows.
        self.pools.written = true;
        if self.pools.ready_lookup(&self.device, &spec)? || made {
            self.touch();
        }
        Ok(())
    }

    pub(super) fn bind_blocks(&mut self, caches: &[&Cache]) -> Result<()> {
        let Some(table) = caches.first().map(|cache| cache.table.of_blocks()) else { return Ok(()) };
        let mut entries = caches.iter().filter_map(|cache| Some(cache.paged.as_ref()?.entry())).peekable();
        if entries.peek().is_none() { Ok(()) } else { self.bind(table, entries) }
    }

    pub(super) fn attend_pool(
        &mut self,
        attend: &launch::Attend,
        x: &Buf,
        sel: &Selection,
        caches: &[&Cache],
        spec: &SparseSpec,
    ) -> Result<()> {
        let unsettled = || internal("attend", "a paged cache without a pool");
        let first = caches.first().ok_or_else(unsettled)?;
        self.bind_blocks(caches)?;
        self.tables.flush()?;
        let tables = self.tables.ptr(first.table.of_blocks());
        let paged = first.paged.as_ref().ok_or_else(unsettled)?;
        let pool = paged.pool.as_ref().ok_or_else(unsettled)?;
        let pools = caches.iter().map(|cache| cache.paged.as_ref());
        if pools.clone().any(|p| p.is_none_or(|p| p.blocks != paged.blocks)) {
            return Err(internal("attend", "sequences of a pass with contexts of different lengths"));
        }
        let (lookup, d) = (self.pools.lookup()?, self.device.driver());
        let (slots, [xk, xv]) = (pool.slots, kv_columns(x, spec));
        let operands = launch::Attend {
            place: sel.lists.place.ptr(),
            fetch: lookup.fetch.ptr(),
            fetched: lookup.fetched.ptr(),
            seen: lookup.seen.ptr(),
            owner: pool.owner.ptr(),
            stamp: pool.stamp.ptr(),
            clock: pool.clock.ptr(),
            pool_k: pool.k.ptr(),
            pool_v: pool.v.ptr(),
            slots,
            xk,
            xv,
            ldx: attend.ldq,
            tables,
            blocks: paged.blocks,
            shares: launch::fetch_shares(d, slots),
            ..*attend
        };
        // SAFETY: lists and places are as long as the selection's plan says, tables as the context, the pool's arrays as it has
        // slots; host memory of the caches is there to the end of every block that can be chosen. All outlive the queue's work and graphs.
        unsafe {
            launch::PoolChoose(operands).launch(d)?;
            launch::PoolFetch(operands).launch(d)?;
            launch::PoolAttend(operands).launch(d)
        }
    }

    /// Attention of a prefill pass: the rows so far pass through the ring, part after part.
    pub(super) fn attend_staged(&mut self, attend: &launch::Attend, cache: &Cache, spec: &SparseSpec) -> Result<()> {
        let position = self.step.place.position;
        let end = position + attend.rows;
        self.pools.before_copies(&self.device)?;
        let ring = self.pools.ring(&self.device, spec, self.prefill_rows)?;
        for from in (0..end).step_by(ring.rows) {
            let until = (from + ring.rows).min(end);
            let filled = ring.fill(&cache.joined(), &cache.columns, from, until, until > position)?;
            let first = from / spec.block;
            let before = (first * attend.row_tile * 2) as u64;
            let staged = [filled.k, filled.v].map(|at| at.wrapping_add(before));
            let end = until.div_ceil(spec.block);
            let map = tile_map(staged, attend.row_tile, spec, end - first);
            let part = launch::AttendPrefillPart(launch::Attend {
                k: filled.k,
                v: filled.v,
                map: self.device.driver().tensor_map(&map)?,
                parts: ring.parts.ptr(),
                from: first,
                until: end,
                ..*attend
            });
            // SAFETY: the rows of these blocks stay in the place until `done`; everything else as for the whole.
            unsafe { part.launch(self.device.driver())? };
            ring.done(filled)?;
        }
        Ok(())
    }
}
