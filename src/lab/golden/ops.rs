//! Golden data of single operations, driven through the [`Backend`] trait as the model does.
//!
//! Operations run outside of a captured step, so a device runs them eagerly.

use std::path::Path;

use crate::backend::prelude::*;
use crate::backend::{BufKind, Form, GRID, MAX_VERIFY_ROWS, Pass, WeightView};
use crate::core::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};
use crate::engine::protocol::{Dtype, ImageTensor};

use super::model::image_floats;
use super::{Golden, Kind, Report, Result};

const EPS: f32 = 1e-6;

/// Operation, its cases (the rotations' with their bases), and what replays one.
type Replay<B> = fn(&Golden, &str, &mut B, &mut Report) -> Result<()>;

pub(super) fn replay<B: Backend>(dir: &Path, b: &mut B, report: &mut Report) -> Result<()> {
    let all: [(&str, &[&str], Replay<B>); 5] = [
        ("decay_slopes", &[""], decay_slopes),
        ("rope", &["d32", "d64", "d128"], rope),
        ("rms_norm", &[""], rms_norm),
        ("lightning", &["small", "real_head"], lightning),
        ("sparse", &["tiny", "wide_init", "real"], sparse),
    ];
    for (op, cases, replay) in all {
        let path = dir.join(format!("{op}.safetensors"));
        if path.is_file() {
            let golden = Golden::open(&path)?;
            for case in cases {
                report.guard(format!("ops/{op} {case}").trim_end(), |report| replay(&golden, case, b, report))?;
            }
        }
    }
    Ok(())
}

fn lightning_spec(heads: usize, head_dim: usize, rope_theta: Option<f64>) -> LightningSpec {
    LightningSpec {
        heads,
        kv_heads: heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        rope_theta,
        qk_norm: false,
        output_norm: false,
        output_gate: false,
    }
}

pub(super) struct Layer<B: Backend> {
    spec: LightningSpec,
    width: usize,
    x: B::Buf,
    o: B::Buf,
    state: B::Recurrent,
}

impl<B: Backend> Layer<B> {
    pub(super) fn new(b: &mut B, heads: usize, head_dim: usize, rope_theta: Option<f64>) -> Result<Layer<B>> {
        let spec = lightning_spec(heads, head_dim, rope_theta);
        let width = spec.projection_width();
        let (x, o) = (b.buf(width, BufKind::Activation)?, b.buf(heads * head_dim, BufKind::Wide)?);
        Ok(Layer { state: b.recurrent(&spec)?, spec, width, x, o })
    }

    pub(super) fn start(&mut self, b: &mut B, position: usize, state: Option<&[f32]>) -> Result<()> {
        let shape = vec![self.spec.heads, self.spec.head_dim, self.spec.head_dim];
        let image = state.map(|values| ImageTensor::of_floats("state", shape, values));
        b.seek(position)?;
        Ok(b.write_state(&mut self.state, image.as_ref())?)
    }

    /// The outputs of a pass, of which no row is accepted yet.
    pub(super) fn pass(&mut self, b: &mut B, rows: &[f32], pass: Pass) -> Result<Vec<f32>> {
        b.set_tokens(&vec![0; pass.rows()])?;
        b.write(&mut self.x, rows)?;
        b.lightning(&mut self.o, &self.x, None, None, &mut [&mut self.state], &self.spec, EPS, pass)?;
        Ok(b.read(&self.o, pass.rows())?)
    }

    fn run(&mut self, b: &mut B, rows: &[f32], pass: Pass) -> Result<Vec<f32>> {
        let outputs = self.pass(b, rows, pass)?;
        b.advance(pass, pass.rows())?;
        Ok(outputs)
    }

