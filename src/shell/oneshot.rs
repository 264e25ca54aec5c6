//! `sala-chat -p`: one answer on standard output, then the end. A desk without an interface: its notices become text,
//! one JSON object, or JSON lines. Progress and notes go to standard error, and only to a terminal.

use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use serde_json::{Value, json};

use super::cli::{Ask, Format};
use super::failure::{Exit, Failure};
use super::signals::Ending;
use super::{Context, STDIN, open, out};
use crate::desk::Attendance;
use crate::protocol::desk::{Activity, Level, LoadOptions, Meters, Notice, ReadingProgress, Request, Unsaved};
use crate::protocol::engine::ModelInfo;
use crate::settings::ThoughtView;
use crate::text::sanitize::Clean;
use crate::transcript::{Finish, Message, MessageId, Passage, Role};

/// What the model sees standard input as.
const STDIN_NAME: &str = "stdin";
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(200);

/// Facts gathered on the way to the answer.
#[derive(Default)]
struct Run {
    model: ModelInfo,
    load_ms: f64,
    /// From the start of the program to the first token of the answer.
    first_token_ms: Option<f64>,
    session: Option<String>,
    meters: Meters,
    /// Tokens of documents read by prefill in this run.
    documents_read: u64,
    /// Time for them, milliseconds.
    documents_ms: f64,
    /// Answers that were asked for, in the order of their seeds; the first goes on.
    answers: Vec<Message>,
    /// Those that are written side by side.
    beside: Vec<MessageId>,
    unsaved: Option<Unsaved>,
}

/// Why an answer ended, in words for scripts.
pub(super) fn reason(finish: Option<Finish>) -> &'static str {
    match finish {
        Some(Finish::Stop) => "stop",
        Some(Finish::Length) => "length",
        Some(Finish::Context) => "context",
        Some(Finish::Repeats) => "repeats",
        Some(Finish::Stopped) => "stopped",
        Some(Finish::Failed) | None => "error",
    }
}

fn place(p: &Passage) -> Value {
    json!({
        "document": p.document,
        "message": p.number,
        "first_line": p.first_line,
        "last_line": p.last_line,
        "share": (f64::from(p.share) * 1e4).round() / 1e4,
    })
}

/// Passages that were looked at while the answer was written, most first. What was said has no document, but a message number.
pub(super) fn looked_at(passages: &[Passage]) -> Value {
    passages.iter().map(place).collect()
}

fn looked_at_by(answer: &Message) -> Value {
    looked_at(answer.meta.looked.as_ref().map_or(&[][..], |l| &l.passages))
}

/// The same for each sentence of the answer.
fn looked_at_by_sentence(answer: &Message) -> Value {
    let told = answer.meta.looked.as_ref().map(|l| l.by_sentence(&answer.text)).unwrap_or_default();
    told.into_iter()
        .map(|(text, passages)| json!({ "text": text, "looked_at": passages.iter().map(place).collect::<Value>() }))
        .collect()
}

impl Run {
    /// An answer is complete.
    fn take(&mut self, answer: Message) {
        self.answers.push(answer);
        let place = |m: &Message| self.beside.iter().position(|id| *id == m.id);
        self.answers.sort_by_key(place);
    }

    /// One object for each of several answers.
    fn several(&self) -> Value {
        let one = |m: &Message| {
            json!({
                "text": m.text,
                "thinking": m.thinking,
                "seed": m.meta.seed,
                "finish_reason": reason(m.meta.finish),
                "completion_tokens": m.meta.completion_tokens,
                "looked_at": looked_at_by(m),
            })
        };
        self.answers.iter().map(one).collect()
    }

    fn usage(&self, answer: &Message) -> Value {
        let prefilled = answer.meta.prefilled_tokens + self.documents_read;
        let reused = answer.meta.reused_tokens.saturating_sub(self.documents_read);
        // What was read for one of them was read for all.
        let beside = self.answers.iter().filter(|m| m.id != answer.id).map(|m| m.meta.completion_tokens).sum::<u64>();
        let mut usage = json!({
            "prompt_tokens": prefilled + reused,
            "reused_tokens": reused,
            "prefilled_tokens": prefilled,
            "completion_tokens": answer.meta.completion_tokens + beside,
        });
        if let Some(usage) = usage.as_object_mut().filter(|_| self.meters.estimated) {
            usage.insert("estimated".to_owned(), json!(true));
        }
        usage
    }

