//! Line mode (`--plain`, `TERM=dumb`, screen readers, pipes): the requests, notices and commands of the full screen,
//! with answers appended sentence by sentence and no escape sequences.
//!
//! [`Plain`] has lines and notices in, lines and requests out. `notices` renders the runtime's notices, `feed` has
//! the terminal. A pipe gets no prompt; its end ends the program.

mod feed;
mod notices;

use std::collections::VecDeque;
use std::path::PathBuf;

use super::{Exit, jobs};
use crate::config::commands::{self, Command, Local, Outcome, WhileBusy, help};
use crate::config::settings::{self, Loaded, Row};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Choice, Display, OpenSession, Request};
use crate::tui::mention;
use crate::tui::tour::Tour;

pub use feed::{Lines, run, start_lines};

#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    Line(String),
    Part(String),
    Send(Request),
    Keep(&'static str, String),
    Exit(Exit),
}

#[derive(Debug)]
struct OpenQuestion {
    id: u64,
    choices: Vec<Choice>,
}

/// The choice that a line names by its key; an empty line is Enter. A longer line is no answer.
fn choice<'a>(choices: &'a [Choice], line: &str) -> Option<&'a Choice> {
    let line = line.trim();
    let Some(typed) = line.chars().next() else {
        return choices.iter().find(|c| c.key == '\n').or(choices.last());
    };
    let same = |c: &&Choice| c.key.to_lowercase().eq(typed.to_lowercase());
    let escape = |c: &&Choice| c.key == '\x1b' && typed == 'e';
    choices.iter().find(same).or_else(|| choices.iter().find(escape)).filter(|_| line.chars().count() <= 3)
}

#[derive(Debug, Default)]
pub struct Plain {
    home: Option<PathBuf>,
    settings: Loaded,
    settings_now: Vec<(&'static str, String)>,
    activity: Activity,
    /// Requests that were sent, and how many of them the runtime has served.
    sent: u64,
    served: u64,
    /// Lines of a pipe, or those that a person typed while the runtime was busy.
    queue: VecDeque<String>,
    question: Option<OpenQuestion>,
    editing: Option<MessageId>,
    /// The documents that the first queued question mentions are being read.
    reading_for_question: bool,
    documents: Vec<String>,
    library: Vec<String>,
    pending: String,
    printed: usize,
    speaking: bool,
    thinking: bool,
    opened: Vec<OpenSession>,
    parallel: Vec<(MessageId, Option<u64>)>,
    tenth: u64,
    save_shown: Option<String>,
    /// The open session as it was printed: serial, name, and the last answer, `None` after messages that followed it.
    shown: (u64, String, Option<String>),
    looks_hidden: bool,
    /// A person types, so a prompt is shown when a line is wanted.
    prompts: bool,
    prompted: bool,
    ended: bool,
    quitting: bool,
    tour: Option<Tour>,
    toured: bool,
}

impl Plain {
    /// Line mode; `home` is for `~` in paths, `prompts` says that somebody types.
    pub fn new(home: Option<PathBuf>, prompts: bool) -> Plain {
        Plain { home, prompts, activity: Activity::Starting { what: "starting".into() }, ..Plain::default() }
    }

    fn busy(&self) -> bool {
        self.served < self.sent || self.activity != Activity::Idle
    }

    fn send(&mut self, request: Request) -> Out {
        self.sent += 1;
        Out::Send(request)
    }

    pub fn line(&mut self, line: &str) -> Vec<Out> {
        // Enter ended the prompt's line.
        self.prompted = false;
        if self.prompts {
            return self.entered(line);
        }
        self.queue.push_back(line.to_owned());
        self.go_on()
    }

    /// At the end of input, queued questions are answered and open questions of the runtime refused.
    pub fn end_of_input(&mut self) -> Vec<Out> {
        self.ended = true;
        self.go_on()
    }

    /// Answers the open question, if the line is an answer.
    fn answer(&mut self, line: &str) -> Option<Vec<Out>> {
        let OpenQuestion { id, choices } = self.question.as_ref()?;
        let (question, key) = (*id, choice(choices, line)?.key);
        self.question = None;
        let mut out = vec![self.send(Request::Choose { question, key })];
        if key == '\x1b' {
            self.not_read(&mut out);
        }
        Some(out)
    }

