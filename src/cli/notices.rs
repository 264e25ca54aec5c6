//! Runtime notices as plain text: one renderer for line mode, `-p`, `ask-all` and `library add`.

mod page;

use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::args::SessionChoice;
use super::open::{self, Opened};
use super::signals::Ending;
use super::{Context, Exit, Failure, out};
use crate::core::counted;
use crate::core::sanitize::{Clean, sanitize, sanitize_line};
use crate::runtime::protocol::{
    Activity, DocumentRow, Level, Notice, ReadingProgress, Request, SaveState, SearchRow, SessionRow, TimelineRow,
    Unsaved,
};
use crate::runtime::{Attendance, Input};
use crate::tui::entry::grouped;
use crate::tui::status::seconds_left;

/// Characters shown of a text of the user, which may be megabytes from a pipe.
const SHOWN_CHARACTERS: usize = 2_000;
const PROGRESS: Duration = Duration::from_millis(200);

pub(super) struct Attended {
    pub(super) signal: Option<u8>,
    pub(super) failed: Option<Failure>,
    pub(super) unsaved: Option<Unsaved>,
}

/// Gives requests to a runtime and its notices, up to the last, to `each`, with a way to send more. What `each` cannot write stops it.
pub(super) fn attend(
    opened: Opened,
    requests: impl IntoIterator<Item = Request>,
    mut each: impl FnMut(Notice, &Sender<Request>) -> Result<(), Failure>,
) -> Result<Attended, Failure> {
    // A runtime that is gone says why in its last notice: what is sent to it may be lost.
    let runtime = opened.runtime.requests.clone();
    let stop = runtime.clone();
    let ending = Ending::watch(move || drop(stop.send(Request::Stop)))?;
    requests.into_iter().for_each(|request| drop(runtime.send(request)));
    let (mut failed, mut unsaved) = (None, None);
    for notice in &opened.runtime.notices {
        let last = matches!(notice, Notice::Bye { .. });
        match &notice {
            // A write error is the cause, the runtime's end its consequence.
            Notice::Fatal { error, exit } => drop(failed.get_or_insert_with(|| Failure::of_chat(*exit, error))),
            Notice::Bye { unsaved: why, .. } => unsaved.clone_from(why),
            _ => {}
        }
        if let Err(e) = each(notice, &runtime) {
            failed.get_or_insert(e);
            [Request::Stop, Request::Quit].into_iter().for_each(|request| drop(runtime.send(request)));
        }
        if last {
            break;
        }
    }
    if !opened.ended() {
        let why = "the runtime ended unexpectedly. What it saved is kept; run the command again";
        failed.get_or_insert_with(|| Failure::new(Exit::Failure, why));
    }
    Ok(Attended { signal: ending.signal(), failed, unsaved })
}

/// Serves the requests of a command in a new session and ends it.
pub(super) fn serve_requests(
    context: &Context,
    requests: impl IntoIterator<Item = Request>,
    mut each: impl FnMut(Notice),
) -> Result<(Option<u8>, Option<Failure>), Failure> {
    let opened = open::runtime(context, &SessionChoice::New, true, Attendance::Absent, Input::Lines)?;
    let requests = requests.into_iter().chain([Request::Quit]);
    let Attended { signal, failed, unsaved } = attend(opened, requests, |notice, _| {
        each(notice);
        Ok(())
    })?;
    Ok((signal, failed.or_else(|| unsaved.as_ref().map(Failure::not_saved))))
}

pub(super) fn beginning(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        None => sanitize(text).into_owned(),
        Some((at, _)) => {
            let all = grouped(text.chars().count() as u64);
            format!("{} ... ({all} characters)", sanitize(text.get(..at).unwrap_or_default()))
        }
    }
}

pub(super) fn remark(notice: &Notice) -> Option<(Level, String)> {
    match notice {
        Notice::Note(level, text) => Some((*level, text.clone())),
        Notice::Damage(text) => Some((Level::Warn, text.clone())),
        Notice::Save(state @ SaveState::TextOnly(_)) => save_trouble(state).map(|text| (Level::Warn, text)),
        _ => None,
    }
}

/// A note of the conversation with the mark that line mode gives it.
fn marked(level: Level, text: &str) -> String {
    match level {
        Level::Info => text.to_owned(),
        Level::Warn => format!("Note: {text}"),
        Level::Error => format!("Error: {text}"),
    }
}

/// Prints a remark on standard error: information for people, warnings unless `--quiet`.
pub(super) fn print_remark(context: &Context, level: Level, text: &str) {
    match level {
        Level::Info => context.note(text),
        Level::Warn | Level::Error if context.quiet => {}
        Level::Warn | Level::Error => out::err_line(&Clean::text(&marked(level, text))),
    }
}

pub(super) fn save_trouble(state: &SaveState) -> Option<String> {
    match state {
        SaveState::NotSaved(why) => Some(format!("NOT SAVED: {}", sanitize_line(why))),
        SaveState::TextOnly(why) => Some(format!("Text is saved, state is not: {}", sanitize_line(why))),
        SaveState::Saving | SaveState::Empty | SaveState::Saved(_) | SaveState::Off => None,
    }
}

