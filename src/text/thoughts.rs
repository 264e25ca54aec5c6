//! Thoughts as the model writes them: tags, and the white space between tags and text. Templates have their own.

pub const OPEN: &str = "<think>";
pub const CLOSE: &str = "</think>";
/// Between a thought and the answer.
pub const BETWEEN: &str = "\n</think>\n\n";

/// Whether the answer to a rendered prompt begins inside a thought.
pub fn opened(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// A thought without an answer so far.
pub fn unfinished(thinking: &str) -> String {
    format!("{OPEN}\n{thinking}")
}

pub fn whole(thinking: &str, text: &str) -> String {
    format!("{OPEN}\n{thinking}{BETWEEN}{text}")
}

/// The part of a generated answer that follows a rendered prompt, which may have opened its thought.
pub fn after<'a>(prompt: &str, answer: &'a str) -> &'a str {
    let own = opened(prompt).then(|| answer.strip_prefix(OPEN)?.strip_prefix('\n')).flatten();
    own.unwrap_or(answer)
}

/// Splits an answer that began inside a thought without showing it: the template opened the thought in the prompt, so that
/// the text has the closing tag alone, at the start or the end of a line. `None`: the text is all answer.
pub fn unopened(text: &str) -> Option<(&str, &str)> {
    let is_tag = |at: &usize| {
        let (before, after) = text.split_at(*at);
        let after = after.strip_prefix(CLOSE).unwrap_or("");
        let starts_line = before.trim_end_matches([' ', '\t']).ends_with('\n');
        starts_line || after.is_empty() || after.starts_with(['\n', '\r'])
    };
    let at = text.match_indices(CLOSE).map(|(at, _)| at).find(is_tag)?;
    let (thinking, answer) = (text.get(..at)?, text.get(at + CLOSE.len()..)?);
    // Backticks within a line are no fence.
    let fences = thinking.lines().filter(|line| line.trim_start().starts_with("```")).count();
    let quoted = fences % 2 == 1 && thinking.matches("```").count() % 2 == 1;
    (!quoted && !thinking.contains(OPEN)).then(|| (thinking.trim(), answer.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thought_without_opening_tag_ends_at_a_closing_tag_on_a_line_end() {
        assert_eq!(unopened("I say yes.\n</think>\n\nYes."), Some(("I say yes.", "Yes.")));
        assert_eq!(unopened("I say yes.</think>\r\nYes."), Some(("I say yes.", "Yes.")));
        assert_eq!(unopened("Hm.\n</think>Yes.\n</think>\n"), Some(("Hm.", "Yes.\n</think>\n")));
        assert_eq!(unopened("I use ``` here\n</think>\n\nans"), Some(("I use ``` here", "ans")));
        assert_eq!(unopened("I write ```py\nx\n``` so\n</think>\nans"), Some(("I write ```py\nx\n``` so", "ans")));
        assert_eq!(unopened("Only thoughts.\n</think>"), Some(("Only thoughts.", "")));
        for text in ["The tag </think> ends it.", "Yes.", "<think>\na\n</think>\nb", "```\na\n</think>\n```\n"] {
            assert_eq!(unopened(text), None, "{text}");
        }
    }

    #[test]
    fn a_thought_that_the_prompt_opened_is_not_opened_again() {
        let answer = whole("hm", "Yes.");
        assert_eq!(answer, "<think>\nhm\n</think>\n\nYes.");
        assert_eq!(after("<|im_start|>assistant\n<think>\n", &answer), "hm\n</think>\n\nYes.");
        assert_eq!(after("<|im_start|>assistant\n", &answer), answer);
        assert_eq!(after("<think>\n", "Yes."), "Yes.");
        assert!(opened("<think>\n") && !opened("<think>\n\n</think>\n\n"));
        assert!(answer.starts_with(&unfinished("hm")));
    }
}
