//! A context: read or filled, saved and restored as a whole.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Bench;
use crate::backend::draft::DraftOps;
use crate::backend::{layer_tensor, synthetic_value};
use crate::core::spec::Mixer;
use crate::engine::protocol::{Dtype, ImageTensor, ROW_ARRAYS, RowsImage, Token};

impl<B: DraftOps> Bench<'_, B> {
    /// Reads on up to `context`: the speed is the mean over the whole context, not that at its end.
    pub(super) fn read_whole(&mut self, context: usize) -> anyhow::Result<Value> {
        self.read_seconds += self.read_to(context)?;
        Ok(json!({"prefill_tokens_per_s": context as f64 / self.read_seconds}))
    }

    /// Fills the caches up to `context`, and times a piece of `--sample` tokens there.
    pub(super) fn fill_and_sample(&mut self, context: usize) -> anyhow::Result<Value> {
        self.fill(context)?;
        let sample = (self.args.sample as usize).min(self.s.live.limit() - context);
        if sample == 0 {
            return Ok(json!({}));
        }
        let end = self.s.end()?;
        // The first run chooses algorithms and loads kernels; the second is timed.
        self.read_to(context + sample.min(self.s.b.prefill_rows()))?;
        self.s.back(&end)?;
        let seconds = self.read_to(context + sample)?;
        self.s.back(&end)?;
        Ok(json!({"prefill_at_depth_tokens_per_s": sample as f64 / seconds}))
    }

    fn read_to(&mut self, context: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        let tokens = self.history.get(self.s.live.position()..context).context("history too short")?;
        self.s.read(tokens, usize::MAX)?;
        self.s.b.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Fills the caches up to `context` with copies of one piece of random rows.
    fn fill(&mut self, context: usize) -> anyhow::Result<()> {
        const PIECE: usize = 16_384;
        let spec = self.s.model.spec();
        let s = spec.sparse.clone();
        let width = s.kv_heads * s.head_dim;
        let value = |i: u64| half::bf16::from_f32(synthetic_value(5, i, 0.3)).to_le_bytes();
        let random = Arc::new((0..(PIECE * width) as u64).flat_map(value).collect::<Vec<u8>>());
        let tensor = |name: String, rows: usize| {
            let bytes = rows * width * 2;
            let whole = bytes == random.len();
            let data = if whole { random.clone() } else { Arc::new(random.get(..bytes).unwrap_or_default().to_vec()) };
            ImageTensor { name, dtype: Dtype::Bf16, shape: vec![rows, s.kv_heads, s.head_dim], data: data.into() }
        };
        let sparse = spec.mixers.iter().enumerate().filter(|(_, mixer)| **mixer == Mixer::Sparse);
        let layers: Vec<usize> = sparse.map(|(layer, _)| layer).collect();
        let image = |start: usize| {
            let end = context.min(start + PIECE);
            let level1 = s.level1_rows(end) - s.level1_rows(start);
            let level2 = s.level2_rows(end) - s.level2_rows(start);
            let arrays = ROW_ARRAYS.into_iter().zip([end - start, end - start, level1, level2]);
            let of = |layer: usize| arrays.clone().map(move |(name, rows)| (layer_tensor(name, layer), rows));
            let tensors = layers.iter().copied().flat_map(of).map(|(name, rows)| tensor(name, rows)).collect();
            RowsImage { start: start as u64, rows: (end - start) as u64, tensors, segment: None }
        };
        let images: Vec<RowsImage> = (0..context).step_by(PIECE).map(image).collect();
        self.s.reset()?;
        let mut end = self.s.end()?;
        end.position = context as u64;
        self.s.live.restore(self.s.b, 0, &images, Some(&end))?;
        Ok(self.s.b.sync_rows(context)?)
    }

    pub(super) fn save_and_restore(&mut self) -> anyhow::Result<Value> {
        let context = self.s.live.position();
        // Warms up page-locked buffers and threads, which a session has warm from its second save on.
        let _ = self.s.live.export_rows(self.s.b, 0..context.min(65_536))?;
        let start = Instant::now();
        let state = self.s.export()?;
        // The last copy may still be in flight: reading the data waits for it.
        let tensors = state.rows.tensors.iter().chain(state.end.iter().flat_map(|end| &end.tensors));
        let bytes: usize = tensors.map(|t| t.data.len()).sum();
        let saved = start.elapsed().as_secs_f64();
        let token = [3 % self.s.model.spec().vocab as Token];
        let before = self.s.step(&token, 0)?;
        self.s.reset()?;
        self.s.b.synchronize()?;
        let start = Instant::now();
        self.s.restore(&state)?;
        self.s.b.sync_rows(context)?;
        self.s.b.synchronize()?;
        let restored = start.elapsed().as_secs_f64();
        let equal = self.s.step(&token, 0)? == before;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        Ok(json!({
            "save_gb_per_s": rate(saved), "restore_gb_per_s": rate(restored), "restore_equal": equal,
            "state_bytes": bytes,
        }))
    }
}
