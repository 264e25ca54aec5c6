//! A message's text on a Markdown page: it leaves no block open, and none of its lines is a heading of the page.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

use super::fences::{fence, missing_end};
use crate::core::transcript::Role;
use crate::text::with_newlines;

/// Passes that look for headings and open blocks: a line that is no heading any more may be the text of an underlined
/// one, and what stood inside of an open block is read as Markdown once that is closed.
const PASSES: usize = 4;

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
    // CommonMark ends a line at a lone carriage return too.
    let mut page = with_newlines(text).trim_end().to_owned();
    for _ in 0..PASSES {
        if let Some(end) = missing_end(&page) {
            page.push('\n');
            page.push_str(&end);
        }
        let mut places = headings(&format!("{page}{NEXT}"));
        if places.pop_if(|place| *place > page.len()).is_none() {
            places.extend(open_html(&page));
            places.sort_unstable();
        }
        if places.is_empty() {
            return page;
        }
        page = with_backslashes(&page, &places);
    }
    let fence = fence(text);
    format!("{fence}text\n{}\n{fence}", text.trim_end())
}

/// Where a last HTML block begins that a blank line does not end, and each later line that would begin one.
fn open_html(text: &str) -> Vec<usize> {
    let blocks = Parser::new(text).into_offset_iter().filter(|(event, _)| *event == Event::Start(Tag::HtmlBlock));
    let Some((_, last)) = blocks.last() else { return Vec::new() };
    let mut places = Vec::new();
    let mut at = last.start;
    for line in text.get(last.start..).unwrap_or_default().split_inclusive('\n') {
        let own = line.trim_start_matches(' ');
        if own.starts_with('<') && line.len() - own.len() <= 3 {
            places.push(at + line.len() - own.len());
        }
        at += line.len();
    }
    places
}

/// Positions at which a backslash turns a heading that reads like one between messages into text, in order.
fn headings(text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    let mut open: Option<(HeadingLevel, Range<usize>, String)> = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => open = Some((level, range, String::new())),
            Event::End(TagEnd::Heading(_)) => {
                if let Some((level, range, words)) = open.take()
                    && is_of_page(level, &words)
                {
                    places.push(mark(text, range));
                }
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some((.., words)) = &mut open {
                    words.push_str(&part);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some((.., words)) = &mut open {
                    words.push(' ');
                }
            }
            _ => {}
        }
    }
    places
}

fn is_of_page(level: HeadingLevel, words: &str) -> bool {
    // An underlined heading may begin with `#` signs that were escaped before.
    let title = words.trim_start_matches('#').trim();
    match level {
        HeadingLevel::H1 => title.starts_with("Branch after #"),
        HeadingLevel::H2 => {
            title.starts_with("Document:") || [Role::System, Role::User, Role::Assistant].map(speaker).contains(&title)
        }
        _ => false,
    }
}

fn mark(text: &str, heading: Range<usize>) -> usize {
    let own = text.get(heading.clone()).unwrap_or_default();
    let before = if own.starts_with('#') { "" } else { own.trim_end().trim_end_matches(['=', '-']) };
    heading.start + before.len()
}

fn with_backslashes(text: &str, places: &[usize]) -> String {
    let (mut out, mut at) = (String::with_capacity(text.len() + places.len()), 0);
    for place in places {
        out.push_str(text.get(at..*place).unwrap_or_default());
        out.push('\\');
        at = *place;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
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
            ("> ## You\n\n- Assistant\n  ---", "> \\## You\n\n- Assistant\n  \\---"),
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
        assert!(on_page(&"```\na\n```\n## You\n".repeat(100_000)).ends_with("```\n\\## You"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
