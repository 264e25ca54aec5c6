//! Grapheme clusters of several characters (flags, families, skin tones) have different widths in different terminals.
//!
//! Drawing counts one wide character. A terminal that counts each character leaves pieces in the following cells,
//! which the frame difference does not know: lines with such clusters are written again, and those that had some.

use std::collections::BTreeSet;

use ratatui::buffer::{Buffer, CellDiffOption};

#[derive(Debug, Default)]
pub struct Clusters {
    lines: BTreeSet<u16>,
}

impl Clusters {
    /// Called after each frame is drawn: rewrites the lines in which pieces may be left.
    pub fn clear_pieces(&mut self, frame: &mut Buffer) {
        let is_cluster = |symbol: &str| !symbol.is_ascii() && symbol.chars().nth(1).is_some();
        let with_some = frame.content.iter().enumerate().filter(|(_, cell)| is_cluster(cell.symbol()));
        let lines: BTreeSet<u16> = with_some.map(|(index, _)| frame.pos_of(index).1).collect();
        let before = std::mem::replace(&mut self.lines, lines);
        for y in self.lines.union(&before) {
            for x in frame.area.left()..frame.area.right() {
                if let Some(cell) = frame.cell_mut((x, *y)) {
                    cell.set_diff_option(CellDiffOption::AlwaysUpdate);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    /// The cells that a terminal receives when one frame follows another.
    fn written(before: &str, after: &str) -> String {
        let mut clusters = Clusters::default();
        let [before, after] = [before, after].map(|text| {
            let mut frame = Buffer::empty(Rect::new(0, 0, 8, 1));
            frame.set_string(0, 0, text, Style::new());
            clusters.clear_pieces(&mut frame);
            frame
        });
        before.diff(&after).into_iter().map(|(_, _, cell)| cell.symbol()).collect()
    }

    #[test]
    fn lines_with_clusters_of_several_characters_are_written_again() {
        // A flag: two letters, which some terminals draw in a cell each.
        assert_eq!(written("a🇩🇪", "ab"), "ab      ");
        assert_eq!(written("a🇩🇪", "🇫🇷"), "🇫🇷      ");
        assert_eq!(written("a🇩🇪b", "a🇩🇪b"), "a🇩🇪b    ");
        // Wide characters of one width in all terminals are left to ratatui.
        assert_eq!((written("日", "").as_str(), written("日b", "日b").as_str()), (" ", ""));
    }
}
