//! One entry of the transcript and its rows: a message with its head line, thoughts, text and end mark, or a note.
//!
//! The rows of text come from [`super::markdown`], of a question from `verbatim`; those around it, head, note and end mark, are made
//! in `rows`. Which row stands where is in `layout`.
//!
//! Rows are made for one width and kept; text that arrives only touches the open tail. Foreign text is cleaned on
//! arrival, so everything below works on harmless text with stable offsets.

mod layout;
mod rows;

use std::ops::Range;

use super::keys::Key;
use super::markdown::Stream;
use super::options::{Glyphs, ThinkShow};
use super::rows::Row;
use crate::core::transcript::{Message, Role};
use crate::runtime::protocol::Level;
use crate::text::sanitize::sanitize;
pub(super) use rows::note_rows;
pub(crate) use rows::said_again;

/// What an entry shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A message of the conversation.
    Message(Box<Message>),
    /// A line of the program, not part of the conversation.
    Note {
        /// How loud.
        level: Level,
        /// Cleaned text.
        text: String,
        /// Number of the request it answers, see [`super::transcript::Transcript::replace`].
        request: u64,
    },
}

/// A part of an entry, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Who says it, and when.
    Head,
    /// What was thought before.
    Thoughts,
    /// What is said.
    Text,
    /// How it ended.
    Tail,
    /// The blank row below.
    Gap,
}

/// Whether text still arrives.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Progress {
    /// Complete.
    #[default]
    Done,
    /// An answer without text yet, or with thoughts only.
    Thinking,
    /// The answer itself arrives.
    Answering,
}

/// How an entry is to be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Cells of the column.
    pub cells: usize,
    /// Characters.
    pub glyphs: Glyphs,
    /// Thoughts.
    pub think: ThinkShow,
    /// What answers looked at is shown below them.
    pub looked: bool,
    /// Minutes east of UTC.
    pub utc_offset_min: i32,
    /// Folds and opens thoughts.
    pub fold_key: Option<Key>,
    /// Selects a message.
    pub select_key: Option<Key>,
}

/// Cells the bar before a message takes.
pub const BAR_CELLS: usize = 3;

/// How much of an entry there is: what comes later is behind it, at any width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of cleaned thoughts.
    thoughts: usize,
    /// Bytes of cleaned text.
    text: usize,
    /// No text is being written.
    complete: bool,
}

/// One entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it shows.
    pub item: Item,
    /// `#n`, for messages.
    pub number: u64,
    /// Whether text still arrives.
    pub progress: Progress,
    /// Set by the user; else [`Look::think`] decides.
    pub thoughts_open: Option<bool>,
    /// What is done before it can be written, for example `reading 32,088 tokens  24%`. Shown at the right of the head.
    pub before: String,
    /// How fast it is being written: `96.4 t/s`.
    pub speed: String,
    /// Shown there instead for a while: `Copied 412 characters`.
    remark: Option<String>,
    /// A long question is shown whole.
    unfolded: bool,
    /// Rows of the body that are not shown, and the row that says so.
    fold: Option<(Range<usize>, Row)>,
    look: Option<Look>,
    clean: Option<String>,
    clean_thoughts: Option<String>,
    head: Vec<Row>,
    thoughts: Stream,
    body: Stream,
    tail: Vec<Row>,
    stale: bool,
}

/// A row of an entry as it is painted.
pub struct Line<'a> {
    /// The row.
    pub row: &'a Row,
    /// It stands behind the message's bar.
    pub barred: bool,
    /// It is a thought, one step further in.
    pub thought: bool,
    /// What it is part of.
    pub part: Part,
}

impl Line<'_> {
    /// Cells that stand before the row: the bar, the indentation of thoughts.
    pub fn indent(&self) -> usize {
        if self.barred { BAR_CELLS + if self.thought { 2 } else { 0 } } else { 0 }
    }
}

impl Entry {
    /// An entry for a message that is complete or about to be written.
    pub fn message(message: Message, number: u64, progress: Progress) -> Entry {
        let clean = cleaned(&message.text);
        let clean_thoughts = cleaned(&message.thinking);
        Entry {
            item: Item::Message(Box::new(message)),
            number,
            progress,
            thoughts_open: None,
            before: String::new(),
            speed: String::new(),
            remark: None,
            unfolded: false,
            fold: None,
            look: None,
            clean,
            clean_thoughts,
            head: Vec::new(),
            thoughts: Stream::default(),
            body: Stream::default(),
            tail: Vec::new(),
            stale: true,
        }
    }

    /// An entry for a note.
    pub fn note(level: Level, text: &str, request: u64) -> Entry {
        let message = Message {
            id: crate::core::transcript::MessageId(-1),
            parent: None,
            role: Role::System,
            text: String::new(),
            thinking: String::new(),
            created_ms: 0,
            meta: crate::core::transcript::MessageMeta::default(),
        };
        let mut entry = Entry::message(message, 0, Progress::Done);
        entry.item = Item::Note { level, text: sanitize(text).into_owned(), request };
        entry
    }