    /// Times from the start of reading, of the same tokens that [`Run::usage`] counts.
    fn timing(&self, answer: &Message) -> Value {
        let prefilled = answer.meta.prefilled_tokens + self.documents_read;
        let prefill_ms = answer.meta.prefill_ms + self.documents_ms;
        json!({
            "load_ms": self.load_ms,
            "first_token_ms": self.first_token_ms,
            "ttft_ms": answer.meta.ttft_ms + self.documents_ms,
            "prefill_tokens_per_s": if prefill_ms > 0.0 { prefilled as f64 * 1000.0 / prefill_ms } else { 0.0 },
            "decode_tokens_per_s": answer.meta.tokens_per_s,
        })
    }

    fn speculation(&self) -> Value {
        let s = &self.meters.spec;
        json!({
            "rounds": s.rounds,
            "drafted": s.drafted,
            "accepted": s.accepted,
            "mean_accept_length": s.mean_accept_length,
            "eagle_rounds": s.eagle_rounds,
            "ngram_rounds": s.ngram_rounds,
            "plain_rounds": s.plain_rounds,
        })
    }

    fn object(&self, answer: &Message, several: bool) -> Value {
        let mut object = json!({
            "text": answer.text,
            "thinking": answer.thinking,
            "looked_at": looked_at_by(answer),
            "looked_at_by_sentence": looked_at_by_sentence(answer),
            "finish_reason": reason(answer.meta.finish),
            "session": self.session,
            "not_saved": self.unsaved.as_ref().map(|u| &u.reason),
            "model": self.model.name,
            "device": self.model.device,
            "seed": answer.meta.seed,
            "usage": self.usage(answer),
            "timing": self.timing(answer),
            "speculation": self.speculation(),
        });
        if let Some(object) = object.as_object_mut().filter(|_| several) {
            object.insert("answers".into(), self.several());
        }
        object
    }
}

/// Standard input, if somebody put something into it.
fn piped(most_mib: u64) -> Result<Option<String>, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let bytes = read_piped(stdin.lock(), most_mib)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        Failure::new(Exit::Failure, format!("standard input is not UTF-8 text (byte {})", e.utf8_error().valid_up_to()))
    })?;
    Ok((!text.trim().is_empty()).then_some(text))
}

/// A source without an end must not fill the memory.
fn read_piped(input: impl Read, most_mib: u64) -> Result<Vec<u8>, Failure> {
    let most = most_mib.saturating_mul(1 << 20);
    let mut bytes = Vec::new();
    let read = input.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| Failure::new(Exit::Failure, format!("standard input: {e}")))?;
    if bytes.len() as u64 > most {
        return Err(Failure::new(Exit::TooLong, format!("standard input: more than {most_mib} MiB"))
            .hint("Raise load.max_file_mib or split it"));
    }
    Ok(bytes)
}

/// Runs it.
///
/// # Errors
/// Anything that keeps the question from being answered.
pub fn run(context: &Context, ask: &Ask) -> Result<Exit, Failure> {
    if ask.prompt.trim().is_empty() {
        return Err(Failure::new(Exit::Usage, "there is no question: -p needs a text")
            .hint("For example: sala-chat -p \"What is in it?\" -f FILE"));
    }
    let inline = piped(context.config().load.max_file_mib)?;
    if inline.is_none() && ask.files.iter().any(|p| p == STDIN) {
        return Err(Failure::usage("-f - means standard input, and there is nothing in it"));
    }
    let started = Instant::now();
    let opened = open::desk(context, &ask.session, ask.save, Attendance::Absent)?;
    let requests = opened.desk.requests.clone();
    let stop = requests.clone();
    // A desk that is gone has stopped.
    let ending = Ending::watch(move || drop(stop.send(Request::Stop)))?;
    let mut paths: Vec<String> = ask.files.iter().filter(|p| *p != STDIN).cloned().collect();
    if inline.is_some() {
        paths.push(STDIN.into());
    }
    if !paths.is_empty() {
        let name = (inline.is_some() && paths.len() == 1).then(|| STDIN_NAME.to_owned());
        let options = LoadOptions { name, inline, ..LoadOptions::default() };
        // Should the desk be gone already, its last notice says why.
        let _ = requests.send(Request::Load { paths, options });
    }
    let text = ask.prompt.clone();
    let _ = requests.send(match ask.answers {
        None | Some(0 | 1) => Request::Ask(text),
        Some(count) => Request::AskForSeveral { text, count },
    });
    let mut printer = Printer::new(context, ask.format, ask.answers);
    let mut run = Run::default();
    let listened = listen(&opened.desk.notices, &requests, &mut printer, &mut run, started);
    let joined = opened.desk.thread.join();
    let _ = opened.engine.join();
    if let Some(signal) = ending.signal() {
        // What there is of an answer is on standard output; the code says why there is no more.
        return match (listened, run.answers.first()) {
            (Ok(()), Some(answer)) => printer.end(&run, answer).map(|()| Exit::Signal(signal)),
            (Ok(()) | Err(_), _) => Err(Failure::new(Exit::Signal(signal), "stopped before there was an answer")),
        };
    }
    listened?;
    if joined.is_err() {
        return Err(Failure::new(Exit::Failure, "the desk ended unexpectedly. What was said is saved: sala-chat -c"));
    }
    let Some(answer) = run.answers.first() else {
        if let Some(unsaved) = &run.unsaved {
            return Err(not_saved(unsaved));
        }
        return Err(Failure::new(Exit::Stopped, "stopped before there was an answer"));
    };
    printer.end(&run, answer)?;
    if let Some(unsaved) = &run.unsaved {
        return match ask.format {
            // The object has said so, and there is one on standard output.
            Format::Json => Ok(Exit::from_code(unsaved.code)),
            Format::Text | Format::Raw | Format::JsonLines => Err(not_saved(unsaved)),
        };
    }
    Ok(if answer.meta.finish == Some(Finish::Stopped) { Exit::Stopped } else { Exit::Ok })
}

