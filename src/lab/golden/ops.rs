//! Golden data of single operations, driven through the [`Backend`] trait as the model does.
//!
//! Operations run outside of a captured step, so a device runs them eagerly.

use std::path::Path;

use crate::backend::prelude::*;
use crate::backend::{BufKind, Form, GRID, MAX_VERIFY_ROWS, Pass, WeightView};
use crate::core::spec::{DenseRule, ScoreNorm, SparseSpec};
use crate::engine::protocol::Dtype;
use crate::lab::layers::{EPS, Lightning, Mode, Part, Sparse, bytes, lightning_spec, numbers, sparse_spec};

use super::{Fixture, Kind, Report, Result};

/// What replays a case of an operation: the prefix of its tensors is the case's name.
type Replay<B> = fn(&mut Fixture, &str, &mut B) -> Result<()>;

const ONE: [Part; 1] = [Part { pass: Pass::Verify { rows: 1 }, at: 0, accepted: 1 }];

pub(super) fn replay<B: Backend>(dir: &Path, b: &mut B, report: &mut Report) -> Result<()> {
    let all: [(&str, &[&str], Replay<B>); 5] = [
        ("decay_slopes", &[""], decay_slopes),
        ("rope", &["d32", "d64", "d128"], rope),
        ("rms_norm", &[""], rms_norm),
        ("lightning", &["small", "real_head"], lightning),
        ("sparse", &["tiny", "wide_init", "real"], sparse),
    ];
    for (op, cases, replay) in all {
        let file = dir.join(format!("{op}.safetensors"));
        for case in cases.iter().filter(|_| file.is_file()) {
            let name = if op == "rope" { "ops/rope".to_owned() } else { format!("ops/{op} {case}") };
            report.fixture(name.trim_end(), &file, |fixture| replay(fixture, case, b))?;
        }
    }
    Ok(())
}

/// A state of ones after one token with a zero key is the decay itself.
fn decay_slopes<B: Backend>(f: &mut Fixture, _case: &str, b: &mut B) -> Result<()> {
    for heads in 1..=64 {
        let name = format!("slopes.{heads}");
        if !f.has(&name) {
            continue;
        }
        let ones = vec![1.0; heads * 128 * 128];
        let mut layer = Lightning::new(b, lightning_spec(heads, 128, None), None, Some(&ones))?;
        let row = vec![0.0; layer.width];
        layer.run(b, 0, &row, &ONE, Mode::Eager)?;
        let found: Vec<f32> = layer.end(b)?.chunks_exact(128 * 128).map(|s| s[0]).collect();
        let expected: Vec<f32> = f.floats(&name)?.iter().map(|m| (-f64::from(*m)).exp() as f32).collect();
        f.judge(&name, Kind::Keys, &found, &expected);
    }
    Ok(())
}

/// From a zero state and a value of (1, 0, 0 …), one token leaves its rotated key in the state's first column.
fn rope<B: Backend>(f: &mut Fixture, case: &str, b: &mut B) -> Result<()> {
    let [x, y, positions, inv_freq] = ["x", "y", "positions", "inv_freq"].map(|what| format!("{case}.{what}"));
    let theta = if case == "d64" { 5_000.0 } else { 10_000.0 };
    let [_, heads, d] = f.dims(&x)?;
    let (values, positions) = (f.floats(&x)?, f.indices::<usize>(&positions)?);
    let mut layer = Lightning::new(b, lightning_spec(heads, d, Some(theta)), None, None)?;
    let mut found: Vec<f32> = Vec::with_capacity(values.len());
    for (position, keys) in positions.iter().zip(values.chunks_exact(heads * d)) {
        let mut row = vec![0.0; layer.width];
        row[heads * d..2 * heads * d].copy_from_slice(keys);
        row[2 * heads * d..].iter_mut().step_by(d).for_each(|v| *v = 1.0);
        layer.run(b, *position, &row, &ONE, Mode::Eager)?;
        found.extend(layer.end(b)?.iter().step_by(d));
    }
    let mut expected = f.floats(&y)?;
    // The reference's power function misses the nearest float32 in a few lanes. Its angle is off by that difference
    // times the position, which the budget allows; the file holds the lane's frequency.
    let frequencies = f.floats(&inv_freq)?;
    for (i, (found, expected)) in found.iter().zip(&mut expected).enumerate() {
        let (row, lane) = (i / (heads * d), i % (d / 2));
        let nearest = 1.0 / (theta.powf(f64::from((2 * lane) as f32 / d as f32)) as f32);
        let head = &values[i / d * d..][..d];
        let allowed =
            (nearest - frequencies[lane]).abs() * positions[row] as f32 * (head[lane].abs() + head[lane + d / 2].abs());
        if (*found - *expected).abs() <= allowed {
            *expected = *found;
        }
    }
    f.judge(&y, Kind::Rows, &found, &expected);
    Ok(())
}

