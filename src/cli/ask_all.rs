//! `sala-chat ask-all`: one question to every document of the library, as a table.

use serde_json::{Value, json};

use super::args::{AskAllArgs, SessionChoice};
use super::failure::Failure;
use super::oneshot::{looked_at, not_saved, reason};
use super::signals::Ending;
use super::{Context, notices, open, out};
use crate::core::Exit;
use crate::runtime::protocol::{Activity, FanOut, FanOutRow, Notice, Request};
use crate::runtime::{Attendance, Input, no_document};
use crate::text::sanitize::Clean;
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

/// The last answers, and what failed.
#[derive(Default)]
struct Outcome {
    answers: Option<FanOut>,
    failed: Option<Failure>,
}

impl Outcome {
    /// Takes a notice; false when it is the last one.
    fn take(&mut self, context: &Context, notice: Notice) -> bool {
        if let Some((level, text)) = notices::remark(&notice) {
            if context.shows_progress() {
                out::clear_progress();
            }
            notices::print_remark(context, level, &text);
        }
        match notice {
            Notice::FanOut(answers) => self.answers = Some(answers),
            Notice::Activity(Activity::Busy { what }) if context.shows_progress() => out::progress(&Clean::line(&what)),
            Notice::Activity(Activity::Reading(p)) if context.shows_progress() => {
                notices::reading(&p).iter().for_each(|text| out::progress(&Clean::line(text)));
            }
            Notice::Fatal { error, exit } => self.failed = Some(Failure::new(exit, error)),
            Notice::Bye { unsaved, .. } => {
                self.failed = self.failed.take().or(unsaved.as_ref().map(not_saved));
                return false;
            }
            _ => {}
        }
        true
    }
}

pub(super) fn run(context: &Context, args: &AskAllArgs) -> Result<Exit, Failure> {
    if args.question.trim().is_empty() {
        return Err(Failure::new(Exit::Usage, "there is no question: ask-all needs a text")
            .hint("For example: sala-chat ask-all \"What is the code?\""));
    }
    // Nothing was ever kept there, and none is made to say so.
    if !context.dirs.data.exists() {
        return Err(Failure::new(Exit::Failure, no_document(args.library.as_deref(), Attendance::Absent)));
    }
    let opened = open::runtime(context, &SessionChoice::New, true, Attendance::Absent, Input::Lines)?;
    let requests = opened.runtime.requests.clone();
    let (question, library) = (args.question.clone(), args.library.clone());
    // A runtime that has failed says so in its last notice.
    let _ = requests.send(Request::AskAll { question, library, read: args.read });
    let _ = requests.send(Request::Quit);
    let ending = Ending::watch(move || drop(requests.send(Request::Stop)))?;
    let mut outcome = Outcome::default();
    for notice in &opened.runtime.notices {
        if !outcome.take(context, notice) {
            break;
        }
    }
    if context.shows_progress() {
        out::clear_progress();
    }
    let _ = opened.runtime.thread.join();
    let _ = opened.engine.join();
    let answered = |s: &FanOut| s.rows.iter().filter(|r| r.finish.is_some()).count();
    let Outcome { answers, failed } = outcome;
    if let Some(answers) = answers.filter(|s| failed.is_none() || answered(s) > 0) {
        context.result(|| object(&answers), || sentences(&answers).join("\n"))?;
        return Ok(match (ending.signal(), answered(&answers)) {
            (Some(signal), _) => Exit::Signal(signal),
            (None, 0) => Exit::Failure,
            (None, _) => Exit::Ok,
        });
    }
    Err(match ending.signal() {
        Some(signal) => Failure::new(Exit::Signal(signal), "stopped before there was an answer"),
        None => failed.unwrap_or_else(|| Failure::new(Exit::Failure, "no document answered")),
    })
}
