//! Work on files of a model folder, which may have been made to do harm: run in one place, with limits.
//!
//! Tokenizers and templates are programs of a kind. They are loaded, and templates run, on a thread of their own with a
//! generous stack; a panic there is an ordinary error, and whoever waits gives up after a while or when told to stop. Work
//! that was given up ends by limits of its own (fuel, sizes); its result is dropped.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::core::caught::caught;

/// Deep templates are parsed and run by recursion; what is not touched costs nothing.
const STACK_BYTES: usize = 256 << 20;
/// How often a stop is looked for.
const TICK: Duration = Duration::from_millis(20);

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GaveUp {
    /// It panicked.
    Panicked,
    /// It took longer than this.
    TooLong(Duration),
    /// Told to stop.
    Stopped,
}

impl std::fmt::Display for GaveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GaveUp::Panicked => f.write_str("the library that reads it fails on it"),
            GaveUp::TooLong(limit) => write!(f, "it takes longer than {} s", limit.as_secs()),
            GaveUp::Stopped => f.write_str("stopped"),
        }
    }
}

/// What `work` gives, on a thread of its own. What it changed before it panicked must not be used again.
pub(super) fn run<T: Send + 'static>(
    limit: Duration,
    stop: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GaveUp> {
    let (done, result) = sync_channel(1);
    let thread = std::thread::Builder::new().name("untrusted".into()).stack_size(STACK_BYTES);
    let started = Instant::now();
    // Whoever gave up waiting does not want the result.
    let spawned = thread.spawn(move || drop(done.send(caught(work))));
    if spawned.is_err() {
        return Err(GaveUp::Panicked);
    }
    loop {
        match result.recv_timeout(TICK) {
            Ok(Some(value)) => return Ok(value),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return Err(GaveUp::Panicked),
            Err(RecvTimeoutError::Timeout) if stop() => return Err(GaveUp::Stopped),
            Err(RecvTimeoutError::Timeout) if started.elapsed() > limit => return Err(GaveUp::TooLong(limit)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_a_stop_and_the_end_of_patience_are_told_apart() {
        let never = || false;
        assert_eq!(run(Duration::from_secs(9), &never, || 7), Ok(7));
        assert_eq!(run(Duration::from_secs(9), &never, || panic!("no")), Err::<(), _>(GaveUp::Panicked));
        let sleeps = || std::thread::sleep(Duration::from_secs(5));
        assert_eq!(run(Duration::from_millis(50), &never, sleeps), Err(GaveUp::TooLong(Duration::from_millis(50))));
        let begun = Instant::now();
        assert_eq!(run(Duration::from_secs(9), &|| true, sleeps), Err(GaveUp::Stopped));
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert!(!crate::core::caught::expected());
    }
}
