//! The visible rows of the transcript, the marker below a view that does not follow, and the page of a load.

use ratatui::layout::Rect;

use crate::core::percent;
use crate::runtime::protocol::{Activity, FileState, ReadingProgress};
use crate::tui::App;
use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::entry::grouped;
use crate::tui::greeting::greeting;
use crate::tui::keys::Action;
use crate::tui::layout::greeting_height;
use crate::tui::lists::first_row;
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Span};
use crate::tui::status::{duration, seconds_left};
use crate::tui::transcript::{Transcript, finder, ranges};

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
    let bar = painter.bar();
    let find = app.and_then(|app| app.open.find.as_ref());
    let find = find.and_then(|find| Some((find, finder(&find.query)?)));
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
                let dim = |s: &Span| Span::new(s.text.clone(), Face { role: Role::Dim, ..s.face });
                let dimmed: Vec<Span> = shown.row.spans.iter().map(dim).collect();
                painter.spans(area, line, x + 2, &dimmed);
            } else {
                painter.row(area, line, x, shown.row);
            }
            if let Some((find, finder)) = &find {
                let here = find.here().filter(|h| h.entry == *entry);
                let here = here.and_then(|h| text.row_of_hit(h)) == Some(*row);
                let found = shown.row.text();
                let x = x + if shown.thought { 2 } else { 0 };
                for range in ranges(finder, &found) {
                    let cells = |text: &str| u16::try_from(width(text)).unwrap_or(u16::MAX);
                    let role = if here { Role::Selected } else { Role::Match };
                    let from = x.saturating_add(cells(&found[..range.start]));
                    painter.mark_cells(area, line, from, cells(&found[range]), role);
                }
            }
            if selected && !shown.barred {
                painter.mark(area, line, Role::Selected);
            }
        }
    }
}

pub(super) fn marker(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let Some(news) = app.open.transcript.news_below() else { return };
    let does = |what: &str| match app.open.composer.is_empty() {
        true => Some(format!("End {what}")),
        false => app.config.keys.does(Action::Follow, what),
    };
    let words = match news {
        false => [None, does("goes to the end and follows")],
        true => [Some("new text below".to_owned()), does("follows")],
    };
    let text = format!(" {} ", words.into_iter().flatten().collect::<Vec<_>>().join(", "));
    let dash = painter.dash().to_string();
    let cells = usize::from(area.width).saturating_sub(width(&text));
    let rule = |cells: usize| Span::new(dash.repeat(cells), Role::Rule);
    painter.spans(area, 0, 0, &[rule(cells / 2), Span::new(text, Role::Selected), rule(cells - cells / 2)]);
}

/// The page shown while documents are read: one line per file, totals, the effect of a stop.
pub(super) fn reading(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let Activity::Reading(r) = &app.activity else { return };
    let finished = r.files.iter().filter(|f| matches!(f.state, FileState::Done(_) | FileState::FromLibrary)).count();
    let title = match r.files.as_slice() {
        [one] => format!(" Loading {}  ({} tokens)", one.name, grouped(r.total)),
        files => format!(
            " Loading {} of {} files, {} tokens in all",
            (finished + 1).min(files.len()),
            files.len(),
            grouped(r.total)
        ),
    };
    // The totals are below the edge of a small window.
    let title = match area.height < 12 {
        true => format!(" {}%{title}", percent(r.done, r.total)),
        false => title,
    };
    painter.text(area, 1, &title, Role::Heading);
    let name_cells = usize::from(area.width).saturating_sub(52).clamp(14, 40);
    painter.text(area, 3, &format!("   {} {:>10}   state", fit("file", name_cells), "tokens"), Role::Dim);
    // Title, header, totals and notes take eleven rows.
    let room = usize::from(area.height.saturating_sub(11)).max(1);
    let current =
        r.files.iter().position(|f| matches!(f.state, FileState::Reading(_) | FileState::Waiting)).unwrap_or(0);
    let first = first_row(current, r.files.len(), room);
    let mut line = 4;
    for file in r.files.iter().skip(first).take(room) {
        let mut spans =
            vec![Span::new(format!("   {} {:>10}   ", fit(&file.name, name_cells), grouped(file.tokens)), Role::Text)];
        match &file.state {
            FileState::Waiting => spans.push(Span::new("waiting", Role::Dim)),
            FileState::Done(s) => spans.push(Span::new(format!("done   {s:.1} s"), Role::Quote)),
            FileState::FromLibrary => spans.push(Span::new("done   from library", Role::Quote)),
            FileState::Reading(done) => {
                let share = *done as f64 / file.tokens.max(1) as f64;
                spans.push(Span::new(painter.meter(16, share), Role::Key));
                spans.push(Span::new(format!("  {}%", percent(*done, file.tokens)), Role::Text));
            }
        }
        painter.spans(area, line, 0, &spans);
        line += 1;
    }
    let hidden = r.files.len().saturating_sub(first + room) + first;
    if hidden > 0 {
        painter.text(area, line, &format!("   ... {hidden} more"), Role::Dim);
        line += 1;
    }
    totals(painter, area, line + 1, r, app.answers_elsewhere());
}

fn totals(painter: &mut Painter<'_>, area: Rect, line: u16, r: &ReadingProgress, parallel: bool) {
    let speed = if r.tokens_per_s > 0.0 { format!("   {} t/s", grouped(r.tokens_per_s as u64)) } else { String::new() };
    let left = seconds_left(r).map_or(String::new(), |s| format!("   left about {}", duration(s)));
    let (done, total, share) = (grouped(r.done), grouped(r.total), percent(r.done, r.total));
    let elapsed = duration(r.elapsed_ms / 1e3);
    let text = format!("   total  {done} / {total}   {share}%{left}   elapsed {elapsed}{speed}");
    painter.text(area, line, &ellipsis(&text, usize::from(area.width)), Role::Text);
    let room = format!("   Space left after loading: about {} tokens.", grouped(r.left_after));
    painter.text(area, line + 2, &room, Role::Dim);
    painter.text(area, line + 3, "   Stopping keeps what has been read.", Role::Dim);
    painter.text(area, line + 5, "   You may type now. The question is sent when loading ends.", Role::Text);
    if parallel {
        painter.text(area, line + 6, "   /aside QUESTION is answered at once, from what was there before.", Role::Text);
    }
}
