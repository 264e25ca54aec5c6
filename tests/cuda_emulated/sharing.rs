//! Rows shared up to a position: whole pages are in the memory of both, the rest is copied, and later rows are unshared.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use half::bf16;
use sala_chat::backend::cuda::Cache;
use sala_chat::backend::synthetic_value;
use sala_chat::engine::protocol::{CheckpointImage, RowSource, RowsFault, TensorData};
use sala_chat::model::{Live, Model};

use super::*;

const ROWS: usize = 40_000;

fn held(b: &Cuda) -> u64 {
    b.memory().state + b.memory().host
}

fn put(b: &mut Cuda, cache: &mut Cache, start: usize, rows: usize, of: u8) {
    let mut image = image(&sparse(), start, rows);
    for tensor in &mut image.tensors {
        tensor.data = tensor.data.iter().map(|byte| byte ^ of).collect::<Vec<u8>>().into();
    }
    b.reserve(cache, start + rows).unwrap();
    b.restore_rows(&mut [(3, cache)], &[Arc::new(image) as Arc<dyn RowSource>]).unwrap();
    b.sync_rows(start + rows).unwrap();
    b.synchronize().unwrap();
}

fn rows(b: &mut Cuda, cache: &Cache, range: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    b.read_rows(cache, range).unwrap().into_iter().map(|t| t.data.to_vec()).collect()
}

#[test]
fn forks_cut_at_positions_share_the_rows_below_them() {
    cut_at_positions(Cuda::emulated(library(), Options { guards: Guards::On, ..Options::default() }).unwrap(), true);
    cut_at_positions(paged(Guards::On), false);
}

fn cut_at_positions(mut b: Cuda, resident: bool) {
    let spec = sparse();
    let mut from = b.cache(&spec, 1 << 17).unwrap();
    put(&mut b, &mut from, 0, ROWS, 0);
    let alone = held(&b);
    let whole = rows(&mut b, &from, 0..ROWS);
    // On the way, in order: each has less than two steps of 2 MiB of each array for itself.
    let cuts = [9_000, 20_001, 20_001, 33_333];
    let mut forks: Vec<Cache> = cuts.iter().map(|_| b.cache(&spec, 1 << 17).unwrap()).collect();
    for (fork, cut) in forks.iter_mut().zip(cuts) {
        let before = held(&b);
        b.copy_rows(&mut [fork], &mut [&mut from], cut).unwrap();
        assert!(held(&b) - before <= 4 * (4 << 20), "{} bytes at {cut}", held(&b) - before);
        assert!(rows(&mut b, fork, 0..cut) == rows(&mut b, &from, 0..cut), "{cut}");
    }
    assert!(rows(&mut b, &from, 0..ROWS) == whole);
    // Back on the way: what others have is not taken apart, and the bits are the same.
    let mut late = b.cache(&spec, 1 << 17).unwrap();
    let before = held(&b);
    b.copy_rows(&mut [&mut late], &mut [&mut from], 15_000).unwrap();
    assert!(held(&b) - before < alone / 2, "{} of {alone} bytes", held(&b) - before);
    assert!(rows(&mut b, &late, 0..15_000) == rows(&mut b, &from, 0..15_000));
    // They go on as one that has read its rows for itself, compressed keys with windows across the cut included.
    for (of, (fork, cut)) in (1u8..).zip(forks.iter_mut().zip(cuts)) {
        let mut plain = b.cache(&spec, 1 << 17).unwrap();
        put(&mut b, &mut plain, 0, ROWS, 0);
        b.own_rows(&mut [&mut plain], cut).unwrap();
        for cache in [&mut *fork, &mut plain] {
            put(&mut b, cache, cut, 5_000, of);
        }
        assert!(rows(&mut b, fork, 0..cut + 5_000) == rows(&mut b, &plain, 0..cut + 5_000), "{cut}");
    }
    assert!(rows(&mut b, &from, 0..ROWS) == whole);
    // The lender returns to its start, then to nothing.
    let kept: Vec<_> = forks.iter().zip(cuts).map(|(fork, cut)| rows(&mut b, fork, 0..cut + 5_000)).collect();
    // All of it has memory; to write it anew takes what others have of that once more.
    let (before, wants) = (held(&b), [b.wants_anew(&from, usize::MAX, ROWS), b.wants_anew(&from, 100, ROWS)]);
    assert!(wants[0] == 0 && (wants[1] > 0 || !resident), "{wants:?}");
    b.own_rows(&mut [&mut from], 100).unwrap();
    b.reserve(&mut from, ROWS).unwrap();
    if resident {
        assert_eq!(held(&b) - before, wants[1]);
    }
    put(&mut b, &mut from, 100, 30_000, 77);
    drop(from);
    for ((fork, cut), kept) in forks.iter().zip(cuts).zip(&kept) {
        assert!(rows(&mut b, fork, 0..cut + 5_000) == *kept, "{cut}");
    }
    drop((forks, late));
    assert_eq!(held(&b), 0);
    b.check_guards().unwrap();
}

