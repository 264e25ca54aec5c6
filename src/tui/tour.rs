//! The guided tour of `sala-chat demo`: the text of each step and the line to enter.
//!
//! It tracks the next step and whether the last one was answered. The full screen puts the line into the input, line
//! mode prints it. The only file that it writes is the log book that two steps are about.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use super::App;
use super::acts::note;
use crate::runtime::protocol::{Activity, Level, Notice};
use crate::text::sample;

#[derive(Debug)]
pub struct Step {
    pub text: &'static str,
    /// `LOG` is replaced by the path of the log book.
    line: &'static str,
}

const fn step(text: &'static str, line: &'static str) -> Step {
    Step { text, line }
}

/// After this step the tour starts the program again.
const RESTARTS: usize = 7;
/// When this step is offered, the log book has grown.
const GROWN: usize = 10;
const LOG_BOOK: &str =
    "# Log book of the lighthouse\n\nOn Monday the lamp was cleaned.\nOn Tuesday the fog horn was repaired.\n";
const LOG_LINE: &str = "On Wednesday two whales passed the harbour.\n";

const STEPS: [Step; 12] = [
    step(
        "A tour of one minute. sala-chat reads documents whole and keeps what it has read. First a sample, a page about a lighthouse.",
        "/load sample:lighthouse.md",
    ),
    step(
        "Now ask. The small built-in model answers by quoting the place; the 9B model answers freely.",
        sample::QUESTIONS[0],
    ),
    step(
        "Where does that come from? This lists the passages that the model looked at while it answered: measured, not claimed.",
        "/look",
    ),
    step("One more question.", sample::QUESTIONS[1]),
    step("Nothing is lost by going back: this takes the last question back. Nothing is read again.", "/undo"),
    step(
        "A fork is a second conversation from here. Both share what was read, so it takes no time.",
        "/fork second-thoughts",
    ),
    step("Ask something else in it; the first conversation stays as it is.", "Who was the last keeper?"),
    step("Now leave. What was said and read is on disk already. The tour starts the program again.", "/quit"),
    step(
        "The program was started again with -c. The conversation is back, and no document was read again. Ask it.",
        "When does the boat leave?",
    ),
    step("Files change. /follow reads a file or a folder and notices its changes; here a log book.", "/follow LOG"),
    step(
        "A line was just added to the log book. The next question reads that line alone, not the file again.",
        "/since What passed the harbour?",
    ),
    step(
        "That was the tour. Load your own documents with /load or sala-chat FILE. Nothing of this stays unless you /export it.",
        "/quit",
    ),
];

const KEYS: &str = "Enter continues, Esc leaves the tour.";
const KEYS_OF_LAST: &str = "Enter ends the program, Esc stays in it.";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tour {
    at: usize,
    pub offered: bool,
    unanswered: bool,
    log: PathBuf,
}

impl Tour {
    /// A tour that keeps its log book at `log`.
    pub fn new(log: PathBuf) -> io::Result<Tour> {
        fs::write(&log, LOG_BOOK)?;
        Ok(Tour { log, ..Tour::default() })
    }

