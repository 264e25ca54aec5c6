//! Golden data of whole models: one prefill with a probe in every layer, decoding after it, and the alternative rules.
//!
//! Alternatives only differ on late rows, so they restart from a state saved in the middle of the main run, which also
//! tests saving and restoring.

use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::{Backend, GRID};
use crate::core::spec::{DenseRule, Mixer, ScoreNorm, SparseSpec};
use crate::engine::protocol::{CheckpointImage, Token};
use crate::lab::layers::numbers;
use crate::lab::subject::Subject;
use crate::model::{Checkpoint, Seen};

use super::{Fixture, Kind, Result};

/// (golden tensor, tensor of its rows, rule, norm)
const ALTERNATIVES: [(&str, &str, DenseRule, ScoreNorm); 6] = [
    ("logits_always_rows", "rows", DenseRule::Always, ScoreNorm::Level2),
    ("logits_token_rows", "rows", DenseRule::Token, ScoreNorm::Level2),
    ("logits_never_rows", "rows", DenseRule::AsSparse, ScoreNorm::Level2),
    ("logits_always_dense_late_rows", "late_rows", DenseRule::Always, ScoreNorm::Level2),
    ("logits_token_late_rows", "late_rows", DenseRule::Token, ScoreNorm::Level2),
    ("logits_lse_k1_late_rows", "late_rows", DenseRule::Call, ScoreNorm::Level1),
];

/// Greatest error of each layer's three sums: plain, of magnitudes, of squares. A layer that only one side has counts
/// as a miss.
fn checksum_errors(found: &BTreeMap<usize, [f64; 3]>, golden: &[f32]) -> Vec<(usize, f64)> {
    let layers = golden.len().div_ceil(3).max(found.keys().next_back().map_or(0, |last| last + 1));
    let error = |layer: usize| {
        let (Some(found), Some(golden)) = (found.get(&layer), golden.get(3 * layer..3 * layer + 3)) else {
            return f64::INFINITY;
        };
        // Relative to the sum of magnitudes, or of squares: the plain sum nearly cancels.
        let scale = [golden[1], golden[1], golden[2]].map(f64::from);
        let errors = (0..3).map(|j| (found[j] - f64::from(golden[j])).abs() / scale[j]);
        errors.fold(0.0, |worst, e| if e > worst || e.is_nan() { e } else { worst })
    };
    (0..layers).map(|layer| (layer, error(layer))).collect()
}

struct Replay<'a, 'f, B: Backend> {
    s: Subject<'a, B>,
    f: &'a mut Fixture<'f>,
    ids: Vec<Token>,
}

pub(super) fn replay<B: Backend>(dir: &Path, b: &mut B, f: &mut Fixture) -> Result<()> {
    let mut checkpoint = Checkpoint::open_dir(dir)?;
    // The fixtures follow the released code's rule.
    checkpoint.spec_mut().sparse.dense_rule = DenseRule::Call;
    let ids = f.indices::<Token>("input_ids")?;
    let s = Subject::open(b, &checkpoint, ids.len() + 64)?;
    let mut run = Replay { s, f, ids };
    let middle = run.main()?;
    run.decode()?;
    run.alternatives(&middle)?;
    run.incremental()
}

/// Sum, sum of magnitudes and sum of squares.
fn add_sums([sum, abs, square]: &mut [f64; 3], values: &[f32]) {
    for v in values.iter().map(|v| f64::from(*v)) {
        (*sum, *abs, *square) = (*sum + v, *abs + v.abs(), *square + v * v);
    }
}

struct Probed<'a> {
    rows: &'a [usize],
    spec: &'a SparseSpec,
    /// Values of the chosen rows, by golden tensor.
    values: BTreeMap<String, Vec<f32>>,
    /// `[row][kv]` by sparse layer.
    blocks: BTreeMap<usize, Vec<Vec<Vec<u32>>>>,
    /// Of the embedding and of each layer.
    sums: BTreeMap<usize, [f64; 3]>,
}

impl Probed<'_> {
    fn take<B: Backend>(
        &mut self,
        b: &mut B,
        at: usize,
        count: usize,
        what: Seen<'_, B>,
    ) -> crate::backend::Result<()> {
        let (key, slot, buf) = match what {
            Seen::Embedding(h) => ("hidden.0".to_owned(), Some(0), h),
            Seen::Hidden { layer, hidden } => (format!("hidden.{}", layer + 1), Some(layer + 1), hidden),
            Seen::Mixer { layer, output, .. } => (format!("layer{layer}.attn_core_rows"), None, output),
            Seen::Selection { layer, selection } => {
                let blocks = b.read_selection(selection, self.spec, count)?;
                self.blocks.entry(layer).or_default().extend(blocks);
                return Ok(());
            }
            Seen::Between { .. } | Seen::Middle { .. } => return Ok(()),
        };
        let values = b.read(buf, count)?;
        if let Some(slot) = slot {
            add_sums(self.sums.entry(slot).or_default(), &values);
        }
        let kept = self.values.entry(key).or_default();
        for row in self.rows.iter().filter(|r| (at..at + count).contains(*r)) {
            kept.extend_from_slice(&values[(row - at) * values.len() / count..][..values.len() / count]);
        }
        Ok(())
    }
}

