//! Turns resident caches into paged ones while conversations run: keys and values leave the device for host memory.

use super::cache::Cache;
use super::driver::{Home, Queue};
use super::joined::OnHost;
use super::ledger::HOST_SPARE_BYTES;
use super::pool::{Paged, PoolSize};
use super::{Cuda, failed};
use crate::backend::room::{self, PagedPlan};
use crate::backend::{BackendError, Result, host, internal};
use crate::core::bytes;
use crate::core::spec::ModelSpec;

struct Moved {
    rows: OnHost,
    paged: Vec<Paged>,
}

impl Cuda {
    pub(super) fn leave_device(
        &mut self,
        spec: &ModelSpec,
        limit: usize,
        sequences: &mut [Vec<&mut Cache>],
    ) -> Result<Option<String>> {
        let Some(plan) = self.plan_paged(spec, limit as u64, sequences)? else { return Ok(None) };
        // Graphs name the old kernels and addresses.
        self.touch();
        let moved = self.copies(sequences);
        // Even after an error no copy may be in flight when the memory is freed.
        self.device.driver().synchronize(Queue::Compute)?;
        let stays = |e: BackendError| BackendError::Unsupported(format!("keys and values stay on the GPU: {e}"));
        // No way back from here on: only a pool can still be refused.
        for (caches, Moved { rows, paged }) in sequences.iter_mut().zip(moved.map_err(stays)?) {
            let columns = Cache::joined_of(caches)?.leave_device(&spec.sparse, rows);
            for (cache, paged) in caches.iter_mut().zip(paged) {
                (cache.columns, cache.paged) = (columns[cache.place], Some(paged));
            }
        }
        let layers = sequences.first().map_or(0, Vec::len);
        let mut size = PoolSize { blocks: plan.blocks, staged_rows: plan.staged_rows };
        // Another program may have taken memory that was just free: any pool size will do.
        loop {
            match self.pools.prepare(&self.device, &spec.sparse, Some(size), layers, self.prefill_rows) {
                Ok(()) => return Ok(Some(plan.line(limit as u64))),
                Err(error) if size.blocks <= 1 => return Err(failed("making pools of blocks", error)),
                Err(_) => size = PoolSize { blocks: size.blocks / 2, staged_rows: size.staged_rows / 2 },
            }
        }
    }

    /// Copies keys and values of all sequences to host memory; changes nothing of theirs.
    fn copies(&self, sequences: &[Vec<&mut Cache>]) -> Result<Vec<Moved>> {
        let of_one = |caches: &Vec<&mut Cache>| {
            for cache in caches {
                let limit = cache.joined().limit;
                cache.wait_for(0..limit)?;
            }
            let first = caches.first().ok_or_else(|| internal("page_out", "a sequence without sparse layers"))?;
            let rows = Cache::joined_of(caches)?.on_host(&first.spec)?;
            let limit = first.joined().limit;
            let paged = caches.iter().map(|cache| Paged::new(&self.device, &cache.spec, limit));
            Ok(Moved { rows, paged: paged.collect::<Result<_>>()? })
        };
        sequences.iter().map(of_one).collect()
    }

    fn plan_paged(&self, spec: &ModelSpec, tokens: u64, sequences: &[Vec<&mut Cache>]) -> Result<Option<PagedPlan>> {
        let can = self.pools.size.is_none() && self.device.driver().granularity(Home::Host).is_some();
        if !can || sequences.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let (mut free, mut moves) = (self.device.free_bytes()?, 0);
        for caches in sequences {
            let joined = Cache::joined_of(caches)?;
            let [freed, held] = joined.resident();
            (free, moves) = (free + freed, moves + held);
        }
        let host = host::free_bytes().unwrap_or(u64::MAX).saturating_sub(HOST_SPARE_BYTES);
        if moves > host {
            return Err(BackendError::Unsupported(format!(
                "keys and values stay on the GPU: they are {}, of this machine's memory {} are free",
                bytes(moves),
                bytes(host)
            )));
        }
        let plan = room::paged_after_work(spec, free, self.prefill_rows, tokens).ok();
        Ok(plan.filter(|plan| plan.is_useful(spec, tokens)))
    }
}
