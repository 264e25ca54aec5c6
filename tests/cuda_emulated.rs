//! The whole GPU backend without a GPU: launch arguments, layouts, growth, CUDA graphs and images run on the emulated device
//! (the very kernels, compiled for the CPU by `kernels/emulator/build.sh`) and are compared with the CPU oracle.
//! Needs a C++ compiler, and x86-64: `tests/tools.rs` says so where it is left out.
#![cfg(all(feature = "cuda", target_arch = "x86_64"))]

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use half::bf16;
use sala_chat::backend::cpu::Cpu;
use sala_chat::backend::cuda::{Cache, Card, Cuda, Guards, Options, PoolSize};
use sala_chat::backend::forms::{Group4, Packed};
use sala_chat::backend::prelude::*;
use sala_chat::backend::{
    BackendError, BufKind, Form, Pass, ROW_ARRAYS, StepKey, WeightView, layer_tensor, synthetic_value,
};
use sala_chat::lab::kernels::checks::{Checks, Extent, operations, relative};
use sala_chat::model::Checkpoint;
use sala_chat::protocol::engine::{Cancel, Dtype, ImageTensor, RowSource, RowsFault, RowsImage};
use sala_chat::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};

#[path = "cuda_emulated/pool.rs"]
mod pool;
#[path = "cuda_emulated/sharing.rs"]
mod sharing;

/// Kernels run one at a time in all tests of the process: who launches long ones holds it, and who measures what happens
/// beside a short one waits for them.
static BUSY: RwLock<()> = RwLock::new(());

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

/// Its own guards, and a page that faults behind every allocation: guard words would only put it off.
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
    operations(&mut checks, &mut Cpu::new(), device, Extent::Emulated);
    let failed: Vec<_> =
        checks.failed().map(|c| format!("{}: {}", c.name, c.message.clone().unwrap_or_default())).collect();
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), checks.list.len(), failed.join("\n"));
}

#[test]
fn the_built_in_model_writes_the_same_text_and_keeps_its_bits() {
    let mut checks = Checks::default();
    sala_chat::lab::kernels::whole_model(
        &mut checks,
        || Cuda::emulated(library(), Options::default()).map_err(|e| e.to_string()),
        Extent::Emulated,
    );
    let failed: Vec<_> =
        checks.failed().map(|c| format!("{}: {}", c.name, c.message.clone().unwrap_or_default())).collect();
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
    b.append_kv(&mut cache, &x, &spec, pass).unwrap();
    let rows = b.read_rows(&cache, &spec, 0..100).unwrap();
    b.reserve(&mut cache, 50_000).unwrap();
    assert!(b.memory().state > before);
    for (a, b) in rows.iter().zip(b.read_rows(&cache, &spec, 0..100).unwrap()) {
        assert!((&a.name, &a.shape, &a.data) == (&b.name, &b.shape, &b.data), "{a:?} and {b:?}");
    }
    b.check_guards().unwrap();
}

