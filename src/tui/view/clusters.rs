//! Grapheme clusters of several characters (flags, families, skin tones) have different widths in different terminals.
//!
//! Drawing counts one wide character. A terminal that counts each character leaves pieces in the following cells,
//! which the frame difference does not know: they are written again.

use std::ops::Range;

use ratatui::buffer::{Buffer, Cell, CellDiffOption};
use unicode_width::UnicodeWidthChar;

use crate::tui::cells::cluster_width;

#[derive(Debug)]
struct Cluster {
    at: (u16, u16),
    symbol: String,
    cells: u16,
    most: u16,
}

#[derive(Debug, Default)]
pub struct Clusters(Vec<Cluster>);

impl Clusters {
    /// Called after each frame is drawn: rewrites cells in which pieces may be left.
    pub fn clear_pieces(&mut self, frame: &mut Buffer) {
        let before = std::mem::replace(&mut self.0, clusters(frame));
        let gone = before.iter().filter(|old| frame.cell(old.at).is_none_or(|cell| cell.symbol() != old.symbol));
        let left = gone.map(|old| (old, 0..old.most));
        // A rewrite here may leave new pieces beyond its cells.
        let beyond = self.0.iter().map(|new| (new, new.cells..new.most));
        let all: Vec<(&Cluster, Range<u16>)> = left.chain(beyond).collect();
        for (cluster, cells) in all {
            let (x, y) = cluster.at;
            for offset in cells {
                if let Some(cell) = frame.cell_mut((x.saturating_add(offset), y)) {
                    cell.set_diff_option(CellDiffOption::AlwaysUpdate);
                }
            }
        }
    }
}

fn clusters(frame: &Buffer) -> Vec<Cluster> {
    let cluster = |(index, cell): (usize, &Cell)| {
        let symbol = cell.symbol();
        if symbol.is_ascii() || symbol.chars().nth(1).is_none() {
            return None;
        }
        let cells = cluster_width(symbol);
        let apart: usize = symbol.chars().filter_map(UnicodeWidthChar::width).sum();
        let count = |cells: usize| u16::try_from(cells).unwrap_or(u16::MAX);
        let (cells, most) = (count(cells), count(cells.max(apart)));
        (most > 1).then(|| Cluster { at: frame.pos_of(index), symbol: symbol.to_owned(), cells, most })
    };
    frame.content.iter().enumerate().filter_map(cluster).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    /// Cells that a terminal receives when one frame follows another: place and text.
    fn written(before: &str, after: &str) -> Vec<(u16, String)> {
        let mut clusters = Clusters::default();
        let [before, after] = [before, after].map(|text| {
            let mut frame = Buffer::empty(Rect::new(0, 0, 12, 1));
            frame.set_string(0, 0, text, Style::new());
            clusters.clear_pieces(&mut frame);
            frame
        });
        before.diff(&after).into_iter().map(|(x, _, cell)| (x, cell.symbol().to_owned())).collect()
    }

    fn cells(written: &[(u16, &str)]) -> Vec<(u16, String)> {
        written.iter().map(|(x, text)| (*x, (*text).to_owned())).collect()
    }

    #[test]
    fn all_cells_are_written_again_where_a_cluster_of_several_characters_stood() {
        // A flag: two letters, which some terminals draw in a cell each.
        assert_eq!(written("a🇩🇪", "a"), cells(&[(1, " "), (2, " ")]));
        assert_eq!(written("a🇩🇪", "ab"), cells(&[(1, "b"), (2, " ")]));
        assert_eq!(written("a🇩🇪", "🇫🇷"), cells(&[(0, "🇫🇷"), (2, " ")]));
        // A hand and its colour, which some terminals draw in two cells each.
        assert_eq!(written("👍🏽", ""), cells(&[(0, " "), (1, " "), (2, " "), (3, " ")]));
        // Wide characters of one width in all terminals are left to ratatui.
        assert_eq!(written("日", ""), cells(&[(0, " ")]));
    }

    #[test]
    fn unchanged_clusters_are_left_alone() {
        assert_eq!(written("a🇩🇪b", "a🇩🇪b"), []);
        assert_eq!(written("a🇩🇪b", "a🇩🇪c"), cells(&[(3, "c")]));
        assert_eq!(written("日e\u{301}", "日e\u{301}"), []);
        // Cells overwritten by the colour are written again; the hand is unchanged.
        assert_eq!(written("👍🏽bc", "👍🏽bc"), cells(&[(2, "b"), (3, "c")]));
    }
}
