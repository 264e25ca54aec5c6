//! The context as cells: the kind of text in each, and its share of the last answer's attention.

use ratatui::layout::Rect;

use super::cells::ellipsis;
use super::entry::grouped;
use super::looked::named;
use super::paint::Painter;
use super::rows::{Face, Role, Span};
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::Sources;
use crate::runtime::protocol::{ContextMap, Place, Request, Stretch};

const LOOKED: f64 = 0.01;
const LEGEND: &str = "S system  D document  T turn  1-3 the passages  bright: looked at";

#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub from: u64,
    pub to: u64,
    pub stretch: Option<usize>,
    pub share: f64,
    pub passage: Option<usize>,
}

impl Cell {
    /// `S`, `D`, `T`, `.`, or the number of a passage.
    pub fn letter(&self, map: &ContextMap) -> char {
        let digit = self.passage.and_then(|p| u32::try_from(p + 1).ok()).and_then(|n| char::from_digit(n, 10));
        let kind = self.stretch.and_then(|i| map.stretches.get(i)).map(|s| match s.place {
            Place::System => 'S',
            Place::Document => 'D',
            Place::Turn => 'T',
        });
        digit.or(kind).unwrap_or('.')
    }

    fn is_looked_at(&self) -> bool {
        self.share >= LOOKED
    }

    fn face(&self) -> Face {
        match (self.passage.is_some(), self.is_looked_at()) {
            (true, _) => Face::from(Role::Key).bold(),
            (false, true) => Face::from(Role::Text).bold(),
            (false, false) => Role::Dim.into(),
        }
    }
}

pub(super) fn spans(map: &ContextMap, cells: &[Cell]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for cell in cells {
        let (letter, face) = (cell.letter(map), cell.face());
        match spans.last_mut().filter(|s| s.face == face) {
            Some(span) => span.text.push(letter),
            None => spans.push(Span::new(letter.to_string(), face)),
        }
    }
    spans
}

