//! Alternative answers in a grid in place of the transcript. The input below stays active.

use ratatui::layout::Rect;

use super::App;
use super::entry::{BAR_CELLS, Entry, Look, Progress};
use super::keys::{Action, Code, Key};
use super::markdown::Colours;
use super::options::{Glyphs, ThinkShow};
use super::paint::Painter;
use super::rows::{Face, Role, Row};
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role as Speaker};

const COLUMN: usize = 36;
const LEAST_ROWS: usize = 3;
const GAP: usize = 3;

#[derive(Clone, Debug, Default)]
pub struct Several {
    answers: Vec<Entry>,
    seeds: Vec<Option<u64>>,
    top: usize,
    first: usize,
    size: (usize, usize),
}

impl Several {
    pub fn new(answers: &[(MessageId, Option<u64>)]) -> Several {
        let empty = |(number, (id, _)): (u64, &(MessageId, Option<u64>))| {
            let meta = MessageMeta::default();
            let (text, thinking) = (String::new(), String::new());
            let message =
                Message { id: *id, parent: None, role: Speaker::Assistant, text, thinking, created_ms: 0, meta };
            Entry::message(message, number, Progress::Thinking)
        };
        let seeds = answers.iter().map(|(_, seed)| *seed).collect();
        Several { answers: (1..).zip(answers).map(empty).collect(), seeds, ..Several::default() }
    }

    pub(super) fn find(&mut self, id: MessageId) -> Option<&mut Entry> {
        self.answers.iter_mut().find(|a| a.is(id))
    }

    fn done(&self) -> bool {
        self.answers.iter().all(|a| a.progress == Progress::Done)
    }

    /// Columns, rows, and how many rows are shown.
    fn grid(&self) -> (usize, usize, usize) {
        let most = ((self.size.0 + GAP) / (COLUMN + GAP)).max(1);
        let columns = self.answers.len().clamp(1, most);
        let rows = self.answers.len().div_ceil(columns).max(1);
        (columns, rows, rows.min(self.size.1 / LEAST_ROWS).max(1))
    }

    fn place(&self) -> (usize, usize) {
        let (columns, _, shown) = self.grid();
        (((self.size.0 + GAP) / columns).saturating_sub(GAP).max(1), (self.size.1 / shown).max(2))
    }

    pub(super) fn set_size(&mut self, width: usize, height: usize) {
        self.size = (width.saturating_sub(2), height.saturating_sub(2));
    }

    pub(super) fn prepare(&mut self, glyphs: Glyphs) {
        let (cells, _) = self.place();
        let look = Look { cells: cells + BAR_CELLS, glyphs, think: ThinkShow::Hide, ..Look::default() };
        self.answers.iter_mut().for_each(|a| a.ensure(look, &Colours::default()));
        self.scroll(0);
    }

