//! One engine and several users, without sockets: the engine is the two ends of its channels.

use std::time::Duration;

use super::*;
use crate::core::Exit;
use crate::engine::protocol::{Ended, Job, JobDone, MAIN};

const PATIENCE: Duration = Duration::from_secs(20);

struct Engine {
    commands: Receiver<Command>,
    events: Sender<EngineEvent>,
}

fn start(reserved: usize, sequences: u32) -> (Multiplexer, Share, Engine) {
    let (to, commands) = bounded(64);
    let (events, from) = unbounded();
    let (multiplexer, share) = Multiplexer::start(to, from, reserved).unwrap();
    let engine = Engine { commands, events };
    let info = ModelInfo { max_sequences: sequences, fingerprint: "f".into(), ..ModelInfo::default() };
    engine.events.send(EngineEvent::Ready(info)).unwrap();
    assert!(matches!(next(&share.events), EngineEvent::Ready(_)));
    (multiplexer, share, engine)
}

fn next<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(PATIENCE).expect("nothing came")
}

fn job(id: u64, sequence: u32) -> Job {
    let (prompt, cancel) = (vec![1], Cancel::default());
    Job { id, sequence: SequenceId(sequence), prompt, generate: None, score: None, export: false, cancel }
}

fn done(id: u64) -> EngineEvent {
    let done = JobDone { ended: Ended::Read, prompt_in_state: 1, ..JobDone::default() };
    EngineEvent::Done { id, done: Box::new(done) }
}

impl Engine {
    fn run(&self) -> Job {
        match next(&self.commands) {
            Command::Run(job) => job,
            other => panic!("{other:?} instead of a job"),
        }
    }

    fn release(&self) -> SequenceId {
        match next(&self.commands) {
            Command::Release { sequence } => sequence,
            other => panic!("{other:?} instead of a release"),
        }
    }
}

fn failure(event: EngineEvent) -> (u64, String) {
    match event {
        EngineEvent::Failed { id, fault } => (id, fault.to_string()),
        other => panic!("{other:?} instead of a failure"),
    }
}

fn joined(multiplexer: &Multiplexer) -> (Slot, Receiver<EngineEvent>) {
    let (slot, events) = multiplexer.join().expect("a slot");
    assert!(matches!(next(&events), EngineEvent::Ready(_)));
    (slot, events)
}

