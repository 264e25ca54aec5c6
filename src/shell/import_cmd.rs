//! `sala-chat import`: a file, or standard input, which is kept in a file of its own until all of it is there.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;

use super::cli::ImportArgs;
use super::failure::Failure;
use super::oneshot::means_stdin;
use super::signals::Ending;
use super::{Context, open};
use crate::base::{Exit, bytes};
use crate::desk::export::imported_line;
use crate::protocol::engine::Cancel;
use crate::session::{Scratch, StoreError, Watch};
use crate::text::files::IMPORT_BYTES;

/// What messages call it.
const INPUT: &str = "standard input";
/// Read at a time.
const PIECE_BYTES: usize = 1 << 16;
/// How long a read waits before it looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A file to import.
struct Source {
    path: PathBuf,
    /// The folder that was made for it: it goes with this.
    scratch: Option<Scratch>,
}

impl Source {
    /// Standard input: the file that it is, or one with what comes through it.
    fn standard_input(stop: &Cancel) -> Result<Source, Failure> {
        if let Some(path) = Path::new("/dev/stdin").canonicalize().ok().filter(|path| path.is_file()) {
            return Ok(Source { path, scratch: None });
        }
        let scratch = Scratch::new().map_err(|e| no_room(&e))?;
        let path = scratch.path().join("import");
        let mut file = File::create_new(&path).map_err(|e| no_room(&e))?;
        take(rustix::stdio::stdin(), &mut file, IMPORT_BYTES, stop)?;
        Ok(Source { path, scratch: Some(scratch) })
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Stopped, "stopped: nothing was imported")
}

fn no_room(e: &std::io::Error) -> Failure {
    Failure::new(Exit::Disk, format!("{INPUT} cannot be kept until it is imported: {e}"))
        .hint("Write it into a file, and import that")
}

/// All that comes, to its end, which may be long in coming.
fn take(from: BorrowedFd<'_>, into: &mut impl Write, most: u64, stop: &Cancel) -> Result<(), Failure> {
    let unread = |e: Errno| Failure::new(Exit::Failure, format!("{INPUT}: {}", std::io::Error::from(e)));
    let mut piece = [0u8; PIECE_BYTES];
    let mut left = most;
    loop {
        if stop.is_cancelled() {
            return Err(stopped());
        }
        let mut fds = [PollFd::new(&from, PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
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
        left = left.checked_sub(read as u64).ok_or_else(|| {
            Failure::new(Exit::Failure, format!("{INPUT}: more than {}", bytes(most)))
                .hint("Write it into a file, and import that")
        })?;
        into.write_all(piece.get(..read).unwrap_or_default()).map_err(|e| no_room(&e))?;
    }
}

/// Runs it.
///
/// # Errors
/// There is no such file, it is of no known form, or it cannot be written into the database; a signal came.
pub(super) fn import(context: &Context, args: &ImportArgs) -> Result<Exit, Failure> {
    let piped = args.file.to_str().is_some_and(means_stdin);
    if piped && std::io::stdin().is_terminal() {
        return Err(Failure::usage("import - means standard input, and nothing is piped into it"));
    }
    let store = open::store_to_change(context)?;
    let stop = Cancel::default();
    let asked = stop.clone();
    let ending = Ending::watch(move || asked.cancel())?;
    let source = match piped {
        true => Source::standard_input(&stop).map_err(|failure| ending.by_signal(failure))?,
        false => Source { path: args.file.clone(), scratch: None },
    };
    let watch = Watch { stop: &|| stop.is_cancelled(), ..Watch::NOBODY };
    let imported = store.import(&source.path, &watch).map_err(|e| match e {
        StoreError::Stopped => ending.by_signal(stopped()),
        // Nobody knows the file by its name.
        StoreError::Import { why, .. } if source.scratch.is_some() => {
            StoreError::Import { path: INPUT.into(), why }.into()
        }
        e => e.into(),
    })?;
    let names: Vec<&str> = imported.sessions.iter().map(|(_, name)| name.as_str()).collect();
    let json = || {
        json!({
            "sessions": names, "messages": imported.messages, "state_tokens": imported.state_tokens,
            "without_place": imported.without_place, "left_out": imported.left_out
        })
    };
    context.result(json, || imported_line(&imported))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_pipe_is_taken_to_its_end_or_its_limit_and_a_stop_does_not_wait_for_it() {
        let (read, mut write) = std::io::pipe().unwrap();
        let (mut kept, stop) = (Vec::new(), Cancel::default());
        write.write_all(b"all of it").unwrap();
        stop.cancel();
        assert_eq!(take(read.as_fd(), &mut kept, 9, &stop).unwrap_err().exit, Exit::Stopped);
        // The other end is open, and nothing comes.
        drop(write);
        take(read.as_fd(), &mut kept, 9, &Cancel::default()).unwrap();
        assert_eq!(kept, b"all of it");
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"one byte too many").unwrap();
        let failure = take(read.as_fd(), &mut Vec::new(), 16, &Cancel::default()).unwrap_err();
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failure, "standard input: more than 16 B"));
    }
}
