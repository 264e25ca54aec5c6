//! The greeting of a session without messages, whole or in one line, and the questions about the sample
//! document that the built-in model offers to Tab.

use super::App;
use super::cells::ellipsis;
use super::entry::{date, short_count};
use super::layout;
use super::rows::{Face, Role, Row, Span};
use super::wrap::wrap_text;
use crate::config::commands::COMMANDS;
use crate::runtime::protocol::SessionRow;
use crate::text::sample::{NAME, PATH, QUESTIONS};

pub fn greeting(app: &App) -> Vec<Row> {
    if app.open.transcript.messages().next().is_some() {
        return Vec::new();
    }
    [welcome(app), brief(app, true), brief(app, false)].into_iter().find(|rows| fits(app, rows)).unwrap_or_default()
}

pub(super) fn may_offer(app: &App) -> bool {
    app.is_demo() && app.tour.is_none() && app.open.transcript.messages().next().is_none()
}

pub(super) fn offers_drawn(app: &App) -> bool {
    may_offer(app) && fits(app, &brief(app, true))
}

fn cells(app: &App) -> usize {
    usize::from(layout::regions(app).transcript.width).saturating_sub(MARGIN)
}

fn fits(app: &App, rows: &[Row]) -> bool {
    let (area, notes) = (layout::regions(app).transcript, app.open.transcript.window().len());
    layout::greeting_height(rows) + notes <= usize::from(area.height)
}

const MARGIN: usize = 2;

/// The session that Enter continues: of this folder, before anything is typed.
pub(super) fn offered(app: &App) -> Option<&SessionRow> {
    let begun = app.open.transcript.messages().next().is_some() || !app.open.composer.is_empty() || app.tour.is_some();
    app.config.offer.as_ref().filter(|_| !begun)
}

fn offer(app: &App) -> Option<Row> {
    let row = offered(app)?;
    let date = date(row.updated_ms, app.config.utc_offset_min);
    let (day, tokens) = (date.rsplit_once(' ').map_or("", |(day, _)| day).trim(), short_count(row.tokens));
    let name = ellipsis(&row.name, 24);
    let text = format!("Enter continues \"{name}\" ({day}, {tokens} tokens); type to start a new one");
    Some(Row::of(ellipsis(&text, cells(app)), Face::from(Role::Key).bold()))
}

fn brief(app: &App, with_sample: bool) -> Vec<Row> {
    let line = "Type a question, or /load FILE. /help lists commands.";
    let line = Row::of(ellipsis(line, cells(app)), Role::Text);
    let sample = if with_sample { sample(app) } else { Vec::new() };
    offer(app).into_iter().chain([line]).chain(sample).collect()
}

fn sample(app: &App) -> Vec<Row> {
    if !may_offer(app) {
        return Vec::new();
    }
    let line = ["Sample questions: Tab, then Enter. Tour: sala-chat demo".to_owned()];
    let lines = line.into_iter().chain(QUESTIONS.iter().map(|question| format!("  {question}")));
    lines.map(|line| Row::of(ellipsis(&line, cells(app)), Role::Text)).collect()
}

fn welcome(app: &App) -> Vec<Row> {
    let room = cells(app);
    let says = |text: &str, face: Face| wrap_text(text, face, room);
    let mut lines: Vec<Row> = match &app.model {
        None => says("The model is being prepared. You can type already.", Role::Dim.into()),
        Some(info) => {
            let size = match info.parameters {
                0 => String::new(),
                n if n >= 1_000_000_000 => format!(", {:.1}B parameters", n as f64 / 1e9),
                n => format!(", {:.1}M parameters", n as f64 / 1e6),
            };
            let holds = info.holds();
            let holds = holds.split_at_checked(1).map_or(String::new(), |(a, z)| a.to_uppercase() + z);
            says(&format!("{}{size}, on {}. {holds}.", info.name, info.device), Role::Text.into())
        }
    };
    lines.extend(offer(app));
    lines.push(Row::default());
    lines.extend(says("Type a question, or load a document and ask about it:", Role::Text.into()));
    if !may_offer(app) {
        lines.push(Row::default());
    }
    for c in ["load", "resume", "help"].into_iter().filter_map(|name| COMMANDS.iter().find(|c| c.name == name)) {
        lines.push(Row::from(vec![
            Span::new(format!("  {:<30}", c.example()), Role::Key),
            Span::new(ellipsis(c.help, room.saturating_sub(32)), Role::Dim),
        ]));
    }
    lines.extend(sample(app));
    if app.is_demo() {
        let demo = "DEMO: this is the small built-in model. It chats, reads documents and answers from them, but knows little. \
                    The 9B model needs an NVIDIA GPU:";
        lines.push(Row::default());
        lines.extend(says(demo, Role::Warn.into()));
        lines.push(Row::of("  sala-chat model download", Role::Key));
    }
    lines
}

/// The sample question that Tab takes.
pub(super) fn next(app: &App) -> Option<&'static str> {
    let sample_only =
        app.open.view.tree.documents.iter().all(|d| d.name == NAME) && !app.open.view.tree.documents.is_empty();
    if !app.open.composer.is_empty() || !(offers_drawn(app) || app.is_demo() && app.tour.is_none() && sample_only) {
        return None;
    }
    let is_done =
        |q: &str| app.open.transcript.messages().any(|m| m.role == crate::core::transcript::Role::User && m.text == q);
    QUESTIONS.into_iter().find(|q| !is_done(q))
}

pub(super) fn load_first(app: &mut App, text: &str) -> bool {
    let ours = QUESTIONS.contains(&text) && may_offer(app);
    if ours {
        super::mention::load_for_question(app, text.to_owned(), vec![PATH.to_owned()], Vec::new());
    }
    ours
}
