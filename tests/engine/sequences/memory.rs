//! Memory by need: what fits is computed before it is promised, idle sequences make room, and who finds none waits by name.

use std::sync::Arc;

use super::*;
use sala_chat::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowSource, RowsFault};

/// A short conversation of the built-in model takes this: its recurrent states, and a page of each array.
const SHORT: u64 = 819_200 + 3 * (2 * 512 + 128 + 32) * 1024;

fn short(h: &Harness, i: usize) -> Request {
    let ask = ["What is 17 + 25?", "What is sala-chat?", "Name three colours.", "Tell me of the sea."][i % 4];
    let long = "The lamp is in the attic. ".repeat(10 * i);
    Request { prompt: h.question(&format!("{long}{ask}")), seed: Some(i as u64), spec: SpecMode::Auto, tokens: 60 }
}

/// Of the memory that eight take, short as the answers of some may be.
const MISSING: u64 = 1 << 20;

/// The outputs of all eight, each in a sequence of its own; `after` is sent after each job.
fn eight(h: &Harness, requests: &[Request], after: impl Fn(SequenceId) -> Option<Command>) -> HashMap<u64, Output> {
    let mut outputs = HashMap::new();
    for (i, request) in (1u32..).zip(requests) {
        h.send(h.job(u64::from(i), SequenceId(i), request, &Cancel::default()));
        if let Some(command) = after(SequenceId(i)) {
            h.send(command);
        }
    }
    let mut left = requests.len();
    while left > 0 {
        left -= usize::from(h.hear(&mut outputs).is_some());
    }
    outputs
}

#[test]
fn exhausted_memory_makes_one_of_eight_wait_and_none_fail() {
    let free = Harness::start();
    let requests: Vec<Request> = (0..8).map(|i| short(&free, i)).collect();
    let alone: Vec<Output> = requests.iter().map(|w| free.alone(w)).collect();
    let h = Harness::on(Cpu::with_room(8 * SHORT - MISSING), 20_000);
    // Their holder can do without them when they are done.
    let outputs = eight(&h, &requests, |sequence| Some(Command::MayEvict { sequence }));
    for (i, alone) in (1u64..).zip(&alone) {
        same(&outputs[&i], alone, &format!("job {i}"));
    }
    let waited: Vec<&String> = (1..9).flat_map(|i| &outputs[&i].waited).collect();
    assert_eq!(waited.len(), 1, "{waited:?}");
    let what = waited[0];
    assert!(what.starts_with("waiting for memory: ") && what.contains(" are free; 7 others still at work"), "{what}");
    let evicted: Vec<u64> = outputs.keys().filter(|id| **id >= EVICTED).copied().collect();
    assert_eq!(evicted.len(), 1, "one gave its memory: {evicted:?}");
}

#[test]
fn a_job_waits_for_memory_about_to_be_released() {
    let free = Harness::start();
    let requests: Vec<Request> = (0..3).map(|i| short(&free, i)).collect();
    let alone: Vec<Output> = requests.iter().map(|w| free.alone(w)).collect();
    let h = Harness::on(Cpu::with_room(2 * SHORT), 20_000);
    let mut outputs = HashMap::new();
    for (i, request) in (1u32..).zip(&requests) {
        h.send(h.job(u64::from(i), SequenceId(i), request, &Cancel::default()));
    }
    let mut left = 3;
    while left > 0 {
        if let Some(id) = h.hear(&mut outputs) {
            left -= 1;
            h.send(Command::Release { sequence: SequenceId(id as u32) });
        }
    }
    for (i, alone) in (1u64..).zip(&alone) {
        same(&outputs[&i], alone, &format!("job {i}"));
    }
    assert_eq!((1..4).map(|i| outputs[&i].waited.len()).sum::<usize>(), 1);
}

