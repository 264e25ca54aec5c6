//! The whole GPU backend without a GPU: launch arguments, layouts, growth, CUDA graphs and images run on the emulated device
//! (the very kernels, compiled for the CPU by `kernels/emulator/build.sh`) and are compared with the CPU oracle.
//! Needs a C++ compiler, and x86-64: `tests/tools.rs` says so where it is left out.
#![cfg(all(feature = "cuda", target_arch = "x86_64"))]

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use sala_chat::backend::cpu::Cpu;
use sala_chat::backend::cuda::{Card, Cuda, Guards, Options, PoolSize};
use sala_chat::backend::prelude::*;
use sala_chat::backend::{BackendError, BufKind, Form, Pass, ROW_ARRAYS, StepKey, layer_tensor};
use sala_chat::core::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};
use sala_chat::engine::protocol::{Dtype, ImageTensor, Precision, RowsImage};
use sala_chat::lab::checks::{Check, Checks};
use sala_chat::lab::kernels::{Extent, Plan, Sizes, operations, whole_model};
use sala_chat::model::Checkpoint;

#[path = "cuda_emulated/images.rs"]
mod images;
#[path = "cuda_emulated/park.rs"]
mod park;
#[path = "cuda_emulated/pool.rs"]
mod pool;
#[path = "cuda_emulated/sharing.rs"]
mod sharing;
#[path = "cuda_emulated/weights.rs"]
mod weights;

/// The emulator's library, built once per run of the tests.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libsala_kernels.so");
        let built = Command::new(root.join("kernels/emulator/build.sh")).arg(&out).status().unwrap();
        assert!(built.success(), "kernels/emulator/build.sh failed; it needs g++");
        out
    })
}

/// Few rows and small sizes, for minutes on a CPU; `wide` has more columns than one round takes.
const EXTENT: Extent = Extent {
    sizes: Sizes { hidden: 256, intermediate: 320, vocab: 2311, heads: 4, lightning_heads: 2, ..Extent::DEVICE.sizes },
    wide: 512,
    verify: &[1, 5, 16],
    prefill: &[65],
    positions: &[63, 6143],
    ..Extent::DEVICE
};

const PLAN: Plan = Plan {
    model: "synthetic:tiny",
    read: 70,
    read_in_fp8: 330,
    texts: &[66],
    steps: 4,
    row_counts: &[5, 16],
    groups: &[&[(330, 6), (5, 1), (33, 3)]],
};

/// Without guard words: the emulator's own page after every allocation faults at once.
fn device() -> Cuda {
    Cuda::emulated(library(), Options::default()).unwrap()
}

/// Keys and values in host memory, with a pool of so few blocks that it is always full.
fn paged(guards: Guards) -> Cuda {
    let pool = Some(PoolSize { blocks: 20, staged_rows: 1024 });
    Cuda::emulated(library(), Options { guards, pool, ..Options::default() }).unwrap()
}

fn sparse() -> SparseSpec {
    SparseSpec {
        heads: 2,
        kv_heads: 1,
        head_dim: 128,
        gate: true,
        block: 64,
        kernel: 32,
        stride: 16,
        init_blocks: 1,
        local_blocks: 16,
        topk: 48,
        dense_len: 4096,
        dense_rule: DenseRule::AsSparse,
        score_norm: ScoreNorm::Level2,
    }
}

fn lightning() -> LightningSpec {
    LightningSpec {
        heads: 16,
        kv_heads: 16,
        head_dim: 128,
        scale: 1.0,
        rope_theta: None,
        qk_norm: false,
        output_norm: false,
        output_gate: false,
    }
}

#[test]
fn every_operation_agrees_with_the_oracle() {
    every_operation(&mut device());
}

#[test]
fn every_operation_agrees_on_a_card_with_99_kb_of_shared_memory() {
    let limits = Some(Card::named("sm_86").unwrap());
    every_operation(&mut Cuda::emulated(library(), Options { limits, ..Options::default() }).unwrap());
}

fn every_operation(device: &mut Cuda) {
    let mut checks = Checks::default();
    operations(&mut checks, &mut Cpu::new(), device, &EXTENT);
    let failed: Vec<_> = checks.failed().map(Check::line).collect();
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), checks.list.len(), failed.join("\n"));
}

