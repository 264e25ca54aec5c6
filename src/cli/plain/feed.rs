//! Line mode on the real terminal: standard input, the runtime's notices and signals in; standard output and requests out.

use std::io::{self, BufRead, IsTerminal, Read};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select, unbounded};
use signal_hook::consts::{SIGCONT, SIGINT, SIGTSTP};

use super::super::columns::when;
use super::super::failure::RUNTIME_ENDED;
use super::super::run::RuntimeHandle;
use super::super::signals::{ends, suspend, watch_signals};
use super::super::{config_cmd, out};
use super::{Out, Plain};
use crate::core::sanitize::{Clean, command_word};
use crate::core::{Exit, bytes as bytes_of, counted};
use crate::runtime::protocol::Request;
use crate::tui::options::UiConfig;
use crate::tui::tour::Tour;

/// A command can be answered in several lines: the prompt follows when this long nothing came.
const QUIET: Duration = Duration::from_millis(40);

const LINE_BYTES: u64 = 16 << 20;

/// Lines of standard input; `Err` describes a line that is not text.
pub struct Lines(Receiver<Result<String, String>>);

pub fn start_lines() -> io::Result<Lines> {
    let (lines_to, lines) = unbounded();
    std::thread::Builder::new().name("lines".into()).spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(line)) = next_line(&mut input, LINE_BYTES) {
            if lines_to.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(Lines(lines))
}

/// The next line, of at most so many bytes; `None` at the end.
fn next_line(input: &mut impl BufRead, most: u64) -> io::Result<Option<Result<String, String>>> {
    let mut bytes = Vec::new();
    input.by_ref().take(most + 1).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let ended = bytes.last() == Some(&b'\n');
    if bytes.len() as u64 > most && !ended {
        input.skip_until(b'\n')?;
        let why = format!("A line of more than {} was left out. /load FILE reads long texts.", bytes_of(most));
        return Ok(Some(Err(why)));
    }
    bytes.truncate(bytes.len() - usize::from(ended));
    if ended && bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    Ok(Some(String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        format!(
            "A line that is not UTF-8 text (byte {at}) was left out. Set the terminal to UTF-8, or convert the text."
        )
    })))
}

/// Runs line mode until it ends.
pub fn run(
    ui: &UiConfig,
    runtime: RuntimeHandle,
    lines: &Lines,
    tour: Option<Tour>,
) -> io::Result<(Exit, Option<Tour>)> {
    let (signals_to, signals) = unbounded();
    watch_signals(signals_to)?;
    let watched = io::stdin().is_terminal();
    let mut plain = Plain {
        sent: ui.sent_before,
        settings: ui.settings.clone(),
        looks_hidden: !ui.ui.look,
        toured: tour.is_some(),
        tour,
        ..Plain::new(ui.home.clone(), watched)
    };
    if let Some(row) = ui.offer.as_ref().filter(|_| watched) {
        let (name, title) = (command_word(&row.name), row.heading());
        let (changed, tokens) = (when(row.updated_ms), counted(row.tokens, "token"));
        out::line(&Clean::line(&format!("/resume {name} continues \"{title}\" ({changed}, {tokens}).")))?;
    }
    let mut dying: Option<(Exit, Instant)> = None;
    let mut input = lines.0.clone();
    loop {
        let timeout = match dying {
            Some((_, at)) => at.saturating_duration_since(Instant::now()),
            None if plain.wants_prompt() => QUIET,
            None => Duration::from_secs(365 * 86_400),
        };
        let out = select! {
            recv(input) -> line => match line {
                Ok(Ok(line)) => plain.line(&line),
                Ok(Err(why)) => { plain.prompted = false; vec![Out::Line(why)] }
                Err(_) => { input = never(); plain.end_of_input() }
            },
            recv(runtime.notices) -> notice => match notice {
                Ok(notice) => plain.notice(notice),
                Err(_) => vec![Out::Line(format!("sala-chat: {RUNTIME_ENDED}")), Out::Exit(Exit::Failure)],
            },
            recv(signals) -> signal => match signal {
                // From a terminal it is Ctrl-C, a key with a meaning; otherwise it ends the program.
                Ok(SIGINT) if watched => plain.interrupt(),
                Ok(SIGTSTP) => {
                    let suspended = suspend();
                    plain.resumed();
                    suspended.err().map_or(Vec::new(), |why| vec![Out::Line(String::new()), Out::Line(why)])
                }
                Ok(SIGCONT) | Err(_) => Vec::new(),
                Ok(signal) => { dying = Some(ends(signal)); vec![Out::Send(Request::Quit)] }
            },
            default(timeout) => match dying {
                Some((exit, _)) => vec![Out::Exit(exit)],
                None => plain.quiet(),
            },
        };
        for o in out {
            match o {
                Out::Line(text) => out::line(&Clean::text(&text))?,
                Out::Part(text) => out::part(&Clean::text(&text))?,
                Out::Keep(key, value) => {
                    let report = config_cmd::keep(ui, key, &value).unwrap_or_else(|why| why);
                    out::line(&Clean::text(&report))?;
                }
                // A runtime that is gone is reported by its other channel.
                Out::Send(request) => drop(runtime.requests.send(request)),
                Out::Exit(exit) => return Ok((dying.map_or(exit, |d| d.0), plain.tour.take())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_text_is_reported_and_the_others_are_read() {
        let mut input: &[u8] = b"one\r\n\xff\xfe\n\n0123456789\nlast";
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, 8).unwrap() {
            lines.push(line.map_err(|why| why.contains("left out") && why.ends_with('.')));
        }
        assert_eq!(lines, [Ok("one".to_owned()), Err(true), Ok(String::new()), Err(true), Ok("last".to_owned())]);
    }
}
