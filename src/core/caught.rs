//! Code of libraries that may panic on what they are given, run so that a panic is an ordinary error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether a panic of this thread will be caught and reported as an error.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives; `None` if it panics. What `work` changed before it panicked must not be used again.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work)).ok();
    EXPECTED.set(before);
    result
}

/// Whether the current panic will be reported as an error, so that a panic hook stays silent.
pub fn expected() -> bool {
    EXPECTED.get()
}