#[test]
fn what_is_read_together_is_what_was_written_each_on_its_own() {
    // Together longer than a staging buffer; the rows' arrays are short and odd ones among them.
    let lightning = lightning();
    let spec = sparse();
    for mut b in [device(), paged(Guards::On)] {
        b.seek(0).unwrap();
        let mut states = Vec::new();
        for of in 0..21u32 {
            let values: Vec<u8> = (0..16 * 128 * 128u32).flat_map(|i| (i ^ (of << 20)).to_le_bytes()).collect();
            let image =
                ImageTensor { name: "state".into(), dtype: Dtype::F32, shape: vec![16, 128, 128], data: values.into() };
            let mut state = b.recurrent(&lightning).unwrap();
            b.write_state(&mut state, &lightning, Some(&image)).unwrap();
            states.push((state, image));
        }
        let refs: Vec<_> = states.iter().map(|(state, _)| state).collect();
        let read = b.read_states(&refs, &lightning).unwrap();
        assert_eq!(read.len(), states.len());
        assert!(
            read.iter().zip(&states).all(|(read, (_, image))| read.data == image.data && read.shape == image.shape)
        );
        assert!(b.read_states(&[], &lightning).unwrap().is_empty());

        let mut caches = Vec::new();
        for of in 0..4u8 {
            let mut rows = image(&spec, 0, 5_003);
            for tensor in &mut rows.tensors {
                tensor.data = tensor.data.iter().map(|byte| byte ^ of).collect::<Vec<u8>>().into();
            }
            let mut cache = b.cache(&spec, 1 << 14).unwrap();
            b.reserve(&mut cache, 5_003).unwrap();
            b.restore_rows(&mut [(3, &mut cache)], &spec, &[Arc::new(rows.clone()) as Arc<dyn RowSource>]).unwrap();
            b.sync_rows(5_003).unwrap();
            caches.push((cache, rows));
        }
        let refs: Vec<&Cache> = caches.iter().map(|(cache, _)| cache).collect();
        let read = b.read_all_rows(&refs, &spec, 0..5_003).unwrap();
        for (read, (_, rows)) in read.iter().zip(&caches) {
            assert!(read.iter().map(|t| &t.data).eq(rows.tensors.iter().map(|t| &t.data)));
            assert_eq!(read.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ROW_ARRAYS);
        }
        let part = b.read_all_rows(&refs, &spec, 4_000..4_001).unwrap();
        let sizes: Vec<usize> = part[2].iter().map(|t| t.data.len()).collect();
        assert_eq!((part.len(), sizes), (4, vec![256, 256, 0, 0]));
        b.check_guards().unwrap();
    }
}

#[test]
fn what_leaves_the_device_is_what_was_there_when_it_was_asked_for() {
    // Together more than may be on its way at a time: some of it is read while the asker waits.
    const ROUNDS: u32 = 40;
    let (lightning, spec) = (lightning(), sparse());
    let mut b = device();
    b.seek(0).unwrap();
    let mut states: Vec<_> = (0..15).map(|_| b.recurrent(&lightning).unwrap()).collect();
    let mut cache = b.cache(&spec, 1 << 10).unwrap();
    b.reserve(&mut cache, 700).unwrap();
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        let values: Vec<u8> = (0..16 * 128 * 128u32).flat_map(|i| (i ^ (round << 20)).to_le_bytes()).collect();
        let image =
            ImageTensor { name: "state".into(), dtype: Dtype::F32, shape: vec![16, 128, 128], data: values.into() };
        states.iter_mut().for_each(|state| b.write_state(state, &lightning, Some(&image)).unwrap());
        let mut rows = self::image(&spec, 0, 700);
        for tensor in &mut rows.tensors {
            tensor.name.truncate(tensor.name.len() - ".3".len());
            tensor.data = tensor.data.iter().map(|byte| byte ^ round as u8).collect::<Vec<u8>>().into();
        }
        b.write_rows(&mut cache, &spec, 0, &rows.tensors.iter().collect::<Vec<_>>()).unwrap();
        let states = b.read_states(&states.iter().collect::<Vec<_>>(), &lightning).unwrap();
        left.push((image, states, rows, b.read_all_rows(&[&cache], &spec, 0..700).unwrap()));
    }
    // What is on its way still comes when the device is closed.
    drop((states, cache, b));
    for (image, states, rows, read) in left {
        assert!(states.len() == 15 && states.iter().all(|state| state.data == image.data));
        assert!(read[0].iter().map(|t| &t.data).eq(rows.tensors.iter().map(|t| &t.data)));
    }
}

#[test]
fn a_fork_has_its_rows_in_the_same_memory_until_one_writes_there() {
    fork_and_write(Cuda::emulated(library(), Options { guards: Guards::On, ..Options::default() }).unwrap());
    fork_and_write(paged(Guards::On));
}

