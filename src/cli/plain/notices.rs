//! What the runtime says, as lines: answers by sentence, progress by tenths, lists and questions.

use super::super::notices;
use super::{OpenQuestion, Out, Plain, keys};
use crate::core::sanitize::{command_word, sanitize, sanitize_line};
use crate::core::transcript::{Finish, Message, Role};
use crate::core::{Exit, counted, percent};
use crate::runtime::protocol::{Activity, Choice, Level, Notice, PlanFile, SaveState};
use crate::tui::entry::grouped;
use crate::tui::status::{duration, seconds_left};

/// The longest piece of an answer that is held back waiting for the end of its sentence.
const SENTENCE: usize = 240;

impl Plain {
    pub fn notice(&mut self, notice: Notice) -> Vec<Out> {
        if let Some(tour) = &mut self.tour {
            tour.notified(&notice);
        }
        let mut out = self.dispatch(notice);
        out.extend(self.go_on());
        let prints = out.iter().any(|o| matches!(o, Out::Line(_) | Out::Part(_)));
        if prints && std::mem::take(&mut self.prompted) {
            out.insert(0, Out::Line(String::new()));
        }
        out
    }

    fn dispatch(&mut self, notice: Notice) -> Vec<Out> {
        let mut out: Vec<Out> = notices::lines(&notice).into_iter().map(Out::Line).collect();
        match notice {
            Notice::Meters(meters) => self.settings_now = meters.settings,
            Notice::Session(view) => {
                self.parallel.clear();
                self.opened = view.opened;
                self.documents = view.tree.documents.into_iter().map(|d| d.name).collect();
                let last = view.messages.last().filter(|m| m.role == Role::Assistant);
                let shown = (view.serial, view.name.clone(), Some(last.map_or(String::new(), |m| m.text.clone())));
                // After its files were read again, a session ends with the same answer.
                if self.shown == shown {
                    return out;
                }
                self.shown = shown;
                if !view.name.is_empty() {
                    let messages = counted(view.messages.len() as u64, "message");
                    out.push(Out::Line(format!("Session {}, {messages}.", sanitize_line(&view.name))));
                }
                out.extend(last.map(|last| Out::Line(format!("sala: {}", sanitize(&last.text)))));
                // A continuation is printed from here on.
                self.printed = last.map_or(0, |m| m.text.len());
                self.pending.clear();
                self.speaking = false;
            }
            Notice::Named { name, opened } => {
                let news = !opened.is_empty() && !self.opened.iter().any(|o| o.name == name);
                self.shown.1.clone_from(&name);
                self.opened = opened;
                if news {
                    out.push(Out::Line(format!("Session {}.", sanitize_line(&name))));
                }
            }
            Notice::Added(m) => {
                self.shown.2 = None;
                self.pending.clear();
                (self.printed, self.speaking, self.thinking) = (0, false, false);
                self.reading_for_question &= m.role != Role::Document;
                if m.role == Role::Assistant && !m.text.is_empty() {
                    // It was written while another session was open.
                    self.printed = m.text.len();
                    self.pending.push_str(&sanitize(&m.text));
                    self.speak(false, &mut out);
                }
                if let Some(d) = m.meta.document.filter(|_| m.role == Role::Document) {
                    let (name, tokens) = (sanitize_line(&d.name), counted(d.tokens, "token"));
                    out.push(Out::Line(format!("document: {name}, {tokens}.")));
                }
            }
            Notice::Several(answers) => {
                out.push(Out::Line(format!("{} answers are being written.", answers.len())));
                self.parallel = answers;
                self.shown.2 = None;
            }
            // Parallel answers are printed when complete.
            Notice::Delta { message, .. } if self.parallel.iter().any(|(id, _)| *id == message) => {}
            Notice::Delta { thinking: true, .. } if !self.thinking => {
                self.thinking = true;
                out.push(Out::Line("sala is thinking.".into()));
            }
            Notice::Delta { thinking: false, text, .. } => {
                self.printed += text.len();
                self.pending.push_str(&sanitize(&text));
                self.speak(false, &mut out);
            }
            Notice::Finished(m) => match self.parallel.iter().enumerate().find(|(_, (id, _))| *id == m.id) {
                Some((at, (_, seed))) => {
                    let seed = seed.map_or(String::new(), |seed| format!(" (seed {seed})"));
                    out.push(Out::Line(format!("answer {}{seed}: {}", at + 1, sanitize(&m.text))));
                    self.ending(&m, &mut out);
                }
                None => self.finished(&m, &mut out),
            },
            Notice::Background { serial, notice } => out.extend(self.background(serial, *notice).map(Out::Line)),
            Notice::Acknowledged(requests) => self.served = requests,
            Notice::Activity(activity) => self.activity(activity, &mut out),
            Notice::Library(names) => self.library = names.into_iter().map(|d| d.name).collect(),
            Notice::Tree(tree) => self.documents = tree.documents.into_iter().map(|d| d.name).collect(),
            Notice::Save(state) => self.saved(&state, &mut out),
            Notice::Note(Level::Warn | Level::Error, _) => self.not_read(&mut out),
            Notice::Question { id, text, mut choices, plan } => {
                if let Some(plan) = plan {
                    // Files are named in another /load here, so `e` stays the short form of Esc.
                    choices.retain(|c| c.key != 'e');
                    let file = |f: &PlanFile| format!("{}, {}", sanitize_line(&f.name), counted(f.tokens, "token"));
                    out.extend(plan.files.iter().map(|f| Out::Line(file(f))));
                    out.push(Out::Line("/load FILE… takes some of them.".into()));
                }
                self.question(id, &text, choices, &mut out);
            }
            Notice::Input { editing, .. } => self.editing = editing,
            Notice::Bye { farewell, unsaved } => {
                // The session of a tour is deleted with it, so the hint to resume it is left out.
                out.extend(farewell.filter(|_| !self.toured).map(|f| Out::Line(sanitize(&f).into_owned())));
                out.push(Out::Exit(unsaved.map_or(Exit::Ok, |u| u.exit)));
            }
            Notice::Fatal { exit, .. } => out.push(Out::Exit(exit)),
            _ => {}
        }
        out
    }

