//! The longest kept prefix of a prompt: live, or on disk from whichever request or run of the program.
//!
//! A text is compared with the texts that states were recorded with; so it does not matter how an answer was cut into tokens.
//! A prompt of tokens is compared token by token as well.

use crate::desk::path::Path;
use crate::session::{Store, StoreError};

use super::ask::Prompt;

/// Whether a path is the beginning of a prompt of tokens; a prompt of text has been compared already.
fn same_tokens(path: &Path, prompt: &Prompt) -> bool {
    prompt.tokens.as_ref().is_none_or(|wanted| {
        let tokens = path.tokens();
        tokens.len() < wanted.len() && wanted.starts_with(&tokens)
    })
}

/// The part of the live path that a prompt begins with, leaving something to be read. Whether that is all of it.
pub(super) fn of_live(live: &Path, prompt: &Prompt) -> (Path, bool) {
    let text = &prompt.rendered.text;
    let mut same = live.unchanged(text);
    while !same.segments().is_empty() && (same.text_bytes() >= text.len() || !same_tokens(&same, prompt)) {
        same = same.prefix(same.segments().len() - 1);
    }
    let whole = same.segments().len() == live.segments().len();
    (same, whole)
}

/// The longest prefix of a prompt that can be made live.
///
/// # Errors
/// The store cannot be read.
pub(super) fn longest(store: &Store, fingerprint: &str, live: &Path, prompt: &Prompt) -> Result<Path, StoreError> {
    let (same, whole) = of_live(live, prompt);
    let least = if whole { same.text_bytes() } else { 0 };
    for id in store.segments_under(fingerprint, &prompt.rendered.text)? {
        let plan = match store.plan_restore(&id) {
            Ok(plan) => plan,
            Err(StoreError::NoSegment { .. }) => continue,
            Err(e) => return Err(e),
        };
        let path = Path::new(plan.path).prefix(plan.usable);
        if path.text_bytes() <= least {
            // What comes after it is shorter, but may have lost less.
            continue;
        }
        if same_tokens(&path, prompt) {
            return Ok(path);
        }
    }
    Ok(if whole { same } else { Path::default() })
}
