//! Lightning and sparse layers with their buffers, from a random state, and the draft head up to its MLP.

use half::bf16;

use super::{Case, EPS, HEAD, Mode, Run, Sizes, cuts, matrix, norm, numbers, part, perform, poisoned, tokens, values};
use crate::backend::draft::{DraftOps, DraftResidual, DraftShape};
use crate::backend::{Backend, BufKind, Pass, Result, internal};
use crate::core::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};
use crate::engine::protocol::{ImageTensor, ROW_ARRAYS};
use crate::lab::layer::Lightning;

pub fn lightning_spec(s: Sizes) -> LightningSpec {
    LightningSpec {
        heads: s.lightning_heads,
        kv_heads: s.lightning_heads,
        head_dim: HEAD,
        scale: 1.0 / (HEAD as f32).sqrt(),
        rope_theta: Some(10_000.0),
        qk_norm: true,
        output_norm: true,
        output_gate: true,
    }
}

/// A layer with random norms, from a random state.
pub fn lightning_layer<B: Backend>(b: &mut B, s: Sizes, seed: u64) -> Result<Lightning<B>> {
    let norms = [norm(b, seed + 1, HEAD)?, norm(b, seed + 2, HEAD)?];
    let start = values(seed + 3, s.lightning_heads * HEAD * HEAD, 1.0);
    Lightning::new(b, lightning_spec(s), Some(norms), Some(&start))
}

