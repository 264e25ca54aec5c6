//! Fences of code blocks in Markdown: which lines open and close one, how to close an open one, and a fence for any
//! code.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

/// The line that closes the last block of a text (without trailing spaces) if it is open. A block in a list or a
/// quotation ends with that.
pub(super) fn missing_end(text: &str) -> Option<String> {
    if !text.contains("```") && !text.contains("~~~") {
        return None;
    }
    let (mut missing, mut depth) = (None, 0usize);
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                let fenced = matches!(tag, Tag::CodeBlock(CodeBlockKind::Fenced(_)));
                if fenced && depth == 0 && text.get(range.end..).is_some_and(|rest| rest.trim().is_empty()) {
                    missing = end_of(text.get(range).unwrap_or_default());
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    missing
}

fn end_of(block: &str) -> Option<String> {
    let mut lines = block.trim_start_matches(' ').lines();
    let opened = fence_after(None, lines.next()?)?;
    fence_after(Some(opened), lines.last().unwrap_or_default()).map(str::to_owned)
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
    use super::*;

    #[test]
    fn an_open_block_is_ended_with_its_own_fence() {
        for (text, end) in [
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
            assert_eq!(missing_end(text).as_deref(), end, "{text:?}");
        }
    }
}
