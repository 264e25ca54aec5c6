//! Faults in one sequence: it reports them, and every other one answers and keeps what it does alone.

use std::sync::Arc;

use super::*;
use sala_chat::backend::cpu::faults::{Fault, Faults};
use sala_chat::core::Exit;
use sala_chat::engine::protocol::{Steer, Steered, Steering, Watched, Watching};

/// Panics at its third token.
struct Bomb(usize);

impl Steer for Bomb {
    fn drawn(&mut self, _: Token, _: bool) -> Steered {
        self.0 += 1;
        assert!(self.0 < 3, "boom");
        Steered::Take
    }
}

/// Stops its own job at its third token: between a pass over everybody's rows and the draws of the others.
struct Stops(usize, Cancel);

impl Steer for Stops {
    fn drawn(&mut self, _: Token, _: bool) -> Steered {
        self.0 += 1;
        if self.0 == 3 {
            self.1.cancel();
        }
        Steered::Take
    }
}

fn ends(h: &Harness, outputs: &mut HashMap<u64, Output>, ids: &[u64]) {
    let mut left = ids.to_vec();
    while !left.is_empty() {
        let ended = h.hear(outputs);
        left.retain(|id| Some(*id) != ended);
    }
}

#[test]
fn a_panic_in_one_job_is_that_jobs_failure() {
    let h = Harness::start();
    let requests: Vec<Request> = (0..4).map(|i| Request { tokens: 20, ..h.request(i) }).collect();
    let alone: Vec<Output> = requests.iter().map(|w| h.alone(w)).collect();
    // In a round of its own and in one of several.
    for others in [0, 3] {
        let mut outputs = HashMap::new();
        for i in 0..others {
            h.empty(1, SequenceId(i + 1));
            h.send(h.job(10 + u64::from(i), SequenceId(i + 1), &requests[i as usize], &Cancel::default()));
        }
        h.empty(1, SequenceId(9));
        let Command::Run(mut job) = h.job(50, SequenceId(9), &requests[3], &Cancel::default()) else { panic!() };
        let watching = Watching { watched: Watched::default(), in_thought: false, spent: 0 };
        job.generate.as_mut().unwrap().steering = Some(Steering(Arc::new(|| Box::new(Bomb(0))), watching));
        h.send(Command::Run(job));
        // What rests on it fails too, what does not is done.
        h.send(h.job(51, SequenceId(9), &requests[0], &Cancel::default()));
        h.empty(52, SequenceId(9));
        h.send(h.job(53, SequenceId(9), &requests[3], &Cancel::default()));
        let ids: Vec<u64> = (10..10 + u64::from(others)).chain([50, 51, 53]).collect();
        ends(&h, &mut outputs, &ids);
        let fault = outputs[&50].fault.clone().unwrap();
        let text = fault.to_string();
        assert!(matches!(fault, EngineFault::Device(_)) && text.contains("internal error (boom)"), "{text}");
        assert!(outputs[&51].fault.is_some());
        same(&outputs[&53], &alone[3], "the same sequence afterwards");
        for i in 0..others as usize {
            same(&outputs[&(10 + i as u64)], &alone[i], &format!("{i} beside it"));
        }
    }
}

#[test]
fn a_sequence_stopped_during_a_pass_does_not_affect_the_others() {
    let h = Harness::start();
    let requests: Vec<Request> = (0..4).map(|i| Request { tokens: 20, spec: SpecMode::Off, ..h.request(i) }).collect();
    let alone: Vec<Output> = requests.iter().map(|w| h.alone(w)).collect();
    for stopped in 0..4u32 {
        let mut outputs = HashMap::new();
        for i in 0..4 {
            let cancel = Cancel::default();
            let Command::Run(mut job) = h.job(10 + u64::from(i), SequenceId(i), &requests[i as usize], &cancel) else {
                panic!()
            };
            if i == stopped {
                let stops = move || Box::new(Stops(0, cancel.clone())) as Box<dyn Steer>;
                job.generate.as_mut().unwrap().steering = Some(Steering(
                    Arc::new(stops),
                    Watching { watched: Watched::default(), in_thought: false, spent: 0 },
                ));
            }
            h.empty(1, SequenceId(i));
            h.send(Command::Run(job));
        }
        ends(&h, &mut outputs, &[10, 11, 12, 13]);
        for (i, alone) in (0..4).zip(&alone) {
            let found = &outputs[&(10 + u64::from(i))];
            if i == stopped {
                let (tokens, read) = (found.tokens.len(), requests[i as usize].prompt.len() as u64);
                assert!(tokens >= 3 && alone.tokens.starts_with(&found.tokens), "{found:?}");
                assert_eq!(found.in_state, (read, tokens as u64 - 1), "the last one drawn is not read yet");
            } else {
                same(found, alone, &format!("{i} beside {stopped}"));
            }
        }
    }
}

