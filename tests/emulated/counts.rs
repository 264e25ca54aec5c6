//! Counts of the pools of blocks, which the kernels keep.

use super::super::Cuda;
use super::super::pool::{SEEN, SLOT_BYTES};
use crate::backend::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    pub looked_up: u64,
    pub fetched: u64,
    /// Blocks read from host memory in place, because blocks of the same pass occupied every slot.
    pub in_place: u64,
    pub bytes: u64,
}

impl PoolCounts {
    pub fn since(self, before: PoolCounts) -> PoolCounts {
        PoolCounts {
            looked_up: self.looked_up - before.looked_up,
            fetched: self.fetched - before.fetched,
            in_place: self.in_place - before.in_place,
            bytes: self.bytes - before.bytes,
        }
    }

    pub fn hit_rate(self) -> f64 {
        1.0 - (self.fetched + self.in_place) as f64 / self.looked_up.max(1) as f64
    }
}

impl Cuda {
    /// Lookups of verify passes in the pools so far; `None` where keys and values are on the device. Waits.
    pub fn pool_counts(&mut self) -> Result<Option<PoolCounts>> {
        let Some(lookup) = &self.pools.lookup else { return Ok(self.pools.size.map(|_| PoolCounts::default())) };
        let data = self.staging.fetch(lookup.seen.ptr(), lookup.seen.bytes())?;
        Ok(Some(counts(&data)))
    }
}

fn counts(data: &[u8]) -> PoolCounts {
    let words: Vec<u64> = data.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    let mut all = PoolCounts::default();
    for head in words.chunks_exact(SEEN) {
        all.looked_up += head[0];
        all.fetched += head[1];
        all.in_place += head[2];
    }
    all.bytes = (all.fetched + all.in_place) * 2 * SLOT_BYTES as u64;
    all
}
