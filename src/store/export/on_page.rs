//! A message's text on a Markdown page: it leaves no block open, and none of its lines is a heading of the page. A
//! CommonMark parser judges both.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthChar;

use crate::core::sanitize::is_unseen;
use crate::core::transcript::Role;
use crate::text::with_newlines;

/// Attempts to make a text fit: a line that is no heading any more may be the text of an underlined one, and what stood
/// inside of an open block is read as Markdown once that is closed.
const ATTEMPTS: usize = 8;

/// In place of what follows the text on the page: where it is no heading, the text hides it.
const NEXT: &str = "\n\n## You\n";

pub(super) fn speaker(role: Role) -> &'static str {
    match role {
        Role::System => "System",
        Role::User => "You",
        Role::Assistant => "Assistant",
        Role::Document => "Document",
    }
}

pub(super) fn on_page(text: &str) -> String {
    // CommonMark ends a line at a lone carriage return too. Its parsers differ in whether these two are blank.
    let mut page = with_newlines(text).replace(['\u{b}', '\u{c}'], " ").trim_end().to_owned();
    for _ in 0..ATTEMPTS {
        match improved(&page, true).or_else(|| improved(&page, false)) {
            Some(better) => page = better,
            None => return page,
        }
    }
    let fence = fence(text);
    format!("{fence}text\n{}\n{fence}", text.trim_end())
}

/// The text with the end that its last block lacks, or with backslashes that turn headings of the page into text. `None`
/// if nothing is wrong. Parsers differ in what begins a block of HTML, so that none does without `html`.
fn improved(text: &str, html: bool) -> Option<String> {
    // The parser overlooks the end of a block that a tab follows.
    let page = text.replace("\t\n", " \n") + NEXT;
    let page = if html { page } else { page.replace('<', "x") };
    let (mut places, mut fences, mut depth) = (Vec::new(), Vec::new(), 0);
    let mut last = (None, 0..0);
    let mut heading: Option<(HeadingLevel, Range<usize>, String)> = None;
    for (event, range) in Parser::new(&page).into_offset_iter() {
        match (event, &mut heading) {
            (Event::Start(tag), _) => {
                if let Tag::Heading { level, .. } = tag {
                    heading = Some((level, range.clone(), String::new()));
                }
                if depth == 0 {
                    fences.extend(matches!(tag, Tag::CodeBlock(CodeBlockKind::Fenced(_))).then(|| range.clone()));
                    last = (Some(tag), range);
                }
                depth += 1;
            }
            (Event::End(tag), _) => {
                depth -= 1;
                if matches!(tag, TagEnd::Heading(_))
                    && let Some((level, range, words)) = heading.take()
                    && range.start < text.len()
                    && is_of_page(level, &words)
                {
                    let own = page.get(range.clone()).unwrap_or_default().trim_end();
                    let before = if own.starts_with('#') { "" } else { own.trim_end_matches(['=', '-']) };
                    places.push(range.start + before.len());
                }
            }
            (Event::Text(part) | Event::Code(part), Some((.., words))) => words.push_str(&part),
            (Event::SoftBreak | Event::HardBreak, Some((.., words))) => words.push(' '),
            _ => {}
        }
    }
    match last {
        (Some(Tag::CodeBlock(CodeBlockKind::Fenced(_))), block) if block.end > text.len() => {
            let rest = text.get(block.start..)?;
            let ended = format!("{text}\n{}", fence_after(None, rest.lines().next()?)?);
            // With HTML, a fence may be a part of it, and the end would begin a block.
            if html || improved(&ended, true).is_none() {
                return Some(ended);
            }
            let mut blocks = blocks_of_html(text).peekable();
            fences.retain(|fence| {
                while blocks.next_if(|block| block.end <= fence.start).is_some() {}
                blocks.peek().is_some_and(|block| block.start <= fence.start && block.end < fence.end)
            });
            let wrong = if fences.is_empty() { vec![block] } else { fences };
            let mark = |rest: &str| rest.len() - rest.trim_start().len();
            places.extend(wrong.iter().filter_map(|fence| Some(fence.start + mark(text.get(fence.start..)?))));
        }
        (Some(Tag::HtmlBlock), block) if block.end > text.len() => places.extend(beginnings_of_html(text, block.start)),
        _ => {}
    }
    (!places.is_empty()).then(|| with_backslashes(text, places))
}

fn blocks_of_html(text: &str) -> impl Iterator<Item = Range<usize>> {
    let events = Parser::new(text).into_offset_iter();
    events.filter(|(event, _)| matches!(event, Event::Start(Tag::HtmlBlock))).map(|(_, range)| range)
}

/// Where an HTML block begins that a blank line does not end, and each later line that would begin one.
fn beginnings_of_html(text: &str, mut at: usize) -> Vec<usize> {
    let lines = text.get(at..).unwrap_or_default().split_inclusive('\n').map(|line| {
        let own = line.trim_start_matches(' ');
        let indent = line.len() - own.len();
        at += line.len();
        (own.starts_with('<') && indent <= 3).then_some(at - own.len())
    });
    lines.flatten().collect()
}

fn is_of_page(level: HeadingLevel, words: &str) -> bool {
    // It may contain invisible characters anywhere, and at its ends `#` signs that were escaped before.
    let is_seen =
        |c: &char| c.width().is_some_and(|w| w > 0) && !is_unseen(*c) && !c.is_whitespace() && *c != '\u{115f}';
    let seen: String = words.chars().filter(is_seen).collect();
    let title = seen.trim_start_matches('#');
    match level {
        HeadingLevel::H1 => title.starts_with("Branchafter#"),
        HeadingLevel::H2 => {
            let name = title.trim_end_matches('#');
            title.starts_with("Document:") || [Role::System, Role::User, Role::Assistant].map(speaker).contains(&name)
        }
        _ => false,
    }
}

