//! `sala-chat ask-all`: one question to every document of the library, as a table.

use serde_json::{Value, json};

use super::args::AskAllArgs;
use super::notices::{self, ProgressLine};
use super::oneshot::{looked_at, reason};
use super::{Context, Exit, Failure};
use crate::runtime::protocol::{FanOut, FanOutRow, Notice, Request};
use crate::runtime::{Attendance, no_document};
use crate::tui::fan_out::sentences;

pub(super) fn object(answers: &FanOut) -> Value {
    let row = |r: &FanOutRow| {
        json!({
            "document": r.document,
            "tokens": r.tokens,
            "text": r.finish.map(|_| &r.text),
            "finish_reason": r.finish.map(|f| reason(Some(f))),
            "error": r.failed,
            "looked_at": looked_at(&r.passages),
            "mean_log_probability": r.log_probability,
            "completion_tokens": r.answer_tokens,
        })
    };
    json!({ "question": answers.question, "answers": answers.rows.iter().map(row).collect::<Value>() })
}

pub(super) fn run(context: &Context, args: &AskAllArgs) -> Result<Exit, Failure> {
    if args.question.trim().is_empty() {
        return Err(Failure::new(Exit::Usage, "there is no question: ask-all needs a text")
            .hint("For example: sala-chat ask-all \"What is the code?\""));
    }
    // Does not create a data folder only to report that it is empty.
    if !context.dirs.data.exists() {
        return Err(Failure::of_chat(Exit::Failure, &no_document(args.library.as_deref(), Attendance::Absent)));
    }
    let request = Request::AskAll { question: args.question.clone(), library: args.library.clone(), read: args.read };
    let (mut progress, mut answers) = (ProgressLine::new(context.shows_progress()), None);
    let (signal, failed) = notices::serve_requests(context, [request], |notice| {
        if let Some((level, text)) = notices::remark(&notice) {
            progress.clear();
            notices::print_remark(context, level, &text);
        }
        match notice {
            Notice::FanOut(found) => answers = Some(found),
            Notice::Activity(activity) => progress.show(&activity),
            _ => {}
        }
    })?;
    progress.clear();
    let answered = |s: &FanOut| s.rows.iter().filter(|r| r.finish.is_some()).count();
    if let Some(answers) = answers.filter(|s| failed.is_none() || answered(s) > 0) {
        context.result(|| object(&answers), || sentences(&answers).join("\n"))?;
        return Ok(match (signal, answered(&answers)) {
            (Some(signal), _) => Exit::Signal(signal),
            (None, 0) => Exit::Failure,
            (None, _) => Exit::Ok,
        });
    }
    Err(match signal {
        Some(signal) => Failure::new(Exit::Signal(signal), "stopped before there was an answer"),
        None => failed.unwrap_or_else(|| Failure::new(Exit::Failure, "no document answered")),
    })
}
