//! `sala-chat bench`: speed and memory of the model itself, without tokenizer, sampling or disk.
//!
//! # Method
//!
//! Contexts are visited in ascending order. Up to each one the prompt (random tokens: the work does not depend on which)
//! is read in full passes and timed as a whole, so `prefill_tokens_per_s` is the mean over the *whole* context, not the speed
//! at its end. Then, from that state:
//!
//! - *decode*: single steps, each waiting for its top logits as a chat does; median and 99th percentile of the host's clock,
//!   speed from the sum. `device_ms` repeats the steps without waiting for top logits; what is missing from the waiting
//!   run's time is `idle_share`, the part in which the device waits for the host.
//! - *look*: the steps without waiting again, with where each token looks not measured, summed as for an answer, and told for
//!   each token: the shares are what that costs. The last waits for the device after each step, as a chat does anyway.
//! - *pool*: where keys and values lie in host memory (`--gpu-memory 8GiB`), how many chosen blocks the decode steps found in the pool on
//!   the device, and steps for which the pool was emptied before; a step that finds 80 % is calculated from both, by bytes.
//! - *verify*: passes of 1 to 16 rows with half of the rows accepted, divided by the one-row pass.
//! - *draft round*: with `--draft-round`, extend, four recursive steps and a verify pass of six rows, divided by a single step.
//! - *speculation*: with `--speculation`, the decoder as a chat uses it, with drafts all wrong and all right.
//! - *sequences*: with `--sequences`, forks of the state beside each other, a pass over rows of all of them; compared bit for bit with each alone.
//! - *save and restore*: the whole state to host memory and back; the state is compared by what it predicts.
//!
//! After each part the state goes back to the frontier (rows are cut, the recurrent state restored), so parts do not add up.
//! The first steps of each kind are not counted: kernels load and CUDA graphs are made in them.
//!
//! `--fill random` puts random rows into the caches instead of reading up to a context: decode and verify at a million tokens
//! then cost seconds. Reading is then timed on one piece of `--sample` tokens at that depth, and the figure is named
//! `prefill_at_depth_tokens_per_s`, never the mean.
//!
//! # How to read it
//!
//! `decode_gb_per_s` counts the bytes a step must move: every weight but the embedding table once, states in and out, compressed
//! keys once, chosen blocks once. `read_bandwidth_share` divides that by what a read-only kernel reaches on the same device
//! just before. `prefill_tflops` counts GEMMs, attention over chosen blocks, scores and the recurrence, nothing twice.
//!
//! Traps: random tokens make speculation by text look bad, which is why no acceptance is reported here; a GPU that was idle
//! raises its clocks during the first second, so very short runs read low.

mod report;
mod sequences;
mod speculation;
mod work;

use std::time::Instant;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::backend::draft::DraftOps;
#[cfg(feature = "cuda")]
use crate::backend::prelude::*;
use crate::backend::room::PoolCounts;
use crate::backend::{MAX_POSITIONS, MAX_VERIFY_ROWS, MassOf};
use crate::model::draft::{DraftHead, DraftOptions, Tables};
use crate::model::{Checkpoint, Live, Model};
use crate::protocol::engine::{CheckpointImage, Dtype, ImageTensor, RowsImage, Token};
use crate::shell::cli::{BenchArgs, FillArg};
use crate::shell::devices::{self, Chosen, Opened};
use crate::shell::{Context, Exit, Failure, open};
use crate::spec::Mixer;
use report::{LookCost, Pool, Row, VerifyTime, table};
use work::{prefill_flops, step_bytes};

/// Contexts that are measured if none is named.
const CONTEXTS: [usize; 2] = [512, 32_768];
/// Verify passes of these rows.
const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];
/// Steps before a measurement.
const WARM_UP: usize = 4;
/// Drafts of a measured round.
const ROUND_DRAFTS: usize = 5;

