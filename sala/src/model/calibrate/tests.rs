use std::path::Path;

use super::*;
use crate::backend::cpu::Cpu;
use crate::backend::prelude::*;
use crate::backend::synthetic_value;
use crate::model::Recipe;
use crate::model::quantize::{Calibration, Claim, Part, quantize};

fn fixture() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-mixed");
    Checkpoint::open_dir(&folder).unwrap()
}

fn text(seed: u32, length: usize) -> Vec<Token> {
    (0..length as u32).map(|i| (i * 37 + i * i * seed) % 512).collect()
}

fn statistics(texts: &[Vec<Token>]) -> Statistics {
    collect(&mut Cpu::new(), &fixture(), texts, &Cancel::default(), &mut |_| ()).unwrap().unwrap()
}

#[test]
fn sums_do_not_depend_on_how_rows_are_cut() {
    let (rows, width) = (5 * GRID + 11, 256);
    let x: Vec<f32> = (0..rows * width).map(|i| synthetic_value(3, i as u64, 1.0)).collect();
    let mut whole = Moments::new(width);
    whole.add(&x, width);
    for cut in [1, 2, 3] {
        let mut cut_up = Moments::new(width);
        x.chunks(cut * GRID * width).for_each(|rows| cut_up.add(rows, width));
        assert!(cut_up == whole, "chunks of {cut}");
    }
    for (unit, i, j) in [(0, 0, 0), (0, 3, 100), (1, 17, 18), (1, 127, 127)] {
        let at = |row: usize, k: usize| f64::from(x[row * width + unit * UNIT_COLUMNS + k]);
        let sum: f64 = (0..rows).map(|row| at(row, i) * at(row, j)).sum();
        let found = f64::from(whole.blocks[unit * BLOCK + i * UNIT_COLUMNS + j]);
        assert!((found - sum).abs() < 1e-3, "{found} {sum}");
    }
}

/// Σ wᵀHw over the rows of a weight with one unit of columns: the squared norm of its outputs.
fn computed(all: &Statistics, name: &str, shape: [usize; 2]) -> f64 {
    let checkpoint = fixture();
    let loaded = checkpoint.tensor(&format!("{name}.weight"), &shape).unwrap();
    let view = loaded.view();
    let w: Vec<f64> = view.dtype.floats(view.data).unwrap().into_iter().map(f64::from).collect();
    let moments = &all.of(name).unwrap().blocks;
    let mut sum = 0.0;
    for row in w.chunks(UNIT_COLUMNS) {
        for i in 0..UNIT_COLUMNS {
            for j in i..UNIT_COLUMNS {
                let twice = if i == j { 1.0 } else { 2.0 };
                sum += twice * row[i] * row[j] * f64::from(moments[i * UNIT_COLUMNS + j]);
            }
        }
    }
    sum
}

/// Compares the outputs that the moments predict with the real ones, including gates and additions to the residual
/// stream.
#[test]
fn inputs_are_those_of_the_matrices() {
    let (checkpoint, text) = (fixture(), text(5, 150));
    let all = statistics(std::slice::from_ref(&text));
    let mut b = Cpu::new();
    let model = Model::load(&mut b, &checkpoint, |_| ()).unwrap();
    let mut live = Live::new(&mut b, &model, 256, &[]).unwrap();
    let (rows, spec) = (text.len(), checkpoint.spec());
    let square = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let mut before = Vec::new();
    let mut checked = 0;
    let mut agree = |name: &str, out: usize, expected: f64| {
        let found = computed(&all, name, [out, UNIT_COLUMNS]);
        assert!((found / expected - 1.0).abs() < 1e-3, "{name}: {found} {expected}");
        checked += 1;
    };
    let mut probe = |b: &mut Cpu, what: Seen<'_, Cpu>| -> crate::backend::Result<()> {
        match what {
            Seen::Embedding(h) => before = b.read(h, rows)?,
            Seen::Hidden { hidden, .. } => before = b.read(hidden, rows)?,
            Seen::Mixer { layer, projection, .. } => {
                let x = b.read(projection, rows)?;
                let (gate, columns) = match spec.mixers[layer] {
                    Mixer::Sparse => ("o_gate", spec.sparse.gate_columns()),
                    Mixer::Lightning => ("z_proj", spec.lightning.gate_columns()),
                };
                let gates: Vec<f32> = x.chunks(x.len() / rows).flat_map(|row| row[columns.clone()].to_vec()).collect();
                agree(&format!("model.layers.{layer}.self_attn.{gate}"), columns.len(), square(&gates));
            }
            Seen::Between { layer, hidden } => {
                let after = b.read(hidden, rows)?;
                let added: Vec<f32> = after.iter().zip(&before).map(|(a, b)| (a - b) / spec.residual_scale).collect();
                agree(&format!("model.layers.{layer}.self_attn.o_proj"), spec.hidden, square(&added));
            }
            Seen::Middle { .. } | Seen::Selection { .. } => {}
        }
        Ok(())
    };
    live.prefill_pass(&mut b, &model, &text, Wanted::Output, Some(&mut probe)).unwrap();
    assert_eq!(checked, 2 * spec.mixers.len());
    assert!(all.of("model.embed_tokens").is_none(), "a table is only looked up");
    assert!(all.of("model.layers.3.mlp.down_proj").unwrap().blocks.iter().any(|v| *v > 0.0));
    assert!(all.of("lm_head").unwrap().blocks.iter().any(|v| *v > 0.0));
}

fn packed(source: &Checkpoint, id: &str, statistics: &Statistics, out: &Path) -> Vec<Part> {
    let mut parts = Vec::new();
    let (calibration, claim) = (Calibration { id, statistics }, Claim::take(out).unwrap());
    let index = quantize(source, Some(&calibration), &claim, &Cancel::default(), &mut |p| parts.push(p.clone()));
    index.unwrap().unwrap().write().unwrap();
    parts
}

#[test]
fn a_calibrated_folder_loads_and_is_never_worse() {
    let mut source = fixture();
    source.recipe = Recipe::Bits4;
    let (texts, others) = ([text(5, 300), text(7, 200)], [text(5, 300), text(7, 201)]);
    let id = identity(&source, &texts);
    assert!(id != source.fingerprint() && id != identity(&source, &others));
    let (all, out) = (statistics(&texts), tempfile::tempdir().unwrap());
    let parts = packed(&source, &id, &all, out.path());
    for part in &parts[1..] {
        let [plain, careful] = part.errors.outputs.unwrap();
        assert!(careful <= plain && careful > 0.0, "{part:?}");
    }
    assert!(parts[2].errors.outputs.is_some_and(|[plain, careful]| careful < 0.95 * plain), "{parts:?}");
    assert!(Model::load(&mut Cpu::new(), &Checkpoint::open_dir(out.path()).unwrap(), |_| ()).is_ok());
    // Statistics that are computed again give the same bytes.
    let part = out.path().join("part-002.safetensors");
    let bytes = std::fs::read(&part).unwrap();
    packed(&source, &id, &statistics(&texts), out.path());
    assert!(std::fs::read(&part).unwrap() == bytes);
}

#[test]
fn a_stopped_calibration_gives_no_statistics() {
    let stop = Cancel::default();
    stop.cancel();
    assert!(collect(&mut Cpu::new(), &fixture(), &[text(5, 130)], &stop, &mut |_| ()).unwrap().is_none());
}
