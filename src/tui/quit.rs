//! Quitting: whether to confirm, possible losses, and saving unsent text.

use super::acts::{HINT_MS, hint, is_remembered, remember, send};
use super::{App, Asker, Phase, Question, drafts};
use crate::config::commands::is_command;
use crate::core::counted;
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
    let Some(at) = app.questions.iter().position(|q| q.asker == Asker::Quit) else { return };
    match lost_by_quitting(app) {
        Some(text) => app.questions[at].text = text,
        None => {
            app.questions.remove(at);
            hint(app, "The work is done; quitting stops nothing now", HINT_MS);
        }
    }
}

const UNSAVED: &str = "Part of this conversation is not saved and would be lost; /export FILE saves it elsewhere.";

pub(super) fn is_unsaved(app: &App) -> bool {
    matches!(app.save, SaveState::NotSaved(_)) && app.has_begun()
}

fn lost_by_quitting(app: &App) -> Option<String> {
    let here = app.busy() && !matches!(app.activity, Activity::Starting { .. });
    let others: Vec<String> = app.open.at_work().map(|name| format!("\"{name}\"")).collect();
    let others = others.join(", ");
    let place = if others.is_empty() { String::new() } else { format!(" in {others}") };
    let works = here || !others.is_empty();
    let kept = match &app.activity {
        _ if is_unsaved(app) => UNSAVED,
        Activity::Busy { .. } => "A file that is being written stays unfinished.",
        _ => "What was written so far is kept.",
    };
    let first = match works {
        true => format!("Still working{place}. Stop and quit? {kept}"),
        false => UNSAVED.to_owned(),
    };
    let remembers = !matches!(app.save, SaveState::Off | SaveState::NotSaved(_));
    let is_kept = |text: &str| remembers && text.len() <= LONGEST_PROMPT;
    let (commands, messages): (Vec<&String>, Vec<&String>) = app.open.unsent().partition(|line| is_command(line));
    let found = messages.iter().all(|text| is_kept(text));
    let fate = if found { "not sent, found with Up at the next start" } else { "not sent, and not all kept" };
    let drafts = app.open.drafts().filter(|text| is_remembered(text) && !is_kept(text)).count();
    let lost = [
        (works || is_unsaved(app)).then_some(first),
        part(messages.len(), "message", fate),
        part(commands.len(), "command", "not run"),
        part(drafts, "draft", "in other sessions not kept"),
    ];
    let lost: Vec<String> = lost.into_iter().flatten().collect();
    let question = if works { "" } else { " Quit?" };
    (!lost.is_empty()).then(|| format!("{}{question}", lost.join(" ")))
}

fn part(count: usize, what: &str, fate: &str) -> Option<String> {
    (count > 0).then(|| format!("{} {fate}.", counted(count as u64, what)))
}
