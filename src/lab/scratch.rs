//! A bench's own data directory and document.

use std::path::Path;

use crate::backend::MAX_POSITIONS;
use crate::cli::{Context, Exit, Failure};
use crate::config::settings::{Origin, SaveStates};
use crate::text::TextModel;

const ROOM: u64 = 8_192;
/// Entries of the shortest ledger: the questions name the 20th.
const LEAST_ENTRIES: u64 = 24;

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
        // Later entries of the ledger have longer numbers than the estimate assumes.
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

pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", path.display())))
}

/// A text of at least `tokens` tokens and at most one entry more, without two equal entries. Its length is measured,
/// since the tokens of an entry depend on the tokenizer and the number.
pub(super) fn ledger(text: &TextModel, tokens: u64) -> Result<String, Failure> {
    const WHO: [&str; 7] = ["Anna", "Marta", "Tom", "Ivan", "Lena", "Omar", "Ruth"];
    const WHAT: [&str; 5] = ["boxes", "letters", "coins", "lamps", "ropes"];
    const WHERE: [&str; 6] = ["Oslo", "Rome", "Lima", "Kyoto", "Bern", "Cairo"];
    let pick =
        |words: &[&'static str], n: u64| words.get((n % words.len() as u64) as usize).copied().unwrap_or_default();
    let entry = |i: u64| {
        let n = i.wrapping_mul(crate::core::GOLDEN) >> 20;
        let (who, what, place) = (pick(&WHO, n), pick(&WHAT, n >> 8), pick(&WHERE, n >> 16));
        format!("Entry {i}: {who} counted {} {what} in {place}.\n", n % 9000 + 10)
    };
    let some: String = (1000..1200).map(entry).collect();
    let each = (text.tokenizer.encode_plain(&some)?.len() as u64 / 200).max(1);
    let mut entries = LEAST_ENTRIES;
    let mut body: String = (1..=entries).map(entry).collect();
    loop {
        let missing = tokens.saturating_sub(text.tokenizer.encode_plain(&body)?.len() as u64);
        if missing == 0 {
            return Ok(body);
        }
        // Short steps at the end: the text must not exceed the room.
        let more = (missing * 15 / 16 / each).max(1);
        body.extend((entries + 1..=entries + more).map(entry));
        entries += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_has_the_requested_tokens() {
        let text = crate::client::remote::text_model().unwrap();
        for tokens in [1, 6_000, 8_192, 30_000] {
            let body = ledger(&text, tokens).unwrap();
            let has = text.tokenizer.encode_plain(&body).unwrap().len() as u64;
            let least = ledger(&text, 1).unwrap();
            let at_least_entries = body.starts_with(&least);
            assert!(at_least_entries && has >= tokens, "{has} of {tokens}");
            assert!(body == least || has < tokens + 40, "{has} of {tokens}");
        }
    }
}
