//! Export and restore of saved state.

use std::ops::Range;
use std::sync::Arc;

use super::parts::{Phase, Sequence};
use super::state::Live;
use super::{ModelError, Result};
use crate::backend::{Backend, BackendError, ROW_ARRAYS, layer_tensor, row_ranges};
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowSource, RowsFault, RowsImage, StatePart};

impl<B: Backend> Live<B> {
    /// KV rows of `positions`, for saving. Their bytes may still arrive while the caller continues.
    pub fn export_rows(&mut self, b: &mut B, positions: Range<usize>) -> Result<RowsImage> {
        if positions.start > positions.end || positions.end > self.now.position {
            let reason = format!("{positions:?} of {} tokens", self.now.position);
            return Err(ModelError::Order { op: "export_rows", reason });
        }
        let caches: Vec<&B::Cache> = self.now.layers.caches.iter().collect();
        let rows = b.read_all_rows(&caches, positions.clone())?;
        let of_layer = |(layer, arrays): (&usize, Vec<ImageTensor>)| {
            let layer = *layer;
            arrays.into_iter().map(move |tensor| ImageTensor { name: layer_tensor(&tensor.name, layer), ..tensor })
        };
        let tensors = self.work.sparse_layers.iter().zip(rows).flat_map(of_layer).collect();
        Ok(RowsImage { start: positions.start as u64, rows: positions.len() as u64, tensors, segment: None })
    }

    /// The recurrent states at the current position, for saving; bytes as in [`Live::export_rows`]. Folds first.
    pub fn export_end(&mut self, b: &mut B) -> Result<CheckpointImage> {
        self.fold(b)?;
        let images = b.read_states(&self.now.layers.states.iter().collect::<Vec<_>>())?;
        let of_layer =
            |(layer, image): (&usize, ImageTensor)| ImageTensor { name: layer_tensor("state", *layer), ..image };
        let tensors = self.work.lightning_layers.iter().zip(images).map(of_layer).collect();
        Ok(CheckpointImage { position: self.now.position as u64, tensors })
    }

    /// Makes the state equal a saved path: the first `keep` tokens of the caches stay (they must be common to both),
    /// `rows` follow without gaps, and `end` is the recurrent state after the last of them. `keep` 0 without rows is
    /// an empty state; then `end` may be `None`. Ignores tensors of `end` that are no recurrent state.
    ///
    /// # Errors
    /// Images that do not fit this model or leave gaps: a wrong plan changes nothing; after an error while writing,
    /// reset.
    pub fn restore(&mut self, b: &mut B, keep: usize, rows: &[RowsImage], end: Option<&CheckpointImage>) -> Result<()> {
        // Tensors are shared, not copied.
        let feeds = rows.iter().map(|r| Arc::new(r.clone()) as Arc<dyn RowSource>);
        let feeds: Vec<Arc<dyn RowSource>> = feeds.collect();
        self.restore_from(b, keep, &feeds, end, None)
    }

    /// Like [`Live::restore`], with rows that may still be in files: small state first, then rows as fast as they
    /// arrive. A device that copies by itself continues during later work
    /// ([`restore_rows`](crate::backend::Images::restore_rows)). Rows that `lender` has ([`Sequence::lends`]) share
    /// memory with it if the device supports that; every bit is the same.
    ///
    /// # Errors
    /// As [`Live::restore`]; unreadable rows of this restore or the one before.
    pub fn restore_from(
        &mut self,
        b: &mut B,
        keep: usize,
        rows: &[Arc<dyn RowSource>],
        end: Option<&CheckpointImage>,
        lender: Option<&mut Sequence<B>>,
    ) -> Result<()> {
        let bad = |text: String| Err(ModelError::Image(text));
        if keep > self.now.position {
            return bad(format!("{keep} tokens should stay, {} are there", self.now.position));
        }
        let mut length = keep;
        for feed in rows {
            if feed.start() != length as u64 {
                return bad(format!("rows from {} do not follow {length}", feed.start()));
            }
            length += usize::try_from(feed.rows()).unwrap_or(usize::MAX - length);
        }
        if length > self.now.limit {
            return Err(ModelError::Context { needed: length, limit: self.now.limit });
        }
        match end {
            Some(end) if end.position != length as u64 => {
                return bad(format!("the state is at {}, its rows end at {length}", end.position));
            }
            None if length != 0 => return bad(format!("no recurrent state at {length}")),
            Some(_) | None => {}
        }
        rows.iter().try_for_each(|feed| self.check_rows(feed.as_ref()))?;
        if length > 0 {
            self.check_end(keep, rows, end)?;
        }
        self.now.phase = Phase::Synced;
        self.now.pending = 0;
        self.now.segment = 0;
        self.work.last_prefill = None;
        self.now.named.cut(keep);
        let lent = match lender {
            Some(lender) => self.borrow(b, keep, rows, lender)?,
            None => 0,
        };
        let coming: &[Arc<dyn RowSource>] = match lent {
            0 => {
                // Rows still in flight would overwrite those of this path.
                b.sync_rows(keep)?;
                b.own_rows(&mut self.now.layers.caches(), keep)?;
                rows
            }
            _ => {
                let (passed, coming) = rows.split_at(rows.partition_point(|rows| rows.start() < lent as u64));
                passed.iter().for_each(|rows| rows.pass_over());
                coming
            }
        };
        self.reserve(b, length)?;
        let layers = &mut self.now.layers;
        let states = layers.states.iter_mut().zip(&self.work.lightning_layers);
        let mut states: Vec<_> =
            states.map(|(state, layer)| (state, end.and_then(|end| state_of(end, *layer)))).collect();
        let mut caches: Vec<_> = self.work.sparse_layers.iter().copied().zip(&mut layers.caches).collect();
        b.write_states(&mut states)?;
        if !coming.is_empty() {
            b.restore_rows(&mut caches, coming)?;
        }
        b.seek(length)?;
        self.now.position = length;
        self.now.named.add_all(rows);
        // A failed pass may have left attention mass.
        self.reset_mass(b)
    }

