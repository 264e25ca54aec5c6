//! The transcript: rows of the window, bars, selection, and the line below that says that the view is frozen.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::app::App;
use crate::app::cells::{ellipsis, width};
use crate::app::keys::Action;
use crate::app::offers;
use crate::app::rows::{Face, Role, Row, Span};
use crate::app::transcript::{Transcript, ranges};
use crate::commands::COMMANDS;
use crate::text::sample::QUESTIONS;

/// Draws the visible rows.
pub(super) fn draw(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let window = app.transcript.window();
    // A session without messages greets above its notes, as long as both have room.
    let first = if app.transcript.messages().next().is_none() {
        // Beside notes the short form may be all that there is room for.
        let room = if window.is_empty() { usize::MAX } else { usize::from(area.height) };
        let forms = [Form::Whole, Form::Short].map(|form| welcome(app, usize::from(area.width), form));
        let fitting = forms.into_iter().find(|w| w.len() + 2 + window.len() <= room);
        fitting.map_or(0, |welcome| {
            let rows = welcome.len() + 1;
            for (i, row) in welcome.iter().enumerate() {
                if let Ok(i) = u16::try_from(i) {
                    painter.row(area, i + 1, 2, row);
                }
            }
            rows + 1
        })
    } else {
        0
    };
    rows(&app.transcript, Some(app), painter, area, first);
}

/// The rows of a window from line `first` on; with `app`, what is found and selected in them.
pub(super) fn rows(text: &Transcript, app: Option<&App>, painter: &mut Painter<'_>, area: Rect, first: usize) {
    let window = text.window();
    let bar = painter.theme.bar();
    for (line, (entry, row)) in window.iter().enumerate() {
        let Ok(line) = u16::try_from(first + line) else {
            break;
        };
        let Some(e) = text.entries().get(*entry) else {
            continue;
        };
        let selected = text.selected() == Some(*entry);
        if let Some(shown) = e.line(*row) {
            let mut x = 0;
            if shown.barred {
                let face = if selected { Face::from(Role::Key).bold() } else { Role::Dim.into() };
                x = painter.spans(area, line, 0, &[Span::new(format!(" {bar} "), face)]);
            }
            if shown.thought {
                let dimmed: Vec<Span> = shown
                    .row
                    .spans
                    .iter()
                    .map(|s| Span::new(s.text.clone(), Face { role: Role::Dim, ..s.face }))
                    .collect();
                painter.spans(area, line, x + 2, &dimmed);
            } else {
                painter.row(area, line, x, shown.row);
            }
            if let Some(find) = app.and_then(|app| app.find.as_ref()) {
                let here = find.here().filter(|h| h.entry == *entry);
                let here = here.and_then(|h| text.row_of_hit(h)) == Some(*row);
                let found = shown.row.text();
                let x = x + if shown.thought { 2 } else { 0 };
                for range in ranges(&found, find.query()) {
                    let cells = |text: &str| u16::try_from(width(text)).unwrap_or(u16::MAX);
                    let role = if here { Role::Selected } else { Role::Match };
                    let from = x.saturating_add(cells(&found[..range.start]));
                    painter.mark_cells(area, line, from, cells(&found[range]), role);
                }
            }
            if let Some((from, to)) = app.and_then(|app| app.selection).and_then(|s| s.cells(*entry, *row)) {
                let end = shown.indent() + width(&shown.row.text());
                let from = from.max(shown.indent().saturating_add(shown.row.gutter));
                let cell = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
                painter.mark_cells(area, line, cell(from), cell(to.min(end).saturating_sub(from)), Role::Selected);
            }
            if selected && !shown.barred {
                painter.mark(area, line, Role::Selected);
            }
        }
    }
}

/// Below a view that does not follow: what is missed, and the key that follows again.
pub(super) fn marker(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let Some(new) = app.transcript.new_rows() else { return };
    let key = app.config.keys.hint(Action::Follow);
    let key = if app.composer.is_empty() { "End" } else { &key };
    let text = match new {
        0 => format!(" {key} goes to the end and follows "),
        1 => format!(" 1 new line below, {key} follows "),
        n => format!(" {n} new lines below, {key} follows "),
    };
    let dash = painter.theme.dash().to_string();
    let cells = usize::from(area.width).saturating_sub(width(&text));
    painter.spans(
        area,
        0,
        0,
        &[
            Span::new(dash.repeat(cells / 2), Role::Rule),
            Span::new(text, Role::Selected),
            Span::new(dash.repeat(cells - cells / 2), Role::Rule),
        ],
    );
}

/// How much the greeting says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    /// Without the examples of commands.
    Short,
}

/// What a new session says.
fn welcome(app: &App, cells: usize, form: Form) -> Vec<Row> {
    let mut lines: Vec<Row> = Vec::new();
    match &app.model {
        None => lines.push(Row::of("The model is being prepared. You can type already.", Role::Dim)),
        Some(info) => {
            let size = match info.parameters {
                0 => String::new(),
                n if n >= 1_000_000_000 => format!(", {:.1}B parameters", n as f64 / 1e9),
                n => format!(", {:.1}M parameters", n as f64 / 1e6),
            };
            let holds = info.holds();
            let holds = holds.split_at_checked(1).map_or(String::new(), |(a, z)| a.to_uppercase() + z);
            lines.push(Row::of(format!("{}{size}, on {}. {holds}.", info.name, info.device), Role::Text));
        }
    }
    lines.push(Row::default());
    let begin = match form {
        Form::Whole => "Type a question, or load a document and ask about it:",
        Form::Short => "Type a question, or /load a document and ask about it. /help lists commands.",
    };
    lines.push(Row::of(begin, Role::Text));
    if form == Form::Whole && !offers::shown(app) {
        lines.push(Row::default());
    }
    let examples: &[&str] = if form == Form::Whole { &["load", "resume", "help"] } else { &[] };
    for name in examples {
        if let Some(c) = COMMANDS.iter().find(|c| c.name == *name) {
            lines.push(Row {
                spans: vec![
                    Span::new(format!("  {:<30}", c.example), Role::Key),
                    Span::new(ellipsis(c.help, cells.saturating_sub(34)), Role::Dim),
                ],
                ..Row::default()
            });
        }
    }
    if offers::shown(app) {
        let offered = |n: usize, question: &str| Row {
            spans: vec![Span::new(format!("  {n} "), Role::Key), Span::new(question, Role::Text)],
            ..Row::default()
        };
        lines.push(Row::of("Or try a sample: a number (or Tab), then Enter. Tour: sala-chat demo", Role::Text));
        lines.extend(QUESTIONS.iter().enumerate().map(|(i, question)| offered(i + 1, question)));
    }
    if app.is_demo() {
        lines.push(Row::default());
        lines.push(Row::of(
            "DEMO: this is the small built-in model. It chats, reads documents and",
            Face::from(Role::Warn).bold(),
        ));
        lines.push(Row::of("answers from them, but knows little. The 9B model needs an NVIDIA GPU:", Role::Warn));
        lines.push(Row::of("  sala-chat model download", Role::Key));
    }
    lines
}
