//! The rows of an entry: head, note, end mark and passages around its text; rows by number, and places that survive a
//! change of width.

use std::ops::Range;

use super::super::cells::{ellipsis, width};
use super::super::keys::Key;
use super::super::markdown::{Colours, Growth, Stream, Style, verbatim};
use super::super::options::ThinkShow;
use super::super::rows::{Face, Role as Tone, Row, Span};
use super::super::wrap::wrap_text;
use super::{Anchor, BAR_CELLS, Entry, Item, Line, Look, Part, Progress, clock, grouped};
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::{Finish, Message, Role};
use crate::core::{about, counted};
use crate::runtime::protocol::Level;

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
                if open {
                    self.thoughts.update(&m.thinking, growth, Style { cells: cells.saturating_sub(2), ..style });
                } else {
                    self.thoughts = Stream::default();
                }
                match m.role {
                    Role::Document => self.body = Stream::default(),
                    Role::System | Role::User => self.body = verbatim(&m.text, style),
                    Role::Assistant => self.body.update(&m.text, growth, style),
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
        Some(Line { row, barred, thought: part == Part::Thoughts })
    }

    fn place(&self, i: usize) -> (Part, usize) {
        self.at(i).map_or((Part::Gap, 0), |(part, row)| (part, row.source))
    }

    pub fn anchor_of(&self, row: usize) -> Anchor {
        let (part, source) = self.place(row);
        let nth = (0..row).rev().take_while(|above| self.place(*above) == (part, source)).count();
        (part, source, nth)
    }

    pub fn row_of(&self, anchor: Anchor) -> usize {
        let (part, source, nth) = anchor;
        let before = (0..self.height()).take_while(|i| self.place(*i) < (part, source)).count();
        let same = (before..self.height()).take_while(|i| self.place(*i) == (part, source)).count();
        (before + nth.min(same.saturating_sub(1))).saturating_sub(usize::from(same == 0))
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

pub(in crate::tui) fn note_rows(level: Level, text: &str, look: Look) -> Vec<Row> {
    let (mark, tone) = match level {
        Level::Info => ("  ", Tone::Info),
        Level::Warn => ("! ", Tone::Warn),
        Level::Error => ("!!", Tone::Error),
    };
    let mut rows = wrap_text(text, tone, look.cells.saturating_sub(4).max(8));
    for (i, row) in rows.iter_mut().enumerate() {
        row.spans.insert(0, Span::new(if i == 0 { format!(" {mark} ") } else { "    ".into() }, tone));
    }
    rows
}

fn head_rows(entry: &Entry, m: &Message, look: Look, open: bool) -> Vec<Row> {
    let mut name = m.role.speaker().to_owned();
    if entry.choice > 0 {
        name.push_str(&format!("  answer {}", entry.choice));
    }
    let tone = match m.role {
        Role::System => Tone::Dim,
        Role::User => Tone::You,
        Role::Assistant => Tone::Sala,
        Role::Document => Tone::Document,
    };
    let mut right = vec![format!("#{}", entry.number)];
    right.extend(head_words(entry, m, look));
    let right = ellipsis(&right.join("  "), look.cells.saturating_sub(8));
    let gap = look.cells.saturating_sub(1 + width(&name) + width(&right)).max(1);
    let mut rows = vec![Row::from(vec![
        Span::new(format!(" {name}"), Face::from(tone).bold()),
        Span::new(" ".repeat(gap), Tone::Text),
        Span::new(right, Tone::Dim),
    ])];
    if let Some(d) = &m.meta.document {
        let state = if d.complete { "" } else { ", read in part" };
        let (tokens, lines) = (counted(d.tokens, "token"), counted(d.lines, "line"));
        let line = format!("{}  {tokens}, {lines}{state}", sanitize_line(&d.name));
        rows.append(&mut wrap_text(&line, Tone::Document, look.cells.saturating_sub(BAR_CELLS)));
    }
    if !m.thinking.is_empty() && look.think != ThinkShow::Hide {
        let (mark, does) = if open { ("v", "fold") } else { (">", "open") };
        let how = look.fold_key.map(|key| format!(", {key} to {does}")).unwrap_or_default();
        let text = format!("{mark} thoughts ({}{how})", thought_size(m));
        rows.push(Row::of(ellipsis(&text, look.cells.saturating_sub(BAR_CELLS)), Tone::Dim));
    }
    rows
}

fn thought_size(m: &Message) -> String {
    let mut words = vec![counted(m.thinking.lines().count() as u64, "line")];
    if m.meta.thought_tokens > 0 {
        words.push(counted(m.meta.thought_tokens, "token"));
    }
    if m.meta.thought_ms > 0.0 && m.meta.finish.is_none() {
        words.push(format!("{:.0} s", m.meta.thought_ms / 1e3));
    }
    words.join(", ")
}

fn head_words(entry: &Entry, m: &Message, look: Look) -> Vec<String> {
    let mut right = Vec::new();
    if entry.progress == Progress::Done {
        right.extend((m.created_ms > 0).then(|| clock(m.created_ms, look.utc_offset_min)));
        right.extend((m.meta.thought_ms > 0.0).then(|| format!("thought {:.1} s", m.meta.thought_ms / 1e3)));
        let speed = || format!("{}{:.1} t/s", about(m.meta.estimated), m.meta.tokens_per_s);
        right.extend((m.meta.tokens_per_s > 0.0).then(speed));
    } else {
        right.push(match entry.progress {
            _ if !entry.before.is_empty() => entry.before.clone(),
            Progress::Thinking if !m.thinking.is_empty() => "thinking".into(),
            _ => "answering".into(),
        });
        right.extend(Some(entry.speed.clone()).filter(|speed| !speed.is_empty()));
    }
    if let Some(seed) = m.meta.seed.filter(|_| look.cells >= 90 || entry.choice > 0) {
        right.push(format!("seed {seed}"));
    }
    right
}

pub(crate) fn repeated(m: &Message) -> String {
    let tokens = grouped(m.meta.completion_tokens);
    format!("The answer began to repeat itself; stopped after {tokens} tokens. /continue goes on")
}

fn tail_rows(m: &Message, look: Look) -> Vec<Row> {
    let mut rows = ended_rows(m, look);
    if let Some(sources) = m.meta.looked.as_ref().filter(|_| look.looked) {
        rows.extend(super::super::looked::rows(sources, look.cells.saturating_sub(BAR_CELLS)));
    }
    rows.extend(super::super::looked::quote_rows(&m.meta.quotes, look.cells.saturating_sub(BAR_CELLS)));
    rows
}

fn ended_rows(m: &Message, look: Look) -> Vec<Row> {
    let Some((finish, why)) = m.meta.finish.and_then(|finish| Some((finish, finish.cut_off()?))) else {
        return Vec::new();
    };
    let text = match finish {
        Finish::Repeats => format!("-- {}", repeated(m)),
        Finish::Stopped => format!("-- {why}; /continue goes on, /regen answers again"),
        Finish::Length => format!("-- {why}; /continue goes on"),
        Finish::Context => format!("-- {why}; /new, /fork or /compact"),
        Finish::Failed => format!("-- {why}; /regen answers again"),
        Finish::Stop => return Vec::new(),
    };
    let rows = wrap_text(&text, Tone::Dim, look.cells.saturating_sub(BAR_CELLS));
    rows.into_iter().map(|row| Row { source: usize::MAX, ..row }).collect()
}
