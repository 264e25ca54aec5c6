//! One entry of the transcript and its rows: a message with its head line, thoughts, text and end mark, or a note.
//!
//! The rows of text come from [`super::markdown`], of a question from `verbatim`; those around it, head, note and end mark, are
//! made in `rows`.
//!
//! Rows are made for one width and kept; text that arrives only touches the open tail. Foreign text is cleaned on
//! arrival, so everything below works on harmless text with stable offsets.

mod rows;

use std::ops::Range;

use super::cells::ellipsis;
use super::keys::Key;
use super::markdown::{Colours, Growth, Stream, Style};
use super::options::{Glyphs, ThinkShow};
use super::rows::{Role as Tone, Row};
use super::verbatim;
use crate::protocol::desk::Level;
use crate::text::sanitize::sanitize;
use crate::transcript::{Message, Role};
pub(super) use rows::note_rows;
pub(crate) use rows::said_again;
use rows::{head_rows, tail_rows};

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
            id: crate::transcript::MessageId(-1),
            parent: None,
            role: Role::System,
            text: String::new(),
            thinking: String::new(),
            created_ms: 0,
            meta: crate::transcript::MessageMeta::default(),
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

    /// Makes the rows for `look`, doing no more than needed.
    pub fn ensure(&mut self, look: Look, colours: &Colours) {
        let fresh = self.look != Some(look);
        if !fresh && !self.stale {
            return;
        }
        if fresh {
            self.thoughts = Stream::default();
            self.body = Stream::default();
        }
        self.look = Some(look);
        self.stale = false;
        let cells = look.cells.saturating_sub(BAR_CELLS).max(8);
        let style = Style { cells, glyphs: look.glyphs, colours };
        match &self.item {
            Item::Note { level, text, .. } => self.head = note_rows(*level, text, look),
            Item::Message(m) => {
                let growth = if self.progress == Progress::Done { Growth::Closed } else { Growth::Open };
                let open = self.thoughts_are_open(look.think);
                let thoughts = self.clean_thoughts.as_deref().unwrap_or(&m.thinking);
                if open {
                    self.thoughts.update(thoughts, growth, Style { cells: cells.saturating_sub(2), ..style });
                } else {
                    self.thoughts = Stream::default();
                }
                let text = self.clean.as_deref().unwrap_or(&m.text);
                match m.role {
                    Role::Document => self.body = Stream::default(),
                    Role::System | Role::User => self.body = verbatim::render(text, style),
                    Role::Assistant => self.body.update(text, growth, style),
                }
                self.fold = folded(m, self.body.rows(), self.unfolded, cells, look.select_key);
                self.head = head_rows(self, m, look, open);
                self.tail = tail_rows(m, look);
            }
        }
    }

    /// Rows, without the blank one that follows every entry.
    fn content_len(&self) -> usize {
        let hidden = self.fold.as_ref().map_or(0, |(hidden, _)| hidden.len() - 1);
        self.head.len() + self.thoughts.rows().len() + self.body.rows().len() + self.tail.len() - hidden
    }

    /// Number of rows, after [`Entry::ensure`].
    pub fn len(&self) -> usize {
        self.content_len() + 1
    }

    /// Never: an entry has at least its blank row.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Part and row in it; `None` for the blank row at the end.
    fn at(&self, i: usize) -> Option<(Part, &Row)> {
        let mut i = i;
        let body = self.body.rows();
        let (above, below) = match &self.fold {
            Some((hidden, _)) => (&body[..hidden.start], &body[hidden.end..]),
            None => (body, &[][..]),
        };
        let fold = self.fold.as_ref().map_or(&[][..], |(_, row)| std::slice::from_ref(row));
        let parts = [
            (Part::Head, &self.head[..]),
            (Part::Thoughts, self.thoughts.rows()),
            (Part::Text, above),
            (Part::Text, fold),
            (Part::Text, below),
            (Part::Tail, &self.tail),
        ];
        for (part, rows) in parts {
            if let Some(row) = rows.get(i) {
                return Some((part, row));
            }
            i -= rows.len();
        }
        None
    }

    /// Row `i`; `None` for the blank one at the end.
    pub fn line(&self, i: usize) -> Option<Line<'_>> {
        let note = matches!(self.item, Item::Note { .. });
        let (part, row) = self.at(i)?;
        let barred = !note && (part != Part::Head || i != 0);
        Some(Line { row, barred, thought: part == Part::Thoughts, part })
    }

    /// `(part, source offset)` of a row: a place that survives a change of width.
    fn place(&self, i: usize) -> (Part, usize) {
        self.at(i).map_or((Part::Gap, 0), |(part, row)| (part, row.source))
    }

    /// A place that survives a change of width: part, source offset, and which of the rows with that offset.
    pub fn anchor_of(&self, row: usize) -> (Part, usize, usize) {
        let (part, source) = self.place(row);
        let mut nth = 0;
        while nth < row && self.place(row - nth - 1) == (part, source) {
            nth += 1;
        }
        (part, source, nth)
    }

    /// The row that shows a place.
    pub fn row_of(&self, anchor: (Part, usize, usize)) -> usize {
        let (part, source, nth) = anchor;
        let mut best = 0;
        let mut same = 0;
        for i in 0..self.len() {
            let place = self.place(i);
            if place > (part, source) {
                break;
            }
            if place == (part, source) {
                if same > nth {
                    break;
                }
                same += 1;
            }
            best = i;
        }
        best
    }
}

/// Rows a question may take before its middle is folded away (a pasted text, most likely).
const QUESTION_ROWS: usize = 16;
/// Rows shown above and below the fold.
const FOLD_AROUND: (usize, usize) = (6, 3);

/// The rows of a long question that are not shown, and the row that stands for them.
fn folded(m: &Message, rows: &[Row], unfolded: bool, cells: usize, key: Option<Key>) -> Option<(Range<usize>, Row)> {
    if m.role != Role::User || unfolded || rows.len() <= QUESTION_ROWS {
        return None;
    }
    let hidden = FOLD_AROUND.0..rows.len() - FOLD_AROUND.1;
    let source = rows.get(hidden.start)?.source;
    let how = key.map(|key| format!(" ({key} selects the message, Enter shows them)")).unwrap_or_default();
    let text = format!("... {} more rows{how}", hidden.len());
    Some((hidden, Row { source, ..Row::of(ellipsis(&text, cells), Tone::Dim) }))
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

pub use crate::base::grouped;

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
