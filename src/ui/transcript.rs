//! The transcript: rows of the window, bars, selection, and the line that says that the view is frozen.

use ratatui::layout::Rect;

use super::paint::Painter;
use crate::app::App;
use crate::app::rows::{Face, Role, Row, Span};
use crate::commands::COMMANDS;

/// Draws the visible rows.
pub(super) fn draw(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let window = app.transcript.window();
    // A session without messages greets above its notes, as long as both have room.
    let first = if app.transcript.messages().next().is_none() {
        let welcome = welcome(app);
        let rows = welcome.len() + 1;
        if !window.is_empty() && rows + 1 + window.len() > usize::from(area.height) {
            0
        } else {
            for (i, row) in welcome.iter().enumerate() {
                if let Ok(i) = u16::try_from(i) {
                    painter.row(area, i + 1, 2, row);
                }
            }
            rows + 1
        }
    } else {
        0
    };
    let bar = painter.theme.bar();
    for (line, (entry, row)) in window.iter().enumerate() {
        let Ok(line) = u16::try_from(first + line) else {
            break;
        };
        let Some(e) = app.transcript.entries().get(*entry) else {
            continue;
        };
        let selected = app.transcript.selected() == Some(*entry);
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
            if selected && !shown.barred {
                painter.mark(area, line, Role::Selected);
            }
        }
    }
    if let Some(new) = app.transcript.new_rows()
        && area.height > 0
    {
        let text = match new {
            0 => " -- End to follow -- ".to_string(),
            1 => " -- 1 new line below, End to follow -- ".to_string(),
            n => format!(" -- {n} new lines below, End to follow -- "),
        };
        let last = area.height - 1;
        let x = area.width.saturating_sub(u16::try_from(text.len()).unwrap_or(0)) / 2;
        painter.spans(area, last, x, &[Span::new(text, Role::Selected)]);
    }
}

/// What a new session says.
fn welcome(app: &App) -> Vec<Row> {
    let mut lines: Vec<Row> = Vec::new();
    match &app.model {
        None => lines.push(Row::of("The model is being prepared. You can type already.", Role::Dim)),
        Some(info) => {
            let size = match info.parameters {
                0 => String::new(),
                n if n >= 1_000_000_000 => format!(", {:.1}B parameters", n as f64 / 1e9),
                n => format!(", {:.1}M parameters", n as f64 / 1e6),
            };
            let limit = crate::app::entry::grouped(info.context_limit);
            lines.push(Row::of(format!("{}{size}, on {}. Up to {limit} tokens.", info.name, info.device), Role::Text));
        }
    }
    lines.push(Row::default());
    lines.push(Row::of("Type a question, or load a document and ask about it:", Role::Text));
    lines.push(Row::default());
    for name in ["load", "resume", "help"] {
        if let Some(c) = COMMANDS.iter().find(|c| c.name == name) {
            lines.push(Row {
                spans: vec![Span::new(format!("  {:<30}", c.example), Role::Key), Span::new(c.help, Role::Dim)],
                source: 0,
            });
        }
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
