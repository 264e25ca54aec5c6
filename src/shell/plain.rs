//! Line mode (`--plain`, `TERM=dumb`, screen readers): a prompt, answers appended sentence by sentence, nothing is ever
//! drawn twice. Same requests and notices as the full screen, same commands, no escape sequences at all.
//!
//! [`Plain`] is pure: lines and notices in, lines and requests out. [`run`] feeds it.

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select, unbounded};

use super::run::DeskHandle;
use super::signals::{Outside, watch_signals};
use crate::app::command::{self, Local, Outcome, WhileBusy};
use crate::app::entry::grouped;
use crate::app::status::{duration, percent, seconds_left};
use crate::protocol::desk::{Activity, Choice, Level, Notice, Request, SaveState};
use crate::text::sanitize::{sanitize, sanitize_line};
use crate::transcript::{Finish, Message, Role};

/// What line mode wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    /// Print this and a newline.
    Line(String),
    /// Print this, without a newline.
    Part(String),
    /// Tell the desk.
    Send(Request),
    /// End.
    Exit(i32),
}

/// A question that takes the next line.
#[derive(Debug)]
struct Asked {
    id: u64,
    choices: Vec<Choice>,
    /// Files that can be chosen by number; 0 when it is about something else.
    files: usize,
}

/// The longest piece of an answer that is held back waiting for the end of its sentence.
const SENTENCE: usize = 240;

/// State of line mode.
#[derive(Debug, Default)]
pub struct Plain {
    home: Option<PathBuf>,
    activity: Activity,
    waiting: bool,
    queue: VecDeque<String>,
    question: Option<Asked>,
    editing: Option<crate::transcript::MessageId>,
    /// Text of the answer that is not printed yet.
    pending: String,
    /// Bytes of the answer that were printed or are pending.
    printed: usize,
    /// The answer's prefix was printed.
    speaking: bool,
    thinking: bool,
    /// Tenth of the progress said last.
    tenth: u64,
    save_said: Option<String>,
}

impl Plain {
    /// Line mode; `home` is for `~` in paths.
    pub fn new(home: Option<PathBuf>) -> Plain {
        Plain {
            home,
            activity: Activity::Starting {
                what: "starting".into(),
            },
            ..Plain::default()
        }
    }

    fn busy(&self) -> bool {
        self.waiting || self.activity != Activity::Idle
    }

    /// A line was entered.
    pub fn line(&mut self, line: &str) -> Vec<Out> {
        if let Some(Asked { id, choices, files }) = &self.question {
            if *files > 0 && line.trim().starts_with(|c: char| c.is_ascii_digit()) {
                return match numbers(line, *files) {
                    Err(why) => vec![Out::Line(why)],
                    Ok(files) => {
                        let question = *id;
                        self.question = None;
                        vec![Out::Send(Request::ChooseFiles { question, files })]
                    }
                };
            }
            let first = line.trim().chars().next();
            let chosen = match first {
                None => choices.iter().find(|c| c.key == '\n').or(choices.last()),
                Some(k) => {
                    let same = |c: &&Choice| c.key.to_lowercase().eq(k.to_lowercase());
                    choices
                        .iter()
                        .find(same)
                        .or_else(|| choices.iter().find(|c| c.key == '\x1b' && k == 'e'))
                }
            };
            let Some(choice) = chosen else {
                return vec![Out::Line(keys(choices))];
            };
            let out = vec![Out::Send(Request::Choose {
                question: *id,
                key: choice.key,
            })];
            self.question = None;
            return out;
        }
        let line = line.trim_end();
        if line.trim().is_empty() {
            return self.prompt();
        }
        if command::is_command(line) {
            return match command::parse(line.trim(), self.home.as_deref()) {
                Err(why) => vec![Out::Line(why)],
                Ok(p) if p.command.busy == WhileBusy::Waits && self.busy() => self.enqueue(line),
                Ok(p) => self.outcome(p.outcome),
            };
        }
        if self.busy() {
            self.enqueue(line)
        } else {
            self.ask(line)
        }
    }

