//! Memory available to caches, on the device and on the host.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::host;

pub(super) const SPARE_BYTES: u64 = 256 << 20;
/// Reserve where keys and values are in host memory: what grows on the device is small.
pub(super) const PAGED_SPARE_BYTES: u64 = 128 << 20;
pub(super) const HOST_SPARE_BYTES: u64 = 256 << 20;

/// Total of all caches of a sequence: they grow in step, so one refusal covers all.
#[derive(Default)]
pub(super) struct CacheLedger {
    pub(super) bytes_per_token: AtomicU64,
    pub(super) host_bytes_per_token: AtomicU64,
    pub(super) approved: AtomicUsize,
}

impl CacheLedger {
    /// Device bytes that the free host memory can match; all where no keys and values are on the host.
    fn room_by_host(&self) -> u64 {
        let [here, host] = [&self.bytes_per_token, &self.host_bytes_per_token].map(|n| n.load(Ordering::Relaxed));
        let free = if host > 0 { host::free_bytes() } else { None };
        free.map_or(u64::MAX, |free| free.saturating_sub(HOST_SPARE_BYTES) / host * here)
    }
}

/// One ledger per sequence: caches of different sequences do not grow in step.
#[derive(Default)]
pub(super) struct Ledgers {
    pub(super) newest: Arc<CacheLedger>,
    before: Vec<Weak<CacheLedger>>,
}

impl Ledgers {
    pub(super) fn begin(&mut self) {
        self.before.retain(|ledger| ledger.strong_count() > 0);
        self.before.push(Arc::downgrade(&self.newest));
        self.newest = Arc::default();
    }

    /// [`CacheLedger::room_by_host`] over all sequences.
    pub(super) fn room_by_host(&self) -> u64 {
        let before = self.before.iter().filter_map(Weak::upgrade).map(|ledger| ledger.room_by_host());
        before.min().unwrap_or(u64::MAX).min(self.newest.room_by_host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_limits_whichever_sequence_is_the_newest() {
        let mut ledgers = Ledgers::default();
        assert_eq!(ledgers.room_by_host(), u64::MAX);
        let first = Arc::clone(&ledgers.newest);
        first.bytes_per_token.store(100, Ordering::Relaxed);
        first.host_bytes_per_token.store(8_192, Ordering::Relaxed);
        let room = ledgers.room_by_host();
        assert!(room < u64::MAX);
        // A short-lived sequence; its caches are dropped.
        ledgers.begin();
        ledgers.begin();
        assert!(ledgers.room_by_host() < u64::MAX);
        drop(first);
        assert_eq!(ledgers.room_by_host(), u64::MAX);
    }
}
