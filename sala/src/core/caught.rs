//! Runs library code that may panic on its input, so that a panic is an ordinary error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether a panic of this thread will be caught and reported as an error.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`; `None` if it panics. Data that `work` changed before the panic must not be used again.
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
