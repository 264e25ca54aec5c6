//! Pages as lines that can be heard as well as seen: a row of a table is one line with its headings, code stays as it is.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

pub(super) fn lines(markdown: &str) -> Vec<String> {
    let mut page = Page::default();
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        page.event(event);
    }
    page.flush();
    page.lines
}

#[derive(Default)]
struct Page {
    lines: Vec<String>,
    text: String,
    headings: Vec<String>,
    cells: Vec<String>,
    code: bool,
}

impl Page {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Text(t) if self.code => self.lines.extend(t.lines().map(str::to_string)),
            Event::Text(t) | Event::Code(t) | Event::Html(t) | Event::InlineHtml(t) => self.text.push_str(&t),
            Event::SoftBreak => self.text.push(' '),
            Event::HardBreak | Event::Rule => self.flush(),
            Event::Start(Tag::CodeBlock(_)) => self.code = true,
            Event::End(TagEnd::CodeBlock) => self.code = false,
            Event::Start(Tag::Item) => self.flush(),
            Event::Start(Tag::Table(_)) => self.headings.clear(),
            Event::End(TagEnd::TableCell) => self.cells.push(std::mem::take(&mut self.text)),
            Event::End(TagEnd::TableHead) => self.headings = std::mem::take(&mut self.cells),
            Event::End(TagEnd::TableRow) => self.row(),
            Event::End(TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item | TagEnd::HtmlBlock) => self.flush(),
            _ => {}
        }
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.trim().is_empty() {
            self.lines.push(text.trim().to_string());
        }
    }

    /// `model: demo on CPU` in a list of pairs, `who you, tokens 31` below headings.
    fn row(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        let line = match cells.split_first() {
            Some((name, values)) if self.headings.iter().all(String::is_empty) => {
                format!("{name}: {}", values.join(", "))
            }
            _ => {
                let named = self.headings.iter().zip(&cells).filter(|(_, cell)| !cell.is_empty());
                named.map(|(h, c)| format!("{h} {c}").trim().to_string()).collect::<Vec<_>>().join(", ")
            }
        };
        self.lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn tables_become_sentences_and_code_stays() {
        assert_eq!(lines("| | |\n|---|---|\n| model | demo on CPU |\n"), ["model: demo on CPU"]);
        let table = "12 used.\n\n| # | who | |\n|---|---|---|\n| 1 | you | hi \\| there |\n\nEnd\n";
        assert_eq!(lines(table), ["12 used.", "# 1, who you, hi | there", "End"]);
        assert_eq!(lines("## Keys\n\n- **a** `b`\n- c\n"), ["Keys", "a b", "c"]);
        assert_eq!(lines("    | not | a table |\n      x\n"), ["| not | a table |", "  x"]);
    }
}
