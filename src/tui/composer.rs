//! The input: text, caret, cut buffer, undo, folded pastes, and its rows.
//!
//! The caret is always between grapheme clusters, never inside a folded paste. A large paste is shown as a placeholder
//! and expanded on sending. Rows are computed here because the layout depends on their number and input methods need
//! the terminal's cursor at the caret.

mod folds;
mod rows;

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use crate::text::with_newlines;
pub(super) use folds::Folded;
use folds::Folds;

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
    cut: Folded,
    undo: Vec<(String, usize)>,
    last_edit: LastEdit,
    folds: Folds,
    goal: Option<usize>,
    /// Text that the program put here, such as an undone question; `None` once the input was empty.
    recalled: Option<String>,
    /// The last line sent, if it had folded pastes, so that they fold again when it returns.
    sent: Option<Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    expanded: String,
    shown: Folded,
}

impl Composer {
    pub(super) fn cut(&self) -> &Folded {
        &self.cut
    }

    pub(super) fn set_cut(&mut self, cut: Folded) {
        self.cut = cut;
    }

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
        self.folds.expanded(&self.text)
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
        let sent = self.sent.take_if(|sent| sent.expanded == text);
        let recalled = sent.map_or_else(|| Folded::plain(text), |sent| sent.shown);
        if !self.is_empty() {
            self.cut = recalled;
            return false;
        }
        let shown = self.folds.adopt(&recalled);
        self.set(&shown);
        self.recalled = Some(self.text.clone());
        true
    }

    pub fn is_recalled(&self) -> bool {
        self.recalled.as_ref().is_some_and(|r| *r == self.text)
    }

    pub fn after_recalled(&self) -> Option<&str> {
        self.text.strip_prefix(self.recalled.as_deref()?)
    }

    pub fn take_after_recalled(&mut self) -> Option<String> {
        let tail = self.after_recalled()?.to_string();
        let recalled = self.recalled.clone()?;
        self.set(&recalled);
        Some(tail)
    }

    pub fn take(&mut self) -> String {
        let text = self.expanded();
        self.recalled = None;
        let shown = self.folds.taken(&std::mem::take(&mut self.text));
        self.folds.forget();
        self.sent = (!shown.is_plain()).then(|| Sent { expanded: text.clone(), shown });
        self.cursor = 0;
        self.undo.clear();
        self.goal = None;
        self.last_edit = LastEdit::None;
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
        if chars <= fold_chars && lines <= fold_lines {
            return self.insert(&text);
        }
        let placeholder = self.folds.fold(text);
        self.insert(&placeholder);
    }

    pub fn backspace(&mut self) {
        self.delete_range(self.before(self.cursor)..self.cursor);
    }

    pub fn delete(&mut self) {
        self.delete_range(self.cursor..self.after(self.cursor));
    }

    pub fn cut_word(&mut self) {
        self.cut_range(self.word_before(self.cursor)..self.cursor);
    }

    /// At the end of a line, cuts the line break.
    pub fn cut_to_end(&mut self) {
        let end = self.line_end();
        self.cut_range(self.cursor..if end == self.cursor { self.after(self.cursor) } else { end });
    }

    pub fn cut_to_start(&mut self) {
        self.cut_range(self.line_start()..self.cursor);
    }

    pub fn yank(&mut self) {
        let cut = self.folds.adopt(&self.cut);
        self.insert(&cut);
    }

    pub fn undo(&mut self) {
        if let Some((text, cursor)) = self.undo.pop() {
            self.text = text;
            self.cursor = cursor;
            self.last_edit = LastEdit::None;
        }
    }

    pub fn left(&mut self) {
        self.go(self.before(self.cursor));
    }
    pub fn right(&mut self) {
        self.go(self.after(self.cursor));
    }
    pub fn word_left(&mut self) {
        self.go(self.word_before(self.cursor));
    }
    pub fn word_right(&mut self) {
        let after = &self.text[self.cursor..];
        let end = after
            .split_word_bound_indices()
            .find(|(_, w)| w.chars().any(char::is_alphanumeric))
            .map_or(after.len(), |(at, w)| at + w.len());
        self.go(self.snap(self.cursor + end, true));
    }
    pub fn home(&mut self) {
        self.go(self.line_start());
    }
    pub fn end(&mut self) {
        self.go(self.line_end());
    }
    pub fn at_line_end(&self) -> bool {
        self.cursor == self.line_end()
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
            self.cut = self.folds.taken(&self.text[range.clone()]);
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

    fn snap(&self, at: usize, forward: bool) -> usize {
        self.folds.snap(&self.text, at, forward)
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn typed(text: &str) -> Composer {
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
    fn typing_is_undone_by_words() {
        let mut c = Composer::default();
        for ch in "ab cd".chars() {
            c.insert(&ch.to_string());
        }
        c.undo();
        assert_eq!(c.text(), "ab ");
    }

    #[test]
    fn what_is_cut_keeps_its_pastes_when_the_input_was_used_meanwhile() {
        let (mut c, one, two) = (typed("see "), "a ".repeat(600), "b ".repeat(600));
        c.paste(&one, 800, 10);
        c.clear_to_cut();
        c.insert("/docs");
        assert_eq!(c.take(), "/docs");
        c.yank();
        assert_eq!((c.text(), c.expanded()), ("see [paste 1: 1 line, 1200 characters]", format!("see {one}")));
        // In another input the same number may belong to another paste.
        let mut other = Composer::default();
        other.paste(&two, 800, 10);
        other.set_cut(c.cut().clone());
        other.yank();
        assert!(other.text().ends_with("see [paste 2: 1 line, 1200 characters]"), "{}", other.text());
        assert_eq!(other.expanded(), format!("{two}see {one}"));
        other.yank();
        assert_eq!(other.expanded(), format!("{two}see {one}see {one}"));
        other.left();
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
}
