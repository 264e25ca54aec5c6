//! Rows that another sequence has under the same name are had from it: the bits of reading them, and next to no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use sala_chat::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowSource, RowsFault, RowsImage};

/// Rows that count how many of their bytes were read.
#[derive(Debug)]
struct Counted {
    image: RowsImage,
    read: AtomicUsize,
    passed: AtomicBool,
}

impl RowSource for Counted {
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
        self.read.fetch_add(into.len(), Ordering::Relaxed);
        self.image.fill(name, at, into)
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        self.image.load(name)
    }
    fn segment(&self) -> Option<[u8; 32]> {
        self.image.segment()
    }
    fn pass_over(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }
}

/// A segment that was read.
#[derive(Clone)]
struct Read {
    tokens: Vec<Token>,
    image: StateImage,
}

impl Read {
    fn counted(&self) -> Arc<Counted> {
        Arc::new(Counted { image: self.image.rows.clone(), read: AtomicUsize::new(0), passed: AtomicBool::new(false) })
    }
}

/// What became of the sources of a restore: read, or passed over.
fn was_read(source: &Counted) -> bool {
    let (read, passed) = (source.read.load(Ordering::Relaxed) > 0, source.passed.load(Ordering::Relaxed));
    assert!(read != passed, "{read}, {passed}");
    read
}

impl Harness {
    fn done(&self, id: u64) -> Output {
        let mut outputs = HashMap::new();
        while self.hear(&mut outputs) != Some(id) {}
        outputs.remove(&id).unwrap_or_default()
    }

    /// Has a document read on top of what a sequence holds.
    fn read(&self, sequence: SequenceId, text: &str) -> Read {
        let request = Request { prompt: self.question(text), seed: None, spec: SpecMode::Off, tokens: 0 };
        self.send(self.job(7, sequence, &request, &Cancel::default()));
        Read { image: self.done(7).image.unwrap(), tokens: request.prompt }
    }

    /// Makes a sequence hold a path, of which it has the first `have` segments.
    fn restore(&self, sequence: SequenceId, path: &[&Read], have: usize) -> Vec<Arc<Counted>> {
        let sources: Vec<Arc<Counted>> = path[have..].iter().map(|read| read.counted()).collect();
        let rows = sources.iter().map(|source| Arc::clone(source) as Arc<dyn RowSource>).collect();
        let keep = path[..have].iter().map(|read| read.tokens.len() as u64).sum();
        let end: Option<CheckpointImage> = path.last().and_then(|read| read.image.end.clone());
        let history = Arc::new(path.iter().flat_map(|read| read.tokens.iter().copied()).collect());
        self.send(Command::Restore { id: 8, sequence, keep, rows, end, history });
        assert_eq!(self.done(8).fault, None);
        sources
    }

    fn ask(&self, sequence: SequenceId, seed: u64) -> Output {
        let request =
            Request { prompt: self.question("Where is it?"), seed: Some(seed), spec: SpecMode::Auto, tokens: 12 };
        self.send(self.job(9, sequence, &request, &Cancel::default()));
        self.done(9)
    }
}

fn document(of: &str, lines: usize) -> String {
    (0..lines).map(|n| format!("In room {n} there is a {of}, and in the next one {} more. ", n * 7 % 13)).collect()
}

/// Three consecutive documents, read in a sequence.
fn three(h: &Harness, sequence: SequenceId) -> [Read; 3] {
    ["lamp", "key", "box"].map(|of| h.read(sequence, &document(of, 60)))
}

const ONE: SequenceId = SequenceId(1);
const TWO: SequenceId = SequenceId(2);
const THREE: SequenceId = SequenceId(3);

#[test]
fn a_midway_position_shares_rows_of_the_longer_sequence() {
    let h = Harness::start();
    let [a, b, c] = three(&h, ONE);
    assert!(a.tokens.len() > 1_000, "{}", a.tokens.len());
    let names: Vec<_> = [&a, &b, &c].map(|read| read.image.rows.segment.unwrap()).into();
    assert!(names[0] != names[1] && names[1] != names[2]);
    // Read for themselves, without a lender.
    let plain = Harness::start();
    let alone = [&[&a][..], &[&a, &b], &[&a, &b, &c]].map(|path| {
        assert!(plain.restore(MAIN, path, 0).iter().all(|source| was_read(source)));
        plain.ask(MAIN, 3)
    });
    let mut before = h.ask(ONE, 3);
    same(&before, &alone[2], "the one that read them");
    for (sequence, path, alone) in [(TWO, &[&a][..], &alone[0]), (THREE, &[&a, &b], &alone[1])] {
        assert!(h.restore(sequence, path, 0).iter().all(|source| !was_read(source)));
        let output = h.ask(sequence, 3);
        same(&output, alone, "a place on the way");
        // States, and a page or two of each array.
        let more = output.state_bytes - before.state_bytes;
        assert!(more < 9 << 20, "{more} bytes");
        println!(
            "{} tokens of {} lent: {} KB",
            path.iter().map(|r| r.tokens.len()).sum::<usize>(),
            path.len(),
            more / 1000
        );
        before = output;
    }
    // From one place to the next in the same sequence.
    assert!(h.restore(TWO, &[&a, &b], 1).iter().all(|source| !was_read(source)));
    same(&h.ask(TWO, 3), &alone[1], "the next place");
}

