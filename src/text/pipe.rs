//! Reading a pipe to its end, unless the wait for its writer is cancelled.

use std::io::{Error, Write};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::engine::protocol::Cancel;

const PIECE_BYTES: usize = 1 << 16;
/// Time between two checks for cancellation.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Folder names of standard input as a file (`--follow -`) begin with this.
pub const SPOOL: &str = "sala-chat-stdin-";

/// Whether a path is that of standard input as a file.
pub fn is_spool(path: &str) -> bool {
    let folder = std::path::Path::new(path).parent().and_then(std::path::Path::file_name);
    folder.is_some_and(|name| name.to_string_lossy().starts_with(SPOOL))
}

#[derive(Debug)]
pub enum PipeError {
    Stopped,
    /// More bytes than the limit; how many arrived.
    TooLarge(u64),
    Read(Error),
    Write(Error),
}

/// Copies a pipe to its end, on an error what arrived before. A non-blocking pipe without a writer counts as empty.
pub fn read(from: BorrowedFd<'_>, most: u64, stop: &Cancel, into: &mut impl Write) -> Result<(), PipeError> {
    let unread = |e: Errno| PipeError::Read(e.into());
    let never_waits = fcntl_getfl(from).map_err(unread)?.contains(OFlags::NONBLOCK);
    let mut piece = [0u8; PIECE_BYTES];
    let mut length = 0u64;
    loop {
        if stop.is_cancelled() {
            return Err(PipeError::Stopped);
        }
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&LOOK)) {
            // `poll` reports no hang-up for a pipe that never had a writer.
            Ok(0) if never_waits => {}
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(unread(e)),
        }
        let read = match rustix::io::read(from, &mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(e) => return Err(unread(e)),
        };
        length = length.saturating_add(read as u64);
        if length > most {
            return Err(PipeError::TooLarge(length));
        }
        into.write_all(piece.get(..read).unwrap_or_default()).map_err(PipeError::Write)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_pipe_is_read_to_its_end_or_its_limit_and_a_stop_does_not_wait_for_it() {
        let (from, mut to) = std::io::pipe().unwrap();
        let (mut kept, stop) = (Vec::new(), Cancel::default());
        to.write_all(b"all of it").unwrap();
        stop.cancel();
        // The other end stays open and sends no more.
        assert!(matches!(read(from.as_fd(), 9, &stop, &mut kept), Err(PipeError::Stopped)));
        drop(to);
        read(from.as_fd(), 9, &Cancel::default(), &mut kept).unwrap();
        assert_eq!(kept, b"all of it");
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(b"one byte too many").unwrap();
        let failed = read(from.as_fd(), 16, &Cancel::default(), &mut Vec::new());
        assert!(matches!(failed, Err(PipeError::TooLarge(17))), "{failed:?}");
    }

    #[test]
    fn write_errors_and_read_errors_are_distinct() {
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(b"more than there is room for").unwrap();
        let failed = read(from.as_fd(), 100, &Cancel::default(), &mut [0u8; 4].as_mut_slice());
        assert!(matches!(failed, Err(PipeError::Write(_))), "{failed:?}");
        let folder = std::fs::File::open("/").unwrap();
        let failed = read(folder.as_fd(), 100, &Cancel::default(), &mut Vec::new());
        assert!(matches!(failed, Err(PipeError::Read(_))), "{failed:?}");
    }
}
