//! What caches may take: of the device and of the host's memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::host;

pub(super) const SPARE_BYTES: u64 = 256 << 20;
/// The same where keys and values are not there: what grows is small.
pub(super) const PAGED_SPARE_BYTES: u64 = 128 << 20;
pub(super) const HOST_SPARE_BYTES: u64 = 256 << 20;

/// What all caches of a sequence take together: they grow in step, so one refusal speaks for all.
#[derive(Default)]
pub(super) struct CacheLedger {
    pub(super) bytes_per_token: AtomicU64,
    pub(super) host_bytes_per_token: AtomicU64,
    pub(super) approved: AtomicUsize,
}

impl CacheLedger {
    /// Bytes of the device that go with what the host's memory has room for; all where no keys and values lie there.
    fn room_beside_host(&self) -> u64 {
        let [here, host] = [&self.bytes_per_token, &self.host_bytes_per_token].map(|n| n.load(Ordering::Relaxed));
        let free = if host > 0 { host::free_bytes() } else { None };
        free.map_or(u64::MAX, |free| free.saturating_sub(HOST_SPARE_BYTES) / host * here)
    }
}

/// One of each sequence: caches of different sequences do not grow in step.
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

    /// As [`CacheLedger::room_beside_host`], whichever sequences there are.
    pub(super) fn room_beside_host(&self) -> u64 {
        let before = self.before.iter().filter_map(Weak::upgrade).map(|ledger| ledger.room_beside_host());
        before.min().unwrap_or(u64::MAX).min(self.newest.room_beside_host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_limits_whichever_sequence_is_the_newest() {
        let mut ledgers = Ledgers::default();
        assert_eq!(ledgers.room_beside_host(), u64::MAX);
        let first = Arc::clone(&ledgers.newest);
        first.bytes_per_token.store(100, Ordering::Relaxed);
        first.host_bytes_per_token.store(8_192, Ordering::Relaxed);
        let room = ledgers.room_beside_host();
        assert!(room < u64::MAX);
        // A short-lived one, whose caches are dropped.
        ledgers.begin();
        ledgers.begin();
        assert!(ledgers.room_beside_host() < u64::MAX);
        drop(first);
        assert_eq!(ledgers.room_beside_host(), u64::MAX);
    }
}
