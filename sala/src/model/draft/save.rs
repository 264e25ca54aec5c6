//! A head's saved state: the window's rows, the waiting auxiliary hidden states, and the head's fingerprint.
//!
//! Tensors `draft.k`, `draft.v` `[rows, kv_heads, head_dim]`, `draft.taps` `[waiting, aux·hidden]` f32 and
//! `draft.meta` (JSON). A window of another head is ignored: drafts then start from an empty window, and the text is
//! the same.

use serde::{Deserialize, Serialize};

use crate::backend::draft::DraftOps;
use crate::backend::internal;
use crate::engine::protocol::{Dtype, ImageTensor, Token};

use super::{DraftHead, Result, Tables};

#[derive(Serialize, Deserialize)]
struct Saved {
    fingerprint: String,
    first: usize,
    next: usize,
    /// Rows of `draft.taps`: positions `next..next + waiting`.
    waiting: usize,
}

impl<B: DraftOps> DraftHead<B> {
    /// The window as tensors of an end state, with the last waiting auxiliary hidden states. `history` as in
    /// [`DraftHead::keep`]. Waits.
    pub fn export(&mut self, b: &mut B, tables: &Tables<'_, B>, history: &[Token]) -> Result<Vec<ImageTensor>> {
        let width = self.config.aux_width();
        if let Some(known) = self.now.waiting.checked_sub(1).filter(|n| *n > 0) {
            let last = b.read(&self.now.aux_hidden, self.now.waiting)?;
            self.flush(b, tables, history, known)?;
            let last = last.get(known * width..).ok_or_else(|| internal("draft export", "fewer rows than wait"))?;
            b.write(&mut self.now.aux_hidden, last)?;
        }
        self.now.ahead = 0;
        let first = self.now.first.max(self.now.next.saturating_sub(self.config.shape.window));
        let mut tensors = Vec::from(b.read_window(&self.now.window, first..self.now.next)?);
        for (tensor, name) in tensors.iter_mut().zip(["draft.k", "draft.v"]) {
            tensor.name = name.into();
        }
        let aux_hidden =
            if self.now.waiting > 0 { b.read(&self.now.aux_hidden, self.now.waiting)? } else { Vec::new() };
        let aux_hidden = aux_hidden.get(..self.now.waiting * width).unwrap_or(&aux_hidden);
        tensors.push(ImageTensor::of_floats("draft.taps", vec![self.now.waiting, width], aux_hidden));
        let saved =
            Saved { fingerprint: self.fingerprint.clone(), first, next: self.now.next, waiting: self.now.waiting };
        let json =
            serde_json::to_vec(&saved).map_err(|_| internal("draft export", "metadata that cannot be written"))?;
        tensors.push(ImageTensor::new("draft.meta", Dtype::U8, vec![json.len()], json));
        Ok(tensors)
    }

    /// Restores a saved window for a state of `position` tokens. Returns `false`, with an empty window, if no tensor
    /// fits.
    pub fn restore(&mut self, b: &mut B, tensors: &[ImageTensor], position: usize) -> Result<bool> {
        self.reset(position);
        let named = |name: &str| tensors.iter().find(|t| t.name == name);
        let (Some(k), Some(v), Some(aux_hidden), Some(meta)) =
            (named("draft.k"), named("draft.v"), named("draft.taps"), named("draft.meta"))
        else {
            return Ok(false);
        };
        let Ok(saved) = serde_json::from_slice::<Saved>(&meta.data) else { return Ok(false) };
        let s = &self.config.shape;
        let rows = saved.next.saturating_sub(saved.first);
        let window = [rows, s.kv_heads, s.head_dim];
        let fits = saved.fingerprint == self.fingerprint
            && saved.first <= saved.next
            && rows <= s.window
            && saved.waiting <= 1
            && saved.next.checked_add(saved.waiting) == Some(position)
            && k.is_whole(&window)
            && v.is_whole(&window)
            && aux_hidden.dtype == Dtype::F32
            && aux_hidden.is_whole(&[saved.waiting, self.config.aux_width()]);
        if !fits {
            return Ok(false);
        }
        if rows > 0 {
            b.write_window(&mut self.now.window, saved.first, k, v)?;
        }
        if saved.waiting > 0 {
            b.write(&mut self.now.aux_hidden, &aux_hidden.dtype.floats(&aux_hidden.data).unwrap_or_default())?;
        }
        (self.now.first, self.now.next, self.now.waiting) = (saved.first, saved.next, saved.waiting);
        Ok(true)
    }
}
