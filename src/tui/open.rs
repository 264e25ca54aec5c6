//! The sessions opened in this run: what each has of its own, and which one is on screen.
//!
//! `switch` opens another one, `background` applies notices about those off screen.

mod background;
mod switch;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::composer::Composer;
use super::find::Find;
use super::transcript::Transcript;
use crate::core::transcript::{LONGEST_PROMPT, MessageId, Role};
use crate::runtime::protocol::{Notice, OpenSession, SessionView};
pub(super) use background::background;
use switch::Leaving;
pub(super) use switch::{arrived, go, leave, split, switch_side};

const SPLIT_FROM: u16 = 160;
const UNNAMED: &str = "new session";

/// What the header shows of a session off screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    #[default]
    Quiet,
    Working,
    Reading(u64),
    Asks,
    Done,
    Failed,
}

impl Mark {
    pub fn text(self) -> String {
        match self {
            Mark::Quiet => String::new(),
            Mark::Working => "~".into(),
            Mark::Reading(percent) => format!("{percent}%"),
            Mark::Asks => "?".into(),
            Mark::Done => "*".into(),
            Mark::Failed => "!".into(),
        }
    }

    fn at_work(self) -> bool {
        matches!(self, Mark::Working | Mark::Reading(_) | Mark::Asks)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    pub line: String,
    pub edits: Option<MessageId>,
}

#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub lines: VecDeque<Queued>,
    pub held: bool,
}

/// One session and all that belongs to it.
#[derive(Debug, Default)]
pub struct Session {
    /// 0 until the runtime opens one.
    pub(super) serial: u64,
    name: String,
    /// Without its messages, which the transcript has.
    pub view: SessionView,
    pub transcript: Transcript,
    pub find: Option<Find>,
    pub composer: Composer,
    /// The message that the input edits.
    pub editing: Option<MessageId>,
    pub queue: Queue,
    /// The draft that the runtime has.
    pub(super) kept: String,
    /// Files are read for the first queued question.
    pub(super) reading: bool,
    /// Since when it works.
    pub(super) since: Option<u64>,
    /// A page that arrived while the session was off screen.
    pub(super) held: Option<Notice>,
    mark: Mark,
    news: bool,
    refused: Option<String>,
}

impl Session {
    /// The draft to save if it differs from the runtime's. One above the size limit is not saved; the last one stays.
    pub(super) fn unkept(&mut self) -> Option<String> {
        let text = self.composer.expanded();
        let text = if text.trim().is_empty() { String::new() } else { text };
        if text == self.kept || text.len() > LONGEST_PROMPT {
            return None;
        }
        self.kept.clone_from(&text);
        Some(text)
    }

    /// Applies a notice about the messages.
    pub(super) fn take_message(&mut self, notice: Notice) {
        match notice {
            Notice::Added(message) | Notice::Finished(message) => {
                self.reading &= message.role != Role::Document;
                self.transcript.add(message);
            }
            Notice::Delta { message, thinking, text } => {
                self.transcript.grew();
                if let Some(entry) = self.transcript.find(message) {
                    entry.delta(thinking, &text);
                }
            }
            _ => {}
        }
    }

    pub(super) fn seen(&mut self) {
        if self.mark == Mark::Done {
            (self.mark, self.news) = (Mark::Quiet, false);
        }
    }

    /// Keys must not act on a transcript that is hidden or replaced.
    pub(super) fn forget_places(&mut self) {
        self.transcript.deselect();
        self.find = None;
    }
}

pub(super) fn called(name: &str) -> &str {
    if name.is_empty() { UNNAMED } else { name }
}

/// The opened sessions in the order of opening. Dereferences to the one on screen.
#[derive(Debug)]
pub struct Sessions {
    /// Never empty.
    list: Vec<Session>,
    at: usize,
    /// The sessions that were left, the last one at the end.
    left: Vec<u64>,
    /// Shown at the side.
    second: Option<u64>,
    /// Selected by a key, so the draft stays with the old session.
    pub(super) wanted: Option<u64>,
    leaving: Option<Leaving>,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions { list: vec![Session::default()], at: 0, left: Vec::new(), second: None, wanted: None, leaving: None }
    }
}

