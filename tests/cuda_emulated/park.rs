//! A parked engine closes its device: weights, states, graphs and page-locked memory are freed with it.

use std::time::{Duration, Instant};

use sala_chat::engine::protocol::{
    Cancel, Command, EngineEvent, EngineOptions, Generate, Job, Look, MAIN, ModelInfo, Sampling, SpecMode, Token,
};
use sala_chat::engine::{Engine, spawn_on};

use super::*;

const PATIENCE: Duration = Duration::from_secs(300);

fn model(engine: &Engine) -> ModelInfo {
    loop {
        match engine.events.recv_timeout(PATIENCE).unwrap() {
            EngineEvent::Ready(info) => return info,
            EngineEvent::Failed { fault, .. } => panic!("{fault}"),
            _ => {}
        }
    }
}

fn answer(engine: &Engine) -> Vec<Token> {
    let generate = Generate {
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: 3,
        stop: Vec::new(),
        spec: SpecMode::Off,
        steering: None,
        constraint: None,
        likely: None,
        look: Look::default(),
    };
    let (prompt, cancel) = ((10..40).collect(), Cancel::default());
    let job = Job { id: 1, sequence: MAIN, prompt, generate: Some(generate), score: None, export: true, cancel };
    engine.commands.send(Command::Run(job)).unwrap();
    let mut written = Vec::new();
    loop {
        match engine.events.recv_timeout(PATIENCE).unwrap() {
            EngineEvent::Tokens { tokens, .. } => written.extend(tokens),
            EngineEvent::Done { .. } => return written,
            EngineEvent::Failed { fault, .. } => panic!("{fault}"),
            _ => {}
        }
    }
}

#[test]
fn a_parked_engine_closes_its_device_and_opens_it_again() {
    let (watch, opened) = crossbeam_channel::unbounded();
    let open = move || {
        let cuda = device();
        watch.send(cuda.closes()).unwrap();
        Ok(cuda)
    };
    let engine = spawn_on(open, EngineOptions { context: Some(2_048), ..EngineOptions::default() }).unwrap();
    assert!(!model(&engine).parked);
    let first = answer(&engine);
    let closed = opened.try_recv().unwrap();
    assert!(!closed());
    engine.commands.send(Command::Park).unwrap();
    assert!(model(&engine).parked);
    // A thread that ends may hold the device for a moment longer.
    let until = Instant::now() + PATIENCE;
    while !closed() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert!(closed(), "something still holds the device");
    assert!(opened.try_recv().is_err());
    let restore =
        Command::Restore { id: 2, sequence: MAIN, keep: 0, rows: Vec::new(), end: None, history: Arc::default() };
    engine.commands.send(restore).unwrap();
    assert!(!model(&engine).parked);
    assert!(matches!(engine.events.recv_timeout(PATIENCE).unwrap(), EngineEvent::Restored { id: 2, .. }));
    assert_eq!(answer(&engine), first);
    engine.commands.send(Command::Shutdown).unwrap();
    engine.thread.join().unwrap();
    assert!(opened.try_recv().unwrap()());
}