/// Outputs of all rows, then the state after them. A verify pass follows one of five rows with three accepted, so that
/// it absorbs pending rows.
pub fn lightning<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let mut layer = lightning_layer(b, s, case.seed)?;
    let width = layer.width;
    let input = values(case.seed + 4, case.pass.rows() * width, 1.0);
    let early = values(case.seed + 5, 5 * width, 1.0);
    Ok(Box::new(move |b, mode| {
        layer.start(b, case.position)?;
        let mut out = Vec::new();
        if let Pass::Verify { .. } = case.pass {
            let first = Pass::Verify { rows: 5 };
            layer.write(b, &early)?;
            layer.run(b, first)?;
            b.advance(first, 3)?;
        }
        for (pass, rows) in cuts(b, &case) {
            layer.write(b, part(&input, width, &rows))?;
            perform(b, mode, pass, &mut |b| layer.run(b, pass))?;
            out.extend(b.read(&layer.o, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        out.extend(layer.end(b)?);
        Ok(out)
    }))
}

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
fn cache_rows(spec: &SparseSpec, rows: usize, seed: u64) -> Vec<ImageTensor> {
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
    let arrays = ROW_ARRAYS.into_iter().zip([k, v, k1, k2]);
    arrays
        .map(|(name, values)| ImageTensor::of_floats(name, vec![values.len() / width, spec.kv_heads, HEAD], &values))
        .collect()
}

pub struct Sparse<B: Backend> {
    pub spec: SparseSpec,
    /// `[rows, projection]` and `[rows, heads·128]`
    pub x: B::Buf,
    pub o: B::Buf,
    pub width: usize,
    pub cache: B::Cache,
    pub selection: B::Selection,
    before: Vec<ImageTensor>,
    position: usize,
}

impl<B: Backend> Sparse<B> {
    /// A layer with `position` rows in its cache and room for `rows` more.
    pub fn new(b: &mut B, s: Sizes, position: usize, rows: usize, seed: u64) -> Result<Self> {
        let spec = sparse_spec(s);
        let width = spec.projection_width();
        let limit = (position + rows + 64).next_multiple_of(64);
        // Two layers: as in a model, the rows of another layer lie between those of this one.
        let made = b.caches(&spec, limit, 2)?.pop();
        let mut cache = made.ok_or_else(|| internal("caches", "no cache was made"))?;
        b.reserve(&mut cache, position + rows)?;
        Ok(Sparse {
            selection: b.selection(&spec, limit)?,
            x: b.buf(width, BufKind::Activation)?,
            o: b.buf(spec.heads * HEAD, BufKind::Wide)?,
            before: cache_rows(&spec, position, seed),
            cache,
            spec,
            width,
            position,
        })
    }

    pub fn start(&mut self, b: &mut B) -> Result<()> {
        if self.position > 0 {
            b.write_rows(&mut self.cache, 0, &self.before.iter().collect::<Vec<_>>())?;
        }
        b.seek(self.position)
    }

    pub fn write(&mut self, b: &mut B, rows: &[f32]) -> Result<()> {
        b.write(&mut self.x, rows)?;
        b.set_tokens(&vec![0; rows.len() / self.width])?;
        poisoned(b, &mut self.o, rows.len() / self.width, self.spec.heads * HEAD)
    }

    pub fn select(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        b.append_kv(&mut [&mut self.cache], &self.x, &self.spec, pass)?;
        b.select_blocks(&mut self.selection, &self.x, &[&self.cache], &self.spec, pass)
    }

    pub fn attend(&mut self, b: &mut B, pass: Pass) -> Result<()> {
        b.attend(&mut self.o, &self.x, &mut self.selection, &[&self.cache], &self.spec, pass)
    }
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
    pub layer: Sparse<B>,
    case: Case,
    input: Vec<f32>,
}

impl<B: Backend> SparseCase<B> {
    pub fn new(b: &mut B, s: Sizes, case: Case) -> Result<Self> {
        let layer = Sparse::new(b, s, case.position, case.pass.rows(), case.seed + 8)?;
        let input = values(case.seed + 7, case.pass.rows() * layer.width, 1.5);
        Ok(SparseCase { layer, case, input })
    }

    pub fn run(&mut self, b: &mut B, mode: Mode) -> Result<SparseRun> {
        let (layer, case) = (&mut self.layer, self.case);
        let width = layer.width;
        layer.start(b)?;
        let (mut chosen, mut output, mut mass) = (Vec::new(), Vec::new(), Vec::new());
        for (pass, rows) in cuts(b, &case) {
            layer.write(b, part(&self.input, width, &rows))?;
            perform(b, mode, pass, &mut |b| {
                layer.select(b, pass)?;
                layer.attend(b, pass)
            })?;
            chosen.extend(b.read_selection(&layer.selection, &layer.spec, rows.len())?);
            output.extend(b.read(&layer.o, rows.len())?);
            if let Pass::Verify { rows } = pass {
                let blocks = (b.position() + rows).div_ceil(layer.spec.block);
                mass.extend(b.read_row_mass(&layer.selection, 0..rows, blocks)?);
                b.clear_mass(&mut layer.selection, 0..rows)?;
            }
            b.advance(pass, rows.len())?;
        }
        let q = self.input.chunks_exact(width).flat_map(|row| row.iter().take(layer.spec.heads * HEAD).copied());
        let cache = b.read_rows(&layer.cache, 0..case.position + case.pass.rows())?;
        Ok(SparseRun { q: q.collect(), cache, chosen, output, mass })
    }
}

/// Fuse, input, keys and values, attention of the last row: everything a draft pass computes before its MLP; with this number
/// of norms before `fc`, over parts of a row's auxiliary hidden states.
pub fn draft<B: DraftOps + 'static>(b: &mut B, s: Sizes, case: Case, norms: usize) -> Result<Run<B>> {
    let rows = case.pass.rows();
    let shape = DraftShape {
        hidden: s.hidden,
        intermediate: s.intermediate,
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: HEAD,
        // A pass must fit into the ring. Short passes leave the window small, so that they wrap around.
        window: rows.max(256),
        inv_freq: (0..HEAD / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / HEAD as f64)).collect(),
    };
    let q_width = s.heads * HEAD;
    let table = matrix(b, s.form, case.seed, s.vocab, s.hidden)?;
    let fc = matrix(b, s.form, case.seed + 1, s.hidden, 3 * s.hidden)?;
    let kvq_width = shape.kvq_width();
    let wkvq = matrix(b, s.form, case.seed + 2, kvq_width, 2 * s.hidden)?;
    let (input_norm, hidden_norm) = (norm(b, case.seed + 4, s.hidden)?, norm(b, case.seed + 5, s.hidden)?);
    let width = 3 * s.hidden / norms.max(1);
    let fc_norm = (0..norms as u64).map(|i| norm(b, case.seed + 9 + i, width)).collect::<Result<Vec<_>>>()?;
    let mut aux_hidden = b.draft_buf(rows, 3 * s.hidden, BufKind::Activation)?;
    let mut g = b.draft_buf(rows, s.hidden, BufKind::Residual)?;
    let mut x = b.draft_buf(rows, 2 * s.hidden, BufKind::Activation)?;
    let mut kvq = b.draft_buf(rows, kvq_width, BufKind::Activation)?;
    let mut o = b.draft_buf(1, q_width, BufKind::Activation)?;
    let mut window = b.draft_window(&shape)?;
    let known = shape.window.min(case.position);
    let old = |seed| {
        ImageTensor::of_floats("k", vec![known, s.kv_heads, HEAD], &values(seed, known * s.kv_heads * HEAD, 1.0))
    };
    let (old_k, old_v) = (old(case.seed + 6), old(case.seed + 7));
    let streams = values(case.seed + 8, rows * 3 * s.hidden, 1.0);
    let ids = tokens(case.seed, rows, s.vocab);
    Ok(Box::new(move |b, mode| {
        if known > 0 {
            b.write_window(&mut window, case.position - known, &old_k, &old_v)?;
        }
        b.draft_seek(&ids, case.position, case.position.saturating_sub(known))?;
        b.write(&mut aux_hidden, &streams)?;
        perform(b, mode, case.pass, &mut |b| {
            b.draft_fuse(&mut g, &aux_hidden, &fc_norm, EPS, &fc, case.pass)?;
            b.draft_input(
                &mut x,
                &mut g,
                &table,
                1.0,
                &input_norm,
                &hidden_norm,
                EPS,
                DraftResidual::Stream,
                case.pass,
            )?;
            b.draft_project(&mut kvq, &x, &wkvq, 1.0, case.pass)?;
            b.draft_append(&mut window, &kvq, case.pass)?;
            b.draft_attend(&mut o, &kvq, &window, case.pass)
        })?;
        let mut out = b.read(&o, 1)?;
        let end = case.position + rows;
        for tensor in b.read_window(&window, case.position..end)? {
            out.extend(numbers(&tensor));
        }
        Ok(out)
    }))
}
