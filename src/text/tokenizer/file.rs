//! What is read of `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`: files of somebody else's making.

use std::time::Duration;

use serde::Deserialize;
use tokenizers::Tokenizer as Library;

use crate::core::caught::caught;
use crate::engine::protocol::Token;
use crate::text::vocabulary::{Pieces, pieces};
use crate::text::{TextError, untrusted};

/// A token of `tokenizer_config.json`: its text, or an object that holds it.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`bos_token` and `eos_token` have to be text, or an object with text as `content`")]
pub(super) enum NamedToken {
    Text(String),
    Object { content: String },
}

impl NamedToken {
    pub(super) fn text(&self) -> &str {
        match self {
            NamedToken::Text(t) | NamedToken::Object { content: t } => t,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) add_bos_token: Option<bool>,
    pub(super) bos_token: Option<NamedToken>,
    pub(super) eos_token: Option<NamedToken>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerationConfig {
    pub(super) eos_token_id: Option<OneOrMany>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`eos_token_id` has to be a token id or a list of them")]
pub(super) enum OneOrMany {
    One(Token),
    Many(Vec<Token>),
}

/// The parts of `tokenizer.json` that say how text is prepared, without the vocabulary.
fn outline(mut json: serde_json::Value) -> serde_json::Value {
    if let Some(model) = json.get_mut("model").and_then(|m| m.as_object_mut()) {
        model.remove("vocab");
        model.remove("merges");
    }
    json
}

/// What loading takes: a second for a hundred thousand merges, unoptimised.
const PATIENCE: Duration = Duration::from_secs(60);
/// Encoded once while loading: what a tokenizer fails on or never ends with, it does here.
const PROBE: &str =
    "<|im_start|>user\n Hello, world! 123\t456\r\n  na\u{EF}ve \u{4F60}\u{597D} \u{1F642} it's x_y\0 END";

/// Tokenizer files are regular expressions, tables and settings of somebody else's making: they are read in one place.
pub(super) fn load(tokenizer: &[u8]) -> Result<(Library, serde_json::Value, Pieces, Token), TextError> {
    let bytes = tokenizer.to_vec();
    let loaded = untrusted::run(PATIENCE, &|| false, move || {
        // Both read the whole file, and the first answer waits for them.
        let (library, json) = std::thread::scope(|scope| {
            let json = scope.spawn(|| caught(|| serde_json::from_slice(&bytes).map(outline)));
            (Library::from_bytes(&bytes), json.join())
        });
        let mut library =
            library.map_err(|e| TextError::malformed("tokenizer.json", in_names_of_the_file(&e.to_string())))?;
        let failed = || TextError::malformed("tokenizer.json", "the library that reads it fails on it");
        let json = json.ok().flatten().ok_or_else(failed)?.map_err(|e| TextError::malformed("tokenizer.json", e))?;
        // Nothing may be cut off a text or filled up to a length that the file names.
        library.with_truncation(None).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        library.with_padding(None);
        library.encode_fast(PROBE, false).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        let (pieces, max_id) = pieces(&library, &json)?;
        Ok((library, json, pieces, max_id))
    });
    loaded.unwrap_or_else(|e| Err(TextError::malformed("tokenizer.json", e)))
}

/// What the library says of a part that it does not know, which it calls by a type of its own: by the part's name in the file.
fn in_names_of_the_file(error: &str) -> String {
    const WORDS: &str = "data did not match any variant of untagged enum ";
    const PARTS: [(&str, &str); 6] = [
        ("Normalizer", "normalizer"),
        ("PreTokenizer", "pre_tokenizer"),
        ("PostProcessor", "post_processor"),
        ("Decoder", "decoder"),
        ("Model", "model"),
        ("Merge", "model.merges"),
    ];
    let Some((before, rest)) = error.split_once(WORDS) else { return error.to_owned() };
    let (of, rest) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()));
    match PARTS.iter().find(|(library, _)| of.starts_with(library)) {
        Some((_, "model.merges")) => format!("{before}`model.merges` has to be a list of pairs{rest}"),
        Some((_, part)) => {
            format!("{before}`{part}` has to be an object with a `type` that is known and what belongs to that{rest}")
        }
        None => format!("{before}a value is not what it has to be{rest}"),
    }
}
