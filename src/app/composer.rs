//! The input: text, caret, cut buffer, undo, folded pastes, and how it breaks into rows.
//!
//! The caret always stands between grapheme clusters, never inside a folded paste. A large paste is kept aside and one
//! placeholder stands for it; sending puts the text back. Rows are computed here because the layout of the screen
//! depends on their number and the terminal's own cursor must stand at the caret (input methods need it there).

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::cells::{cluster_width, width};

/// Undo steps kept.
const UNDO_STEPS: usize = 200;

/// What the last edit was, to merge keystrokes into one undo step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastEdit {
    #[default]
    None,
    Typing,
    Deleting,
}

/// The input line, which can have several lines.
#[derive(Clone, Debug, Default)]
pub struct Composer {
    text: String,
    cursor: usize,
    cut: String,
    undo: Vec<(String, usize)>,
    last_edit: LastEdit,
    /// `(placeholder, pasted text)`.
    folds: Vec<(String, String)>,
    folds_made: usize,
    /// Column the caret wants to be in while moving up and down.
    goal: Option<usize>,
    /// What the program put here, as long as the input is not empty again: an undone question, a refused one.
    recalled: Option<String>,
    /// What was sent last, if pastes were folded in it: should it come back, so do they.
    sent: Option<Sent>,
}

/// An input with folded pastes that was sent.
#[derive(Clone, Debug)]
struct Sent {
    expanded: String,
    text: String,
    folds: Vec<(String, String)>,
}

impl Composer {
    /// What was cut last.
    pub(super) fn cut(&self) -> &str {
        &self.cut
    }

    /// Takes over what was cut in another input.
    pub(super) fn set_cut(&mut self, cut: String) {
        self.cut = cut;
    }

    /// What is shown: placeholders stand for folded pastes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Byte offset of the caret in [`Composer::text`].
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Nothing typed.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// What is sent: pastes put back.
    pub fn expanded(&self) -> String {
        let mut out = self.text.clone();
        for (placeholder, pasted) in &self.folds {
            out = out.replace(placeholder.as_str(), pasted);
        }
        out
    }

    /// Replaces everything, caret at the end. Undoable.
    pub fn set(&mut self, text: &str) {
        self.remember(LastEdit::None);
        self.text = text.replace("\r\n", "\n").replace('\r', "\n");
        self.cursor = self.text.len();
        self.goal = None;
    }

    /// Puts a text here that the user did not type. A draft that is in the way stays, and the text can be yanked;
    /// returns whether it was put here.
    pub fn recall(&mut self, text: &str) -> bool {
        if !self.is_empty() {
            self.cut = text.to_string();
            return false;
        }
        match self.sent.take_if(|sent| sent.expanded == text) {
            Some(sent) => {
                self.set(&sent.text);
                // Of what was cut the folds stay.
                self.folds.extend(sent.folds);
            }
            None => self.set(text),
        }
        self.recalled = Some(self.text.clone());
        true
    }

    /// Whether all that is here was put here by [`Composer::recall`].
    pub fn is_recalled(&self) -> bool {
        self.recalled.as_ref().is_some_and(|r| *r == self.text)
    }

    /// What stands behind a recalled text.
    pub fn behind_recalled(&self) -> Option<&str> {
        self.text.strip_prefix(self.recalled.as_deref()?)
    }

    /// Takes out what stands behind a recalled text.
    pub fn take_behind_recalled(&mut self) -> Option<String> {
        let behind = self.behind_recalled()?.to_string();
        let recalled = self.recalled.clone()?;
        self.set(&recalled);
        Some(behind)
    }

    /// Empties the input and returns what is to be sent.
    pub fn take(&mut self) -> String {
        let text = self.expanded();
        self.recalled = None;
        let (shown, folds) = (std::mem::take(&mut self.text), std::mem::take(&mut self.folds));
        self.sent = (!folds.is_empty()).then(|| Sent { expanded: text.clone(), text: shown, folds });
        self.cursor = 0;
        self.undo.clear();
        self.goal = None;
        self.last_edit = LastEdit::None;
        text
    }

    /// Clears into the cut buffer.
    pub fn clear_to_cut(&mut self) {
        self.cut_range(0..self.text.len());
        self.recalled = None;
    }

