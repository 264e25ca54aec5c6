//! Speed of each operation at the 9B model's sizes, against the ceilings measured on the same device just before.
//!
//! Method: decode and verify operations are captured as one step over several copies of their weights or caches, so
//! that no copy is still in a cache at its next turn, and the CUDA graph is replayed; times are the device's own.
//! Prefill operations run on a full pass. Bytes are the least that the operation must move: weights once, state in and
//! out, chosen blocks and compressed keys once. Data are random, since zeros would be faster than real data.

use serde::Serialize;

use super::cases::{HEAD, Sizes, lightning_spec, passes, sparse_spec};
use crate::backend::cuda::{Ceilings, Cuda};
use crate::backend::forms::Group4;
use crate::backend::prelude::*;
use crate::backend::{BufKind, Form, HeadRows, MAX_POSITIONS, Pass, Result};
use crate::lab::checks::Checks;
use crate::lab::layers::{EPS, Mode, perform};

#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    pub name: String,
    pub ms: f64,
    pub gb_per_s: f64,
    pub tflops: f64,
    pub share: f64,
    /// `read` or `gemm`.
    pub ceiling: &'static str,
}

const FULL: Sizes = Sizes {
    hidden: 4096,
    intermediate: 16384,
    vocab: 73448,
    heads: 32,
    kv_heads: 2,
    lightning_heads: 32,
    form: Form::Bf16,
    in_fp8: false,
};
const FORMS: [Form; 7] =
    [Form::Bf16, Form::Int8, Form::Int6, Form::Int5, Form::Int4, Form::Group4(Group4::G128), Form::Nvfp4];
const REPLAYS: usize = 5;
const PREFILLS: usize = 3;

type Work = (usize, usize);
type Call<'a> = dyn FnMut(&mut Cuda, usize, Pass) -> Result<()> + 'a;

/// Speeds of all operations. Each is measured on its own, so that a failure hides no other: it is a check that misses.
pub fn measure(dev: &mut Cuda, checks: &mut Checks) -> (Option<Ceilings>, Vec<Rate>) {
    let mut bench = Bench { dev, checks, ceilings: None, list: Vec::new() };
    let done = bench.run();
    bench.checks.add("rates", || Ok(done?));
    (bench.ceilings, bench.list)
}

struct Bench<'a, 'c> {
    dev: &'a mut Cuda,
    checks: &'a mut Checks<'c>,
    ceilings: Option<Ceilings>,
    list: Vec<Rate>,
}

impl Bench<'_, '_> {
    /// Measures each pass of `op`: a verify pass with each of `copies` in turn, a prefill pass with one. `work` has the
    /// bytes and the operations of a pass.
    fn measure(&mut self, name: &str, passes: &[Pass], copies: usize, work: &dyn Fn(Pass) -> Work, op: &mut Call) {
        for pass in passes.iter().copied() {
            let (name, copies) = match pass {
                Pass::Verify { rows } => (format!("{name} verify {rows}"), copies),
                Pass::Prefill { rows } => (format!("{name} prefill {rows}"), 1),
            };
            let ms = match self.time(pass, copies, op) {
                Ok(ms) => ms,
                Err(e) => {
                    self.checks.add(name, || Err(e.into()));
                    continue;
                }
            };
            let (bytes, flops) = work(pass);
            let (gb_per_s, tflops) = (bytes as f64 / ms / 1e6, flops as f64 / ms / 1e9);
            let most = self.ceilings.unwrap_or_default();
            let (read, gemm) = (gb_per_s / most.read_gb_per_s.max(1e-9), tflops / most.gemm_tflops.max(1e-9));
            let (share, ceiling) = if read >= gemm { (read, "read") } else { (gemm, "gemm") };
            self.list.push(Rate { name, ms, gb_per_s, tflops, share, ceiling });
        }
    }

    fn time(&mut self, pass: Pass, copies: usize, op: &mut Call) -> Result<f64> {
        let mut body = |b: &mut Cuda| (0..copies).try_for_each(|copy| op(b, copy, pass));
        // All operations share one step key: drop the graph of the one before.
        self.dev.forget_steps();
        let mut once = |b: &mut Cuda| perform(b, Mode::Step, pass, &mut body);
        // Eager, then captured; both warm up.
        once(self.dev)?;
        once(self.dev)?;
        let times = if let Pass::Verify { .. } = pass { REPLAYS } else { PREFILLS };
        let ms = self.dev.timed(|b| (0..times).try_for_each(|_| once(b)))?;
        self.dev.synchronize()?;
        Ok(f64::from(ms) / (times * copies) as f64)
    }

