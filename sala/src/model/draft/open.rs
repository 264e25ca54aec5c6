//! Opens heads from a folder, the built-in model or random weights, with their working buffers.

use std::path::Path;

use super::load::Weights;
use super::{Bufs, DraftConfig, DraftHead, DraftOptions, DraftWindow, READ_ROWS, Result};
use crate::backend::BufKind;
use crate::backend::draft::DraftOps;
use crate::core::spec::ModelSpec;
use crate::model::weights::opened;
use crate::model::{Tensors, demo_draft};

impl<B: DraftOps> DraftHead<B> {
    /// The head in a folder: `config.json` and safetensors weights.
    pub fn open(b: &mut B, dir: &Path, model: &ModelSpec, options: &DraftOptions) -> Result<Self> {
        let (name, config, format) = opened(dir)?;
        Self::load(b, &name, &config, &Tensors::open_dir(dir)?.in_format(format), model, options)
    }

    /// The built-in model's head; it fits no other model.
    pub fn demo(b: &mut B, model: &ModelSpec, options: &DraftOptions) -> Result<Self> {
        let (config, tensors) = demo_draft()?;
        Self::load(b, "demo-eagle3", config, &tensors, model, options)
    }

    pub fn load(
        b: &mut B,
        name: &str,
        config: &str,
        tensors: &Tensors,
        model: &ModelSpec,
        options: &DraftOptions,
    ) -> Result<Self> {
        let assumed = DraftConfig::assumed(config);
        let config = DraftConfig::from_json(config, model, options)?;
        let weights = Weights::load(b, tensors, &config, options.recipe)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{config:?}\n").as_bytes());
        tensors.hash_into(&mut hasher);
        options.recipe.hash_into(&mut hasher);
        let fingerprint = hasher.finalize().to_hex().chars().take(32).collect();
        let s = &config.shape;
        let rows = READ_ROWS;
        let bufs = Bufs {
            g: b.draft_buf(rows, s.hidden, BufKind::Residual)?,
            x: b.draft_buf(rows, 2 * s.hidden, BufKind::Activation)?,
            kvq: b.draft_buf(rows, s.kvq_width(), BufKind::Activation)?,
            one_x: b.draft_buf(1, 2 * s.hidden, BufKind::Activation)?,
            stream: b.draft_buf(1, s.hidden, BufKind::Residual)?,
            o: b.draft_buf(1, s.heads * s.head_dim, BufKind::Activation)?,
            mid: b.draft_buf(1, s.intermediate, BufKind::Activation)?,
            logits: b.draft_buf(1, config.draft_vocab, BufKind::Logits)?,
        };
        let read = b.draft_buf(rows, config.aux_width(), BufKind::Activation)?;
        let now = DraftWindow::new(b, &config)?;
        Ok(DraftHead { name: name.into(), fingerprint, config, weights, bufs, read, now, assumed })
    }
}