    /// Types a text at the caret.
    pub fn insert(&mut self, text: &str) {
        let kind =
            if text.chars().count() == 1 && !text.contains([' ', '\n']) { LastEdit::Typing } else { LastEdit::None };
        self.remember(kind);
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    /// Inserts pasted text; folds it to a placeholder when it is large.
    pub fn paste(&mut self, text: &str, fold_chars: usize, fold_lines: usize) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let (chars, lines) = (text.chars().count(), text.lines().count());
        if chars <= fold_chars && lines <= fold_lines {
            return self.insert(&text);
        }
        self.folds_made += 1;
        let lines = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
        let placeholder = format!("[paste {}: {lines}, {chars} characters]", self.folds_made);
        self.insert(&placeholder);
        self.folds.push((placeholder, text));
    }

    /// Deletes the cluster (or folded paste) left of the caret.
    pub fn backspace(&mut self) {
        self.delete_range(self.before(self.cursor)..self.cursor);
    }

    /// Deletes the cluster (or folded paste) right of the caret.
    pub fn delete(&mut self) {
        self.delete_range(self.cursor..self.after(self.cursor));
    }

    /// Cuts the word left of the caret.
    pub fn cut_word(&mut self) {
        self.cut_range(self.word_before(self.cursor)..self.cursor);
    }

    /// Cuts to the end of the line, or the line break if the caret is there.
    pub fn cut_to_end(&mut self) {
        let end = self.line_end();
        self.cut_range(self.cursor..if end == self.cursor { self.after(self.cursor) } else { end });
    }

    /// Cuts to the start of the line.
    pub fn cut_to_start(&mut self) {
        self.cut_range(self.line_start()..self.cursor);
    }

    /// Inserts what was cut last.
    pub fn yank(&mut self) {
        let cut = self.cut.clone();
        self.insert(&cut);
    }

    /// Takes back the last edit.
    pub fn undo(&mut self) {
        if let Some((text, cursor)) = self.undo.pop() {
            self.text = text;
            self.cursor = cursor;
            self.last_edit = LastEdit::None;
        }
    }

    /// One cluster left.
    pub fn left(&mut self) {
        self.go(self.before(self.cursor));
    }
    /// One cluster right.
    pub fn right(&mut self) {
        self.go(self.after(self.cursor));
    }
    /// One word left.
    pub fn word_left(&mut self) {
        self.go(self.word_before(self.cursor));
    }
    /// One word right.
    pub fn word_right(&mut self) {
        let after = &self.text[self.cursor..];
        let end = after
            .split_word_bound_indices()
            .find(|(_, w)| w.chars().any(char::is_alphanumeric))
            .map_or(after.len(), |(at, w)| at + w.len());
        self.go(self.snap(self.cursor + end, true));
    }
    /// To the start of the line.
    pub fn home(&mut self) {
        self.go(self.line_start());
    }
    /// To the end of the line.
    pub fn end(&mut self) {
        self.go(self.line_end());
    }
    /// Whether the caret is at the end of its line.
    pub fn at_line_end(&self) -> bool {
        self.cursor == self.line_end()
    }

    /// One row up in a box `cells` wide; false at the first row.
    pub fn up(&mut self, cells: usize) -> bool {
        self.vertical(cells, -1)
    }

    /// One row down in a box `cells` wide; false at the last row.
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

    /// Row and column of the caret in a box `cells` wide.
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
        let Some(target) = row.checked_add_signed(by).and_then(|r| rows.get(r)) else {
            return false;
        };
        let mut at = target.start;
        let mut used = 0;
        for cluster in self.text[target.clone()].graphemes(true) {
            used += cluster_width(cluster);
            if used > goal {
                break;
            }
            at += cluster.len();
        }
        // The end of a row that wraps is the start of the next one: stay on this row.
        if at == target.end && by < 0 && rows.get(row).is_some_and(|r| r.start == at) && at > target.start {
            at = self.before(at);
        }
        self.cursor = self.snap(at, by > 0);
        self.goal = Some(goal);
        self.last_edit = LastEdit::None;
        true
    }

    fn go(&mut self, to: usize) {
        self.cursor = to;
        self.goal = None;
        self.last_edit = LastEdit::None;
    }

    fn remember(&mut self, kind: LastEdit) {
        if kind == LastEdit::None || kind != self.last_edit {
            if self.undo.len() == UNDO_STEPS {
                self.undo.remove(0);
            }
            self.undo.push((self.text.clone(), self.cursor));
        }
        self.last_edit = kind;
        self.goal = None;
    }

    fn delete_range(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.remember(LastEdit::Deleting);
            self.cursor = range.start;
            self.text.replace_range(range, "");
        }
    }

    fn cut_range(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.remember(LastEdit::None);
            self.cut = self.text[range.clone()].to_string();
            self.cursor = range.start;
            self.text.replace_range(range, "");
        }
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    fn fold_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.folds.iter().flat_map(|(p, _)| self.text.match_indices(p.as_str()).map(|(at, m)| at..at + m.len()))
    }

    /// `at`, moved out of a folded paste if it is inside one.
    fn snap(&self, at: usize, forward: bool) -> usize {
        match self.fold_ranges().find(|r| r.start < at && at < r.end) {
            Some(r) if forward => r.end,
            Some(r) => r.start,
            None => at,
        }
    }

    fn before(&self, at: usize) -> usize {
        let prev = self.text[..at].grapheme_indices(true).next_back().map_or(0, |(i, _)| i);
        self.snap(prev, false)
    }

    fn after(&self, at: usize) -> usize {
        let next = self.text[at..].graphemes(true).next().map_or(at, |g| at + g.len());
        self.snap(next, true)
    }

    fn word_before(&self, at: usize) -> usize {
        let start = self.text[..at]
            .split_word_bound_indices()
            .rfind(|(_, w)| w.chars().any(char::is_alphanumeric))
            .map_or(0, |(i, _)| i);
        self.snap(start, false)
    }
}

