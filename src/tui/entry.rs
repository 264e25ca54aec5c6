//! One entry of the transcript and its rows: a message with head, thoughts, text and end mark, or a note.
//!
//! [`super::markdown`] renders answers and questions; `layout` the rows around them, and finds rows by number.
//!
//! Rows are cached for one width; arriving text only renders the open tail again. Rendering sanitizes; the message
//! keeps its original for copying.

mod layout;

use std::ops::Range;

use super::keys::Key;
use super::markdown::Stream;
use super::options::{Glyphs, ThinkShow};
use super::rows::Row;
use crate::core::transcript::{Message, MessageId, Role};
use crate::runtime::protocol::Level;
pub(super) use layout::note_rows;
pub(crate) use layout::repeated;

#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Message(Box<Message>),
    Note { level: Level, text: String, request: u64 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    #[default]
    Head,
    Thoughts,
    Text,
    Tail,
    Gap,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Progress {
    #[default]
    Done,
    Thinking,
    Answering,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub cells: usize,
    pub glyphs: Glyphs,
    pub think: ThinkShow,
    pub looked: bool,
    pub utc_offset_min: i32,
    pub fold_key: Option<Key>,
    pub select_key: Option<Key>,
}

pub const BAR_CELLS: usize = 3;

/// A place that survives a change of width: part, source offset, and the index among rows with that offset.
pub type Anchor = (Part, usize, usize);

impl Default for Item {
    fn default() -> Item {
        Item::Note { level: Level::Info, text: String::new(), request: 0 }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub item: Item,
    pub number: u64,
    /// The place among several answers to choose from, from 1; 0 for other entries.
    pub choice: u64,
    pub progress: Progress,
    pub thoughts_open: Option<bool>,
    /// Work before the answer starts, such as `reading 32,088 tokens  24%`.
    pub before: String,
    pub speed: String,
    unfolded: bool,
    fold: Option<(Range<usize>, Row)>,
    look: Option<Look>,
    head: Vec<Row>,
    thoughts: Stream,
    body: Stream,
    tail: Vec<Row>,
    stale: bool,
}

pub struct Line<'a> {
    pub row: &'a Row,
    pub barred: bool,
    pub thought: bool,
}

impl Entry {
    pub fn message(message: Message, number: u64, progress: Progress) -> Entry {
        let item = Item::Message(Box::new(message));
        Entry { item, number, progress, stale: true, ..Entry::default() }
    }

    pub fn note(level: Level, text: &str, request: u64) -> Entry {
        let item = Item::Note { level, text: text.to_owned(), request };
        Entry { item, stale: true, ..Entry::default() }
    }

    pub fn as_message(&self) -> Option<&Message> {
        match &self.item {
            Item::Message(m) => Some(m),
            Item::Note { .. } => None,
        }
    }

    pub(super) fn is(&self, id: MessageId) -> bool {
        self.as_message().is_some_and(|m| m.id == id)
    }

    pub fn delta(&mut self, thinking: bool, text: &str) {
        let Item::Message(m) = &mut self.item else { return };
        let (progress, whole) = match thinking {
            true => (Progress::Thinking, &mut m.thinking),
            false => (Progress::Answering, &mut m.text),
        };
        whole.push_str(text);
        self.progress = progress;
        self.stale = true;
    }

    pub fn thought(&mut self, ms: f64, tokens: u64) {
        if let Item::Message(m) = &mut self.item {
            (m.meta.thought_ms, m.meta.thought_tokens) = (ms, tokens);
            self.stale = true;
        }
    }

    pub fn complete(&mut self, message: Message) {
        let same = self.as_message().is_some_and(|m| m.text == message.text && m.thinking == message.thinking);
        if !same {
            self.look = None;
        }
        self.item = Item::Message(Box::new(message));
        self.progress = Progress::Done;
        self.before.clear();
        self.speed.clear();
        self.stale = true;
    }

    pub fn touch(&mut self) {
        self.stale = true;
    }

    pub fn texts(&self, show: ThinkShow) -> impl Iterator<Item = (Part, &str)> {
        let message = self.as_message();
        let thoughts = message.filter(|_| show != ThinkShow::Hide);
        let thoughts = thoughts.map(|m| (Part::Thoughts, m.thinking.as_str()));
        // The transcript does not show the text of a document.
        let text = message.filter(|m| m.role != Role::Document);
        thoughts.into_iter().chain(text.map(|m| (Part::Text, m.text.as_str())))
    }

    pub fn unfold(&mut self, part: Part) {
        match part {
            Part::Thoughts => self.thoughts_open = Some(true),
            Part::Text if self.fold.is_some() => self.unfolded = true,
            Part::Head | Part::Text | Part::Tail | Part::Gap => return,
        }
        self.stale = true;
    }

    pub fn toggle_fold(&mut self) -> bool {
        let can = self.fold.is_some() || self.unfolded;
        if can {
            self.unfolded = !self.unfolded;
            self.stale = true;
        }
        can
    }

    pub fn reset(&mut self) {
        self.look = None;
    }

    pub fn code(&self) -> &[super::markdown::CodeBlock] {
        match self.progress {
            Progress::Done => self.body.code(),
            Progress::Thinking | Progress::Answering => &[],
        }
    }

    pub fn thoughts_are_open(&self, show: ThinkShow) -> bool {
        self.thoughts_open.unwrap_or(match show {
            ThinkShow::Open => true,
            ThinkShow::Fold => self.progress == Progress::Thinking,
            ThinkShow::Hide => false,
        })
    }
}

/// `12 Nov 14:01`.
pub fn date(ms: i64, utc_offset_min: i32) -> String {
    local(ms, utc_offset_min, "%e %b %H:%M")
}

pub fn clock(ms: i64, utc_offset_min: i32) -> String {
    local(ms, utc_offset_min, "%H:%M")
}

/// Empty beyond the years that have dates.
fn local(ms: i64, utc_offset_min: i32, format: &str) -> String {
    let time = jiff::Timestamp::from_second(ms.div_euclid(1000) + i64::from(utc_offset_min) * 60);
    time.map_or_else(|_| String::new(), |time| time.strftime(format).to_string())
}

pub use crate::core::grouped;

pub fn short_count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..10_000 => format!("{:.1}k", n as f64 / 1e3),
        10_000..1_000_000 => format!("{}k", n / 1000),
        _ if n % 1_000_000 < 100_000 => format!("{}M", n / 1_000_000),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}
