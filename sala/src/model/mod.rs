//! The model: weights ([`Checkpoint`], [`Model`]), live state ([`Live`]) and the one forward pass, generic over
//! [`Backend`](crate::backend::Backend).
//!
//! # How a conversation runs
//!
//! ```text
//! let source = Checkpoint::open("demo")?;
//! let model  = Model::load(&mut b, &source, |done| …)?;
//! let mut live = Live::new(&mut b, &model, 65_536, &[])?;
//! for chunk in given.chunks(b.prefill_rows()) {        // given tokens of one segment
//!     live.prefill(&mut b, &model, chunk)?;            // prefill_state if others follow: it skips the logits
//!     live.advance(&mut b, chunk.len())?;
//! }
//! let first = live.prefill_logits(&mut b, &model)?;    // top logits for the next token
//! live.verify(&mut b, &model, &[token, draft, draft])?;  // 1..=16 rows; one row is plain decode
//! let rows = live.top_logits(&mut b, 3)?;
//! live.advance(&mut b, accepted)?;                      // 0..=3; only these enter the recurrent state
//! ```
//!
//! # What holds
//!
//! * A segment's prefill does not depend on how it was cut, as long as every chunk but the last is a multiple of
//!   [`GRID`](crate::backend::GRID) rows; `verify` of n rows equals n single steps. Bit for bit, on one backend.
//! * Rows that were not accepted leave no trace. Exported and restored state continues with the same bits.
//! * After a [`BackendError`] the live state is undefined until [`Live::reset`] or
//!   [`Live::restore`].

pub mod calibrate;
pub mod capture;
mod demo;
pub mod draft;
pub mod format;
mod forward;
mod images;
mod mass;
mod named;
mod parts;
mod published;
pub mod quantize;
pub mod score;
mod seal;
mod sequence;
mod state;
mod tensors;
#[cfg(test)]
mod tests;
mod weights;

pub use demo::{
    DEMO_CONFIG, DEMO_FILES, DEMO_GENERATION_CONFIG, DEMO_THESAURUS, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG, demo_draft,
};
pub use forward::Model;
pub use forward::Seen;
pub use parts::Sequence;
pub use state::Live;
pub use tensors::{LoadedTensor, Tensors, WEIGHTS_INDEX};
pub use weights::{Checkpoint, Kept, Recipe};

use std::path::PathBuf;

use crate::backend::BackendError;
use crate::core::sanitize::sanitize_line;
use crate::core::spec::SpecError;
use crate::core::{Exit, plain_words};
use crate::engine::protocol::Token;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read {}: {}", path.display(), plain_words(cause))]
    File { path: PathBuf, cause: std::io::Error },
    #[error("cannot write {}: {}", path.display(), plain_words(cause))]
    Write { path: PathBuf, cause: std::io::Error },
    /// Another process packs into the folder.
    #[error("{} is being packed into by {owner}; wait for it, or name another folder", path.display())]
    InUse { path: PathBuf, owner: String },
    /// A folder without weights, or with parts missing.
    #[error("{} is not a checkpoint: {reason}", path.display())]
    NoCheckpoint { path: PathBuf, reason: String },
    /// A packed format that the program does not read.
    #[error(
        "{} is {what}; take the unquantised folder, --weights 8bit, 6bit, 5bit or 4bit packs it",
        path.display()
    )]
    Quantised {
        path: PathBuf,
        /// The format and the reason ([`format::Format::refusal`]).
        what: String,
    },
    #[error("tensor `{name}` {why}")]
    Packed { name: String, why: String },
    /// A safetensors file that is torn, or a file of another type.
    #[error("{origin} is damaged: {cause}; download it again")]
    Damaged { origin: String, cause: String },
    #[error(
        "no model `{0}`; use a folder, `demo`, or random weights: `synthetic:9b` or `synthetic:tiny`, as published with `-nvfp4` or `-gptq` behind"
    )]
    Unknown(String),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("{}/{cause}", dir.display())]
    FolderSpec { dir: PathBuf, cause: SpecError },
    #[error("{origin} has no tensor `{name}`; the checkpoint is incomplete or of another model")]
    MissingTensor { name: String, origin: String },
    #[error("tensor `{name}` has shape {found:?}, config.json asks for {expected:?}")]
    TensorShape { name: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("tensor `{name}` holds {found}; supported: BF16, F16, F32 (use the unquantised checkpoint)")]
    TensorType { name: String, found: String },
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("{needed} tokens do not fit into the context of {limit}; start a new session or raise the limit")]
    Context {
        /// Tokens after the pass.
        needed: usize,
        limit: usize,
    },
    #[error("token {token} is outside the vocabulary of {vocab}; tokenizer and model do not belong together")]
    Token {
        token: Token,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A call that the live state does not allow now; a bug in the caller.
    #[error("{op}: {reason}")]
    Order {
        /// Name of the method.
        op: &'static str,
        reason: String,
    },
    /// Saved state that does not fit this model or position.
    #[error("saved state does not fit: {0}; the conversation will be read again from its text")]
    Image(String),
}

impl ModelError {
    /// Exit code of a run that ends with this error (docs/terminal.md §2).
    pub fn exit(&self) -> Exit {
        match self {
            ModelError::Backend(BackendError::NotFinite(_)) => Exit::NoModel,
            ModelError::Backend(BackendError::Memory { .. } | BackendError::Device { .. }) => Exit::NoDevice,
            ModelError::InUse { .. } => Exit::InUse,
            ModelError::Write { .. } => Exit::Disk,
            ModelError::Backend(_) | ModelError::Context { .. } | ModelError::Order { .. } | ModelError::Image(_) => {
                Exit::Failure
            }
            // All others are about a model's folder.
            _ => Exit::NoModel,
        }
    }
}

pub(crate) fn shown(name: &str) -> String {
    const CHARS: usize = 100;
    sanitize_line(&name.chars().take(CHARS).collect::<String>()).into_owned()
}

pub type Result<T, E = ModelError> = std::result::Result<T, E>;
