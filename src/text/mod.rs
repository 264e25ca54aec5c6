//! Text in and out of the model: tokens, the chat template, streaming text, documents from disk.
//!
//! Owns the way from characters to token ids and back. Never talks to a device, never draws, never writes a file.
//! Invariants: tokens encoded from a text spell that text ([`spell`]); what [`stream::StreamDecoder`] emitted piece by piece
//! is what the whole list spells.

pub mod child;
pub mod cited;
pub mod clock;
pub mod diff;
mod encoding;
mod evidence;
pub mod extract;
pub mod grammar;
pub mod near;
mod own_space;
mod part;
pub mod pipe;
pub mod quotes;
pub mod recommended;
pub(crate) mod references;
pub mod sample;
pub mod schema;
mod sentences;
pub mod sources;
pub mod spell;
pub mod steer;
mod stem;
pub mod stream;
pub mod surrogates;
pub mod template;
mod thesaurus;
pub mod thoughts;
mod tighten;
pub mod tokenizer;
mod untrusted;
mod vocabulary;

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::settings::ThinkMode;
use crate::core::{Exit, files, plain_words};
pub use child::this_program;
pub use encoding::{Decoded, NotText, decode};
pub use own_space::Before;
pub use part::Part;
pub use recommended::Recommended;
pub use spell::Walk;
pub use stream::{Begin, Delta, Places, StreamDecoder};
pub use template::{ChatMessage, ChatRole, RenderOptions, Template};
pub use thesaurus::BYTES as THESAURUS_BYTES;
pub use tokenizer::{Halt, Specials, Tokenizer};

/// Every line end as `\n`.
pub fn with_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("{path}: {}. A model folder needs tokenizer.json and tokenizer_config.json", plain_words(source))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{file}: {reason}. Correct it, or fetch it again: sala-chat model download")]
    Malformed { file: String, reason: String },
    #[error(
        "tokenizer.json has ids up to {max_id}, the model only {rows} embedding rows: they belong to different models. Use the tokenizer that came with the weights"
    )]
    Vocabulary { max_id: u32, rows: usize },
    #[error("the text has more than {most} tokens")]
    TooLong { most: usize },
    #[error("tokenizing failed: {0}")]
    Encode(String),
    #[error(
        "no chat template in tokenizer_config.json and no chat_template.jinja next to it. Add the file of the original model"
    )]
    NoTemplate,
    #[error("stopped")]
    Stopped,
    #[error("chat template: {0}")]
    Template(String),
    /// The template ran into a limit on its instructions, depth, output or time.
    #[error("chat template: {0}")]
    Exhausted(String),
}

impl TextError {
    fn malformed(file: &str, reason: impl ToString) -> TextError {
        TextError::Malformed { file: file.to_owned(), reason: reason.to_string() }
    }

    /// Exit code of a run that ends with this error (docs/terminal.md §2).
    pub fn exit(&self) -> Exit {
        match self {
            TextError::Read { .. }
            | TextError::Malformed { .. }
            | TextError::Vocabulary { .. }
            | TextError::NoTemplate
            | TextError::Template(_)
            | TextError::Exhausted(_) => Exit::NoModel,
            TextError::TooLong { .. } => Exit::TooLong,
            TextError::Encode(_) => Exit::Failure,
            TextError::Stopped => Exit::Stopped,
        }
    }
}

#[derive(Clone, Debug)]
pub struct TextModel {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Arc<Template>,
    /// Sampling that its authors recommend; empty for the built-in model.
    pub recommended: Recommended,
}

impl TextModel {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, and `chat_template.jinja` or `generation_config.json` if present.
    pub fn load(dir: &Path) -> Result<TextModel, TextError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let most = if name == "tokenizer.json" { files::TOKENIZER_BYTES } else { files::MODEL_CONFIG_BYTES };
            files::read(&path, most).map_err(|source| TextError::Read { path, source })
        };
        let optional = |name: &str| match read(name) {
            // A broken link is an error: a file was intended.
            Err(TextError::Read { path, source }) if source.kind() == NotFound && !path.is_symlink() => Ok(None),
            read => read.map(Some),
        };
        let (generation, jinja) = (optional("generation_config.json")?, optional("chat_template.jinja")?);
        let (tokenizer, config) = (read("tokenizer.json")?, read("tokenizer_config.json")?);
        let text = TextModel::from_bytes(&tokenizer, &config, generation.as_deref(), jinja.as_deref());
        let text = text.and_then(|text| {
            text.template.check_question()?;
            text.tokenizer.prepare();
            let related = |name: &str| files::read(&dir.join(name), thesaurus::BYTES);
            let recommended = Recommended::of_folder(generation.as_deref(), related)?;
            Ok(TextModel { recommended, ..text })
        });
        text.map_err(|e| match e {
            TextError::Malformed { file, reason } => {
                TextError::Malformed { file: dir.join(file).display().to_string(), reason }
            }
            e => e,
        })
    }

    /// The prompt of a chat that asks this about one document.
    pub fn question_about(&self, name: &str, document: &str, question: &str) -> Result<String, TextError> {
        let mut turns = ChatMessage::document(name, document).to_vec();
        turns.push(ChatMessage::new(ChatRole::User, question));
        self.template.render(&turns, &RenderOptions::prompt(ThinkMode::Auto))
    }

    /// From file contents, for the built-in model. Nothing is recommended.
    pub fn from_bytes(
        tokenizer: &[u8],
        tokenizer_config: &[u8],
        generation_config: Option<&[u8]>,
        chat_template: Option<&[u8]>,
    ) -> Result<TextModel, TextError> {
        let tokenizer = Tokenizer::from_bytes(tokenizer, Some(tokenizer_config), generation_config)?;
        let template = Template::from_config(tokenizer_config, chat_template)?;
        let recommended = Recommended::default();
        Ok(TextModel { tokenizer: Arc::new(tokenizer), template: Arc::new(template), recommended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_a_thesaurus_that_is_none_is_refused_with_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
        let named = |name: &str| {
            let keys = serde_json::json!({ "quote_opening": "It says: \"", "quote_thesaurus": name }).to_string();
            let read = |name: &str| files::read(&folder.path().join(name), thesaurus::BYTES);
            let recommended = Recommended::of_folder(Some(keys.as_bytes()), read).map_err(|e| e.to_string())?;
            Ok::<_, String>(recommended.quoting().unwrap().thesaurus.clone())
        };
        let missing = named("words.txt").unwrap_err();
        assert!(missing.starts_with("words.txt: No such file"), "{missing}");
        assert!(missing.contains("quote_thesaurus in generation_config.json"), "{missing}");
        put("words.txt", b"cost price\n");
        assert_eq!(named("words.txt").unwrap(), "cost price\n");
        put("words.txt", b"cost \xff\n");
        assert!(named("words.txt").unwrap_err().starts_with("words.txt: it is not UTF-8 text"));
        put("words.txt", &vec![b'\n'; thesaurus::BYTES as usize + 1]);
        assert!(named("words.txt").unwrap_err().starts_with("words.txt: 2 MiB, the limit is 1 MiB"));
        for elsewhere in ["../words.txt", "/etc/hostname", ".", "", "a\u{1b}b"] {
            let refused = named(elsewhere).unwrap_err();
            assert!(refused.starts_with("generation_config.json: quote_thesaurus"), "{refused:?}");
            assert!(!refused.contains('\u{1b}'), "{refused:?}");
        }
    }
}
