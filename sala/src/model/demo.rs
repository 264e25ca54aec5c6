//! The built-in model: its files, embedded, so that the program chats without any download.
//! `assets/demo/MODEL_CARD.md` describes how the model was made.

use super::Result;
use super::format::Format;
use super::tensors::{Embedded, Tensors};
use crate::backend::internal;

pub static DEMO_CONFIG: &str = include_str!("../../assets/demo/config.json");
pub static DEMO_TOKENIZER: &str = include_str!("../../assets/demo/tokenizer.json");
/// Includes the chat template.
pub static DEMO_TOKENIZER_CONFIG: &str = include_str!("../../assets/demo/tokenizer_config.json");

/// Sets greedy decoding, as the model card recommends.
pub static DEMO_GENERATION_CONFIG: &str = include_str!("../../assets/demo/generation_config.json");

pub static DEMO_THESAURUS: &str = include_str!("../../assets/demo/thesaurus.txt");

pub(super) static WEIGHTS: [Embedded; 2] = [
    ("demo/model-00001-of-00002.safetensors", include_bytes!("../../assets/demo/model-00001-of-00002.safetensors")),
    ("demo/model-00002-of-00002.safetensors", include_bytes!("../../assets/demo/model-00002-of-00002.safetensors")),
];

static DRAFT_CONFIG: &str = include_str!("../../assets/demo/eagle3/config.json");
static DRAFT_WEIGHTS: Embedded =
    ("demo/eagle3/model.safetensors", include_bytes!("../../assets/demo/eagle3/model.safetensors"));

/// All files of a folder of the built-in model except `config.json` and weights: (path, contents).
pub static DEMO_FILES: [(&str, &[u8]); 6] = [
    ("tokenizer.json", DEMO_TOKENIZER.as_bytes()),
    ("tokenizer_config.json", DEMO_TOKENIZER_CONFIG.as_bytes()),
    ("generation_config.json", DEMO_GENERATION_CONFIG.as_bytes()),
    ("thesaurus.txt", DEMO_THESAURUS.as_bytes()),
    ("eagle3/config.json", DRAFT_CONFIG.as_bytes()),
    ("eagle3/model.safetensors", DRAFT_WEIGHTS.1),
];

/// `config.json` and weights of the built-in model's EAGLE-3 head.
pub fn demo_draft() -> Result<(&'static str, Tensors)> {
    let config =
        serde_json::from_str(DRAFT_CONFIG).map_err(|_| internal("demo_draft", "a configuration that is not JSON"))?;
    Ok((DRAFT_CONFIG, Tensors::embedded(&[DRAFT_WEIGHTS])?.in_format(Format::declared(&config, None))))
}
