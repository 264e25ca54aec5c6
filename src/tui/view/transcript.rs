//! The visible rows of the transcript, and the marker below a view that does not follow.

use ratatui::layout::Rect;

use crate::core::counted;
use crate::tui::App;
use crate::tui::cells::width;
use crate::tui::greeting::greeting;
use crate::tui::keys::Action;
use crate::tui::layout::greeting_height;
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Span};
use crate::tui::transcript::{Transcript, ranges};

pub(super) fn draw(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let greeting = greeting(app);
    for (i, row) in (1..).zip(&greeting) {
        painter.row(area, i, 2, row);
    }
    let first = greeting_height(&greeting);
    rows(&app.open.transcript, Some(app), painter, area, first);
}

pub(super) fn rows(text: &Transcript, app: Option<&App>, painter: &mut Painter<'_>, area: Rect, first: usize) {
    let window = text.window();
    let bar = painter.theme.bar();
    for (line, (entry, row)) in window.iter().enumerate() {
        let Ok(line) = u16::try_from(first + line) else { break };
        let Some(e) = text.entries().get(*entry) else { continue };
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
            if let Some(find) = app.and_then(|app| app.open.find.as_ref()) {
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
            if let Some((from, to)) = app.and_then(|app| app.open.selection).and_then(|s| s.cells(*entry, *row)) {
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

pub(super) fn marker(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let Some(new) = app.open.transcript.new_rows() else { return };
    let does = |what: &str| match app.open.composer.is_empty() {
        true => Some(format!("End {what}")),
        false => app.config.keys.does(Action::Follow, what),
    };
    let words = match new {
        0 => [None, does("goes to the end and follows")],
        new => [Some(format!("{} below", counted(new as u64, "new line"))), does("follows")],
    };
    let text = format!(" {} ", words.into_iter().flatten().collect::<Vec<_>>().join(", "));
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