#[test]
fn a_fork_of_eight_layers_has_four_pages_of_its_own() {
    of_eight_layers(Cuda::emulated(library(), Options { guards: Guards::On, ..Options::default() }).unwrap(), 4);
    // Keys and values of each layer by themselves, in the host's memory.
    of_eight_layers(paged(Guards::On), 2 + 2 * 16);
}

/// Rows from `start` on into all layers, each its own.
fn put_all(b: &mut Cuda, caches: &mut [Cache], start: usize, rows: usize, of: u8) {
    for (layer, cache) in (0u8..).zip(caches) {
        put(b, cache, start, rows, of ^ (16 * layer));
    }
}

fn all_rows(b: &mut Cuda, caches: &[Cache], range: std::ops::Range<usize>) -> Vec<Vec<TensorData>> {
    let caches: Vec<&Cache> = caches.iter().collect();
    let read = b.read_all_rows(&caches, range).unwrap();
    read.into_iter().map(|tensors| tensors.into_iter().map(|t| t.data).collect()).collect()
}

fn share(b: &mut Cuda, to: &mut [Cache], from: &mut [Cache], positions: usize) {
    let (mut to, mut from): (Vec<_>, Vec<_>) = (to.iter_mut().collect(), from.iter_mut().collect());
    b.copy_rows(&mut to, &mut from, positions).unwrap();
}

fn of_eight_layers(mut b: Cuda, pages: u64) {
    const ALL: usize = 12_500;
    let spec = sparse();
    let made = |b: &mut Cuda| b.caches(&spec, 1 << 15, 8).unwrap();
    let mut from = made(&mut b);
    put_all(&mut b, &mut from, 0, ALL, 0);
    let whole = all_rows(&mut b, &from, 0..ALL);
    assert!(whole.windows(2).all(|layers| layers[0] != layers[1]));
    // Where tiles of compressed keys end, and their last windows.
    let cuts = [8_192, 8_255, 8_256, 9_001, ALL];
    let mut forks: Vec<Vec<Cache>> = cuts.iter().map(|_| made(&mut b)).collect();
    for (fork, cut) in forks.iter_mut().zip(cuts) {
        let before = held(&b);
        share(&mut b, fork, &mut from, cut);
        assert!(held(&b) - before <= pages * (2 << 20), "{} bytes at {cut}", held(&b) - before);
        assert!(all_rows(&mut b, fork, 0..cut) == all_rows(&mut b, &from, 0..cut), "{cut}");
    }
    // They go on as one that has read its rows for itself, one layer after the other.
    for (of, (fork, cut)) in (1u8..).zip(forks.iter_mut().zip(cuts)) {
        let mut plain = made(&mut b);
        for caches in [&mut *fork, &mut plain] {
            put_all(&mut b, caches, cut, 1_000, of);
        }
        let [own, wanted] = [&*fork, &plain].map(|caches| all_rows(&mut b, caches, cut + 200..cut + 1_000));
        assert!(own == wanted, "{cut}");
        assert!(all_rows(&mut b, fork, 0..cut) == all_rows(&mut b, &from, 0..cut), "{cut}");
    }
    // One fork and the lender rewind: the others and all kept rows are unchanged.
    let kept: Vec<_> = forks.iter().zip(cuts).map(|(fork, cut)| all_rows(&mut b, fork, 0..cut + 1_000)).collect();
    b.own_rows(&mut forks[3].iter_mut().collect::<Vec<_>>(), 4_130).unwrap();
    put_all(&mut b, &mut forks[3], 4_130, 3_000, 99);
    b.own_rows(&mut from.iter_mut().collect::<Vec<_>>(), 70).unwrap();
    put_all(&mut b, &mut from, 70, 9_000, 98);
    for (n, ((fork, cut), kept)) in forks.iter().zip(cuts).zip(&kept).enumerate() {
        if n != 3 {
            assert!(all_rows(&mut b, fork, 0..cut + 1_000) == *kept, "{cut}");
        }
    }
    let mut plain = made(&mut b);
    put_all(&mut b, &mut plain, 0, ALL, 0);
    for (caches, kept) in [(&forks[3], 4_130), (&from, 70)] {
        assert!(all_rows(&mut b, caches, 0..kept) == all_rows(&mut b, &plain, 0..kept), "{kept}");
    }
    // Some layers of a sequence are no sequence.
    let [first, second] = &mut forks[..2] else { panic!() };
    let error = b.copy_rows(&mut [&mut first[0]], &mut [&mut second[0]], 100).unwrap_err();
    assert!(error.to_string().contains("some layers of a sequence and not all"), "{error}");
    drop((from, forks, plain));
    assert_eq!(held(&b), 0);
    b.check_guards().unwrap();
}

