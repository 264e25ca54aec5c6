//! Signals and the vanished terminal, as events for the loop. crossterm 0.29 reads in a busy loop when its terminal
//! disappears, so a guard thread waits for the hang-up, puts a silent pipe in the terminal's place, and ends the
//! process if the loop does not do so in time.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{Exit, Failure, out};
use crate::core::plain_words;
use crate::core::sanitize::Clean;
use crate::engine::protocol::Command;

/// Without those that the parent had this program ignore: after `nohup` a hang-up ends nothing, after `trap '' INT` an interrupt.
pub(super) fn heeded(signals: &[i32]) -> Vec<i32> {
    let ignored = |signal: i32| action(signal, None).is_ok_and(|now| now.sa_sigaction == libc::SIG_IGN);
    signals.iter().copied().filter(|signal| !matches!(*signal, SIGHUP | SIGINT) || !ignored(*signal)).collect()
}

/// Looks for SIGCONT, 5 ms apart: another thread may handle it.
const CONTINUED_LOOKS: usize = 20;

/// Suspends the process group, so that a script waiting for this program stops too. Returns when it is continued.
pub(super) fn suspend() -> Result<(), String> {
    let fail = |e: io::Error| format!("Not suspended: {}", plain_words(&e));
    let continued = Arc::new(AtomicBool::new(false));
    let heard = signal_hook::flag::register(SIGCONT, Arc::clone(&continued)).map_err(fail)?;
    let handler = action(SIGTSTP, None).map_err(fail)?;
    let mut stops = handler;
    stops.sa_sigaction = libc::SIG_DFL;
    let stopped = action(SIGTSTP, Some(&stops)).and_then(|_| Ok(kill_current_process_group(Signal::TSTP)?));
    // The process stops in this loop. Without a shell the system ignores the signal.
    for _ in 0..CONTINUED_LOOKS {
        if stopped.is_err() || continued.load(Ordering::SeqCst) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let restored = action(SIGTSTP, Some(&handler));
    signal_hook::low_level::unregister(heard);
    stopped.and(restored).map_err(fail)?;
    let no_shell = || "Not suspended: there is no shell to continue it".to_owned();
    continued.load(Ordering::SeqCst).then_some(()).ok_or_else(no_shell)
}

/// Runs `work` while SIGINT and SIGTSTP mean nothing here: keys pressed in an editor are for the editor alone. By
/// handlers, because children inherit ignored signals.
pub(super) fn left_to_children<T>(work: impl FnOnce() -> T) -> T {
    extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    let silenced = [SIGINT, SIGTSTP].map(|signal| {
        let handler = action(signal, None).ok().filter(|now| now.sa_sigaction != libc::SIG_IGN)?;
        let silent = libc::sigaction { sa_sigaction: nothing as *const () as usize, ..handler };
        action(signal, Some(&silent)).ok().map(|before| (signal, before))
    });
    let done = work();
    for (signal, before) in silenced.into_iter().flatten() {
        let _ = action(signal, Some(&before));
    }
    done
}

/// The action of a signal before this call.
#[allow(unsafe_code)]
fn action(signal: i32, to: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let to = to.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `to` is null or an action that was read here, with its own handler, none, or one that reads none of its arguments.
    // `before` has room for one; zeroes are a valid one, and the call fills it where it succeeds.
    unsafe {
        if libc::sigaction(signal, to, before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(before.assume_init())
    }
}

/// A SIGINT this soon after the first signal is the same one, sent to the process and to its group.
const SAME: Duration = Duration::from_millis(500);
const LAST_WORDS: Duration = Duration::from_millis(50);
const STOP_GRACE: Duration = Duration::from_secs(5);
const HANGUP_GRACE: Duration = Duration::from_secs(2);

/// Hands signals to `each`, on a thread of its own, until it returns false.
pub(super) fn listen(name: &str, signals: &[i32], each: impl FnMut(i32) -> bool + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(heeded(signals))?;
    std::thread::Builder::new().name(name.into()).spawn(move || signals.forever().all(each)).map(drop)
}

pub(super) fn park_at_signal(engine: Sender<Command>) -> io::Result<()> {
    listen("park", &[SIGUSR1], move |_| engine.send(Command::Park).is_ok())
}

/// Signals of a chat. A terminal that is gone counts as SIGHUP.
pub fn watch_signals(to: Sender<i32>) -> io::Result<()> {
    listen("signals", &[SIGTERM, SIGHUP, SIGINT, SIGTSTP, SIGCONT], move |signal| to.send(signal).is_ok())
}

/// How and by when a chat ends that has received a signal.
pub(super) fn ends(signal: i32) -> (Exit, Instant) {
    let grace = if signal == SIGHUP { HANGUP_GRACE / 2 } else { STOP_GRACE };
    (Exit::by_signal(signal), Instant::now() + grace)
}

/// Signals of a command without a screen. The first asks it to stop and is remembered. If it has not ended a few
/// seconds later, or SIGINT arrives again, the process ends at once with a message. Other repeated signals count as
/// the first one: `timeout` sends each to the process and to its group.
#[derive(Clone, Debug)]
pub(super) struct Ending(Arc<AtomicU8>);

impl Ending {
    pub(super) fn watch(stop: impl FnOnce() + Send + 'static) -> io::Result<Ending> {
        let mut signals = Signals::new(heeded(&[SIGINT, SIGTERM, SIGHUP]))?;
        let first = Arc::new(AtomicU8::new(0));
        let ending = Ending(Arc::clone(&first));
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut signals = signals.forever();
            let Some(signal) = signals.next() else { return };
            first.store(u8::try_from(signal).unwrap_or(u8::MAX), Ordering::Release);
            let since = Instant::now();
            stop();
            let grace = if signal == SIGHUP { HANGUP_GRACE } else { STOP_GRACE };
            let waiting = std::thread::Builder::new().name("grace".into()).spawn(move || {
                std::thread::sleep(grace);
                end_now(signal);
            });
            if waiting.is_err() || signals.any(|again| again == SIGINT && since.elapsed() >= SAME) {
                end_now(signal);
            }
        })?;
        Ok(ending)
    }

    pub(super) fn signal(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Acquire)).filter(|n| *n != 0)
    }

    /// What was stopped ends with the code of the signal that stopped it.
    pub(super) fn by_signal(&self, failure: Failure) -> Failure {
        match self.signal() {
            Some(signal) if failure.exit == Exit::Stopped => Failure { exit: Exit::Signal(signal), ..failure },
            _ => failure,
        }
    }
}

