//! A parked engine holds nothing, receives commands, and returns to the same bits.

use std::sync::atomic::{AtomicUsize, Ordering};

use sala_chat::backend::BackendError;
use sala_chat::backend::cpu::Cpu;
use sala_chat::engine::protocol::ModelInfo;
use sala_chat::engine::spawn_on;

use super::*;

impl Harness {
    fn send(&self, command: Command) {
        self.engine.commands.send(command).unwrap();
    }

    /// The next description of the model; all else is dropped.
    fn model(&self) -> ModelInfo {
        loop {
            if let EngineEvent::Ready(info) = self.event() {
                return info;
            }
        }
    }

    fn park(&self) -> ModelInfo {
        self.send(Command::Park);
        self.model()
    }

    /// What the engine says of a job, whatever it loads before.
    fn fault(&self, job: Job) -> EngineFault {
        self.send(Command::Run(job));
        loop {
            if let EngineEvent::Failed { id: 7, fault } = self.event() {
                return fault;
            }
        }
    }

    fn job(&self, prompt: Vec<Token>) -> Job {
        let (generate, cancel) = (self.generate(SpecMode::Auto), Cancel::default());
        Job { id: 7, sequence: MAIN, prompt, generate, score: None, export: true, cancel }
    }
}

#[test]
fn a_parked_engine_returns_to_the_same_bits() {
    let h = Harness::start();
    let question = h.question("What is sala-chat?");
    let first = h.run(question.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    let image = first.image.unwrap();
    let mut history = question;
    history.extend(&first.tokens);
    let follow = h.question("What is 17 + 25?");
    let live = h.run(follow.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();

    let parked = h.park();
    assert!(parked.parked && parked.name == "demo", "{parked:?}");
    assert_eq!(parked.memory, Default::default());
    // The state is gone: it has to be restored, and the model returns for that by itself.
    assert_eq!(h.fault(h.job(follow.clone())), EngineFault::Evicted);
    h.restore(0, vec![image.rows.clone()], image.end.clone(), history.clone()).unwrap();
    let restored = h.run(follow.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(live.tokens, restored.tokens);
    let bits = bytes(&live.image.unwrap());
    assert!(bits == bytes(&restored.image.unwrap()));

    // A restore is the first command that a parked engine receives.
    assert!(h.park().parked);
    let rows = vec![Arc::new(image.rows.clone()) as Arc<dyn RowSource>];
    let history = Arc::new(history);
    h.send(Command::Restore { id: 9, sequence: MAIN, keep: 0, rows, end: image.end.clone(), history });
    let back = h.model();
    assert!(!back.parked && back.fingerprint == parked.fingerprint, "{back:?}");
    assert!(matches!(h.event(), EngineEvent::Restored { id: 9, .. }));
    let again = h.run(follow, h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert!(bits == bytes(&again.image.unwrap()));
}

#[test]
fn a_running_answer_ends_before_the_engine_parks() {
    let h = Harness::start();
    let question = h.question("What is sala-chat?");
    let alone = h.run(question.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    h.send(Command::Run(h.job(question)));
    h.send(Command::Park);
    let (mut tokens, mut notes) = (Vec::new(), Vec::new());
    loop {
        match h.event() {
            EngineEvent::Reading { .. } => {}
            EngineEvent::Note(text) => notes.push(text),
            EngineEvent::Tokens { tokens: more, .. } => tokens.extend(more),
            EngineEvent::Done { done, .. } => {
                assert_eq!((done.ended, &tokens), (Ended::Stop, &alone.tokens));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(notes, ["The model is parked when the running work has ended."]);
    assert!(matches!(h.event(), EngineEvent::Evicted { sequence: MAIN }));
    assert!(h.model().parked);
}

#[test]
fn parking_twice_and_returning_twice_change_nothing() {
    let h = Harness::start();
    h.send(Command::Unpark);
    assert!(!h.model().parked);
    for _ in 0..2 {
        assert!(h.park().parked);
        assert!(h.park().parked);
        h.send(Command::Release { sequence: MAIN });
        h.send(Command::MayEvict { sequence: SequenceId(3) });
        h.send(Command::Unpark);
        assert!(!h.model().parked);
        h.send(Command::Unpark);
        assert!(!h.model().parked);
    }
    let answer = h.run(h.question("What is 17 + 25?"), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(answer.ended, Ended::Stop);
    assert!(h.park().parked);
    h.send(Command::Shutdown);
    h.engine.thread.join().unwrap();
}

#[test]
fn an_idle_engine_parks_by_itself() {
    let park_after = Some(Duration::from_millis(30));
    let h = Harness::with(spawn(EngineOptions { park_after, ..options() }).unwrap());
    assert!(h.model().parked);
    h.send(Command::Run(h.job(h.question("What is 17 + 25?"))));
    assert!(!h.model().parked, "a job brings it back");
    while !matches!(h.event(), EngineEvent::Done { .. }) {}
    assert!(h.model().parked);
}

#[test]
fn without_memory_a_job_fails_and_a_request_to_return_waits() {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    // The second and the third time another program has the memory.
    let device = || match OPENED.fetch_add(1, Ordering::Relaxed) {
        1 | 2 => {
            let (what, advice) = ("weights".to_owned(), "close other programs".to_owned());
            Err(BackendError::Memory { what, needed: 2, free: 1, advice })
        }
        _ => Ok(Cpu::new()),
    };
    let h = Harness::with(spawn_on(device, options()).unwrap());
    assert!(h.park().parked);
    let fault = h.fault(h.job(h.question("What is 17 + 25?")));
    let EngineFault::Parked(why) = fault else { panic!("{fault:?}") };
    assert!(why.starts_with("the model is parked and cannot return yet: ") && why.contains("free"), "{why}");
    h.send(Command::Unpark);
    loop {
        match h.event() {
            EngineEvent::Loading { what, .. } if what.contains("cannot return yet") => break,
            EngineEvent::Loading { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(!h.model().parked);
    assert_eq!(OPENED.load(Ordering::Relaxed), 4);
}