    pub(super) fn end(&mut self, b: &mut B) -> Result<Vec<f32>> {
        b.fold(&mut self.state, &self.spec)?;
        b.folded();
        Ok(image_floats(&b.read_state(&self.state)?))
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A state of ones after one token with a zero key is the decay itself.
fn decay_slopes<B: Backend>(golden: &Golden, _case: &str, b: &mut B, report: &mut Report) -> Result<()> {
    for heads in [1usize, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64] {
        let name = format!("slopes.{heads}");
        if !golden.has(&name) {
            continue;
        }
        let mut layer = Layer::new(b, heads, 128, None)?;
        layer.start(b, 0, Some(&vec![1.0; heads * 128 * 128]))?;
        layer.run(b, &vec![0.0; layer.width], Pass::Verify { rows: 1 })?;
        let found: Vec<f32> = layer.end(b)?.chunks_exact(128 * 128).map(|s| s[0]).collect();
        let expected: Vec<f32> = golden.floats(&name)?.iter().map(|m| (-f64::from(*m)).exp() as f32).collect();
        report.compare("ops/decay_slopes", &name, Kind::Keys, &found, &expected);
    }
    Ok(())
}

/// From a zero state and a value of (1, 0, 0 …), one token leaves its rotated key in the state's first column.
fn rope<B: Backend>(golden: &Golden, case: &str, b: &mut B, report: &mut Report) -> Result<()> {
    let theta = if case == "d64" { 5_000.0 } else { 10_000.0 };
    let [rows, heads, d] = golden.dims::<3>(&format!("{case}.x"))?;
    let (x_values, positions) = (golden.floats(&format!("{case}.x"))?, golden.indices(&format!("{case}.positions"))?);
    let mut layer = Layer::new(b, heads, d, Some(theta))?;
    let mut found: Vec<f32> = Vec::with_capacity(rows * heads * d);
    for (position, keys) in positions.iter().zip(x_values.chunks_exact(heads * d)) {
        let mut row = vec![0.0; layer.width];
        row[heads * d..2 * heads * d].copy_from_slice(keys);
        row[2 * heads * d..].iter_mut().step_by(d).for_each(|v| *v = 1.0);
        layer.start(b, *position, None)?;
        layer.run(b, &row, Pass::Verify { rows: 1 })?;
        found.extend(layer.end(b)?.iter().step_by(d));
    }
    let mut expected = golden.floats(&format!("{case}.y"))?;
    // The reference's power function misses the nearest float32 in a few lanes. Its angle is off by that difference
    // times the position, which the budget allows; the file holds the lane's frequency.
    let frequencies = golden.floats(&format!("{case}.inv_freq"))?;
    for (i, (found, expected)) in found.iter().zip(&mut expected).enumerate() {
        let (row, lane) = (i / (heads * d), i % (d / 2));
        let nearest = 1.0 / (theta.powf(f64::from((2 * lane) as f32 / d as f32)) as f32);
        let head = &x_values[i / d * d..][..d];
        let allowed =
            (nearest - frequencies[lane]).abs() * positions[row] as f32 * (head[lane].abs() + head[lane + d / 2].abs());
        if (*found - *expected).abs() <= allowed {
            *expected = *found;
        }
    }
    report.compare("ops/rope", &format!("{case}.y"), Kind::Rows, &found, &expected);
    Ok(())
}

fn rms_norm<B: Backend>(golden: &Golden, _case: &str, b: &mut B, report: &mut Report) -> Result<()> {
    let [rows, n] = golden.dims::<2>("x")?;
    let identity: Vec<f32> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    let (identity, weight) = (bytes(&identity), bytes(&golden.floats("weight")?));
    let view = WeightView { name: "", shape: &[], dtype: Dtype::F32, data: &[], file: None, form: Form::Bf16 };
    let w = b.matrix(&[WeightView { name: "identity", shape: &[n, n], data: &identity, ..view }])?;
    let norm = b.vector(WeightView { name: "weight", shape: &[n], data: &weight, ..view })?;
    let (mut h, mut dst) = (b.buf(n, BufKind::Residual)?, b.buf(n, BufKind::Activation)?);
    for pass in [Pass::Verify { rows }, Pass::Prefill { rows }] {
        b.seek(0)?;
        b.set_tokens(&vec![0; rows])?;
        b.write(&mut h, &golden.floats("x")?)?;
        b.norm_linear(&mut dst, &h, &norm, EPS, &w, pass)?;
        let found = b.read(&dst, rows)?;
        b.advance(pass, rows)?;
        let form = if matches!(pass, Pass::Verify { .. }) { "y (verify)" } else { "y (prefill)" };
        report.compare("ops/rms_norm", form, Kind::Rows, &found, &golden.floats("y")?);
    }
    Ok(())
}

fn lightning<B: Backend>(golden: &Golden, case: &str, b: &mut B, report: &mut Report) -> Result<()> {
    let name = |what: &str| format!("{case}.{what}");
    let [rows, h, d] = golden.dims::<3>(&name("q"))?;
    let slopes = golden.floats(&name("slopes"))?;
    // The case's heads are the last ones of a model with this many.
    let close = |a: &[f32]| a.iter().zip(&slopes).all(|(a, b)| (a - b).abs() < 1e-7);
    let last = |n: usize| lightning_spec(n, d, None).slopes()[n - h..].to_vec();
    let heads = [h, 32]
        .into_iter()
        .find(|n| close(&last(*n)))
        .ok_or_else(|| golden.broken(&name("slopes"), "fits no head count".into()))?;
    let skipped = (heads - h) * d;
    let (q, k, v) = (golden.floats(&name("q"))?, golden.floats(&name("k"))?, golden.floats(&name("v"))?);
    let mut values = vec![0.0; rows * 3 * heads * d];
    for (r, row) in values.chunks_exact_mut(3 * heads * d).enumerate() {
        for (part, src) in row.chunks_exact_mut(heads * d).zip([&q, &k, &v]) {
            part[skipped..].copy_from_slice(&src[r * h * d..][..h * d]);
        }
    }
    let mut start = vec![0.0; heads * d * d];
    start[skipped * d..].copy_from_slice(&golden.floats(&name("S0"))?);
    let mut layer = Layer::new(b, heads, d, None)?;
    let forms = [("recurrent", MAX_VERIFY_ROWS - 1), ("chunk", b.prefill_rows().min(2 * GRID))];
    for (form, most) in forms {
        layer.start(b, 0, Some(&start))?;
        let mut found = Vec::with_capacity(rows * h * d);
        for part in values.chunks(most * layer.width) {
            let n = part.len() / layer.width;
            let pass = if form == "chunk" { Pass::Prefill { rows: n } } else { Pass::Verify { rows: n } };
            let out = layer.run(b, part, pass)?;
            out.chunks_exact(heads * d).for_each(|row| found.extend_from_slice(&row[skipped..]));
        }
        let (fixture, after) = (format!("ops/lightning {case}"), layer.end(b)?);
        report.compare(&fixture, &format!("o ({form})"), Kind::State, &found, &golden.floats(&name("o"))?);
        let golden_state = golden.floats(&name("S"))?;
        report.compare(&fixture, &format!("S ({form})"), Kind::State, &after[skipped * d..], &golden_state);
    }
    Ok(())
}

/// Shape constants of the cases; they are also in `sparse.json`.
fn sparse_spec(case: &str, heads: usize, kv_heads: usize, head_dim: usize) -> SparseSpec {
    let (block, kernel, stride, init_blocks, local_blocks, topk) = match case {
        "tiny" => (16, 8, 4, 1, 2, 8),
        "wide_init" => (16, 8, 4, 2, 3, 9),
        _ => (64, 32, 16, 1, 32, 96),
    };
    SparseSpec {
        heads,
        kv_heads,
        head_dim,
        gate: false,
        block,
        kernel,
        stride,
        init_blocks,
        local_blocks,
        topk,
        dense_len: 0,
        dense_rule: DenseRule::AsSparse,
        score_norm: ScoreNorm::Level2,
    }
}

fn sparse<B: Backend>(golden: &Golden, case: &str, b: &mut B, report: &mut Report) -> Result<()> {
    let name = |what: &str| format!("{case}.{what}");
    let fixture = format!("ops/sparse {case}");
    let [queries, heads, d] = golden.dims::<3>(&name("q"))?;
    let [length, kv, _] = golden.dims::<3>(&name("k"))?;
    let positions = golden.indices(&name("positions"))?;
    let (q, k, v) = (golden.floats(&name("q"))?, golden.floats(&name("k"))?, golden.floats(&name("v"))?);
    let spec = sparse_spec(case, heads, kv, d);
    let width = spec.projection_width();
    let mut values = vec![0.0; length * width];
    for (p, row) in values.chunks_exact_mut(width).enumerate() {
        row[heads * d..][..kv * d].copy_from_slice(&k[p * kv * d..][..kv * d]);
        row[(heads + kv) * d..][..kv * d].copy_from_slice(&v[p * kv * d..][..kv * d]);
    }
    for (p, q) in positions.iter().zip(q.chunks_exact(heads * d)) {
        values[p * width..][..heads * d].copy_from_slice(q);
    }
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(heads * d, BufKind::Wide)?);
    let (mut cache, mut sel) = (b.cache(&spec, length)?, b.selection(&spec, length)?);
    b.reserve(&mut cache, length)?;
    let level1 = SparseSpec { score_norm: ScoreNorm::Level1, ..spec.clone() };
    let dense = SparseSpec { dense_rule: DenseRule::Always, ..spec.clone() };
    let variants =
        [(&spec, "selected", Some("out")), (&level1, "selected_lse_k1", None), (&dense, "", Some("out_dense"))];
    let mut found: [(Vec<Vec<Vec<u32>>>, Vec<f32>); 3] = Default::default();
    b.seek(0)?;
    let most = b.prefill_rows();
    for (i, part) in values.chunks(most * width).enumerate() {
        let (rows, start) = (part.len() / width, i * most);
        let pass = Pass::Prefill { rows };
        b.set_tokens(&vec![0; rows])?;
        b.write(&mut x, part)?;
        b.append_kv(&mut [&mut cache], &x, &spec, pass)?;
        let here: Vec<usize> =
            positions.iter().filter(|p| (start..start + rows).contains(*p)).map(|p| p - start).collect();
        for ((spec, ..), (blocks, out)) in variants.iter().zip(&mut found) {
            if here.is_empty() {
                break;
            }
            b.select_blocks(&mut sel, &x, &[&cache], spec, pass)?;
            b.attend(&mut o, &x, &mut sel, &[&cache], spec, pass)?;
            let (all, chosen) = (b.read(&o, rows)?, b.read_selection(&sel, spec, rows)?);
            for r in &here {
                blocks.push(chosen.get(*r).cloned().unwrap_or_default());
                out.extend_from_slice(&all[r * heads * d..][..heads * d]);
            }
        }
        b.advance(pass, rows)?;
    }
    let margin = golden.floats(&name("margin"))?;
    for ((_, selected, out), (blocks, values)) in variants.iter().zip(&found) {
        if !selected.is_empty() {
            // Margins belong to the released normaliser; the textbook form has none.
            let gap = |g: usize, r: usize| margin.get(g * queries + r).copied().filter(|_| *selected == "selected");
            report.selections(&fixture, selected, blocks, &golden.selected(&name(selected))?, gap);
        }
        if let Some(out) = out {
            report.compare(&fixture, out, Kind::Attention, values, &golden.floats(&name(out))?);
        }
    }
    for image in b.read_rows(&cache, 0..length)? {
        let Some(golden_name) =
            [name(&image.name), format!("{}_rows", name(&image.name))].into_iter().find(|n| golden.has(n))
        else {
            continue;
        };
        let expected = golden.floats(&golden_name)?;
        let stored = image_floats(&image);
        report.compare(&fixture, &image.name, Kind::Keys, stored.get(..expected.len()).unwrap_or(&stored), &expected);
    }
    Ok(())
}