#[test]
fn the_built_in_model_writes_the_same_text_and_keeps_its_bits() {
    let mut checks = Checks::default();
    whole_model(&mut checks, || Cuda::emulated(library(), Options::default()).map_err(|e| e.to_string()), &PLAN);
    let failed: Vec<_> = checks.failed().map(Check::line).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_step_is_captured_once_and_follows_what_lives_in_device_memory() {
    let mut b = device();
    let table = b.random_matrix(&[(64, Form::Bf16)], 64, 1.0, 1).unwrap();
    let mut h = b.buf(64, BufKind::Residual).unwrap();
    let pass = Pass::Verify { rows: 1 };
    let mut rows = Vec::new();
    for token in [3, 9, 3, 27] {
        b.set_tokens(&[token]).unwrap();
        b.step(StepKey::Verify(1), &mut |b| b.embed(&mut h, &table, 1.0, pass)).unwrap();
        rows.push(b.read(&h, 1).unwrap());
        b.advance(pass, 1).unwrap();
    }
    assert_eq!(b.graphs(), 1);
    assert_eq!(rows[0], rows[2]);
    assert_ne!(rows[2], rows[3]);
    // A buffer that a CUDA graph might name was made: the next step starts anew.
    let mut other = b.buf(64, BufKind::Residual).unwrap();
    for _ in 0..3 {
        b.step(StepKey::Verify(1), &mut |b| b.embed(&mut other, &table, 1.0, pass)).unwrap();
    }
    assert_eq!(b.graphs(), 2);
    assert_eq!(b.read(&other, 1).unwrap(), rows[3]);
}

#[test]
fn a_cache_keeps_its_rows_while_it_grows() {
    let mut b = Cuda::emulated(library(), Options { guards: Guards::On, ..Options::default() }).unwrap();
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 20).unwrap();
    b.reserve(&mut cache, 100).unwrap();
    let before = b.memory().state;
    let mut x = b.buf(spec.projection_width(), BufKind::Activation).unwrap();
    let pass = Pass::Prefill { rows: 100 };
    let values: Vec<f32> = (0..100 * spec.projection_width()).map(|i| (i % 251) as f32 / 16.0).collect();
    b.seek(0).unwrap();
    b.write(&mut x, &values).unwrap();
    b.append_kv(&mut [&mut cache], &x, &spec, pass).unwrap();
    let rows = b.read_rows(&cache, 0..100).unwrap();
    b.reserve(&mut cache, 50_000).unwrap();
    assert!(b.memory().state > before);
    for (a, b) in rows.iter().zip(b.read_rows(&cache, 0..100).unwrap()) {
        assert!((&a.name, &a.shape, &a.data) == (&b.name, &b.shape, &b.data), "{a:?} and {b:?}");
    }
    b.check_guards().unwrap();
}

/// Rows of `start..start + rows` in layer 3, each byte telling where it belongs.
fn image(spec: &SparseSpec, start: usize, rows: usize) -> RowsImage {
    let ends = [start, start + rows];
    let [level1, level2] = [ends.map(|n| spec.level1_rows(n)), ends.map(|n| spec.level2_rows(n))];
    let counts = [rows, rows, level1[1] - level1[0], level2[1] - level2[0]];
    let tensors = ROW_ARRAYS.iter().zip(counts).map(|(name, n)| {
        let bytes = n * spec.kv_heads * spec.head_dim * 2;
        let data = (0..bytes as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 17) as u8 ^ name.as_bytes()[0]);
        ImageTensor {
            name: layer_tensor(name, 3),
            dtype: Dtype::Bf16,
            shape: vec![n, spec.kv_heads, spec.head_dim],
            data: data.collect::<Vec<u8>>().into(),
        }
    });
    RowsImage { start: start as u64, rows: rows as u64, tensors: tensors.collect(), segment: None }
}

