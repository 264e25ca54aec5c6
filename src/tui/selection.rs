//! Mouse selection in the transcript. Copied text excludes bars, indentation and marks, and joins wrapped lines.

use super::acts::{HINT_MS, hint};
use super::cells::{between, width};
use super::entry::{Line, Part};
use super::rows::{Joint, Row};
use super::transcript::Transcript;
use super::{App, Effect, greeting, layout};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    pub entry: usize,
    pub row: usize,
    pub cell: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    from: Spot,
    to: Spot,
    dragged: bool,
}

impl Selection {
    pub fn span(&self) -> (Spot, Spot) {
        let (a, b) = (self.from.min(self.to), self.from.max(self.to));
        (a, Spot { cell: b.cell + 1, ..b })
    }

    pub fn cells(&self, entry: usize, row: usize) -> Option<(usize, usize)> {
        let (first, last) = self.span();
        let here = (entry, row);
        if !self.dragged || here < (first.entry, first.row) || here > (last.entry, last.row) {
            return None;
        }
        let from = if here == (first.entry, first.row) { first.cell } else { 0 };
        let to = if here == (last.entry, last.row) { last.cell } else { usize::MAX };
        Some((from, to))
    }

    pub fn text(&self, transcript: &Transcript) -> String {
        let (first, last) = self.span();
        let one_row = (first.entry, first.row) == (last.entry, last.row);
        let mut text = String::new();
        let mut joint = None;
        for (index, entry) in transcript.entries().iter().enumerate().take(last.entry + 1).skip(first.entry) {
            for row in 0..entry.height() {
                let Some((from, to)) = self.cells(index, row) else { continue };
                let line = entry.line(row);
                // Heads and decoration are not text.
                let skipped = |l: &Line<'_>| l.part == Part::Head || l.row.gutter == Row::DECORATION;
                if line.as_ref().is_some_and(skipped) && !one_row {
                    continue;
                }
                text.push_str(match joint {
                    None | Some(Joint::Nothing) => "",
                    Some(Joint::Space) => " ",
                    Some(Joint::Line) => "\n",
                });
                joint = Some(line.as_ref().map_or(Joint::Line, |l| l.row.joint));
                if let Some(l) = line {
                    let gutter = if l.row.gutter == Row::DECORATION { 0 } else { l.row.gutter };
                    let from = from.saturating_sub(l.indent()).max(gutter);
                    let shown = l.row.text();
                    text.push_str(between(&shown, from, to.saturating_sub(l.indent())).trim_end());
                }
            }
        }
        text.trim_end_matches('\n').to_string()
    }
}

fn spot(app: &App, x: u16, y: u16) -> Option<Spot> {
    let area = layout::regions(app).transcript;
    let window = app.open.transcript.window();
    let line = usize::from(y).saturating_sub(first_line(app)).min(window.len().checked_sub(1)?);
    let (entry, row) = *window.get(line)?;
    Some(Spot { entry, row, cell: usize::from(x.saturating_sub(area.x).min(area.width.saturating_sub(1))) })
}

fn first_line(app: &App) -> usize {
    usize::from(layout::regions(app).transcript.y) + layout::greeting_height(&greeting::greeting(app))
}

pub(super) fn begin(app: &mut App, x: u16, y: u16) {
    if usize::from(y) < first_line(app) {
        return;
    }
    app.open.selection = spot(app, x, y).map(|at| Selection { from: at, to: at, dragged: false });
}

pub(super) fn drag(app: &mut App, x: u16, y: u16) {
    let area = layout::regions(app).transcript;
    if app.open.selection.is_none() {
        return;
    }
    if y < area.y {
        app.open.transcript.scroll_by(-1);
    } else if y >= area.y + area.height {
        app.open.transcript.scroll_by(1);
    }
    app.open.transcript.prepare();
    let y = y.clamp(area.y, (area.y + area.height).saturating_sub(1));
    if let (Some(to), Some(selection)) = (spot(app, x, y), &mut app.open.selection) {
        selection.dragged |= to != selection.from;
        selection.to = to;
    }
}

pub(super) fn end(app: &mut App) {
    let Some(selection) = app.open.selection else { return };
    if !selection.dragged {
        app.open.selection = None;
        let entry = app.open.transcript.entries().get(selection.from.entry);
        if let Some(id) = entry.and_then(|e| e.as_message()).map(|m| m.id) {
            app.open.transcript.show(id);
        }
        return;
    }
    let text = selection.text(&app.open.transcript);
    if width(&text) == 0 {
        return hint(app, "Nothing selected", HINT_MS);
    }
    app.effects.push(Effect::Copy(text));
}
