//! `sala-chat bench`: speed and memory of the model itself, without tokenizer, sampling or disk.
//!
//! # Method
//!
//! The benchmark visits contexts in ascending order. It reads the prompt up to each one in full passes (random tokens:
//! the work does not depend on which) and times it as a whole, so `prefill_tokens_per_s` is the mean over the *whole*
//! context, not the speed at its end. Then, from that state:
//!
//! - *decode*: single steps, each waiting for its top logits as a chat does; median and 99th percentile of the host's
//!   clock, speed from the sum. `device_ms` repeats the steps without reading top logits; a graph still waits until
//!   the one before has ended, so it includes the host's work between two graphs.
//! - *look*: the steps without waiting again, with attention mass not measured, summed as for an answer, and read
//!   back for each token: the shares are what that costs. The last variant waits for the device after each step, as a
//!   chat does anyway.
//! - *pool*: where keys and values lie in host memory (`--gpu-memory 8GiB`), how many chosen blocks the decode steps
//!   found in the pool on the device, and steps that start with an empty pool; the time of a step that finds 80 % is
//!   interpolated between both, by bytes.
//! - *verify*: passes of 1 to 16 rows with half of the rows accepted, divided by the one-row pass.
//! - *draft round*: with `--draft-round`, extend, four recursive steps and a verify pass of six rows, divided by a
//!   single step.
//! - *speculation*: with `--speculation`, the decoder as a chat uses it, with drafts all wrong and all right.
//! - *sequences*: with `--sequences`, forks of the state run together, one pass over rows of all; compared bit for
//!   bit with each alone.
//! - *save and restore*: the whole state to host memory and back; the two states are compared by the logits they lead
//!   to.
//!
//! After each part the state returns to the frontier (rows are cut, the recurrent state restored), so parts do not add
//! up. The first steps of each kind do not count: they load kernels and capture CUDA graphs.
//!
//! `--fill random` puts random rows into the caches instead of reading up to a context: decode and verify at a million
//! tokens then cost seconds. The prefill time is then that of one piece of `--sample` tokens at that depth, and the
//! figure is named `prefill_at_depth_tokens_per_s`, never the mean.
//!
//! # How to read it
//!
//! `decode_gb_per_s` counts the bytes a step must move: every weight but the embedding table once, states in and out,
//! compressed keys once, chosen blocks once. `read_bandwidth_share` divides that by what a read-only kernel reaches on
//! the same device just before. `prefill_tflops` counts GEMMs, attention over chosen blocks, scores and the
//! recurrence, nothing twice; `prefill` names the arithmetic of its products (`--prefill fp8`).
//!
//! Traps: random tokens make speculation by text look bad, so the benchmark reports no acceptance; an idle GPU raises
//! its clocks during the first second, so very short runs read low.

mod context;
mod report;
mod sequences;
mod speculation;
mod steps;
mod work;

use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::backend::draft::DraftOps;
#[cfg(feature = "cuda")]
use crate::backend::prelude::*;
use crate::backend::{MAX_POSITIONS, MAX_VERIFY_ROWS};
use crate::cli::args::{BenchArgs, FillArg};
use crate::cli::devices::{self, Chosen, Opened};
use crate::cli::{Context, Exit, Failure, open};
use crate::engine::protocol::Token;
use crate::model::draft::{DraftHead, DraftOptions};
use crate::model::{Checkpoint, Live, Model, ModelError};
use report::{Row, VerifyTime, table};
use work::{prefill_flops, step_bytes};

const CONTEXTS: [usize; 2] = [512, 32_768];
const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];
/// Uncounted steps before a measurement.
const WARM_UP: usize = 4;
const ROUND_DRAFTS: usize = 5;
/// Tokens that a round of [`ROUND_DRAFTS`] drafts is assumed to gain, a typical acceptance on open text. The measured
/// time of a round does not depend on it.
const ROUND_TOKENS: f64 = 3.2;

pub(super) fn run(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    measure(context, args).map_err(|e| match e.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(e) => {
            let exit = e.downcast_ref::<ModelError>().map_or(Exit::Failure, ModelError::exit);
            Failure::new(exit, format!("{e:#}"))
        }
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
            let real = !cuda.info().emulated;
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

/// Adds the facts about the machine that every benchmark reports.
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
    prefill: &'static str,
    load_s: f64,
}

fn bench<B: DraftOps>(
    mut b: B,
    checkpoint: &Checkpoint,
    args: &BenchArgs,
    read_gb_per_s: Option<f64>,
) -> anyhow::Result<Vec<Row>> {
    let mut contexts = args.context.iter().map(|c| usize::try_from(*c)).collect::<Result<Vec<usize>, _>>()?;
    if contexts.is_empty() {
        contexts.extend(CONTEXTS);
    }
    // Room for the tokens that the parts read or decode after a context: the longest context ends this far below the
    // limit.
    let behind = (args.sample as usize).max(MAX_VERIFY_ROWS * (args.decode as usize + 4 * WARM_UP) + 64);
    contexts.iter_mut().for_each(|c| *c = (*c).min(MAX_POSITIONS.saturating_sub(behind)));
    contexts.sort_unstable();
    let longest = contexts.last().copied().context("no context to measure at")?;
    let started = Instant::now();
    let model = Model::load(&mut b, checkpoint, |_| {}).context("loading the model")?;
    b.synchronize().context("loading the model")?;
    let load_s = started.elapsed().as_secs_f64();
    let options = DraftOptions { recipe: checkpoint.recipe(), ..DraftOptions::default() };
    let head = if !args.draft_round && !args.speculation {
        None
    } else if checkpoint.is_built_in() {
        Some(DraftHead::demo(&mut b, model.spec(), &options).context("loading the draft head")?)
    } else {
        Some(DraftHead::synthetic(&mut b, model.spec(), &options, 1).context("making a draft head")?)
    };
    let room = (longest + behind).min(MAX_POSITIONS);
    let aux_layers = head.as_ref().map(|h| h.aux_layers().to_vec()).unwrap_or_default();
    let room_of = room.next_multiple_of(64);
    b.plan_context(model.spec(), room_of, true).context("making the state")?;
    let live = Live::new(&mut b, &model, room_of, &aux_layers).context("making the state")?;
    let vocab = model.spec().vocab as u64;
    let history =
        (0..room as u64).map(|i| (i.wrapping_mul(crate::core::GOLDEN) >> 33) % vocab).map(|t| t as Token).collect();
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
        prefill: checkpoint.prefill().name(),
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
        let mut row =
            Row { context, weights: self.weights, prefill: self.prefill, load_s: self.load_s, ..Row::default() };
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
                    // The first run chooses algorithms and loads kernels; the second is timed.
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
            row.draft_round_tokens_per_s = Some(ROUND_TOKENS / ms * 1e3);
            self.live.restore(&mut self.b, context, &[], Some(&end))?;
        }
        if self.args.speculation {
            row.speculation = Some(self.speculation(&end)?);
        }
        if !self.args.sequences.is_empty() {
            row.sequences = self.sequences(&self.args.sequences, &end)?;
        }
        row.memory = self.b.memory();
        row.peak_memory_bytes = row.memory.used;
        if !self.args.no_save {
            self.save_and_restore(context, &mut row)?;
        }
        Ok(row)
    }
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
