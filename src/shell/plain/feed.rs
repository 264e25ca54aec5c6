//! Line mode on the real terminal: standard input, the desk's notices and signals in; standard output and requests out.

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select, unbounded};

use super::super::run::DeskHandle;
use super::super::signals::{Outside, watch_signals};
use super::super::{config_cmd, out};
use super::{Out, Plain};
use crate::app::tour::Tour;
use crate::protocol::desk::Request;
use crate::text::sanitize::Clean;

/// A command can be answered in several lines: the prompt follows when this long nothing came.
const QUIET: Duration = Duration::from_millis(40);

/// Lines of standard input as they come.
pub struct Lines(Receiver<String>);

/// Starts to read standard input.
///
/// # Errors
/// No thread to read with.
pub fn start_lines() -> io::Result<Lines> {
    let (lines_to, lines) = unbounded();
    std::thread::Builder::new().name("lines".into()).spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines_to.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(Lines(lines))
}

/// Runs line mode until it ends; the exit code, and where a tour is then.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(
    home: Option<PathBuf>,
    look: bool,
    settings_file: &Path,
    desk: DeskHandle,
    lines: &Lines,
    tour: Option<Tour>,
) -> io::Result<(i32, Option<Tour>)> {
    let (outside_to, outside) = unbounded();
    watch_signals(outside_to)?;
    let mut plain = Plain::new(home, io::stdin().is_terminal()).with_tour(tour).say_looked(look);
    let mut dying: Option<(i32, Instant)> = None;
    let mut input: Receiver<String> = lines.0.clone();
    loop {
        let timeout = match dying {
            Some((_, at)) => at.saturating_duration_since(Instant::now()),
            None if plain.wants_prompt() => QUIET,
            None => Duration::from_secs(365 * 86_400),
        };
        let out = select! {
            recv(input) -> line => match line {
                Ok(line) => plain.line(&line),
                Err(_) => { input = never(); plain.end_of_input() }
            },
            recv(desk.notices) -> notice => match notice {
                Ok(notice) => plain.notice(notice),
                Err(_) => vec![Out::Line("The working thread ended unexpectedly. What was said is saved.".into()), Out::Exit(1)],
            },
            recv(outside) -> what => match what {
                Ok(Outside::Terminate) => { dying = Some((143, Instant::now() + Duration::from_secs(5))); vec![Out::Send(Request::Quit)] }
                Ok(Outside::Hangup) => { dying = Some((129, Instant::now() + Duration::from_secs(1))); vec![Out::Send(Request::Quit)] }
                // On a terminal that is Ctrl-C, a key with a meaning; elsewhere somebody wants the program to end.
                Ok(Outside::Interrupt) if !io::stdin().is_terminal() => {
                    dying = Some((130, Instant::now() + Duration::from_secs(5)));
                    vec![Out::Send(Request::Quit)]
                }
                Ok(Outside::Interrupt) => plain.interrupt(),
                Ok(Outside::Suspend) => {
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                    Vec::new()
                }
                Ok(Outside::Continue) | Err(_) => Vec::new(),
            },
            default(timeout) => match dying {
                Some((code, _)) => vec![Out::Exit(code)],
                None => plain.quiet(),
            },
        };
        for o in out {
            match o {
                Out::Line(text) => out::line(&Clean::text(&text))?,
                Out::Part(text) => out::part(&Clean::text(&text))?,
                Out::Keep(key, value) => match config_cmd::set(settings_file, key, &value) {
                    Ok(_) => {
                        out::line(&Clean::text(&format!("{key} = {value} is in {} now.", settings_file.display())))?
                    }
                    Err(e) => out::line(&Clean::text(&e.to_string()))?,
                },
                // A desk that is gone is reported by its other channel.
                Out::Send(request) => drop(desk.requests.send(request)),
                Out::Exit(code) => return Ok((dying.map_or(code, |d| d.0), plain.tour.take())),
            }
        }
    }
}
