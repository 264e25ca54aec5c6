//! `sala-chat import`: a file, or a pipe, as standard input is one, which is kept in a file of its own until all of it is there.

use std::fs::File;
use std::io::{Error, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::oneshot::means_stdin;
use super::signals::Ending;
use super::{Context, Exit, Failure, open};
use crate::core::bytes;
use crate::core::files::{IMPORT_BYTES, open_at_once};
use crate::engine::protocol::Cancel;
use crate::runtime::export::imported_line;
use crate::store::{Scratch, StoreError, Watch};
use crate::text::pipe::{self, PipeError};

const INPUT: &str = "standard input";

/// The file to read. For a pipe: with its temporary folder and the name of the pipe in messages.
type Source = (PathBuf, Option<(Scratch, String)>);

fn source(file: &Path, stop: &Cancel) -> Result<Source, Failure> {
    if file.to_str().is_some_and(means_stdin) {
        return match Path::new("/dev/stdin").canonicalize().ok().filter(|path| path.is_file()) {
            Some(path) => Ok((path, None)),
            None => piped(rustix::stdio::stdin(), INPUT.to_owned(), stop),
        };
    }
    // For example a shell's `<(COMMAND)`.
    if file.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        let name = file.display().to_string();
        let pipe = open_at_once(file).map_err(|e| unread(&name, &e))?;
        return piped(pipe.as_fd(), name, stop);
    }
    Ok((file.to_owned(), None))
}

fn piped(from: BorrowedFd<'_>, name: String, stop: &Cancel) -> Result<Source, Failure> {
    let scratch = Scratch::new().map_err(|e| no_room(&name, &e))?;
    let path = scratch.path().join("import");
    let mut file = File::create_new(&path).map_err(|e| no_room(&name, &e))?;
    take(from, &name, &mut file, IMPORT_BYTES, stop)?;
    Ok((path, Some((scratch, name))))
}

fn stopped() -> Failure {
    Failure::new(Exit::Stopped, "stopped: nothing was imported")
}

fn unread(name: &str, e: &Error) -> Failure {
    Failure::new(Exit::Failure, format!("{name}: {e}"))
}

fn no_room(name: &str, e: &Error) -> Failure {
    Failure::new(Exit::Disk, format!("{name} cannot be kept until it is imported: {e}"))
        .hint("Write it into a file, and import that")
}

fn take(from: BorrowedFd<'_>, name: &str, into: &mut impl Write, most: u64, stop: &Cancel) -> Result<(), Failure> {
    pipe::read(from, most, stop, into).map_err(|e| match e {
        PipeError::Stopped => stopped(),
        PipeError::TooLarge(_) => Failure::new(Exit::Failure, format!("{name}: more than {}", bytes(most)))
            .hint("Write it into a file, and import that"),
        PipeError::Read(e) => unread(name, &e),
        PipeError::Write(e) => no_room(name, &e),
    })
}

pub(super) fn import(context: &Context, file: &Path) -> Result<Exit, Failure> {
    if file.to_str().is_some_and(means_stdin) && std::io::stdin().is_terminal() {
        return Err(Failure::usage("import - reads standard input, and nothing is piped into it"));
    }
    let store = open::store_to_change(context)?;
    let stop = Cancel::default();
    let stopper = stop.clone();
    let ending = Ending::watch(move || stopper.cancel())?;
    let (path, piped) = source(file, &stop).map_err(|failure| ending.by_signal(failure))?;
    let watch = Watch { stop: &|| stop.is_cancelled(), ..Watch::NONE };
    let imported = store.import(&path, &watch).map_err(|e| match (e, &piped) {
        (StoreError::Stopped, _) => ending.by_signal(stopped()),
        // The temporary file's name means nothing to the user.
        (StoreError::Import { why, .. }, Some((_, name))) => StoreError::Import { path: name.into(), why }.into(),
        (e, _) => e.into(),
    })?;
    let json = || {
        let names: Vec<&str> = imported.sessions.iter().map(|(_, name)| name.as_str()).collect();
        json!({
            "sessions": names, "messages": imported.messages, "state_tokens": imported.state_tokens,
            "without_place": imported.without_place, "left_out": imported.left_out,
            "skipped": imported.skipped
        })
    };
    context.result(json, || imported_line(&imported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pipe_cannot_give_is_reported_by_name() {
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"one byte too many").unwrap();
        let taken = |most: u64, stop: &Cancel| take(read.as_fd(), INPUT, &mut Vec::new(), most, stop).unwrap_err();
        let stop = Cancel::default();
        stop.cancel();
        assert_eq!(taken(16, &stop).exit, Exit::Stopped);
        let failure = taken(16, &Cancel::default());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failure, "standard input: more than 16 B"));
    }
}
