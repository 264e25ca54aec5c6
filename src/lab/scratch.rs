//! A bench's own data directory and document.

use super::eval::needles::{SENTENCE_TOKENS, filler};
use crate::backend::MAX_POSITIONS;
use crate::cli::{Context, Exit, Failure};
use crate::config::settings::{Origin, SaveStates};
use crate::core::SplitMix64;
use crate::text::TextModel;

const ROOM: u64 = 8_192;

/// A temporary folder on the disk of the sessions, and a context with its data directory in it, for documents of up to
/// `tokens` tokens. The context keeps all state and never asks for confirmation.
pub(super) fn scratch(context: &Context, tokens: u64) -> Result<(tempfile::TempDir, Context), Failure> {
    let data = &context.dirs.data;
    let made = std::fs::create_dir_all(data).and_then(|()| tempfile::Builder::new().prefix("bench-").tempdir_in(data));
    let folder = made.map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", data.display())))?;
    let mut own = context.clone();
    own.dirs.data = folder.path().join("data");
    // Changes from here on count as settings of its sessions.
    own.loaded.keep_all();
    // Overrides the recommendation of the model's folder.
    own.loaded.origins.insert("sampling.temperature".into(), Origin::BuiltIn);
    let config = &mut own.loaded.config;
    if config.model.max_context == 0 {
        config.model.max_context = tokens + tokens / 8 + ROOM;
    }
    config.model.reserve_answer = config.model.reserve_answer.min(ROOM / 4);
    config.sampling.temperature = 0.0;
    (config.sessions.save_state, config.sessions.keep_turns) = (SaveStates::Turn, 64);
    (config.sessions.min_free_gib, config.sessions.max_state_gib) = (0.0, 1e6);
    (config.load.confirm_tokens, config.load.max_file_mib) = (u64::MAX, 1 << 20);
    Ok((folder, own))
}

pub(super) fn longest(context: &Context) -> u64 {
    let all = MAX_POSITIONS as u64;
    match context.config().model.max_context {
        0 => (all - ROOM) / 9 * 8,
        set => set.min(all),
    }
}

/// A text of at least `tokens` tokens, and little more. Its length is measured, since that of a sentence depends on the
/// tokenizer.
pub(super) fn book(text: &TextModel, tokens: u64) -> Result<String, Failure> {
    let (mut body, mut dice) = (String::new(), SplitMix64::new(11));
    loop {
        let missing = tokens.saturating_sub(text.tokenizer.encode_plain(&body)?.len() as u64);
        if missing == 0 {
            return Ok(body);
        }
        // Short steps at the end: the text must not exceed the room.
        for _ in 0..(missing * 15 / 16 / SENTENCE_TOKENS as u64).max(1) {
            body.push_str(&filler(&mut dice));
            body.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_has_the_requested_tokens() {
        let text = crate::client::remote::text_model().unwrap();
        for tokens in [1, 6_000, 8_192, 30_000] {
            let has = text.tokenizer.encode_plain(&book(&text, tokens).unwrap()).unwrap().len() as u64;
            assert!((tokens..tokens + 40).contains(&has), "{has} of {tokens}");
        }
    }
}
