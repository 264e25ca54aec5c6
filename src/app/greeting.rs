//! What a session without messages says, above its notes.

use super::cells::ellipsis;
use super::layout;
use super::rows::{Face, Role, Row, Span};
use super::{App, offers};
use crate::commands::COMMANDS;
use crate::text::sample::QUESTIONS;

/// Rows of the greeting, as much of it as there is room for; none in a session that has messages. The window must be prepared.
pub fn greeting(app: &App) -> Vec<Row> {
    if app.transcript.messages().next().is_some() {
        return Vec::new();
    }
    let (area, window) = (layout::regions(app).transcript, app.transcript.window());
    // Beside notes the short form may be all that there is room for.
    let room = if window.is_empty() { usize::MAX } else { usize::from(area.height) };
    let forms = [Form::Whole, Form::Short].map(|form| welcome(app, usize::from(area.width), form));
    let fitting = forms.into_iter().find(|rows| layout::greeting_height(rows) + window.len() <= room);
    fitting.unwrap_or_default()
}

/// How much the greeting says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    /// Without the examples of commands.
    Short,
}

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
