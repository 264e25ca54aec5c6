//! Tables: aligned columns if they fit, else `header: value` lines.

use pulldown_cmark::{Alignment, Event, Tag};

use super::super::cells::width;
use super::super::rows::{Face, Role, Span};
use super::super::wrap::{Piece, wrap};
use super::inline::Inline;
use super::{Events, Writer, next_inside};

impl Writer<'_> {
    pub(super) fn table(&mut self, events: &mut Events<'_>, tag: &Tag<'_>, at: usize) {
        let mut lines: Vec<Vec<Inline>> = Vec::new();
        while let Some((event, _)) = next_inside(events, Some(tag)) {
            match event {
                Event::Start(Tag::TableHead | Tag::TableRow) => lines.push(Vec::new()),
                Event::Start(cell @ Tag::TableCell) => {
                    let mut inline = Inline::default();
                    self.inline_until(events, &cell, &mut inline);
                    if let Some(line) = lines.last_mut() {
                        line.push(inline);
                    }
                }
                _ => {}
            }
        }
        let columns = lines.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|c| lines.iter().filter_map(|l| l.get(c)).map(|i| width(&i.text())).max().unwrap_or(0))
            .collect();
        if widths.iter().sum::<usize>() + 3 * columns < self.cells() {
            let aligned: &[Alignment] = if let Tag::Table(columns) = tag { columns } else { &[] };
            self.grid(lines, &widths, aligned, at);
        } else {
            self.header_values(lines, at);
        }
    }

    fn grid(&mut self, lines: Vec<Vec<Inline>>, widths: &[usize], aligned: &[Alignment], at: usize) {
        let (bar, dash, [left, cross, right]) =
            self.style.glyphs.pick(("│", "─", ["├", "┼", "┤"]), ("|", "-", ["|"; 3]));
        let untitled = lines.first().is_some_and(|head| head.iter().all(|cell| cell.pieces.is_empty()));
        for (i, line) in lines.into_iter().enumerate().skip(usize::from(untitled)) {
            let mut row = vec![Span::new(bar, Role::Rule)];
            for (c, cells) in widths.iter().enumerate() {
                let used: usize = line.get(c).map_or(0, |inline| inline.pieces.iter().map(|p| width(&p.text)).sum());
                let free = cells.saturating_sub(used);
                let before = match aligned.get(c) {
                    Some(Alignment::Right) => free,
                    Some(Alignment::Center) => free / 2,
                    Some(Alignment::Left | Alignment::None) | None => 0,
                };
                row.push(Span::new(" ".repeat(before + 1), Role::Text));
                for p in line.get(c).map_or(&[][..], |inline| &inline.pieces) {
                    let face = if i == 0 { p.face.bold() } else { p.face };
                    row.push(Span::new(p.text.replace('\n', " "), face));
                }
                row.push(Span::new(" ".repeat(free - before + 1), Role::Text));
                row.push(Span::new(bar, Role::Rule));
            }
            self.line(row, at);
            if i == 0 {
                let middle: Vec<String> = widths.iter().map(|w| dash.repeat(w + 2)).collect();
                self.line(vec![Span::new(format!("{left}{}{right}", middle.join(cross)), Role::Rule)], at);
            }
        }
    }

    fn header_values(&mut self, lines: Vec<Vec<Inline>>, at: usize) {
        let mut lines = lines.into_iter();
        let headers: Vec<String> = lines.next().unwrap_or_default().iter().map(Inline::text).collect();
        for (i, line) in lines.enumerate() {
            if i > 0 {
                self.blank(at);
            }
            for (header, value) in headers.iter().zip(line) {
                let head = Piece { text: format!("{header}: "), face: Face::from(Role::Dim).bold(), source: at };
                let head = Some(head).filter(|_| !header.is_empty());
                let pieces = head.into_iter().chain(value.pieces).map(|p| Piece { source: at, ..p });
                let mut prefix = self.prefix();
                prefix.rest.push(("  ".into(), Face::default()));
                let mut rows = wrap(&pieces.collect::<Vec<_>>(), &prefix, self.style.cells);
                for r in &mut rows {
                    r.source = self.base + at;
                }
                self.rows.append(&mut rows);
            }
        }
    }
}