    /// The message, if it is one.
    pub fn as_message(&self) -> Option<&Message> {
        match &self.item {
            Item::Message(m) => Some(m),
            Item::Note { .. } => None,
        }
    }

    /// More text.
    pub fn delta(&mut self, thinking: bool, text: &str) {
        let Item::Message(m) = &mut self.item else {
            return;
        };
        let (raw, clean) = if thinking {
            self.progress = Progress::Thinking;
            (&mut m.thinking, &mut self.clean_thoughts)
        } else {
            self.progress = Progress::Answering;
            (&mut m.text, &mut self.clean)
        };
        let piece = sanitize(text);
        match clean {
            Some(c) => c.push_str(&piece),
            None if piece != text => *clean = Some(format!("{raw}{piece}")),
            None => {}
        }
        raw.push_str(text);
        self.stale = true;
    }

    /// Time and tokens of the thoughts so far.
    pub fn thought(&mut self, ms: f64, tokens: u64) {
        if let Item::Message(m) = &mut self.item {
            (m.meta.thought_ms, m.meta.thought_tokens) = (ms, tokens);
            self.stale = true;
        }
    }

    /// The whole message, replacing what the deltas built.
    pub fn complete(&mut self, message: Message) {
        let same = self.as_message().is_some_and(|m| m.text == message.text && m.thinking == message.thinking);
        if !same {
            self.clean = cleaned(&message.text);
            self.clean_thoughts = cleaned(&message.thinking);
            self.look = None;
        }
        self.item = Item::Message(Box::new(message));
        self.progress = Progress::Done;
        self.before.clear();
        self.speed.clear();
        self.stale = true;
    }

    /// Rows have to be made again: something but the text changed.
    pub fn touch(&mut self) {
        self.stale = true;
    }

    /// Sets or takes away the word in the head.
    pub fn remark(&mut self, text: Option<String>) {
        if self.remark != text {
            self.remark = text;
            self.stale = true;
        }
    }

    /// Cleaned texts that can be searched: thoughts that may be shown, and what is said.
    pub fn texts(&self, show: ThinkShow) -> impl Iterator<Item = (Part, &str)> {
        let message = self.as_message();
        let thoughts = message.filter(|_| show != ThinkShow::Hide);
        let thoughts = thoughts.map(|m| (Part::Thoughts, self.clean_thoughts.as_deref().unwrap_or(&m.thinking)));
        // The text of a document is not shown here.
        let text = message.filter(|m| m.role != Role::Document);
        let text = text.map(|m| (Part::Text, self.clean.as_deref().unwrap_or(&m.text)));
        thoughts.into_iter().chain(text)
    }

    /// Opens what hides a part.
    pub fn unfold(&mut self, part: Part) {
        match part {
            Part::Thoughts => self.thoughts_open = Some(true),
            Part::Text if self.fold.is_some() => self.unfolded = true,
            Part::Head | Part::Text | Part::Tail | Part::Gap => return,
        }
        self.stale = true;
    }

    /// Shows a folded question whole, or folds it again; false if it is short.
    pub fn toggle_fold(&mut self) -> bool {
        let can = self.fold.is_some() || self.unfolded;
        if can {
            self.unfolded = !self.unfolded;
            self.stale = true;
        }
        can
    }

    /// Everything has to be rendered again, colours included.
    pub fn reset(&mut self) {
        self.look = None;
    }

    /// Code blocks of the text whose code cannot change any more.
    pub fn code(&self) -> &[super::markdown::CodeBlock] {
        match self.progress {
            Progress::Done => self.body.code(),
            Progress::Thinking | Progress::Answering => &[],
        }
    }

    /// Whether the thoughts are open now.
    pub fn thoughts_are_open(&self, show: ThinkShow) -> bool {
        self.thoughts_open.unwrap_or(match show {
            ThinkShow::Open => true,
            ThinkShow::Fold => self.progress == Progress::Thinking,
            ThinkShow::Hide => false,
        })
    }
}

/// `Some` only if cleaning changed the text.
fn cleaned(text: &str) -> Option<String> {
    match sanitize(text) {
        std::borrow::Cow::Borrowed(_) => None,
        std::borrow::Cow::Owned(clean) => Some(clean),
    }
}

/// Time of day, `14:01`.
pub fn clock(ms: i64, utc_offset_min: i32) -> String {
    let minutes = ms.div_euclid(60_000) + i64::from(utc_offset_min);
    let of_day = minutes.rem_euclid(24 * 60);
    format!("{:02}:{:02}", of_day / 60, of_day % 60)
}

pub use crate::core::grouped;

/// `612k`, `1M`: for meters.
pub fn short_count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..10_000 => format!("{:.1}k", n as f64 / 1e3),
        10_000..1_000_000 => format!("{}k", n / 1000),
        _ if n % 1_000_000 < 100_000 => format!("{}M", n / 1_000_000),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}
