//! From a resident cache to a paged one, while conversations go on: keys and values leave the device for the host's memory.

use super::Cuda;
use super::cache::Cache;
use super::driver::{Home, Queue};
use super::pool::PoolSize;
use crate::backend::room::{self, PagedPlan};
use crate::backend::{Result, internal};
use crate::spec::ModelSpec;

impl Cuda {
    /// What [`Memory::page_out`](crate::backend::Memory::page_out) says.
    pub(super) fn leave_device(
        &mut self,
        spec: &ModelSpec,
        limit: usize,
        sequences: &mut [Vec<&mut Cache>],
    ) -> Result<Option<String>> {
        let Some(plan) = self.plan_beside(spec, limit as u64, sequences)? else { return Ok(None) };
        // Graphs name kernels and addresses that will be others.
        self.touch();
        let moved = sequences.iter().map(|caches| Cache::joined_of(caches)?.on_host(&spec.sparse));
        let moved = moved.collect::<Result<Vec<_>>>();
        // Whether all came about or not, nothing is on its way any more when their memory goes.
        self.device.driver().synchronize(Queue::Compute)?;
        for (caches, moved) in sequences.iter_mut().zip(moved?) {
            let columns = Cache::joined_of(caches)?.leave_device(&spec.sparse, moved)?;
            for cache in caches.iter_mut() {
                let own = columns.get(cache.place).copied();
                let own = own.ok_or_else(|| internal("page_out", "a layer that its sequence does not have"))?;
                cache.leave_device(&self.device, own)?;
            }
        }
        let size = PoolSize { blocks: plan.blocks, staged_rows: plan.staged_rows };
        let layers = sequences.first().map_or(0, Vec::len);
        self.pools.prepare(&self.device, &spec.sparse, Some(size), layers, self.prefill_rows)?;
        Ok(Some(plan.line(limit as u64)))
    }

    /// How the context lies once keys and values have left, where that is possible and of use.
    fn plan_beside(&self, spec: &ModelSpec, tokens: u64, sequences: &[Vec<&mut Cache>]) -> Result<Option<PagedPlan>> {
        let can = self.pools.size().is_none() && self.device.driver().granularity(Home::Host).is_some();
        if !can || sequences.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let mut free = self.device.free_bytes()?;
        for caches in sequences {
            free += Cache::joined_of(caches)?.resident();
        }
        let plan = room::paged_beside_work(spec, free, self.prefill_rows, tokens).ok();
        Ok(plan.filter(|plan| plan.is_useful(spec, tokens)))
    }
}
