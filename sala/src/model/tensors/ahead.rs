//! Reads weight files into the page cache before their use: while a device is being opened, and a little ahead of the
//! loading after that, so that a disk is never idle.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const AHEAD_BYTES: u64 = 1 << 30;
const STEP_BYTES: u64 = 8 << 20;
const THREADS: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);

struct Step {
    file: Arc<File>,
    at: u64,
    bytes: u64,
    /// Bytes of all steps before it.
    before: u64,
}

#[derive(Default)]
struct Shared {
    steps: Vec<Step>,
    next: AtomicUsize,
    /// Bytes of the tensors read so far.
    taken: AtomicU64,
    stop: AtomicBool,
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).min(THREADS)
}

/// Requests files from the system until all are requested, or until this is dropped.
pub(super) struct Ahead(Arc<Shared>);

impl Ahead {
    /// `ranges` are (file, first byte, bytes), requested in this order.
    pub(super) fn start(ranges: impl IntoIterator<Item = (Arc<File>, u64, u64)>) -> Ahead {
        let (mut steps, mut before) = (Vec::new(), 0);
        for (file, first, bytes) in ranges {
            for at in (0..bytes).step_by(STEP_BYTES as usize) {
                let bytes = STEP_BYTES.min(bytes - at);
                steps.push(Step { file: Arc::clone(&file), at: first + at, bytes, before });
                before += bytes;
            }
        }
        let shared = Arc::new(Shared { steps, ..Shared::default() });
        for _ in 0..threads() {
            let shared = Arc::clone(&shared);
            // Without a thread loading is only slower.
            let _ = std::thread::Builder::new().name("read-ahead".into()).spawn(move || shared.ask());
        }
        Ahead(shared)
    }

    pub(super) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// Reports that the loader reads this many further bytes.
    pub(super) fn took(&self, bytes: u64) {
        self.0.taken.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn ask(&self) {
        while let Some(step) = self.steps.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            while step.before > self.taken.load(Ordering::Relaxed).saturating_add(AHEAD_BYTES) {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            step.ask();
        }
    }
}

impl Step {
    /// A hint: reading loads missing pages anyway. It maps nothing into this program's address space, which would
    /// delay the opening of a device.
    #[cfg(target_os = "linux")]
    fn ask(&self) {
        use rustix::fs::{Advice, fadvise};
        if !self.is_here() {
            let _ = fadvise(&*self.file, self.at, std::num::NonZeroU64::new(self.bytes), Advice::WillNeed);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn ask(&self) {}

    /// Whether its first, middle and last byte are in memory.
    #[cfg(target_os = "linux")]
    fn is_here(&self) -> bool {
        use rustix::io::{ReadWriteFlags, preadv2};
        [0, self.bytes / 2, self.bytes.saturating_sub(1)].into_iter().all(|at| {
            let mut byte = [0];
            let mut into = [std::io::IoSliceMut::new(&mut byte)];
            preadv2(&*self.file, &mut into, self.at + at, ReadWriteFlags::NOWAIT) == Ok(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ahead_follows_the_reader_and_ends_with_it() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(5 * AHEAD_BYTES / 2).unwrap();
        let wait = |what: &str, ready: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !ready() {
                assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
                std::thread::sleep(PAUSE);
            }
        };
        let start =
            || Ahead::start([(Arc::clone(&file), 0, AHEAD_BYTES), (Arc::clone(&file), AHEAD_BYTES, AHEAD_BYTES / 2)]);
        let steps = 3 * AHEAD_BYTES as usize / 2 / STEP_BYTES as usize;
        let ahead = start();
        let requested = || ahead.0.next.load(Ordering::Relaxed);
        // Each thread waits with one step taken.
        let reached = (AHEAD_BYTES / STEP_BYTES) as usize + 1 + threads();
        wait("the first part", &|| requested() == reached);
        std::thread::sleep(20 * PAUSE);
        assert_eq!(requested(), reached);
        ahead.took(AHEAD_BYTES / 2);
        wait("the rest", &|| requested() == steps + threads());
        wait("its threads are gone", &|| Arc::strong_count(&ahead.0) == 1);
        let given_up = start();
        let left = Arc::clone(&given_up.0);
        drop(given_up);
        wait("a reader that went", &|| Arc::strong_count(&left) == 1);
        assert!(left.next.load(Ordering::Relaxed) < steps);
    }
}
