//! The side panel: context, documents, timeline, engine. The same numbers as `/ctx`, `/docs`, `/timeline`, `/stats`.

use ratatui::layout::Rect;

use crate::core::{about, bytes, counted, percent};
use crate::tui::App;
use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::entry::grouped;
use crate::tui::lists::lanes;
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Span};
use crate::tui::status::acceptance;

struct Lines<'p, 'b> {
    painter: &'p mut Painter<'b>,
    area: Rect,
    at: u16,
}

impl Lines<'_, '_> {
    fn title(&mut self, title: &str) {
        let [tl, tr, _, _, ml, mr] = self.painter.corners();
        let (left, right) = if self.at == 0 { (tl, tr) } else { (ml, mr) };
        let dash = self.painter.dash();
        let room = usize::from(self.area.width).saturating_sub(width(title) + 5);
        let text = format!("{left}{dash} {title} {}{right}", dash.repeat(room));
        self.painter.text(self.area, self.at, &text, Role::Rule);
        self.at += 1;
    }

    fn cells(&self) -> usize {
        usize::from(self.area.width).saturating_sub(4)
    }

    fn line(&mut self, text: &str, face: impl Into<Face>) {
        self.spans(vec![Span::new(ellipsis(text, self.cells()), face)]);
    }

    fn spans(&mut self, spans: Vec<Span>) {
        if self.at + 1 >= self.area.height {
            return;
        }
        let bar = self.painter.bar();
        let used: usize = spans.iter().map(|s| width(&s.text)).sum();
        let mut row = vec![Span::new(format!("{bar} "), Role::Rule)];
        row.extend(spans);
        row.push(Span::new(format!("{} {bar}", " ".repeat(self.cells().saturating_sub(used))), Role::Rule));
        self.painter.spans(self.area, self.at, 0, &row);
        self.at += 1;
    }

    fn room(&self) -> usize {
        usize::from(self.area.height.saturating_sub(self.at + 1))
    }
}

fn context(app: &App, lines: &mut Lines<'_, '_>) {
    let m = &app.meters;
    if m.context_limit == 0 {
        lines.title("context");
        let server = app.model.as_ref().is_some_and(|m| m.server.is_some());
        let why = if server { "unknown; set engine.context" } else { "known when the model is loaded" };
        lines.line(why, Role::Dim);
        return;
    }
    let about = about(m.estimated);
    lines.title(&format!("context  {about}{} of {}", grouped(m.context_used), grouped(m.context_limit)));
    let cells = lines.cells();
    let meter = lines.painter.meter(cells, m.context_used as f64 / m.context_limit as f64);
    lines.line(&meter, Role::Key);
    let (used, left) = (percent(m.context_used, m.context_limit), m.context_limit.saturating_sub(m.context_used));
    lines.line(&format!("{used}% used, {} tokens left", grouped(left)), Role::Dim);
}

pub(super) fn draw(app: &App, painter: &mut Painter<'_>, area: Rect) {
    let m = &app.meters;
    let mut lines = Lines { painter, area, at: 0 };
    context(app, &mut lines);
    let documents = &app.open.view.tree.documents;
    if !documents.is_empty() {
        lines.title("documents");
        for d in documents.iter().take(5) {
            let kept = match (d.complete, d.kept) {
                (false, _) => "in part",
                (true, true) => "library",
                (true, false) => "",
            };
            lines.line(&format!("{} {:>9} tok  {kept}", fit(&d.name, 18), grouped(d.tokens)), Role::Text);
        }
        if documents.len() > 5 {
            lines.line(&format!("... {} more, /docs lists them", documents.len() - 5), Role::Dim);
        }
    }
    // The engine needs up to ten rows and has priority.
    let rows = &app.open.view.tree.timeline;
    if !rows.is_empty() && lines.room() > 14 {
        lines.title("timeline");
        let room = (lines.room() - 13).clamp(1, 16);
        let head = rows.iter().position(|r| r.head).unwrap_or(rows.len().saturating_sub(1));
        let first = (head + 1).saturating_sub(room);
        for r in rows.iter().skip(first).take(room) {
            let lane = lanes(r, 4);
            let mark = if r.kept { "kept" } else { "" };
            let head = if r.head { " <-" } else { "" };
            let label = r.label.as_deref().map(|l| format!(" [{l}]")).unwrap_or_default();
            let title = ellipsis(&format!("{}{label}", r.title), 24usize.saturating_sub(lane.len()));
            let face = if r.current { Role::Text } else { Role::Dim };
            lines.line(&format!("{:>4}  {lane}o- {} {mark}{head}", r.place(), fit(&title, 24 - lane.len())), face);
        }
        lines.line(&format!("{} on this branch", counted(m.checkpoints, "kept state")), Role::Dim);
    }
    lines.title("engine");
    if let Some(info) = &app.model {
        // A server does not report its dtype.
        let dtype = if info.dtype.is_empty() { String::new() } else { format!(" {}", info.dtype) };
        lines.line(&format!("{}{dtype}, {}", info.name, info.device), Role::Text);
        let draft = info.draft.as_deref().unwrap_or("n-gram only");
        let draft = if info.server.is_some() { "a server, no kept state".into() } else { format!("draft   {draft}") };
        lines.line(&draft, Role::Dim);
    }
    let answer =
        (m.tokens_per_s > 0.0).then(|| format!("answer  {}{:.1} t/s", about(m.speed_estimated), m.tokens_per_s));
    let prefill =
        (m.prefill_tokens_per_s > 0.0).then(|| format!("prefill {} t/s", grouped(m.prefill_tokens_per_s as u64)));
    let speeds: Vec<String> = answer.into_iter().chain(prefill).collect();
    if !speeds.is_empty() {
        lines.line(&speeds.join("   "), Role::Text);
    }
    if m.ttft_ms > 0.0 {
        lines.line(&format!("first token {:.2} s", m.ttft_ms / 1e3), Role::Text);
    }
    if let Some(a) = acceptance(app) {
        lines.line(&format!("speculation  {a}"), Role::Text);
    }
    let memory = &m.model.memory;
    if memory.used > 0 {
        let of = if memory.total > 0 { format!(" of {}", bytes(memory.total)) } else { String::new() };
        lines.line(&format!("memory {}{of}", bytes(memory.used)), Role::Text);
        lines.line(&format!("  weights {}  state {}", bytes(memory.weights), bytes(memory.state)), Role::Dim);
        if memory.host > 0 {
            let (pool, host) = (bytes(memory.pool), bytes(memory.host));
            lines.line(&format!("  keys, values {pool}  in RAM {host}"), Role::Dim);
        }
    }
    if m.state_bytes > 0 {
        lines.line(&format!("disk   {} of state, all sessions", bytes(m.state_bytes)), Role::Dim);
    }
    while lines.room() > 0 {
        lines.line("", Role::Text);
    }
    let [_, _, bl, br, ..] = painter.corners();
    let foot = format!("{bl}{}{br}", painter.dash().repeat(usize::from(area.width).saturating_sub(2)));
    painter.text(area, area.height.saturating_sub(1), &foot, Role::Rule);
}