impl Deref for Sessions {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.list[self.at]
    }
}

impl DerefMut for Sessions {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.list[self.at]
    }
}

impl Sessions {
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, Mark)> {
        self.list.iter().map(|s| (s.name.as_str(), s.mark))
    }

    /// The index of the session on screen.
    pub fn place(&self) -> usize {
        self.at
    }

    pub fn news(&self) -> String {
        let others = self.names().enumerate().filter(|(_, (_, mark))| *mark != Mark::Quiet);
        let marks = others.map(|(i, (_, mark))| match mark {
            Mark::Reading(_) => format!("{} {}", i + 1, mark.text()),
            _ => format!("{}{}", i + 1, mark.text()),
        });
        marks.collect::<Vec<_>>().join("  ")
    }

    fn place_of(&self, serial: u64) -> Option<usize> {
        self.list.iter().position(|s| s.serial == serial)
    }

    fn off_screen(&mut self, serial: u64) -> Option<&mut Session> {
        let at = self.place_of(serial).filter(|at| *at != self.at)?;
        self.list.get_mut(at)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &Session> {
        self.list.iter().enumerate().filter(|(i, _)| *i != self.at).map(|(_, session)| session)
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Session> {
        self.list.iter_mut()
    }

    fn place_at_side(&self, width: u16) -> Option<usize> {
        self.place_of(self.second.filter(|_| width >= SPLIT_FROM)?).filter(|at| *at != self.at)
    }

    /// Whether this session is left of the second one; `None` without one. The one opened first is on the left.
    pub fn is_left(&self, width: u16) -> Option<bool> {
        self.place_at_side(width).map(|other| self.at < other)
    }

    /// Number, name, state and text of the session at the side.
    pub fn other(&self, width: u16) -> Option<(usize, &str, Mark, &Transcript)> {
        let at = self.place_at_side(width)?;
        self.list.get(at).map(|s| (at + 1, called(&s.name), s.mark, &s.transcript))
    }

    pub(super) fn at_side(&mut self, width: u16) -> Option<&mut Session> {
        let at = self.place_at_side(width)?;
        self.list.get_mut(at)
    }

    pub(super) fn at_work(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|(_, mark)| mark.at_work()).map(|(name, _)| called(name))
    }

    /// The lines of all sessions that wait to be sent.
    pub(super) fn unsent(&self) -> impl Iterator<Item = &String> {
        // The session on screen has no refused line: the input has it.
        self.list.iter().flat_map(|s| s.queue.lines.iter().map(|queued| &queued.line).chain(&s.refused))
    }

    /// Drafts of the sessions off screen.
    pub(super) fn drafts(&self) -> impl Iterator<Item = String> {
        self.others().map(|s| s.composer.expanded()).filter(|text| !text.trim().is_empty())
    }

    /// Adopts the runtime's list and drops the sessions that are closed.
    pub(super) fn set_list(&mut self, opened: Vec<OpenSession>) {
        let mut before: Vec<Session> = std::mem::take(&mut self.list);
        let shown = before.swap_remove(self.at);
        let serial = shown.serial;
        let mut shown = Some(shown);
        for OpenSession { serial: of, name } in opened {
            let known = before.iter().position(|s| s.serial == of).map(|at| before.swap_remove(at));
            let session = if of == serial { shown.take() } else { known };
            self.list.push(Session { serial: of, name, ..session.unwrap_or_default() });
        }
        self.list.extend(shown);
        self.at = self.place_of(serial).unwrap_or(0);
        let open = |serial: &u64| self.list.iter().any(|s| s.serial == *serial);
        self.second = self.second.filter(open);
        self.left.retain(open);
    }
}
