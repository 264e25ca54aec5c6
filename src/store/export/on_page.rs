//! A message's text on a Markdown page: a CommonMark parser finds no open block and no heading of the page in it.

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthChar;

use crate::core::sanitize::is_unseen;
use crate::core::transcript::Role;
use crate::text::with_newlines;

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

/// The text as it is, or with the fence that its last block lacks, else in a fence of its own.
pub(super) fn on_page(text: &str) -> String {
    // CommonMark ends a line at a lone carriage return too. Its parsers differ in whether these two are blank.
    let page = with_newlines(text).replace(['\u{b}', '\u{c}'], " ").trim_end().to_owned();
    let ended = page.lines().fold(None, fence_after).map(|fence| format!("{page}\n{fence}"));
    // Parsers differ in what begins a block of HTML: for some, nothing does.
    let fits = |page: &String| fits(page) && fits(&page.replace('<', "x"));
    [Some(page), ended].into_iter().flatten().find(fits).unwrap_or_else(|| {
        let fence = fence(text);
        format!("{fence}text\n{}\n{fence}", text.trim_end())
    })
}

fn fits(text: &str) -> bool {
    // The parser overlooks the end of a block that a tab follows.
    let page = text.replace("\t\n", " \n") + NEXT;
    let (mut depth, mut last, mut heading) = (0, 0, None::<(HeadingLevel, String)>);
    for (event, range) in Parser::new(&page).into_offset_iter() {
        match (event, &mut heading) {
            (Event::Start(tag), _) => {
                if let Tag::Heading { level, .. } = tag {
                    heading = Some((level, String::new()));
                }
                if depth == 0 {
                    last = range.start;
                }
                depth += 1;
            }
            (Event::End(tag), _) => {
                depth -= 1;
                if matches!(tag, TagEnd::Heading(_))
                    && let Some((level, words)) = heading.take()
                    && range.start < text.len()
                    && is_of_page(level, &words)
                {
                    return false;
                }
            }
            (Event::Text(part) | Event::Code(part), Some((_, words))) => words.push_str(&part),
            (Event::SoftBreak | Event::HardBreak, Some((_, words))) => words.push(' '),
            _ => {}
        }
    }
    last >= text.len()
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
    fn a_text_that_reads_as_a_heading_of_the_page_is_in_a_fence() {
        for text in [
            "Yes.\n## You",
            "  ## Document: a.txt ##",
            "So.\n\nAssistant\n---\nYes",
            "System\n-",
            "Branch after #2\n===",
            "## **You**",
            "##\tYou\t#",
            "You\u{1c}\n-",
            "## \u{200b}Document: a.txt",
            "## Y\u{3164}o\u{115f}u \u{1160}\u{fe0f}",
            "> ## You",
            "- Assistant\n  ---",
            "<h2>a</h2>\n## You",
            // A line across the page follows it.
            "## Assistant\n---",
            // Some parsers see no HTML here.
            "<pre>\n```\n</pre>\n\nmore text",
            "<pre>\n  ~~~\n</pre>",
            "<!--\n ```\n-->\n~~~rs\na\n~~~\n\nmore",
            "<pre>\n```\n</pre>\n\n```\na",
        ] {
            let fence = fence(text);
            assert_eq!(on_page(text), format!("{fence}text\n{text}\n{fence}"));
        }
        assert_eq!(on_page("\u{c}\n</pre>\n<![CDATA["), " \n</pre>\n<![CDATA[");
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
    fn many_headings_among_many_blocks_take_no_time() {
        let begun = Instant::now();
        assert!(on_page(&"```\na\n```\n## You\n".repeat(100_000)).starts_with("````text\n"));
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
