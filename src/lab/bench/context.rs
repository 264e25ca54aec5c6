//! A context: read or filled, saved and restored as a whole.

use std::time::Instant;

use anyhow::Context as _;

use super::Bench;
use super::report::Row;
use crate::backend::draft::DraftOps;
use crate::core::spec::Mixer;
use crate::engine::protocol::{Dtype, ImageTensor, ROW_ARRAYS, RowsImage, Token};

impl<B: DraftOps> Bench<'_, B> {
    pub(super) fn read_to(&mut self, context: usize) -> anyhow::Result<f64> {
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
    pub(super) fn fill(&mut self, context: usize) -> anyhow::Result<()> {
        const PIECE: usize = 16_384;
        let spec = self.model.spec().clone();
        let width = spec.sparse.kv_heads * spec.sparse.head_dim;
        let data = std::sync::Arc::new(random_bf16(PIECE * width));
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
                    let whole = n * width * 2 == data.len();
                    let data = if whole {
                        data.clone()
                    } else {
                        std::sync::Arc::new(data.get(..n * width * 2).unwrap_or_default().to_vec())
                    };
                    let shape = vec![n, s.kv_heads, s.head_dim];
                    tensors.push(ImageTensor {
                        name: crate::backend::layer_tensor(name, layer),
                        dtype: Dtype::Bf16,
                        shape,
                        data: data.into(),
                    });
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

    pub(super) fn save_and_restore(&mut self, context: usize, row: &mut Row) -> anyhow::Result<()> {
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
        row.restore_equal = Some(self.live.top_logits(&mut self.b, 1)? == before);
        self.live.restore(&mut self.b, context, &[], Some(&end))?;
        row.state_bytes = Some(bytes as u64);
        row.save_gb_per_s = Some(bytes as f64 / saved / 1e9);
        row.restore_gb_per_s = Some(bytes as f64 / restored / 1e9);
        Ok(())
    }
}

fn random_bf16(n: usize) -> Vec<u8> {
    (0..n as u64).flat_map(|i| half::bf16::from_f32(crate::backend::synthetic_value(5, i, 0.3)).to_le_bytes()).collect()
}
