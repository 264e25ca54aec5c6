//! Quitting: whether to confirm, possible losses, and saving unsent text.

use super::acts::{HINT_MS, hint, is_remembered, remember, send};
use super::{App, Asker, Phase, Question, drafts};
use crate::config::commands::is_command;
use crate::core::transcript::LONGEST_PROMPT;
use crate::runtime::protocol::{Activity, Choice, Request, SaveState};

pub(super) fn quit(app: &mut App) {
    if app.phase == Phase::Running {
        app.phase = Phase::Quitting;
        app.overlay = None;
        app.popup = None;
        app.questions.clear();
        // A closed terminal cannot answer a question.
        let lines: Vec<String> = app.open.unsent().cloned().collect();
        lines.iter().for_each(|line| remember(app, line));
        drafts::keep_all(app);
        send(app, Request::Quit);
        app.hint = Some(("Saving. Ctrl-C again ends at once: text is safe, state may be read again".into(), None));
    }
}

pub(super) fn quit_or_ask(app: &mut App) {
    let Some(text) = lost_by_quitting(app) else { return quit(app) };
    app.questions.push_front(Question::new(Asker::Quit, text, Choice::all(&[('y', "quit"), ('n', "stay")])));
}

pub(super) fn keep_quit_question_true(app: &mut App) {
    if !app.questions.iter().any(|q| q.asker == Asker::Quit) {
        return;
    }
    match lost_by_quitting(app) {
        Some(text) => {
            app.questions.iter_mut().filter(|q| q.asker == Asker::Quit).for_each(|q| q.text.clone_from(&text))
        }
        None => {
            app.questions.retain(|q| q.asker != Asker::Quit);
            hint(app, "The work is done; quitting stops nothing now", HINT_MS);
        }
    }
}

const UNSAVED: &str = "Part of this conversation is not saved and would be lost; /export FILE saves it elsewhere.";

pub(super) fn is_unsaved(app: &App) -> bool {
    matches!(app.save, SaveState::NotSaved(_)) && app.has_begun()
}

const UNSENT: (&str, &str) = ("Up finds it at the next start", "Up finds them at the next start");
const DRAFTS: (&str, &str) = ("it is kept for the next start", "they are kept for the next start");

fn fate(lengths: &[usize], remembers: bool, (it, they): (&str, &str)) -> String {
    let one = lengths.len() == 1;
    match lengths.iter().filter(|bytes| **bytes > LONGEST_PROMPT).count() {
        _ if !remembers && one => "it is not kept".into(),
        _ if !remembers => "they are not kept".into(),
        0 if one => it.into(),
        0 => they.into(),
        long if long == lengths.len() => format!("too long ({LONGEST_PROMPT} bytes at most), and not kept"),
        long => format!("{they}, but for {long} of more than {LONGEST_PROMPT} bytes"),
    }
}

fn lost_by_quitting(app: &App) -> Option<String> {
    let here = app.runs() && !matches!(app.activity, Activity::Starting { .. });
    let others: Vec<String> = app.open.at_work().map(|name| format!("\"{name}\"")).collect();
    let remembers = !matches!(app.save, SaveState::Off | SaveState::NotSaved(_));
    let (commands, messages): (Vec<&String>, Vec<&String>) = app.open.unsent().partition(|line| is_command(line));
    let lengths: Vec<usize> = messages.into_iter().map(String::len).collect();
    let unsent = match lengths.len() {
        0 => String::new(),
        1 => format!("1 message was not sent: {}.", fate(&lengths, remembers, UNSENT)),
        n => format!("{n} messages were not sent: {}.", fate(&lengths, remembers, UNSENT)),
    };
    let undone = match commands.as_slice() {
        [] => String::new(),
        [one] => format!("{} did not run.", one.split_whitespace().next().unwrap_or(one.as_str())),
        more => format!("{} commands did not run.", more.len()),
    };
    let typed: Vec<(&str, String)> = app.open.drafts().filter(|(_, text)| is_remembered(text)).collect();
    let lengths: Vec<usize> = typed.iter().map(|(_, text)| text.len()).collect();
    let mut names: Vec<String> = typed.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    names.dedup();
    let drafts = match lengths.len() {
        0 => String::new(),
        1 => format!("A draft is in {}: {}.", names.join(", "), fate(&lengths, remembers, DRAFTS)),
        n => format!("{n} drafts are in {}: {}.", names.join(", "), fate(&lengths, remembers, DRAFTS)),
    };
    let unsaved = if is_unsaved(app) { UNSAVED } else { "" };
    let place = match (here, others.is_empty()) {
        (_, true) => String::new(),
        (true, false) => format!(" here and in {}", others.join(", ")),
        (false, false) => format!(" in {}", others.join(", ")),
    };
    let works = here || !others.is_empty();
    let kept = if unsaved.is_empty() { "What was written so far is kept." } else { unsaved };
    let first = if works { format!("Still working{place}. Stop and quit? {kept}") } else { unsaved.to_owned() };
    let lost: Vec<String> = [first, unsent, undone, drafts].into_iter().filter(|what| !what.is_empty()).collect();
    let question = if works { "" } else { " Quit?" };
    (!lost.is_empty()).then(|| format!("{}{question}", lost.join(" ")))
}
