//! Keys and values in host memory and a pool of their blocks on the device: the same bits as with everything resident.

use sala_chat::backend::cuda::Cache;
use sala_chat::backend::{Group, Place, synthetic_value};
use sala_chat::lab::checks::{Check, Checks};
use sala_chat::lab::kernels::{operations, whole_model};

use super::*;

fn with(blocks: usize, staged_rows: usize) -> Cuda {
    let pool = Some(PoolSize { blocks, staged_rows });
    Cuda::emulated(
        library(),
        Options { pool, guards: Guards::On, prefill_rows: 640, most_bytes: Some(1 << 40), ..Options::default() },
    )
    .unwrap()
}

fn resident() -> Cuda {
    Cuda::emulated(library(), Options { guards: Guards::On, prefill_rows: 640, ..Options::default() }).unwrap()
}

fn spec() -> SparseSpec {
    SparseSpec { heads: 8, kv_heads: 2, local_blocks: 4, topk: 10, ..sparse() }
}

/// Sequences of one sparse layer, and everything that came out of them.
struct Story {
    b: Cuda,
    spec: SparseSpec,
    caches: Vec<Cache>,
    places: Vec<Place>,
    sel: <Cuda as Memory>::Selection,
    x: <Cuda as Memory>::Buf,
    o: <Cuda as Memory>::Buf,
    seed: u64,
    outputs: Vec<(Vec<f32>, Vec<Vec<u32>>)>,
    /// Before this pass keys and values leave the device.
    leave_at: Option<usize>,
}

const LIMIT: usize = 8192;

impl Story {
    fn new(mut b: Cuda, sequences: usize) -> Story {
        let spec = spec();
        let (mut caches, mut places) = (Vec::new(), Vec::new());
        for _ in 0..sequences {
            places.push(b.new_place().unwrap());
            caches.push(b.cache(&spec, LIMIT).unwrap());
        }
        let sel = b.selection(&spec, LIMIT).unwrap();
        let x = b.buf(spec.projection_width(), BufKind::Activation).unwrap();
        let o = b.buf(spec.heads * spec.head_dim, BufKind::Wide).unwrap();
        Story { b, spec, caches, places, sel, x, o, seed: 0, outputs: Vec::new(), leave_at: None }
    }

    /// As a conversation that finds the device full.
    fn leave(&mut self) {
        if self.leave_at != Some(self.outputs.len()) {
            return;
        }
        let mut model = Checkpoint::open("synthetic:tiny").unwrap().spec().clone();
        model.sparse = self.spec.clone();
        let before = self.b.memory();
        let mut sequences: Vec<Vec<&mut Cache>> = self.caches.iter_mut().map(|cache| vec![cache]).collect();
        let line = self.b.page_out(&model, LIMIT, &mut sequences).unwrap().unwrap();
        assert!(line.starts_with("8,192 tokens: ") && line.ends_with(" in memory"), "{line}");
        assert_eq!(self.b.page_out(&model, LIMIT, &mut sequences).unwrap(), None, "once");
        let now = self.b.memory();
        assert!(before.host == 0 && before.pool == 0 && now.pool > 0, "{before:?} {now:?}");
        let had_rows = !self.outputs.is_empty();
        assert_eq!((now.host > 0, now.state < before.state), (had_rows, had_rows), "{before:?} {now:?}");
    }

    fn fill(&mut self, rows: usize) {
        self.seed += 1;
        let n = (rows * self.spec.projection_width()) as u64;
        // Of few directions, so that far blocks are chosen again and again, and others now and then.
        let values: Vec<f32> = (0..n).map(|i| synthetic_value(self.seed % 7 + 1, i, 1.5)).collect();
        self.b.write(&mut self.x, &values).unwrap();
    }

    /// Reads rows of one sequence in short passes, so that concurrent tests share the emulated device.
    fn read(&mut self, of: usize, rows: usize) {
        (0..rows).step_by(128).for_each(|from| self.read_chunk(of, (rows - from).min(128)));
    }

    fn read_chunk(&mut self, of: usize, rows: usize) {
        self.leave();
        self.b.go_to(self.places[of]).unwrap();
        let pass = Pass::Prefill { rows };
        self.fill(rows);
        let Story { b, spec, caches, places, sel, x, o, .. } = self;
        b.reserve(&mut caches[of], places[of].position + rows).unwrap();
        b.set_tokens(&vec![0; rows]).unwrap();
        b.append_kv(&mut [&mut caches[of]], x, spec, pass).unwrap();
        b.select_blocks(sel, x, &[&caches[of]], spec, pass).unwrap();
        b.attend(o, x, sel, &[&caches[of]], spec, pass).unwrap();
        let out = b.read(o, rows).unwrap();
        b.advance(pass, rows).unwrap();
        places[of] = b.place();
        self.outputs.push((out, Vec::new()));
    }