/// Rows of the built-in model that arrive on demand and record whether they were read or skipped.
#[derive(Debug)]
struct Held {
    start: u64,
    rows: u64,
    name: u8,
    open: AtomicBool,
    read: AtomicUsize,
    passed: AtomicBool,
}

impl Held {
    fn new(start: u64, rows: u64, name: u8, open: bool) -> Arc<Held> {
        let (open, passed) = (AtomicBool::new(open), AtomicBool::new(false));
        Arc::new(Held { start, rows, name, open, read: AtomicUsize::new(0), passed })
    }

    fn was_read(&self) -> bool {
        let (read, passed) = (self.read.load(Ordering::Relaxed) > 0, self.passed.load(Ordering::Relaxed));
        assert!(read != passed, "{read}, {passed}");
        read
    }
}

impl RowSource for Held {
    fn start(&self) -> u64 {
        self.start
    }
    fn rows(&self) -> u64 {
        self.rows
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        let (spec, ends) = (sparse(), [self.start as usize, (self.start + self.rows) as usize]);
        let rows = match name.split_once('.')?.0 {
            "k1" => spec.level1_rows(ends[1]) - spec.level1_rows(ends[0]),
            "k2" => spec.level2_rows(ends[1]) - spec.level2_rows(ends[0]),
            _ => self.rows as usize,
        };
        Some((Dtype::Bf16, vec![rows, 1, 128]))
    }
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        let waits = name.starts_with("k.") || name.starts_with("v.");
        let begun = Instant::now();
        while waits && !self.open.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            if begun.elapsed() > Duration::from_secs(600) {
                return Err(RowsFault::new("nobody let them come"));
            }
        }
        self.read.fetch_add(into.len(), Ordering::Relaxed);
        let seed = u64::from(name.bytes().map(u32::from).sum::<u32>()) + u64::from(self.name);
        for (i, pair) in (at / 2..).zip(into.chunks_exact_mut(2)) {
            pair.copy_from_slice(&bf16::from_f32(synthetic_value(seed, i as u64, 1.0)).to_le_bytes());
        }
        Ok(())
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        let (dtype, shape) = self.array(name).ok_or_else(|| RowsFault::new("no such array"))?;
        let mut data = vec![0; shape.iter().product::<usize>() * dtype.size()];
        self.fill(name, 0, &mut data)?;
        Ok(ImageTensor { name: name.into(), dtype, shape, data: data.into() })
    }
    fn segment(&self) -> Option<[u8; 32]> {
        Some([self.name; 32])
    }
    fn pass_over(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn rows_that_are_still_in_flight_are_not_lent() {
    in_flight(device());
    in_flight(paged(Guards::Off));
}

/// Two segments of 9,000 rows: of a sequence that is itself waiting for them nothing is had, and all of it once they are there.
fn in_flight(mut b: Cuda) {
    const EACH: u64 = 9_000;
    let model = Model::load(&mut b, &Arc::new(Checkpoint::open("demo").unwrap()), |_| {}).unwrap();
    let mut live = Live::new(&mut b, &model, 1 << 15, &[]).unwrap();
    let sources = |open: bool| [Held::new(0, EACH, 1, open), Held::new(EACH, EACH, 2, open)];
    let feeds = |sources: &[Arc<Held>]| -> Vec<Arc<dyn RowSource>> {
        sources.iter().map(|source| Arc::clone(source) as Arc<dyn RowSource>).collect()
    };
    let tensors = live.export_end(&mut b).unwrap().tensors;
    let end = |position: u64| CheckpointImage { position, tensors: tensors.clone() };
    let ask = |b: &mut Cuda, live: &mut Live<Cuda>| {
        live.verify(b, &model, &[301, 302, 303]).unwrap();
        let logits: Vec<u32> = live.logits(b, 3).unwrap().into_iter().map(f32::to_bits).collect();
        live.advance(b, 3).unwrap();
        logits
    };
    // What is to be: both paths, read for themselves.
    let alone: Vec<Vec<u32>> = [1, 2]
        .map(|n| {
            live.restore_from(&mut b, 0, &feeds(&sources(true)[..n]), Some(&end(n as u64 * EACH)), None).unwrap();
            ask(&mut b, &mut live)
        })
        .into();
    live.reset(&mut b).unwrap();
    let mut lender = live.another(&mut b, &model).unwrap();
    live.swap(&mut b, &mut lender).unwrap();
    let slow = sources(false);
    live.restore_from(&mut b, 0, &feeds(&slow), Some(&end(2 * EACH)), None).unwrap();
    live.swap(&mut b, &mut lender).unwrap();
    let first = sources(true);
    assert_eq!(lender.lends(&b, &feeds(&first)), 0);
    live.restore_from(&mut b, 0, &feeds(&first[..1]), Some(&end(EACH)), Some(&mut lender)).unwrap();
    assert_eq!(ask(&mut b, &mut live), alone[0]);
    assert!(first[0].was_read());
    // They arrive and are lent from then on: at once, from any position of the borrower.
    slow.iter().for_each(|source| source.open.store(true, Ordering::Relaxed));
    let second = sources(true);
    while lender.lends(&b, &feeds(&second)) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = held(&b);
    live.restore_from(&mut b, 0, &feeds(&second), Some(&end(2 * EACH)), Some(&mut lender)).unwrap();
    assert!(second.iter().all(|source| !source.was_read()));
    // Twice the rows, and less memory than for one half of its own.
    assert!(held(&b) < before, "{} of {before} bytes", held(&b));
    assert_eq!(ask(&mut b, &mut live), alone[1]);
    // The first segment is the lender's, the next one is read.
    let other = [Held::new(0, EACH, 1, true), Held::new(EACH, 500, 3, true)];
    live.restore_from(&mut b, 0, &feeds(&other), Some(&end(EACH + 500)), Some(&mut lender)).unwrap();
    ask(&mut b, &mut live);
    b.sync_rows(usize::MAX).unwrap();
    assert!(!other[0].was_read() && other[1].was_read());
    live.restore_from(&mut b, 0, &feeds(&sources(true)[..1]), Some(&end(EACH)), Some(&mut lender)).unwrap();
    assert_eq!(ask(&mut b, &mut live), alone[0]);
    // The lender has lost nothing by it, and its end is nothing to the borrower.
    live.swap(&mut b, &mut lender).unwrap();
    assert_eq!(ask(&mut b, &mut live), alone[1]);
    live.reset(&mut b).unwrap();
    live.swap(&mut b, &mut lender).unwrap();
    Live::release(&mut b, lender);
    live.restore_from(&mut b, EACH as usize, &[], Some(&end(EACH)), None).unwrap();
    assert_eq!(ask(&mut b, &mut live), alone[0]);
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
        b.restore_rows(&mut [(3, cache)], &[Arc::new(image) as Arc<dyn RowSource>]).unwrap();
        b.sync_rows(start + rows).unwrap();
        b.synchronize().unwrap();
    };
    let rows = |b: &mut Cuda, cache: &Cache, range: std::ops::Range<usize>| -> Vec<Vec<u8>> {
        b.read_rows(cache, range).unwrap().into_iter().map(|t| t.data.to_vec()).collect()
    };
    put(&mut b, &mut from, 0, ROWS, 0);
    let (whole, alone) = (rows(&mut b, &from, 0..ROWS), held(&b));
    let mut forks: Vec<Cache> = (0..3).map(|_| b.cache(&spec, 1 << 17).unwrap()).collect();
    for fork in &mut forks {
        b.copy_rows(&mut [fork], &mut [&mut from], ROWS).unwrap();
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
    // One rewinds and reads something else: the others and its kept rows are unchanged.
    let keep = 9_999;
    b.own_rows(&mut [&mut forks[0]], keep).unwrap();
    put(&mut b, &mut forks[0], keep, 20_000, 9);
    assert!(rows(&mut b, &forks[0], 0..keep) == rows(&mut b, &from, 0..keep));
    assert!(rows(&mut b, &forks[0], keep..ROWS - 11_000) != rows(&mut b, &from, keep..ROWS - 11_000));
    // So does their source, from its start on.
    b.own_rows(&mut [&mut from], 0).unwrap();
    put(&mut b, &mut from, 0, 100, 7);
    for (fork, tail) in forks.iter().zip(&tails).skip(1) {
        assert!(rows(&mut b, fork, 0..ROWS) == whole && rows(&mut b, fork, ROWS..ROWS + 3000) == *tail);
    }
    // A short one in the place of a fork leaves what it had to the other.
    let [_, second, third] = &mut forks[..] else { panic!() };
    b.copy_rows(&mut [second], &mut [&mut from], 100).unwrap();
    assert!(rows(&mut b, second, 0..100) == rows(&mut b, &from, 0..100));
    assert!(rows(&mut b, third, 0..ROWS) == whole);
    drop((forks, from));
    assert_eq!(held(&b), 0);
    b.check_guards().unwrap();
}
