//! What goes wrong in one sequence: it is told, and every other one says and keeps what it does alone.

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

fn ends(h: &Harness, said: &mut HashMap<u64, Said>, ids: &[u64]) {
    let mut left = ids.to_vec();
    while !left.is_empty() {
        let ended = h.hear(said);
        left.retain(|id| Some(*id) != ended);
    }
}

#[test]
fn a_panic_in_one_job_is_that_jobs_failure() {
    let h = Harness::start();
    let wishes: Vec<Wish> = (0..4).map(|i| Wish { tokens: 20, ..h.wish(i) }).collect();
    let alone: Vec<Said> = wishes.iter().map(|w| h.alone(w)).collect();
    // In a round of its own and in one of several.
    for beside in [0, 3] {
        let mut said = HashMap::new();
        for i in 0..beside {
            h.empty(1, SequenceId(i + 1));
            h.send(h.job(10 + u64::from(i), SequenceId(i + 1), &wishes[i as usize], &Cancel::default()));
        }
        h.empty(1, SequenceId(9));
        let Command::Run(mut job) = h.job(50, SequenceId(9), &wishes[3], &Cancel::default()) else { panic!() };
        let watching = Watching { watched: Watched::default(), in_thought: false, spent: 0 };
        job.generate.as_mut().unwrap().steering = Some(Steering(Arc::new(|| Box::new(Bomb(0))), watching));
        h.send(Command::Run(job));
        // What rests on it fails too, what does not is done.
        h.send(h.job(51, SequenceId(9), &wishes[0], &Cancel::default()));
        h.empty(52, SequenceId(9));
        h.send(h.job(53, SequenceId(9), &wishes[3], &Cancel::default()));
        let ids: Vec<u64> = (10..10 + u64::from(beside)).chain([50, 51, 53]).collect();
        ends(&h, &mut said, &ids);
        let fault = said[&50].fault.clone().unwrap();
        let text = fault.to_string();
        assert!(matches!(fault, EngineFault::Device(_)) && text.contains("internal error (boom)"), "{text}");
        assert!(said[&51].fault.is_some());
        same(&said[&53], &alone[3], "the same sequence afterwards");
        for i in 0..beside as usize {
            same(&said[&(10 + i as u64)], &alone[i], &format!("{i} beside it"));
        }
    }
}

