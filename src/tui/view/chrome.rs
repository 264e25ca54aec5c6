//! Everything around the transcript: header, banner, queue, input, status line, hints.

use ratatui::layout::{Position, Rect};

use crate::core::{bytes, percent};
use crate::runtime::protocol::{Activity, SaveState};
use crate::tui::cells::{ellipsis, width};
use crate::tui::entry::grouped;
use crate::tui::keys::{Action, TAKE_UP};
use crate::tui::layout::{Regions, banner_text, note_rows};
use crate::tui::open::{Mark, called};
use crate::tui::options::PANEL_FROM;
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Span, first_rows};
use crate::tui::status;
use crate::tui::wrap::wrap_text;
use crate::tui::{App, Phase};

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
    let bar = painter.bar();
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

/// A part of the status line; the one with the highest number is dropped first.
struct Part {
    priority: u8,
    right: bool,
    span: Span,
}

fn activity(app: &App) -> (String, Role) {
    if app.phase != Phase::Running {
        return ("saving".into(), Role::Heading);
    }
    let text = match &app.activity {
        Activity::Idle if app.busy() => "sending".into(),
        Activity::Idle if status::parked(app) => return ("parked".into(), Role::Dim),
        Activity::Idle => return ("idle".into(), Role::Dim),
        Activity::Starting { what } => what.clone(),
        Activity::Reading(r) => {
            let left = status::seconds_left(r).map_or(String::new(), |s| format!(" {} left", status::duration(s)));
            let speed =
                if r.tokens_per_s > 0.0 { format!("{} t/s  ", grouped(r.tokens_per_s as u64)) } else { String::new() };
            format!("reading {speed}{}%{left}", percent(r.done, r.total))
        }
        Activity::Thinking { ms, .. } => format!("thinking {:.0} s", ms / 1e3),
        Activity::Answering { tokens_per_s } => format!("gen {}", status::writing_speed(app, *tokens_per_s)),
        Activity::Restoring { tokens, share } => {
            let percent = share.map_or(String::new(), |s| format!(" {:.0}%", 100.0 * s));
            format!("restoring {} tokens{percent}", grouped(*tokens))
        }
        Activity::Stopping => "stopping".into(),
        Activity::Busy { what } => what.clone(),
    };
    (text, Role::Heading)
}

fn parts(app: &App) -> Vec<Part> {
    let part =
        |right: bool| move |priority, text: String, role: Role| Part { priority, right, span: Span::new(text, role) };
    let (left, right) = (part(false), part(true));
    let (text, role) = activity(app);
    let idle = app.phase == Phase::Running && app.activity == Activity::Idle && !app.busy();
    let mut parts = vec![left(1, text, role)];
    if let Some(model) = app.model.as_ref().filter(|_| idle) {
        parts.push(left(5, format!("{} on {}", model.name, model.device), Role::Dim));
    }
    let m = &app.meters;
    if let Some(context) = status::context(app) {
        let role = if m.context_used * 100 >= m.context_limit * 80 { Role::Warn } else { Role::Dim };
        parts.push(right(3, context, role));
    }
    match &app.save {
        SaveState::NotSaved(_) => parts.push(left(2, "NOT SAVED".into(), Role::Alert)),
        SaveState::TextOnly(_) => parts.push(left(2, "state not saved".into(), Role::Warn)),
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::Off if idle => {
            let (text, role) = status::saved(app);
            parts.push(right(4, text, role));
        }
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::Off => {}
    }
    let memory = &m.model.memory;
    if !idle && m.model.device_kind == "cuda" && memory.total > 0 {
        let gib = |n: u64| n as f64 / (1u64 << 30) as f64;
        parts.push(right(5, format!("VRAM {:.1}/{:.0} G", gib(memory.used), gib(memory.total)), Role::Dim));
    } else if !idle && memory.used > 0 {
        parts.push(right(5, format!("RAM {}", bytes(memory.used)), Role::Dim));
    }
    parts
}

pub(super) fn status(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let mut parts = parts(app);
    while parts.iter().map(|p| width(&p.span.text) + 3).sum::<usize>() > usize::from(area.width) {
        let worst = (0..parts.len()).max_by_key(|i| parts[*i].priority).filter(|i| parts[*i].priority > 1);
        let Some(worst) = worst else { break };
        parts.remove(worst);
    }
    let side = |right: bool| -> Vec<Span> {
        let spans = parts.iter().filter(|p| p.right == right).map(|p| p.span.clone());
        let apart = spans.flat_map(|span| [Span::new("   ", Role::Dim), span]);
        apart.skip(1).collect()
    };
    painter.spans(area, 0, 1, &side(false));
    painter.right_spans(area, 0, 1, &side(true));
}

/// The keys of the moment and what they do; empty names are keys that are not bound.
fn keys(app: &App) -> Vec<(String, &str)> {
    if app.overlay.is_some() || !app.questions.is_empty() {
        return Vec::new();
    }
    let key = |action| app.config.keys.shortest(action).map(|key| key.to_string()).unwrap_or_default();
    let fixed = |(key, what): (&str, &'static str)| (key.to_owned(), what);
    if app.open.transcript.selected().is_some() && app.open.composer.is_empty() {
        let keys = [("y", "copy"), ("e", "edit"), ("r", "again"), ("f", "fork"), ("Enter", "open"), ("Esc", "back")];
        return keys.map(fixed).to_vec();
    }
    if app.open.editing.is_some() {
        return vec![(key(Action::Send), "send as a new branch"), fixed(("Esc", "leave it"))];
    }
    let mut keys: Vec<(String, &str)> = Vec::new();
    if app.busy() && !matches!(app.activity, Activity::Starting { .. }) {
        keys.push((key(Action::Escape), if app.activity.is_loading() { "stop loading" } else { "stop" }));
        keys.push((key(Action::Send), "queue"));
        keys.extend(app.answers_elsewhere().then(|| fixed(("/aside", "answers at once"))));
    } else {
        keys.extend([(key(Action::Send), "send"), (key(Action::Newline), "newline")]);
    }
    if app.size.0 >= PANEL_FROM {
        keys.extend([(key(Action::Panel), "panel"), (key(Action::HistorySearch), "history")]);
    }
    keys.extend([fixed(("/", "commands")), (key(Action::Help), "help")]);
    keys.extend(app.set_aside.as_ref().map(|_| (TAKE_UP.to_string(), "opens the page")));
    keys
}

pub(super) fn hint(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let cells = usize::from(area.width).saturating_sub(1);
    if let Some((text, _)) = &app.hint {
        painter.spans(area, 0, 1, &[Span::new(ellipsis(text, cells), Role::Warn)]);
        return;
    }
    let (mut spans, mut used) = (Vec::new(), 0);
    for (key, what) in keys(app).into_iter().filter(|(key, _)| !key.is_empty()) {
        let wanted = width(&key) + 1 + width(what);
        // A key and what it does are shown whole or not at all.
        if used > 0 && used + wanted > cells {
            break;
        }
        used += wanted + 3;
        spans.extend([Span::new(key, Role::Key), Span::new(format!(" {what}   "), Role::Dim)]);
    }
    painter.spans(area, 0, 1, &spans);
}
