//! Text in and out of the model: tokens, the chat template, streaming text, documents from disk.
//!
//! Owns the way from characters to token ids and back. Never talks to a device, never draws, never writes a file.
//! Invariants: tokens encoded from a text spell that text ([`spell`]); what [`stream::StreamDecoder`] emitted piece by piece
//! is what the whole list spells.

pub mod caught;
mod child;
pub mod clock;
mod encoding;
mod evidence;
pub mod files;
pub mod grammar;
mod long;
pub mod near;
mod part;
pub mod pdf;
mod quotes;
pub mod recommended;
pub mod sample;
pub mod sanitize;
pub mod schema;
pub mod sources;
pub mod spell;
pub mod steer;
pub mod stream;
pub mod template;
pub mod tokenizer;
mod trial;
mod untrusted;
mod vocabulary;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use child::this_program;
pub use long::Halt;
pub use part::Part;
pub use recommended::Recommended;
pub use spell::{Before, Walk};
pub use stream::{Begin, Delta, PlainDecoder, StreamDecoder};
pub use template::{ChatMessage, ChatRole, RenderOptions, Template};
pub use tokenizer::{Specials, Tokenizer};

/// What can go wrong between text and tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the model folder cannot be read.
    #[error("{path}: {source}. A model folder needs tokenizer.json and tokenizer_config.json")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{file}: {reason}. Fetch the file again: sala-chat model download")]
    Malformed {
        /// Which file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer knows more ids than the model has embedding rows.
    #[error(
        "tokenizer.json has ids up to {max_id}, the model only {rows} embedding rows: they belong to different models. Use the tokenizer that came with the weights"
    )]
    Vocabulary {
        /// Largest id.
        max_id: u32,
        /// Rows of the embedding.
        rows: usize,
    },
    /// A text has more tokens than are of use.
    #[error("the text has more than {most} tokens")]
    TooLong {
        /// As many as would have been taken.
        most: usize,
    },
    /// The library could not encode a text.
    #[error("tokenizing failed: {0}")]
    Encode(String),
    /// The model folder has no chat template.
    #[error(
        "no chat template in tokenizer_config.json and no chat_template.jinja beside it. Add the file of the original model"
    )]
    NoTemplate,
    /// A message of the conversation is damaged, and what was said in it is not known.
    #[error("message #{number} is damaged")]
    Damaged {
        /// Which, from 1.
        number: usize,
    },
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
    /// The template does not compile or refuses the conversation.
    #[error("chat template: {0}")]
    Template(String),
}

/// Tokenizer and chat template of one model, as the desk uses them.
#[derive(Clone, Debug)]
pub struct TextModel {
    /// Characters to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to characters.
    pub template: Arc<Template>,
    /// Sampling that its authors recommend; nothing for the built-in model.
    pub recommended: Recommended,
}

impl TextModel {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, and `chat_template.jinja` or `generation_config.json` if present. A template
    /// that is not known is tried first, by `program` ([`Template::from_folder`]).
    ///
    /// # Errors
    /// A missing or malformed file, or no chat template that can be used.
    pub fn load(dir: &Path, program: &[OsString]) -> Result<TextModel, TextError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let most = if name == "tokenizer.json" { files::TOKENIZER_BYTES } else { files::MODEL_CONFIG_BYTES };
            files::read(&path, most).map_err(|source| TextError::Read { path, source })
        };
        let optional = |name: &str| match read(name) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(TextError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        };
        let (generation, jinja) = (optional("generation_config.json")?, optional("chat_template.jinja")?);
        let (tokenizer, config) = (read("tokenizer.json")?, read("tokenizer_config.json")?);
        let in_folder = |e| match e {
            TextError::Malformed { file, reason } => {
                TextError::Malformed { file: dir.join(file).display().to_string(), reason }
            }
            e => e,
        };
        // A template that is tried takes a process of its own: beside the tokenizer.
        let (tokenizer, template) = std::thread::scope(|scope| {
            let template = scope.spawn(|| Template::from_folder(program, &config, jinja.as_deref()));
            let tokenizer = Tokenizer::from_bytes(&tokenizer, Some(&config), generation.as_deref());
            (tokenizer, template.join())
        });
        let tokenizer = tokenizer.map_err(in_folder)?;
        let template = template.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(in_folder)?;
        let recommended = Recommended::of_folder(generation.as_deref());
        Ok(TextModel { tokenizer: Arc::new(tokenizer), template: Arc::new(template), recommended })
    }

    /// The same from file contents, for the built-in model. Without a `generation_config` nothing is recommended.
    ///
    /// # Errors
    /// Malformed contents, or no chat template.
    pub fn from_bytes(
        tokenizer: &[u8],
        tokenizer_config: &[u8],
        generation_config: Option<&[u8]>,
        chat_template: Option<&[u8]>,
    ) -> Result<TextModel, TextError> {
        let tokenizer = Tokenizer::from_bytes(tokenizer, Some(tokenizer_config), generation_config)?;
        let template = Template::from_config(tokenizer_config, chat_template)?;
        let recommended = generation_config.map(|file| Recommended::of_folder(Some(file))).unwrap_or_default();
        Ok(TextModel { tokenizer: Arc::new(tokenizer), template: Arc::new(template), recommended })
    }
}