#[test]
fn only_what_has_the_same_name_is_had_from_another() {
    let h = Harness::start();
    let [a, b, _] = three(&h, ONE);
    let plain = Harness::start();
    plain.restore(MAIN, &[&a], 0);
    let other = plain.read(MAIN, &document("lamp", 70));
    let alone = plain.ask(MAIN, 5);
    // The same document, followed by another one.
    let sources = h.restore(TWO, &[&a, &other], 0);
    assert_eq!(sources.iter().map(|source| was_read(source)).collect::<Vec<_>>(), [false, true]);
    same(&h.ask(TWO, 5), &alone, "another document");
    // Rows without a name are read.
    let mut nameless = b.clone();
    nameless.image.rows.segment = None;
    let sources = h.restore(THREE, &[&a, &nameless], 0);
    assert_eq!(sources.iter().map(|source| was_read(source)).collect::<Vec<_>>(), [false, true]);
    // Where the one that had them has gone back, and in its place read something else, they are read.
    for sequence in [TWO, THREE] {
        h.send(Command::Release { sequence });
    }
    h.restore(ONE, &[&a], 1);
    h.read(ONE, &document("ship", 60));
    let sources = h.restore(TWO, &[&a, &b], 0);
    assert_eq!(sources.iter().map(|source| was_read(source)).collect::<Vec<_>>(), [false, true]);
    h.empty(8, ONE);
    h.done(8);
    h.send(Command::Release { sequence: TWO });
    assert!(h.restore(THREE, &[&a, &b], 0).iter().all(|source| was_read(source)));
}

#[test]
fn lender_and_borrower_are_independent() {
    let plain = Harness::start();
    let [a, b, c] = three(&plain, MAIN);
    let on = plain.ask(MAIN, 1);
    plain.restore(MAIN, &[&a, &b], 0);
    let alone = [1, 2].map(|seed| plain.ask(MAIN, seed));
    let h = Harness::start();
    let borrow = |sequence| {
        assert!(h.restore(sequence, &[&a, &b], 0).iter().all(|source| !was_read(source)));
        same(&h.ask(sequence, 1), &alone[0], "before");
    };
    let after = |sequence, what: &str| same(&h.ask(sequence, 2), &alone[1], what);
    three(&h, ONE);
    borrow(TWO);
    // The lender continues, rewinds and reads something else, is emptied, is gone.
    same(&h.ask(ONE, 1), &on, "the lender goes on");
    borrow(THREE);
    after(TWO, "the lender went on");
    h.restore(ONE, &[&a], 1);
    h.read(ONE, &document("ship", 60));
    after(THREE, "the lender went back");
    borrow(TWO);
    h.empty(8, ONE);
    h.done(8);
    after(TWO, "the lender is empty");
    // From one that has borrowed itself.
    h.restore(ONE, &[&a, &b, &c], 0);
    h.send(Command::Release { sequence: TWO });
    h.send(Command::Release { sequence: THREE });
    borrow(TWO);
    h.send(Command::Release { sequence: ONE });
    after(TWO, "the lender is gone");
    // The other way round: the borrower reads something else midway, and is dropped.
    let h = Harness::start();
    three(&h, ONE);
    h.restore(TWO, &[&a, &b], 0);
    h.restore(TWO, &[&a], 1);
    h.read(TWO, &document("ship", 80));
    h.restore(THREE, &[&a, &b, &c], 0);
    h.empty(8, THREE);
    h.done(8);
    h.read(THREE, &document("ship", 80));
    h.send(Command::Release { sequence: TWO });
    same(&h.ask(ONE, 1), &on, "the borrowers read something else");
}