#[test]
fn the_least_recently_used_is_evicted_and_restored_exactly() {
    let free = Harness::start();
    let (first, more) = (short(&free, 3), short(&free, 1));
    let then = {
        free.alone(&first);
        let mut outputs = HashMap::new();
        free.send(free.job(3, MAIN, &more, &Cancel::default()));
        while free.hear(&mut outputs) != Some(3) {}
        outputs.remove(&3).unwrap()
    };
    let h = Harness::on(Cpu::with_room(3 * SHORT), 20_000);
    let mut outputs = HashMap::new();
    let mut run = |id: u64, sequence: SequenceId, request: &Request| {
        h.send(h.job(id, sequence, request, &Cancel::default()));
        while h.hear(&mut outputs) != Some(id) {}
        (outputs.remove(&id).unwrap(), outputs.keys().filter(|id| **id >= EVICTED).copied().collect::<Vec<_>>())
    };
    let sequences = [1, 2, 3].map(SequenceId);
    let mut image = None;
    for (id, sequence) in (10..).zip(sequences) {
        let (done, evicted) = run(id, sequence, &first);
        assert_eq!((done.fault, evicted), (None, vec![]));
        image = done.image.or(image);
        h.send(Command::MayEvict { sequence });
    }
    // Restored by its next job: now 2 is the least recently used.
    run(20, sequences[0], &more);
    h.send(Command::MayEvict { sequence: sequences[0] });
    let (done, evicted) = run(21, SequenceId(4), &first);
    assert_eq!((done.fault, evicted), (None, vec![EVICTED + 2]));
    // Late commands fail, also for a fork, until a restore.
    for (id, command) in [
        (30, h.job(30, sequences[1], &more, &Cancel::default())),
        (31, Command::Fork { id: 31, from: sequences[1], to: SequenceId(4) }),
        (32, h.job(32, sequences[1], &more, &Cancel::default())),
    ] {
        h.send(command);
        let mut outputs = HashMap::new();
        while h.hear(&mut outputs) != Some(id) {}
        assert_eq!(outputs[&id].fault, Some(EngineFault::Evicted), "{id}");
    }
    let image = image.unwrap();
    let mut history = first.prompt.clone();
    history.extend(&free.alone(&first).tokens[..image.rows.rows as usize - first.prompt.len()]);
    let rows: Vec<Arc<dyn RowSource>> = vec![Arc::new(image.rows.clone())];
    let (end, history) = (image.end.clone(), Arc::new(history));
    h.send(Command::Restore { id: 40, sequence: sequences[1], keep: 0, rows, end, history });
    let mut outputs = HashMap::new();
    h.send(h.job(41, sequences[1], &more, &Cancel::default()));
    while h.hear(&mut outputs) != Some(41) {}
    same(&outputs[&41], &then, "behind a restore");
}

#[test]
fn a_job_that_can_never_fit_is_refused_at_once_with_numbers() {
    let free = Harness::start();
    let long = free.question(&"The lamp is in the attic. ".repeat(1500));
    let tokens = long.len();
    assert!(tokens > 4_096);
    let read = Request { prompt: long, seed: None, spec: SpecMode::Off, tokens: 0 };
    let request = short(&free, 0);
    let alone = free.alone(&request);
    let h = Harness::on(Cpu::with_room(3 * SHORT), 20_000);
    let mut outputs: HashMap<u64, Output> = HashMap::new();
    h.send(h.job(1, SequenceId(1), &request, &Cancel::default()));
    h.send(h.job(2, SequenceId(2), &read, &Cancel::default()));
    while !outputs.contains_key(&1) || outputs[&1].ended.is_none() || !outputs.contains_key(&2) {
        h.hear(&mut outputs);
    }
    let fault = outputs[&2].fault.clone().unwrap().to_string();
    assert!(fault.contains("memory for a context of") && fault.contains(" are free; "), "{fault}");
    same(&outputs[&1], &alone, "beside it");
    // A question that fits with a shorter answer than requested is answered as far as memory allows.
    let endless = Request { tokens: 19_000, ..request };
    h.send(h.job(3, MAIN, &endless, &Cancel::default()));
    h.send(Command::Release { sequence: SequenceId(1) });
    while h.hear(&mut outputs) != Some(3) {}
    assert_eq!((outputs[&3].fault.clone(), &outputs[&3].tokens), (None, &alone.tokens));
}

#[test]
fn rows_leave_the_device_before_any_job_is_refused() {
    let free = Harness::start();
    let long = free.question(&"The lamp is in the attic. ".repeat(500));
    let read = Request { prompt: long, seed: None, spec: SpecMode::Off, tokens: 12 };
    let request = short(&free, 0);
    let (alone, long_alone) = (free.alone(&request), free.alone(&read));
    let h = Harness::on(Cpu::with_room_until_paged(3 * SHORT), 20_000);
    let mut outputs: HashMap<u64, Output> = HashMap::new();
    // One that answers meanwhile, and one that may not be evicted.
    for (id, request) in [(1, &request), (2, &read), (3, &request)] {
        h.send(h.job(id, SequenceId(id as u32), request, &Cancel::default()));
    }
    let mut left = 3;
    while left > 0 {
        left -= usize::from(h.hear(&mut outputs).is_some());
    }
    for (id, alone) in [(1, &alone), (2, &long_alone), (3, &alone)] {
        same(&outputs[&id], alone, &format!("job {id}"));
    }
    let notes = &outputs[&EVERYBODY].waited;
    assert_eq!(notes, &["Keys and values move to this machine's memory. 20000 tokens."], "once is enough");
}

