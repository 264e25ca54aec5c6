//! Completions: the popup and its keys, Tab, and inserting a candidate.

use super::super::complete::{Candidate, Names, Popup, Wanted, common, wanted};
use super::super::keys::{Code, Key};
use super::super::list::fuzzy;
use super::super::mention::typed;
use super::super::perform::submit;
use super::super::{App, Effect};
use crate::config::commands::{self, escaped, unescaped};
use crate::core::grouped;
use crate::runtime::protocol::LibraryName;

fn names(app: &App) -> Names<'_> {
    Names {
        sessions: app.sessions.iter().map(|s| s.name.as_str()).collect(),
        documents: app.session.documents.iter().map(|d| d.name.as_str()).collect(),
        library: app.library.iter().map(|d| d.name.as_str()).collect(),
        themes: app.config.themes.iter().map(String::as_str).collect(),
    }
}

fn before_caret(app: &App) -> &str {
    &app.composer.text()[..app.composer.cursor()]
}

pub(in crate::tui) fn drop_outdated(app: &mut App) {
    if app.popup.as_ref().is_some_and(|popup| popup.line != before_caret(app)) {
        app.popup = None;
    }
}

pub(super) fn popup(app: &App, line: &str) -> Option<Popup> {
    match wanted(line, &names(app)) {
        Wanted::Known(from, candidates) if !candidates.is_empty() => {
            let meant = candidates.first().is_some_and(|c| c.text.starts_with(line));
            Some(Popup { candidates, selected: 0, from, meant, line: line.to_owned() })
        }
        Wanted::Known(..) | Wanted::Paths(..) | Wanted::Nothing => None,
    }
}

pub(super) fn mention(app: &mut App, effects: &mut Vec<Effect>) {
    if app.composer.text().starts_with('/') {
        return;
    }
    if let Some((_, query)) = typed(before_caret(app)) {
        effects.push(Effect::ListFiles(query));
    }
}

const SHELVED: usize = 6;

pub(in crate::tui) fn files(app: &mut App, query: &str, found: &[String]) {
    let line = before_caret(app).to_owned();
    let Some((from, now)) = typed(&line).filter(|(_, now)| now == query) else { return };
    let documents: Vec<&str> = app.session.documents.iter().map(|d| d.name.as_str()).collect();
    let mut candidates: Vec<Candidate> = fuzzy(&now, &documents)
        .into_iter()
        .filter_map(|i| documents.get(i))
        .map(|name| Candidate { text: format!("@{}", escaped(name)), help: "read already".into() })
        .collect();
    // A file with this name is read from disk; its kept state still matches if the file is unchanged.
    let elsewhere = |name: &str| !documents.contains(&name) && !found.iter().any(|p| p == name);
    let shelved: Vec<&LibraryName> = app.library.iter().filter(|d| elsewhere(&d.name)).collect();
    let names: Vec<&str> = shelved.iter().map(|d| d.name.as_str()).collect();
    candidates.extend(fuzzy(&now, &names).into_iter().take(SHELVED).filter_map(|i| shelved.get(i)).map(|d| {
        Candidate { text: format!("@{}", escaped(&d.name)), help: format!("in library, {} tokens", grouped(d.tokens)) }
    }));
    for path in found.iter().filter(|p| !documents.contains(&p.as_str())) {
        let help = if app.library.iter().any(|d| d.name == *path) { "in library" } else { "" };
        candidates.push(Candidate { text: format!("@{}", escaped(path)), help: help.into() });
    }
    // Enter takes a candidate only if it contains the typed name.
    let wanted = format!("@{}", escaped(&now)).to_lowercase();
    let meant = !now.is_empty()
        && candidates.first().is_some_and(|c| c.text.to_lowercase().contains(wanted.trim_start_matches('@')));
    app.popup = (!candidates.is_empty()).then_some(Popup { candidates, selected: 0, from, meant, line });
}

