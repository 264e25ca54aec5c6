//! Converts Markdown to rows, for complete and for arriving text.
//!
//! Text is cut at its top-level blocks (paragraph, list, fence, table); each is rendered from its own source. A block
//! is *stable* once a later block has begun on a complete line; [`Stream`] renders it once and then only the open
//! tail. For every prefix the result equals a fresh rendering. A fence line is held back until it is complete.

pub use super::render::{CodeBlock, Colours, Style};
use super::render::{Writer, render_block, top_level};
use super::rows::{Face, Row};
use super::wrap::{Piece, Prefix, wrap};
use crate::core::sanitize::sanitize;
use pulldown_cmark::{CodeBlockKind, Event, Tag};
use std::ops::Range;

fn block_starts(text: &str) -> Vec<usize> {
    let mut starts: Vec<usize> = top_level(text).map(|(_, range)| line_start(text, range.start)).collect();
    starts.dedup();
    starts
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |at| at + 1)
}

/// Drops a last line that may be the beginning of a fence.
fn hold_back(text: &str) -> &str {
    let start = line_start(text, text.len());
    let line = text[start..].trim_start_matches([' ', '>', '-', '*']);
    let begins_fence = |mark: char| {
        let marks = line.chars().take_while(|c| *c == mark).count();
        marks >= 3 || (marks > 0 && marks == line.len())
    };
    if begins_fence('`') || begins_fence('~') { &text[..start] } else { text }
}

#[derive(Clone, Debug, Default)]
pub struct Stream {
    rows: Vec<Row>,
    code: Vec<CodeBlock>,
    stable_end: usize,
    stable_rows: usize,
    stable_code: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    Open,
    Closed,
}

impl Stream {
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn code(&self) -> &[CodeBlock] {
        &self.code
    }

    /// `text` must begin with the previous text, and `style` must not change.
    pub fn update(&mut self, text: &str, growth: Growth, style: Style<'_>) {
        let text = match growth {
            Growth::Open => hold_back(text),
            Growth::Closed => text,
        };
        self.rows.truncate(self.stable_rows);
        self.code.truncate(self.stable_code);
        // `stable_end` is beyond the text only if the caller broke that rule.
        let base = self.stable_end.min(text.len());
        let Some(tail) = text.get(base..) else { return };
        let starts = block_starts(tail);
        for (i, start) in starts.iter().enumerate() {
            let next = starts.get(i + 1).copied();
            let source = &tail[*start..next.unwrap_or(tail.len())];
            if !self.rows.is_empty() {
                self.rows.push(Row::at(base + start));
            }
            let mut writer = Writer::new(style, base + start, self.code.len());
            render_block(&mut writer, source);
            self.rows.append(&mut writer.rows);
            self.code.append(&mut writer.code);
            if let Some(next) = next
                && tail[next..].contains('\n')
                && base + next > self.stable_end
            {
                self.stable_end = base + next;
                self.stable_rows = self.rows.len();
                self.stable_code = self.code.len();
            }
        }
    }
}

pub fn render(text: &str, style: Style<'_>) -> Stream {
    let mut stream = Stream::default();
    stream.update(text, Growth::Closed, style);
    stream
}

/// Literal text, for questions and system texts, in which `2*3*4` and `__name__` keep their signs: each line keeps its
/// indentation, and only fenced code looks as in answers.
pub(super) fn verbatim(text: &str, style: Style<'_>) -> Stream {
    let text = text.trim_end();
    let (mut rows, mut code) = (Vec::new(), Vec::new());
    let mut at = 0;
    for fence in fences(text) {
        plain(&mut rows, text, at..fence.start, style.cells);
        let mut writer = Writer::new(style, fence.start, code.len());
        render_block(&mut writer, &text[fence.clone()]);
        rows.append(&mut writer.rows);
        code.append(&mut writer.code);
        at = fence.end;
    }
    plain(&mut rows, text, at..text.len(), style.cells);
    Stream { rows, code, ..Stream::default() }
}

fn fences(text: &str) -> Vec<Range<usize>> {
    if !text.contains("```") && !text.contains("~~~") {
        return Vec::new();
    }
    let fenced = |event: &Event<'_>| matches!(event, Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))));
    top_level(text).filter(|(event, _)| fenced(event)).map(|(_, range)| whole_lines(text, &range)).collect()
}