    fn run(&mut self) -> Result<()> {
        self.ceilings = Some(self.dev.ceilings(2 << 30, 8192)?);
        // The middle of a document, as during a long read.
        self.dev.segment_at(usize::MAX);
        for form in FORMS {
            self.gemms(form, false)?;
        }
        if self.dev.has_fp8() {
            self.gemms(Form::Bf16, true)?;
            self.gemms(Form::Int4, true)?;
        }
        self.lightning()?;
        for context in [4_096, 131_072, 1_048_576] {
            self.sparse(context)?;
        }
        self.rows_ops()
    }

    fn random_buf(&mut self, width: usize, kind: BufKind, std: f32, seed: u64) -> Result<<Cuda as Memory>::Buf> {
        let mut buf = self.dev.buf(width, kind)?;
        self.dev.randomize_buf(&mut buf, std, seed)?;
        Ok(buf)
    }

    /// Products with weights of a form; for fp8 only prefill, including the narrowing of its operands.
    fn gemms(&mut self, form: Form, in_fp8: bool) -> Result<()> {
        let s = FULL;
        let (sparse, lightning) = (sparse_spec(s).projection_width(), lightning_spec(s).projection_width());
        let most = self.dev.prefill_rows();
        let width = s.heads * HEAD;
        let (norm, out_norm) = (self.dev.ones(s.hidden)?, self.dev.ones(width)?);
        let mut h = self.random_buf(s.hidden, BufKind::Residual, 1.0, 1)?;
        // (name, out, inner)
        for (name, out, inner) in [
            ("norm_linear sparse", sparse, s.hidden),
            ("norm_linear lightning", lightning, s.hidden),
            ("norm_gate_up", s.intermediate, s.hidden),
            ("linear_add down", s.hidden, s.intermediate),
            ("gate_output", s.hidden, width),
            ("head", s.vocab, s.hidden),
        ] {
            let passes = match (name, in_fp8) {
                ("head" | "norm_linear sparse", true) => continue,
                ("head", false) => passes(&[1, 2, 8, 16], &[]),
                (_, true) => passes(&[], &[most]),
                (_, false) => passes(&[1, 2, 8, 16], &[most]),
            };
            let doubled = if name == "norm_gate_up" { 2 } else { 1 };
            let bytes = form.bytes(doubled * out, inner);
            // More than the caches hold.
            let copies = (400usize << 20).div_ceil(bytes).max(2);
            let mut weights = Vec::new();
            for i in 0..copies as u64 {
                let mut weight = match doubled {
                    2 => self.dev.random_gate_up(out, inner, 0.015, i, form)?,
                    _ => self.dev.random_matrix(&[(out, form)], inner, 0.015, i)?,
                };
                if in_fp8 {
                    self.dev.read_in_fp8(&mut weight)?;
                }
                weights.push(weight);
            }
            let kind = if name == "head" { BufKind::Logits } else { BufKind::Activation };
            let mut to = self.dev.buf(out, kind)?;
            let x = self.random_buf(inner.max(2 * width), BufKind::Activation, 1.0, 2)?;
            let dense = self.random_buf(inner, BufKind::Activation, 1.0, 3)?;
            let o = self.random_buf(width, BufKind::Wide, 1.0, 4)?;
            let form = if form == Form::Bf16 { String::new() } else { format!(" {}", form.name()) };
            let title = format!("{name}{form}{}", if in_fp8 { " in fp8" } else { "" });
            let work = |pass: Pass| {
                let rows = if let Pass::Prefill { rows } = pass { rows } else { 0 };
                (bytes + rows * (inner * 2 + doubled * out * 2), 2 * doubled * out * inner * pass.rows())
            };
            self.measure(&title, &passes, copies, &work, &mut |b, copy, pass| {
                let w = &weights[copy];
                match name {
                    "norm_gate_up" => b.norm_gate_up(&mut to, &h, &norm, EPS, w, pass),
                    "linear_add down" => b.linear_add(&mut h, &dense, w, 1e-3, pass),
                    "gate_output" => {
                        b.gate_output(&mut h, &o, Some(&out_norm), EPS, &x, width..2 * width, w, 1e-3, pass)
                    }
                    "head" => b.head(&mut to, &h, &norm, EPS, 16.0, w, HeadRows::All, pass),
                    _ => b.norm_linear(&mut to, &h, &norm, EPS, w, None, pass),
                }
            });
        }
        Ok(())
    }

