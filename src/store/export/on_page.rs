//! A message's text on a Markdown page: it leaves no code block open, and none of its lines is a heading of the page.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

use super::fences::missing_end;
use crate::core::transcript::Role;

/// Passes over the headings: a line that is no heading any more may become the text of an underlined one.
const LOOKS: usize = 3;

pub(super) fn speaker(role: Role) -> &'static str {
    match role {
        Role::System => "System",
        Role::User => "You",
        Role::Assistant => "Assistant",
        Role::Document => "Document",
    }
}

pub(super) fn on_page(text: &str) -> String {
    let mut text = text.trim_end().to_owned();
    for _ in 0..LOOKS {
        let places = headings(&text);
        if places.is_empty() {
            break;
        }
        text = with_backslashes(&text, &places);
    }
    if let Some(end) = missing_end(&text) {
        text.push('\n');
        text.push_str(&end);
    }
    text
}

/// Positions at which a backslash turns a heading that reads like one between messages into text, in order.
fn headings(text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    if !text.contains(['#', '=', '-']) {
        return places;
    }
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