impl<B: Backend> Replay<'_, '_, B> {
    /// Reads the tokens of this range; the logits of the wanted rows.
    fn logits(&mut self, range: std::ops::Range<usize>, wanted: &dyn Fn(usize) -> bool) -> Result<Vec<f32>> {
        let mut found = Vec::new();
        let from = range.start;
        self.s.score(&self.ids[range], &|row| wanted(from + row), &mut |_, l| found.extend_from_slice(l), None)?;
        Ok(found)
    }

    /// One prefill, everything compared. Returns the state at the last grid point before rows begin to choose.
    fn main(&mut self) -> Result<CheckpointImage> {
        let (f, spec, length) = (&mut *self.f, self.s.model.spec().clone(), self.ids.len());
        let rows = f.indices::<usize>("rows")?;
        let (every_row, checked) = (f.has("logits"), f.has("checksums"));
        self.s.set_dense_rule(spec.sparse.dense_rule, length);
        let (values, blocks, sums) = Default::default();
        let mut probed = Probed { rows: &rows, spec: &spec.sparse, values, blocks, sums };
        let (mut logits, mut logit_sums) = (Vec::new(), [0.0; 3]);
        let cut = (spec.sparse.topk * spec.sparse.block / GRID * GRID).min(length / GRID * GRID);
        let mut middle = CheckpointImage::default();
        for part in [0..cut, cut..length] {
            let from = part.start;
            let mut watch = |b: &mut B, rows: std::ops::Range<usize>, what: Seen<'_, B>| {
                probed.take(b, from + rows.start, rows.len(), what)
            };
            let mut each = |row: usize, values: &[f32]| {
                add_sums(&mut logit_sums, values);
                if every_row || rows.contains(&(from + row)) {
                    logits.extend_from_slice(values);
                }
            };
            let wanted = |row: usize| every_row || checked || rows.contains(&(from + row));
            self.s.score(&self.ids[part], &wanted, &mut each, Some(&mut watch))?;
            if from == 0 {
                middle = self.s.end()?;
            }
        }

