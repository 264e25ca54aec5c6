//! Sparse layers: append, select and attend over a cache of any length.

use half::bf16;

use super::{Case, HEAD, Mode, Sizes, bytes, cuts, part, perform, poisoned, values};
use crate::backend::{Backend, BufKind, Pass, Result, internal};
use crate::core::spec::{DenseRule, ScoreNorm, SparseSpec};
use crate::engine::protocol::{Dtype, ImageTensor, ROW_ARRAYS};

pub fn sparse_spec(s: Sizes) -> SparseSpec {
    SparseSpec {
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: HEAD,
        gate: true,
        block: 64,
        kernel: 32,
        stride: 16,
        init_blocks: 1,
        local_blocks: 32,
        topk: 96,
        dense_len: 8192,
        dense_rule: DenseRule::AsSparse,
        score_norm: ScoreNorm::Level2,
    }
}

/// Consistent rows of a cache: k, v random, compressed keys their means, all exact in bf16.
pub fn cache_rows(spec: &SparseSpec, rows: usize, seed: u64) -> Vec<ImageTensor> {
    let width = spec.kv_heads * HEAD;
    let k = values(seed, rows * width, 1.0);
    let v = values(seed + 1, rows * width, 1.0);
    let means = |window: usize, stride: usize, n: usize| -> Vec<f32> {
        let mut out = Vec::with_capacity(n * width);
        for j in 0..n {
            for c in 0..width {
                let sum: f32 = (j * stride..j * stride + window).filter_map(|t| k.get(t * width + c)).sum();
                out.push(bf16::from_f32(sum / window as f32).to_f32());
            }
        }
        out
    };
    let k1 = means(spec.kernel, spec.stride, spec.level1_rows(rows));
    let k2 = means(4 * spec.kernel, 4 * spec.stride, spec.level2_rows(rows));
    ROW_ARRAYS
        .into_iter()
        .zip([k, v, k1, k2])
        .map(|(name, values)| ImageTensor {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![values.len() / width, spec.kv_heads, HEAD],
            data: bytes(&values).into(),
        })
        .collect()
}

pub struct SparseRun {
    /// `[rows, heads·128]`, as the operation receives it.
    pub q: Vec<f32>,
    /// k, v, k1, k2 of all positions.
    pub cache: Vec<ImageTensor>,
    /// `[rows][kv_heads]`
    pub chosen: Vec<Vec<Vec<u32>>>,
    /// `[rows, heads·128]`
    pub output: Vec<f32>,
    /// Attention mass of each row of a verify pass, one value a block.
    pub mass: Vec<Vec<u32>>,
}

pub struct SparseCase<B: Backend> {
    spec: SparseSpec,
    case: Case,
    cache: B::Cache,
    selection: B::Selection,
    x: B::Buf,
    o: B::Buf,
    input: Vec<f32>,
    before: Vec<ImageTensor>,
}

impl<B: Backend> SparseCase<B> {
    pub fn new(b: &mut B, s: Sizes, case: Case, limit: usize) -> Result<Self> {
        let spec = sparse_spec(s);
        let width = spec.projection_width();
        // Two layers: as in a model, the rows of another layer lie between those of this one.
        let made = b.caches(&spec, limit, 2)?.pop();
        let mut cache = made.ok_or_else(|| internal("caches", "no cache was made"))?;
        b.reserve(&mut cache, case.position + case.pass.rows())?;
        Ok(SparseCase {
            case,
            selection: b.selection(&spec, limit)?,
            x: b.buf(width, BufKind::Activation)?,
            o: b.buf(spec.heads * HEAD, BufKind::Wide)?,
            input: values(case.seed + 7, case.pass.rows() * width, 1.5),
            before: cache_rows(&spec, case.position, case.seed + 8),
            cache,
            spec,
        })
    }

    pub fn spec(&self) -> &SparseSpec {
        &self.spec
    }

    /// Every call starts from the same state.
    pub fn run(&mut self, b: &mut B, mode: Mode) -> Result<SparseRun> {
        let (spec, case, width) = (&self.spec, self.case, self.spec.projection_width());
        if case.position > 0 {
            let before: Vec<&ImageTensor> = self.before.iter().collect();
            b.write_rows(&mut self.cache, 0, &before)?;
        }
        b.seek(case.position)?;
        let (mut chosen, mut output, mut mass) = (Vec::new(), Vec::new(), Vec::new());
        for (pass, rows) in cuts(b, &case) {
            b.write(&mut self.x, &part(&self.input, width, &rows))?;
            poisoned(b, &mut self.o, rows.len(), spec.heads * HEAD)?;
            let (x, o, cache, selection) = (&self.x, &mut self.o, &mut self.cache, &mut self.selection);
            perform(b, mode, pass, &mut |b| {
                b.append_kv(&mut [cache], x, spec, pass)?;
                b.select_blocks(selection, x, &[cache], spec, pass)?;
                b.attend(o, x, selection, &[cache], spec, pass)
            })?;
            chosen.extend(b.read_selection(&self.selection, spec, rows.len())?);
            output.extend(b.read(&self.o, rows.len())?);
            if let Pass::Verify { rows } = pass {
                let blocks = (b.position() + rows).div_ceil(spec.block);
                mass.extend(b.read_row_mass(&self.selection, 0..rows, blocks)?);
                b.clear_mass(&mut self.selection, 0..rows)?;
            }
            b.advance(pass, rows.len())?;
        }
        let q = self.input.chunks_exact(width).flat_map(|row| row.iter().take(spec.heads * HEAD).copied()).collect();
        let cache = b.read_rows(&self.cache, 0..case.position + case.pass.rows())?;
        Ok(SparseRun { q, cache, chosen, output, mass })
    }
}
