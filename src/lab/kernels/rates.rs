//! Speed of each operation at the 9B model's sizes, against the ceilings measured on the same device just before.
//!
//! Method: decode and verify operations are captured as one step over several copies of their weights or caches, so
//! that no copy is still in a cache at its next turn, and the CUDA graph is replayed; times are the device's own.
//! Prefill operations run on a full pass. Bytes are the least that the operation must move: weights once, state in and
//! out, chosen blocks and compressed keys once. Data are random, since zeros would be faster than real data.

use serde::Serialize;

use super::cases::{Sizes, lightning_spec, sparse_spec};
use crate::backend::cuda::{Ceilings, Cuda};
use crate::backend::forms::Group4;
use crate::backend::prelude::*;
use crate::backend::{BufKind, Form, HeadRows, MAX_POSITIONS, Pass, Result, StepKey};

#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    pub name: String,
    pub ms: f64,
    /// From the least bytes it must move.
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

const EPS: f32 = 1e-6;
const HEAD: usize = 128;
const REPLAYS: usize = 5;

#[derive(Clone, Copy)]
struct Work {
    bytes: f64,
    flops: f64,
}

/// Each entry is measured on its own, so that a failure hides no other.
pub struct Rates<'a> {
    pub dev: &'a mut Cuda,
    pub ceilings: Ceilings,
    pub list: Vec<Rate>,
    pub failed: Vec<(String, String)>,
}

