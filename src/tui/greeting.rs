//! The greeting of a session without messages, in the longest form that fits, and the questions about the sample
//! document that the built-in model offers to Tab.

use super::App;
use super::cells::{ellipsis, width};
use super::entry::{date, short_count};
use super::layout;
use super::rows::{Face, Role, Row, Span};
use super::wrap::wrap_text;
use crate::config::commands::COMMANDS;
use crate::runtime::protocol::SessionRow;
use crate::text::sample::{NAME, PATH, QUESTIONS};

pub fn greeting(app: &App) -> Vec<Row> {
    fitting(app).map_or_else(Vec::new, |(_, rows)| rows)
}

pub(super) fn may_offer(app: &App) -> bool {
    app.is_demo() && app.tour.is_none() && app.open.transcript.messages().next().is_none()
}

pub(super) fn offers_drawn(app: &App) -> bool {
    may_offer(app) && fitting(app).is_some_and(|(form, _)| form != Form::Line)
}

fn fitting(app: &App) -> Option<(Form, Vec<Row>)> {
    if app.open.transcript.messages().next().is_some() {
        return None;
    }
    let (area, notes) = (layout::regions(app).transcript, app.open.transcript.window().len());
    let forms = [Form::Whole, Form::Brief, Form::Line];
    let forms = forms.into_iter().map(|form| (form, welcome(app, usize::from(area.width), form)));
    let fits = |rows: &[Row]| layout::greeting_height(rows) + notes <= usize::from(area.height);
    forms.into_iter().find(|(_, rows)| fits(rows))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    Brief,
    Line,
}

const MARGIN: usize = 2;

/// The session that Enter continues: of this folder, before anything is typed.
pub(super) fn offered(app: &App) -> Option<&SessionRow> {
    let begun = app.open.transcript.messages().next().is_some() || !app.open.composer.is_empty() || app.tour.is_some();
    app.config.offer.as_ref().filter(|_| !begun)
}

/// The offer in the longest form that leaves room for the session's name.
fn offer(app: &App, row: &SessionRow, room: usize) -> Row {
    let date = date(row.updated_ms, app.config.utc_offset_min);
    let day = date.rsplit_once(' ').map_or("", |(day, _)| day).trim();
    let size = format!(" ({day}, {} tokens)", short_count(row.tokens));
    let whole = format!("{size}; type to start a new one");
    let forms =
        [("Enter continues ", whole.as_str()), ("Enter continues ", &size), ("Enter continues ", ""), ("Enter: ", "")];
    let left = |(before, rest): &(&str, &str)| room.saturating_sub(width(before) + width(rest) + 2);
    let shown = width(&row.name).min(24);
    let form = forms.into_iter().find(|form| left(form) >= shown).unwrap_or(("Enter: ", ""));
    let name = ellipsis(&row.name, left(&form));
    Row::of(format!("{}\"{name}\"{}", form.0, form.1), Face::from(Role::Key).bold())
}

fn welcome(app: &App, cells: usize, form: Form) -> Vec<Row> {
    let room = cells.saturating_sub(MARGIN);
    let says = |text: &str, face: Face| wrap_text(text, face, room);
    let offer = offered(app).map(|row| offer(app, row, room));
    if form == Form::Line {
        let line = "Type a question, or /load FILE. /help lists commands.";
        return offer.into_iter().chain([Row::of(ellipsis(line, room), Role::Text)]).collect();
    }
    let whole = form == Form::Whole;
    let mut lines: Vec<Row> = Vec::new();
    match &app.model {
        None => lines.extend(says("The model is being prepared. You can type already.", Role::Dim.into())),
        Some(info) => {
            let size = match info.parameters {
                0 => String::new(),
                n if n >= 1_000_000_000 => format!(", {:.1}B parameters", n as f64 / 1e9),
                n => format!(", {:.1}M parameters", n as f64 / 1e6),
            };
            let holds = info.holds();
            let holds = holds.split_at_checked(1).map_or(String::new(), |(a, z)| a.to_uppercase() + z);
            let model = format!("{}{size}, on {}. {holds}.", info.name, info.device);
            lines.extend(says(&model, Role::Text.into()));
        }
    }
    lines.extend(offer);
    lines.extend(whole.then(Row::default));
    let begin = match whole {
        true => "Type a question, or load a document and ask about it:",
        false => "Type a question, or /load a document and ask about it. /help lists commands.",
    };
    lines.extend(says(begin, Role::Text.into()));
    if whole && !may_offer(app) {
        lines.push(Row::default());
    }
    let examples: &[&str] = if whole { &["load", "resume", "help"] } else { &[] };
    for name in examples {
        if let Some(c) = COMMANDS.iter().find(|c| c.name == *name) {
            lines.push(Row::from(vec![
                Span::new(format!("  {:<30}", c.example()), Role::Key),
                Span::new(ellipsis(c.help, cells.saturating_sub(34)), Role::Dim),
            ]));
        }
    }
    if may_offer(app) {
        let offer = match whole {
            true => "Or ask about a sample: Tab, then Enter. Tour: sala-chat demo",
            false => "Or ask about a sample: Tab, then Enter.",
        };
        lines.extend(says(offer, Role::Text.into()));
        lines.extend(QUESTIONS.iter().map(|question| Row::of(format!("  {question}"), Role::Text)));
    }
    if app.is_demo() && whole {
        let demo = [
            "DEMO: this is the small built-in model. It chats, reads documents and",
            "answers from them, but knows little. The 9B model needs an NVIDIA GPU:",
        ];
        lines.push(Row::default());
        if demo.iter().all(|line| width(line) <= room) {
            lines.push(Row::of(demo[0], Face::from(Role::Warn).bold()));
            lines.push(Row::of(demo[1], Role::Warn));
        } else {
            lines.extend(says(&demo.join(" "), Role::Warn.into()));
        }
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
