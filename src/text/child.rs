//! Runs another program for its output, with limits on time and size. Everything it started ends with it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::protocol::Cancel;

/// Time between two checks for cancellation and the end of the program.
const TICK: Duration = Duration::from_millis(5);
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub time: Duration,
    pub output_bytes: u64,
}

#[derive(Debug)]
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    /// Last non-empty line of standard error.
    complaint: String,
}

#[derive(Debug)]
pub enum Failed {
    Start(std::io::Error),
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

struct Captured {
    /// `None` after the end, or once the limit is exceeded.
    pipe: Option<File>,
    bytes: Vec<u8>,
    most: u64,
}

impl Captured {
    fn new(pipe: Option<OwnedFd>, most: u64) -> Captured {
        Captured { pipe: pipe.map(File::from), bytes: Vec::new(), most }
    }

    fn too_long(&self) -> bool {
        self.bytes.len() as u64 > self.most
    }

    /// Reads once. Call it only when data is ready: it would block otherwise.
    fn take(&mut self, piece: &mut [u8]) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.read(piece) {
            Ok(n) if n > 0 => self.bytes.extend_from_slice(piece.get(..n).unwrap_or(piece)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A broken pipe ends the output; the exit status shows whether that was an error.
            Ok(_) | Err(_) => self.pipe = None,
        }
        if self.too_long() {
            self.pipe = None;
        }
    }
}

/// Waits for output of either pipe and reads it; false if there was none.
fn drain(captured: [&mut Captured; 2], wait: Duration) -> std::io::Result<bool> {
    let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
    let mut open: Vec<&mut Captured> = captured.into_iter().filter(|s| s.pipe.is_some()).collect();
    let mut fds: Vec<PollFd<'_>> =
        open.iter().filter_map(|s| s.pipe.as_ref()).map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&wait)) {
        // A signal only ends this wait.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut piece = vec![0; PIECE];
    open.iter_mut().zip(&ready).filter(|(_, ready)| **ready).for_each(|(captured, _)| captured.take(&mut piece));
    Ok(ready.contains(&true))
}

/// The command of a program, such as this one, for a child that reads hostile input.
pub(super) fn confined(program: &[OsString]) -> Result<Command, Failed> {
    let (first, arguments) = program.split_first().ok_or_else(|| Failed::Start(ErrorKind::NotFound.into()))?;
    let mut command = Command::new(first);
    command.args(arguments).env("RUST_BACKTRACE", "0");
    Ok(command)
}

/// The output of a program that succeeds. It runs without a shell, in a process group of its own.
pub fn run(command: Command, input: Vec<u8>, limits: Limits, cancel: &Cancel) -> Result<Vec<u8>, Failed> {
    let Output { status, stdout, complaint } = output(command, input, limits, cancel)?;
    let why = if complaint.is_empty() { format!("it ended with {status}") } else { complaint };
    match status.signal() {
        _ if status.success() => Ok(stdout),
        Some(_) => Err(Failed::Killed(why)),
        None => Err(Failed::Refused(why)),
    }
}

fn output(mut command: Command, input: Vec<u8>, limits: Limits, cancel: &Cancel) -> Result<Output, Failed> {
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(Failed::Start)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program may ignore its input.
        thread::spawn(move || drop(pipe.write_all(&input)));
    }
    let mut stdout = Captured::new(child.stdout.take().map(OwnedFd::from), limits.output_bytes);
    let mut stderr = Captured::new(child.stderr.take().map(OwnedFd::from), 1 << 20);

    let deadline = Instant::now() + limits.time;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if cancel.is_cancelled() => break Err(Failed::Cancelled),
            Ok(None) if Instant::now() >= deadline => break Err(Failed::TimedOut),
            // It would block forever on a full pipe.
            Ok(None) if stdout.too_long() => break Err(Failed::TooLong),
            Ok(None) => match drain([&mut stdout, &mut stderr], TICK) {
                Ok(_) => {}
                Err(e) => break Err(Failed::Start(e)),
            },
            Err(e) => break Err(Failed::Start(e)),
        }
    };
    // Processes that it left running.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    let status = ended?;
    // All its output is in the pipes. They may never close: a daemon in another session can hold them open.
    while drain([&mut stdout, &mut stderr], Duration::ZERO).map_err(Failed::Start)? {}
    if stdout.too_long() {
        return Err(Failed::TooLong);
    }
    let (stdout, stderr) = (stdout.bytes, stderr.bytes);
    let stderr = String::from_utf8_lossy(&stderr);
    let complaint = stderr.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or_default();
    Ok(Output { status, stdout, complaint: complaint.chars().take(200).collect() })
}

#[cfg(test)]
mod tests {
    use shlex::split as words;

    use super::*;

    fn shell(script: &str, limits: Limits) -> Result<Output, Failed> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        output(command, Vec::new(), limits, &Cancel::default())
    }

    const ROOMY: Limits = Limits { time: Duration::from_secs(20), output_bytes: 1 << 20 };

    #[test]
    fn output_and_complaints_are_returned() {
        let out = shell("echo text; echo first >&2; echo 'why not' >&2; exit 3", ROOMY).unwrap();
        assert_eq!(
            (out.stdout.as_slice(), out.complaint.as_str(), out.status.code()),
            (&b"text\n"[..], "why not", Some(3))
        );
    }

    #[test]
    fn time_size_and_stop_are_limits() {
        let short = Limits { time: Duration::from_millis(100), ..ROOMY };
        assert!(matches!(shell("sleep 30 & sleep 30", short), Err(Failed::TimedOut)));
        let small = Limits { output_bytes: 1000, ..ROOMY };
        assert!(matches!(shell("while :; do echo longer and longer; done", small), Err(Failed::TooLong)));
        let cancel = Cancel::default();
        cancel.cancel();
        let mut command = Command::new("sleep");
        command.arg("30");
        assert!(matches!(run(command, Vec::new(), ROOMY, &cancel), Err(Failed::Cancelled)));
        let ended = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command, Vec::new(), ROOMY, &Cancel::default())
        };
        assert_eq!(ended("echo text").unwrap(), b"text\n");
        assert!(matches!(ended("echo why not >&2; exit 3"), Err(Failed::Refused(why)) if why == "why not"));
        assert!(matches!(ended("kill -ABRT $$"), Err(Failed::Killed(_))));
        let missing = run(Command::new("/nonexistent/x"), Vec::new(), ROOMY, &Cancel::default());
        assert!(matches!(missing, Err(Failed::Start(_))));
    }

    #[test]
    fn a_program_that_closes_its_output_may_go_on() {
        let out = shell("echo text; exec >&-; sleep 0.2; exit 3", ROOMY).unwrap();
        assert_eq!((out.stdout.as_slice(), out.status.code()), (&b"text\n"[..], Some(3)));
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
        assert_eq!((out.complaint.as_str(), out.status.success()), ("why", true));
        let pid = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn command_lines_split_like_in_a_shell_but_expand_nothing() {
        assert_eq!(words(r#"a "b c" 'd $x' e\ f "g\"h" """#).unwrap(), ["a", "b c", "d $x", "e f", "g\"h", ""]);
        assert_eq!(words("open 'quote"), None);
    }
}