fn fork_and_write(mut b: Cuda) {
    const ROWS: usize = 40_000;
    let held = |b: &Cuda| b.memory().state + b.memory().host;
    let spec = sparse();
    let mut from = b.cache(&spec, 1 << 17).unwrap();
    let put = |b: &mut Cuda, cache: &mut Cache, start: usize, rows: usize, of: u8| {
        let mut image = image(&spec, start, rows);
        for tensor in &mut image.tensors {
            let data: Vec<u8> = tensor.data.iter().map(|byte| byte ^ of).collect();
            tensor.data = data.into();
        }
        b.reserve(cache, start + rows).unwrap();
        b.restore_rows(&mut [(3, cache)], &spec, &[Arc::new(image) as Arc<dyn RowSource>]).unwrap();
        b.sync_rows(start + rows).unwrap();
        b.synchronize().unwrap();
    };
    let rows = |b: &mut Cuda, cache: &Cache, range: std::ops::Range<usize>| -> Vec<Vec<u8>> {
        b.read_rows(cache, &spec, range).unwrap().into_iter().map(|t| t.data.to_vec()).collect()
    };
    put(&mut b, &mut from, 0, ROWS, 0);
    let (whole, alone) = (rows(&mut b, &from, 0..ROWS), held(&b));
    let mut forks: Vec<Cache> = (0..3).map(|_| b.cache(&spec, 1 << 17).unwrap()).collect();
    for fork in &mut forks {
        b.copy_rows(&mut [fork], &mut [&mut from], &spec, ROWS).unwrap();
    }
    // Four arrays have less than two steps of 2 MiB of their own each.
    let each = (held(&b) - alone) / 3;
    assert!(each <= 4 * (4 << 20) && alone > 20 << 20, "{each} of {alone} bytes");
    for fork in &forks {
        assert!(rows(&mut b, fork, 0..ROWS) == whole);
    }
    // They go on, each its own way.
    put(&mut b, &mut from, ROWS, 5000, 1);
    for (i, fork) in (2..).zip(&mut forks) {
        put(&mut b, fork, ROWS, 3000, i);
    }
    let tails: Vec<Vec<Vec<u8>>> = forks.iter().map(|fork| rows(&mut b, fork, ROWS..ROWS + 3000)).collect();
    assert!(tails[0] != tails[1] && tails[1] != tails[2]);
    assert!(rows(&mut b, &from, 0..ROWS) == whole && rows(&mut b, &forks[2], 0..ROWS) == whole);
    // One goes back and reads something else: nothing changes for the others, nor what it keeps.
    let keep = 9_999;
    b.own_rows(&mut [&mut forks[0]], keep).unwrap();
    put(&mut b, &mut forks[0], keep, 20_000, 9);
    assert!(rows(&mut b, &forks[0], 0..keep) == rows(&mut b, &from, 0..keep));
    assert!(rows(&mut b, &forks[0], keep..ROWS - 11_000) != rows(&mut b, &from, keep..ROWS - 11_000));
    // So does the one they come from, from its start on.
    b.own_rows(&mut [&mut from], 0).unwrap();
    put(&mut b, &mut from, 0, 100, 7);
    for (fork, tail) in forks.iter().zip(&tails).skip(1) {
        assert!(rows(&mut b, fork, 0..ROWS) == whole && rows(&mut b, fork, ROWS..ROWS + 3000) == *tail);
    }
    // A short one in the place of a fork leaves what it had to the other.
    let [_, second, third] = &mut forks[..] else { panic!() };
    b.copy_rows(&mut [second], &mut [&mut from], &spec, 100).unwrap();
    assert!(rows(&mut b, second, 0..100) == rows(&mut b, &from, 0..100));
    assert!(rows(&mut b, third, 0..ROWS) == whole);
    drop((forks, from));
    assert_eq!(held(&b), 0);
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

/// A file that goes bad in its second piece.
#[derive(Debug)]
struct Bad(RowsImage);

impl RowSource for Bad {
    fn start(&self) -> u64 {
        self.0.start()
    }
    fn rows(&self) -> u64 {
        self.0.rows()
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        self.0.array(name)
    }
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        match at {
            0 => self.0.fill(name, at, into),
            _ => Err(RowsFault::new("damaged: part of it")),
        }
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        self.0.load(name)
    }
}

#[test]
fn rows_stream_in_from_several_files_and_a_bad_one_is_told() {
    stream_in(device());
    stream_in(paged(Guards::Off));
}