#[test]
fn a_device_that_fails_in_one_prompt_is_nothing_to_the_others() {
    let faults = Faults::default();
    let h = Harness::on(Cpu::new().with_faults(faults.clone()), 20_000);
    let requests: Vec<Request> = (0..4).map(|i| Request { tokens: 20, ..h.request(i + 4) }).collect();
    let alone: Vec<Output> = requests.iter().map(|w| h.alone(w)).collect();
    let marked = |kind: Fault, token: Token| {
        faults.arm(token, kind);
        let mut outputs = HashMap::new();
        let mut bad = requests[3].clone();
        bad.prompt.insert(10, token);
        for i in 0..3 {
            h.empty(1, SequenceId(i + 1));
            h.send(h.job(10 + u64::from(i), SequenceId(i + 1), &requests[i as usize], &Cancel::default()));
        }
        h.empty(1, MAIN);
        h.send(h.job(20, MAIN, &bad, &Cancel::default()));
        ends(&h, &mut outputs, &[10, 11, 12, 20]);
        for i in 0..3 {
            same(&outputs[&(10 + i)], &alone[i as usize], &format!("{i} beside {kind:?}"));
        }
        outputs.remove(&20).unwrap().fault.unwrap().to_string()
    };
    // Tokens that occur nowhere else.
    let outputs = |t: &Token| alone.iter().any(|outputs| outputs.tokens.contains(t));
    let in_prompt = |t: &Token| requests.iter().any(|request| request.prompt.contains(t));
    let rare = |n: u32| (3_000..).filter(|t| !outputs(t) && !in_prompt(t)).nth(n as usize).unwrap();
    assert_eq!(marked(Fault::Error, rare(0)), "verify: a fault on purpose");
    assert!(marked(Fault::Panic, rare(1)).contains("internal error (a fault on purpose)"));
    assert_eq!(faults.left(), 0);
}

#[test]
fn a_failed_common_pass_is_reported_to_its_sequences_only() {
    let faults = Faults::default();
    let h = Harness::on(Cpu::new().with_faults(faults.clone()), 20_000);
    let requests: Vec<Request> = [7, 5, 6].map(|i| Request { tokens: 60, spec: SpecMode::Off, ..h.request(i) }).into();
    // They write on, so that they do it together.
    let endless = |id: u64, sequence: SequenceId, request: &Request| {
        let mut command = h.job(id, sequence, request, &Cancel::default());
        if let Command::Run(Job { generate: Some(generate), .. }) = &mut command {
            generate.stop.clear();
        }
        command
    };
    let alone = |request: &Request| {
        let mut outputs = HashMap::new();
        h.empty(1, MAIN);
        h.send(endless(2, MAIN, request));
        ends(&h, &mut outputs, &[2]);
        outputs.remove(&2).unwrap()
    };
    let alone: Vec<Output> = requests.iter().map(alone).collect();
    let long = Request { prompt: h.question(&"The lamp is in the attic. ".repeat(700)), tokens: 0, ..h.request(0) };
    let read = h.alone(&long);
    for kind in [Fault::Error, Fault::Panic] {
        let mut outputs = HashMap::new();
        h.empty(1, SequenceId(5));
        h.send(h.job(30, SequenceId(5), &long, &Cancel::default()));
        for (i, request) in (0u32..).zip(&requests) {
            h.empty(1, SequenceId(i + 1));
            h.send(endless(10 + u64::from(i), SequenceId(i + 1), request));
        }
        // A token that occurs only in the first answer, late, and is not its last one.
        let ahead = &alone[0].tokens[25..alone[0].tokens.len() - 1];
        let elsewhere = |t: &Token| {
            let times = alone.iter().flat_map(|a| &a.tokens).chain(&long.prompt).filter(|other| *other == t).count();
            times > 1
        };
        faults.arm(*ahead.iter().rev().find(|t| !elsewhere(t)).unwrap(), kind);
        ends(&h, &mut outputs, &[10, 11, 12, 30]);
        let failed: Vec<u64> = (10..13).filter(|id| outputs[id].fault.is_some()).collect();
        assert!(failed.contains(&10), "{kind:?}: {:?}", outputs[&10].ended);
        for id in 10..13 {
            let alone = &alone[id as usize - 10];
            if failed.contains(&id) {
                // Earlier output stays valid.
                assert!(alone.tokens.starts_with(&outputs[&id].tokens));
            } else {
                same(&outputs[&id], alone, &format!("job {id} beside {kind:?}"));
            }
        }
        same(&outputs[&30], &read, "the document");
        assert_eq!(faults.left(), 0);
    }
    // The engine continues.
    let mut outputs = HashMap::new();
    h.empty(1, MAIN);
    h.send(endless(2, MAIN, &requests[0]));
    ends(&h, &mut outputs, &[2]);
    same(&outputs[&2], &alone[0], "afterwards");
}

#[test]
fn a_lost_device_is_reported_to_every_waiting_job() {
    let faults = Faults::default();
    let h = Harness::on(Cpu::new().with_faults(faults.clone()), 20_000);
    let requests: Vec<Request> = (0..3).map(|i| Request { tokens: 200, spec: SpecMode::Off, ..h.request(i) }).collect();
    let mut outputs = HashMap::new();
    for (i, request) in (0u32..).zip(&requests) {
        h.send(h.job(10 + u64::from(i), SequenceId(i + 1), request, &Cancel::default()));
        h.send(h.job(20 + u64::from(i), SequenceId(i + 1), request, &Cancel::default()));
    }
    let token = h.question("What is 17 + 25?")[0];
    while outputs.get(&11).is_none_or(|s: &Output| s.tokens.is_empty()) {
        h.hear(&mut outputs);
    }
    faults.arm(token, Fault::Lost);
    h.send(h.job(40, SequenceId(7), &requests[0], &Cancel::default()));
    let waiting: Vec<u64> = [10, 11, 12, 20, 21, 22, 40]
        .into_iter()
        .filter(|id| outputs.get(id).is_none_or(|s| s.ended.is_none()))
        .collect();
    ends(&h, &mut outputs, &waiting);
    let fatal = waiting
        .iter()
        .filter(|id| matches!(outputs[id].fault, Some(EngineFault::Fatal { exit: Exit::NoDevice, .. })))
        .count();
    assert!(fatal >= 1, "{outputs:?}");
    for id in &waiting {
        assert!(outputs[id].fault.is_some() || outputs[id].ended.is_some(), "{id}");
    }
}
