//! The EAGLE-3 draft head: weights, one-layer forward, sliding window, and its saved state (docs/speculative.md §1-3).
//! Generic over the backend; the same code on every device.
//!
//! The row of position p pairs the model's auxiliary hidden states at p with the token at p + 1 and predicts p + 2.
//! Rows of accepted positions need only keys and values, because no operation reads their outputs; the last row is the
//! exception, it predicts. So reading a prompt costs three small GEMMs per row, and only for the window's positions.
//!
//! Invariants: the window holds exactly the rows of positions `first..next`, all made from accepted tokens; the
//! auxiliary hidden states of `next..next + waiting` are kept until their rows are needed; rows drafted ahead lie at
//! `next..` and are overwritten by the accepted rows of those positions, never kept. Drafts never decide the text, so
//! losing any of this costs speed only.

mod config;
mod forward;
mod load;
mod open;
mod save;

use std::ops::Range;

use crate::backend::draft::{DraftOps, PENDING_ROWS};
use crate::backend::{BackendError, BufKind, Pass, StepKey, TopLogits, internal};
use crate::engine::protocol::Token;
use crate::model::{Model, ModelError};

pub use config::{DraftConfig, DraftOptions, FcNorm};
use load::Weights;

pub const FOLDER: &str = "eagle3";

#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// Not an EAGLE-3 head, damaged, or made for another model.
    #[error("the draft head can not be used: {0}; choose another with --draft, or --draft off")]
    Refused(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

pub type Result<T, E = DraftError> = std::result::Result<T, E>;

pub struct Tables<'a, B: DraftOps> {
    /// `[vocab, hidden]`
    pub embed: &'a B::Matrix,
    /// `[vocab, hidden]`
    pub head: &'a B::Matrix,
}

impl<'a, B: DraftOps> From<&'a Model<B>> for Tables<'a, B> {
    fn from(model: &'a Model<B>) -> Self {
        Tables { embed: &model.embed, head: model.head() }
    }
}

/// Most rows of given tokens in one pass of the head. Bounds its buffers whatever the length of a prefill pass.
const READ_ROWS: usize = 512;

/// Working buffers of [`READ_ROWS`] rows unless the shape says otherwise.
struct Bufs<B: DraftOps> {
    /// Streams. `[rows, hidden]`
    g: B::Buf,
    /// Embedding and stream, normed. `[rows, 2·hidden]`
    x: B::Buf,
    /// Keys, values and queries. `[rows, (2·kv + heads)·d]`
    kvq: B::Buf,
    /// Input of a recursive step. `[1, 2·hidden]`
    one_x: B::Buf,
    /// The predicting row's stream, from which the next draft step starts: un-normed, or normed for EAGLE-3.1. `[1,
    /// hidden]`
    stream: B::Buf,
    o: B::Buf,
    /// `[1, intermediate]`
    mid: B::Buf,
    /// `[1, draft_vocab]`
    logits: B::Buf,
}

pub struct DraftHead<B: DraftOps> {
    name: String,
    fingerprint: String,
    config: DraftConfig,
    weights: Weights<B>,
    bufs: Bufs<B>,
    /// Auxiliary hidden states of given tokens. `[READ_ROWS, aux·target_hidden]`
    read: B::Buf,
    now: DraftWindow<B>,
    assumed: Option<String>,
}

/// A head's state of one conversation.
pub struct DraftWindow<B: DraftOps> {
    window: B::Window,
    /// Rows of positions `first..next` are in the window.
    first: usize,
    next: usize,
    /// Auxiliary hidden states of positions `next..next + waiting`. `[PENDING_ROWS, aux·target_hidden]`
    aux_hidden: B::Buf,
    waiting: usize,
    ahead: usize,
}

impl<B: DraftOps> DraftWindow<B> {
    fn new(b: &mut B, config: &DraftConfig) -> Result<Self> {
        let aux_hidden = b.draft_buf(PENDING_ROWS, config.aux_width(), BufKind::Activation)?;
        let window = b.draft_window(&config.shape)?;
        Ok(DraftWindow { window, first: 0, next: 0, aux_hidden, waiting: 0, ahead: 0 })
    }

    fn reset(&mut self, position: usize) {
        (self.first, self.next, self.waiting, self.ahead) = (position, position, 0, 0);
    }
}

impl<B: DraftOps> DraftHead<B> {
    pub fn another(&self, b: &mut B) -> Result<DraftWindow<B>> {
        DraftWindow::new(b, &self.config)
    }