/// Runs the benchmark and prints it.
///
/// # Errors
/// A model that does not load, or the device; with what was being measured.
pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    measure(context, args).map_err(|e| match e.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(e) => Failure::new(Exit::Failure, format!("{e:#}")),
    })?;
    Ok(Exit::Ok)
}

fn measure(context: &Context, args: &BenchArgs) -> anyhow::Result<()> {
    let Chosen { name: model, note } = open::model(context)?;
    if let Some(note) = note {
        context.note(&note);
    }
    let (mut machine, rows) = match devices::open(&context.config().model, &args.tuning, false)? {
        Opened::Cpu(cpu, note) => {
            let rows = bench(*cpu, &open::checkpoint(context, &model)?, args, None)?;
            (json!({"device": "cpu", "note": note}), rows)
        }
        #[cfg(feature = "cuda")]
        Opened::Cuda(mut cuda) => {
            let real = cuda.info().capability > 0;
            let ceilings = if real { cuda.ceilings(2 << 30, 8192) } else { cuda.ceilings(1 << 16, 128) }
                .context("measuring the ceilings")?;
            let machine = json!({
                "device": "cuda", "gpu": cuda.info().name, "capability": cuda.info().capability,
                "multiprocessors": cuda.info().multiprocessors, "cuda": cuda.info().driver_version,
                "gemm_library": cuda.gemm_library(), "prefill_rows": cuda.prefill_rows(), "ceilings": ceilings, "notes": cuda.notes(),
            });
            let read = real.then_some(ceilings.read_gb_per_s);
            (machine, bench(*cuda, &open::checkpoint(context, &model)?, args, read)?)
        }
    };
    describe(&mut machine, args);
    let fill = match args.fill {
        FillArg::Read => "read",
        FillArg::Random => "random",
    };
    let report =
        json!({"model": model, "machine": machine, "fill": fill, "decode_steps": args.decode, "results": rows});
    Ok(context.result(|| report.clone(), || table(&report, &rows))?)
}

/// Adds what every benchmark says about where it ran.
pub(super) fn describe(machine: &mut Value, args: &BenchArgs) {
    if let Value::Object(machine) = machine {
        machine.insert("host".into(), host().into());
        machine.insert("clocks".into(), devices::clocks().into());
        machine.insert("commit".into(), args.commit.clone().or_else(devices::commit).into());
        machine.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    }
}

fn host() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .and_then(|l| l.split_once(": "))
        .map_or("CPU", |(_, n)| n)
        .to_owned();
    format!("{name}, {} threads", rayon::current_num_threads())
}

/// Everything that stays the same over contexts.
struct Bench<'a, B: DraftOps> {
    b: B,
    model: Model<B>,
    live: Live<B>,
    head: Option<DraftHead<B>>,
    args: &'a BenchArgs,
    decode: usize,
    sample: usize,
    read_gb_per_s: Option<f64>,
    history: Vec<Token>,
    weights: &'static str,
    load_s: f64,
}

