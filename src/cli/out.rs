//! The only place with standard output and standard error; `tests/house/outputs.rs` checks that. Everything written is
//! [`Clean`]. The exceptions have names: [`data`] and [`json`] for scripts that read bytes back, [`screen`] for the full
//! screen, which cleans cells when it paints them.

use std::io::{self, IsTerminal, Write};

use crate::core::sanitize::Clean;

pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

fn write(pieces: &[&[u8]]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    pieces.iter().try_for_each(|piece| out.write_all(piece))?;
    out.flush()
}

pub(super) fn part(text: &Clean<'_>) -> io::Result<()> {
    write(&[text.as_str().as_bytes()])
}

pub(super) fn line(text: &Clean<'_>) -> io::Result<()> {
    write(&[text.as_str().as_bytes(), b"\n"])
}

/// Writes data exactly as it is where a file or a program takes it; a terminal gets it cleaned.
pub(super) fn data(bytes: &[u8]) -> io::Result<()> {
    if is_terminal() { part(&Clean::text(&String::from_utf8_lossy(bytes))) } else { write(&[bytes]) }
}

pub(super) fn json(text: &str) -> io::Result<()> {
    if is_terminal() { part(&Clean::json_text(text)) } else { data(text.as_bytes()) }
}

/// Writes to standard error, without a newline. Write errors are ignored: the exit code remains.
pub(super) fn err_part(text: &Clean<'_>) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_str().as_bytes()).and_then(|()| err.flush());
}

pub(super) fn err_line(text: &Clean<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Shows progress in place of what [`progress`] showed before.
pub(super) fn progress(text: &Clean<'_>) {
    let _ = write!(io::stderr().lock(), "\r{text}\x1b[K");
}

pub(super) fn clear_progress() {
    let _ = write!(io::stderr().lock(), "\r\x1b[K");
}

/// Standard output for escape sequences: the terminal's modes, the drawn screen, its clipboard.
pub(super) fn screen() -> io::Stdout {
    io::stdout()
}
