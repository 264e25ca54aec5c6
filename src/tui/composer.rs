//! The input: text, caret, undo, folded pastes, and its rows.
//!
//! The caret is always between grapheme clusters, never inside a folded paste. A large paste is shown as a placeholder
//! and expanded on sending. Rows are computed here because the layout depends on their number and input methods need
//! the terminal's cursor at the caret.

use std::ops::Range;
use std::sync::Arc;

use unicode_segmentation::UnicodeSegmentation;

use super::cells::{clip, cluster_width, width};
use super::keys::Action;
use crate::core::{grouped, sanitize::sanitize};
use crate::text::with_newlines;

const UNDO_STEPS: usize = 200;

/// Consecutive edits of one kind share an undo step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastEdit {
    #[default]
    None,
    Typing,
    Deleting,
}

#[derive(Clone, Debug, Default)]
pub struct Composer {
    text: String,
    cursor: usize,
    pub(super) clipboard: Clipboard,
    undo: Vec<(String, usize)>,
    last_edit: LastEdit,
    goal: Option<usize>,
    /// Text that the program put here, such as an undone question; `None` once the input was empty.
    recalled: Option<String>,
}

impl Composer {
    /// Contains placeholders for folded pastes.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn cursor(&self) -> usize {
        self.cursor
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub fn expanded(&self) -> String {
        self.clipboard.expanded(&self.text)
    }

    pub fn set(&mut self, text: &str) {
        self.remember(LastEdit::None);
        self.text = with_newlines(text);
        self.cursor = self.text.len();
        self.goal = None;
    }

    /// Inserts text that the user did not type. A draft in the way stays, and the text can be yanked; returns whether
    /// the text was inserted.
    pub fn recall(&mut self, text: &str) -> bool {
        let shown = sanitize(&self.clipboard.folded(text)).into_owned();
        if !self.is_empty() {
            self.clipboard.cut = shown;
            return false;
        }
        self.set(&shown);
        self.recalled = Some(self.text.clone());
        true
    }

    pub fn is_recalled(&self) -> bool {
        self.recalled.as_ref().is_some_and(|r| *r == self.text)
    }

    pub fn take(&mut self) -> String {
        let text = self.expanded();
        *self = Composer { clipboard: std::mem::take(&mut self.clipboard), ..Composer::default() };
        text
    }

    pub fn clear_to_cut(&mut self) {
        self.cut_range(0..self.text.len());
        self.recalled = None;
    }

