//! Output of one run: text, one JSON object, or JSON lines, with progress and notes on standard error.

use serde_json::{Value, json};

use super::super::args::Format;
use super::super::failure::Failure;
use super::super::notices::{self, ProgressLine};
use super::super::{Context, out};
use super::facts::{Run, cut_off, reason};
use crate::config::settings::ThoughtView;
use crate::core::sanitize::Clean;
use crate::core::transcript::Message;
use crate::runtime::protocol::{Activity, Level};

pub(super) struct Printer<'a> {
    pub(super) context: &'a Context,
    format: Format,
    thoughts: bool,
    progress: ProgressLine,
    ends_with_newline: bool,
    answers: Option<u64>,
    printed_one: bool,
    held: Vec<(Level, String)>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(context: &'a Context, format: Format, answers: Option<u64>) -> Printer<'a> {
        Printer {
            context,
            format,
            thoughts: context.config().thinking.show == ThoughtView::Open,
            progress: ProgressLine::new(context.shows_progress()),
            ends_with_newline: true,
            answers,
            printed_one: false,
            held: Vec::new(),
        }
    }

    fn several(&self) -> bool {
        self.answers.is_some_and(|n| n > 1)
    }

    pub(super) fn finished(&mut self, which: usize, answer: &Message) -> Result<(), Failure> {
        self.clear_progress();
        if !self.several() {
            return Ok(());
        }
        match self.format {
            Format::Json | Format::Raw => Ok(()),
            Format::JsonLines => {
                let (seed, finish) = (answer.meta.seed, reason(answer.meta.finish));
                let body = json!({ "answer": which, "text": answer.text, "seed": seed, "finish_reason": finish });
                self.event("answer", body)
            }
            Format::Text => {
                let seed = answer.meta.seed.map_or(String::new(), |seed| format!(" seed {seed}"));
                let apart = if std::mem::replace(&mut self.printed_one, true) { "\n" } else { "" };
                self.answer(&format!("{apart}[{}]{seed}\n{}\n", which + 1, answer.text.trim_end()))
            }
        }
    }

    /// A piece of the answer. `--raw` gives a file or a program what the model wrote; a terminal never gets that.
    fn answer(&mut self, text: &str) -> Result<(), Failure> {
        match self.format {
            Format::Raw => out::data(text.as_bytes())?,
            Format::Text | Format::Json | Format::JsonLines => out::part(&Clean::text(text))?,
        }
        self.ends_with_newline = text.ends_with('\n');
        Ok(())
    }

    pub(super) fn event(&mut self, event: &str, body: Value) -> Result<(), Failure> {
        if self.format != Format::JsonLines {
            return Ok(());
        }
        let mut line = json!({ "event": event });
        if let (Some(line), Value::Object(body)) = (line.as_object_mut(), body) {
            line.extend(body);
        }
        Ok(out::line(&Clean::json(&line))?)
    }

    pub(super) fn delta(&mut self, which: usize, thinking: bool, text: &str) -> Result<(), Failure> {
        self.clear_progress();
        let several = self.several();
        match self.format {
            Format::JsonLines => {
                let body = if several { json!({ "answer": which, "text": text }) } else { json!({ "text": text }) };
                if thinking { self.event("think", body)? } else { self.event("token", body)? }
            }
            Format::Text | Format::Raw if several => {}
            Format::Text | Format::Raw if !thinking => self.answer(text)?,
            // Thoughts go to standard error.
            Format::Text | Format::Raw if self.thoughts && !self.context.quiet => out::err_part(&Clean::text(text)),
            Format::Text | Format::Raw | Format::Json => {}
        }
        Ok(())
    }

    pub(super) fn activity(&mut self, activity: &Activity) -> Result<(), Failure> {
        match activity {
            _ if self.format != Format::JsonLines => self.progress.show(activity),
            Activity::Reading(p) => {
                let (done, total) = (p.done, p.total);
                self.event("prefill", json!({ "done": done, "total": total, "tokens_per_s": p.tokens_per_s }))?;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn clear_progress(&mut self) {
        self.progress.clear();
    }

    pub(super) fn note(&mut self, level: Level, text: &str) {
        self.clear_progress();
        self.held.push((level, text.to_owned()));
        if self.ends_with_newline {
            self.print_held();
        }
    }

    pub(super) fn print_held(&mut self) {
        for (level, text) in self.held.drain(..) {
            notices::print_remark(self.context, level, &text);
        }
    }

    pub(super) fn end(&mut self, run: &Run, answer: &Message) -> Result<(), Failure> {
        let ended = self.end_answer(run, answer);
        self.print_held();
        ended
    }

    fn end_answer(&mut self, run: &Run, answer: &Message) -> Result<(), Failure> {
        match self.format {
            Format::Json => Ok(out::line(&Clean::json(&run.object(answer, self.answers.is_some())))?),
            Format::JsonLines => {
                let all = run.object(answer, false);
                let some = |keys: &[&str]| keys.iter().map(|key| (*key, all[*key].clone())).collect::<Value>();
                self.event("look", some(&["looked_at", "looked_at_by_sentence", "quotes"]))?;
                self.event("stats", some(&["usage", "timing", "speculation"]))?;
                self.event("end", some(&["finish_reason", "session", "seed", "not_saved", "state_not_saved"]))
            }
            Format::Text | Format::Raw => {
                // A file or a program gets exactly what the model wrote.
                let exact = self.format == Format::Raw && !out::is_terminal();
                if !self.ends_with_newline && !exact {
                    self.answer("\n")?;
                }
                if let Some(quotes) = crate::tui::looked::quoted(&answer.meta.quotes) {
                    self.note(Level::Info, &quotes);
                }
                // The JSON formats contain the reason.
                if let Some(why) = run.answers.iter().find_map(cut_off) {
                    self.note(Level::Warn, &why);
                }
                Ok(())
            }
        }
    }
}