#[test]
fn lists_grow_for_a_rule_with_more_blocks_than_the_model() {
    const ROWS: usize = 9 * 64 + 5;
    let own = SparseSpec { topk: 4, init_blocks: 1, local_blocks: 2, ..sparse() };
    let dense = SparseSpec { dense_rule: DenseRule::Always, ..own.clone() };
    let mut b =
        Cuda::emulated(library(), Options { prefill_rows: 640, guards: Guards::On, ..Options::default() }).unwrap();
    let values: Vec<f32> = (0..(ROWS + 3) * own.projection_width()).map(|i| (i * 7 % 33) as f32 / 32.0 - 0.5).collect();
    // Made for the rule, and grown into it after it has chosen by the model's own and been recorded.
    let mut outputs = Vec::new();
    for (made_for, rules) in [(&dense, &[&dense][..]), (&own, &[&own, &dense])] {
        let (mut cache, mut sel) = (b.cache(&own, 1024).unwrap(), b.selection(made_for, 1024).unwrap());
        b.reserve(&mut cache, 1024).unwrap();
        let mut x = b.buf(own.projection_width(), BufKind::Activation).unwrap();
        let mut o = b.buf(own.heads * own.head_dim, BufKind::Wide).unwrap();
        for rule in rules {
            for (start, pass) in [(0, Pass::Prefill { rows: ROWS }), (ROWS, Pass::Verify { rows: 3 })] {
                b.seek(start).unwrap();
                b.set_tokens(&vec![0; pass.rows()]).unwrap();
                let width = own.projection_width();
                b.write(&mut x, &values[start * width..][..pass.rows() * width]).unwrap();
                b.append_kv(&mut [&mut cache], &x, &own, pass).unwrap();
                b.select_blocks(&mut sel, &x, &[&cache], rule, pass).unwrap();
                b.attend(&mut o, &x, &mut sel, &[&cache], rule, pass).unwrap();
                let chosen = b.read_selection(&sel, rule, pass.rows()).unwrap();
                let last = chosen.last().unwrap()[0].len();
                assert_eq!(last, if rule.dense_rule == DenseRule::Always { 10 } else { 4 });
                outputs.push(b.read(&o, pass.rows()).unwrap());
            }
        }
        b.check_guards().unwrap();
    }
    assert_eq!(outputs[..2], outputs[4..]);
    assert_ne!(outputs[0], outputs[2]);
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_what_does() {
    let mut b = device();
    // The emulated device has 8 GiB; a position of this cache takes 8,704 bytes.
    let spec = SparseSpec { heads: 16, kv_heads: 16, ..sparse() };
    let mut cache = b.cache(&spec, 1 << 20).unwrap();
    let error = b.reserve(&mut cache, 1 << 20).unwrap_err();
    assert!(matches!(error, BackendError::Memory { .. }), "{error}");
    assert!(error.to_string().contains("Fits with at most "), "{error}");
    b.reserve(&mut cache, 1000).unwrap();
}

#[test]
fn the_memory_of_a_context_is_known_before_its_allocation() {
    let mut b = device();
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 17).unwrap();
    for length in [1, 64, 65, 4_096, 50_000, 50_001, 100_000, 10] {
        let (before, wants) = (b.room().unwrap().unwrap(), b.wants_anew(&cache, usize::MAX, length));
        b.reserve(&mut cache, length).unwrap();
        assert_eq!(
            (before - b.room().unwrap().unwrap(), b.wants_anew(&cache, usize::MAX, length)),
            (wants, 0),
            "{length} tokens"
        );
    }
    assert!(b.wants_anew(&cache, usize::MAX, 110_000) > 0);
}

#[test]
fn without_a_driver_the_reason_is_one_sentence() {
    if let Err(error) = Cuda::open(0, Options::default()) {
        let text = error.to_string();
        assert!(text.starts_with("No usable NVIDIA GPU: "), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn shapes_without_a_kernel_are_refused_by_name() {
    let mut b = device();
    let error = b.cache(&SparseSpec { head_dim: 64, ..sparse() }, 1000).err().unwrap().to_string();
    assert!(error.contains("head_dim = 64") && error.contains("--device cpu"), "{error}");
    let error = b.cache(&sparse(), (1 << 20) + 1).err().unwrap().to_string();
    assert!(error.contains("max_context = 1048577"), "{error}");
    // A GEMM of another width would compute something else: refused at load, and by the operation itself.
    let mut spec = Checkpoint::open("synthetic:tiny").unwrap().spec().clone();
    b.check(&spec, Precision::Bf16).unwrap();
    spec.intermediate = 96;
    let error = b.check(&spec, Precision::Bf16).unwrap_err().to_string();
    assert!(error.contains("intermediate_size = 96") && error.contains("a multiple of 64"), "{error}");
    let w = b.random_matrix(&[(64, Form::Bf16)], 96, 1.0, 1).unwrap();
    let (mut h, x) = (b.buf(64, BufKind::Residual).unwrap(), b.buf(96, BufKind::Activation).unwrap());
    for pass in [Pass::Verify { rows: 1 }, Pass::Prefill { rows: 64 }] {
        let error = b.linear_add(&mut h, &x, &w, 1.0, pass).unwrap_err();
        assert!(matches!(error, BackendError::Shape { .. }), "{error}");
    }
}