    fn enqueue(&mut self, line: &str) -> Vec<Out> {
        self.queue.push_back(line.to_string());
        vec![Out::Line("Queued.".into())]
    }

    fn ask(&mut self, line: &str) -> Vec<Out> {
        self.waiting = true;
        let text = command::message_text(line);
        vec![Out::Send(match self.editing.take() {
            Some(message) => Request::EditDone { message, text },
            None => Request::Ask(text),
        })]
    }

    fn outcome(&mut self, outcome: Outcome) -> Vec<Out> {
        match outcome {
            Outcome::Desk(request) => vec![Out::Send(request)],
            Outcome::Local(Local::Quit) => vec![Out::Send(Request::Quit)],
            Outcome::Local(Local::Help(Some(name))) => {
                match command::find(name.trim_start_matches('/')) {
                    Some(c) => vec![Out::Line(format!(
                        "/{} {} - {}. Example: {}",
                        c.name, c.usage, c.help, c.example
                    ))],
                    None => vec![Out::Line(format!("No command is called {name}."))],
                }
            }
            Outcome::Local(Local::Help(None)) => command::COMMANDS
                .iter()
                .map(|c| Out::Line(format!("/{} {} - {}", c.name, c.usage, c.help)))
                .collect(),
            Outcome::Local(
                Local::Copy(_) | Local::Theme(_) | Local::Keys | Local::ThinkShow(_),
            ) => {
                vec![Out::Line(
                    "That command needs the full screen; start without --plain.".into(),
                )]
            }
        }
    }

    /// Ctrl-C: stops work, else says how to leave.
    pub fn interrupt(&mut self) -> Vec<Out> {
        if self.busy() {
            vec![Out::Send(Request::Stop)]
        } else {
            vec![
                Out::Line(String::new()),
                Out::Line("/quit or Ctrl-D ends.".into()),
            ]
        }
    }

    fn prompt(&self) -> Vec<Out> {
        if self.busy() || self.question.is_some() {
            Vec::new()
        } else {
            vec![Out::Part("you: ".into())]
        }
    }