    fn refuse(&mut self) -> Vec<Out> {
        let Some(OpenQuestion { id, mut choices }) = self.question.take() else { return Vec::new() };
        let Some(Choice { key, label }) = choices.pop() else { return Vec::new() };
        let reason = Out::Line(format!("No answer came, so: {label}."));
        let mut out = vec![reason, self.send(Request::Choose { question: id, key })];
        self.not_read(&mut out);
        out
    }

    /// Takes queued lines while the runtime is idle; after the last line of a pipe it quits. A question takes the next line
    /// of a pipe, and is refused where that is no answer.
    fn go_on(&mut self) -> Vec<Out> {
        let mut out = Vec::new();
        loop {
            if self.question.is_some() {
                let next = if self.prompts { None } else { self.queue.pop_front() };
                let answer = next.as_ref().and_then(|line| self.answer(line));
                match (answer, next) {
                    (Some(answer), _) => out.extend(answer),
                    (None, None) if !self.ended => break,
                    (None, next) => {
                        next.into_iter().for_each(|line| self.queue.push_front(line));
                        out.extend(self.refuse());
                    }
                }
                continue;
            }
            if self.busy() || self.quitting {
                break;
            }
            match self.queue.pop_front() {
                Some(line) => out.extend(self.entered(&line)),
                // Without a person at the keyboard the tour continues by itself.
                None if self.tour.as_ref().is_some_and(|t| t.step().is_some()) && !self.prompts => {
                    let step = self.step();
                    if step.is_empty() {
                        break;
                    }
                    out.extend(step);
                    out.extend(self.entered(""));
                }
                None if self.ended => {
                    self.quitting = true;
                    out.push(self.send(Request::Quit));
                }
                None => break,
            }
        }
        out
    }

    /// After a pause in the output: shows the prompt if a line is expected.
    pub fn quiet(&mut self) -> Vec<Out> {
        if !self.wants_prompt() {
            return Vec::new();
        }
        let mut out = self.step();
        self.prompted = true;
        out.push(Out::Part("you: ".into()));
        out
    }

    fn wants_prompt(&self) -> bool {
        !self.busy() && self.question.is_none() && !self.ended && self.prompts && !self.prompted
    }

    fn step(&mut self) -> Vec<Out> {
        let Some(tour) = &mut self.tour else { return Vec::new() };
        match (tour.offer(), tour.step()) {
            (Some(line), Some(step)) => {
                vec![Out::Line(format!("Tour: {} Enter alone sends: {line} (skip leaves the tour.)", step.text))]
            }
            _ => Vec::new(),
        }
    }

    fn entered(&mut self, line: &str) -> Vec<Out> {
        if let Some(question) = &self.question {
            let wanted = keys(&question.choices);
            return self.answer(line).unwrap_or_else(|| vec![Out::Line(wanted)]);
        }
        let mut line = line.trim_end();
        let step;
        if let Some(tour) = &mut self.tour {
            if line.trim() == "skip" {
                self.tour = None;
                return vec![Out::Line("You left the tour. /quit ends; nothing of this session is kept.".into())];
            }
            if line.trim().is_empty() && tour.offered {
                step = tour.line().unwrap_or_default();
                line = &step;
            }
            tour.entered(line);
        }
        if line.trim().is_empty() {
            if !self.busy() && self.editing.take().is_some() {
                return vec![Out::Line("The edit is cancelled; the message stays as it was.".into())];
            }
            return Vec::new();
        }
        if commands::is_command(line) {
            return match commands::parse(line.trim(), self.home.as_deref()) {
                Err(why) => vec![Out::Line(why)],
                Ok(p) if self.busy() && self.waits(p.outcome.while_busy()) => self.enqueue(line),
                Ok(p) => self.outcome(p.command.name, p.outcome),
            };
        }
        if self.busy() { self.enqueue(line) } else { self.ask(line) }
    }

    /// Commands that leave a session run after its queued lines.
    fn waits(&self, while_busy: WhileBusy) -> bool {
        while_busy == WhileBusy::Waits || while_busy == WhileBusy::Leaves && !self.queue.is_empty()
    }

    fn enqueue(&mut self, line: &str) -> Vec<Out> {
        self.queue.push_back(line.to_string());
        vec![Out::Line("Queued.".into())]
    }