fn stream_in(mut b: Cuda) {
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 20).unwrap();
    // Longer than all slots together, and no multiple of a piece.
    let cuts = [0, 50_000, 50_064, 120_001];
    b.reserve(&mut cache, cuts[3]).unwrap();
    let images: Vec<RowsImage> = cuts.windows(2).map(|c| image(&spec, c[0], c[1] - c[0])).collect();
    // Damage shows when the rows are wanted, and before anybody has them.
    let bad: Arc<dyn RowSource> = Arc::new(Bad(images[0].clone()));
    b.restore_rows(&mut [(3, &mut cache)], &spec, &[bad]).unwrap();
    let error = b.read_rows(&cache, &spec, 0..cuts[1]).unwrap_err();
    assert!(error.to_string().contains("damaged: part of it"), "{error}");
    // Whatever waits for them fails, once: then they are given up, and the cache can be filled by reading.
    assert!(b.sync_rows(cuts[1]).is_err());
    b.sync_rows(0).unwrap();
    assert!(!b.rows_in_flight());
    assert!(b.read_rows(&cache, &spec, 0..cuts[1]).is_ok());
    let feeds = images.iter().map(|i| Arc::new(i.clone()) as Arc<dyn RowSource>);
    let feeds: Vec<Arc<dyn RowSource>> = feeds.collect();
    b.restore_rows(&mut [(3, &mut cache)], &spec, &feeds).unwrap();
    for (image, cut) in images.iter().zip(cuts.windows(2)) {
        let rows = b.read_rows(&cache, &spec, cut[0]..cut[1]).unwrap();
        for (here, wanted) in rows.iter().zip(&image.tensors) {
            assert_eq!(layer_tensor(&here.name, 3), wanted.name);
            assert_eq!(here.shape, wanted.shape);
            assert!(here.data == wanted.data, "{}", wanted.name);
        }
    }
}

/// A disk that counts the bytes of keys and values it has given, as slow as it has to be for a step on a busy machine to end long
/// before half of them are there.
#[derive(Debug)]
struct Slow {
    image: RowsImage,
    given: AtomicUsize,
    /// Nobody waits for less than all of it.
    fast: AtomicBool,
}

impl RowSource for Slow {
    fn start(&self) -> u64 {
        self.image.start()
    }
    fn rows(&self) -> u64 {
        self.image.rows()
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        self.image.array(name)
    }
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        if name.starts_with("k.") || name.starts_with("v.") {
            if !self.fast.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(into.len() as u64 * 2 / 5));
            }
            self.given.fetch_add(into.len(), Ordering::Relaxed);
        }
        self.image.fill(name, at, into)
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        self.image.load(name)
    }
}

#[test]
fn an_answer_waits_for_the_rows_it_chose_and_not_for_the_rest() {
    let _alone = BUSY.write();
    assert_eq!(answer_while_rows_come(device()), answer_while_rows_come(paged(Guards::Off)));
}