#[test]
fn numbers_and_sequences_of_one_user_are_nothing_to_another() {
    let (multiplexer, share, engine) = start(2, 16);
    let (slot, events) = joined(&multiplexer);
    share.commands.send(Command::Run(job(7, 0))).unwrap();
    let first = engine.run();
    assert!(slot.command(Command::Run(job(7, 0))));
    let second = engine.run();
    assert_ne!((first.id, first.sequence), (second.id, second.sequence));
    assert_ne!(first.id, second.id);
    assert_ne!(first.sequence, second.sequence);
    engine.events.send(done(second.id)).unwrap();
    assert!(matches!(next(&events), EngineEvent::Done { id: 7, .. }));
    assert!(share.events.is_empty());
    engine.events.send(done(first.id)).unwrap();
    assert!(matches!(next(&share.events), EngineEvent::Done { id: 7, .. }));
    // A fork names two sequences of the terminal.
    assert!(slot.command(Command::Fork { id: 8, from: MAIN, to: SequenceId(3) }));
    match next(&engine.commands) {
        Command::Fork { from, to, .. } => assert!(from == second.sequence && to != from && to != first.sequence),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_leaves_takes_jobs_and_sequences_along_and_a_stop_is_the_jobs_own() {
    let (multiplexer, share, engine) = start(1, 3);
    let (slot, events) = joined(&multiplexer);
    assert!(slot.command(Command::Run(job(1, 0))));
    let running = engine.run();
    let (other, heard) = joined(&multiplexer);
    assert!(multiplexer.join().is_none(), "one sequence is the server's, one is promised to the second terminal");
    drop(slot);
    assert_eq!(engine.release(), running.sequence);
    assert!(running.cancel.is_cancelled());
    engine.events.send(done(running.id)).unwrap();
    assert!(events.recv_timeout(PATIENCE).is_err(), "it is told nothing more");
    assert!(other.command(Command::Run(job(5, 0))));
    let next_job = engine.run();
    assert!(!next_job.cancel.is_cancelled());
    engine.events.send(done(next_job.id)).unwrap();
    assert!(matches!(next(&heard), EngineEvent::Done { id: 5, .. }));
    drop(share);
}

#[test]
fn the_server_has_its_part_and_a_terminal_at_most_its_share() {
    let (multiplexer, share, engine) = start(4, 16);
    let (slot, events) = joined(&multiplexer);
    for sequence in 0..MOST as u32 {
        assert!(slot.command(Command::Run(job(u64::from(sequence), sequence))));
        engine.run();
    }
    assert!(slot.command(Command::Run(job(99, 9))));
    let (id, why) = failure(next(&events));
    assert_eq!(id, 99);
    assert!(why.contains("sala-chat serve is full"), "{why}");
    let mut others = Vec::new();
    while let Some(found) = multiplexer.join() {
        others.push(found);
    }
    assert_eq!(others.len(), TERMINALS - MOST);
    for sequence in 0..=10 {
        share.commands.send(Command::Run(job(sequence, sequence as u32))).unwrap();
    }
    (0..10).for_each(|_| drop(engine.run()));
    assert_eq!(failure(next(&share.events)).0, 10);
    // A released sequence is free for another user.
    assert!(slot.command(Command::Release { sequence: SequenceId(1) }));
    engine.release();
    assert!(multiplexer.join().is_some());
}

#[test]
fn a_server_that_needs_all_leaves_no_place() {
    let (multiplexer, share, engine) = start(16, 16);
    assert!(multiplexer.join().is_none());
    (0..16).for_each(|n| share.commands.send(Command::Run(job(u64::from(n), n))).unwrap());
    (0..16).for_each(|_| drop(engine.run()));
}

#[test]
fn at_the_end_running_answers_finish_before_the_engine_is_stopped() {
    let (multiplexer, share, engine) = start(1, 16);
    let (idle, silent) = joined(&multiplexer);
    let (slot, events) = joined(&multiplexer);
    assert!(slot.command(Command::Run(job(1, 0))));
    let running = engine.run();
    share.commands.send(Command::Shutdown).unwrap();
    assert!(silent.recv_timeout(PATIENCE).is_err(), "nobody waits for anything there");
    assert!(multiplexer.join().is_none());
    assert!(!running.cancel.is_cancelled());
    multiplexer.hurry();
    while !running.cancel.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.events.send(done(running.id)).unwrap();
    assert!(matches!(next(&events), EngineEvent::Done { id: 1, .. }));
    assert!(events.recv_timeout(PATIENCE).is_err());
    loop {
        match next(&engine.commands) {
            Command::Release { .. } => {}
            Command::Shutdown => break,
            other => panic!("{other:?}"),
        }
    }
    drop(idle);
}

#[test]
fn at_the_end_no_further_job_begins() {
    let (multiplexer, share, engine) = start(1, 16);
    let (slot, events) = joined(&multiplexer);
    assert!(slot.command(Command::Run(job(1, 0))));
    let running = engine.run();
    share.commands.send(Command::Shutdown).unwrap();
    while multiplexer.join().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(slot.command(Command::Run(job(2, 0))));
    engine.events.send(done(running.id)).unwrap();
    assert!(matches!(next(&events), EngineEvent::Done { id: 1, .. }));
    // The terminal has its answer, and sends the rest elsewhere.
    assert!(events.recv_timeout(PATIENCE).is_err());
    assert_eq!(engine.release(), running.sequence);
    assert!(matches!(next(&engine.commands), Command::Shutdown));
}

#[test]
fn a_job_after_the_deadline_is_stopped_as_well() {
    let (multiplexer, share, engine) = start(1, 16);
    let (slot, _events) = joined(&multiplexer);
    multiplexer.hurry();
    assert!(slot.command(Command::Run(job(1, 0))));
    assert!(engine.run().cancel.is_cancelled());
    drop(share);
}

#[test]
fn a_failed_engine_is_reported_to_all_clients() {
    let (multiplexer, share, engine) = start(1, 16);
    let (slot, events) = joined(&multiplexer);
    assert!(slot.command(Command::Run(job(1, 0))));
    let running = engine.run();
    let fault = EngineFault::Fatal { why: "the device is lost".into(), exit: Exit::NoDevice };
    engine.events.send(EngineEvent::Failed { id: running.id, fault }).unwrap();
    for from in [&events, &share.events] {
        assert_eq!(failure(next(from)), (0, "the device is lost".into()));
    }
    assert!(multiplexer.join().is_none());
    drop(engine);
    drop(share);
    assert!(events.recv_timeout(PATIENCE).is_err());
}

#[test]
fn who_joins_while_the_model_is_loaded_hears_how_far_it_is() {
    let (to, _commands) = bounded(64);
    let (engine, from) = unbounded();
    let (multiplexer, share) = Multiplexer::start(to, from, 1).unwrap();
    engine.send(EngineEvent::Loading { what: "weights".into(), done: 0.5 }).unwrap();
    assert!(matches!(next(&share.events), EngineEvent::Loading { .. }));
    let (_slot, events) = multiplexer.join().unwrap();
    assert!(matches!(next(&events), EngineEvent::Loading { done, .. } if done == 0.5));
    engine.send(EngineEvent::Ready(ModelInfo { max_sequences: 16, ..ModelInfo::default() })).unwrap();
    assert!(matches!(next(&events), EngineEvent::Ready(info) if info.max_sequences == MOST as u32));
    assert!(matches!(next(&share.events), EngineEvent::Ready(info) if info.max_sequences == 10));
}

#[test]
fn an_evicted_sequence_is_reported_to_its_owner() {
    let (multiplexer, share, engine) = start(1, 16);
    let (slot, events) = joined(&multiplexer);
    assert!(slot.command(Command::Run(job(1, 0))));
    share.commands.send(Command::Run(job(1, 4))).unwrap();
    (0..2).for_each(|_| drop(engine.run()));
    for sequence in [SequenceId(0), SequenceId(9)] {
        assert!(slot.command(Command::MayEvict { sequence }));
    }
    assert!(slot.command(Command::Fork { id: 2, from: MAIN, to: SequenceId(1) }));
    let held = match next(&engine.commands) {
        Command::MayEvict { sequence } => sequence,
        other => panic!("{other:?}"),
    };
    assert!(matches!(next(&engine.commands), Command::Fork { from, .. } if from == held), "the other one is nobody's");
    engine.events.send(EngineEvent::Evicted { sequence: held }).unwrap();
    assert!(matches!(next(&events), EngineEvent::Evicted { sequence: MAIN }));
    assert!(share.events.is_empty());
}