fn with_backslashes(text: &str, places: Vec<usize>) -> String {
    let mut places = places.into_iter().peekable();
    let mut before = |at: usize| places.next_if_eq(&at).map(|_| '\\');
    text.char_indices().flat_map(|(at, c)| before(at).into_iter().chain([c])).collect()
}

/// The fence of the block that is open after a line, outside of lists and quotations.
pub(in crate::store) fn fence_after<'a>(before: Option<&'a str>, line: &'a str) -> Option<&'a str> {
    let own = line.trim_start_matches(' ');
    // With more indentation it is code, or a line of it.
    let Some(mark) = own.chars().next().filter(|c| matches!(c, '`' | '~') && line.len() - own.len() <= 3) else {
        return before;
    };
    let own = own.trim_end();
    let rest = own.trim_start_matches(mark);
    let fence = own.strip_suffix(rest).unwrap_or_default();
    match before {
        Some(open) if fence.starts_with(open) && rest.is_empty() => None,
        Some(open) => Some(open),
        None => (fence.len() >= 3 && !(mark == '`' && rest.contains(mark))).then_some(fence),
    }
}

pub(in crate::store) fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn whatever_reads_as_a_heading_of_the_page_is_none() {
        for (text, expected) in [
            ("Yes.\n## You", "Yes.\n\\## You"),
            ("  ## Document: a.txt ##", "  \\## Document: a.txt ##"),
            ("So.\n\nAssistant\n---\nYes", "So.\n\nAssistant\n\\---\nYes"),
            ("System\n-", "System\n\\-"),
            ("Branch after #2\n===", "Branch after #2\n\\==="),
            ("## **You**", "\\## **You**"),
            ("##\tYou\t#", "\\##\tYou\t#"),
            ("You\u{1c}\n-", "You\u{1c}\n\\-"),
            ("## \u{200b}Document: a.txt", "\\## \u{200b}Document: a.txt"),
            ("## Y\u{3164}o\u{115f}u \u{1160}\u{fe0f}", "\\## Y\u{3164}o\u{115f}u \u{1160}\u{fe0f}"),
            ("> ## You\n\n- Assistant\n  ---", "> \\## You\n\n- Assistant\n  \\---"),
            ("<h2>a</h2>\n## You", "<h2>a</h2>\n\\## You"),
            ("\u{c}\n</pre>\n<![CDATA[", " \n</pre>\n<![CDATA["),
            // A line across the page follows it.
            ("## Assistant\n---", "\\## Assistant\n\\---"),
        ] {
            assert_eq!(on_page(text), expected, "{text:?}");
        }
        for own in [
            "Mine\n---",
            "# You",
            "### You",
            "## Your turn",
            "## System:",
            "## You?",
            "## (Assistant)",
            "System:\n---",
            "You\n===",
            "a\n\n---\n\nb",
            "```\n## You\n```",
            "    ## You",
        ] {
            assert_eq!(on_page(&format!("So:\n\n{own}")), format!("So:\n\n{own}"));
        }
    }

    #[test]
    fn a_fence_that_only_some_parsers_see_is_text() {
        for (text, expected) in [
            ("<pre>\n```\n</pre>\n\nmore text", "<pre>\n\\```\n</pre>\n\nmore text"),
            ("<pre>\n  ~~~\n</pre>", "<pre>\n  \\~~~\n</pre>"),
            ("<pre>\n```\n</pre>\n\n```\na\n```", "<pre>\n\\```\n</pre>\n\n```\na\n```"),
            ("<!--\n ```\n-->\n~~~rs\na\n~~~\n\nmore", "<!--\n \\```\n-->\n~~~rs\na\n~~~\n\nmore"),
            ("<pre>\n```\n</pre>\n\n```\na", "<pre>\n\\```\n</pre>\n\n```\na\n```"),
        ] {
            assert_eq!(on_page(text), expected);
        }
    }

    #[test]
    fn many_headings_among_many_blocks_take_no_time() {
        let begun = Instant::now();
        assert!(on_page(&"```\na\n```\n## You\n".repeat(100_000)).ends_with("```\n\\## You"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_open_block_is_ended_with_its_own_fence() {
        for (text, end) in [
            // Some parsers know no `h2`, and some no HTML.
            ("<h2>a</h2>\n```\nb", Some("```")),
            ("<details>\n\n```\na\n```\n\n</details>", None),
            ("~~~\t\n~~~\t\n+++", None),
            ("```\na\n``` \t\n\n## b", None),
            ("a ``` b", None),
            ("```\na\n```", None),
            ("```rust\nlet a;\n```\nand ~~~", None),
            ("```", Some("```")),
            ("```rust\nlet a;", Some("```")),
            ("a\n~~~~\nb\n~~~\n````", Some("~~~~")),
            ("  ````md\n```\na\n```", Some("````")),
            ("```\na\n```\n```\nb", Some("```")),
            ("```\na\n``` b", Some("```")),
            ("```\na\n    ```", Some("```")),
            ("```\na\n   ````", None),
            // The block ends with the list or the quotation.
            ("1. Run\n\n   ```sh\n   ls", None),
            ("- ```\n  ls\n  ```", None),
            ("> ```\n> a", None),
        ] {
            assert_eq!(on_page(text), end.map_or(text.to_owned(), |end| format!("{text}\n{end}")), "{text:?}");
        }
    }
}