fn rms_norm<B: Backend>(f: &mut Fixture, _case: &str, b: &mut B) -> Result<()> {
    let [rows, n] = f.dims("x")?;
    let identity: Vec<f32> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    let (identity, weight) = (bytes(&identity), bytes(&f.floats("weight")?));
    let view = WeightView { name: "", shape: &[], dtype: Dtype::F32, data: &[], file: None, form: Form::Bf16 };
    let w = b.matrix(&[WeightView { name: "identity", shape: &[n, n], data: &identity, ..view }])?;
    let norm = b.vector(WeightView { name: "weight", shape: &[n], data: &weight, ..view })?;
    let (mut h, mut dst) = (b.buf(n, BufKind::Residual)?, b.buf(n, BufKind::Activation)?);
    for (form, pass) in [("y (verify)", Pass::Verify { rows }), ("y (prefill)", Pass::Prefill { rows })] {
        b.seek(0)?;
        b.set_tokens(&vec![0; rows])?;
        b.write(&mut h, &f.floats("x")?)?;
        b.norm_linear(&mut dst, &h, &norm, EPS, &w, None, pass)?;
        let found = b.read(&dst, rows)?;
        b.advance(pass, rows)?;
        f.judge(form, Kind::Rows, &found, &f.floats("y")?);
    }
    Ok(())
}

fn lightning<B: Backend>(f: &mut Fixture, case: &str, b: &mut B) -> Result<()> {
    let values = |what: &str| f.floats(&format!("{case}.{what}"));
    let [rows, h, d] = f.dims(&format!("{case}.q"))?;
    let (slopes, parts, s0) = (values("slopes")?, [values("q")?, values("k")?, values("v")?], values("S0")?);
    let golden = [values("o")?, values("S")?];
    // The case's heads are the last ones of a model with this many.
    let close = |a: &[f32]| a.iter().zip(&slopes).all(|(a, b)| (a - b).abs() < 1e-7);
    let fits = |n: &usize| close(&lightning_spec(*n, d, None).slopes()[n - h..]);
    let unknown = || f.broken(format!("tensor `{case}.slopes` fits no head count"));
    let heads = [h, 32].into_iter().find(fits).ok_or_else(unknown)?;
    let skipped = (heads - h) * d;
    let mut input = vec![0.0; rows * 3 * heads * d];
    for (r, row) in input.chunks_exact_mut(3 * heads * d).enumerate() {
        for (part, from) in row.chunks_exact_mut(heads * d).zip(&parts) {
            part[skipped..].copy_from_slice(&from[r * h * d..][..h * d]);
        }
    }
    let mut start = vec![0.0; heads * d * d];
    start[skipped * d..].copy_from_slice(&s0);
    let mut layer = Lightning::new(b, lightning_spec(heads, d, None), None, Some(&start))?;
    for (form, most) in [("recurrent", MAX_VERIFY_ROWS - 1), ("chunk", b.prefill_rows().min(2 * GRID))] {
        let mut parts = Part::list(Pass::Prefill { rows }, most);
        if form == "recurrent" {
            parts.iter_mut().for_each(|part| part.pass = Pass::Verify { rows: part.accepted });
        }
        let out = layer.run(b, 0, &input, &parts, Mode::Eager)?;
        let found: Vec<f32> = out.chunks_exact(heads * d).flat_map(|row| &row[skipped..]).copied().collect();
        f.judge(&format!("o ({form})"), Kind::State, &found, &golden[0]);
        f.judge(&format!("S ({form})"), Kind::State, &layer.end(b)?[skipped * d..], &golden[1]);
    }
    Ok(())
}