    fn outcome(&mut self, command: &str, outcome: Outcome) -> Vec<Out> {
        if outcome.leaves_an_edit() {
            self.editing = None;
        }
        match outcome {
            Outcome::Runtime(request) => vec![self.send(request)],
            Outcome::Local(Local::Quit) => {
                self.quitting = true;
                vec![self.send(Request::Quit)]
            }
            Outcome::Local(Local::Help(None)) => unmarked(&help::page()),
            Outcome::Local(Local::Help(Some(word))) => unmarked(&help::about(&word).unwrap_or_else(|why| why)),
            Outcome::Local(Local::Settings(word)) => {
                let now = |row: &Row| {
                    let name = row.session?.name;
                    self.settings_now.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
                };
                unmarked(&settings::page::page(&self.settings, word.as_deref(), now))
            }
            Outcome::Local(Local::Save { key, value, now }) => {
                let mut out = vec![Out::Keep(key, value)];
                let looks = |o: &Outcome| matches!(o, Outcome::Local(Local::Show(display)) if is_of_looks(display));
                if let Some(outcome) = now.filter(|o| matches!(**o, Outcome::Runtime(_)) || looks(o)) {
                    out.extend(self.outcome(command, *outcome));
                }
                out
            }
            Outcome::Local(Local::Show(display)) if is_of_looks(&display) => {
                self.looks_hidden = display.iter().any(|(_, value)| value == "false");
                let how = if self.looks_hidden { "not " } else { "" };
                vec![Out::Line(format!("The passages behind answers are {how}shown."))]
            }
            Outcome::Local(Local::Complete(line)) => {
                let example = commands::find(command).map(Command::example).unwrap_or_default();
                vec![Out::Line(format!("{}: needs a value. Example: {example}", line.trim_end()))]
            }
            Outcome::Local(Local::Copy(_) | Local::Show(_) | Local::Keys | Local::Split) => {
                vec![Out::Line(format!("/{command} needs the full screen; start without --plain."))]
            }
        }
    }

    /// Ctrl-C: stops work, else says how to leave.
    pub fn interrupt(&mut self) -> Vec<Out> {
        if self.busy() {
            vec![self.send(Request::Stop)]
        } else {
            self.prompted = false;
            vec![Out::Line(String::new()), Out::Line("/quit or Ctrl-D ends.".into())]
        }
    }

    pub fn resumed(&mut self) {
        self.prompted = false;
    }

    /// Sends a question; documents that it mentions (`@NAME`) are read first, as on the screen.
    fn ask(&mut self, line: &str) -> Vec<Out> {
        self.reading_for_question = false;
        let (typed, edits) = (commands::message_text(line), self.editing.take());
        let found = jobs::existing(mention::names(&typed), self.home.as_deref());
        let [read, library] =
            [&self.documents, &self.library].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
        let meant = mention::meant(&typed, &found, &read, &library);
        if meant.is_ready() {
            let text = meant.text;
            return vec![self.send(match edits {
                Some(message) => Request::EditDone { message, text },
                None => Request::Ask(text),
            })];
        }
        if edits.is_some() {
            // The next line of a pipe is no replacement.
            self.editing = edits.filter(|_| self.prompts);
            return vec![Out::Line(meant.not_for_an_edit())];
        }
        self.queue.push_front(commands::line_of(&meant.text));
        self.reading_for_question = true;
        vec![self.send(mention::load_request(meant.paths, meant.library, self.home.as_deref()))]
    }

    /// Drops a question after one of its documents could not be read.
    fn not_read(&mut self, out: &mut Vec<Out>) {
        if std::mem::take(&mut self.reading_for_question)
            && let Some(line) = self.queue.pop_front()
        {
            out.push(Out::Line(format!(
                "Not sent, because a document could not be read: {}",
                super::notices::beginning(&line)
            )));
        }
    }
}

/// Whether it changes what answers looked at, the one display setting of line mode.
fn is_of_looks(display: &Display) -> bool {
    display.iter().all(|(key, _)| *key == "ui.look")
}

/// Lines of Markdown without its marks; code stays as it is, asterisks included.
fn unmarked(text: &str) -> Vec<Out> {
    let part = |(i, part): (usize, &str)| if i % 2 == 1 { part.to_owned() } else { part.replace("**", "") };
    text.lines().map(|line| Out::Line(line.split('`').enumerate().map(part).collect())).collect()
}

fn keys(choices: &[Choice]) -> String {
    let name = |k| match k {
        '\n' => "Enter".to_string(),
        '\x1b' => "Esc (e)".to_string(),
        k => k.to_string(),
    };
    choices.iter().map(|c| format!("{} {}", name(c.key), c.label).trim_end().to_owned()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
