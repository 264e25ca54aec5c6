//! Literal text, for questions and system texts, in which `2*3*4` and `__name__` keep their signs.
//!
//! Each line keeps its indentation; only fenced code looks as in answers.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Tag};

use super::markdown::{Stream, Style};
use super::render::{Writer, render_block, top_level};
use super::rows::{Face, Row};
use super::wrap::{Piece, Prefix, wrap};

pub(super) fn render(text: &str, style: Style<'_>) -> Stream {
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
    Stream::of(rows, code)
}

fn fences(text: &str) -> Vec<Range<usize>> {
    if !text.contains("```") && !text.contains("~~~") {
        return Vec::new();
    }
    let fenced = |event: &Event<'_>| matches!(event, Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))));
    top_level(text).filter(|(event, _)| fenced(event)).map(|(_, range)| whole_lines(text, &range)).collect()
}

fn whole_lines(text: &str, range: &Range<usize>) -> Range<usize> {
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
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
        pieces.push(Piece { text: part.to_owned(), face, source });
        source += part.len() + 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::markdown::Colours;
    use super::super::options::Glyphs;
    use super::super::rows::Joint;
    use super::*;

    fn rendered(text: &str, cells: usize) -> Stream {
        let colours = Colours::default();
        render(text, Style { cells, glyphs: Glyphs::Ascii, colours: &colours })
    }

    fn lines(text: &str, cells: usize) -> Vec<String> {
        rendered(text, cells).rows().iter().map(Row::text).collect()
    }

    #[test]
    fn what_markdown_would_change_stays() {
        for line in
            ["2*3*4", "if __name__ == \"__main__\":", "&amp; is &", "# no title", "[a](b) <b> $x^2$ \\* `c`", "| a |"]
        {
            assert_eq!(lines(line, 40), [line]);
        }
        assert_eq!(lines("one\ntwo\n\n\n  - three\n\tfour\n", 40), ["one", "two", "", "", "  - three", "    four"]);
        assert!(lines("", 40).is_empty() && lines(" \n", 40).is_empty());
    }

    #[test]
    fn long_lines_are_wrapped_and_joined_again_when_copied() {
        let stream = rendered("a line of words that is long\nnext", 20);
        let rows: Vec<(String, usize, Joint)> = stream.rows().iter().map(|r| (r.text(), r.source, r.joint)).collect();
        let row = |text: &str, source: usize, joint: Joint| (text.to_owned(), source, joint);
        assert_eq!(
            rows,
            [
                row("a line of words that", 0, Joint::Space),
                row("is long", 21, Joint::Line),
                row("next", 29, Joint::Line)
            ]
        );
        assert_eq!(lines("日本語の文章です", 8), ["日本語の", "文章です"]);
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
        assert_eq!(lines("a ``` b", 40), ["a ``` b"]);
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
