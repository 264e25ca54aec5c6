//! Thoughts of an answer as the model writes them: the tags around them, and what stands between tags and text. Templates have
//! their own.

/// The tag, for literals that hold it.
macro_rules! close {
    () => {
        "</think>"
    };
}

/// Opens a thought.
pub const OPEN: &str = "<think>";
/// Closes it.
pub const CLOSE: &str = close!();
/// What stands between a thought and the answer.
pub const BETWEEN: &str = concat!("\n", close!(), "\n\n");

/// Whether the answer to a rendered prompt begins inside a thought.
pub fn opened(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// A thought that nothing follows yet.
pub fn unfinished(thinking: &str) -> String {
    format!("{OPEN}\n{thinking}")
}

/// A thought with the answer behind it.
pub fn whole(thinking: &str, text: &str) -> String {
    format!("{OPEN}\n{thinking}{BETWEEN}{text}")
}

/// What of an answer as it was generated has to be put behind a rendered prompt, which may have opened its thought.
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