fn answer_while_rows_come(mut b: Cuda) -> Vec<f32> {
    const ROWS: usize = 60_000;
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 17).unwrap();
    b.reserve(&mut cache, ROWS + 1).unwrap();
    let mut sel = b.selection(&spec, 1 << 17).unwrap();
    let mut x = b.buf(spec.projection_width(), BufKind::Activation).unwrap();
    let mut o = b.buf(spec.heads * spec.head_dim, BufKind::Wide).unwrap();
    let values: Vec<f32> = (0..spec.projection_width()).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
    b.write(&mut x, &values).unwrap();
    let mut image = image(&spec, 0, ROWS);
    for tensor in &mut image.tensors {
        // Small numbers: any bits would hold infinities.
        let small = |b: &u8| half::bf16::from_f32(f32::from(*b) / 256.0 - 0.5).to_le_bytes();
        let data: Vec<u8> = tensor.data.iter().step_by(2).flat_map(small).collect();
        tensor.data = data.into();
    }
    let slow = Arc::new(Slow { image, given: AtomicUsize::new(0), fast: AtomicBool::new(false) });
    let feeds = [Arc::clone(&slow) as Arc<dyn RowSource>];
    let all = 2 * ROWS * spec.kv_heads * spec.head_dim * 2;
    let pass = Pass::Verify { rows: 1 };
    let mut outputs = Vec::new();
    for complete in [false, true] {
        // What is still in flight for the answer before is not wanted any more.
        b.sync_rows(0).unwrap();
        slow.given.store(0, Ordering::Relaxed);
        slow.fast.store(false, Ordering::Relaxed);
        b.restore_rows(&mut [(3, &mut cache)], &spec, &feeds).unwrap();
        assert!(slow.given.load(Ordering::Relaxed) < all / 8);
        if complete {
            slow.fast.store(true, Ordering::Relaxed);
            b.sync_rows(ROWS).unwrap();
        }
        b.seek(ROWS).unwrap();
        b.set_tokens(&[1]).unwrap();
        let mut step = |b: &mut Cuda| {
            b.step(StepKey::Verify(1), &mut |b| {
                b.append_kv(&mut cache, &x, &spec, pass)?;
                b.select_blocks(&mut sel, &x, &cache, &spec, pass)?;
                b.attend(&mut o, &x, &mut sel, &cache, &spec, pass)
            })
            .unwrap();
            b.read(&o, 1).unwrap()
        };
        outputs.push(step(&mut b));
        let given = slow.given.load(Ordering::Relaxed);
        assert_eq!(given == all, complete, "{given} of {all} bytes");
        assert!(complete || given < all / 2, "{given} of {all} bytes");
        // What a CUDA graph names must not change: none is made while rows are in flight.
        assert_eq!(b.graphs(), 0);
        if complete {
            outputs.extend((0..3).map(|_| step(&mut b)));
            assert_eq!(b.graphs(), 1);
        }
    }
    assert!(outputs[0].iter().all(|v| v.is_finite()));
    assert!(outputs.iter().all(|o| *o == outputs[0]));
    // Whoever waits can be stopped.
    slow.fast.store(false, Ordering::Relaxed);
    b.restore_rows(&mut [(3, &mut cache)], &spec, &feeds).unwrap();
    let cancel = Cancel::default();
    cancel.cancel();
    b.stop_on(&cancel);
    let stopped = b.read_rows(&cache, &spec, 0..ROWS);
    assert!(matches!(stopped, Err(BackendError::Stopped)));
    assert!(b.rows_in_flight());
    // A cache that goes takes its rows with it, in flight or not.
    drop(cache);
    assert!(!b.rows_in_flight());
    outputs.swap_remove(0)
}

#[test]
fn lists_grow_for_a_rule_that_takes_more_blocks_than_the_models_own() {
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
                b.append_kv(&mut cache, &x, &own, pass).unwrap();
                b.select_blocks(&mut sel, &x, &cache, rule, pass).unwrap();
                b.attend(&mut o, &x, &mut sel, &cache, rule, pass).unwrap();
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
fn what_a_context_would_take_is_known_before_it_is_taken() {
    let mut b = device();
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 17).unwrap();
    for length in [1, 64, 65, 4_096, 50_000, 50_001, 100_000, 10] {
        let (before, wants) = (b.room().unwrap().unwrap(), b.wants(&cache, length));
        b.reserve(&mut cache, length).unwrap();
        assert_eq!((before - b.room().unwrap().unwrap(), b.wants(&cache, length)), (wants, 0), "{length} tokens");
    }
    assert!(b.wants(&cache, 110_000) > 0);
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
    b.check(&spec).unwrap();
    spec.intermediate = 96;
    let error = b.check(&spec).unwrap_err().to_string();
    assert!(error.contains("intermediate_size = 96") && error.contains("a multiple of 64"), "{error}");
    let w = b.random_matrix(&[(64, Form::Bf16)], 96, 1.0, 1).unwrap();
    let (mut h, x) = (b.buf(64, BufKind::Residual).unwrap(), b.buf(96, BufKind::Activation).unwrap());
    for pass in [Pass::Verify { rows: 1 }, Pass::Prefill { rows: 64 }] {
        let error = b.linear_add(&mut h, &x, &w, 1.0, pass).unwrap_err();
        assert!(matches!(error, BackendError::Shape { .. }), "{error}");
    }
}