fn bench<B: DraftOps>(
    mut b: B,
    checkpoint: &Checkpoint,
    args: &BenchArgs,
    read_gb_per_s: Option<f64>,
) -> anyhow::Result<Vec<Row>> {
    let mut contexts: Vec<usize> = args.context.iter().filter_map(|c| usize::try_from(*c).ok()).collect();
    if contexts.is_empty() {
        contexts.extend(CONTEXTS);
    }
    // What is read or decoded behind a context has to fit as well: the longest is measured so far below the limit.
    let behind = (args.sample as usize).max(MAX_VERIFY_ROWS * (args.decode as usize + 4 * WARM_UP) + 64);
    contexts.iter_mut().for_each(|c| *c = (*c).min(MAX_POSITIONS.saturating_sub(behind)));
    contexts.sort_unstable();
    let Some(longest) = contexts.last().copied().filter(|_| contexts.first().is_some_and(|c| *c > 0)) else {
        bail!("--context needs at least one length above 0");
    };
    let started = Instant::now();
    let model = Model::load(&mut b, checkpoint, |_| {}).context("loading the model")?;
    b.synchronize().context("loading the model")?;
    let load_s = started.elapsed().as_secs_f64();
    let head = if !args.draft_round && !args.speculation {
        None
    } else if checkpoint.is_built_in() {
        Some(DraftHead::demo(&mut b, model.spec(), &DraftOptions::default()).context("loading the draft head")?)
    } else {
        Some(DraftHead::synthetic(&mut b, model.spec(), &DraftOptions::default(), 1).context("making a draft head")?)
    };
    let room = (longest + behind).min(MAX_POSITIONS);
    let aux_layers = head.as_ref().map(|h| h.aux_layers().to_vec()).unwrap_or_default();
    let room_of = room.next_multiple_of(64);
    b.plan_context(model.spec(), room_of, true).context("making the state")?;
    let live = Live::new(&mut b, &model, room_of, &aux_layers).context("making the state")?;
    let vocab = model.spec().vocab as u64;
    let history =
        (0..room as u64).map(|i| (i.wrapping_mul(crate::base::GOLDEN) >> 33) % vocab).map(|t| t as Token).collect();
    let mut bench = Bench {
        b,
        model,
        live,
        head,
        args,
        decode: args.decode as usize,
        sample: args.sample as usize,
        read_gb_per_s,
        history,
        weights: checkpoint.weights_name(),
        load_s,
    };
    let mut rows = Vec::new();
    let mut seconds = 0.0;
    for context in contexts {
        rows.push(bench.context(context, &mut seconds).with_context(|| format!("at a context of {context}"))?);
    }
    Ok(rows)
}