    /// Refuses saved rows of other shapes than this model's: they never fit.
    fn check_rows(&self, feed: &dyn RowSource) -> Result<()> {
        let spec = &self.work.sparse_spec;
        let start = usize::try_from(feed.start()).unwrap_or(usize::MAX);
        let rows = usize::try_from(feed.rows()).unwrap_or(usize::MAX - start);
        let ranges = row_ranges(spec, &(start..start + rows));
        for layer in self.work.sparse_layers.iter().copied() {
            for (name, rows) in ROW_ARRAYS.into_iter().zip(&ranges) {
                let (name, belongs) = (layer_tensor(name, layer), [rows.len(), spec.kv_heads, spec.head_dim]);
                match feed.array(&name) {
                    Some((Dtype::F32 | Dtype::Bf16, shape)) if shape == belongs => {}
                    found => {
                        let found = found.map_or("not there".into(), |(dtype, shape)| format!("{shape:?} {dtype:?}"));
                        let why = format!("{name} is {found}, and {belongs:?} belongs there");
                        return Err(lost(feed.segment(), StatePart::Rows, why));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_end(&self, keep: usize, rows: &[Arc<dyn RowSource>], end: Option<&CheckpointImage>) -> Result<()> {
        let spec = &self.work.lightning_spec;
        let belongs = [spec.heads, spec.head_dim, spec.head_dim];
        for layer in self.work.lightning_layers.iter().copied() {
            let found = match end.and_then(|end| state_of(end, layer)) {
                Some(t) if t.shape == belongs && t.dtype == Dtype::F32 => continue,
                Some(t) => format!("{:?} {:?}", t.shape, t.dtype),
                None => "not there".into(),
            };
            let segment = rows.last().map_or(self.now.named.at(keep), |rows| rows.segment());
            let why = format!("{} is {found}, and {belongs:?} F32 belongs there", layer_tensor("state", layer));
            return Err(lost(segment, StatePart::End, why));
        }
        Ok(())
    }

    /// Replaces the caches with all rows that the other sequence lends, and returns their number. Does nothing, and
    /// returns 0, if it lends no more than the `keep` rows that stay.
    fn borrow(
        &mut self,
        b: &mut B,
        keep: usize,
        rows: &[Arc<dyn RowSource>],
        lender: &mut Sequence<B>,
    ) -> Result<usize> {
        let lent = lender.lends(b, rows);
        if lent <= keep {
            return Ok(0);
        }
        self.now.named.cut(0);
        b.sync_rows(0)?;
        let (mut to, mut from) = (self.now.layers.caches(), lender.layers.caches());
        b.copy_rows(&mut to, &mut from, lent)?;
        self.now.named = lender.named.clone();
        self.now.named.cut(lent);
        Ok(lent)
    }

    /// Empties the state. Also recovers from a device error.
    pub fn reset(&mut self, b: &mut B) -> Result<()> {
        self.restore(b, 0, &[], None)
    }
}

fn state_of(end: &CheckpointImage, layer: usize) -> Option<&ImageTensor> {
    let wanted = layer_tensor("state", layer);
    end.tensors.iter().find(|t| t.name == wanted)
}

/// Saved state that does not fit: the caller reads its text instead.
fn lost(segment: Option<[u8; 32]>, part: StatePart, why: String) -> ModelError {
    BackendError::Rows(RowsFault { segment, part, why, lasting: true }).into()
}
