//! Runs work on files of a model folder, which may be hostile, on a thread of its own with a large stack. A panic is
//! an ordinary error; the caller stops waiting after a time limit or on cancellation. Abandoned work ends by its own
//! limits (fuel, sizes), and its result is dropped.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::core::caught::caught;

/// Deep templates recurse when parsed and rendered. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 << 20;
const TICK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GaveUp {
    #[error("the library that reads it fails on it")]
    Panicked,
    #[error("it takes longer than {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("stopped")]
    Stopped,
}

/// The result of `work`. State that it changed before a panic must not be used again.
pub(super) fn run<T: Send + 'static>(
    limit: Duration,
    stop: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GaveUp> {
    let (done, result) = sync_channel(1);
    let thread = std::thread::Builder::new().name("untrusted".into()).stack_size(STACK_BYTES);
    let started = Instant::now();
    // The caller may have stopped waiting.
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
    fn a_panic_a_stop_and_a_time_limit_are_distinct() {
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