impl<B: DraftOps> Bench<'_, B> {
    fn context(&mut self, context: usize, read_seconds: &mut f64) -> anyhow::Result<Row> {
        let mut row = Row { context, weights: self.weights, load_s: self.load_s, ..Row::default() };
        let spec = self.model.spec().clone();
        match self.args.fill {
            FillArg::Read => {
                *read_seconds += self.read_to(context)?;
                row.prefill_tokens_per_s = Some(context as f64 / *read_seconds);
                row.prefill_tflops = Some(prefill_flops(&spec, context) / *read_seconds / 1e12);
            }
            FillArg::Random => {
                self.fill(context)?;
                if self.sample > 0 {
                    let end = self.live.export_end(&mut self.b)?;
                    // Once to choose algorithms and load kernels, then timed.
                    let sample = self.sample.min(self.live.limit() - context);
                    self.read_to(context + sample.min(self.b.prefill_rows()))?;
                    self.live.restore(&mut self.b, context, &[], Some(&end))?;
                    let seconds = self.read_to(context + sample)?;
                    row.prefill_at_depth_tokens_per_s = Some(sample as f64 / seconds);
                    self.live.restore(&mut self.b, context, &[], Some(&end))?;
                }
            }
        }
        let end = self.live.export_end(&mut self.b)?;
        let steps = self.decode(&mut row)?;
        row.pool = self.pool(steps, row.device_ms)?;
        let weights = self.model.read_bytes(&self.b) as f64;
        row.bytes_per_token = step_bytes(&spec, context, weights);
        row.decode_gb_per_s = row.bytes_per_token * row.decode_tokens_per_s / 1e9;
        row.read_bandwidth_share = self.read_gb_per_s.map(|read| row.decode_gb_per_s / read);
        self.live.restore(&mut self.b, context, &[], Some(&end))?;
        row.look = self.look_cost(context, &end)?;
        if !self.args.no_verify {
            for rows in VERIFY_ROWS {
                let (ms, all_ms) = (self.verify(rows, rows.div_ceil(2))?, self.verify(rows, rows)?);
                let one = row.verify.first().map_or(ms, |v: &VerifyTime| v.ms);
                row.verify.push(VerifyTime {
                    rows,
                    ms,
                    over_one: ms / one,
                    all_right_tokens_per_s: rows as f64 / all_ms * 1e3,
                });
                self.live.restore(&mut self.b, context, &[], Some(&end))?;
            }
        }
        if self.args.draft_round {
            let ms = self.draft_round()?;
            row.draft_round_ms = Some(ms);
            row.draft_round_over_step = Some(ms / row.p50_ms);
            self.live.restore(&mut self.b, context, &[], Some(&end))?;
        }
        if self.args.speculation {
            row.speculation = Some(self.speculation(&end)?);
        }
        if !self.args.sequences.is_empty() {
            let counts: Vec<usize> = self.args.sequences.iter().map(|n| (*n).clamp(1, MAX_VERIFY_ROWS)).collect();
            row.sequences = self.sequences(&counts, &end)?;
        }
        row.memory = self.b.memory();
        row.peak_memory_bytes = row.memory.used;
        if !self.args.no_save {
            self.save_and_restore(context, &mut row)?;
        }
        Ok(row)
    }

    /// Seconds to read up to `context`.
    fn read_to(&mut self, context: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        while self.live.position() < context {
            let at = self.live.position();
            let n = self.b.prefill_rows().min(context - at);
            let tokens = self.history.get(at..at + n).context("history too short")?;
            self.live.prefill(&mut self.b, &self.model, tokens)?;
            self.live.advance(&mut self.b, n)?;
        }
        self.b.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Random rows up to `context`: one piece, put in place again and again.
    fn fill(&mut self, context: usize) -> anyhow::Result<()> {
        const PIECE: usize = 16_384;
        let spec = self.model.spec().clone();
        let width = spec.sparse.kv_heads * spec.sparse.head_dim;
        let data = std::sync::Arc::new(random_bf16(PIECE * width));
        let mut images = Vec::new();
        let mut start = 0;
        while start < context {
            let rows = PIECE.min(context - start);
            let mut tensors = Vec::new();
            for (layer, mixer) in spec.mixers.iter().enumerate() {
                if *mixer != Mixer::Sparse {
                    continue;
                }
                let s = &spec.sparse;
                let level1 = s.level1_rows(start + rows) - s.level1_rows(start);
                let level2 = s.level2_rows(start + rows) - s.level2_rows(start);
                for (name, n) in [("k", rows), ("v", rows), ("k1", level1), ("k2", level2)] {
                    let whole = n * width * 2 == data.len();
                    let data = if whole {
                        data.clone()
                    } else {
                        std::sync::Arc::new(data.get(..n * width * 2).unwrap_or_default().to_vec())
                    };
                    let shape = vec![n, s.kv_heads, s.head_dim];
                    tensors.push(ImageTensor {
                        name: crate::backend::layer_tensor(name, layer),
                        dtype: Dtype::Bf16,
                        shape,
                        data: data.into(),
                    });
                }
            }
            images.push(RowsImage { start: start as u64, rows: rows as u64, tensors, segment: None });
            start += rows;
        }
        self.live.reset(&mut self.b)?;
        let mut end = self.live.export_end(&mut self.b)?;
        end.position = context as u64;
        self.live.restore(&mut self.b, 0, &images, Some(&end))?;
        self.b.sync_rows(context)?;
        Ok(())
    }

    /// Steps as [`Bench::decode`] makes them without waiting, with nothing measured, the sums, and each token's own; by
    /// turns, so that a clock that changes meanwhile meets all of them.
    fn look_cost(&mut self, context: usize, end: &CheckpointImage) -> anyhow::Result<LookCost> {
        const ROUNDS: usize = 3;
        let mut least = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (kind, least) in least.iter_mut().enumerate() {
                let mut start = Instant::now();
                for step in 0..self.decode + WARM_UP {
                    if step == WARM_UP {
                        self.b.synchronize()?;
                        start = Instant::now();
                    }
                    self.live.verify(&mut self.b, &self.model, &[17 % self.model.spec().vocab as Token])?;
                    if kind > 0 {
                        self.live.add_mass(&mut self.b, 0..1, MassOf::Answer)?;
                    }
                    if kind > 1 {
                        std::hint::black_box(self.live.row_mass(&mut self.b, 1)?);
                    }
                    self.live.advance(&mut self.b, 1)?;
                }
                self.b.synchronize()?;
                *least = least.min(start.elapsed().as_secs_f64() * 1e3 / self.decode.max(1) as f64);
                self.live.restore(&mut self.b, context, &[], Some(end))?;
            }
        }
        let [off_ms, summed_ms, told_ms] = least;
        let share = |ms: f64| ms / off_ms - 1.0;
        Ok(LookCost { off_ms, summed_ms, told_ms, summed_share: share(summed_ms), told_share: share(told_ms) })
    }

    /// What the steps that were waited for found in pools of blocks, and the others.
    fn decode(&mut self, row: &mut Row) -> anyhow::Result<Option<[PoolCounts; 2]>> {
        let first = self.b.pool_counts()?;
        let mut token = 17 % self.model.spec().vocab as Token;
        let mut times = Vec::with_capacity(self.decode);
        for step in 0..self.decode + WARM_UP {
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &[token])?;
            let found = self.live.top_logits(&mut self.b, 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            self.live.advance(&mut self.b, 1)?;
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let second = self.b.pool_counts()?;
        let start = Instant::now();
        for _ in 0..self.decode {
            self.live.verify(&mut self.b, &self.model, &[token])?;
            self.live.advance(&mut self.b, 1)?;
        }
        self.b.synchronize()?;
        row.device_ms = start.elapsed().as_secs_f64() * 1e3 / self.decode.max(1) as f64;
        let sum: f64 = times.iter().sum();
        let mean = sum / times.len().max(1) as f64;
        row.decode_tokens_per_s = 1e3 / mean;
        row.idle_share = ((mean - row.device_ms) / mean).max(0.0);
        times.sort_by(f64::total_cmp);
        let at = |q: f64| {
            times.get(((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        (row.p50_ms, row.p99_ms) = (at(0.5), at(0.99));
        let last = self.b.pool_counts()?;
        Ok(first.zip(second).zip(last).map(|((first, second), last)| [second.since(first), last.since(second)]))
    }

    /// What steps found in the pool, the second kind of which took `device_ms` each, and steps that find nothing there.
    fn pool(&mut self, found: Option<[PoolCounts; 2]>, device_ms: f64) -> anyhow::Result<Option<Pool>> {
        let (Some([steps, same]), Some(before)) = (found, self.b.pool_counts()?) else { return Ok(None) };
        let mut cold = 0.0;
        for step in 0..self.decode + WARM_UP {
            self.live.forget_blocks(&mut self.b)?;
            self.b.synchronize()?;
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &[17 % self.model.spec().vocab as Token])?;
            self.b.synchronize()?;
            cold += if step < WARM_UP { 0.0 } else { start.elapsed().as_secs_f64() * 1e3 };
            self.live.advance(&mut self.b, 1)?;
        }
        let (cold_ms, all) =
            (cold / self.decode.max(1) as f64, self.b.pool_counts()?.unwrap_or_default().since(before));
        let (n, warmed) = (self.decode.max(1) as f64, (self.decode + WARM_UP).max(1) as f64);
        let cold_bytes_per_token = all.bytes as f64 / warmed;
        let (bytes_per_token, same_bytes_per_token) = (steps.bytes as f64 / warmed, same.bytes as f64 / n);
        let per_byte = (cold_ms - device_ms) / (cold_bytes_per_token - same_bytes_per_token).max(1.0);
        let ms_at_80 = device_ms + per_byte * (0.2 * cold_bytes_per_token - same_bytes_per_token);
        let hit_rate = steps.hit_rate();
        Ok(Some(Pool { hit_rate, bytes_per_token, same_bytes_per_token, cold_ms, cold_bytes_per_token, ms_at_80 }))
    }

    /// Median milliseconds of a verify pass of `rows` rows, `accept` of them accepted.
    fn verify(&mut self, rows: usize, accept: usize) -> anyhow::Result<f64> {
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        let mut times = Vec::new();
        for step in 0..WARM_UP + (self.decode / 4).max(4) {
            let start = Instant::now();
            self.live.verify(&mut self.b, &self.model, &tokens)?;
            self.live.top_logits(&mut self.b, rows)?;
            self.live.advance(&mut self.b, accept)?;
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(median(times))
    }

    /// Median milliseconds of drafting [`ROUND_DRAFTS`] tokens and verifying them.
    fn draft_round(&mut self) -> anyhow::Result<f64> {
        let tables = Tables::from(&self.model);
        let Some(head) = &mut self.head else {
            return Ok(0.0);
        };
        let rows = ROUND_DRAFTS + 1;
        let mut times = Vec::new();
        head.reset(self.live.position());
        // A window to look at, from the model's own streams.
        let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
        for step in 0..2 * WARM_UP + (self.decode / 4).max(4) {
            let at = self.live.position();
            let start = Instant::now();
            if step > 0 {
                let history = self.history.get(..at + 1).context("history too short")?;
                let found = head.extend(&mut self.b, &tables, history)?;
                let mut token = found.ids.first().copied().unwrap_or(0);
                for _ in 1..ROUND_DRAFTS {
                    token = head.step(&mut self.b, &tables, token)?.ids.first().copied().unwrap_or(0);
                }
            }
            self.live.verify(&mut self.b, &self.model, &tokens)?;
            self.live.top_logits(&mut self.b, rows)?;
            self.live.advance(&mut self.b, 3)?;
            if let Some(aux_hidden) = self.live.aux_hidden() {
                let history = self.history.get(..at + 4).context("history too short")?;
                head.keep(&mut self.b, &tables, aux_hidden, 0..3, at, history)?;
            }
            if step >= 2 * WARM_UP {
                self.b.synchronize()?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(median(times))
    }

    fn save_and_restore(&mut self, context: usize, row: &mut Row) -> anyhow::Result<()> {
        // Page-locked buffers and threads are warm from the second time on, as in a session.
        let _ = self.live.export_rows(&mut self.b, 0..context.min(65_536))?;
        let start = Instant::now();
        let rows = self.live.export_rows(&mut self.b, 0..context)?;
        let end = self.live.export_end(&mut self.b)?;
        // The last of it may still be on its way: looking at it waits.
        let bytes: usize = rows.tensors.iter().chain(&end.tensors).map(|t| t.data.len()).sum();
        let saved = start.elapsed().as_secs_f64();
        let token = [3 % self.model.spec().vocab as Token];
        self.live.verify(&mut self.b, &self.model, &token)?;
        let before = self.live.top_logits(&mut self.b, 1)?;
        self.live.reset(&mut self.b)?;
        self.b.synchronize()?;
        let start = Instant::now();
        self.live.restore(&mut self.b, 0, std::slice::from_ref(&rows), Some(&end))?;
        self.b.sync_rows(context)?;
        self.b.synchronize()?;
        let restored = start.elapsed().as_secs_f64();
        self.live.verify(&mut self.b, &self.model, &token)?;
        row.restore_equal = Some(self.live.top_logits(&mut self.b, 1)? == before);
        self.live.restore(&mut self.b, context, &[], Some(&end))?;
        row.state_bytes = Some(bytes as u64);
        row.save_gb_per_s = Some(bytes as f64 / saved / 1e9);
        row.restore_gb_per_s = Some(bytes as f64 / restored / 1e9);
        Ok(())
    }
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

fn random_bf16(n: usize) -> Vec<u8> {
    (0..n as u64).flat_map(|i| half::bf16::from_f32(crate::backend::synthetic_value(5, i, 0.3)).to_le_bytes()).collect()
}