    /// The desk says something.
    pub fn notice(&mut self, notice: Notice) -> Vec<Out> {
        let mut out = Vec::new();
        match notice {
            Notice::Ready(info) => {
                out.push(Out::Line(format!(
                    "{} on {}, up to {} tokens.",
                    info.name,
                    info.device,
                    grouped(info.context_limit)
                )));
                if info.name == "demo" {
                    out.push(Out::Line("This is the small built-in demo model. The 9B model: sala-chat model download".into()));
                }
            }
            Notice::Session(view) => {
                if !view.name.is_empty() {
                    out.push(Out::Line(format!(
                        "Session {}, {} messages.",
                        sanitize_line(&view.name),
                        view.messages.len()
                    )));
                }
                if let Some(last) = view.messages.last().filter(|m| m.role == Role::Assistant) {
                    out.push(Out::Line(format!("sala: {}", sanitize(&last.text))));
                }
            }
            Notice::Added(m) => {
                self.waiting = false;
                self.pending.clear();
                self.printed = 0;
                self.speaking = false;
                self.thinking = false;
                if let Some(d) = m.meta.document.filter(|_| m.role == Role::Document) {
                    out.push(Out::Line(format!(
                        "document: {}, {} tokens.",
                        sanitize_line(&d.name),
                        grouped(d.tokens)
                    )));
                }
            }
            Notice::Delta { thinking: true, .. } => {
                if !self.thinking {
                    self.thinking = true;
                    out.push(Out::Line("sala is thinking.".into()));
                }
            }
            Notice::Delta { text, .. } => {
                self.printed += text.len();
                self.pending.push_str(&sanitize(&text));
                self.speak(false, &mut out);
            }
            Notice::Finished(m) => self.finished(&m, &mut out),
            Notice::Activity(activity) => self.activity(activity, &mut out),
            Notice::Meters(_) | Notice::Prompts(_) | Notice::Display(_) => {}
            Notice::Save(state) => self.saved(&state, &mut out),
            Notice::Note(level, text) => {
                self.waiting = false;
                let mark = match level {
                    Level::Info => "",
                    Level::Warn => "Note: ",
                    Level::Error => "Error: ",
                };
                out.push(Out::Line(format!("{mark}{}", sanitize(&text))));
            }
            Notice::Page { title, text } => {
                out.push(Out::Line(format!("{}:", sanitize_line(&title))));
                out.push(Out::Line(sanitize(&text).into_owned()));
            }
            Notice::Aside { text, done, .. } => {
                let clean = sanitize(&text).into_owned();
                if done.is_some() {
                    out.push(Out::Line(format!("aside (not kept): {clean}")));
                }
            }
            Notice::Question { id, text, choices } => {
                self.waiting = false;
                out.push(Out::Line(sanitize(&text).into_owned()));
                out.push(Out::Line(keys(&choices)));
                self.question = Some(Asked {
                    id,
                    choices,
                    files: 0,
                });
            }
            Notice::Plan {
                id,
                text,
                mut choices,
                plan,
            } => {
                self.waiting = false;
                // Files are chosen by number here, so `e` stays the short form of Esc.
                choices.retain(|c| c.key != 'e');
                for (i, f) in plan.files.iter().enumerate() {
                    out.push(Out::Line(format!(
                        "{}: {}, {} tokens",
                        i + 1,
                        sanitize_line(&f.name),
                        grouped(f.tokens)
                    )));
                }
                out.push(Out::Line(sanitize(&text).into_owned()));
                out.push(Out::Line(format!(
                    "{}, or the numbers of the files to load, for example 1,3-5",
                    keys(&choices)
                )));
                self.question = Some(Asked {
                    id,
                    choices,
                    files: plan.files.len(),
                });
            }
            Notice::Input { text, editing } => {
                self.editing = editing;
                out.push(Out::Line(format!("The text was: {}", sanitize(&text))));
            }
            Notice::Sessions(rows) => {
                for r in rows.iter().take(50) {
                    let (name, title) = (sanitize_line(&r.name), sanitize_line(&r.title));
                    out.push(Out::Line(format!(
                        "{name}: {title} ({} messages, {} tokens)",
                        r.messages,
                        grouped(r.tokens)
                    )));
                }
                out.push(Out::Line("/resume NAME opens one.".into()));
            }
            Notice::Found { query, rows } => {
                out.push(Out::Line(format!(
                    "{} found for {}.",
                    rows.len(),
                    sanitize_line(&query)
                )));
                out.extend(rows.iter().map(|r| {
                    Out::Line(format!(
                        "{} #{}: {}",
                        sanitize_line(&r.session),
                        r.number,
                        sanitize_line(&r.snippet)
                    ))
                }));
            }
            Notice::Timeline(rows) => {
                for r in rows {
                    let here = if r.head { ", here" } else { "" };
                    let kept = if r.kept { ", state kept" } else { "" };
                    let label = r
                        .label
                        .map(|l| format!(", mark {}", sanitize_line(&l)))
                        .unwrap_or_default();
                    out.push(Out::Line(format!(
                        "#{} {}{label}{kept}{here}",
                        r.number,
                        sanitize_line(&r.title)
                    )));
                }
            }
            Notice::Documents { title, rows } => {
                out.push(Out::Line(format!(
                    "{}: {} documents.",
                    sanitize_line(&title),
                    rows.len()
                )));
                out.extend(rows.iter().map(|r| {
                    Out::Line(format!(
                        "{}, {} tokens, {} lines",
                        sanitize_line(&r.name),
                        grouped(r.tokens),
                        grouped(r.lines)
                    ))
                }));
            }
            Notice::Bye { farewell } => {
                out.extend(farewell.map(|f| Out::Line(sanitize(&f).into_owned())));
                out.push(Out::Exit(0));
            }
            Notice::Fatal { error, code } => {
                out.push(Out::Line(sanitize(&error).into_owned()));
                out.push(Out::Exit(code));
            }
        }
        out
    }