#[test]
fn a_sequence_that_is_stopped_in_the_middle_of_a_pass_is_nothing_to_the_others() {
    let h = Harness::start();
    let wishes: Vec<Wish> = (0..4).map(|i| Wish { tokens: 20, spec: SpecMode::Off, ..h.wish(i) }).collect();
    let alone: Vec<Said> = wishes.iter().map(|w| h.alone(w)).collect();
    for stopped in 0..4u32 {
        let mut said = HashMap::new();
        for i in 0..4 {
            let cancel = Cancel::default();
            let Command::Run(mut job) = h.job(10 + u64::from(i), SequenceId(i), &wishes[i as usize], &cancel) else {
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
        ends(&h, &mut said, &[10, 11, 12, 13]);
        for (i, alone) in (0..4).zip(&alone) {
            let found = &said[&(10 + u64::from(i))];
            if i == stopped {
                let (tokens, read) = (found.tokens.len(), wishes[i as usize].prompt.len() as u64);
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
    let wishes: Vec<Wish> = (0..4).map(|i| Wish { tokens: 20, ..h.wish(i + 4) }).collect();
    let alone: Vec<Said> = wishes.iter().map(|w| h.alone(w)).collect();
    let marked = |kind: Fault, token: Token| {
        faults.arm(token, kind);
        let mut said = HashMap::new();
        let mut bad = wishes[3].clone();
        bad.prompt.insert(10, token);
        for i in 0..3 {
            h.empty(1, SequenceId(i + 1));
            h.send(h.job(10 + u64::from(i), SequenceId(i + 1), &wishes[i as usize], &Cancel::default()));
        }
        h.empty(1, MAIN);
        h.send(h.job(20, MAIN, &bad, &Cancel::default()));
        ends(&h, &mut said, &[10, 11, 12, 20]);
        for i in 0..3 {
            same(&said[&(10 + i)], &alone[i as usize], &format!("{i} beside {kind:?}"));
        }
        said.remove(&20).unwrap().fault.unwrap().to_string()
    };
    // Tokens that occur nowhere else.
    let said = |t: &Token| alone.iter().any(|said| said.tokens.contains(t));
    let asked = |t: &Token| wishes.iter().any(|wish| wish.prompt.contains(t));
    let rare = |n: u32| (3_000..).filter(|t| !said(t) && !asked(t)).nth(n as usize).unwrap();
    assert_eq!(marked(Fault::Error, rare(0)), "verify: a fault on purpose");
    assert!(marked(Fault::Panic, rare(1)).contains("internal error (a fault on purpose)"));
    assert_eq!(faults.left(), 0);
}

#[test]
fn a_common_pass_that_fails_is_told_to_all_that_were_in_it_and_to_nobody_else() {
    let faults = Faults::default();
    let h = Harness::on(Cpu::new().with_faults(faults.clone()), 20_000);
    let wishes: Vec<Wish> = [7, 5, 6].map(|i| Wish { tokens: 60, spec: SpecMode::Off, ..h.wish(i) }).into();
    // They write on, so that they do it together.
    let endless = |id: u64, sequence: SequenceId, wish: &Wish| {
        let mut command = h.job(id, sequence, wish, &Cancel::default());
        if let Command::Run(Job { generate: Some(generate), .. }) = &mut command {
            generate.stop.clear();
        }
        command
    };
    let alone = |wish: &Wish| {
        let mut said = HashMap::new();
        h.empty(1, MAIN);
        h.send(endless(2, MAIN, wish));
        ends(&h, &mut said, &[2]);
        said.remove(&2).unwrap()
    };
    let alone: Vec<Said> = wishes.iter().map(alone).collect();
    let long = Wish { prompt: h.question(&"The lamp is in the attic. ".repeat(700)), tokens: 0, ..h.wish(0) };
    let read = h.alone(&long);
    for kind in [Fault::Error, Fault::Panic] {
        let mut said = HashMap::new();
        h.empty(1, SequenceId(5));
        h.send(h.job(30, SequenceId(5), &long, &Cancel::default()));
        for (i, wish) in (0u32..).zip(&wishes) {
            h.empty(1, SequenceId(i + 1));
            h.send(endless(10 + u64::from(i), SequenceId(i + 1), wish));
        }
        // A token that comes in the first answer alone, late, and is not its last one.
        let ahead = &alone[0].tokens[25..alone[0].tokens.len() - 1];
        let elsewhere = |t: &Token| {
            let times = alone.iter().flat_map(|a| &a.tokens).chain(&long.prompt).filter(|other| *other == t).count();
            times > 1
        };
        faults.arm(*ahead.iter().rev().find(|t| !elsewhere(t)).unwrap(), kind);
        ends(&h, &mut said, &[10, 11, 12, 30]);
        let failed: Vec<u64> = (10..13).filter(|id| said[id].fault.is_some()).collect();
        assert!(failed.contains(&10), "{kind:?}: {:?}", said[&10].ended);
        for id in 10..13 {
            let alone = &alone[id as usize - 10];
            if failed.contains(&id) {
                // What was told until then stands.
                assert!(alone.tokens.starts_with(&said[&id].tokens));
            } else {
                same(&said[&id], alone, &format!("job {id} beside {kind:?}"));
            }
        }
        same(&said[&30], &read, "the document");
        assert_eq!(faults.left(), 0);
    }
    // And the engine goes on.
    let mut said = HashMap::new();
    h.empty(1, MAIN);
    h.send(endless(2, MAIN, &wishes[0]));
    ends(&h, &mut said, &[2]);
    same(&said[&2], &alone[0], "afterwards");
}

#[test]
fn a_device_that_is_lost_is_told_to_everybody_who_waits() {
    let faults = Faults::default();
    let h = Harness::on(Cpu::new().with_faults(faults.clone()), 20_000);
    let wishes: Vec<Wish> = (0..3).map(|i| Wish { tokens: 200, spec: SpecMode::Off, ..h.wish(i) }).collect();
    let mut said = HashMap::new();
    for (i, wish) in (0u32..).zip(&wishes) {
        h.send(h.job(10 + u64::from(i), SequenceId(i + 1), wish, &Cancel::default()));
        h.send(h.job(20 + u64::from(i), SequenceId(i + 1), wish, &Cancel::default()));
    }
    let token = h.question("What is 17 + 25?")[0];
    while said.get(&11).is_none_or(|s: &Said| s.tokens.is_empty()) {
        h.hear(&mut said);
    }
    faults.arm(token, Fault::Lost);
    h.send(h.job(40, SequenceId(7), &wishes[0], &Cancel::default()));
    let waiting: Vec<u64> =
        [10, 11, 12, 20, 21, 22, 40].into_iter().filter(|id| said.get(id).is_none_or(|s| s.ended.is_none())).collect();
    ends(&h, &mut said, &waiting);
    let fatal = waiting
        .iter()
        .filter(|id| matches!(said[id].fault, Some(EngineFault::Fatal { exit: Exit::NoDevice, .. })))
        .count();
    assert!(fatal >= 1, "{said:?}");
    for id in &waiting {
        assert!(said[id].fault.is_some() || said[id].ended.is_some(), "{id}");
    }
}
