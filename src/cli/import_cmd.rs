//! `sala-chat import`: a file, or a pipe, as standard input is one, which is kept in a file of its own until all of it is there.

use std::fs::File;
use std::io::IsTerminal;
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

/// All of a pipe as a file in a temporary folder; `name` is that of the pipe in messages.
fn kept(from: BorrowedFd<'_>, name: &str, most: u64, stop: &Cancel) -> Result<(PathBuf, Scratch), Failure> {
    let failed = |e: PipeError| match e {
        PipeError::Stopped => stopped(),
        PipeError::Read(e) => Failure::new(Exit::Failure, format!("{name}: {e}")),
        PipeError::TooLarge(_) => Failure::new(Exit::Failure, format!("{name}: more than {}", bytes(most)))
            .hint("Write it into a file, and import that"),
        PipeError::Write(e) => Failure::new(Exit::Disk, format!("{name} cannot be kept until it is imported: {e}"))
            .hint("Write it into a file, and import that"),
    };
    let scratch = Scratch::new().map_err(|e| failed(PipeError::Write(e)))?;
    let path = scratch.path().join("import");
    let mut file = File::create_new(&path).map_err(|e| failed(PipeError::Write(e)))?;
    pipe::read(from, most, stop, &mut file).map_err(failed)?;
    Ok((path, scratch))
}

fn stopped() -> Failure {
    Failure::new(Exit::Stopped, "stopped: nothing was imported")
}

pub(super) fn import(context: &Context, file: &Path) -> Result<Exit, Failure> {
    if file.to_str().is_some_and(means_stdin) && std::io::stdin().is_terminal() {
        return Err(Failure::usage("import - reads standard input, and nothing is piped into it"));
    }
    let store = open::store_to_change(context)?;
    let stop = Cancel::default();
    let stopper = stop.clone();
    let ending = Ending::watch(move || stopper.cancel())?;
    // Of a pipe, such as a shell's `<(COMMAND)`: its name. The temporary file's would mean nothing to the user.
    let (name, piped) = match file.to_str().is_some_and(means_stdin) {
        true => {
            ("standard input".to_owned(), Some(kept(rustix::stdio::stdin(), "standard input", IMPORT_BYTES, &stop)))
        }
        false => {
            let name = file.display().to_string();
            let is_pipe = file.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
            let pipe = is_pipe.then(|| open_at_once(file)).transpose().map_err(|e| Failure::input(file, &e))?;
            let piped = pipe.map(|pipe| kept(pipe.as_fd(), &name, IMPORT_BYTES, &stop));
            (name, piped)
        }
    };
    let piped = piped.transpose().map_err(|failure| ending.by_signal(failure))?;
    let watch = Watch { stop: &|| stop.is_cancelled(), ..Watch::NONE };
    let path = piped.as_ref().map_or(file, |(path, _)| path);
    let imported = store.import(path, &watch).map_err(|e| match e {
        StoreError::Stopped => ending.by_signal(stopped()),
        StoreError::Import { why, .. } => StoreError::Import { path: name.into(), why }.into(),
        e => e.into(),
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
    use std::io::Write;

    use super::*;

    #[test]
    fn what_a_pipe_cannot_give_is_reported_by_name() {
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"one byte too many").unwrap();
        let taken = |stop: &Cancel| kept(read.as_fd(), "standard input", 16, stop).err().unwrap();
        let stop = Cancel::default();
        stop.cancel();
        assert_eq!(taken(&stop).exit, Exit::Stopped);
        let failure = taken(&Cancel::default());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failure, "standard input: more than 16 B"));
    }
}
