//! Plain text from a document's blocks.

/// Joins runs of text: white space between words is one space, blocks are separated by line ends.
#[derive(Default)]
pub(super) struct Blocks {
    out: String,
    line_ends: usize,
    space: bool,
    /// `# ` or `- ` before the next text.
    mark: String,
    cells: usize,
    /// A cell has begun and has no text so far: its first block stays on the line of the row.
    at_cell: bool,
}

const CELL: &str = " | ";

impl Blocks {
    /// Text with white space that only separates words.
    pub(super) fn text(&mut self, text: &str) {
        for c in text.chars() {
            if matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{0C}') {
                self.space = true;
            } else {
                self.open();
                self.out.push(c);
            }
        }
    }

    /// Text with significant white space.
    pub(super) fn verbatim(&mut self, text: &str) {
        if !text.is_empty() {
            self.open();
            self.out.extend(text.chars().filter(|c| *c != '\r'));
        }
    }

    fn open(&mut self) {
        if !self.out.is_empty() {
            self.out.extend(std::iter::repeat_n('\n', self.line_ends));
            if self.space && self.line_ends == 0 && !self.out.ends_with([' ', '\n', '\t']) {
                self.out.push(' ');
            }
        }
        self.out.push_str(&std::mem::take(&mut self.mark));
        (self.line_ends, self.space, self.at_cell) = (0, false, false);
    }

    pub(super) fn line(&mut self) {
        self.ends(1);
    }

    /// Puts an empty line before the next text.
    pub(super) fn block(&mut self) {
        self.ends(2);
    }

    fn ends(&mut self, count: usize) {
        if !self.at_cell {
            self.line_ends = self.line_ends.max(count);
        }
    }

    pub(super) fn line_break(&mut self) {
        self.line_ends = (self.line_ends + 1).min(2);
    }

    pub(super) fn heading(&mut self, level: usize) {
        self.block();
        self.mark = format!("{} ", "#".repeat(level.clamp(1, 6)));
    }

    pub(super) fn item(&mut self, mark: &str) {
        self.line();
        self.mark = format!("{mark} ");
    }

    /// An item or heading ends; one without text leaves no trace.
    pub(super) fn end_mark(&mut self) {
        self.mark.clear();
    }

    pub(super) fn row(&mut self) {
        (self.cells, self.at_cell) = (0, false);
        self.line();
    }

    pub(super) fn cell(&mut self) {
        if self.cells > 0 {
            self.space = false;
            if self.at_cell {
                // The cells so far are empty: the line end before the row is still due.
                self.open();
            }
            self.line_ends = 0;
            self.out.push_str(CELL);
        }
        self.cells += 1;
        self.at_cell = true;
    }

    pub(super) fn finish(self) -> String {
        let mut out = self.out;
        out.truncate(out.trim_end().len());
        if !out.is_empty() {
            out.push('\n');
        }
        out
    }
}