#[test]
fn a_fork_and_an_evicted_one_lend_and_are_lent() {
    let plain = Harness::start();
    let [a, b, c] = three(&plain, MAIN);
    plain.restore(MAIN, &[&a, &b], 0);
    let alone = plain.ask(MAIN, 4);
    // Room for a short one more, but not for these rows a second time.
    let held = plain.ask(MAIN, 4).state_bytes;
    let h = Harness::on(Cpu::with_room(held + held / 2), 20_000);
    h.read(ONE, &document("lamp", 60));
    h.read(ONE, &document("key", 60));
    h.send(Command::MayEvict { sequence: ONE });
    let sources = h.restore(TWO, &[&a, &b], 0);
    assert!(sources.iter().all(|source| !was_read(source)), "nobody was evicted for what is shared");
    same(&h.ask(TWO, 4), &alone, "in little room");
    // The lender is evicted: the common rows stay.
    h.send(Command::MayEvict { sequence: ONE });
    let long = Request { prompt: h.question(&document("ship", 55)), seed: None, spec: SpecMode::Off, tokens: 0 };
    h.send(h.job(20, THREE, &long, &Cancel::default()));
    h.send(Command::Release { sequence: THREE });
    h.done(20);
    let sources = h.restore(TWO, &[&a, &b], 1);
    assert_eq!(sources.len(), 1);
    was_read(&sources[0]);
    same(&h.ask(TWO, 4), &alone, "after an eviction");
    // A fork knows the names of its rows.
    let h = Harness::start();
    h.restore(ONE, &[&a, &b, &c], 0);
    h.send(Command::Fork { id: 30, from: ONE, to: TWO });
    h.done(30);
    h.empty(8, ONE);
    h.done(8);
    assert!(h.restore(THREE, &[&a, &b], 0).iter().all(|source| !was_read(source)));
    same(&h.ask(THREE, 4), &alone, "from a fork");
}

#[test]
fn every_path_answers_as_alone_in_any_order() {
    // Two documents after one, and one after each.
    let plain = Harness::start();
    let a = plain.read(MAIN, &document("lamp", 70));
    let b = plain.read(MAIN, &document("key", 60));
    let c = plain.read(MAIN, &document("box", 50));
    plain.restore(MAIN, &[&a], 0);
    let d = plain.read(MAIN, &document("ship", 60));
    let e = plain.read(MAIN, &document("sail", 60));
    let paths: [&[&Read]; 5] = [&[&a], &[&a, &b], &[&a, &b, &c], &[&a, &d], &[&a, &d, &e]];
    let alone: Vec<[Output; 2]> = paths
        .iter()
        .map(|path| {
            plain.restore(MAIN, path, 0);
            let first = plain.ask(MAIN, 1);
            [first, plain.ask(MAIN, 2)]
        })
        .collect();
    let h = Harness::start();
    // What each sequence holds: a path, and the number of questions after it.
    let mut holds: HashMap<u32, (usize, usize)> = HashMap::new();
    let (mut dice, mut lent, mut read) = (Dice(11), 0, 0);
    for step in 0..70 {
        let of = 1 + dice.below(5) as u32;
        let sequence = SequenceId(of);
        match (dice.below(6), holds.get(&of).copied()) {
            (0, _) => {
                h.send(Command::Release { sequence });
                holds.remove(&of);
            }
            (1, Some((path, questions @ (0 | 1)))) => {
                let output = h.ask(sequence, 1 + questions as u64);
                same(&output, &alone[path][questions], &format!("step {step}, path {path}"));
                holds.insert(of, (path, questions + 1));
            }
            (2, Some((path, 0))) => {
                let to = SequenceId(1 + (of + dice.below(4) as u32) % 5);
                h.send(Command::Fork { id: 30, from: sequence, to });
                h.done(30);
                holds.insert(to.0, (path, 0));
            }
            (_, held) => {
                let path = dice.below(5) as usize;
                let mine = held.map_or(&[][..], |(path, _)| paths[path]);
                let common = mine.iter().zip(paths[path]).take_while(|(a, b)| std::ptr::eq(**a, **b)).count();
                let have = common.min(dice.below(4) as usize);
                for source in h.restore(sequence, paths[path], have) {
                    *(if was_read(&source) { &mut read } else { &mut lent }) += 1;
                }
                let questions = dice.below(2) as usize;
                if questions > 0 {
                    let output = h.ask(sequence, 1);
                    same(&output, &alone[path][0], &format!("step {step}, path {path} anew"));
                }
                holds.insert(of, (path, questions));
            }
        }
    }
    assert!(lent > 20 && read > 2, "{lent} were lent, {read} read");
}
