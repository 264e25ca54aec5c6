//! Everything around the transcript: header, banner, queue, input, status line, hints.

use ratatui::layout::{Position, Rect};

use crate::tui::App;
use crate::tui::cells::{ellipsis, width};
use crate::tui::keys::Action;
use crate::tui::layout::{Regions, banner_text, note_rows};
use crate::tui::open::{Mark, called};
use crate::tui::options::PANEL_FROM;
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Span, first_rows};
use crate::tui::status;
use crate::tui::wrap::wrap_text;

pub(super) fn header(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let (saved, role) = status::saved(app);
    let mut right = vec![Span::new(saved, role), Span::new(" ", Role::Text)];
    if let Some(context) = status::context(app) {
        let share = app.meters.context_used as f64 / app.meters.context_limit.max(1) as f64;
        let mut meter = vec![Span::new("ctx ", Role::Dim)];
        if area.width >= 80 {
            meter.push(Span::new(painter.meter(10, share), Role::Dim));
            meter.push(Span::new("  ", Role::Dim));
        }
        meter.push(Span::new(format!("{context}  "), Role::Dim));
        right.splice(0..0, meter);
    }
    let right_cells: usize = right.iter().map(|s| width(&s.text)).sum();
    let room = usize::from(area.width).saturating_sub(right_cells + 2);
    let mut left = Vec::new();
    let mut used = 1;
    if app.is_demo() {
        left.push(Span::new("DEMO", Face::from(Role::Warn).bold()));
        left.push(Span::new("  ", Role::Text));
        used += 6;
    }
    let mut branch = if app.open.view.tree.branch.1 > 1 {
        format!("  branch {}/{}", app.open.view.tree.branch.0, app.open.view.tree.branch.1)
    } else {
        String::new()
    };
    if app.meters.changed > 0 {
        branch.push_str(&format!("  {} changed", app.meters.changed));
    }
    let opened = app.open.names().len();
    let listed = area.width >= PANEL_FROM;
    if opened > 1 && !listed {
        let news = app.open.news();
        let news = if news.is_empty() { news } else { format!("  {news}") };
        branch.push_str(&format!("  [{}/{opened}]{news}", app.open.place() + 1));
    }
    let name = ellipsis(called(&app.open.view.name), room.saturating_sub(used + width(&branch)));
    used += width(&name) + width(&branch);
    left.push(Span::new(name, Face::from(Role::Text).bold()));
    left.push(Span::new(branch, Role::Dim));
    if let Some(info) = &app.model {
        let model = format!("   {} {}", info.name, info.dtype);
        if used + width(&model) + 2 < room {
            used += width(&model);
            left.push(Span::new(model, Role::Dim));
        }
    }
    if opened > 1 && listed {
        left.extend(sessions(app, room.saturating_sub(used + 3)));
    }
    painter.spans(area, 0, 1, &left);
    painter.right_spans(area, 0, 0, &right);
}

/// The open sessions around the one on screen, as many as fit.
fn sessions(app: &App, cells: usize) -> Vec<Span> {
    let open = app.open.place();
    let word = |(i, (name, mark)): (usize, (&str, Mark))| {
        let name = if name.is_empty() { "new" } else { name };
        let number = if i == open { format!("[{}]", i + 1) } else { (i + 1).to_string() };
        let mark = mark.text();
        let space = if mark.is_empty() { "" } else { " " };
        format!("  {number} {}{space}{mark}", ellipsis(name, 16))
    };
    let words: Vec<String> = app.open.names().enumerate().map(word).collect();
    let fits = |from: usize, to: usize| words[from..to].iter().map(|w| width(w)).sum::<usize>() <= cells;
    let end = (open..=words.len()).rev().find(|end| fits(open, *end)).unwrap_or(open);
    let first = (0..=open).find(|first| fits(*first, end)).unwrap_or(open);
    let mut spans = vec![Span::new(" ", Role::Dim)];
    if first == end {
        spans.push(Span::new(format!(" [{}/{}]", open + 1, words.len()), Role::Dim));
    }
    for (i, text) in words.into_iter().enumerate().take(end).skip(first) {
        let face = if i == open { Face::from(Role::Text).bold() } else { Face::from(Role::Dim) };
        spans.push(Span::new(text, face));
    }
    spans
}

pub(super) fn sides(app: &App, painter: &mut Painter<'_>, regions: &Regions) {
    let Some((number, name, mark, _)) = app.open.other(app.size.0) else { return };
    let bar = painter.theme.bar();
    let between = regions.between;
    for line in 0..between.height {
        painter.text(between, line, bar, Role::Rule);
    }
    let here = format!(" [{}] {}", app.open.place() + 1, called(&app.open.view.name));
    painter.text(regions.heading, 0, &here, Face::from(Role::Key).bold());
    let area = regions.other_heading;
    painter.text(area, 0, &format!(" {number} {} {}", name, mark.text()), Role::Dim);
    let hint = app.config.keys.does(Action::OtherSide, "goes there").unwrap_or_default();
    painter.right(area, 0, 1, &hint, Role::Dim);
}