        f.compare(if every_row { "logits" } else { "logits_rows" }, Kind::Rows, &logits)?;
        let Probed { values, blocks, mut sums, .. } = probed;
        let found = |key: &str| values.get(key).map(Vec::as_slice).unwrap_or_default();
        for (i, golden) in f.floats("hidden_rows")?.chunks_exact(rows.len() * spec.hidden).enumerate() {
            f.judge(&format!("hidden_rows[{i}]"), Kind::Rows, found(&format!("hidden.{i}")), golden);
        }
        for (layer, mixer) in spec.mixers.iter().enumerate() {
            let key = format!("layer{layer}.attn_core_rows");
            let kind = if *mixer == Mixer::Lightning { Kind::State } else { Kind::Attention };
            f.compare(&key, kind, found(&key))?;
        }
        if checked && f.single {
            sums.insert(spec.mixers.len() + 1, logit_sums);
            for (i, error) in checksum_errors(&sums, &f.floats("checksums")?) {
                f.add(&format!("checksums[{i}]"), error, 1e-5);
            }
        }
        let positions = "selected_rows_positions";
        let samples = if f.has(positions) { f.indices(positions)? } else { Vec::new() };
        let every: Vec<usize> = (0..length).collect();
        for (layer, blocks) in &blocks {
            for (tensor, rows) in [("selected", &every), ("selected_rows", &rows), ("selected_sample", &samples)] {
                let key = format!("layer{layer}.{tensor}");
                let found = rows.iter().map(|r| blocks.get(*r).cloned().unwrap_or_default()).collect::<Vec<_>>();
                if f.has(&key) {
                    f.selection(&key, &key, &found, |_, _| None)?;
                }
            }
        }
        for image in self.s.live.export_rows(self.s.b, 0..length)?.tensors {
            let Some((part, layer)) = image.name.split_once('.') else { continue };
            let key = format!("layer{layer}.cache_{part}_tail");
            if self.f.has(&key) {
                let (found, golden) = (numbers(&image), self.f.floats(&key)?);
                self.f.judge(&key, Kind::Rows, &found[found.len().saturating_sub(golden.len())..], &golden);
            }
        }
        self.states("state")?;
        Ok(middle)
    }

    fn states(&mut self, suffix: &str) -> Result<()> {
        for image in self.s.end()?.tensors {
            let key = format!("layer{}.{suffix}", image.name.trim_start_matches("state."));
            self.f.check(&key, Kind::State, &numbers(&image))?;
        }
        Ok(())
    }

    fn decode(&mut self) -> Result<()> {
        if !self.f.has("decode_ids") {
            return Ok(());
        }
        self.s.set_dense_rule(DenseRule::Token, self.ids.len());
        let (mut logits, mut chosen) = (Vec::new(), Vec::new());
        for id in self.f.indices::<Token>("decode_ids")? {
            logits.extend(self.s.logits(&[id])?);
            if let Some(selection) = self.s.live.selection() {
                // All sparse layers share the buffer: it holds the last layer's choice.
                chosen.extend(self.s.b.read_selection(selection, self.s.live.sparse_spec(), 1)?);
            }
        }
        self.f.compare("decode_logits", Kind::Rows, &logits)?;
        if let Some(layer) = self.s.model.spec().mixers.iter().rposition(|m| *m == Mixer::Sparse) {
            let key = format!("layer{layer}.decode_selected");
            self.f.selection(&key, &key, &chosen, |_, _| None)?;
        }
        Ok(())
    }

    fn alternatives(&mut self, middle: &CheckpointImage) -> Result<()> {
        let (start, length) = (usize::try_from(middle.position).unwrap_or(0), self.ids.len());
        // The last grid point up to which the token rule equals the dense one.
        let fork = (self.s.live.sparse_spec().dense_len.saturating_sub(1) / GRID * GRID).clamp(start, length);
        for (tensor, rows, rule, norm) in ALTERNATIVES {
            if !self.f.has(tensor) {
                continue;
            }
            let rows = self.f.indices::<usize>(rows)?;
            // Earlier rows choose every block under every rule: the main run has compared them.
            let late = |row: usize| row >= start && rows.contains(&row);
            let first = if rule == DenseRule::Token { DenseRule::Always } else { rule };
            self.s.back(middle)?;
            self.s.live.sparse_spec_mut().score_norm = norm;
            self.s.set_dense_rule(first, length);
            let mut found = self.logits(start..fork, &late)?;
            self.s.set_dense_rule(rule, length);
            found.extend(self.logits(fork..length, &late)?);
            self.s.live.sparse_spec_mut().score_norm = ScoreNorm::Level2;
            let golden = self.f.floats(tensor)?;
            let skipped = rows.iter().filter(|row| **row < start).count() * self.s.model.spec().vocab;
            self.f.judge(tensor, Kind::Rows, &found, golden.get(skipped..).unwrap_or_default());
        }
        Ok(())
    }

    fn incremental(&mut self) -> Result<()> {
        const PREFILL: usize = 100;
        if !self.f.has("logits_incremental") {
            return Ok(());
        }
        let length = self.f.floats("logits_incremental")?.len() / self.s.model.spec().vocab;
        self.s.reset()?;
        self.s.set_dense_rule(DenseRule::Call, PREFILL);
        let mut found = self.logits(0..PREFILL, &|_| true)?;
        self.s.set_dense_rule(DenseRule::Token, self.ids.len());
        for id in &self.ids[PREFILL..length] {
            found.extend(self.s.logits(&[*id])?);
        }
        self.f.compare("logits_incremental", Kind::Rows, &found)?;
        self.states("state_incremental")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_without_checksums_misses() {
        let golden = [1.0, 2.0, 4.0, 3.0, 5.0, 7.0];
        let both = [(0, [1.0, 2.0, 4.0]), (1, [3.0, 5.0, 7.0])];
        let errors =
            |found: &[(usize, [f64; 3])], golden: &[f32]| checksum_errors(&found.iter().copied().collect(), golden);
        assert_eq!(errors(&both, &golden), [(0, 0.0), (1, 0.0)]);
        assert_eq!(errors(&both[1..], &golden), [(0, f64::INFINITY), (1, 0.0)]);
        assert_eq!(errors(&both[..1], &golden), [(0, 0.0), (1, f64::INFINITY)]);
        assert_eq!(errors(&both, &golden[..3]), [(0, 0.0), (1, f64::INFINITY)], "one more than there should be");
        assert!(errors(&[(0, [f64::NAN, 2.0, 4.0])], &golden[..3])[0].1.is_nan());
    }
}
