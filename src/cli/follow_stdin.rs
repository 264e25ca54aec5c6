//! `--follow -`: standard input grows in a file that is followed, and the terminal takes its place.

use std::fs::File;
use std::io::{IsTerminal, LineWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::fcntl_dupfd_cloexec;

use super::{Exit, Failure};
use crate::engine::protocol::Cancel;
use crate::text::pipe::{self, PipeError};

const FIRST: Duration = Duration::from_secs(2);
/// The text before the first line: an empty file cannot be read.
const NOTHING_YET: &[u8] = b"(no input yet)\n";

/// The file that standard input is written to, whole lines at a time, and its folder.
pub struct Spool {
    pub file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Spool {
    pub fn start(most: u64) -> Result<Spool, Failure> {
        let failed = |what: &str, e: std::io::Error| Failure::new(Exit::Failure, format!("--follow -: {what}: {e}"));
        if std::io::stdin().is_terminal() {
            return Err(Failure::usage("--follow - follows a pipe: COMMAND | sala-chat --follow -"));
        }
        let input = fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(|e| failed("standard input", e.into()))?;
        let terminal = File::open("/dev/tty").map_err(|e| failed("no terminal for your questions", e))?;
        rustix::stdio::dup2_stdin(&terminal).map_err(|e| failed("the terminal", e.into()))?;
        let folder = tempfile::Builder::new().prefix(pipe::SPOOL).tempdir();
        let folder = folder.map_err(|e| failed("no temporary folder", e))?;
        let path = folder.path().join("stdin");
        let file = File::create(&path).map_err(|e| failed("no temporary file", e))?;
        let mut own = file.try_clone().map_err(|e| failed("no temporary file", e))?;
        let copy = move || copy(&input, most, file);
        std::thread::Builder::new().name("stdin".into()).spawn(copy).map_err(|e| failed("no thread", e))?;
        let until = Instant::now() + FIRST;
        while path.metadata().is_ok_and(|meta| meta.len() == 0) {
            std::thread::sleep(Duration::from_millis(20));
            if Instant::now() > until {
                own.write_all(NOTHING_YET).map_err(|e| failed("the temporary file", e))?;
            }
        }
        Ok(Spool { file: path, _folder: folder })
    }
}

fn copy(input: &OwnedFd, most: u64, file: File) {
    let mut lines = LineWriter::new(file);
    let why = match pipe::read(input.as_fd(), most, &Cancel::default(), &mut lines) {
        Ok(()) | Err(PipeError::Stopped) => None,
        Err(PipeError::TooLarge(_)) => Some("the limit of load.max_file_mib is reached".to_owned()),
        Err(PipeError::Read(e) | PipeError::Write(e)) => Some(e.to_string()),
    };
    if let Some(why) = why {
        let _ = writeln!(lines, "\n(the input is cut off here: {why})");
    }
    let _ = lines.flush();
}
