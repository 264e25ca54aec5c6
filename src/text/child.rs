//! Runs another program for its output, with limits on time and size. Everything it started ends with it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::protocol::Cancel;

/// Time between two checks for cancellation and the end of the program.
const TICK: Duration = Duration::from_millis(5);
/// End of standard error that is examined.
const COMPLAINT_BYTES: u64 = 64 << 10;
const STDERR_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub time: Duration,
    pub output_bytes: u64,
}

#[derive(Debug)]
pub enum Failed {
    Start(Error),
    TimedOut,
    TooLong,
    Cancelled,
    /// By a signal. A confined child aborts when it exceeds its memory or stack.
    Killed(String),
    /// It reports an error: its last line, or its status.
    Refused(String),
}

/// The command line of this program, for child processes that read hostile files; empty if its path is unknown.
pub fn this_program() -> Vec<OsString> {
    std::env::current_exe().map(|path| vec![path.into_os_string()]).unwrap_or_default()
}

/// Called first in a child that reads hostile input: limits its memory and ties its life to its parent.
pub(super) fn confine(memory_bytes: u64) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    if setrlimit(Resource::As, most(memory_bytes)).is_err() || setrlimit(Resource::Core, most(0)).is_err() {
        return Err("memory limit could not be set".to_owned());
    }
    // Without a parent the output has no reader. On other systems the next write ends the child.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    Ok(())
}

/// The command of a child that reads hostile input: a program, normally this one, with further arguments.
pub(super) fn confined(program: &[OsString], further: &[&OsStr]) -> Result<Command, Failed> {
    let (first, arguments) = program.split_first().ok_or_else(|| Failed::Start(ErrorKind::NotFound.into()))?;
    let mut command = Command::new(first);
    command.args(arguments).args(further).env("RUST_BACKTRACE", "0");
    Ok(command)
}