/// Weights of more than the pipeline's shortest length, at an odd place of a file.
struct InFile {
    shape: [usize; 2],
    form: Form,
    dtype: Dtype,
    bytes: Vec<u8>,
    nothing: Vec<u8>,
    file: std::fs::File,
}

const FIRST: usize = 4_099;

impl InFile {
    fn new(shape: [usize; 2], form: Form, seed: u64) -> InFile {
        let value = |row: usize, column: usize| synthetic_value(seed, (row * shape[1] + column) as u64, 0.03);
        let (dtype, bytes) = match form {
            Form::Bf16 => {
                let all = (0..shape[0]).flat_map(|r| (0..shape[1]).map(move |c| (r, c)));
                (Dtype::Bf16, all.flat_map(|(r, c)| bf16::from_f32(value(r, c)).to_le_bytes()).collect())
            }
            form => {
                let fill = |row: usize, dst: &mut [f32]| {
                    dst.iter_mut().enumerate().for_each(|(column, v)| *v = value(row, column));
                };
                let published = Packed::random(form, seed, shape[0], shape[1], 0.03);
                let packed = published.unwrap_or_else(|| Packed::pack(form, shape[0], shape[1], fill).unwrap());
                (Dtype::U8, packed.into_bytes())
            }
        };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0xff; FIRST]).unwrap();
        file.write_all(&bytes).unwrap();
        InFile { shape, form, dtype, nothing: vec![0; bytes.len()], bytes, file }
    }

    fn in_memory(&self) -> WeightView<'_> {
        let InFile { shape, form, dtype, bytes, .. } = self;
        WeightView { name: "weight", shape, dtype: *dtype, data: bytes, file: None, form: *form }
    }

    /// What is mapped would be found out.
    fn on_disk(&self) -> WeightView<'_> {
        WeightView { data: &self.nothing, file: Some((&self.file, FIRST as u64)), ..self.in_memory() }
    }
}

/// One row times a weight.
fn projected<B: Backend>(b: &mut B, w: &B::Matrix, norm: &B::Vector, [out, inner]: [usize; 2]) -> Vec<f32> {
    let (mut h, mut to) = (b.buf(inner, BufKind::Residual).unwrap(), b.buf(out, BufKind::Activation).unwrap());
    let values: Vec<f32> = (0..inner as u64).map(|i| synthetic_value(9, i, 1.0)).collect();
    b.write(&mut h, &values).unwrap();
    let pass = Pass::Verify { rows: 1 };
    b.set_tokens(&[0]).unwrap();
    b.norm_linear(&mut to, &h, norm, 1e-6, w, pass).unwrap();
    let found = b.read(&to, 1).unwrap();
    b.advance(pass, 0).unwrap();
    found
}

fn random_gate_up<B: Backend>(b: &mut B, form: Form) -> Vec<f32> {
    let w = b.random_gate_up(96, 256, 0.1, 8, form).unwrap();
    norm_gate_up(b, &w, [96, 256])
}

