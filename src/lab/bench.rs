//! `sala-chat bench`: speed and memory of the model itself, without tokenizer, sampling or disk. docs/performance.md
//! has the method.
//!
//! Contexts are visited in ascending order. Every part of the table in [`Bench::context`] starts at the end of the
//! context, the frontier, and the state returns there after it (rows are cut, the recurrent state is restored).

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::report::{joined, median, ms, quantiles};
use super::subject::Subject;
use crate::backend::prelude::*;
use crate::backend::{MAX_POSITIONS, MAX_VERIFY_ROWS, TopLogits, layer_tensor, synthetic_value};
use crate::cli::args::{BenchArgs, FillArg};
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure, open};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor, ROW_ARRAYS, RowsImage, Token};
use crate::model::{Checkpoint, Live, Model, ModelError, Sequence};

const CONTEXTS: [usize; 2] = [512, 32_768];
/// The first steps of each kind do not count: they load kernels and capture CUDA graphs.
const WARM_UP: usize = 4;
const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 6, 8, 16];

pub(super) fn measure(context: &Context, args: &BenchArgs) -> Result<Value, Failure> {
    on_device(context, args).map_err(|e| match e.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(e) => {
            let exit = e.downcast_ref::<ModelError>().map_or(Exit::Failure, ModelError::exit);
            Failure::new(exit, format!("{e:#}"))
        }
    })
}

fn on_device(context: &Context, args: &BenchArgs) -> anyhow::Result<Value> {
    let (_, checkpoint) = open::measured(context)?;
    let (machine, rows) = match devices::open(&context.config().model, &args.tuning, false)? {
        Opened::Cpu(mut cpu, note) => {
            (json!({"device": "cpu", "note": note}), bench(&mut *cpu, &checkpoint, args, None)?)
        }
        #[cfg(feature = "cuda")]
        Opened::Cuda(mut cuda) => {
            let ceilings = cuda.ceilings(2 << 30, 8192).context("measuring the ceilings")?;
            let machine = json!({
                "device": "cuda", "gpu": cuda.info().name, "capability": cuda.info().capability,
                "multiprocessors": cuda.info().multiprocessors, "cuda": cuda.info().driver_version,
                "gemm_library": cuda.gemm_library(), "prefill_rows": cuda.prefill_rows(), "ceilings": ceilings,
                "notes": cuda.notes(),
            });
            (machine, bench(&mut *cuda, &checkpoint, args, Some(ceilings.read_gb_per_s))?)
        }
    };
    Ok(json!({"machine": machine, "fill": args.fill, "decode_steps": args.decode, "results": rows}))
}

struct Bench<'a, B: Backend> {
    s: Subject<'a, B>,
    args: &'a BenchArgs,
    decode: usize,
    read_gb_per_s: Option<f64>,
    history: Vec<Token>,
    frontier: CheckpointImage,
    read_seconds: f64,
}

fn bench<B: Backend>(
    b: &mut B,
    checkpoint: &Checkpoint,
    args: &BenchArgs,
    read_gb_per_s: Option<f64>,
) -> anyhow::Result<Vec<Value>> {
    let given: Vec<usize> = args.context.iter().map(|context| *context as usize).collect();
    let mut contexts = if given.is_empty() { CONTEXTS.to_vec() } else { given };
    // Room for the tokens that the parts read or decode after a context: the longest context ends this far below the
    // limit.
    let reserve = (args.sample as usize).max(MAX_VERIFY_ROWS * (args.decode as usize + 4 * WARM_UP) + 64);
    contexts.iter_mut().for_each(|c| *c = (*c).min(MAX_POSITIONS.saturating_sub(reserve)));
    contexts.sort_unstable();
    let longest = contexts.last().copied().context("no context to measure at")?;
    let started = Instant::now();
    let model = Model::load(b, checkpoint, |_| {}).context("loading the model")?;
    b.synchronize().context("loading the model")?;
    let load_s = started.elapsed().as_secs_f64();
    let room = (longest + reserve).min(MAX_POSITIONS);
    let limit = room.next_multiple_of(64);
    b.plan_context(model.spec(), limit, true).context("making the state")?;
    let live = Live::new(b, &model, limit, &[]).context("making the state")?;
    let vocab = model.spec().vocab as u64;
    let token = |i: u64| ((i.wrapping_mul(crate::core::GOLDEN) >> 33) % vocab) as Token;
    let mut bench = Bench {
        s: Subject { b, model, live, prefill: checkpoint.prefill },
        args,
        decode: args.decode as usize,
        read_gb_per_s,
        history: (0..room as u64).map(token).collect(),
        frontier: CheckpointImage::default(),
        read_seconds: 0.0,
    };
    let mut rows = Vec::new();
    for context in contexts {
        let (weights, prefill) = (checkpoint.weights_name(), checkpoint.prefill.name());
        let row = json!({"context": context, "weights": weights, "prefill": prefill, "load_s": load_s});
        rows.push(bench.context(context, row).with_context(|| format!("at a context of {context}"))?);
    }
    Ok(rows)
}

