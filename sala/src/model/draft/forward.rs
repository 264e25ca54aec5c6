//! The one layer, row by row as in docs/speculative.md §3.1. Everything here may be captured.

use crate::backend::draft::{DraftOps, DraftResidual};
use crate::backend::{HeadRows, NextOp, Pass, Result};

use super::load::{Output, Weights};
use super::{Bufs, DraftConfig, Tables};

const ONE: Pass = Pass::Verify { rows: 1 };

impl<B: DraftOps> Weights<B> {
    fn table<'a>(&'a self, tables: &Tables<'a, B>) -> &'a B::Matrix {
        self.embed.as_ref().unwrap_or(tables.embed)
    }

    /// `x`: the embedding and the stream `g` of each row, normed.
    fn input(
        &self,
        b: &mut B,
        c: &DraftConfig,
        tables: &Tables<'_, B>,
        x: &mut B::Buf,
        g: &mut B::Buf,
        norm: &B::Vector,
        residual: DraftResidual,
        pass: Pass,
    ) -> Result<()> {
        b.draft_input(x, g, self.table(tables), c.embed_scale, &self.input_norm, norm, c.eps, residual, pass)
    }

    /// Streams, keys, values and queries of the pass's rows, from auxiliary hidden states; keys and values enter the
    /// window. Leaves streams in `g`. Queries cost almost nothing, because the weights are read for all rows at once.
    pub(super) fn project_rows(
        &self,
        b: &mut B,
        c: &DraftConfig,
        bufs: &mut Bufs<B>,
        aux_hidden: &B::Buf,
        tables: &Tables<'_, B>,
        window: &mut B::Window,
        pass: Pass,
    ) -> Result<()> {
        let Bufs { g, x, kvq, .. } = bufs;
        b.draft_fuse(g, aux_hidden, &self.fc_norm, c.eps, &self.fc, pass)?;
        self.input(b, c, tables, x, g, &self.hidden_norm, c.residual, pass)?;
        b.draft_project(kvq, x, &self.kvq, 1.0, pass)?;
        b.draft_append(window, kvq, pass)
    }

    /// Attention, MLP and prediction of the pass's last row: query in `kvq`, residual in `stream`.
    pub(super) fn layer(
        &self,
        b: &mut B,
        c: &DraftConfig,
        bufs: &mut Bufs<B>,
        tables: &Tables<'_, B>,
        window: &B::Window,
        pass: Pass,
    ) -> Result<()> {
        let Bufs { stream, kvq, o, mid, logits, .. } = bufs;
        b.draft_attend(o, kvq, window, pass)?;
        b.hint_next_op(NextOp::Norm(&self.post_norm));
        b.linear_add(stream, o, &self.out, 1.0, ONE)?;
        b.norm_gate_up(mid, stream, &self.post_norm, c.eps, &self.gate_up, ONE)?;
        b.hint_next_op(NextOp::Norm(&self.norm));
        b.linear_add(stream, mid, &self.down, 1.0, ONE)?;
        let head = match &self.head {
            Output::Own(matrix) => matrix,
            Output::Embedding => self.table(tables),
            Output::Model => tables.head,
        };
        b.head(logits, stream, &self.norm, c.eps, 1.0 / c.logit_scale, head, HeadRows::Last, ONE)?;
        b.top_logits(logits, c.draft_vocab, HeadRows::Last, ONE)
    }

    /// One recursive step: the last prediction's stream replaces the fused auxiliary hidden states, normed first for
    /// EAGLE-3.1.
    pub(super) fn recurse(
        &self,
        b: &mut B,
        c: &DraftConfig,
        bufs: &mut Bufs<B>,
        tables: &Tables<'_, B>,
        window: &mut B::Window,
    ) -> Result<()> {
        let Bufs { one_x, stream, kvq, .. } = bufs;
        if c.norm_output {
            // Norms the stream in place; the step itself overwrites the other outputs.
            self.input(b, c, tables, one_x, stream, &self.norm, DraftResidual::Normed, ONE)?;
        }
        self.input(b, c, tables, one_x, stream, &self.hidden_norm, c.residual, ONE)?;
        b.draft_project(kvq, one_x, &self.kvq, 1.0, ONE)?;
        b.draft_append(window, kvq, ONE)?;
        self.layer(b, c, bufs, tables, window, ONE)
    }
}