fn gate_up<B: Backend>(b: &mut B, [gate, up]: [WeightView<'_>; 2]) -> Vec<f32> {
    let [half, inner] = *gate.shape else { panic!("{:?}", gate.shape) };
    let w = b.gate_up_matrix(gate, up).unwrap();
    norm_gate_up(b, &w, [half, inner])
}

fn norm_gate_up<B: Backend>(b: &mut B, w: &B::Matrix, [half, inner]: [usize; 2]) -> Vec<f32> {
    let norm = b.ones(inner).unwrap();
    let (mut h, mut out) = (b.buf(inner, BufKind::Residual).unwrap(), b.buf(half, BufKind::Activation).unwrap());
    let values: Vec<f32> = (0..inner as u64).map(|i| synthetic_value(9, i, 1.0)).collect();
    b.write(&mut h, &values).unwrap();
    let pass = Pass::Verify { rows: 1 };
    b.set_tokens(&[0]).unwrap();
    b.norm_gate_up(&mut out, &h, &norm, 1e-6, w, pass).unwrap();
    let found = b.read(&out, 1).unwrap();
    b.advance(pass, 0).unwrap();
    found
}

#[test]
fn weights_are_read_from_where_they_lie_in_files() {
    let mut b = device();
    for form in [Form::Bf16, Form::Int8, Form::Int4, Form::Nvfp4] {
        // Joined, more than four megabytes, and no whole number of pieces.
        let weights = [3, 4].map(|seed| InFile::new([3_056, 1_024], form, seed));
        let [gate, up] = &weights;
        let from_files = gate_up(&mut b, [gate.on_disk(), up.on_disk()]);
        assert_eq!(from_files, gate_up(&mut b, [gate.in_memory(), up.in_memory()]), "{}", form.name());
        let oracle = gate_up(&mut Cpu::new(), [gate.in_memory(), up.in_memory()]);
        let error = relative(&from_files, &oracle);
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Below each other: one part where pairs of tiles come out even.
    for (form, rows, parts) in
        [(Form::Int4, [96, 3_040, 33], 1), (Form::Nvfp4, [96, 3_040, 33], 1), (Form::Nvfp4, [33, 64, 96], 2)]
    {
        let weights = [0, 1, 2].map(|i| InFile::new([rows[i], 1_024], form, 7 + i as u64));
        let (norm, size) = (b.ones(1_024).unwrap(), [rows.iter().sum(), 1_024]);
        let w = b.matrix(&weights.each_ref().map(InFile::on_disk)).unwrap();
        assert_eq!(b.parts(&w).len(), parts);
        let found = projected(&mut b, &w, &norm, size);
        let w = b.matrix(&weights.each_ref().map(InFile::in_memory)).unwrap();
        assert_eq!(found, projected(&mut b, &w, &norm, size));
        let mut cpu = Cpu::new();
        let (w, norm) = (cpu.matrix(&weights.each_ref().map(InFile::in_memory)).unwrap(), cpu.ones(1_024).unwrap());
        let error = relative(&found, &projected(&mut cpu, &w, &norm, size));
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Made up there as on the CPU.
    for form in [Form::Group4(Group4::G128), Form::Nvfp4] {
        let made = |b: &mut dyn FnMut(&[(usize, Form)]) -> Vec<f32>| b(&[(96, form), (64, Form::Int8), (32, form)]);
        let found = made(&mut |forms| {
            let (w, norm) = (b.random_matrix(forms, 256, 0.1, 5).unwrap(), b.ones(256).unwrap());
            projected(&mut b, &w, &norm, [192, 256])
        });
        let mut cpu = Cpu::new();
        let expected = made(&mut |forms| {
            let (w, norm) = (cpu.random_matrix(forms, 256, 0.1, 5).unwrap(), cpu.ones(256).unwrap());
            projected(&mut cpu, &w, &norm, [192, 256])
        });
        let error = relative(&found, &expected);
        assert!(error < 6e-3, "{}: {error}", form.name());
        let found = random_gate_up(&mut b, form);
        let error = relative(&found, &random_gate_up(&mut Cpu::new(), form));
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Tables, plain and packed already.
    for (form, rows) in [(Form::Bf16, 2_101), (Form::Int8, 4_801)] {
        let weight = InFile::new([rows, 1_024], form, 5);
        let (mut h, pass) = (b.buf(1_024, BufKind::Residual).unwrap(), Pass::Verify { rows: 4 });
        let mut found = Vec::new();
        for view in [weight.on_disk(), weight.in_memory()] {
            let table = b.matrix(&[view]).unwrap();
            b.set_tokens(&[0, 513, rows as u32 / 2, rows as u32 - 1]).unwrap();
            b.embed(&mut h, &table, 1.0, pass).unwrap();
            found.push(b.read(&h, 4).unwrap());
            b.advance(pass, 0).unwrap();
        }
        assert_eq!(found[0], found[1], "{}", form.name());
        assert!(found[0].iter().any(|v| *v != 0.0));
    }
    let short = InFile::new([2_101, 1_024], Form::Bf16, 5);
    short.file.set_len(4_000_000).unwrap();
    let error = b.matrix(&[short.on_disk()]).err().unwrap().to_string();
    assert!(error.contains("a file is shorter than it was"), "{error}");
    b.check_guards().unwrap();
}
