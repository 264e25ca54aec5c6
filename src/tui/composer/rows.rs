//! Breaks the input into rows, and moves the caret between them.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::{Composer, LastEdit};
use crate::tui::cells::{cluster_width, width};

impl Composer {
    pub fn up(&mut self, cells: usize) -> bool {
        self.vertical(cells, -1)
    }

    pub fn down(&mut self, cells: usize) -> bool {
        self.vertical(cells, 1)
    }

    /// Byte ranges of the rows in a box `cells` wide (one cell is left for the caret). At least one row.
    pub fn rows(&self, cells: usize) -> Vec<Range<usize>> {
        let limit = cells.saturating_sub(1).max(2);
        let mut rows = Vec::new();
        let mut at = 0;
        for line in self.text.split('\n') {
            break_line(line, at, limit, &mut rows);
            at += line.len() + 1;
        }
        rows
    }

    pub fn caret(&self, cells: usize) -> (usize, usize) {
        let rows = self.rows(cells);
        let row = rows.iter().rposition(|r| r.start <= self.cursor).unwrap_or(0);
        let start = rows.get(row).map_or(0, |r| r.start);
        (row, width(&self.text[start..self.cursor]))
    }

    fn vertical(&mut self, cells: usize, by: isize) -> bool {
        let rows = self.rows(cells);
        let (row, col) = self.caret(cells);
        let goal = self.goal.unwrap_or(col);
        let Some(target) = row.checked_add_signed(by).and_then(|r| rows.get(r)) else { return false };
        let mut at = target.start;
        let mut used = 0;
        for cluster in self.text[target.clone()].graphemes(true) {
            used += cluster_width(cluster);
            if used > goal {
                break;
            }
            at += cluster.len();
        }
        // The end of a wrapped row is the start of the next one: the caret stays on this row.
        if at == target.end && by < 0 && rows.get(row).is_some_and(|r| r.start == at) && at > target.start {
            at = self.before(at);
        }
        self.cursor = self.snap(at, by > 0);
        self.goal = Some(goal);
        self.last_edit = LastEdit::None;
        true
    }
}

fn break_line(line: &str, offset: usize, limit: usize, rows: &mut Vec<Range<usize>>) {
    let (mut start, mut used, mut space) = (0, 0, None);
    for (at, cluster) in line.grapheme_indices(true) {
        let cells = cluster_width(cluster);
        while used + cells > limit && at > start {
            let end = space.take().filter(|s| *s > start).unwrap_or(at);
            rows.push(offset + start..offset + end);
            start = end;
            used = width(&line[start..at]);
        }
        used += cells;
        if cluster == " " || cells == 2 {
            space = Some(at + cluster.len());
        }
    }
    rows.push(offset + start..offset + line.len());
}

#[cfg(test)]
mod tests {
    use super::super::tests::typed;
    use super::*;
    use crate::tui::keys::Action;
    use proptest::prelude::*;

    #[test]
    fn up_and_down_keep_the_column_and_report_edges() {
        let mut c = typed("long line here\nx\nanother one");
        assert!(c.up(40));
        assert_eq!(c.cursor(), 16);
        assert!(c.up(40));
        assert_eq!(c.cursor(), 11);
        assert!(!c.up(40));
        assert!(c.down(40) && c.down(40) && !c.down(40));
        assert_eq!(c.cursor(), 28);
    }

    #[test]
    fn a_wide_cluster_that_does_not_fit_gets_a_row() {
        let c = typed(" aa👍");
        assert_eq!(c.rows(4), [0..1, 1..3, 3..7]);
    }

    proptest! {
        #[test]
        fn rows_cover_the_text_and_the_caret_is_inside_the_box(text in "[a-d 日👍\n]{0,60}", cells in 4usize..20, moves in proptest::collection::vec(0u8..6, 0..20)) {
            let mut c = typed(&text);
            for m in moves {
                match m {
                    0 => c.perform(Action::Left),
                    1 => c.perform(Action::Right),
                    2 => { c.up(cells); }
                    3 => { c.down(cells); }
                    4 => c.perform(Action::WordLeft),
                    _ => c.perform(Action::WordRight),
                }
                let (row, col) = c.caret(cells);
                let rows = c.rows(cells);
                prop_assert!(row < rows.len() && col < cells);
                prop_assert!(rows.iter().all(|r| width(&text[r.clone()]) < cells));
                let covered: String = rows.iter().map(|r| &text[r.clone()]).collect();
                prop_assert_eq!(covered, text.replace('\n', ""));
            }
        }
    }
}
