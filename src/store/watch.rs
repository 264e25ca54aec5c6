//! Long pieces of the store's work and whoever waits for them.

use std::io;

use super::error::{Result, StoreError};

/// Whoever waits for something long: may end it, and is told how far it is.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Whether it is to end; asked often.
    pub stop: &'a dyn Fn() -> bool,
    /// How much is done, and of how much. What is counted depends on the work.
    pub told: &'a dyn Fn(u64, u64),
}

impl Watch<'_> {
    /// Nobody ends it, nobody is told.
    pub const NOBODY: Watch<'static> = Watch { stop: &|| false, told: &|_, _| {} };

    /// [`Watch::go_on`] within input and output, of whose errors [`Watch::or_stopped`] makes that one again.
    pub(super) fn go_on_io(&self) -> io::Result<()> {
        if (self.stop)() { Err(io::Error::other("stopped")) } else { Ok(()) }
    }

    /// An error, unless whoever waits had it end.
    pub(super) fn or_stopped(&self, e: StoreError) -> StoreError {
        if (self.stop)() { StoreError::Stopped } else { e }
    }

    /// An error once it is to end.
    pub(super) fn go_on(&self) -> Result<()> {
        if (self.stop)() { Err(StoreError::Stopped) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