fn end_now(signal: i32) {
    // On a thread of its own: standard error may block.
    let _ = std::thread::Builder::new().name("last-words".into()).spawn(|| {
        out::err_line(&Clean::line("sala-chat: interrupted. What was saved before is kept"));
    });
    std::thread::sleep(LAST_WORDS);
    std::process::exit(Exit::by_signal(signal).into());
}

pub fn watch_terminal(to: Sender<i32>) -> io::Result<()> {
    let guard = std::thread::Builder::new().name("tty-guard".into()).spawn(move || {
        wait_for_hangup();
        // The reading end of a pipe takes the place of standard input; its writing end stays open and silent.
        if let Ok((read, write)) = std::io::pipe() {
            let _ = rustix::stdio::dup2_stdin(&read);
            std::mem::forget((read, write));
        }
        let _ = to.send(SIGHUP);
        std::thread::sleep(HANGUP_GRACE);
        // The loop hangs somewhere, most likely in a write to the terminal. Text is on disk.
        std::process::exit(Exit::HANGUP.into());
    });
    guard.map(drop)
}

fn wait_for_hangup() {
    let stdin = rustix::stdio::stdin();
    loop {
        // Without requested events only hang-up and errors wake it.
        let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if fds.iter().any(|f| f.revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)) => {
                return;
            }
            // Signals interrupt the wait; a kernel that returns without a reason must not make us spin.
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_signal_stopped_ends_with_its_code_and_other_failures_with_theirs() {
        let code =
            |signal: u8, exit| Ending(Arc::new(AtomicU8::new(signal))).by_signal(Failure::new(exit, "")).exit.code();
        assert_eq!([code(15, Exit::Stopped), code(2, Exit::Stopped), code(0, Exit::Stopped)], [143, 130, 130]);
        assert_eq!(code(15, Exit::Disk), Exit::Disk.code());
    }
}
