//! A context: read or filled, saved and restored as a whole.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Bench;
use crate::backend::draft::DraftOps;
use crate::core::spec::Mixer;
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor, ROW_ARRAYS, RowsImage, Token};

impl<B: DraftOps> Bench<'_, B> {
    /// Reads on up to `context`; `seconds` is the time of the whole context so far.
    pub(super) fn read_whole(&mut self, context: usize, seconds: &mut f64) -> anyhow::Result<Value> {
        *seconds += self.read_to(context)?;
        Ok(json!({"prefill_tokens_per_s": context as f64 / *seconds}))
    }

    /// Fills the caches up to `context`, and times a piece of `--sample` tokens there.
    pub(super) fn fill_and_sample(&mut self, context: usize) -> anyhow::Result<Value> {
        self.fill(context)?;
        let sample = (self.args.sample as usize).min(self.live.limit() - context);
        if sample == 0 {
            return Ok(json!({}));
        }
        let end = self.live.export_end(&mut self.b)?;
        // The first run chooses algorithms and loads kernels; the second is timed.
        self.read_to(context + sample.min(self.b.prefill_rows()))?;
        self.live.restore(&mut self.b, context, &[], Some(&end))?;
        let seconds = self.read_to(context + sample)?;
        self.live.restore(&mut self.b, context, &[], Some(&end))?;
        Ok(json!({"prefill_at_depth_tokens_per_s": sample as f64 / seconds}))
    }

    fn read_to(&mut self, context: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        while self.live.position() < context {
            let at = self.live.position();
            let n = self.b.prefill_rows().min(context - at);
            let tokens = self.history.get(at..at + n).context("history too short")?;
            // As in a session, only the last token needs logits.
            match at + n == context {
                true => self.live.prefill(&mut self.b, &self.model, tokens)?,
                false => self.live.prefill_state(&mut self.b, &self.model, tokens)?,
            }
            self.live.advance(&mut self.b, n)?;
        }
        self.b.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Fills the caches up to `context` with copies of one piece of random rows.
    fn fill(&mut self, context: usize) -> anyhow::Result<()> {
        const PIECE: usize = 16_384;
        let spec = self.model.spec().clone();
        let width = spec.sparse.kv_heads * spec.sparse.head_dim;
        let value = |i: u64| half::bf16::from_f32(crate::backend::synthetic_value(5, i, 0.3)).to_le_bytes();
        let data = std::sync::Arc::new((0..(PIECE * width) as u64).flat_map(value).collect::<Vec<u8>>());
        let mut images = Vec::new();
        let mut start = 0;
        while start < context {
            let rows = PIECE.min(context - start);
            let mut tensors = Vec::new();
            for (layer, mixer) in spec.mixers.iter().enumerate() {
                if *mixer != Mixer::Sparse {
                    continue;
                }
                let s = &spec.sparse;
                let level1 = s.level1_rows(start + rows) - s.level1_rows(start);
                let level2 = s.level2_rows(start + rows) - s.level2_rows(start);
                for (name, n) in ROW_ARRAYS.into_iter().zip([rows, rows, level1, level2]) {
                    let bytes = n * width * 2;
                    let data = match bytes == data.len() {
                        true => data.clone(),
                        false => std::sync::Arc::new(data.get(..bytes).unwrap_or_default().to_vec()),
                    };
                    let (name, shape) = (crate::backend::layer_tensor(name, layer), vec![n, s.kv_heads, s.head_dim]);
                    tensors.push(ImageTensor { name, dtype: Dtype::Bf16, shape, data: data.into() });
                }
            }
            images.push(RowsImage { start: start as u64, rows: rows as u64, tensors, segment: None });
            start += rows;
        }
        self.live.reset(&mut self.b)?;
        let mut end = self.live.export_end(&mut self.b)?;
        end.position = context as u64;
        self.live.restore(&mut self.b, 0, &images, Some(&end))?;
        self.b.sync_rows(context)?;
        Ok(())
    }

    pub(super) fn save_and_restore(&mut self, end: &CheckpointImage) -> anyhow::Result<Value> {
        let context = end.position as usize;
        // Warms up page-locked buffers and threads, which a session has warm from its second save on.
        let _ = self.live.export_rows(&mut self.b, 0..context.min(65_536))?;
        let start = Instant::now();
        let rows = self.live.export_rows(&mut self.b, 0..context)?;
        let end = self.live.export_end(&mut self.b)?;
        // The last copy may still be in flight: reading the data waits for it.
        let bytes: usize = rows.tensors.iter().chain(&end.tensors).map(|t| t.data.len()).sum();
        let saved = start.elapsed().as_secs_f64();
        let token = [3 % self.model.spec().vocab as Token];
        self.live.verify(&mut self.b, &self.model, &token)?;
        let before = self.live.top_logits(&mut self.b, 1)?;
        self.live.reset(&mut self.b)?;
        self.b.synchronize()?;
        let start = Instant::now();
        self.live.restore(&mut self.b, 0, std::slice::from_ref(&rows), Some(&end))?;
        self.b.sync_rows(context)?;
        self.b.synchronize()?;
        let restored = start.elapsed().as_secs_f64();
        self.live.verify(&mut self.b, &self.model, &token)?;
        let equal = self.live.top_logits(&mut self.b, 1)? == before;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        Ok(json!({
            "save_gb_per_s": rate(saved), "restore_gb_per_s": rate(restored), "restore_equal": equal,
            "state_bytes": bytes,
        }))
    }
}