#[test]
fn a_job_that_waits_for_memory_can_be_stopped() {
    let free = Harness::start();
    let request = |tokens| Request { tokens, ..short(&free, 0) };
    let h = Harness::on(Cpu::with_room(SHORT), 20_000);
    let (mut outputs, cancel) = (HashMap::new(), Cancel::default());
    let steady = Request { prompt: h.question("Tell me of the sea."), seed: Some(1), spec: SpecMode::Off, tokens: 900 };
    h.send(h.job(1, SequenceId(1), &steady, &Cancel::default()));
    h.send(h.job(2, SequenceId(2), &request(20), &cancel));
    while outputs.get(&2).is_none_or(|s: &Output| s.waited.is_empty()) {
        assert_eq!(h.hear(&mut outputs), None, "{outputs:?}");
    }
    cancel.cancel();
    while outputs[&2].ended.is_none() && outputs[&2].fault.is_none() {
        h.hear(&mut outputs);
    }
    assert_eq!((outputs[&2].ended, outputs[&2].in_state), (Some(Ended::Cancelled), (0, 0)));
}

/// Rows of zeros that were never computed, from a position to another: a segment of that name.
#[derive(Debug)]
struct Zeros(u64, u64);

impl RowSource for Zeros {
    fn start(&self) -> u64 {
        self.0
    }
    fn rows(&self) -> u64 {
        self.1 - self.0
    }
    fn segment(&self) -> Option<[u8; 32]> {
        Some([(self.1 / 1_000) as u8; 32])
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        let below = |n: u64| match name.split_once('.') {
            Some(("k1", _)) => (n + 16).saturating_sub(32) / 16,
            Some(("k2", _)) => (n + 64).saturating_sub(128) / 64,
            _ => n,
        };
        let rows = (below(self.1) - below(self.0)) as usize;
        Some((Dtype::Bf16, vec![rows, 1, 128]))
    }
    fn fill(&self, _: &str, _: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        into.fill(0);
        Ok(())
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        let (dtype, shape) = self.array(name).ok_or_else(|| RowsFault::new("no such array"))?;
        let data = Arc::new(vec![0; shape.iter().product::<usize>() * dtype.size()]);
        Ok(ImageTensor { name: name.into(), dtype, shape, data: data.into() })
    }
}

/// Puts a path of zeros back that is cut at these positions.
fn zeros(id: u64, sequence: SequenceId, cuts: &[u64]) -> Command {
    let state = |layer: usize| ImageTensor {
        name: format!("state.{layer}"),
        dtype: Dtype::F32,
        shape: vec![2, 128, 128],
        data: vec![0; 2 * 128 * 128 * 4].into(),
    };
    let position = cuts.last().copied().unwrap_or(0);
    let end = Some(CheckpointImage { position, tensors: [0, 1, 3, 5, 7].map(state).into() });
    let history = Arc::new((0..position as u32).map(|i| 300 + i * 7919 % 997).collect());
    let starts = [0].iter().chain(cuts);
    let rows = starts.zip(cuts).map(|(from, to)| Arc::new(Zeros(*from, *to)) as Arc<dyn RowSource>).collect();
    Command::Restore { id, sequence, keep: 0, rows, end, history }
}

#[test]
fn a_fork_of_60_000_tokens_shares_their_rows() {
    shares_60_000_tokens(|i| Command::Fork { id: 100, from: MAIN, to: SequenceId(i) });
}

#[test]
fn places_along_60_000_tokens_share_their_rows() {
    // Each as it would be put back from the disk, whatever the order.
    shares_60_000_tokens(|i| zeros(100, SequenceId(i), &[20_000, 40_000, 60_000][..[0, 2, 1, 3][i as usize]]));
}

fn shares_60_000_tokens(another: impl Fn(u32) -> Command) {
    let h = Harness::on(Cpu::new(), 80_000);
    h.send(zeros(1, MAIN, &[20_000, 40_000, 60_000]));
    let request = Request { tokens: 1, ..short(&h, 0) };
    let mut outputs = HashMap::new();
    let (mut bytes, mut forks) = (Vec::new(), Vec::new());
    for i in 0..4 {
        if i > 0 {
            h.send(another(i));
            let ms = loop {
                match h.engine.events.recv_timeout(PATIENCE).unwrap() {
                    EngineEvent::Restored { id: 100, ms } => break ms,
                    EngineEvent::Failed { fault, .. } => panic!("{fault}"),
                    _ => {}
                }
            };
            forks.push(ms);
        }
        let id = 10 + u64::from(i);
        h.send(h.job(id, SequenceId(i), &request, &Cancel::default()));
        while h.hear(&mut outputs) != Some(id) {}
        assert_eq!(outputs[&id].fault, None);
        bytes.push(outputs[&id].state_bytes);
    }
    // Keys and values alone are 184 MB.
    assert!(bytes[0] > 180_000_000, "{bytes:?}");
    let most = bytes.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(most < 10_000_000, "{bytes:?}");
    // Milliseconds; the fastest, because other programs may take the processor meanwhile.
    assert!(forks.iter().any(|ms| *ms < 250.0), "{forks:?}");
    println!("each: {forks:.1?} ms, {} KB", most / 1000);
}