    /// A pass of these rows of each sequence, of which as many are accepted.
    fn write(&mut self, groups: &[(usize, usize, usize)]) {
        self.leave();
        let all: usize = groups.iter().map(|g| g.1).sum();
        let pass = Pass::Verify { rows: all };
        self.fill(all);
        let Story { b, spec, caches, places, sel, x, o, .. } = self;
        for (of, rows, _) in groups {
            b.reserve(&mut caches[*of], places[*of].position + rows).unwrap();
        }
        b.go_to(places[groups[0].0]).unwrap();
        let key = if let [_] = groups {
            b.set_tokens(&vec![0; all]).unwrap();
            StepKey::Verify(all)
        } else {
            let of: Vec<Group> = groups.iter().map(|(of, rows, _)| Group { place: places[*of], rows: *rows }).collect();
            b.set_rows(&of, &vec![0; all]).unwrap();
            StepKey::VerifyMany(all)
        };
        let mut taken: Vec<&mut Cache> =
            caches.iter_mut().enumerate().filter(|(i, _)| groups.iter().any(|g| g.0 == *i)).map(|(_, c)| c).collect();
        b.bind_caches(0, &mut taken).unwrap();
        b.step(key, &mut |b| {
            b.append_kv(&mut taken, x, spec, pass)?;
            let caches: Vec<&Cache> = taken.iter().map(|c| &**c).collect();
            b.select_blocks(sel, x, &caches, spec, pass)?;
            b.attend(o, x, sel, &caches, spec, pass)
        })
        .unwrap();
        let out = b.read(o, all).unwrap();
        let mass = b.read_row_mass(sel, 0..all, LIMIT / 64).unwrap();
        b.clear_mass(sel, 0..all).unwrap();
        for (of, rows, accepted) in groups {
            places[*of] = places[*of].advanced(Pass::Verify { rows: *rows }, *accepted);
        }
        b.go_to(places[groups[0].0]).unwrap();
        self.outputs.push((out, mass));
    }

    fn rows(&mut self, of: usize) -> Vec<Vec<u8>> {
        let positions = 0..self.places[of].position;
        let rows = self.b.read_rows(&self.caches[of], positions).unwrap();
        rows.into_iter().map(|t| t.data.to_vec()).collect()
    }
}

/// One sequence: long reading, every number of rows, refused rows, reading in between, going back.
fn one(b: Cuda, leave_at: Option<usize>) -> Story {
    let mut s = Story { leave_at, ..Story::new(b, 1) };
    for rows in [448, 448, 200] {
        s.read(0, rows);
    }
    for rows in 1..=16 {
        s.write(&[(0, rows, rows / 2)]);
    }
    s.read(0, 130);
    for turn in 0..20 {
        s.write(&[(0, 1 + turn % 3, 1 + turn % 2)]);
    }
    // Other rows in the place of those that were there.
    s.places[0] = Place { position: 850, pending: 0, ..s.places[0] };
    s.b.own_rows(&mut [&mut s.caches[0]], 850).unwrap();
    for turn in 0..20 {
        s.write(&[(0, 1 + turn % 4, 1)]);
    }
    s.read(0, 100);
    s.write(&[(0, 2, 2)]);
    s
}

fn same(mut here: Story, there: &mut Story) {
    assert_eq!(here.outputs.len(), there.outputs.len());
    for (pass, (here, there)) in here.outputs.iter().zip(&there.outputs).enumerate() {
        assert!(here.0.iter().all(|v| v.is_finite()), "pass {pass}");
        assert!(here == there, "pass {pass} differs");
    }
    for of in 0..here.caches.len() {
        assert!(here.rows(of) == there.rows(of), "rows of sequence {of} differ");
    }
    here.b.check_guards().unwrap();
    there.b.check_guards().unwrap();
}

#[test]
fn a_layer_has_one_pool_whichever_sequence_is_first() {
    // Rows are read before anything is written, so the cache does not know its layer yet.
    let mut s = Story::new(with(11, 1024), 2);
    s.read(0, 128);
    let made = s.b.memory().pool;
    assert!(made > 0);
    s.write(&[(0, 1, 1)]);
    s.read(1, 64);
    assert_eq!(s.b.memory().pool, made);
    s.write(&[(1, 1, 1), (0, 2, 1)]);
    assert_eq!(s.b.memory().pool, made);
}

