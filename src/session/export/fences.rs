//! Fences of blocks of code in Markdown: where a text has them, what ends one that goes on behind the text, and one for any code.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

/// A text's blocks of code between fences.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// Where they are.
    pub(super) blocks: Vec<Range<usize>>,
    /// The line that ends the last one, which the text does not end. One in a list or a quotation ends with that.
    pub(super) missing: Option<String>,
}

impl Fences {
    /// Those of a text without spaces at its end.
    pub(super) fn of(text: &str) -> Fences {
        let mut fences = Fences::default();
        if !text.contains("```") && !text.contains("~~~") {
            return fences;
        }
        let mut depth = 0usize;
        for (event, range) in Parser::new(text).into_offset_iter() {
            match event {
                Event::Start(tag) => {
                    if matches!(tag, Tag::CodeBlock(CodeBlockKind::Fenced(_))) {
                        if depth == 0 && text.get(range.end..).is_some_and(|rest| rest.trim().is_empty()) {
                            fences.missing = missing_end(text.get(range.clone()).unwrap_or_default());
                        }
                        fences.blocks.push(range);
                    }
                    depth += 1;
                }
                Event::End(_) => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        fences
    }
}

/// The end of a block that has none.
fn missing_end(block: &str) -> Option<String> {
    let block = block.trim_start_matches(' ');
    let mark = block.chars().next()?;
    let marks = |line: &str| line.chars().take_while(|c| *c == mark).count();
    let opened = marks(block);
    let last = block.lines().skip(1).last().unwrap_or_default().trim_end();
    let line = last.trim_start_matches(' ');
    let ended = last.len() - line.len() <= 3 && marks(line) >= opened && marks(line) == line.chars().count();
    (!ended).then(|| String::from(mark).repeat(opened))
}

/// A code fence longer than any in the text.
pub(in crate::session) fn fence(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_goes_on_behind_its_text_is_ended_with_its_own_fence() {
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
            // It ends with the list, with the quotation.
            ("1. Run\n\n   ```sh\n   ls", None),
            ("- ```\n  ls\n  ```", None),
            ("> ```\n> a", None),
        ] {
            assert_eq!(Fences::of(text).missing.as_deref(), end, "{text:?}");
        }
    }
}
