//! Limits of a rendering: instructions and output.

use minijinja::{Error, ErrorKind, State};

/// Instructions of a rendering: thousands a message, more to compare all messages. 64 bytes of a new text are one.
pub(super) fn fuel(messages: usize, bytes: usize) -> u64 {
    let n = messages as u64;
    5_000_000 + 20_000 * n + 100 * n.saturating_mul(n).min(10_000_000) + bytes as u64
}

pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Counts a text before it is built, as the engine does with its own.
pub(super) fn count_bytes(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

/// A rendering with a limit on its bytes.
pub(super) struct Bounded {
    pub(super) bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    pub(super) fn new(message_bytes: usize) -> Bounded {
        Bounded { bytes: Vec::new(), limit: message_bytes.saturating_mul(4).saturating_add(16 << 20) }
    }
}

impl std::io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len().saturating_add(more.len()) > self.limit {
            return Err(std::io::Error::other(format!("the template writes more than {} MB", self.limit >> 20)));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