impl<B: Backend> Bench<'_, B> {
    /// The figures of all parts at this context, added to `row`.
    fn context(&mut self, context: usize, row: Value) -> anyhow::Result<Value> {
        type Part<S> = fn(&mut S) -> anyhow::Result<Value>;
        let filled = match self.args.fill {
            FillArg::Read => self.read_whole(context)?,
            FillArg::Random => self.fill_and_sample(context)?,
        };
        let mut row = joined(row, filled);
        self.frontier = self.s.end()?;
        let args = self.args;
        let parts: [(bool, Part<Self>); 5] = [
            (true, Self::decode),
            (!args.no_verify, Self::verify_passes),
            (!args.sequences.is_empty(), Self::sequences),
            (true, Self::memory),
            (!args.no_save, Self::save_and_restore),
        ];
        for (_, part) in parts.into_iter().filter(|(wanted, _)| *wanted) {
            row = joined(row, part(self)?);
            self.s.back(&self.frontier)?;
        }
        Ok(row)
    }

    fn memory(&mut self) -> anyhow::Result<Value> {
        let memory = self.s.b.memory();
        Ok(json!({"peak_memory_bytes": memory.used, "memory": memory}))
    }

    /// Milliseconds of each of `count` steps, after [`WARM_UP`] more.
    fn times(
        &mut self,
        count: usize,
        mut step: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::with_capacity(WARM_UP + count);
        for _ in 0..WARM_UP + count {
            let begun = Instant::now();
            step(self)?;
            times.push(ms(begun));
        }
        Ok(times.split_off(WARM_UP))
    }

    /// Reads on up to `context`: the speed is the mean over the whole context, not that at its end.
    fn read_whole(&mut self, context: usize) -> anyhow::Result<Value> {
        self.read_seconds += self.read_to(context)?;
        Ok(json!({"prefill_tokens_per_s": context as f64 / self.read_seconds}))
    }

    /// Fills the caches up to `context`, and times a piece of `--sample` tokens there.
    fn fill_and_sample(&mut self, context: usize) -> anyhow::Result<Value> {
        self.fill(context)?;
        let sample = (self.args.sample as usize).min(self.s.live.limit() - context);
        if sample == 0 {
            return Ok(json!({}));
        }
        let end = self.s.end()?;
        // The first run chooses algorithms and loads kernels; the second is timed.
        self.read_to(context + sample.min(self.s.b.prefill_rows()))?;
        self.s.back(&end)?;
        let seconds = self.read_to(context + sample)?;
        self.s.back(&end)?;
        Ok(json!({"prefill_at_depth_tokens_per_s": sample as f64 / seconds}))
    }

    fn read_to(&mut self, context: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        let tokens = self.history.get(self.s.live.position()..context).context("history too short")?;
        self.s.read(tokens, usize::MAX)?;
        self.s.b.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Fills the caches up to `context` with copies of one piece of random rows.
    fn fill(&mut self, context: usize) -> anyhow::Result<()> {
        const PIECE: usize = 16_384;
        let spec = self.s.model.spec();
        let s = spec.sparse.clone();
        let width = s.kv_heads * s.head_dim;
        let value = |i: u64| half::bf16::from_f32(synthetic_value(5, i, 0.3)).to_le_bytes();
        let random = Arc::new((0..(PIECE * width) as u64).flat_map(value).collect::<Vec<u8>>());
        let tensor = |name: String, rows: usize| {
            let bytes = rows * width * 2;
            let whole = bytes == random.len();
            let data = if whole { random.clone() } else { Arc::new(random.get(..bytes).unwrap_or_default().to_vec()) };
            ImageTensor { name, dtype: Dtype::Bf16, shape: vec![rows, s.kv_heads, s.head_dim], data: data.into() }
        };
        let sparse = spec.mixers.iter().enumerate().filter(|(_, mixer)| **mixer == Mixer::Sparse);
        let layers: Vec<usize> = sparse.map(|(layer, _)| layer).collect();
        let image = |start: usize| {
            let end = context.min(start + PIECE);
            let level1 = s.level1_rows(end) - s.level1_rows(start);
            let level2 = s.level2_rows(end) - s.level2_rows(start);
            let arrays = ROW_ARRAYS.into_iter().zip([end - start, end - start, level1, level2]);
            let of = |layer: usize| arrays.clone().map(move |(name, rows)| (layer_tensor(name, layer), rows));
            let tensors = layers.iter().copied().flat_map(of).map(|(name, rows)| tensor(name, rows)).collect();
            RowsImage { start: start as u64, rows: (end - start) as u64, tensors, segment: None }
        };
        let images: Vec<RowsImage> = (0..context).step_by(PIECE).map(image).collect();
        self.s.reset()?;
        let mut end = self.s.end()?;
        end.position = context as u64;
        self.s.live.restore(self.s.b, 0, &images, Some(&end))?;
        Ok(self.s.b.sync_rows(context)?)
    }

    fn save_and_restore(&mut self) -> anyhow::Result<Value> {
        let context = self.s.live.position();
        // Warms up page-locked buffers and threads, which a session has warm from its second save on.
        let _ = self.s.live.export_rows(self.s.b, 0..context.min(65_536))?;
        let start = Instant::now();
        let state = self.s.export()?;
        // The last copy may still be in flight: reading the data waits for it.
        let tensors = state.rows.tensors.iter().chain(state.end.iter().flat_map(|end| &end.tensors));
        let bytes: usize = tensors.map(|t| t.data.len()).sum();
        let saved = start.elapsed().as_secs_f64();
        let token = [3 % self.s.model.spec().vocab as Token];
        let before = self.s.step(&token, 0)?;
        self.s.reset()?;
        self.s.b.synchronize()?;
        let start = Instant::now();
        self.s.restore(&state)?;
        self.s.b.sync_rows(context)?;
        self.s.b.synchronize()?;
        let restored = start.elapsed().as_secs_f64();
        let equal = self.s.step(&token, 0)? == before;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        Ok(json!({
            "save_gb_per_s": rate(saved), "restore_gb_per_s": rate(restored), "restore_equal": equal,
            "state_bytes": bytes,
        }))
    }

    /// Single steps, each waiting for its top logits as a chat does.
    fn decode(&mut self) -> anyhow::Result<Value> {
        let (decode, mut token) = (self.decode, 17 % self.s.model.spec().vocab as Token);
        let times = self.times(decode, |bench| {
            let found = bench.s.step(&[token], 1)?;
            token = found.first().and_then(|c| c.ids.first()).copied().context("no top logits")?;
            Ok(())
        })?;
        let tokens_per_s = 1e3 * decode as f64 / times.iter().sum::<f64>();
        let weights = self.s.model.read_bytes(self.s.b) as f64;
        let bytes = step_bytes(self.s.model.spec(), self.frontier.position as usize, weights);
        let gb_per_s = bytes * tokens_per_s / 1e9;
        let [p50_ms, p99_ms] = quantiles(times, [0.5, 0.99]);
        Ok(json!({
            "bytes_per_token": bytes, "decode_tokens_per_s": tokens_per_s, "decode_gb_per_s": gb_per_s,
            "read_bandwidth_share": self.read_gb_per_s.map(|read| gb_per_s / read), "p50_ms": p50_ms, "p99_ms": p99_ms,
        }))
    }

    /// Verify passes of which half of the rows are accepted.
    fn verify_passes(&mut self) -> anyhow::Result<Value> {
        let (mut out, mut one) = (Vec::new(), None);
        for rows in VERIFY_ROWS {
            let tokens: Vec<Token> = self.history.iter().copied().take(rows).collect();
            let times = self.times((self.decode / 4).max(4), |bench| {
                bench.s.step(&tokens, rows.div_ceil(2))?;
                Ok(())
            })?;
            let ms = median(times);
            out.push(json!({"rows": rows, "ms": ms, "over_one": ms / *one.get_or_insert(ms)}));
            self.s.back(&self.frontier)?;
        }
        Ok(json!({"verify": out}))
    }

    /// Forks of the current state in shared passes of one row each, waiting for top logits as the engine does.
    fn sequences(&mut self) -> anyhow::Result<Value> {
        let counts = &self.args.sequences;
        let mut others = Vec::new();
        for _ in 1..counts.iter().copied().max().unwrap_or(1) {
            others.push(self.s.live.another(self.s.b, &self.s.model).context("making a sequence")?);
        }
        let (mut out, mut one) = (Vec::new(), None);
        for n in counts.iter().copied() {
            let forks = others.get_mut(..n - 1).context("more sequences than were made")?;
            self.s.back(&self.frontier)?;
            for fork in forks.iter_mut() {
                self.s.live.copy_to(self.s.b, fork).context("forking")?;
            }
            let vocab = self.s.model.spec().vocab as Token;
            let mut tokens: Vec<Token> = (0..n as Token).map(|i| (17 + 31 * i) % vocab).collect();
            let times = self.times(self.decode, |bench| {
                let best = bench.pass(forks, &tokens)?.into_iter().map(|row| row.ids.first().copied());
                tokens = best.collect::<Option<_>>().context("no top logits")?;
                Ok(())
            })?;
            let tokens_per_s = 1e3 * (n * times.len()) as f64 / times.iter().sum::<f64>();
            let over_one = tokens_per_s / *one.get_or_insert(tokens_per_s / n as f64);
            let ms = median(times);
            out.push(json!({"sequences": n, "tokens_per_s": tokens_per_s, "over_one": over_one, "ms": ms}));
        }
        for other in others {
            Live::release(self.s.b, other);
        }
        Ok(json!({"sequences": out}))
    }

    fn pass(&mut self, others: &mut [Sequence<B>], tokens: &[Token]) -> anyhow::Result<Vec<TopLogits>> {
        let (b, live) = (&mut *self.s.b, &mut self.s.live);
        let mut rows = tokens.chunks(1);
        let own = rows.next().context("a pass of no sequence")?;
        let mut rest: Vec<(&mut Sequence<B>, &[Token])> = others.iter_mut().zip(rows).collect();
        live.verify_alongside(b, &self.s.model, own, &mut rest)?;
        let found = live.top_logits(b, tokens.len())?;
        live.advance(b, 1)?;
        for other in others {
            live.swap(b, other)?;
            live.advance(b, 1)?;
            live.swap(b, other)?;
        }
        Ok(found)
    }
}

/// Bytes of a cached value on a GPU (bf16).
const CACHE_BYTES: f64 = 2.0;

/// Bytes a decode step must move at `context` tokens; `weights` is the part of the weights.
fn step_bytes(spec: &ModelSpec, context: usize, weights: f64) -> f64 {
    let (s, l) = (&spec.sparse, &spec.lightning);
    let row = (s.kv_heads * s.head_dim) as f64 * CACHE_BYTES;
    let chosen = context.min(s.topk * s.block) as f64 * 2.0 * row;
    let keys = (s.level1_rows(context) + s.level2_rows(context)) as f64 * row;
    let state = (2 * 4 * l.heads * l.head_dim * l.head_dim) as f64;
    let count = |mixer: Mixer| spec.layers(mixer) as f64;
    weights + count(Mixer::Sparse) * (chosen + keys) + count(Mixer::Lightning) * state
}