    /// A line about another open session, for events that need attention.
    fn background(&mut self, serial: u64, notice: Notice) -> Option<String> {
        let event = match notice {
            Notice::Session(view) => {
                self.opened = view.opened;
                None
            }
            Notice::Finished(m) if m.role == Role::Assistant => Some("the answer is complete".to_owned()),
            Notice::Finished(m) => m.meta.document.map(|d| format!("{} is read", sanitize_line(&d.name))),
            Notice::Question { .. } => Some("a question waits for you".to_owned()),
            Notice::Note(Level::Error | Level::Warn, text) => Some(sanitize(&text).into_owned()),
            _ => None,
        }?;
        let name = self.opened.iter().find(|o| o.serial == serial).map_or("", |o| o.name.as_str());
        Some(format!("In {}: {event}. /resume {} opens it.", sanitize_line(name), command_word(name)))
    }

    fn question(&mut self, id: u64, text: &str, choices: Vec<Choice>, out: &mut Vec<Out>) {
        out.extend([sanitize(text).into_owned(), keys(&choices)].map(Out::Line));
        self.question = Some(OpenQuestion { id, choices });
    }

    fn speak(&mut self, all: bool, out: &mut Vec<Out>) {
        let end = if all { self.pending.len() } else { sentence_end(&self.pending) };
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
        // Text that no delta contained.
        if let Some(rest) = m.text.get(self.printed..) {
            self.pending.push_str(&sanitize(rest));
        }
        self.speak(true, out);
        out.push(Out::Line(String::new()));
        // A continuation begins a new line.
        self.printed = m.text.len();
        self.shown.2 = Some(m.text.clone());
        self.speaking = false;
        self.ending(m, out);
    }

    fn ending(&self, m: &Message, out: &mut Vec<Out>) {
        let why = match m.meta.finish {
            Some(Finish::Stopped) => "stopped; /continue goes on",
            Some(Finish::Length) => "length limit; /continue goes on",
            Some(Finish::Repeats) => &crate::tui::entry::repeated(m),
            Some(Finish::Context) => "the context is full; /new, /fork or /compact",
            Some(Finish::Failed) => "ended in an error; /regen answers again",
            Some(Finish::Stop) | None => "",
        };
        out.extend((!why.is_empty()).then(|| Out::Line(format!("({why})"))));
        let sources = m.meta.looked.as_ref().filter(|_| !self.looks_hidden);
        out.extend(sources.and_then(crate::tui::looked::sentence).map(Out::Line));
        out.extend(crate::tui::looked::quoted(&m.meta.quotes).map(Out::Line));
    }

    fn activity(&mut self, activity: Activity, out: &mut Vec<Out>) {
        match &activity {
            Activity::Reading(r) if r.total > 2_000 => {
                let tenth = percent(r.done, r.total) / 10;
                if tenth != self.tenth && tenth < 10 {
                    let left = seconds_left(r).map_or(String::new(), |s| format!(", {} left", duration(s)));
                    out.push(Out::Line(format!("Read {} percent of {} tokens{left}.", tenth * 10, grouped(r.total))));
                }
                self.tenth = tenth;
            }
            _ => self.tenth = 0,
        }
        self.activity = activity;
    }

    fn saved(&mut self, state: &SaveState, out: &mut Vec<Out>) {
        if matches!(state, SaveState::Saving) {
            return;
        }
        let shown = notices::save_trouble(state);
        if shown != self.save_shown {
            out.extend(shown.clone().map(Out::Line));
            self.save_shown = shown;
        }
    }
}

/// End of the last complete sentence or line; 0 if none is complete. Very long sentences break at a space.
fn sentence_end(text: &str) -> usize {
    let mut end = 0;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        let ends =
            c == '\n' || matches!(c, '。' | '！' | '？') || (c == ' ' && matches!(before, '.' | '!' | '?' | ':'));
        if ends {
            end = i + c.len_utf8();
        }
        before = c;
    }
    if end == 0 && text.len() > SENTENCE { text.rfind(' ').map_or(0, |i| i + 1) } else { end }
}