    /// Prints what is complete of the answer.
    fn speak(&mut self, all: bool, out: &mut Vec<Out>) {
        let end = if all {
            self.pending.len()
        } else {
            sentence_end(&self.pending)
        };
        if end == 0 {
            return;
        }
        let piece: String = self.pending.drain(..end).collect();
        let prefix = if self.speaking { "" } else { "sala: " };
        self.speaking = true;
        out.push(Out::Part(format!("{prefix}{piece}")));
    }

    fn finished(&mut self, m: &Message, out: &mut Vec<Out>) {
        if m.role != Role::Assistant {
            return;
        }
        // What the deltas did not bring.
        if let Some(rest) = m.text.get(self.printed..) {
            self.pending.push_str(&sanitize(rest));
        }
        self.speak(true, out);
        out.push(Out::Line(String::new()));
        match m.meta.finish {
            Some(Finish::Stopped) => out.push(Out::Line("(stopped; /continue goes on)".into())),
            Some(Finish::Length) => out.push(Out::Line("(length limit; /continue goes on)".into())),
            Some(Finish::Context) => out.push(Out::Line(
                "(the context is full; /new, /fork or /compact)".into(),
            )),
            Some(Finish::Failed) => out.push(Out::Line(
                "(ended in an error; /regen answers again)".into(),
            )),
            Some(Finish::Stop) | None => {}
        }
    }

    fn activity(&mut self, activity: Activity, out: &mut Vec<Out>) {
        self.waiting = false;
        match &activity {
            Activity::Reading(r) if r.total > 2_000 => {
                let tenth = percent(r.done, r.total) / 10;
                if tenth != self.tenth && tenth < 10 {
                    let left = seconds_left(r)
                        .map_or(String::new(), |s| format!(", {} left", duration(s)));
                    out.push(Out::Line(format!(
                        "Read {} percent of {} tokens{left}.",
                        tenth * 10,
                        grouped(r.total)
                    )));
                }
                self.tenth = tenth;
            }
            _ => self.tenth = 0,
        }
        let idle = activity == Activity::Idle;
        self.activity = activity;
        if idle && self.question.is_none() {
            match self.queue.pop_front() {
                Some(line) => out.extend(self.line(&line)),
                None => out.extend(self.prompt()),
            }
        }
    }

    fn saved(&mut self, state: &SaveState, out: &mut Vec<Out>) {
        let said = match state {
            SaveState::NotSaved(why) => Some(format!("NOT SAVED: {}", sanitize_line(why))),
            SaveState::TextOnly(why) => Some(format!(
                "Text is saved, state is not: {}",
                sanitize_line(why)
            )),
            SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::Off => None,
        };
        if said != self.save_said {
            out.extend(said.clone().map(Out::Line));
            self.save_said = said;
        }
    }
}

/// `1,3-5` as places from 0, of `count` files.
fn numbers(text: &str, count: usize) -> Result<Vec<usize>, String> {
    let mut places = Vec::new();
    for part in text
        .split([',', ' '])
        .map(str::trim)
        .filter(|p| !p.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |t: &str| t.trim().parse::<usize>().ok();
        match (number(first), number(last)) {
            (Some(a), Some(b)) if (1..=b).contains(&a) && b <= count => places.extend(a - 1..b),
            _ => {
                return Err(format!(
                    "{part} is none of the files; write numbers from 1 to {count}, for example 1,3-5"
                ));
            }
        }
    }
    places.sort_unstable();
    places.dedup();
    Ok(places)
}