pub(super) fn popup_key(app: &mut App, key: Key, now: u64, effects: &mut Vec<Effect>) -> bool {
    let Some(popup) = &mut app.popup else {
        return false;
    };
    let last = popup.candidates.len().saturating_sub(1);
    let go = |popup: &mut Popup, to: usize| (popup.selected, popup.meant) = (to, true);
    match key.code {
        Code::Esc => app.popup = None,
        Code::Up | Code::BackTab => go(popup, popup.selected.checked_sub(1).unwrap_or(last)),
        Code::Down => go(popup, if popup.selected >= last { 0 } else { popup.selected + 1 }),
        Code::Tab => take_candidate(app),
        Code::Enter if !key.alt && !key.shift => enter(app, now, effects),
        _ => return false,
    }
    true
}

/// Enter runs a highlighted command without required arguments and completes other candidates. A completely typed name
/// is never replaced.
fn enter(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    let Some(popup) = &app.popup else {
        return;
    };
    let naming = popup.from == 0;
    let typed = app.composer.text().get(popup.from..).unwrap_or_default();
    let exact = naming && popup.selected == 0 && commands::find(typed.trim_start_matches('/')).is_some();
    let chosen = popup.candidates.get(popup.selected).filter(|c| popup.meant && !exact && c.text != typed);
    let Some(candidate) = chosen else {
        app.popup = None;
        return submit(app, now, effects);
    };
    let runs =
        naming && commands::find(candidate.text.trim_start_matches('/')).is_some_and(commands::Command::runs_alone);
    take_candidate(app);
    if runs {
        submit(app, now, effects);
    }
}

fn take_candidate(app: &mut App) {
    let Some(popup) = app.popup.take() else {
        return;
    };
    if let Some(c) = popup.candidates.get(popup.selected) {
        replace_word(app, popup.from, &c.text, !c.text.ends_with('/') || popup.from == 0);
    }
}

fn replace_word(app: &mut App, from: usize, text: &str, finished: bool) {
    let line = app.composer.text().to_string();
    let (Some(before), Some(after)) = (line.get(..from), line.get(app.composer.cursor()..)) else {
        return;
    };
    let space = if finished && !after.starts_with(' ') { " " } else { "" };
    app.composer.set(&format!("{before}{text}{space}"));
    let at = app.composer.cursor();
    if !after.is_empty() {
        app.composer.set(&format!("{before}{text}{space}{after}"));
        app.composer.go(at);
    }
}

pub(super) fn complete(app: &mut App, effects: &mut Vec<Effect>) {
    let line = before_caret(app).to_owned();
    match wanted(&line, &names(app)) {
        Wanted::Paths(_, prefix) => effects.push(Effect::ListPaths(unescaped(&prefix))),
        Wanted::Known(from, candidates) => offer(app, from, candidates),
        Wanted::Nothing => {}
    }
}

fn offer(app: &mut App, from: usize, candidates: Vec<Candidate>) {
    match candidates.as_slice() {
        [] => {}
        [only] => {
            let text = only.text.clone();
            replace_word(app, from, &text, !text.ends_with('/') || from == 0);
        }
        _ => {
            let shared = common(&candidates).to_string();
            let typed = app.composer.cursor().saturating_sub(from);
            if shared.len() > typed {
                replace_word(app, from, &shared, false);
            }
            let line = before_caret(app).to_owned();
            app.popup = Some(Popup { candidates, selected: 0, from, meant: true, line });
        }
    }
}

pub(in crate::tui) fn paths(app: &mut App, prefix: &str, found: &[String]) {
    let line = before_caret(app).to_owned();
    if let Wanted::Paths(from, now) = wanted(&line, &names(app))
        && unescaped(&now) == prefix
    {
        let candidate = |path: &String| Candidate { text: escaped(path), help: String::new() };
        offer(app, from, found.iter().map(candidate).collect());
    }
}
