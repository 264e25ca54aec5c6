//! Tab completion: commands and their arguments, sessions, documents, and paths. The program outside lists paths. A
//! popup shows the candidates.

use ratatui::layout::Rect;

use super::acts::{HINT_MS, hint};
use super::cells::{fit, width};
use super::keys::{Code, Key};
use super::lists::fuzzy;
use super::mention::typed;
use super::paint::Painter;
use super::rows::{Role, Span};
use super::{App, Effect};
use crate::config::commands::{COMMANDS, Command, Completes, escaped, find, unescaped};
use crate::config::settings::Theme;
use crate::core::counted;
use crate::runtime::protocol::LibraryName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub text: String,
    pub help: String,
}

impl Candidate {
    fn new(text: impl Into<String>, help: impl Into<String>) -> Candidate {
        Candidate { text: text.into(), help: help.into() }
    }

    fn mention(name: &str, help: impl Into<String>) -> Candidate {
        Candidate::new(format!("@{}", escaped(name)), help)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popup {
    pub candidates: Vec<Candidate>,
    pub selected: usize,
    /// The user moved to it or typed its first letters, so Enter takes it.
    pub meant: bool,
    pub from: usize,
    /// The text up to the caret when the popup opened; a change closes the popup.
    pub line: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Known(Vec<Candidate>),
    Paths(String),
}

/// What completes the end of `line`, and where it begins there.
fn wanted(app: &App, line: &str) -> Option<(usize, Wanted)> {
    if !line.starts_with('/') || line.starts_with("//") || line.contains('\n') {
        return None;
    }
    let Some(space) = line.find(char::is_whitespace) else {
        return Some((0, Wanted::Known(commands(&line[1..], "/"))));
    };
    let command = find(&line[1..space].to_lowercase())?;
    let from = word_start(line);
    let word = &line[from..];
    let names: Vec<&str> = match command.completes {
        _ if word.starts_with("--") && !command.options.is_empty() => {
            return Some((from, Wanted::Known(options(command, word))));
        }
        Completes::Paths if word.starts_with('@') && command.name == "load" => {
            let library: Vec<&str> = app.library.iter().map(|d| d.name.as_str()).collect();
            let found = best(&unescaped(&word[1..]), &library).map(|name| Candidate::mention(name, "")).collect();
            return Some((from, Wanted::Known(found)));
        }
        Completes::Paths if !word.starts_with("--") => return Some((from, Wanted::Paths(word.to_owned()))),
        Completes::Commands => return Some((from, Wanted::Known(commands(word, "")))),
        Completes::Nothing | Completes::Paths => return None,
        Completes::Sessions => app.sessions.iter().map(|s| s.name.as_str()).collect(),
        Completes::Documents => app.open.view.tree.documents.iter().map(|d| d.name.as_str()).collect(),
        Completes::Themes => Theme::WORDS.iter().copied().chain(app.config.themes.iter().map(String::as_str)).collect(),
        Completes::Words(words) => words.to_vec(),
        Completes::After(words) => words(&line[space..from].split_whitespace().collect::<Vec<_>>()),
    };
    Some((from, Wanted::Known(best(word, &names).map(|name| Candidate::new(name, "")).collect())))
}

/// The names that match, best first.
fn best<'n>(typed: &str, names: &[&'n str]) -> impl Iterator<Item = &'n str> {
    fuzzy(typed, names).into_iter().filter_map(|i| names.get(i).copied())
}

fn options(command: &Command, typed: &str) -> Vec<Candidate> {
    let flags = command.options.iter().filter(|(option, _)| option.starts_with(typed));
    flags.map(|(option, help)| Candidate::new(option.split(' ').next().unwrap_or(option), *help)).collect()
}

