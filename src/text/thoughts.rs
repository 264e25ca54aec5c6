//! Thoughts as the model writes them: their tags, and the white space between tags and text. Templates have their
//! own.

/// The closing tag, for literals that contain it.
macro_rules! close {
    () => {
        "</think>"
    };
}

pub const OPEN: &str = "<think>";
pub const CLOSE: &str = close!();
/// Between a thought and the answer.
pub const BETWEEN: &str = concat!("\n", close!(), "\n\n");

/// Whether the answer to a rendered prompt begins inside a thought.
pub fn opened(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// A thought without an answer so far.
pub fn unfinished(thinking: &str) -> String {
    format!("{OPEN}\n{thinking}")
}

/// A thought and its answer.
pub fn whole(thinking: &str, text: &str) -> String {
    format!("{OPEN}\n{thinking}{BETWEEN}{text}")
}

/// The part of a generated answer that follows a rendered prompt, which may have opened its thought.
pub fn behind<'a>(prompt: &str, answer: &'a str) -> &'a str {
    let own = opened(prompt).then(|| answer.strip_prefix(OPEN)?.strip_prefix('\n')).flatten();
    own.unwrap_or(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thought_that_the_prompt_opened_is_not_opened_again() {
        let answer = whole("hm", "Yes.");
        assert_eq!(answer, "<think>\nhm\n</think>\n\nYes.");
        assert_eq!(behind("<|im_start|>assistant\n<think>\n", &answer), "hm\n</think>\n\nYes.");
        assert_eq!(behind("<|im_start|>assistant\n", &answer), answer);
        assert_eq!(behind("<think>\n", "Yes."), "Yes.");
        assert!(opened("<think>\n") && !opened("<think>\n\n</think>\n\n"));
        assert!(answer.starts_with(&unfinished("hm")));
    }
}