/// Breaks one line into rows of at most `limit` cells that together cover all of it.
fn break_line(line: &str, offset: usize, limit: usize, rows: &mut Vec<Range<usize>>) {
    let (mut start, mut used, mut space) = (0, 0, None);
    for (at, cluster) in line.grapheme_indices(true) {
        let cells = cluster_width(cluster);
        // A wide cluster may still not fit behind the word that went to the new row with it: break again.
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
    use super::*;
    use proptest::prelude::*;

    fn typed(text: &str) -> Composer {
        let mut c = Composer::default();
        c.insert(text);
        c
    }

    #[test]
    fn backspace_deletes_whole_clusters() {
        let mut c = typed("a👩‍👩‍👧e\u{301}");
        c.backspace();
        assert_eq!(c.text(), "a👩‍👩‍👧");
        c.backspace();
        assert_eq!(c.text(), "a");
    }

    #[test]
    fn large_paste_is_one_unit_and_comes_back_when_sent() {
        let mut c = typed("see ");
        let long = "line\n".repeat(41);
        c.paste(&long, 800, 10);
        assert_eq!(c.text(), "see [paste 1: 41 lines, 205 characters]");
        // A question that is refused comes back as it was.
        let mut refused = c.clone();
        let text = refused.take();
        assert!(refused.is_empty() && refused.recall(&text));
        assert_eq!((refused.text(), refused.expanded()), (c.text(), text));
        assert!(refused.is_recalled());
        c.left();
        assert_eq!(c.cursor(), 4);
        c.right();
        assert_eq!(c.expanded(), format!("see {long}"));
        c.backspace();
        assert_eq!(c.text(), "see ");
        c.undo();
        assert_eq!(c.take(), format!("see {long}"));
        assert!(c.is_empty());
    }

    #[test]
    fn cut_and_yank_and_words() {
        let mut c = typed("one two, three");
        c.cut_word();
        assert_eq!(c.text(), "one two, ");
        c.word_left();
        assert_eq!(c.cursor(), 4);
        c.cut_to_end();
        assert_eq!(c.text(), "one ");
        c.yank();
        assert_eq!(c.text(), "one two, ");
        c.home();
        c.word_right();
        assert_eq!(c.cursor(), 3);
        c.clear_to_cut();
        c.yank();
        assert_eq!(c.text(), "one two, ");
    }

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
    fn a_wide_cluster_that_does_not_fit_behind_its_word_gets_a_row() {
        let c = typed(" aa👍");
        assert_eq!(c.rows(4), [0..1, 1..3, 3..7]);
    }

    #[test]
    fn typing_is_undone_by_words() {
        let mut c = Composer::default();
        for ch in "ab cd".chars() {
            c.insert(&ch.to_string());
        }
        c.undo();
        assert_eq!(c.text(), "ab ");
    }

    proptest! {
        #[test]
        fn rows_cover_the_text_and_the_caret_is_inside_the_box(text in "[a-d 日👍\n]{0,60}", cells in 4usize..20, moves in proptest::collection::vec(0u8..6, 0..20)) {
            let mut c = typed(&text);
            for m in moves {
                match m {
                    0 => c.left(),
                    1 => c.right(),
                    2 => { c.up(cells); }
                    3 => { c.down(cells); }
                    4 => c.word_left(),
                    _ => c.word_right(),
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
