//! Reading `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`, which may be hostile.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::Tokenizer as Library;

use super::bounds::outline;
use crate::engine::protocol::Token;
use crate::text::vocabulary::{Pieces, pieces};
use crate::text::{TextError, untrusted};

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`bos_token` and `eos_token` have to be text, or an object with text as `content`")]
pub(in crate::text) enum NamedToken {
    Text(String),
    Object { content: String },
}

impl NamedToken {
    pub(in crate::text) fn text(&self) -> &str {
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

/// The contents of a JSON file; of an absent one, its defaults.
pub(super) fn parsed<T: DeserializeOwned + Default>(name: &str, file: Option<&[u8]>) -> Result<T, TextError> {
    file.map_or_else(|| Ok(T::default()), |bytes| serde_json::from_slice(bytes))
        .map_err(|e| TextError::malformed(name, e))
}

/// Loading takes a second for a hundred thousand merges, unoptimised.
const PATIENCE: Duration = Duration::from_secs(60);
/// Encoded once while loading, to find a tokenizer that fails or never ends.
const PROBE: &str =
    "<|im_start|>user\n Hello, world! 123\t456\r\n  na\u{EF}ve \u{4F60}\u{597D} \u{1F642} it's x_y\0 END";

pub(super) fn load(tokenizer: &[u8]) -> Result<(Library, serde_json::Value, Pieces, Token), TextError> {
    let bytes = tokenizer.to_vec();
    let loaded = untrusted::run(PATIENCE, &|| false, move || {
        let json = outline(&bytes).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        let mut library = Library::from_bytes(&bytes)
            .map_err(|e| TextError::malformed("tokenizer.json", in_names_of_the_file(&e.to_string())))?;
        // The file must not truncate or pad a text.
        library.with_truncation(None).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        library.with_padding(None);
        library.encode_fast(PROBE, false).map_err(|e| TextError::malformed("tokenizer.json", e))?;
        let (pieces, max_id) = pieces(&library, &json)?;
        Ok((library, json, pieces, max_id))
    });
    loaded.unwrap_or_else(|e| Err(TextError::malformed("tokenizer.json", e)))
}

/// The library's error, with the names of its types replaced by the names in the file.
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