/// A file without a name, in memory: what a child reads and writes may be private.
#[cfg(target_os = "linux")]
fn nameless() -> std::io::Result<File> {
    Ok(rustix::fs::memfd_create("child", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
use tempfile::tempfile as nameless;

/// The output of a program that succeeds. It runs without a shell, in a process group of its own.
pub fn run(mut command: Command, input: &[u8], limits: Limits, cancel: &Cancel) -> Result<Vec<u8>, Failed> {
    let mut prepare = || -> std::io::Result<(File, File)> {
        // Files without names: a program may ignore its input, and a daemon may hold the output open.
        let (mut stdin, stdout, stderr) = (nameless()?, nameless()?, nameless()?);
        stdin.write_all(input)?;
        stdin.rewind()?;
        command.stdin(if input.is_empty() { Stdio::null() } else { stdin.into() });
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
        Ok((stdout, stderr))
    };
    let (stdout, stderr) = prepare().map_err(Failed::Start)?;
    let status = ended(command, [&stdout, &stderr], limits, cancel)?;
    let read = |mut file: &File, from: u64, most: u64| {
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(from)).and_then(|_| file.take(most).read_to_end(&mut bytes));
        read.map_err(Failed::Start).map(|_| bytes)
    };
    if status.success() {
        return read(&stdout, 0, limits.output_bytes);
    }
    let written = stderr.metadata().map_or(0, |meta| meta.len());
    let complaint = read(&stderr, written.saturating_sub(COMPLAINT_BYTES), COMPLAINT_BYTES)?;
    let complaint = String::from_utf8_lossy(&complaint);
    let last = complaint.lines().map(str::trim).rfind(|line| !line.is_empty());
    let why = last.map_or_else(|| format!("it ended with {status}"), |line| line.chars().take(200).collect());
    Err(if status.signal().is_some() { Failed::Killed(why) } else { Failed::Refused(why) })
}

/// Runs a program to its end or to a limit, and ends all that it started.
fn ended(mut command: Command, written: [&File; 2], limits: Limits, cancel: &Cancel) -> Result<ExitStatus, Failed> {
    let mut child = command.spawn().map_err(Failed::Start)?;
    let deadline = Instant::now() + limits.time;
    let most = [limits.output_bytes, STDERR_BYTES];
    let is_long = || written.iter().zip(most).any(|(file, most)| file.metadata().is_ok_and(|meta| meta.len() > most));
    let ended = loop {
        match child.try_wait() {
            _ if is_long() => break Err(Failed::TooLong),
            Ok(Some(status)) => break Ok(status),
            Ok(None) if cancel.is_cancelled() => break Err(Failed::Cancelled),
            Ok(None) if Instant::now() >= deadline => break Err(Failed::TimedOut),
            Ok(None) => thread::sleep(TICK),
            Err(e) => break Err(Failed::Start(e)),
        }
    };
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    ended
}

#[cfg(test)]
mod tests {
    use shlex::split as words;

    use super::*;

    fn shell(script: &str, limits: Limits) -> Result<Vec<u8>, Failed> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, &[], limits, &Cancel::default())
    }

    const ROOMY: Limits = Limits { time: Duration::from_secs(20), output_bytes: 1 << 20 };

    #[test]
    fn output_and_complaints_are_returned() {
        let refused = shell("echo text; echo first >&2; echo 'why not' >&2; echo >&2; exit 3", ROOMY);
        assert!(matches!(&refused, Err(Failed::Refused(why)) if why == "why not"), "{refused:?}");
        let silent = shell("exit 3", ROOMY);
        assert!(matches!(&silent, Err(Failed::Refused(why)) if why == "it ended with exit status: 3"), "{silent:?}");
        let mut command = Command::new("cat");
        command.arg("-");
        assert_eq!(run(command, b"its input", ROOMY, &Cancel::default()).unwrap(), b"its input");
    }

    #[test]
    fn time_size_and_stop_are_limits() {
        let short = Limits { time: Duration::from_millis(100), ..ROOMY };
        assert!(matches!(shell("sleep 30 & sleep 30", short), Err(Failed::TimedOut)));
        let small = Limits { output_bytes: 1000, ..ROOMY };
        assert!(matches!(shell("while :; do echo longer and longer; done", small), Err(Failed::TooLong)));
        let noisy = "for i in 1 2 3 4 5 6 7 8 9; do head -c 99999 /dev/zero >&2; sleep 0.02; done; echo why >&2";
        assert_eq!(shell(&format!("{noisy}; echo text"), small).unwrap(), b"text\n");
        assert!(matches!(shell(&format!("{noisy}; exit 3"), small), Err(Failed::Refused(_))));
        let cancel = Cancel::default();
        cancel.cancel();
        let mut command = Command::new("sleep");
        command.arg("30");
        assert!(matches!(run(command, &[], ROOMY, &cancel), Err(Failed::Cancelled)));
        assert_eq!(shell("echo text", ROOMY).unwrap(), b"text\n");
        assert!(matches!(shell("kill -ABRT $$", ROOMY), Err(Failed::Killed(_))));
        let missing = run(Command::new("/nonexistent/x"), &[], ROOMY, &Cancel::default());
        assert!(matches!(missing, Err(Failed::Start(_))));
    }

    #[test]
    fn a_program_that_closes_its_output_may_go_on() {
        assert_eq!(shell("echo text; exec >&-; sleep 0.2; exit 0", ROOMY).unwrap(), b"text\n");
        assert!(matches!(shell("exec >&-; sleep 0.2; exit 3", ROOMY), Err(Failed::Refused(_))));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_daemon_that_holds_the_output_open_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        // The daemon joins its session before it reports its id.
        let daemon = format!("mkfifo {at}/pid; setsid sh -c 'echo $$ > {at}/pid; exec sleep 60' &");
        let begun = Instant::now();
        let out = shell(&format!("{daemon} read pid < {at}/pid; echo $pid; echo why >&2"), ROOMY).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for");
        let pid = String::from_utf8(out).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn command_lines_split_like_in_a_shell_but_expand_nothing() {
        assert_eq!(words(r#"a "b c" 'd $x' e\ f "g\"h" """#).unwrap(), ["a", "b c", "d $x", "e f", "g\"h", ""]);
        assert_eq!(words("open 'quote"), None);
    }
}
