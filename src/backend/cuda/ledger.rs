//! What caches may take: of the device and of the host's memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::host_pages;

/// Memory left to others when caches grow.
pub(super) const SPARE_BYTES: u64 = 256 << 20;
/// The same where keys and values are not there: what grows is small.
pub(super) const PAGED_SPARE_BYTES: u64 = 128 << 20;
/// The same in the host's memory.
pub(super) const HOST_SPARE_BYTES: u64 = 256 << 20;

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