impl Rates<'_> {
    fn keep(&mut self, name: String, ms: f64, work: Work) {
        let gb_per_s = work.bytes / ms / 1e6;
        let tflops = work.flops / ms / 1e9;
        let (memory, gemm) =
            (gb_per_s / self.ceilings.read_gb_per_s.max(1e-9), tflops / self.ceilings.gemm_tflops.max(1e-9));
        let (share, ceiling) = if memory >= gemm { (memory, "read") } else { (gemm, "gemm") };
        self.list.push(Rate { name, ms, gb_per_s, tflops, share, ceiling });
    }

    fn step(
        &mut self,
        name: &str,
        rows: usize,
        copies: usize,
        work: Work,
        op: &mut dyn FnMut(&mut Cuda, usize, Pass) -> Result<()>,
    ) {
        let pass = Pass::Verify { rows };
        let name = format!("{name} verify {rows}");
        let timed = (|| {
            // All operations share one step key: drop the graph of the one before.
            self.dev.forget_steps();
            let mut body = |b: &mut Cuda| (0..copies).try_for_each(|copy| op(b, copy, pass));
            // Eager, then captured; both warm up.
            self.dev.step(StepKey::Verify(rows), &mut body)?;
            self.dev.step(StepKey::Verify(rows), &mut body)?;
            let ms = self.dev.timed(|b| (0..REPLAYS).try_for_each(|_| b.step(StepKey::Verify(rows), &mut body)))?;
            self.dev.synchronize()?;
            Ok(f64::from(ms) / (REPLAYS * copies) as f64)
        })();
        match timed {
            Ok(ms) => self.keep(name, ms, work),
            Err(e) => self.fail(name, &e),
        }
    }

    fn pass(&mut self, name: &str, rows: usize, work: Work, op: &mut dyn FnMut(&mut Cuda, Pass) -> Result<()>) {
        let pass = Pass::Prefill { rows };
        let name = format!("{name} prefill {rows}");
        let timed = (|| {
            op(self.dev, pass)?;
            op(self.dev, pass)?;
            let ms = self.dev.timed(|b| (0..3).try_for_each(|_| op(b, pass)))?;
            self.dev.synchronize()?;
            Ok(f64::from(ms) / 3.0)
        })();
        match timed {
            Ok(ms) => self.keep(name, ms, work),
            Err(e) => self.fail(name, &e),
        }
    }

    fn fail(&mut self, name: String, e: &crate::backend::BackendError) {
        self.failed.push((name, e.to_string()));
    }

    /// # Errors
    /// Buffers that cannot be made.
    pub fn run(&mut self) -> Result<()> {
        // The middle of a document, as during a long read.
        self.dev.segment_at(usize::MAX);
        for form in FORMS {
            self.gemms(form, false)?;
        }
        if self.dev.has_fp8() {
            for form in [Form::Bf16, Form::Int4] {
                self.gemms(form, true)?;
            }
        }
        self.mixers()?;
        self.rows_ops()
    }

    /// Products with weights of a form; for fp8 only prefill, including the narrowing of its operands.
    fn gemms(&mut self, form: Form, in_fp8: bool) -> Result<()> {
        let s = FULL;
        let (sparse, lightning) = (sparse_spec(s).projection_width(), lightning_spec(s).projection_width());
        let most = self.dev.prefill_rows();
        let norm = self.dev.ones(s.hidden)?;
        let width = s.heads * HEAD;
        let out_norm = self.dev.ones(width)?;
        let mut h = self.dev.buf(s.hidden, BufKind::Residual)?;
        self.dev.randomize_buf(&mut h, 1.0, 1)?;
        // (name, out, inner, copies that exceed the caches)
        for (name, out, inner) in [
            ("norm_linear sparse", sparse, s.hidden),
            ("norm_linear lightning", lightning, s.hidden),
            ("norm_gate_up", s.intermediate, s.hidden),
            ("linear_add down", s.hidden, s.intermediate),
            ("gate_output", s.hidden, width),
            ("head", s.vocab, s.hidden),
        ] {
            if in_fp8 && matches!(name, "head" | "norm_linear sparse") {
                continue;
            }
            let doubled = if name == "norm_gate_up" { 2 } else { 1 };
            let bytes = form.bytes(doubled * out, inner);
            let copies = (400usize << 20).div_ceil(bytes).max(2);
            let mut weights = Vec::new();
            for i in 0..copies {
                let mut weight = if doubled == 2 {
                    self.dev.random_gate_up(out, inner, 0.015, i as u64, form)?
                } else {
                    self.dev.random_matrix(&[(out, form)], inner, 0.015, i as u64)?
                };
                if in_fp8 {
                    self.dev.read_in_fp8(&mut weight)?;
                }
                weights.push(weight);
            }
            let kind = if name == "head" { BufKind::Logits } else { BufKind::Activation };
            let mut to = self.dev.buf(out, kind)?;
            let mut x = self.dev.buf(inner.max(2 * width), BufKind::Activation)?;
            let mut dense = self.dev.buf(inner, BufKind::Activation)?;
            let mut o = self.dev.buf(width, BufKind::Wide)?;
            self.dev.randomize_buf(&mut x, 1.0, 2)?;
            self.dev.randomize_buf(&mut dense, 1.0, 3)?;
            self.dev.randomize_buf(&mut o, 1.0, 4)?;
            let mut call = |b: &mut Cuda, copy: usize, pass: Pass| -> Result<()> {
                let Some(w) = weights.get(copy) else {
                    return Ok(());
                };
                match name {
                    "norm_gate_up" => b.norm_gate_up(&mut to, &h, &norm, EPS, w, pass),
                    "linear_add down" => b.linear_add(&mut h, &dense, w, 1e-3, pass),
                    "gate_output" => {
                        b.gate_output(&mut h, &o, Some(&out_norm), EPS, &x, width..2 * width, w, 1e-3, pass)
                    }
                    "head" => b.head(&mut to, &h, &norm, EPS, 16.0, w, HeadRows::All, pass),
                    _ => b.norm_linear(&mut to, &h, &norm, EPS, w, pass),
                }
            };
            let title = if form == Form::Bf16 { name.to_owned() } else { format!("{name} {}", form.name()) };
            let title = if in_fp8 { format!("{title} in fp8") } else { title };
            let flops = |rows: usize| (2 * doubled * out * inner * rows) as f64;
            for rows in if in_fp8 { &[][..] } else { &[1, 2, 8, 16] }.iter().copied() {
                self.step(&title, rows, copies, Work { bytes: bytes as f64, flops: flops(rows) }, &mut call);
            }
            if name != "head" {
                let moved = bytes + most * (inner * 2 + doubled * out * 2);
                self.pass(&title, most, Work { bytes: moved as f64, flops: flops(most) }, &mut |b, pass| {
                    call(b, 0, pass)
                });
            }
        }
        Ok(())
    }

    fn mixers(&mut self) -> Result<()> {
        let s = FULL;
        let spec = lightning_spec(s);
        let most = self.dev.prefill_rows();
        let (q_norm, k_norm) = (self.dev.ones(HEAD)?, self.dev.ones(HEAD)?);
        let width = spec.heads * HEAD;
        let mut x = self.dev.buf(spec.projection_width(), BufKind::Activation)?;
        let mut o = self.dev.buf(width, BufKind::Wide)?;
        self.dev.randomize_buf(&mut x, 1.0, 5)?;
        let mut states = Vec::new();
        for _ in 0..64 {
            states.push(self.dev.recurrent(&spec)?);
        }
        self.dev.seek(100_000)?;
        let state_bytes = (2 * width * HEAD * 4) as f64;
        for rows in [1, 8, 16] {
            let work =
                Work { bytes: state_bytes + (rows * width * 12) as f64, flops: (rows * 4 * width * HEAD) as f64 };
            // One accepted row is pending, as during an answer: the state is read and written.
            self.dev.advance(Pass::Verify { rows: 1 }, 1)?;
            self.step("lightning", rows, 64, work, &mut |b, copy, pass| match states.get_mut(copy) {
                Some(state) => b.lightning(&mut o, &x, Some(&q_norm), Some(&k_norm), &mut [state], &spec, EPS, pass),
                None => Ok(()),
            });
        }
        // Per head and chunk of 64: q kᵀ, (q kᵀ) v, q S, kᵀ v.
        let flops = (most * spec.heads) as f64 * (2.0 * 64.0 * 128.0 * 2.0 + 2.0 * 128.0 * 128.0 * 2.0);
        let work = Work { bytes: (most * width * (2 * 3 + 4)) as f64, flops };
        self.dev.seek(100_000)?;
        if let Some(state) = states.first_mut() {
            self.pass("lightning", most, work, &mut |b, pass| {
                b.lightning(&mut o, &x, Some(&q_norm), Some(&k_norm), &mut [state], &spec, EPS, pass)
            });
        }
        drop(states);
        for context in [4_096, 131_072, 1_048_576] {
            self.sparse(context, most)?;
        }
        Ok(())
    }

    fn sparse(&mut self, context: usize, most: usize) -> Result<()> {
        let spec = sparse_spec(FULL);
        let copies = if context > 200_000 { 2 } else { 8 };
        let limit = MAX_POSITIONS;
        // Leaves room for the rows of the pass.
        let context = context.min(limit - most);
        let mut caches = self.dev.caches(&spec, limit, copies)?;
        for (i, cache) in (0..).zip(&mut caches) {
            self.dev.reserve(cache, context + most)?;
            self.dev.randomize(cache, context + most, 100 + i)?;
        }
        let mut selection = self.dev.selection(&spec, limit)?;
        let width = spec.projection_width();
        let mut x = self.dev.buf(width, BufKind::Activation)?;
        let mut o = self.dev.buf(spec.heads * HEAD, BufKind::Wide)?;
        self.dev.randomize_buf(&mut x, 1.5, 6)?;
        self.dev.seek(context)?;
        let row_bytes = spec.kv_heads * HEAD * 2;
        let blocks = (context / spec.block + 1).min(spec.topk);
        let compressed = (spec.level1_rows(context) + spec.level2_rows(context)) * row_bytes;
        let chosen = blocks * spec.block * 2 * row_bytes;
        for rows in [1, 8, 16] {
            let score_flops =
                (rows * 2 * spec.heads * HEAD * (spec.level1_rows(context) + spec.level2_rows(context))) as f64;
            let attend_flops = (rows * 4 * spec.heads * HEAD * blocks * spec.block) as f64;
            self.step(
                &format!("append_kv @ {context}"),
                rows,
                copies,
                Work { bytes: (rows * 4 * row_bytes) as f64, flops: 0.0 },
                &mut |b, i, pass| caches.get_mut(i).map_or(Ok(()), |cache| b.append_kv(&mut [cache], &x, &spec, pass)),
            );
            self.step(
                &format!("select_blocks @ {context}"),
                rows,
                copies,
                Work { bytes: compressed as f64, flops: score_flops },
                &mut |b, i, pass| {
                    caches.get(i).map_or(Ok(()), |cache| b.select_blocks(&mut selection, &x, &[cache], &spec, pass))
                },
            );
            self.step(
                &format!("attend @ {context}"),
                rows,
                copies,
                Work { bytes: chosen as f64, flops: attend_flops },
                &mut |b, i, pass| {
                    caches.get(i).map_or(Ok(()), |cache| b.attend(&mut o, &x, &mut selection, &[cache], &spec, pass))
                },
            );
        }
        let level1 = (spec.level1_rows(context) + spec.level2_rows(context)) as f64;
        let score = Work { bytes: compressed as f64, flops: most as f64 * 2.0 * (spec.heads * HEAD) as f64 * level1 };
        let attend = Work { bytes: 0.0, flops: most as f64 * 4.0 * (spec.heads * HEAD * blocks * spec.block) as f64 };
        let Some(cache) = caches.first() else {
            return Ok(());
        };
        self.pass(&format!("select_blocks @ {context}"), most, score, &mut |b, pass| {
            b.select_blocks(&mut selection, &x, &[cache], &spec, pass)
        });
        self.pass(&format!("attend @ {context}"), most, attend, &mut |b, pass| {
            b.attend(&mut o, &x, &mut selection, &[cache], &spec, pass)
        });
        Ok(())
    }

    fn rows_ops(&mut self) -> Result<()> {
        let s = FULL;
        let table = self.dev.random_matrix(&[(s.vocab, Form::Bf16)], s.hidden, 0.02, 9)?;
        let mut h = self.dev.buf(s.hidden, BufKind::Residual)?;
        let mut logits = self.dev.buf(s.vocab, BufKind::Logits)?;
        self.dev.randomize_buf(&mut logits, 3.0, 7)?;
        let ids: Vec<u32> = (0..16).map(|i| i * 4099).collect();
        self.dev.set_tokens(&ids)?;
        for rows in [1, 16] {
            self.step("embed", rows, 1, Work { bytes: (rows * s.hidden * 6) as f64, flops: 0.0 }, &mut |b, _, pass| {
                b.embed(&mut h, &table, 12.0, pass)
            });
            self.step(
                "top_logits",
                rows,
                1,
                Work { bytes: (rows * s.vocab * 4) as f64, flops: 0.0 },
                &mut |b, _, pass| b.top_logits(&logits, s.vocab, HeadRows::All, pass),
            );
        }
        Ok(())
    }
}