fn keys(choices: &[Choice]) -> String {
    let name = |k| match k {
        '\n' => "Enter".to_string(),
        '\x1b' => "Esc (e)".to_string(),
        k => k.to_string(),
    };
    choices
        .iter()
        .map(|c| format!("{} {}", name(c.key), c.label))
        .collect::<Vec<_>>()
        .join(", ")
}

/// End of the last complete sentence or line; 0 if none is complete. Very long sentences break at a space.
fn sentence_end(text: &str) -> usize {
    let mut end = 0;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        let ends = c == '\n'
            || matches!(c, '。' | '！' | '？')
            || (c == ' ' && matches!(before, '.' | '!' | '?' | ':'));
        if ends {
            end = i + c.len_utf8();
        }
        before = c;
    }
    if end == 0 && text.len() > SENTENCE {
        text.rfind(' ').map_or(0, |i| i + 1)
    } else {
        end
    }
}

/// Runs line mode until it ends; the exit code.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(home: Option<PathBuf>, desk: DeskHandle) -> io::Result<i32> {
    let (outside_to, outside) = unbounded();
    watch_signals(outside_to)?;
    let (lines_to, lines) = unbounded();
    std::thread::Builder::new()
        .name("lines".into())
        .spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                if lines_to.send(line).is_err() {
                    return;
                }
            }
        })?;
    let mut plain = Plain::new(home);
    let mut dying: Option<(i32, Instant)> = None;
    let mut input: Receiver<String> = lines;
    loop {
        let timeout = dying.map_or(Duration::from_secs(365 * 86_400), |(_, at)| {
            at.saturating_duration_since(Instant::now())
        });
        let out = select! {
            recv(input) -> line => match line {
                Ok(line) => plain.line(&line),
                Err(_) => { input = never(); vec![Out::Send(Request::Quit)] }
            },
            recv(desk.notices) -> notice => match notice {
                Ok(notice) => plain.notice(notice),
                Err(_) => vec![Out::Line("The working thread ended unexpectedly. What was said is saved.".into()), Out::Exit(1)],
            },
            recv(outside) -> what => match what {
                Ok(Outside::Terminate) => { dying = Some((143, Instant::now() + Duration::from_secs(5))); vec![Out::Send(Request::Quit)] }
                Ok(Outside::Hangup) => { dying = Some((129, Instant::now() + Duration::from_secs(1))); vec![Out::Send(Request::Quit)] }
                Ok(Outside::Interrupt) => plain.interrupt(),
                Ok(Outside::Suspend) => {
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                    Vec::new()
                }
                Ok(Outside::Continue) | Err(_) => Vec::new(),
            },
            default(timeout) => vec![Out::Exit(dying.map_or(0, |d| d.0))],
        };
        for o in out {
            let mut stdout = io::stdout().lock();
            match o {
                Out::Line(text) => writeln!(stdout, "{text}")?,
                Out::Part(text) => {
                    write!(stdout, "{text}")?;
                    stdout.flush()?;
                }
                // A desk that is gone is reported by its other channel.
                Out::Send(request) => drop(desk.requests.send(request)),
                Out::Exit(code) => return Ok(dying.map_or(code, |d| d.0)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::{MessageId, MessageMeta};

    fn answer(text: &str, finish: Option<Finish>) -> Message {
        Message {
            id: MessageId(2),
            parent: None,
            role: Role::Assistant,
            text: text.into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta {
                finish,
                ..MessageMeta::default()
            },
        }
    }

    fn printed(out: &[Out]) -> String {
        out.iter()
            .map(|o| match o {
                Out::Line(t) => format!("{t}\n"),
                Out::Part(t) => t.clone(),
                Out::Send(_) | Out::Exit(_) => String::new(),
            })
            .collect()
    }

    #[test]
    fn answers_are_appended_by_sentence_and_never_twice() {
        let mut p = Plain::new(None);
        assert_eq!(
            printed(&p.notice(Notice::Activity(Activity::Idle))),
            "you: "
        );
        assert_eq!(p.line("hello"), [Out::Send(Request::Ask("hello".into()))]);
        p.notice(Notice::Added(answer("", None)));
        let text = "First one. Second \x1b[2J one. Third";
        let mut shown = String::new();
        for c in text.chars() {
            let out = p.notice(Notice::Delta {
                message: MessageId(2),
                thinking: false,
                text: c.into(),
            });
            shown.push_str(&printed(&out));
        }
        assert_eq!(shown, "sala: First one. Second \\x1b[2J one. ");
        shown.push_str(&printed(
            &p.notice(Notice::Finished(answer(text, Some(Finish::Stopped)))),
        ));
        assert_eq!(
            shown,
            "sala: First one. Second \\x1b[2J one. Third\n(stopped; /continue goes on)\n"
        );
    }

    #[test]
    fn lines_wait_while_busy_and_questions_take_the_next_line() {
        let mut p = Plain::new(None);
        assert_eq!(printed(&p.line("early")), "Queued.\n");
        let out = p.notice(Notice::Activity(Activity::Idle));
        assert_eq!(out, [Out::Send(Request::Ask("early".into()))]);
        let choices = vec![
            Choice {
                key: '\n',
                label: "load".into(),
            },
            Choice {
                key: '\x1b',
                label: "cancel".into(),
            },
        ];
        p.notice(Notice::Question {
            id: 4,
            text: "11 files".into(),
            choices,
        });
        assert_eq!(
            p.line(""),
            [Out::Send(Request::Choose {
                question: 4,
                key: '\n'
            })]
        );
        assert_eq!(p.line("/quit"), [Out::Send(Request::Quit)]);
        assert!(printed(&p.line("/lod")).contains("Did you mean /load?"));
    }

    #[test]
    fn files_of_a_plan_are_chosen_by_number() {
        let mut p = Plain::new(None);
        let plan = Notice::Plan {
            id: 7,
            text: "3 files".into(),
            choices: vec![
                Choice {
                    key: 'e',
                    label: "choose files".into(),
                },
                Choice {
                    key: '\x1b',
                    label: "cancel".into(),
                },
            ],
            plan: crate::protocol::desk::LoadPlan {
                files: ["a.txt", "b.txt", "c.txt"]
                    .map(|name| crate::protocol::desk::PlanFile {
                        name: name.into(),
                        tokens: 1_200,
                        kept: false,
                    })
                    .into(),
                ..Default::default()
            },
        };
        let shown = printed(&p.notice(plan.clone()));
        assert!(
            shown.starts_with("1: a.txt, 1,200 tokens\n2: b.txt"),
            "{shown}"
        );
        assert!(printed(&p.line("2-4")).starts_with("2-4 is none of the files"));
        let files = vec![0, 2];
        let question = 7;
        assert_eq!(
            p.line("3, 1"),
            [Out::Send(Request::ChooseFiles { question, files })]
        );
        p.notice(plan);
        assert_eq!(
            p.line("esc"),
            [Out::Send(Request::Choose {
                question: 7,
                key: '\x1b'
            })]
        );
    }

    #[test]
    fn progress_is_a_sentence_each_tenth() {
        let mut p = Plain::new(None);
        let reading = |done| {
            Notice::Activity(Activity::Reading(crate::protocol::desk::ReadingProgress {
                done,
                total: 10_000,
                tokens_per_s: 1_000.0,
                ..Default::default()
            }))
        };
        assert_eq!(printed(&p.notice(reading(500))), "");
        assert_eq!(
            printed(&p.notice(reading(1_200))),
            "Read 10 percent of 10,000 tokens, 0:09 left.\n"
        );
        assert_eq!(printed(&p.notice(reading(1_900))), "");
        assert_eq!(
            printed(&p.notice(reading(5_000))),
            "Read 50 percent of 10,000 tokens, 0:05 left.\n"
        );
    }
}