/// Progress on standard error, in one line that other output replaces.
pub(super) struct ProgressLine {
    wanted: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new(wanted: bool) -> ProgressLine {
        ProgressLine { wanted, shown: None }
    }

    pub(super) fn show(&mut self, activity: &Activity) {
        let text = match activity {
            Activity::Busy { what } => Some(what.clone()),
            Activity::Reading(p) if self.shown.is_none_or(|at| at.elapsed() >= PROGRESS) => reading(p),
            _ => None,
        };
        text.iter().for_each(|text| self.text(text));
    }

    pub(super) fn text(&mut self, text: &str) {
        if self.wanted {
            self.shown = Some(Instant::now());
            out::progress(&Clean::line(text));
        }
    }

    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() {
            out::clear_progress();
        }
    }
}

/// `reading 40%  8630 tokens/s  39 s left`.
fn reading(p: &ReadingProgress) -> Option<String> {
    let share = (p.done * 100).checked_div(p.total)?;
    let left = seconds_left(p).unwrap_or(0.0);
    Some(format!("reading {share}%  {:.0} tokens/s  {left:.0} s left", p.tokens_per_s))
}

/// The text of a notice that needs no other notice to be understood.
pub(super) fn lines(notice: &Notice) -> Vec<String> {
    match notice {
        Notice::Ready(info) => {
            let mut lines = vec![format!("{} on {}, {}.", info.name, info.device, info.holds())];
            if info.built_in {
                lines.push("This is the small built-in demo model. The 9B model: sala-chat model download".into());
            }
            lines
        }
        Notice::Note(level, text) => vec![marked(*level, &sanitize(text))],
        Notice::Damage(text) => vec![marked(Level::Warn, &sanitize(text))],
        Notice::Page { title, text } | Notice::Looked { title, text, .. } | Notice::Why { title, text, .. } => {
            let title = format!("{}:", sanitize_line(title));
            let text = page::lines(&sanitize(text));
            std::iter::once(title).chain(text.iter().map(|line| sanitize_line(line).into())).collect()
        }
        Notice::Map(map) => crate::tui::map::sentences(map),
        Notice::FanOut(answers) if answers.over => {
            let question = format!("{}:", sanitize_line(&answers.question));
            std::iter::once(question).chain(crate::tui::fan_out::sentences(answers)).collect()
        }
        Notice::Aside { text, done: Some(_), .. } => vec![format!("aside (not kept): {}", sanitize(text))],
        // Line mode cannot fill the input line.
        Notice::Input { text, editing } => {
            let mut lines = vec![match text.strip_prefix("/system ") {
                Some("") => "There is no system text. /system TEXT sets one.".to_owned(),
                Some(system) => format!("The system text is: {}\n/system TEXT sets another one.", sanitize(system)),
                None => format!("The text was: {}", beginning(text)),
            }];
            if editing.is_some() {
                lines.push("The next line replaces it; an empty line keeps it.".into());
            }
            lines
        }
        Notice::Sessions(rows) => {
            let row = |r: &SessionRow| {
                let (name, title) = (sanitize_line(&r.name), sanitize_line(&r.title));
                let messages = match r.undone {
                    0 => counted(r.messages, "message"),
                    _ => format!("{} messages", r.counted()),
                };
                let tokens = if r.tokens == 0 { "not read yet".to_owned() } else { counted(r.tokens, "token") };
                format!("{name}: {title} ({messages}, {tokens})")
            };
            rows.iter().take(50).map(row).chain(["/resume NAME opens one.".to_owned()]).collect()
        }
        Notice::Found { query, rows } => {
            let found = format!("{} found for {}.", rows.len(), sanitize_line(query));
            let row =
                |r: &SearchRow| format!("{} #{}: {}", sanitize_line(&r.session), r.number, sanitize_line(&r.snippet));
            std::iter::once(found).chain(rows.iter().map(row)).collect()
        }
        Notice::Timeline(rows) => {
            let row = |r: &TimelineRow| {
                let here = if r.head { ", here" } else { "" };
                let kept = if r.kept { ", state kept" } else { "" };
                let label = r.label.as_deref().map(|l| format!(", mark {}", sanitize_line(l))).unwrap_or_default();
                format!("{} {}{label}{kept}{here}", r.place(), sanitize_line(&r.title))
            };
            rows.iter().map(row).collect()
        }
        Notice::Documents { title, rows } => {
            let row = |r: &DocumentRow| {
                let (tokens, lines) = (counted(r.tokens, "token"), counted(r.lines, "line"));
                let state = if r.complete { "" } else { ", read in part" };
                format!("{}, {tokens}, {lines}{state}", sanitize_line(&r.name))
            };
            let title = format!("{}: {}.", sanitize_line(title), counted(rows.len() as u64, "document"));
            std::iter::once(title).chain(rows.iter().map(row)).collect()
        }
        Notice::Fatal { error, .. } => vec![sanitize(error).into_owned()],
        _ => Vec::new(),
    }
}