#[test]
fn a_paged_sequence_has_the_bits_of_a_resident_one() {
    // From a pool that holds next to nothing to one that holds everything, and from parts of one block to the whole context.
    let mut stays = one(resident(), None);
    for (blocks, staged_rows) in [(1, 1), (11, 1024), (200, 1 << 20)] {
        same(one(with(blocks, staged_rows), None), &mut stays);
    }
    // Before anything is read, in the middle of reading, between two graphs of the same step, and after a refused row.
    for leave_at in [0, 5, 20, stays.outputs.len() - 2] {
        same(one(resident(), Some(leave_at)), &mut stays);
    }
}

#[test]
fn recently_selected_blocks_stay_in_the_pool() {
    let mut s = Story::new(with(200, 1024), 1);
    for rows in [448, 448, 64] {
        s.read(0, rows);
    }
    let before = s.b.pool_counts().unwrap().unwrap();
    assert_eq!(before, Default::default(), "prefill passes do not use the pool");
    for _ in 0..40 {
        s.write(&[(0, 1, 1)]);
    }
    let first = s.b.pool_counts().unwrap().unwrap();
    assert_eq!(first.looked_up, 40 * 2 * 10);
    // With room for all, a block is fetched once.
    assert!(first.fetched <= 2 * 16 && first.in_place == 0, "{first:?}");
    for _ in 0..7 {
        s.write(&[(0, 1, 1)]);
    }
    let again = s.b.pool_counts().unwrap().unwrap().since(first);
    assert!(again.hit_rate() > 0.9, "{again:?}");
    assert_eq!(again.bytes, again.fetched * 2 * 64 * 128 * 2);
    // Too small for a row's blocks: the others are read where they are.
    let mut s = Story::new(with(4, 1024), 1);
    for rows in [448, 448] {
        s.read(0, rows);
    }
    s.write(&[(0, 1, 1)]);
    let counts = s.b.pool_counts().unwrap().unwrap();
    assert_eq!((counts.looked_up, counts.fetched, counts.in_place), (20, 8, 12));
}

/// Concurrent sequences, some in a pass and some not, one that leaves and one that joins.
fn several(b: Cuda, leave_at: Option<usize>) -> Story {
    let mut s = Story { leave_at, ..Story::new(b, 3) };
    for (of, rows) in [(0, 256), (1, 333), (0, 448), (2, 256), (2, 100), (1, 256)] {
        s.read(of, rows);
    }
    for turn in 0..5 {
        s.write(&[(0, 2, 1), (1, 1, 1), (2, 3, 2)]);
        s.write(&[(turn % 3, 1, 1)]);
        s.write(&[(0, 5, 4), (2, 6, 0)]);
    }
    // Another one in the place of the second: nothing of the one that went is found.
    s.b.go_to(s.places[1]).unwrap();
    s.caches[1] = s.b.cache(&s.spec, LIMIT).unwrap();
    s.places[1] = Place { position: 0, pending: 0, ..s.places[1] };
    s.read(1, 256);
    s.read(1, 300);
    // And a fork of the first in the place of the third.
    let position = s.places[0].position;
    let [first, _, third] = &mut s.caches[..] else { panic!() };
    s.b.copy_rows(&mut [third], &mut [first], position).unwrap();
    s.places[2] = Place { position, pending: 0, ..s.places[2] };
    for turn in 0..6 {
        s.write(&[(0, 2, 1), (1, 1, 1), (2, 3, 2)]);
        s.write(&[(turn % 3, 4, 3)]);
    }
    s
}

#[test]
fn concurrent_paged_sequences_match_resident_ones() {
    let mut stays = several(resident(), None);
    for (blocks, staged_rows) in [(7, 300), (60, 1024)] {
        same(several(with(blocks, staged_rows), None), &mut stays);
    }
    // One has forks and some have accepted rows that are not folded.
    for leave_at in [4, 19, stays.outputs.len() - 3] {
        same(several(resident(), Some(leave_at)), &mut stays);
    }
}