fn sparse<B: Backend>(f: &mut Fixture, case: &str, b: &mut B) -> Result<()> {
    let name = |what: &str| format!("{case}.{what}");
    let [queries, heads, d] = f.dims(&name("q"))?;
    let [length, kv, _] = f.dims(&name("k"))?;
    let positions = f.indices::<usize>(&name("positions"))?;
    let (q, k, v) = (f.floats(&name("q"))?, f.floats(&name("k"))?, f.floats(&name("v"))?);
    // Shape constants of the cases; they are also in `sparse.json`.
    let shape = match case {
        "tiny" => [16, 8, 4, 1, 2, 8],
        "wide_init" => [16, 8, 4, 2, 3, 9],
        _ => [64, 32, 16, 1, 32, 96],
    };
    let spec = sparse_spec(heads, kv, d, false, shape);
    let mut layer = Sparse::new(b, spec.clone(), length)?;
    let mut values = vec![0.0; length * layer.width];
    for (p, row) in values.chunks_exact_mut(layer.width).enumerate() {
        row[heads * d..][..kv * d].copy_from_slice(&k[p * kv * d..][..kv * d]);
        row[(heads + kv) * d..][..kv * d].copy_from_slice(&v[p * kv * d..][..kv * d]);
    }
    for (p, q) in positions.iter().zip(q.chunks_exact(heads * d)) {
        values[p * layer.width..][..heads * d].copy_from_slice(q);
    }
    let level1 = SparseSpec { score_norm: ScoreNorm::Level1, ..spec.clone() };
    let dense = SparseSpec { dense_rule: DenseRule::Always, ..spec.clone() };
    let variants = [(&spec, "selected", "out"), (&level1, "selected_lse_k1", ""), (&dense, "", "out_dense")];
    let mut found: [(Vec<Vec<Vec<u32>>>, Vec<f32>); 3] = Default::default();
    layer.start(b, 0, &[])?;
    for part in Part::list(Pass::Prefill { rows: length }, b.prefill_rows()) {
        let (pass, rows) = (part.pass, part.accepted);
        layer.write(b, part.rows(&values, layer.width))?;
        b.append_kv(&mut [&mut layer.cache], &layer.x, &spec, pass)?;
        let here: Vec<usize> = positions.iter().filter(|p| part.range().contains(p)).map(|p| p - part.at).collect();
        for ((spec, ..), (blocks, out)) in variants.iter().zip(&mut found).filter(|_| !here.is_empty()) {
            b.select_blocks(&mut layer.selection, &layer.x, &[&layer.cache], spec, pass)?;
            b.attend(&mut layer.o, &layer.x, &mut layer.selection, &[&layer.cache], spec, pass)?;
            let (all, chosen) = (b.read(&layer.o, rows)?, b.read_selection(&layer.selection, spec, rows)?);
            blocks.extend(here.iter().map(|r| chosen.get(*r).cloned().unwrap_or_default()));
            here.iter().for_each(|r| out.extend_from_slice(&all[r * heads * d..][..heads * d]));
        }
        b.advance(pass, rows)?;
    }
    let margin = f.floats(&name("margin"))?;
    for ((_, selected, out), (blocks, values)) in variants.iter().zip(&found) {
        if !selected.is_empty() {
            // Margins belong to the released normaliser; the textbook form has none.
            let gap = |g: usize, r: usize| margin.get(g * queries + r).copied().filter(|_| *selected == "selected");
            f.selection(selected, &name(selected), blocks, gap)?;
        }
        if !out.is_empty() {
            f.judge(out, Kind::Attention, values, &f.floats(&name(out))?);
        }
    }
    for image in b.read_rows(&layer.cache, 0..length)? {
        let names = [name(&image.name), format!("{}_rows", name(&image.name))];
        let Some(golden) = names.into_iter().find(|n| f.has(n)) else { continue };
        let (expected, stored) = (f.floats(&golden)?, numbers(&image));
        f.judge(&image.name, Kind::Keys, stored.get(..expected.len()).unwrap_or(&stored), &expected);
    }
    Ok(())
}