fn whole_lines(text: &str, range: &Range<usize>) -> Range<usize> {
    let start = line_start(text, range.start);
    let end = match text[..range.end].ends_with('\n') {
        true => range.end,
        false => text[range.end..].find('\n').map_or(text.len(), |at| range.end + at + 1),
    };
    start..end
}

fn plain(rows: &mut Vec<Row>, text: &str, part: Range<usize>, cells: usize) {
    let mut at = part.start;
    for line in text[part].split_inclusive('\n') {
        let pieces = pieces(line.strip_suffix('\n').unwrap_or(line), at);
        rows.append(&mut wrap(&pieces, &Prefix::default(), cells));
        at += line.len();
    }
}

/// At least one piece; tabs become spaces at the same source offset.
fn pieces(line: &str, at: usize) -> Vec<Piece> {
    let face = Face::default();
    let mut pieces = Vec::new();
    let mut source = at;
    for part in line.split('\t') {
        if source > at {
            pieces.push(Piece { text: "    ".to_owned(), face, source: source - 1 });
        }
        pieces.push(Piece { text: sanitize(part).into_owned(), face, source });
        source += part.len() + 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::options::Glyphs;
    use super::super::rows::Role;
    use super::*;
    use proptest::prelude::*;

    fn show(text: &str, cells: usize) -> String {
        let colours = Colours::default();
        let style = Style { cells, glyphs: Glyphs::Ascii, colours: &colours };
        render(text, style).rows().iter().map(|r| r.text().trim_end().to_string() + "\n").collect()
    }

    #[test]
    fn blocks_are_laid_out() {
        insta::assert_snapshot!(show(
            "# Title\n\nSome *text* with `code` and [a link](https://x.example/y).\n\n- one\n- two that is rather long \
             and wraps\n  1. inner\n  2. more\n\n> quoted\n> text\n\n```rust\nfn main() {}\n```\n\n---\nend",
            40
        ), @r"
        # Title

        Some text with code and a link
        (https://x.example/y).

        - one
        - two that is rather long and wraps
          1. inner
          2. more

        | quoted text

          ```rust                           [b1]
          fn main() {}
          ```

        ----------------------------------------

        end
        ");
    }

    #[test]
    fn loose_lists_keep_their_blank_lines() {
        insta::assert_snapshot!(show("1. First:\n\n   ```\n   code\n   ```\n\n2. Second:\n\n   more\n\n3. Third\n\n- a\n- b\n", 30), @r"
        1. First:

             ```                  [b1]
             code
             ```

        2. Second:

           more

        3. Third

        - a
        - b
        ");
        // In a tight list, a blank line follows a code block, but not a nested list.
        let fence = format!("|     ```{}[b1]", " ".repeat(17));
        assert_eq!(
            show("> - one\n>   ~~~\n>   x\n>   ~~~\n> - two\n>   - inner\n> - three\n>\n> end", 30),
            format!("| - one\n|\n{fence}\n|     x\n|     ```\n|\n| - two\n|   - inner\n|\n| - three\n|\n| end\n")
        );
    }

    #[test]
    fn tables_become_lines_when_too_wide() {
        let table = "| who | what is said |\n|---|---|\n| Andrei | love is God |\n| nobody | silence |\n";
        insta::assert_snapshot!(show(table, 40), @r"
        | who    | what is said |
        |--------|--------------|
        | Andrei | love is God  |
        | nobody | silence      |
        ");
        let aligned = "| what | price | unit |\n|:--|--:|:-:|\n| milk | 12 | l |\n| eggs | 1,500 | piece |\n";
        insta::assert_snapshot!(show(aligned, 40), @r"
        | what | price | unit  |
        |------|-------|-------|
        | milk |    12 |   l   |
        | eggs | 1,500 | piece |
        ");
        insta::assert_snapshot!(show(table, 20), @r"
        who: Andrei
        what is said: love
          is God

        who: nobody
        what is said:
          silence
        ");
    }

    #[test]
    fn links_show_their_real_target_and_entities_cannot_smuggle_escapes() {
        assert_eq!(show("<https://a.example>", 60), "https://a.example\n");
        assert_eq!(
            show("[https://good.example](https://evil.example)", 60),
            "https://good.example (https://evil.example)\n"
        );
        assert_eq!(show("a&#27;[2Jb", 60), "a\\x1b[2Jb\n");
    }

    #[test]
    fn marks_and_links_end_within_items_of_tight_lists() {
        let colours = Colours::default();
        let style = Style { cells: 60, glyphs: Glyphs::Ascii, colours: &colours };
        let marked = |text: &str, has: fn(Face) -> bool| -> Vec<String> {
            let stream = render(text, style);
            let spans = stream.rows().iter().flat_map(|r| &r.spans).filter(|s| has(s.face));
            spans.map(|s| s.text.clone()).collect()
        };
        let strong: fn(Face) -> bool = |f| f.strong;
        let emphasis: fn(Face) -> bool = |f| f.emphasis;
        assert_eq!(marked("- **bold** then normal\n- plain", strong), ["bold"]);
        assert_eq!(marked("- *slanted* then `code` and normal", emphasis), ["slanted"]);
        assert_eq!(marked("- ~~gone~~ and there", |f| f.struck), ["gone"]);
        let nested = "1. **one** text\n   - *two* text\n     - **three** `x` text\n2. four";
        assert_eq!(marked(nested, strong), ["one", "three"]);
        assert_eq!(marked(nested, emphasis), ["two"]);
        assert_eq!(marked("- `code` text", |f| f.role == Role::Code), ["code"]);
        assert_eq!(marked("- [a bank](http://evil.example/login) text", |f| f.role == Role::Link), ["a bank"]);
        assert_eq!(
            show("- [your bank](http://evil.example/login)\n  - see <https://a.example>", 60),
            "- your bank (http://evil.example/login)\n  - see https://a.example\n"
        );
    }

    #[test]
    fn equations_are_read_and_prices_and_code_stay() {
        assert_eq!(show("so $x^2 \\le y$ holds", 60), "so x² ≤ y holds\n");
        assert_eq!(show("so \\(x^2\\) and `\\(a\\)`", 60), "so x² and \\(a\\)\n");
        // Foreign text in ours has none.
        let foreign = "not found (libcuda.so.1), [x](y) $z$ \\(x^2\\) 1) 2.";
        assert_eq!(show(&crate::core::sanitize::in_markdown(foreign), 60), format!("{foreign}\n"));
        assert_eq!(show("Then\n\\[ \\frac{a}{2} \\]\nfollows.", 60), "Then\n  a/2\nfollows.\n");
        assert_eq!(show("from $5-$6, or $10 to $20", 60), "from $5-$6, or $10 to $20\n");
        assert_eq!(show("$\\begin{x}$", 60), "$\\begin{x}$\n");
    }

    #[test]
    fn fence_line_is_held_back_until_it_ends() {
        let colours = Colours::default();
        let style = Style { cells: 40, glyphs: Glyphs::Ascii, colours: &colours };
        let mut s = Stream::default();
        s.update("text\n\n```ru", Growth::Open, style);
        assert_eq!(s.rows().len(), 1);
        s.update("text\n\n```rust\nfn", Growth::Open, style);
        assert!(s.rows().iter().any(|r| r.text().contains("fn")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn every_prefix_equals_a_fresh_render(parts in proptest::collection::vec(prop_oneof![
            Just("word "), Just("\n"), Just("\n\n"), Just("- item"), Just("  - sub\n"), Just("1. one\n"), Just("# head"),
            Just("```\n"), Just("```rust\n"), Just("code\n"), Just("> quote\n"), Just("| a | b |\n"), Just("|---|---|\n"),
            Just("**bold** "), Just("`x` "), Just("    indented\n"), Just("---\n"), Just("===\n"), Just("[a]: b\n"), Just("[a] "),
            Just("<div>\n"), Just("日本 "), Just("\t"), Just("*"), Just("~~~\n"), Just("#"), Just("$"),
            Just("\\("), Just("\\)"), Just("\\["), Just("\\]"), Just("x^2"),
        ], 0..24)) {
            let colours = Colours::default();
            let style = Style { cells: 24, glyphs: Glyphs::Ascii, colours: &colours };
            let mut stream = Stream::default();
            let mut text = String::new();
            for part in parts {
                text.push_str(part);
                stream.update(&text, Growth::Open, style);
                let mut fresh = Stream::default();
                fresh.update(&text, Growth::Open, style);
                prop_assert_eq!(stream.rows(), fresh.rows(), "open {:?}", text);
                prop_assert!(stream.rows().iter().all(|r| r.width() <= 24));
            }
            stream.update(&text, Growth::Closed, style);
            let whole = render(&text, style);
            prop_assert_eq!(stream.rows(), whole.rows(), "closed {:?}", text);
        }
    }

    fn rendered(text: &str, cells: usize) -> Stream {
        let colours = Colours::default();
        verbatim(text, Style { cells, glyphs: Glyphs::Ascii, colours: &colours })
    }

    fn plain_lines(text: &str, cells: usize) -> Vec<String> {
        rendered(text, cells).rows().iter().map(Row::text).collect()
    }

    #[test]
    fn what_markdown_would_change_stays() {
        for line in
            ["2*3*4", "if __name__ == \"__main__\":", "&amp; is &", "# no title", "[a](b) <b> $x^2$ \\* `c`", "| a |"]
        {
            assert_eq!(plain_lines(line, 40), [line]);
        }
        assert_eq!(
            plain_lines("one\ntwo\n\n\n  - three\n\tfour\n", 40),
            ["one", "two", "", "", "  - three", "    four"]
        );
        assert!(plain_lines("", 40).is_empty() && plain_lines(" \n", 40).is_empty());
    }

    #[test]
    fn rows_of_a_long_line_know_where_they_begin() {
        let stream = rendered("a line of words that is long\nnext", 20);
        let rows: Vec<(String, usize)> = stream.rows().iter().map(|r| (r.text(), r.source)).collect();
        let row = |text: &str, source: usize| (text.to_owned(), source);
        assert_eq!(rows, [row("a line of words that", 0), row("is long", 21), row("next", 29)]);
        assert_eq!(plain_lines("日本語の文章です", 8), ["日本語の", "文章です"]);
        // A search finds text after a tab in its row.
        assert_eq!(
            rendered("a\tb ccccccccccccccccccc", 20).rows().iter().map(|r| r.source).collect::<Vec<_>>(),
            [0, 4]
        );
    }

    #[test]
    fn code_between_fences_looks_as_in_answers() {
        let text = "Why *not*?\n```rust\nlet a = b*c*d;\n\n  e\n```\n- and\n  ```\n  inner\n  ```";
        let stream = rendered(text, 40);
        let rows: Vec<String> = stream.rows().iter().map(|r| r.text().trim_end().to_owned()).collect();
        let head = format!("  {:34}[b1]", "```rust");
        let code = [head.as_str(), "  let a = b*c*d;", "", "    e", "  ```"];
        assert_eq!(rows.first().map(String::as_str), Some("Why *not*?"));
        assert_eq!(rows.get(1..6), Some(&code.map(str::to_owned)[..]));
        assert_eq!(rows.get(6..), Some(&["- and", "  ```", "  inner", "  ```"].map(str::to_owned)[..]));
        assert_eq!(stream.code().iter().map(|c| c.text.as_str()).collect::<Vec<_>>(), ["let a = b*c*d;\n\n  e"]);
        // An incomplete fence is text; an unclosed one extends to the end.
        assert_eq!(plain_lines("a ``` b", 40), ["a ``` b"]);
        assert_eq!(rendered("x\n~~~\ny *z*", 40).code().len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_sources_never_go_back(text in "[a-c*_ &日é👍\t\n-]{0,80}", cells in 8usize..30) {
            let stream = rendered(&text, cells);
            prop_assert!(stream.rows().iter().all(|r| r.width() <= cells));
            prop_assert!(stream.rows().windows(2).all(|w| w[0].source <= w[1].source));
            let visible = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let shown: String = stream.rows().iter().map(Row::text).collect();
            prop_assert_eq!(visible(&shown), visible(&text));
        }
    }
}