/// The answer was given, but it is not on disk: a script must not go on as if it were.
pub(super) fn not_saved(unsaved: &Unsaved) -> Failure {
    Failure::new(Exit::from_code(unsaved.code), format!("not saved: {}", unsaved.reason))
}

/// Follows the desk to its end.
fn listen(
    notices: &Receiver<Notice>,
    requests: &Sender<Request>,
    printer: &mut Printer<'_>,
    run: &mut Run,
    started: Instant,
) -> Result<(), Failure> {
    let mut failed = None;
    for notice in notices {
        let printed = match notice {
            Notice::Ready(info) => {
                run.load_ms = started.elapsed().as_secs_f64() * 1000.0;
                run.model = info;
                printer.event(
                    "start",
                    || json!({ "model": run.model.name, "device": run.model.device, "load_ms": run.load_ms }),
                )
            }
            Notice::Session(view) => {
                run.session = Some(view.name).filter(|n| !n.is_empty());
                Ok(())
            }
            // Before any text: a token may be a part of a character.
            Notice::Activity(Activity::Thinking { .. } | Activity::Answering { .. }) => {
                run.first_token_ms.get_or_insert_with(|| printer.context.began.elapsed().as_secs_f64() * 1000.0);
                Ok(())
            }
            Notice::Several(answers) => {
                run.beside = answers.iter().map(|(id, _)| *id).collect();
                Ok(())
            }
            Notice::Delta { message, thinking, text } => {
                let which = printer.place(message, &run.beside);
                printer.delta(which, thinking, &text)
            }
            Notice::Finished(m) if m.role == Role::Document => {
                run.documents_read += m.meta.prefilled_tokens;
                run.documents_ms += m.meta.prefill_ms;
                let name = m.meta.document.as_ref().map(|d| d.name.clone());
                let tokens = m.meta.document.as_ref().map(|d| d.tokens);
                printer.event(
                    "load",
                    || json!({ "name": name, "tokens": tokens, "prefilled_tokens": m.meta.prefilled_tokens }),
                )
            }
            Notice::Finished(m) => {
                let which = printer.place(m.id, &run.beside);
                let told = printer.finished(which, &m);
                run.take(m);
                told
            }
            // What follows an answer is done too: where the template drops thoughts it is read again without them, or the
            // next `-c` would find none of it.
            Notice::Activity(Activity::Idle) if !run.answers.is_empty() => {
                let _ = requests.send(Request::Quit);
                Ok(())
            }
            Notice::Meters(m) => {
                run.meters = m;
                Ok(())
            }
            Notice::Activity(Activity::Reading(p)) => printer.reading(&p),
            // Before there is an answer: it would stand in its last line.
            Notice::Activity(Activity::Busy { what }) if run.first_token_ms.is_none() => {
                printer.busy(&what);
                Ok(())
            }
            Notice::Note(level, text) => printer.note(level, &text),
            Notice::Fatal { error, code } => {
                printer.clear_progress();
                failed = Some(Failure::new(Exit::from_code(code), error));
                Ok(())
            }
            Notice::Bye { unsaved, .. } => {
                run.unsaved = unsaved;
                break;
            }
            Notice::Activity(_)
            | Notice::Beside { .. }
            | Notice::Added(_)
            | Notice::Save(_)
            | Notice::Page { .. }
            | Notice::Looked { .. }
            | Notice::Why { .. }
            | Notice::Map(_)
            | Notice::Aside { .. }
            | Notice::Shelf(_)
            | Notice::Question { .. }
            | Notice::Plan { .. }
            | Notice::Display(_)
            | Notice::Tree(_)
            | Notice::Input { .. }
            | Notice::Sessions(_)
            | Notice::Prompts(_)
            | Notice::Found { .. }
            | Notice::Timeline(_)
            | Notice::Documents { .. } => Ok(()),
        };
        if let Err(e) = printed {
            // Nobody reads any more: end in good order, keep what was said.
            failed.get_or_insert(e);
            let _ = requests.send(Request::Stop);
            let _ = requests.send(Request::Quit);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Writes what is to be seen.
struct Printer<'a> {
    context: &'a Context,
    format: Format,
    thoughts: bool,
    progress: Option<Instant>,
    ends_with_newline: bool,
    /// So many answers were asked for.
    answers: Option<u64>,
    /// Those that were heard of, where they are not written side by side.
    heard: Vec<MessageId>,
}

impl<'a> Printer<'a> {
    fn new(context: &'a Context, format: Format, answers: Option<u64>) -> Printer<'a> {
        Printer {
            context,
            format,
            thoughts: context.config().thinking.show == ThoughtView::Open,
            progress: None,
            ends_with_newline: true,
            answers,
            heard: Vec::new(),
        }
    }

    fn several(&self) -> bool {
        self.answers.is_some_and(|n| n > 1)
    }

    /// Which of the answers a message is, from 0.
    fn place(&mut self, message: MessageId, beside: &[MessageId]) -> usize {
        if let Some(at) = beside.iter().position(|id| *id == message) {
            return at;
        }
        self.heard.iter().position(|id| *id == message).unwrap_or_else(|| {
            self.heard.push(message);
            self.heard.len() - 1
        })
    }

    /// An answer is complete: of several, each is told as a whole.
    fn finished(&mut self, which: usize, answer: &Message) -> Result<(), Failure> {
        self.clear_progress();
        if !self.several() {
            return Ok(());
        }
        match self.format {
            Format::Json | Format::Raw => Ok(()),
            Format::JsonLines => self.event("answer", || {
                json!({
                    "answer": which, "text": answer.text, "seed": answer.meta.seed,
                    "finish_reason": reason(answer.meta.finish)
                })
            }),
            Format::Text => {
                let seed = answer.meta.seed.unwrap_or_default();
                self.answer(&format!("[{}] seed {seed}\n{}\n\n", which + 1, answer.text.trim_end()))
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

    fn event(&mut self, event: &str, body: impl FnOnce() -> Value) -> Result<(), Failure> {
        if self.format != Format::JsonLines {
            return Ok(());
        }
        let mut line = json!({ "event": event });
        if let (Value::Object(line), Value::Object(body)) = (&mut line, body()) {
            line.extend(body);
        }
        Ok(out::line(&Clean::json(&line))?)
    }

    fn delta(&mut self, which: usize, thinking: bool, text: &str) -> Result<(), Failure> {
        self.clear_progress();
        match (self.format, thinking) {
            (Format::JsonLines, _) if self.several() => {
                let event = if thinking { "think" } else { "token" };
                self.event(event, || json!({ "answer": which, "text": text }))
            }
            _ if self.several() => Ok(()),
            (Format::JsonLines, true) => self.event("think", || json!({ "text": text })),
            (Format::JsonLines, false) => self.event("token", || json!({ "text": text })),
            (Format::Json, _) => Ok(()),
            (Format::Text | Format::Raw, false) => self.answer(text),
            (Format::Text | Format::Raw, true) => {
                if self.thoughts && !self.context.quiet {
                    // Thoughts are no part of the answer.
                    out::tell_part(&Clean::text(text));
                }
                Ok(())
            }
        }
    }

    fn reading(&mut self, p: &ReadingProgress) -> Result<(), Failure> {
        if self.format == Format::JsonLines {
            let (done, total) = (p.done, p.total);
            return self.event("prefill", || json!({ "done": done, "total": total, "tokens_per_s": p.tokens_per_s }));
        }
        let due = self.progress.is_none_or(|at| at.elapsed() >= PROGRESS);
        if self.context.shows_progress() && due && p.total > 0 {
            self.progress = Some(Instant::now());
            let left =
                if p.tokens_per_s > 0.0 { (p.total.saturating_sub(p.done)) as f64 / p.tokens_per_s } else { 0.0 };
            let share = p.done * 100 / p.total;
            let said = format!("reading {share}%  {:.0} tokens/s  {left:.0} s left", p.tokens_per_s);
            out::progress(&Clean::line(&said));
        }
        Ok(())
    }

    fn busy(&mut self, what: &str) {
        if self.context.shows_progress() && self.format != Format::JsonLines {
            self.progress = Some(Instant::now());
            out::progress(&Clean::line(what));
        }
    }

    fn clear_progress(&mut self) {
        if self.progress.take().is_some() {
            out::clear_progress();
        }
    }

    fn note(&mut self, level: Level, text: &str) -> Result<(), Failure> {
        self.clear_progress();
        match level {
            Level::Info => self.context.note(text),
            Level::Warn | Level::Error => {
                if !self.context.quiet {
                    out::tell(&Clean::text(&format!("sala-chat: {text}")));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, run: &Run, answer: &Message) -> Result<(), Failure> {
        match self.format {
            Format::Json => Ok(out::line(&Clean::json(&run.object(answer, self.answers.is_some())))?),
            Format::JsonLines => {
                let stats = json!({ "usage": run.usage(answer), "timing": run.timing(answer), "speculation": run.speculation() });
                self.event("look", || {
                    json!({ "looked_at": looked_at_by(answer), "looked_at_by_sentence": looked_at_by_sentence(answer) })
                })?;
                self.event("stats", || stats)?;
                let (session, seed) = (run.session.clone(), answer.meta.seed);
                let not_saved = run.unsaved.as_ref().map(|u| &u.reason);
                self.event("end", || {
                    json!({
                        "finish_reason": reason(answer.meta.finish), "session": session, "seed": seed,
                        "not_saved": not_saved
                    })
                })
            }
            Format::Text | Format::Raw if !self.ends_with_newline => self.answer("\n"),
            Format::Text | Format::Raw => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::{MessageId, MessageMeta, Sources};

    #[test]
    fn standard_input_ends_at_the_limit() {
        assert_eq!(read_piped(&b"text"[..], 1).unwrap(), b"text");
        let endless = read_piped(std::io::repeat(b'a'), 1).unwrap_err();
        assert_eq!(endless.exit, Exit::TooLong);
        assert_eq!(endless.to_string(), "standard input: more than 1 MiB. Raise load.max_file_mib or split it");
    }

    #[test]
    fn usage_counts_documents_of_this_run_as_read() {
        let meta =
            MessageMeta { prefilled_tokens: 10, reused_tokens: 1200, completion_tokens: 7, ..MessageMeta::default() };
        let meta = MessageMeta { prefill_ms: 20.0, ttft_ms: 30.0, ..meta };
        let answer = Message {
            id: MessageId(1),
            parent: None,
            role: Role::Assistant,
            text: "x".into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { finish: Some(Finish::Stop), seed: Some(3), ..meta },
        };
        let run = Run { documents_read: 1000, documents_ms: 485.0, ..Run::default() };
        let object = run.object(&answer, false);
        assert_eq!(
            object["usage"],
            json!({"prompt_tokens": 1210, "reused_tokens": 200, "prefilled_tokens": 1010, "completion_tokens": 7})
        );
        // Times of the same tokens, not only of those behind the documents.
        assert_eq!(
            (&object["timing"]["ttft_ms"], &object["timing"]["prefill_tokens_per_s"]),
            (&json!(515.0), &json!(2000.0))
        );
        assert_eq!(object["finish_reason"], "stop");
        assert_eq!(object["looked_at"], json!([]));
        let passage = Passage {
            document: Some("war.txt".into()),
            number: 2,
            first_line: 41_210,
            last_line: 41_262,
            share: 0.3142,
            ..Passage::default()
        };
        let said = Passage { number: 4, first_line: 1, last_line: 1, share: 0.1, ..Passage::default() };
        let looked = Sources { passages: vec![passage, said], ..Sources::default() };
        let answer = Message { meta: MessageMeta { looked: Some(looked), ..answer.meta.clone() }, ..answer };
        assert_eq!(
            run.object(&answer, false)["looked_at"],
            json!([
                {"document": "war.txt", "message": 2, "first_line": 41_210, "last_line": 41_262, "share": 0.3142},
                {"document": null, "message": 4, "first_line": 1, "last_line": 1, "share": 0.1},
            ])
        );
    }
}