/// Banner, last note and queue, between the conversation and the input.
pub(super) fn below(app: &App, painter: &mut Painter<'_>, regions: &Regions) {
    if let Some((text, role)) = banner_text(app) {
        banner(&text, role, painter, regions.banner);
    }
    painter.rows(regions.note, 0, 0, &note_rows(app, usize::from(regions.note.width)));
    queue(app, painter, regions.queue);
}

fn banner(text: &str, role: Role, painter: &mut Painter<'_>, area: Rect) {
    let cells = usize::from(area.width).saturating_sub(2);
    let rows = first_rows(wrap_text(text, role, cells), usize::from(area.height), cells);
    painter.rows(area, 0, 1, &rows);
    if role == Role::Alert {
        (0..).zip(&rows).for_each(|(line, _)| painter.mark(area, line, role));
    }
}

fn queue(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let keys = &app.config.keys;
    // Enter may answer the question.
    let sends = keys.does(Action::Send, "sends it").filter(|_| app.open.queue.held && app.questions.is_empty());
    let first = [sends, keys.does(Action::Unqueue, "edits it")].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let more = app.open.queue.lines.len().saturating_sub(usize::from(area.height));
    for (at, queued) in (0..area.height).zip(&app.open.queue.lines) {
        let word = match (app.open.queue.held, queued.edits) {
            (true, None) => "held",
            (true, Some(_)) => "held edit",
            (false, None) => "queued",
            (false, Some(_)) => "queued edit",
        };
        let tail = match (at, more) {
            (0, _) => first.clone(),
            (_, 0) => String::new(),
            (_, n) => format!("and {n} more"),
        };
        let room = usize::from(area.width).saturating_sub(tail.len() + word.len() + 8);
        let text = ellipsis(&queued.line.replace('\n', " "), room);
        painter.text(area, at, &format!(" {word}: \"{text}\""), Role::Warn);
        painter.right(area, at, 1, &tail, Role::Dim);
    }
}

pub(super) fn composer(app: &App, painter: &mut Painter<'_>, area: Rect) -> Option<Position> {
    let cells = usize::from(area.width).saturating_sub(2);
    let rows = app.open.composer.rows(cells);
    let (caret_row, caret_col) = app.open.composer.caret(cells);
    let height = usize::from(area.height).max(1);
    let first = (caret_row + 1).saturating_sub(height);
    let text = app.open.composer.text();
    let mark = if app.open.editing.is_some() { "e " } else { "> " };
    painter.text(area, 0, if first == 0 { mark } else { "^ " }, Face::from(Role::Key).bold());
    for (line, range) in (0..area.height).zip(rows.into_iter().skip(first)) {
        // Tabs have no width in the terminal.
        let part = text.get(range).unwrap_or_default().replace('\t', " ");
        painter.spans(area, line, 2, &[Span::new(part, Role::Text)]);
    }
    if app.open.composer.is_empty() && app.open.view.view_only {
        painter.spans(area, 0, 2, &[Span::new("view only: /fork makes a copy", Role::Dim)]);
    }
    let x = area.x + 2 + u16::try_from(caret_col).ok()?;
    let y = area.y + u16::try_from(caret_row - first).ok()?;
    (x < area.right() && y < area.bottom()).then_some(Position { x, y })
}

pub(super) fn status(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let mut parts = status::parts(app);
    while parts.iter().map(|p| width(&p.text) + 3).sum::<usize>() > usize::from(area.width) {
        let worst = parts.iter().map(|p| p.priority).max().unwrap_or(0);
        match parts.iter().rposition(|p| p.priority == worst && worst > 1) {
            Some(i) => drop(parts.remove(i)),
            None => break,
        }
    }
    let spans = |right: bool| -> Vec<Span> {
        let mut out = Vec::new();
        for p in parts.iter().filter(|p| p.right == right) {
            if !out.is_empty() {
                out.push(Span::new("   ", Role::Dim));
            }
            out.push(Span::new(p.text.clone(), p.role));
        }
        out
    };
    painter.spans(area, 0, 1, &spans(false));
    painter.right_spans(area, 0, 1, &spans(true));
}

pub(super) fn hint(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let cells = usize::from(area.width).saturating_sub(1);
    let (mut spans, mut used) = (Vec::new(), 0);
    // A key and what it does are shown whole or not at all.
    for part in status::hint_line(app).chunks(2) {
        let text: String = part.iter().map(|(text, _)| text.as_str()).collect();
        if used > 0 && used + width(text.trim_end()) > cells {
            break;
        }
        used += width(&text);
        spans.extend(part.iter().map(|(text, role)| Span::new(ellipsis(text, cells), *role)));
    }
    painter.spans(area, 0, 1, &spans);
}