    /// Exchanges the current conversation with another.
    pub fn swap(&mut self, other: &mut DraftWindow<B>) {
        std::mem::swap(&mut self.now, other);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The assumption about an ambiguous configuration, as a sentence without its full stop.
    pub fn assumed(&self) -> Option<&str> {
        self.assumed.as_deref()
    }

    pub fn config(&self) -> &DraftConfig {
        &self.config
    }

    /// In slot order; pass them to [`crate::model::Live::new`].
    pub fn aux_layers(&self) -> &[usize] {
        &self.config.aux_layers
    }

    /// The stream of the last prediction, and its logits in draft ids.
    pub fn stream(&self) -> &B::Buf {
        &self.bufs.stream
    }

    pub fn logits(&self) -> &B::Buf {
        &self.bufs.logits
    }

    pub fn window(&self) -> &B::Window {
        &self.now.window
    }

    pub fn reset(&mut self, position: usize) {
        self.now.reset(position);
    }

    /// Whether it has the last accepted row of a state of `position` tokens, and so can draft.
    pub fn ready(&self, position: usize) -> bool {
        self.now.waiting > 0 && self.now.next + self.now.waiting == position
    }

    /// Adds a prefilled chunk: `aux_hidden` are the streams of positions `start..start + rows`, `history` is every
    /// token so far including the chunk's, and `following` is the number of given tokens after it. Skips rows that no
    /// draft can see.
    pub fn read(
        &mut self,
        b: &mut B,
        tables: &Tables<'_, B>,
        aux_hidden: &B::Buf,
        start: usize,
        rows: usize,
        history: &[Token],
        following: usize,
    ) -> Result<()> {
        if following >= self.config.shape.window {
            self.now.reset(start + rows);
            return Ok(());
        }
        if self.now.next + self.now.waiting == start {
            self.flush(b, tables, history, self.now.waiting)?;
        } else {
            self.now.reset(start);
        }
        let Some(known) = rows.checked_sub(1) else { return Ok(()) };
        let Some(tokens) = history.get(start + 1..start + rows) else { return Ok(()) };
        for (first, tokens) in (0..known).step_by(READ_ROWS).zip(tokens.chunks(READ_ROWS)) {
            b.draft_seek(tokens, start + first, self.now.first)?;
            b.draft_copy(&mut self.read, 0, aux_hidden, first..first + tokens.len())?;
            let pass = Pass::Prefill { rows: tokens.len() };
            let (c, window) = (&self.config, &mut self.now.window);
            self.weights.project_rows(b, c, &mut self.bufs, &self.read, tables, window, pass)?;
        }
        self.now.next = start + known;
        b.draft_copy(&mut self.now.aux_hidden, 0, aux_hidden, known..rows)?;
        self.now.waiting = 1;
        Ok(())
    }

    /// Keeps the auxiliary hidden states of the accepted `rows` of a verify pass until they are needed. The first one
    /// has position `start`; `history` reaches at least to the token of that position.
    pub fn keep(
        &mut self,
        b: &mut B,
        tables: &Tables<'_, B>,
        aux_hidden: &B::Buf,
        rows: Range<usize>,
        start: usize,
        history: &[Token],
    ) -> Result<()> {
        self.now.ahead = 0;
        if self.now.next + self.now.waiting != start {
            self.now.reset(start);
        }
        if self.now.waiting + rows.len() > PENDING_ROWS {
            self.flush(b, tables, history, self.now.waiting)?;
        }
        let kept = rows.len();
        b.draft_copy(&mut self.now.aux_hidden, self.now.waiting, aux_hidden, rows)?;
        self.now.waiting += kept;
        Ok(())
    }

    fn flush(&mut self, b: &mut B, tables: &Tables<'_, B>, history: &[Token], rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let Some(tokens) = history.get(self.now.next + 1..self.now.next + 1 + rows) else {
            self.now.reset(self.now.next + self.now.waiting);
            return Ok(());
        };
        b.draft_seek(tokens, self.now.next, self.now.first)?;
        let DraftWindow { window, aux_hidden, .. } = &mut self.now;
        let pass = Pass::Verify { rows };
        self.weights.project_rows(b, &self.config, &mut self.bufs, aux_hidden, tables, window, pass)?;
        self.now.next += rows;
        self.now.waiting -= rows;
        Ok(())
    }

    /// Extends the window by all waiting rows and predicts the token after the pending one. `history` ends with the
    /// pending token, so it is one longer than the state. Only when [`DraftHead::ready`].
    pub fn extend(&mut self, b: &mut B, tables: &Tables<'_, B>, history: &[Token]) -> Result<TopLogits> {
        let rows = self.now.waiting;
        let tokens = history.get(self.now.next + 1..self.now.next + 1 + rows).filter(|tokens| !tokens.is_empty());
        let Some(tokens) = tokens else { return config::refuse("its window does not reach to the last token") };
        b.draft_seek(tokens, self.now.next, self.now.first)?;
        let (w, c, bufs) = (&self.weights, &self.config, &mut self.bufs);
        let DraftWindow { window, aux_hidden, .. } = &mut self.now;
        let pass = Pass::Verify { rows };
        b.step(StepKey::DraftExtend(rows), &mut |b| {
            w.project_rows(b, c, bufs, aux_hidden, tables, window, pass)?;
            b.draft_copy(&mut bufs.stream, 0, &bufs.g, rows - 1..rows)?;
            w.layer(b, c, bufs, tables, window, pass)
        })?;
        (self.now.next, self.now.waiting, self.now.ahead) = (self.now.next + rows, 0, 0);
        self.predicted(b)
    }

    /// Drafts once more: `token` is the draft (or the choice) made from the last prediction. Returns the prediction
    /// after it.
    pub fn step(&mut self, b: &mut B, tables: &Tables<'_, B>, token: Token) -> Result<TopLogits> {
        b.draft_seek(&[token], self.now.next + self.now.ahead, self.now.first)?;
        let (w, c, bufs, window) = (&self.weights, &self.config, &mut self.bufs, &mut self.now.window);
        b.step(StepKey::Draft, &mut |b| w.recurse(b, c, bufs, tables, window))?;
        self.now.ahead += 1;
        self.predicted(b)
    }

    /// Top logits of the last prediction, in the model's ids. Waits.
    fn predicted(&mut self, b: &mut B) -> Result<TopLogits> {
        Ok(in_model_ids(b.read_top_logits(1)?, self.weights.to_target.as_deref())?)
    }
}

/// Translates the draft ids of the one row to ids of the model; without a map they are equal.
fn in_model_ids(rows: Vec<TopLogits>, map: Option<&[Token]>) -> Result<TopLogits, BackendError> {
    let mut row =
        rows.into_iter().next().ok_or_else(|| internal("draft", "a prediction without a row of top logits"))?;
    if let Some(map) = map {
        for id in &mut row.ids {
            let known = map.get(*id as usize);
            *id = *known.ok_or_else(|| internal("draft", "a predicted id outside of the draft vocabulary"))?;
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests;