#[test]
fn rows_of_all_blocks_are_unchanged_next_to_scored_rows() {
    // Alone, no block is scored until the last passes: rows below 640 take all ten.
    let story = |shared: bool| {
        let mut s = Story::new(resident(), 2);
        s.read(0, 600);
        s.read(1, 700);
        for turn in 0..30 {
            let own = (0, 1 + turn % 3, 1 + turn % 3);
            if shared { s.write(&[own, (1, 2, 1)]) } else { s.write(&[own]) }
        }
        s.b.check_guards().unwrap();
        let width = s.spec.heads * s.spec.head_dim;
        let own = s.outputs.split_off(s.outputs.len() - 30).into_iter().enumerate();
        let own: Vec<Vec<f32>> = own.map(|(turn, (out, _))| out[..(1 + turn % 3) * width].to_vec()).collect();
        (own, s.rows(0), s.b.graphs())
    };
    let ((alone, rows, graphs), (together, rows_too, _)) = (story(false), story(true));
    assert!(alone == together && rows == rows_too);
    assert_eq!(graphs, 6, "for each number of rows one with scores and one without");
}

#[test]
fn every_operation_agrees_with_the_oracle_on_host_rows() {
    let mut checks = Checks::default();
    // Where keys and values lie is the same to every form of the weights.
    let extent = Extent { forms: &[], ..EXTENT };
    operations(&mut checks, &mut Cpu::new(), &mut paged(Guards::Off), &extent);
    let failed: Vec<_> = checks.failed().map(Check::line).collect();
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), checks.list.len(), failed.join("\n"));
}

#[test]
fn the_built_in_model_writes_the_same_text_from_host_memory() {
    let mut checks = Checks::default();
    whole_model(&mut checks, || Ok(paged(Guards::Off)), &PLAN);
    let failed: Vec<_> = checks.failed().map(Check::line).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_limit_decides_where_keys_and_values_lie() {
    const LONGEST: usize = 1 << 20;
    let spec = Checkpoint::open("synthetic:tiny").unwrap().spec().clone();
    let open = |mib: u64| {
        let most_bytes = Some(mib << 20);
        Cuda::emulated(library(), Options { most_bytes, prefill_rows: 256, ..Options::default() }).unwrap()
    };
    let held = |b: &mut Cuda| {
        let mut cache = b.cache(&spec.sparse, LONGEST).unwrap();
        b.reserve(&mut cache, 1000).unwrap();
        b.memory().host
    };
    let mut enough = open(7 << 10);
    enough.plan_context(&spec, LONGEST, true).unwrap();
    assert_eq!(held(&mut enough), 0);
    let mut little = open(1 << 10);
    little.plan_context(&spec, LONGEST, false).unwrap();
    let notes = little.notes().join("\n");
    assert!(notes.contains("1,048,576 tokens: ") && notes.ends_with(" in memory"), "{notes}");
    assert!(held(&mut little) > 0);
    let memory = little.memory();
    assert!(memory.total - memory.used < 1 << 30, "{memory:?}");
    // Too little for that too: what would do, and it does.
    let error = open(300).plan_context(&spec, LONGEST, true).unwrap_err().to_string();
    let (_, most) = error.split_once("--gpu-memory ").unwrap_or_else(|| panic!("{error}"));
    let mib: u64 = most.split_once("MiB would do").unwrap().0.parse().unwrap();
    assert!(mib > 300, "{error}");
    open(mib).plan_context(&spec, LONGEST, true).unwrap();
}

#[test]
fn rows_that_take_turns_have_the_same_memory() {
    use BufKind::{Activation, Wide};
    let mut b = Cuda::emulated(library(), Options { prefill_rows: 256, ..Options::default() }).unwrap();
    let before = b.memory().work;
    let mut groups = b.alternating_bufs(&[&[(512, Activation)], &[(384, Activation), (256, Wide)]]).unwrap();
    assert_eq!(b.memory().work - before, 256 * (384 * 2 + 256 * 4));
    let [mlp, mixer] = groups.as_mut_slice() else { panic!("two groups were asked for") };
    // Those of a group are adjacent and whole.
    let [x, o] = mixer.as_mut_slice() else { panic!("two buffers were asked for") };
    let values = |n: usize, at: f32| -> Vec<f32> { (0..n).map(|i| at + (i % 64) as f32).collect() };
    b.write(x, &values(256 * 384, 1.0)).unwrap();
    b.write(o, &values(256 * 256, 100.0)).unwrap();
    assert_eq!(b.read(x, 256).unwrap(), values(256 * 384, 1.0));
    assert_eq!(b.read(o, 256).unwrap(), values(256 * 256, 100.0));
    // The other group takes their place.
    b.write(&mut mlp[0], &values(256 * 512, 7.0)).unwrap();
    assert_eq!(b.read(&mlp[0], 256).unwrap(), values(256 * 512, 7.0));
    assert_ne!(b.read(x, 256).unwrap(), values(256 * 384, 1.0));
}