/// Names that begin with `typed`, then aliases; fuzzy matches only if there are none.
fn commands(typed: &str, slash: &str) -> Vec<Candidate> {
    let candidate = |name: &str, help: &str| Candidate::new(format!("{slash}{name}"), help);
    let typed = typed.to_lowercase();
    let begins: Vec<Candidate> =
        COMMANDS.iter().filter(|c| c.name.starts_with(&typed)).map(|c| candidate(c.name, c.help)).collect();
    let called = COMMANDS.iter().filter(|c| !c.name.starts_with(&typed)).filter_map(|c| {
        let alias = c.aliases.iter().find(|a| a.starts_with(&typed))?;
        Some(candidate(alias, &format!("/{}: {}", c.name, c.help)))
    });
    let found: Vec<Candidate> = if typed.is_empty() { begins } else { begins.into_iter().chain(called).collect() };
    if !found.is_empty() {
        return found;
    }
    let names: Vec<&str> = COMMANDS.iter().map(|c| c.name).collect();
    fuzzy(&typed, &names).into_iter().filter_map(|i| COMMANDS.get(i)).map(|c| candidate(c.name, c.help)).collect()
}

fn word_start(line: &str) -> usize {
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in line.char_indices() {
        if c.is_whitespace() && !escaped {
            start = i + c.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    start
}

fn common(candidates: &[Candidate]) -> &str {
    let first = candidates.first().map_or("", |c| &c.text);
    let shared = |c: &Candidate| {
        let differs = first.char_indices().zip(c.text.chars()).find(|((_, a), b)| a != b);
        differs.map_or(first.len().min(c.text.len()), |((i, _), _)| i)
    };
    &first[..candidates.iter().map(shared).min().unwrap_or(0)]
}

impl Popup {
    /// Spans the whole width, so that text below is not read as part of it.
    pub(super) fn draw(&self, painter: &mut Painter<'_>, body: Rect) {
        let height = self.candidates.len().min(8).min(usize::from(body.height.saturating_sub(1)));
        let name_cells = self.candidates.iter().map(|c| width(&c.text)).max().unwrap_or(0).min(40);
        let cells = usize::from(body.width).saturating_sub(1);
        let Ok(rows) = u16::try_from(height) else { return };
        let frame = Rect { y: body.bottom().saturating_sub(rows + 1), height: rows + 1, ..body };
        painter.clear(frame);
        painter.rule(Rect { height: 1, ..frame });
        let hidden = self.candidates.len() - height;
        if hidden > 0 {
            painter.right(frame, 0, 2, &format!(" {} of {} ", self.selected + 1, self.candidates.len()), Role::Dim);
        }
        let area = Rect { y: frame.y + 1, height: rows, ..frame };
        let first = (self.selected + 1).saturating_sub(height);
        for (line, (i, c)) in (0..).zip(self.candidates.iter().enumerate().skip(first).take(height)) {
            let text = format!(" {}  {}", fit(&c.text, name_cells), c.help);
            painter.text(area, line, &fit(&text, cells), Role::Dim);
            painter.spans(area, line, 1, &[Span::new(fit(&c.text, name_cells), Role::Key)]);
            if i == self.selected {
                painter.mark(area, line, Role::Selected);
            }
        }
    }
}

fn before_caret(app: &App) -> &str {
    &app.open.composer.text()[..app.open.composer.cursor()]
}

pub(super) fn drop_outdated(app: &mut App) {
    if app.popup.as_ref().is_some_and(|popup| popup.line != before_caret(app)) {
        app.popup = None;
    }
}

pub(super) fn popup(app: &App, line: &str) -> Option<Popup> {
    let Some((from, Wanted::Known(candidates))) = wanted(app, line) else { return None };
    let meant = line != "/" && candidates.first()?.text.starts_with(line);
    Some(Popup { candidates, selected: 0, from, meant, line: line.to_owned() })
}

pub(super) fn mention(app: &mut App) {
    if app.open.composer.text().starts_with('/') {
        return;
    }
    if let Some((_, query)) = typed(before_caret(app)) {
        app.effects.push(Effect::ListFiles(query));
    }
}

const SHELVED: usize = 6;

pub(super) fn files(app: &mut App, query: &str, found: &[String]) {
    let line = before_caret(app).to_owned();
    let Some((from, now)) = typed(&line).filter(|(_, now)| now == query) else { return };
    let documents: Vec<&str> = app.open.view.tree.documents.iter().map(|d| d.name.as_str()).collect();
    let mut candidates: Vec<Candidate> =
        best(&now, &documents).map(|name| Candidate::mention(name, "read already")).collect();
    // A file with this name is read from disk; its kept state still matches if the file is unchanged.
    let elsewhere = |name: &str| !documents.contains(&name) && !found.iter().any(|p| p == name);
    let shelved: Vec<&LibraryName> = app.library.iter().filter(|d| elsewhere(&d.name)).collect();
    let names: Vec<&str> = shelved.iter().map(|d| d.name.as_str()).collect();
    let shelved = fuzzy(&now, &names).into_iter().take(SHELVED).filter_map(|i| shelved.get(i));
    let shelved = shelved.map(|d| Candidate::mention(&d.name, format!("in library, {}", counted(d.tokens, "token"))));
    candidates.extend(shelved);
    candidates.extend(found.iter().filter(|p| !documents.contains(&p.as_str())).map(|path| {
        Candidate::mention(path, if app.library.iter().any(|d| d.name == *path) { "in library" } else { "" })
    }));
    // Enter takes a candidate only if it contains the typed name.
    let wanted = escaped(&now).to_lowercase();
    let meant = !now.is_empty() && candidates.first().is_some_and(|c| c.text.to_lowercase().contains(&wanted));
    app.popup = (!candidates.is_empty()).then_some(Popup { candidates, selected: 0, from, meant, line });
}

/// What a key did to the popup.
pub(super) enum Popped {
    Nothing,
    Changed,
    /// The line is complete and is to be sent.
    Submits,
}

pub(super) fn popup_key(app: &mut App, key: Key) -> Popped {
    let Some(popup) = &mut app.popup else { return Popped::Nothing };
    let last = popup.candidates.len().saturating_sub(1);
    let go = |popup: &mut Popup, to: usize| (popup.selected, popup.meant) = (to, true);
    match key.code {
        Code::Esc => app.popup = None,
        Code::Up | Code::BackTab => go(popup, popup.selected.checked_sub(1).unwrap_or(last)),
        Code::Down => go(popup, if popup.selected >= last { 0 } else { popup.selected + 1 }),
        Code::Tab => take_candidate(app),
        Code::Enter if !key.alt && !key.shift => return enter(app),
        _ => return Popped::Nothing,
    }
    Popped::Changed
}

/// Enter runs a highlighted command without required arguments and completes other candidates. A completely typed name
/// is never replaced.
fn enter(app: &mut App) -> Popped {
    let Some(popup) = app.popup.as_ref().filter(|popup| popup.meant || app.open.composer.text() != "/") else {
        return Popped::Changed;
    };
    let naming = popup.from == 0;
    let typed = app.open.composer.text().get(popup.from..).unwrap_or_default();
    let exact = naming && popup.selected == 0 && find(typed.trim_start_matches('/')).is_some();
    let chosen = popup.candidates.get(popup.selected).filter(|c| popup.meant && !exact && c.text != typed);
    let Some(candidate) = chosen else {
        app.popup = None;
        return Popped::Submits;
    };
    let runs = naming && find(candidate.text.trim_start_matches('/')).is_some_and(Command::runs_alone);
    take_candidate(app);
    if runs { Popped::Submits } else { Popped::Changed }
}

fn take_candidate(app: &mut App) {
    let Some(popup) = app.popup.take() else { return };
    if let Some(c) = popup.candidates.get(popup.selected) {
        replace_word(app, popup.from, &c.text, true);
        if c.text.ends_with('/') {
            complete(app);
        }
    }
}

fn replace_word(app: &mut App, from: usize, text: &str, finished: bool) {
    let line = app.open.composer.text().to_string();
    let (Some(before), Some(after)) = (line.get(..from), line.get(app.open.composer.cursor()..)) else { return };
    // A folder is completed further.
    let finished = finished && (from == 0 || !text.ends_with('/'));
    let space = if finished && !after.starts_with(' ') { " " } else { "" };
    app.open.composer.set(&format!("{before}{text}{space}{after}"));
    app.open.composer.go(from + text.len() + space.len());
}

pub(super) fn complete(app: &mut App) {
    let line = before_caret(app).to_owned();
    match wanted(app, &line) {
        Some((_, Wanted::Paths(prefix))) => app.effects.push(Effect::ListPaths(unescaped(&prefix))),
        Some((from, Wanted::Known(candidates))) => offer(app, from, candidates),
        None => {}
    }
}

fn offer(app: &mut App, from: usize, candidates: Vec<Candidate>) {
    let shared = common(&candidates).to_owned();
    match candidates.as_slice() {
        [] => hint(app, "Nothing to complete", HINT_MS),
        [_] => replace_word(app, from, &shared, true),
        _ => {
            if shared.len() > app.open.composer.cursor().saturating_sub(from) {
                replace_word(app, from, &shared, false);
            }
            let line = before_caret(app).to_owned();
            app.popup = Some(Popup { candidates, selected: 0, from, meant: true, line });
        }
    }
}

pub(super) fn paths(app: &mut App, prefix: &str, found: &[String]) {
    let line = before_caret(app).to_owned();
    if let Some((from, Wanted::Paths(now))) = wanted(app, &line)
        && unescaped(&now) == prefix
    {
        offer(app, from, found.iter().map(|path| Candidate::new(escaped(path), "")).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::protocol::{DocumentRow, SessionRow};

    #[test]
    fn commands_words_and_paths() {
        let session = |name: &str| SessionRow { name: name.into(), ..SessionRow::default() };
        let library = |name: &str| LibraryName { name: name.into(), tokens: 1 };
        let sessions = ["war-and-peace", "contract"].map(session).to_vec();
        let mut app = App { sessions, ..App::default() };
        app.open.view.tree.documents = vec![DocumentRow {
            name: "notes.md".into(),
            number: None,
            tokens: 1,
            position: None,
            lines: 1,
            complete: true,
            kept: true,
            bytes: 1,
        }];
        app.library = ["old contract.pdf", "war.txt"].map(library).to_vec();
        app.config.themes = vec!["solar".into()];
        let texts = |line: &str| match wanted(&app, line) {
            Some((_, Wanted::Known(found))) => found.into_iter().map(|c| c.text).collect(),
            _ => Vec::new(),
        };
        assert_eq!(texts("/load @con"), ["@old\\ contract.pdf"]);
        assert_eq!(texts("/theme "), ["auto", "dark", "light", "plain", "solar"]);
        assert_eq!(texts("/re"), ["/refresh", "/resume", "/rename", "/redo", "/regen", "/read"]);
        assert_eq!(texts("/clea"), ["/clear"]);
        assert_eq!(texts("/load a.txt --")[..2], ["--as", "--head"]);
        assert_eq!(texts("/set the"), ["theme", "code_theme", "thinking_budget"]);
        assert_eq!(texts("/set theme li").first().map(String::as_str), Some("light"));
        assert_eq!(texts("/tml").first().map(String::as_str), Some("/timeline"));
        assert_eq!(texts("/resume con"), ["contract"]);
        assert_eq!(texts("/open "), ["notes.md"]);
        assert_eq!(wanted(&app, "/load my\\ fi"), Some((6, Wanted::Paths("my\\ fi".into()))));
        assert_eq!(wanted(&app, "hello"), None);
        let c = |t: &str| Candidate { text: t.into(), help: String::new() };
        assert_eq!(common(&[c("books/war.txt"), c("books/wall.txt")]), "books/wa");
    }
}