    fn footer(&self) -> &'static str {
        let (_, rows, shown) = self.grid();
        match (self.done(), rows > shown) {
            (true, false) => "Up/Down PgUp/PgDn scroll",
            (true, true) => "Up/Down scroll   PgUp/PgDn other answers",
            (false, false) => "answering   Esc stops",
            (false, true) => "answering   Esc stops   PgUp/PgDn other answers",
        }
    }

    fn turn(&mut self, pages: isize) {
        let (_, rows, shown) = self.grid();
        let by = |rows: usize| pages.saturating_mul(isize::try_from(rows).unwrap_or(1));
        if rows > shown {
            self.first = self.first.saturating_add_signed(by(shown));
            self.top = 0;
            self.scroll(0);
        } else {
            self.scroll(by(self.place().1.saturating_sub(2).max(1)));
        }
    }

    pub(super) fn scroll(&mut self, by: isize) {
        let (_, rows, shown) = self.grid();
        self.first = self.first.min(rows - shown);
        let room = self.place().1 - 1;
        let most = self.answers.iter().map(|a| a.body().len().saturating_sub(room)).max().unwrap_or(0);
        self.top = self.top.saturating_add_signed(by).min(most);
    }

    /// Column and row in the grid, heading, and visible rows of each answer; an answer in progress shows its end.
    pub fn shown(&self) -> impl Iterator<Item = (usize, usize, String, &[Row])> {
        let (columns, _, shown) = self.grid();
        let (first, room) = (self.first, self.place().1 - 1);
        let in_sight = self.answers.iter().enumerate().skip(first * columns).take(shown * columns);
        in_sight.map(move |(i, a)| {
            let message = a.as_message();
            let state = match (a.progress, message.and_then(|m| m.meta.finish)) {
                (Progress::Thinking, _) if message.is_some_and(|m| m.thinking.is_empty()) => "waiting",
                (Progress::Thinking, _) => "thinking",
                (Progress::Answering, _) => "writing",
                (Progress::Done, finish) => finish.unwrap_or(Finish::Failed).cut_off().unwrap_or_default(),
            };
            let end = a.body().len().saturating_sub(room);
            let top = if a.progress == Progress::Done { self.top.min(end) } else { end };
            let rows = a.body().get(top..).map_or(&[][..], |rows| &rows[..room.min(rows.len())]);
            let seed = self.seeds[i].map_or(String::new(), |seed| format!("  seed {seed}"));
            (i % columns, i / columns - first, format!("{}{seed}  {state}", i + 1), rows)
        })
    }

    pub(super) fn draw(&self, painter: &mut Painter<'_>, area: Rect) {
        painter.text(area, 0, " Answers side by side", Role::Heading);
        painter.text(area, area.height.saturating_sub(1), &format!(" {}", self.footer()), Role::Dim);
        let (cells, rows) = self.place();
        let number = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let bottom = area.bottom().saturating_sub(1);
        for (column, row, heading, shown) in self.shown() {
            let x = area.x.saturating_add(1).saturating_add(number(column * (cells + GAP)));
            let y = area.y.saturating_add(1).saturating_add(number(row * rows));
            if x >= area.right() || y >= bottom {
                continue;
            }
            let place = Rect { x, y, width: number(cells).min(area.right() - x), height: number(rows).min(bottom - y) };
            painter.text(place, 0, &heading, Face::from(Role::Key).bold());
            painter.rows(place, 1, 0, shown);
        }
    }
}

/// Scrolling keys move the answers, all others reach the input.
pub(super) fn key(app: &mut App, key: Key) -> bool {
    let idle = !app.has_work();
    let open = &mut *app.open;
    let (several, composer) = (&mut open.several, &open.composer);
    let Some(grid) = several else { return false };
    let action = app.config.keys.action(key);
    match (action, key.code) {
        (Some(Action::Escape), _) if idle && grid.done() => *several = None,
        (Some(Action::PageUp), _) => grid.turn(-1),
        (Some(Action::PageDown), _) => grid.turn(1),
        (Some(Action::Top), _) => grid.turn(isize::MIN),
        (Some(Action::Follow), _) => grid.turn(isize::MAX),
        (_, Code::Up) if composer.is_empty() => grid.scroll(-1),
        (_, Code::Down) if composer.is_empty() => grid.scroll(1),
        (Some(Action::PrevMessage | Action::NextMessage | Action::Find | Action::Thinking), _) => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_a_place_for_each_within_the_area() {
        for (width, height) in [(78, 17), (158, 43), (36, 5), (20, 9)] {
            for n in 1..=9 {
                let ids: Vec<(MessageId, Option<u64>)> = (1..=n).map(|i| (MessageId(i), Some(7))).collect();
                let mut several = Several::new(&ids);
                several.find(MessageId(1)).unwrap().delta(false, "word ".repeat(200).as_str());
                several.set_size(width + 2, height + 2);
                several.prepare(Glyphs::Unicode);
                let (cells, rows) = several.place();
                for (column, row, _, shown) in several.shown() {
                    assert!(column * (cells + GAP) + cells <= width, "{width} {n} {cells}");
                    assert!(shown.len() < rows && (row + 1) * rows <= height, "{height} {n} {rows}");
                }
                // Scrolling reaches every answer.
                let mut seen = std::collections::BTreeSet::new();
                for _ in 0..n {
                    seen.extend(several.shown().map(|(.., heading, _)| heading));
                    several.turn(1);
                }
                assert_eq!(seen.len() as i64, n, "{width}x{height}: {seen:?}");
            }
        }
    }
}