    pub fn insert(&mut self, text: &str) {
        let kind =
            if text.chars().count() == 1 && !text.contains([' ', '\n']) { LastEdit::Typing } else { LastEdit::None };
        self.remember(kind);
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    pub fn paste(&mut self, text: &str, fold_chars: usize, fold_lines: usize) {
        let text = with_newlines(text);
        let (chars, lines) = (text.chars().count(), text.lines().count());
        // What a terminal would obey is sent as it is, so it is not shown.
        if chars <= fold_chars && lines <= fold_lines && sanitize(&text) == text {
            return self.insert(&text);
        }
        let placeholder = self.clipboard.fold(&text);
        self.insert(&placeholder);
    }

    /// Keys that edit or move the caret within the line.
    pub fn perform(&mut self, action: Action) {
        let at = self.cursor;
        match action {
            Action::Left => self.go(self.before(at)),
            Action::Right => self.go(self.after(at)),
            Action::WordLeft => self.go(self.word_before(at)),
            Action::WordRight => self.go(self.word_after(at)),
            Action::LineStart => self.go(self.line_start()),
            Action::LineEnd => self.go(self.line_end()),
            Action::Backspace => self.remove(self.before(at)..at, LastEdit::Deleting),
            Action::Delete => self.remove(at..self.after(at), LastEdit::Deleting),
            Action::KillWord => self.cut_range(self.word_before(at)..at),
            // The line break before it; what was cut before can still be inserted.
            Action::KillToStart if at == self.line_start() => self.remove(self.before(at)..at, LastEdit::Deleting),
            Action::KillToStart => self.cut_range(self.line_start()..at),
            // At the end of a line, the line break.
            Action::KillToEnd if self.at_line_end() => self.cut_range(at..self.after(at)),
            Action::KillToEnd => self.cut_range(at..self.line_end()),
            Action::Yank => self.insert(&self.clipboard.cut.clone()),
            Action::UndoEdit => {
                if let Some((text, cursor)) = self.undo.pop() {
                    self.text = text;
                    self.go(cursor);
                }
            }
            _ => {}
        }
    }

    pub fn at_line_end(&self) -> bool {
        self.cursor == self.line_end()
    }

    pub(super) fn go(&mut self, to: usize) {
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

    fn remove(&mut self, range: Range<usize>, kind: LastEdit) {
        if !range.is_empty() {
            self.remember(kind);
            self.cursor = range.start;
            self.text.replace_range(range, "");
        }
    }

    fn cut_range(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.clipboard.cut = self.text[range.clone()].to_owned();
            self.remove(range, LastEdit::None);
        }
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    fn snap(&self, at: usize, forward: bool) -> usize {
        self.clipboard.snap(&self.text, at, forward)
    }

    fn before(&self, at: usize) -> usize {
        let prev = self.text[..at].grapheme_indices(true).next_back().map_or(0, |(i, _)| i);
        self.snap(prev, false)
    }

    fn after(&self, at: usize) -> usize {
        let next = self.text[at..].graphemes(true).next().map_or(at, |g| at + g.len());
        self.snap(next, true)
    }

    fn word_after(&self, at: usize) -> usize {
        let mut words = self.text[at..].split_word_bound_indices();
        let end = words
            .find(|(_, w)| w.chars().any(char::is_alphanumeric))
            .map_or(self.text.len(), |(i, w)| at + i + w.len());
        self.snap(end, true)
    }

    fn word_before(&self, at: usize) -> usize {
        let start = self.text[..at]
            .split_word_bound_indices()
            .rfind(|(_, w)| w.chars().any(char::is_alphanumeric))
            .map_or(0, |(i, _)| i);
        self.snap(start, false)
    }
}

impl Composer {
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

    /// Moves the caret by rows; false at the first or last one.
    pub(super) fn vertical(&mut self, cells: usize, by: isize) -> bool {
        let rows = self.rows(cells);
        let (row, col) = self.caret(cells);
        let goal = self.goal.unwrap_or(col);
        let Some(target) = row.checked_add_signed(by).and_then(|r| rows.get(r)) else { return false };
        let mut at = target.start + clip(&self.text[target.clone()], goal).len();
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

/// The cut text, and the large pastes that placeholders in the input represent. Both move along to the input of another
/// session.
#[derive(Clone, Debug, Default)]
pub(super) struct Clipboard {
    /// Contains placeholders.
    pub(super) cut: String,
    /// Placeholder and text of each paste of this run.
    pastes: Vec<(String, Arc<str>)>,
}

impl Clipboard {
    fn fold(&mut self, pasted: &str) -> String {
        let lines = match pasted.lines().count() {
            1 => "1 line".to_owned(),
            n => format!("{n} lines"),
        };
        let characters = grouped(pasted.chars().count() as u64);
        let placeholder = format!("[paste {}: {lines}, {characters} characters]", self.pastes.len() + 1);
        self.pastes.push((placeholder.clone(), pasted.into()));
        placeholder
    }

    /// A text that returns to the input, with its pastes as placeholders again.
    fn folded(&self, text: &str) -> String {
        self.pastes.iter().fold(text.to_owned(), |text, (placeholder, pasted)| text.replace(&**pasted, placeholder))
    }

    fn places(&self, text: &str) -> Vec<(Range<usize>, &str)> {
        let mut places = Vec::new();
        for (placeholder, pasted) in &self.pastes {
            places.extend(text.match_indices(placeholder).map(|(at, found)| (at..at + found.len(), &**pasted)));
        }
        places.sort_by_key(|(range, _)| range.start);
        places
    }

    fn expanded(&self, text: &str) -> String {
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, pasted) in self.places(text) {
            out.push_str(&text[at..range.start]);
            out.push_str(pasted);
            at = range.end;
        }
        out.push_str(&text[at..]);
        out
    }

    /// The end of the placeholder that `at` is inside of; `at` if there is none.
    fn snap(&self, text: &str, at: usize, forward: bool) -> usize {
        match self.places(text).into_iter().find(|(r, _)| r.start < at && at < r.end) {
            Some((r, _)) if forward => r.end,
            Some((r, _)) => r.start,
            None => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn typed(text: &str) -> Composer {
        let mut c = Composer::default();
        c.insert(text);
        c
    }

    #[test]
    fn backspace_deletes_whole_clusters() {
        let mut c = typed("a👩‍👩‍👧e\u{301}");
        c.perform(Action::Backspace);
        assert_eq!(c.text(), "a👩‍👩‍👧");
        c.perform(Action::Backspace);
        assert_eq!(c.text(), "a");
    }

    #[test]
    fn a_paste_that_cannot_be_shown_is_sent_as_it_is() {
        let mut c = typed("");
        let text = "עברית (abc)\u{200f}. \u{2028} \u{1b}[2J";
        c.paste(text, 800, 10);
        assert_eq!(c.text(), "[paste 1: 1 line, 20 characters]");
        let sent = c.take();
        assert!(sent == text && c.recall(&sent));
        assert_eq!(c.expanded(), text);
    }

    #[test]
    fn large_paste_is_one_unit_and_expands_when_sent() {
        let mut c = typed("see ");
        let long = "line\n".repeat(41);
        c.paste(&long, 800, 10);
        assert_eq!(c.text(), "see [paste 1: 41 lines, 205 characters]");
        // A refused question returns unchanged.
        let mut refused = c.clone();
        let text = refused.take();
        assert!(refused.is_empty() && refused.recall(&text));
        assert_eq!((refused.text(), refused.expanded()), (c.text(), text));
        assert!(refused.is_recalled());
        c.perform(Action::Left);
        assert_eq!(c.cursor(), 4);
        c.perform(Action::Right);
        assert_eq!(c.expanded(), format!("see {long}"));
        c.perform(Action::Backspace);
        assert_eq!(c.text(), "see ");
        c.perform(Action::UndoEdit);
        assert_eq!(c.take(), format!("see {long}"));
        assert!(c.is_empty());
    }

    #[test]
    fn cut_and_yank_and_words() {
        let mut c = typed("one two, three");
        c.perform(Action::KillWord);
        assert_eq!(c.text(), "one two, ");
        c.perform(Action::WordLeft);
        assert_eq!(c.cursor(), 4);
        c.perform(Action::KillToEnd);
        assert_eq!(c.text(), "one ");
        c.perform(Action::Yank);
        assert_eq!(c.text(), "one two, ");
        c.perform(Action::LineStart);
        c.perform(Action::WordRight);
        assert_eq!(c.cursor(), 3);
        c.clear_to_cut();
        c.perform(Action::Yank);
        assert_eq!(c.text(), "one two, ");
    }

    #[test]
    fn typing_is_undone_by_words() {
        let mut c = Composer::default();
        for ch in "ab cd".chars() {
            c.insert(&ch.to_string());
        }
        c.perform(Action::UndoEdit);
        assert_eq!(c.text(), "ab ");
    }

    #[test]
    fn what_is_cut_keeps_its_pastes_when_the_input_was_used_meanwhile() {
        let (mut c, one, two) = (typed("see "), "a ".repeat(600), "b ".repeat(600));
        c.paste(&one, 800, 10);
        c.clear_to_cut();
        c.insert("/docs");
        assert_eq!(c.take(), "/docs");
        c.perform(Action::Yank);
        assert_eq!((c.text(), c.expanded()), ("see [paste 1: 1 line, 1,200 characters]", format!("see {one}")));
        // The input of another session has the same pastes.
        let mut other = Composer { clipboard: c.clipboard.clone(), ..Composer::default() };
        other.paste(&two, 800, 10);
        other.perform(Action::Yank);
        assert_eq!(other.text(), "[paste 2: 1 line, 1,200 characters]see [paste 1: 1 line, 1,200 characters]");
        other.perform(Action::Yank);
        assert_eq!(other.expanded(), format!("{two}see {one}see {one}"));
        other.perform(Action::Left);
        other.paste(&one, 800, 10);
        assert_eq!(other.expanded(), format!("{two}see {one}see {one}{one}"));
    }

    #[test]
    fn a_paste_that_looks_like_a_placeholder_stays_what_it_is() {
        let (mut c, one) = (Composer::default(), format!("[paste 2: 1 line, 900 characters]{}", "x".repeat(900)));
        c.paste(&one, 800, 10);
        c.paste(&"y".repeat(900), 800, 10);
        assert_eq!(c.expanded(), format!("{one}{}", "y".repeat(900)));
    }

    #[test]
    fn up_and_down_keep_the_column_and_report_edges() {
        let mut c = typed("long line here\nx\nanother one");
        assert!(c.vertical(40, -1));
        assert_eq!(c.cursor(), 16);
        assert!(c.vertical(40, -1));
        assert_eq!(c.cursor(), 11);
        assert!(!c.vertical(40, -1));
        assert!(c.vertical(40, 1) && c.vertical(40, 1) && !c.vertical(40, 1));
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
                    2 => { c.vertical(cells, -1); }
                    3 => { c.vertical(cells, 1); }
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
