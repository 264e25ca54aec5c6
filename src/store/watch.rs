//! Progress and stop of long work.

use std::io;

use super::error::{Result, StoreError};

#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Whether to stop; called often.
    pub stop: &'a dyn Fn() -> bool,
    /// Progress: done, of all. The unit depends on the work.
    pub progress: &'a dyn Fn(u64, u64),
}

impl Watch<'_> {
    pub const NONE: Watch<'static> = Watch { stop: &|| false, progress: &|_, _| {} };

    /// [`Watch::go_on`] as an I/O error, which [`Watch::or_stopped`] converts back.
    pub(super) fn go_on_io(&self) -> io::Result<()> {
        if (self.stop)() { Err(io::Error::other("stopped")) } else { Ok(()) }
    }

    pub(super) fn or_stopped(&self, e: StoreError) -> StoreError {
        if (self.stop)() { StoreError::Stopped } else { e }
    }

    pub(super) fn go_on(&self) -> Result<()> {
        if (self.stop)() { Err(StoreError::Stopped) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
