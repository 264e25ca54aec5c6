//! The rows of an entry by number, and places that survive a change of width.

use std::ops::Range;

use super::super::cells::ellipsis;
use super::super::keys::Key;
use super::super::markdown::{Colours, Growth, Stream, Style};
use super::super::rows::{Role as Tone, Row};
use super::super::verbatim;
use super::rows::{head_rows, note_rows, tail_rows};
use super::{Anchor, BAR_CELLS, Entry, Item, Line, Look, Part, Progress};
use crate::core::transcript::{Message, Role};

const QUESTION_ROWS: usize = 16;
const FOLD_AROUND: (usize, usize) = (6, 3);

impl Entry {
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

    fn content_len(&self) -> usize {
        let hidden = self.fold.as_ref().map_or(0, |(hidden, _)| hidden.len() - 1);
        self.head.len() + self.thoughts.rows().len() + self.body.rows().len() + self.tail.len() - hidden
    }

    pub fn height(&self) -> usize {
        self.content_len() + 1
    }

    /// The place at which more text will arrive.
    pub fn end(&self) -> (Part, usize) {
        let text = |clean: &Option<String>, raw: &str| clean.as_ref().map_or(raw.len(), String::len);
        match self.as_message().filter(|_| self.progress != Progress::Done) {
            None => (Part::Gap, 0),
            Some(m) if m.text.is_empty() => (Part::Thoughts, text(&self.clean_thoughts, &m.thinking)),
            Some(m) => (Part::Text, text(&self.clean, &m.text)),
        }
    }

    /// The first row of text added since `end`; the blank last row if there is none.
    pub fn first_since(&self, end: (Part, usize)) -> usize {
        (0..self.content_len()).find(|row| self.place(*row) >= end).unwrap_or(self.content_len())
    }

    /// `None` for the blank last row.
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

    pub fn line(&self, i: usize) -> Option<Line<'_>> {
        let note = matches!(self.item, Item::Note { .. });
        let (part, row) = self.at(i)?;
        let barred = !note && (part != Part::Head || i != 0);
        Some(Line { row, barred, thought: part == Part::Thoughts, part })
    }

    fn place(&self, i: usize) -> (Part, usize) {
        self.at(i).map_or((Part::Gap, 0), |(part, row)| (part, row.source))
    }

    pub fn anchor_of(&self, row: usize) -> Anchor {
        let (part, source) = self.place(row);
        let mut nth = 0;
        while nth < row && self.place(row - nth - 1) == (part, source) {
            nth += 1;
        }
        (part, source, nth)
    }

    pub fn row_of(&self, anchor: Anchor) -> usize {
        let (part, source, nth) = anchor;
        let mut best = 0;
        let mut same = 0;
        for i in 0..self.height() {
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