    fn lightning(&mut self) -> Result<()> {
        const STATES: usize = 64;
        let spec = lightning_spec(FULL);
        let (q_norm, k_norm) = (self.dev.ones(HEAD)?, self.dev.ones(HEAD)?);
        let width = spec.heads * HEAD;
        let x = self.random_buf(spec.projection_width(), BufKind::Activation, 1.0, 5)?;
        let mut o = self.dev.buf(width, BufKind::Wide)?;
        let mut states = (0..STATES).map(|_| self.dev.recurrent(&spec)).collect::<Result<Vec<_>>>()?;
        let work = |pass: Pass| match pass {
            Pass::Verify { rows } => (2 * width * HEAD * 4 + rows * width * 12, rows * 4 * width * HEAD),
            // Per head and chunk of 64: q kᵀ, (q kᵀ) v, q S, kᵀ v.
            Pass::Prefill { rows } => {
                (rows * width * (2 * 3 + 4), rows * spec.heads * (2 * 64 * 128 * 2 + 2 * 128 * 128 * 2))
            }
        };
        for pass in passes(&[1, 8, 16], &[self.dev.prefill_rows()]) {
            self.dev.seek(100_000)?;
            if let Pass::Verify { .. } = pass {
                // One accepted row is pending, as during an answer: the state is read and written.
                self.dev.advance(Pass::Verify { rows: 1 }, 1)?;
            }
            self.measure("lightning", &[pass], STATES, &work, &mut |b, copy, pass| {
                let states = &mut [&mut states[copy]];
                b.lightning(&mut o, &x, Some(&q_norm), Some(&k_norm), states, &spec, EPS, pass)
            });
        }
        Ok(())
    }

    fn sparse(&mut self, context: usize) -> Result<()> {
        let (spec, most) = (sparse_spec(FULL), self.dev.prefill_rows());
        let copies = if context > 200_000 { 2 } else { 8 };
        // Leaves room for the rows of the pass.
        let context = context.min(MAX_POSITIONS - most);
        let mut caches = self.dev.caches(&spec, MAX_POSITIONS, copies)?;
        for (i, cache) in (0..).zip(&mut caches) {
            self.dev.reserve(cache, context + most)?;
            self.dev.randomize(cache, context + most, 100 + i)?;
        }
        let mut selection = self.dev.selection(&spec, MAX_POSITIONS)?;
        let x = self.random_buf(spec.projection_width(), BufKind::Activation, 1.5, 6)?;
        let mut o = self.dev.buf(spec.heads * HEAD, BufKind::Wide)?;
        self.dev.seek(context)?;
        let row_bytes = spec.kv_heads * HEAD * 2;
        let attended = (context / spec.block + 1).min(spec.topk) * spec.block;
        let keys = spec.level1_rows(context) + spec.level2_rows(context);
        let flops = |pass: Pass, each: usize, keys: usize| pass.rows() * each * spec.heads * HEAD * keys;
        let [append, select, attend] = ["append_kv", "select_blocks", "attend"].map(|op| format!("{op} @ {context}"));
        for pass in passes(&[1, 8, 16], &[most]) {
            let verify = matches!(pass, Pass::Verify { .. });
            if verify {
                self.measure(&append, &[pass], copies, &|pass| (pass.rows() * 4 * row_bytes, 0), &mut |b, i, pass| {
                    b.append_kv(&mut [&mut caches[i]], &x, &spec, pass)
                });
            }
            let work = |pass| (keys * row_bytes, flops(pass, 2, keys));
            self.measure(&select, &[pass], copies, &work, &mut |b, i, pass| {
                b.select_blocks(&mut selection, &x, &[&caches[i]], &spec, pass)
            });
            // The rows of a prefill share the blocks they choose.
            let work = |pass| (if verify { attended * 2 * row_bytes } else { 0 }, flops(pass, 4, attended));
            self.measure(&attend, &[pass], copies, &work, &mut |b, i, pass| {
                b.attend(&mut o, &x, &mut selection, &[&caches[i]], &spec, pass)
            });
        }
        Ok(())
    }

    fn rows_ops(&mut self) -> Result<()> {
        let s = FULL;
        let table = self.dev.random_matrix(&[(s.vocab, Form::Bf16)], s.hidden, 0.02, 9)?;
        let mut h = self.dev.buf(s.hidden, BufKind::Residual)?;
        let logits = self.random_buf(s.vocab, BufKind::Logits, 3.0, 7)?;
        self.dev.set_tokens(&(0..16).map(|i| i * 4099).collect::<Vec<u32>>())?;
        let passes = passes(&[1, 16], &[]);
        self.measure("embed", &passes, 1, &|pass| (pass.rows() * s.hidden * 6, 0), &mut |b, _, pass| {
            b.embed(&mut h, &table, 12.0, pass)
        });
        self.measure("top_logits", &passes, 1, &|pass| (pass.rows() * s.vocab * 4, 0), &mut |b, _, pass| {
            b.top_logits(&logits, s.vocab, HeadRows::All, pass)
        });
        Ok(())
    }
}