/// Cuts `tokens` tokens of the context into at most `most` cells, none smaller than a block.
pub fn cells(map: &ContextMap, tokens: u64, most: usize) -> Vec<Cell> {
    let block = u64::from(map.block_tokens.max(64));
    let per_cell = tokens.div_ceil(most.max(1) as u64).max(block).next_multiple_of(block);
    let shown = Sources { passages: map.passages.clone(), ..Sources::default() };
    let numbered = named(&shown).count();
    let mut cells: Vec<Cell> = (0..tokens.div_ceil(per_cell))
        .map(|n| {
            let (from, to) = (n * per_cell, ((n + 1) * per_cell).min(tokens));
            let overlap = |s: &Stretch| s.to.min(to).saturating_sub(s.from.max(from));
            let most = map.stretches.iter().enumerate().max_by_key(|(_, s)| overlap(s));
            let stretch = most.filter(|(_, s)| overlap(s) > 0).map(|(i, _)| i);
            let holds = |p: usize| {
                let passage = &map.passages[p];
                let last = (u64::from(passage.last_block) + 1) * block;
                u64::from(passage.first_block) * block < to && last > from
            };
            Cell { from, to, stretch, share: 0.0, passage: (0..numbered).find(|p| holds(*p)) }
        })
        .collect();
    for (b, share) in &map.looked {
        let at = usize::try_from(u64::from(*b) * block / per_cell).unwrap_or(usize::MAX);
        if let Some(cell) = cells.get_mut(at) {
            cell.share += f64::from(*share) / 1e4;
        }
    }
    cells
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapView {
    pub map: ContextMap,
    pub cells: Vec<Cell>,
    size: (usize, usize),
    pub at: usize,
}

impl MapView {
    pub fn new(map: ContextMap) -> MapView {
        MapView { map, ..MapView::default() }
    }

    /// The cursor stays at its tokens; initially it is at the first passage.
    pub fn set_size(&mut self, row: usize, rows: usize) {
        let first = self.cells.is_empty();
        let size = (row.max(8), rows.max(1));
        if !first && self.size == size {
            return;
        }
        self.size = size;
        let token = self.cells.get(self.at).map_or(0, |c| c.from);
        self.cells = cells(&self.map, self.map.used, size.0 * size.1);
        let most = || self.cells.iter().position(|c| c.passage == Some(0)).unwrap_or(0);
        self.at = if first { most() } else { self.cells.iter().rposition(|c| c.from <= token).unwrap_or(0) };
    }

    pub fn scroll(&mut self, by: isize) {
        self.step(by.saturating_mul(isize::try_from(self.size.0).unwrap_or(1)));
    }

    pub fn step(&mut self, by: isize) {
        self.at = self.at.saturating_add_signed(by).min(self.cells.len().saturating_sub(1));
    }

    pub fn stretch(&self) -> Option<&Stretch> {
        self.cells.get(self.at)?.stretch.and_then(|i| self.map.stretches.get(i))
    }

    pub fn about(&self) -> String {
        let Some(cell) = self.cells.get(self.at) else { return "Nothing is in the context yet.".into() };
        let what = self.stretch().map_or_else(String::new, |s| format!("  #{} {}", s.number, sanitize_line(&s.name)));
        let looked = match cell.passage.and_then(|p| Some((p, self.map.passages.get(p)?))) {
            Some((p, passage)) => format!("  [{}] {} ({})", p + 1, sanitize_line(&passage.place()), passage.percent()),
            None if cell.is_looked_at() => format!("  looked at {:.0}%", cell.share * 100.0),
            None => String::new(),
        };
        format!("tokens {}-{}{what}{looked}", grouped(cell.from), grouped(cell.to.saturating_sub(1)))
    }

    pub fn opens(&self) -> Option<Request> {
        let (cell, stretch) = (self.cells.get(self.at)?, self.stretch()?);
        match (cell.passage, stretch.place) {
            (Some(p), _) => Some(Request::Look { at: self.map.answer, passage: u64::try_from(p + 1).ok() }),
            (None, Place::Document) => {
                let (into, all) = (cell.from.saturating_sub(stretch.from), (stretch.to - stretch.from).max(1));
                let line = (stretch.lines.saturating_mul(into) / all).max(1);
                Some(Request::Open(format!("{}:{line}", stretch.name)))
            }
            (None, Place::System | Place::Turn) => None,
        }
    }

    pub(super) fn draw(&self, painter: &mut Painter<'_>, area: Rect) {
        painter.text(area, 0, " Context", Face::from(Role::Heading).bold());
        painter.right(area, 0, 1, LEGEND, Role::Dim);
        let rows = self.cells.chunks(self.size.0);
        for (y, row) in (2..area.height.saturating_sub(2)).zip(rows) {
            painter.spans(area, y, 2, &spans(&self.map, row));
        }
        let (x, y) = (self.at % self.size.0, self.at / self.size.0);
        if let (Ok(x), Ok(y)) = (u16::try_from(x + 2), u16::try_from(y + 2))
            && !self.cells.is_empty()
        {
            painter.mark_cells(area, y, x, 1, Role::Selected);
        }
        let about = ellipsis(&self.about(), usize::from(area.width).saturating_sub(3));
        painter.text(area, area.height.saturating_sub(2), &format!("  {about}"), Role::Text);
    }
}

pub fn sentences(map: &ContextMap) -> Vec<String> {
    let block = u64::from(map.block_tokens.max(64));
    let line = |s: &Stretch| {
        let share: f64 = map
            .looked
            .iter()
            .filter(|(b, _)| (s.from..s.to).contains(&(u64::from(*b) * block)))
            .map(|(_, share)| f64::from(*share) / 1e4)
            .sum();
        let kind = match s.place {
            Place::System => "system",
            Place::Document => "document",
            Place::Turn => "turn",
        };
        let looked = if share >= LOOKED { format!(", looked at {:.0}%", share * 100.0) } else { String::new() };
        let name = sanitize_line(&s.name);
        format!(
            "tokens {} to {}: {kind} #{} {name}{looked}",
            grouped(s.from),
            grouped(s.to.saturating_sub(1)),
            s.number
        )
    };
    let mut lines: Vec<String> = map.stretches.iter().map(line).collect();
    if lines.is_empty() {
        lines.push("Nothing is in the context yet.".into());
    }
    if let Some(n) = map.answer {
        lines.push(format!("Shares are of #{n}, the last answer; /look names the lines."));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::Passage;

    fn map() -> ContextMap {
        let stretch =
            |from, to, place, number, name: &str, lines| Stretch { from, to, place, number, name: name.into(), lines };
        ContextMap {
            stretches: vec![
                stretch(0, 100, Place::System, 1, "system text", 0),
                stretch(100, 6_000, Place::Document, 2, "war.txt", 590),
                stretch(6_000, 6_400, Place::Turn, 3, "Who?", 0),
            ],
            used: 6_400,
            limit: 100_000,
            block_tokens: 64,
            looked: vec![(40, 6_000), (41, 300), (98, 500)],
            passages: vec![Passage { first_block: 40, last_block: 41, share: 0.63, number: 2, ..Passage::default() }],
            answer: Some(4),
        }
    }

    #[test]
    fn cells_have_a_kind_a_share_and_a_passage() {
        let map = map();
        let all = cells(&map, map.used, 1_000);
        // Never smaller than a block.
        assert_eq!((all.len(), all[0].to), (100, 64));
        let letters: String = all.iter().map(|c| c.letter(&map)).collect();
        assert!(letters.starts_with("SSDD") && letters.ends_with("TTTTTT"), "{letters}");
        assert_eq!(&letters[39..43], "D11D");
        assert!(all[40].is_looked_at() && all[98].is_looked_at() && !all[50].is_looked_at());
        let few = cells(&map, map.limit, 40);
        let letters: String = few.iter().map(|c| c.letter(&map)).collect();
        assert!(few.len() <= 40 && letters.starts_with("D1") && letters.ends_with("...."), "{letters}");
        assert_eq!(cells(&ContextMap::default(), 0, 40), []);
    }

    #[test]
    fn the_cursor_opens_what_is_under_it_and_stays_at_its_place() {
        let mut view = MapView::new(map());
        view.set_size(20, 5);
        assert_eq!(view.at, 40);
        assert_eq!(view.opens(), Some(Request::Look { at: Some(4), passage: Some(1) }));
        assert!(view.about().contains("#2 war.txt") && view.about().contains("[1]"), "{}", view.about());
        view.step(-20);
        assert_eq!(view.opens(), Some(Request::Open("war.txt:118".into())));
        view.set_size(10, 2);
        assert!(view.cells[view.at].from <= 1_280 && view.cells[view.at].to > 1_280);
        view.step(1_000);
        assert_eq!((view.at, view.opens()), (view.cells.len() - 1, None));
        assert!(sentences(&view.map)[1].contains("document #2 war.txt, looked at 63%"), "{:?}", sentences(&view.map));
        let mut empty = MapView::new(ContextMap::default());
        empty.set_size(20, 5);
        empty.step(3);
        assert_eq!((empty.opens(), empty.about()), (None, "Nothing is in the context yet.".into()));
    }
}