    pub fn step(&self) -> Option<&'static Step> {
        STEPS.get(self.at)
    }

    pub fn text(&self) -> Option<String> {
        let shown = if self.unanswered { self.at.saturating_sub(1) } else { self.at };
        let (step, all) = (STEPS.get(shown)?, STEPS.len());
        let keys = if shown + 1 == all { KEYS_OF_LAST } else { KEYS };
        Some(format!("TOUR {}/{all}  {} {keys}", shown + 1, step.text))
    }

    pub fn restarts(&self) -> bool {
        self.at == RESTARTS + 1
    }

    /// The line of the next step.
    pub fn line(&self) -> Option<String> {
        Some(self.step()?.line.replace("LOG", &self.log.display().to_string()))
    }

    /// The line of the next step, once.
    pub fn offer(&mut self) -> Option<String> {
        if self.offered || self.unanswered {
            return None;
        }
        self.offered = true;
        if self.at == GROWN {
            // If this fails, `/since` reports that nothing changed.
            let _ =
                fs::OpenOptions::new().append(true).open(&self.log).and_then(|mut f| f.write_all(LOG_LINE.as_bytes()));
        }
        self.line()
    }

    pub fn entered(&mut self, line: &str) {
        if self.line().is_some_and(|expected| expected.trim() == line.trim()) {
            self.at += 1;
        }
        (self.offered, self.unanswered) = (false, true);
    }

    pub fn notified(&mut self, notice: &Notice) {
        let more_follows = match notice {
            Notice::Activity(activity) => *activity != Activity::Idle,
            Notice::Added(_) | Notice::Delta { .. } | Notice::Finished(_) | Notice::Session(_) | Notice::Display(_) => {
                true
            }
            notice => {
                super::acts::answers_nothing(notice)
                    && !matches!(notice, Notice::Acknowledged(_) | Notice::Background { .. })
            }
        };
        self.unanswered &= more_follows;
    }

    pub fn restarted(self) -> Tour {
        Tour { offered: false, unanswered: false, ..self }
    }
}

pub(super) fn offer(app: &mut App) {
    let free = !app.busy() && app.model.is_some() && app.overlay.is_none() && app.questions.is_empty();
    if !free || !app.open.queue.lines.is_empty() {
        return;
    }
    if let Some(line) = app.tour.as_mut().and_then(Tour::offer) {
        app.open.composer.set(&line);
    }
}

pub(super) fn leave(app: &mut App) -> bool {
    let Some(tour) = app.tour.take() else { return false };
    if tour.offered {
        app.open.composer.clear_to_cut();
    }
    note(
        app,
        Level::Info,
        "You left the tour. Nothing of this session is kept unless you /export it; /quit ends, sala-chat starts one of your own.",
    );
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::commands;
    use crate::runtime::protocol::Activity;

    #[test]
    fn every_step_is_a_question_or_a_command_that_is_understood() {
        for step in &STEPS {
            if commands::is_command(step.line) {
                commands::parse(step.line, None).unwrap_or_else(|why| panic!("{}: {why}", step.line));
            }
        }
        assert_eq!(STEPS[0].line, format!("/load {}", sample::PATH));
        assert!(STEPS.last().is_some_and(|s| s.line == "/quit") && STEPS[RESTARTS].line == "/quit");
        assert!(STEPS[GROWN - 1].line == "/follow LOG" && STEPS[GROWN].line.starts_with("/since"));
    }

    #[test]
    fn a_step_is_done_when_its_line_is_entered_and_answered() {
        let mut tour = Tour::default();
        assert_eq!(tour.offer().as_deref(), Some("/load sample:lighthouse.md"));
        assert_eq!(tour.offer(), None, "it is offered already");
        tour.entered("/docs");
        assert_eq!(tour.offer(), None, "nothing was said to /docs yet");
        tour.notified(&Notice::Activity(Activity::Idle));
        assert_eq!(tour.offer().as_deref(), Some("/load sample:lighthouse.md"), "another line is no step");
        tour.entered("/load sample:lighthouse.md");
        tour.notified(&Notice::Note(Level::Info, "Read it.".into()));
        assert_eq!(tour.offer().as_deref(), Some(sample::QUESTIONS[0]));
    }

    #[test]
    fn it_ends_once_in_the_middle_and_once_at_the_end() {
        let (mut tour, mut restarts) = (Tour::default(), 0);
        while let Some(step) = tour.step() {
            let ends = step.line == "/quit" && restarts == 1;
            let says = |what| tour.text().is_some_and(|text| text.contains(what));
            assert_eq!((says("Enter continues"), says("Enter ends the program")), (!ends, ends), "{step:?}");
            tour.entered(&tour.line().unwrap_or_default());
            restarts += usize::from(tour.restarts());
            tour = tour.restarted();
        }
        assert_eq!((restarts, tour.restarts()), (1, false));
    }
}
