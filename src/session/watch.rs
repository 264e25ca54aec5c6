//! Long pieces of the store's work and whoever waits for them.

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
