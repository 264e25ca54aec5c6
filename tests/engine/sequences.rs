//! Many concurrent sequences: each writes the same tokens and leaves the same state as alone.

mod faults;
mod memory;
mod rates;
mod sharing;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sala_chat::backend::cpu::Cpu;
use sala_chat::engine::protocol::{
    Cancel, Command, DeviceChoice, Ended, EngineEvent, EngineFault, EngineOptions, Generate, Job, Look, MAIN, Sampling,
    SequenceId, SpecMode, StateImage, Token,
};
use sala_chat::engine::{Engine, spawn, spawn_on};
use sala_chat::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use sala_chat::runtime::protocol::ThinkMode;
use sala_chat::text::TextModel;
use sala_chat::text::template::{ChatMessage, ChatRole, RenderOptions};

/// Added to a sequence's number: the key for the event that it was evicted.
const EVICTED: u64 = 1 << 40;
/// The key for notes to all sequences.
const EVERYBODY: u64 = 1 << 41;
const PATIENCE: Duration = Duration::from_secs(120);

struct Harness {
    engine: Engine,
    text: TextModel,
    stop: Vec<Token>,
}

/// One request to a sequence.
#[derive(Clone)]
struct Request {
    prompt: Vec<Token>,
    seed: Option<u64>,
    spec: SpecMode,
    tokens: u64,
}

/// What came of it.
#[derive(Debug, Default)]
struct Output {
    tokens: Vec<Token>,
    ended: Option<Ended>,
    fault: Option<EngineFault>,
    in_state: (u64, u64),
    bytes: Vec<(String, Vec<u8>)>,
    image: Option<StateImage>,
    /// What it waited for.
    waited: Vec<String>,
    /// Bytes of all states when it was done.
    state_bytes: u64,
}

fn bytes(image: &StateImage) -> Vec<(String, Vec<u8>)> {
    let end = image.end.iter().flat_map(|end| &end.tensors);
    let tensors = image.rows.tensors.iter().chain(end).filter(|t| !t.name.starts_with("draft."));
    tensors.map(|t| (t.name.clone(), t.data.to_vec())).collect()
}

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn options(context: u64) -> EngineOptions {
    EngineOptions { device: DeviceChoice::Cpu, context: Some(context), ..EngineOptions::default() }
}

impl Harness {
    fn start() -> Harness {
        Harness::with(spawn(options(20_000)).unwrap())
    }

    fn on(device: Cpu, context: u64) -> Harness {
        let mut device = Some(device);
        Harness::with(spawn_on(move || Ok(device.take().unwrap()), options(context)).unwrap())
    }

    fn with(engine: Engine) -> Harness {
        let text =
            TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap();
        let stop = text.tokenizer.stop_ids(&[2, 4]);
        let harness = Harness { engine, text, stop };
        loop {
            match harness.engine.events.recv_timeout(PATIENCE).unwrap() {
                EngineEvent::Ready(info) => {
                    assert_eq!(info.max_sequences, 16);
                    return harness;
                }
                EngineEvent::Loading { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn question(&self, text: &str) -> Vec<Token> {
        let messages = [ChatMessage::new(ChatRole::User, text)];
        let prompt = self.text.template.render(&messages, &RenderOptions::prompt(ThinkMode::Auto)).unwrap();
        self.text.tokenizer.encode_prompt(&prompt).unwrap()
    }

    /// Prompts of 20 to 2,000 tokens, greedy and sampled, with and without drafts.
    fn request(&self, i: usize) -> Request {
        let ask = ["What is 17 + 25?", "What is sala-chat?", "Name three colours.", "Tell me of the sea."][i % 4];
        let long = "The lamp is in the attic, the keys are in the blue box. ".repeat([0, 3, 40, 120][i / 4 % 4]);
        Request {
            prompt: self.question(&format!("{long}{ask}")),
            seed: (i % 3 == 1).then_some(i as u64),
            spec: [SpecMode::Auto, SpecMode::Off, SpecMode::On, SpecMode::Depth(3)][(i + i / 4) % 4],
            tokens: 10 + (i as u64 * 7) % 30,
        }
    }

    fn job(&self, id: u64, sequence: SequenceId, request: &Request, cancel: &Cancel) -> Command {
        let sampling = match request.seed {
            None => Sampling { temperature: 0.0, ..Sampling::default() },
            Some(seed) => Sampling { temperature: 0.9, seed, ..Sampling::default() },
        };
        let generate = Generate {
            sampling,
            max_tokens: request.tokens,
            stop: self.stop.clone(),
            spec: request.spec,
            steering: None,
            constraint: None,
            likely: None,
            look: Look::default(),
        };
        let generate = (request.tokens > 0).then_some(generate);
        let (prompt, cancel) = (request.prompt.clone(), cancel.clone());
        Command::Run(Job { id, sequence, prompt, generate, score: None, export: true, cancel })
    }

    fn send(&self, command: Command) {
        self.engine.commands.send(command).unwrap();
    }

    fn empty(&self, id: u64, sequence: SequenceId) {
        let history = Default::default();
        self.send(Command::Restore { id, sequence, keep: 0, rows: Vec::new(), end: None, history });
    }

    /// Takes the next event in; gives the number of a job or restore that ended.
    fn hear(&self, outputs: &mut HashMap<u64, Output>) -> Option<u64> {
        match self.engine.events.recv_timeout(PATIENCE).unwrap() {
            EngineEvent::Reading { .. } => None,
            EngineEvent::Restored { id, .. } => Some(id),
            EngineEvent::Tokens { id, tokens, .. } => {
                outputs.entry(id).or_default().tokens.extend(tokens);
                None
            }
            EngineEvent::Done { id, done } => {
                let s = outputs.entry(id).or_default();
                (s.ended, s.in_state) = (Some(done.ended), (done.prompt_in_state, done.generated_in_state));
                s.bytes = done.image.iter().flat_map(bytes).collect();
                (s.image, s.state_bytes) = (done.image, done.memory.state);
                Some(id)
            }
            EngineEvent::Waiting { id, what } => {
                outputs.entry(id).or_default().waited.push(what);
                None
            }
            EngineEvent::Note(what) => {
                outputs.entry(EVERYBODY).or_default().waited.push(what);
                None
            }
            EngineEvent::Evicted { sequence } => {
                outputs.entry(EVICTED + u64::from(sequence.0)).or_default();
                None
            }
            EngineEvent::Failed { id, fault } => {
                outputs.entry(id).or_default().fault = Some(fault);
                Some(id)
            }
            other => panic!("{other:?}"),
        }
    }

    fn alone(&self, request: &Request) -> Output {
        let mut outputs = HashMap::new();
        self.empty(1, MAIN);
        self.send(self.job(2, MAIN, request, &Cancel::default()));
        while self.hear(&mut outputs) != Some(2) {}
        outputs.remove(&2).unwrap()
    }
}

fn same(together: &Output, alone: &Output, what: &str) {
    assert_eq!(together.fault, None, "{what}");
    assert_eq!(
        (&together.tokens, together.ended, together.in_state),
        (&alone.tokens, alone.ended, alone.in_state),
        "{what}"
    );
    assert!(together.bytes == alone.bytes, "{what}: another state");
}

#[test]
fn sixteen_changing_sequences_answer_as_each_alone() {
    let h = Harness::start();
    let requests: Vec<Request> = (0..20).map(|i| h.request(i)).collect();
    let alone: Vec<Output> = requests.iter().map(|w| h.alone(w)).collect();
    assert!(alone.iter().all(|s| s.ended.is_some() && !s.tokens.is_empty()));
    for most in [3u32, 16] {
        let mut dice = Dice(u64::from(most));
        let (mut outputs, mut running) = (HashMap::new(), HashMap::new());
        let mut free: VecDeque<SequenceId> = (0..most).map(SequenceId).collect();
        // Some are sent twice and stopped midway.
        let mut waiting: VecDeque<(usize, bool)> = (0..requests.len()).flat_map(|i| [(i, false), (i, true)]).collect();
        waiting.retain(|(i, stopped)| !stopped || i % 5 == 0);
        let mut ids = 100u64;
        while !waiting.is_empty() || !running.is_empty() {
            // They arrive in bursts.
            let mut burst = 1 + dice.below(4);
            while burst > 0 && !free.is_empty() && !waiting.is_empty() {
                burst -= 1;
                let (Some(sequence), Some((request, stopped))) = (free.pop_front(), waiting.pop_front()) else { break };
                let cancel = Cancel::default();
                h.empty(1, sequence);
                h.send(h.job(ids, sequence, &requests[request], &cancel));
                running.insert(ids, (sequence, request, stopped.then_some((cancel, dice.below(8)))));
                ids += 1;
            }
            let ended = h.hear(&mut outputs);
            for (id, (_, _, stop)) in &running {
                if let (Some((cancel, after)), Some(s)) = (stop, outputs.get(id))
                    && s.tokens.len() as u64 > *after
                {
                    cancel.cancel();
                }
            }
            let Some((id, (sequence, request, stop))) = ended.and_then(|id| running.remove_entry(&id)) else {
                continue;
            };
            let found = outputs.remove(&id).unwrap();
            let what = format!("{most} sequences, wish {request}");
            match (stop, found.ended) {
                (Some(_), Some(Ended::Cancelled)) => {
                    // The tokens are the beginning, and the state agrees with them.
                    assert!(alone[request].tokens.starts_with(&found.tokens), "{what}");
                    assert!(found.in_state.1 <= found.tokens.len() as u64, "{what}");
                }
                _ => same(&found, &alone[request], &what),
            }
            if dice.below(3) == 0 && sequence != MAIN {
                h.send(Command::Release { sequence });
            }
            free.push_back(sequence);
        }
    }
}

#[test]
fn forks_of_one_text_go_on_as_if_each_had_read_it() {
    let h = Harness::start();
    let document = h.question(&"The lamp is in the attic, the keys are in the blue box. ".repeat(60));
    let read = Request { prompt: document, seed: None, spec: SpecMode::Auto, tokens: 0 };
    let request =
        |seed: u64, prompt: Vec<Token>| Request { prompt, seed: Some(seed), spec: SpecMode::Auto, tokens: 25 };
    let ask = h.question("Tell me a story.");
    // Without another word, and with a question.
    for prompt in [Vec::new(), ask] {
        let seeds = [3, 4, 5, 6];
        let alone: Vec<Output> = seeds
            .iter()
            .map(|seed| {
                h.alone(&read);
                let mut outputs = HashMap::new();
                h.send(h.job(3, MAIN, &request(*seed, prompt.clone()), &Cancel::default()));
                while h.hear(&mut outputs) != Some(3) {}
                outputs.remove(&3).unwrap()
            })
            .collect();
        let mut outputs = HashMap::new();
        // All at once: the fork waits for both earlier jobs, and no sequence writes before it.
        h.empty(1, MAIN);
        h.send(h.job(2, MAIN, &read, &Cancel::default()));
        for i in 1..4 {
            h.send(Command::Fork { id: 20 + u64::from(i), from: MAIN, to: SequenceId(i) });
        }
        for (i, seed) in (0..).zip(seeds) {
            h.send(h.job(30 + u64::from(i), SequenceId(i), &request(seed, prompt.clone()), &Cancel::default()));
        }
        let mut left = 4;
        while left > 0 {
            left -= usize::from(h.hear(&mut outputs).is_some_and(|id| id >= 30));
        }
        for (i, alone) in (0u64..).zip(&alone) {
            same(&outputs[&(30 + i)], alone, &format!("fork {i}"));
        }
        assert!(outputs.values().filter(|s| s.tokens == outputs[&30].tokens).count() < 4, "seeds make a difference");
    }
}

#[test]
fn a_failure_in_one_sequence_does_not_affect_the_others() {
    let h = Harness::start();
    let good = h.request(9);
    let alone = h.alone(&good);
    let bad = Request { prompt: vec![1, 99_999], ..good.clone() };
    let (two, three, four) = (SequenceId(2), SequenceId(3), SequenceId(4));
    let mut outputs = HashMap::new();
    h.empty(1, two);
    h.send(h.job(10, two, &good, &Cancel::default()));
    // A job that fails, one that rests on it, a fork of that and what rests on the fork.
    h.send(h.job(20, three, &bad, &Cancel::default()));
    h.send(h.job(21, three, &good, &Cancel::default()));
    h.send(Command::Fork { id: 22, from: three, to: four });
    h.send(h.job(23, four, &good, &Cancel::default()));
    // What does not look back is done.
    h.empty(24, three);
    h.send(h.job(25, three, &good, &Cancel::default()));
    h.empty(26, four);
    h.send(h.job(27, four, &good, &Cancel::default()));
    let mut left: Vec<u64> = vec![10, 20, 21, 22, 23, 25, 27];
    while !left.is_empty() {
        let ended = h.hear(&mut outputs);
        left.retain(|id| Some(*id) != ended);
    }
    for id in [20, 21, 22, 23] {
        let fault = outputs[&id].fault.clone().unwrap();
        let text = fault.to_string();
        assert!(matches!(fault, EngineFault::Device(_)), "{id}: {text}");
        assert_eq!(text.contains("vocabulary"), id == 20, "{id}: {text}");
    }
    for id in [10, 25, 27] {
        same(&outputs[&id], &alone, &format!("job {id}"));
    }
}

#[test]
fn the_seventeenth_sequence_is_refused() {
    let h = Harness::start();
    let request = Request { tokens: 2, ..h.request(0) };
    let mut outputs = HashMap::new();
    for i in 1..=16 {
        h.send(h.job(u64::from(i), SequenceId(i), &request, &Cancel::default()));
    }
    let mut ended = 0;
    while ended < 16 {
        ended += usize::from(h.hear(&mut outputs).is_some());
    }
    let fault = outputs[&16].fault.clone().unwrap().to_string();
    assert!(fault.contains("16 conversations"), "{fault}");
    assert!((1..16).all(|id| outputs[&id].fault.is_none()));
    // One given back makes room, and a sequence that is used again is empty.
    h.send(Command::Release { sequence: SequenceId(3) });
    h.send(h.job(40, SequenceId(16), &request, &Cancel::default()));
    while h.hear(&mut outputs) != Some(40) {}
    same(&outputs[&40], &outputs[&1], "the place of another");
    h.send(Command::Fork { id: 41, from: MAIN, to: MAIN });
    while h.hear(&mut outputs) != Some(41) {}
    assert!(outputs[&41].fault.is_some());
}

#[test]
fn an_answer_continues_during_a_read() {
    let h = Harness::start();
    let long = h.question(&"The lamp is in the attic. ".repeat(700));
    let total = long.len() as u64;
    let read = Request { prompt: long, seed: None, spec: SpecMode::Off, tokens: 0 };
    let alone = h.alone(&read);
    let mut outputs = HashMap::new();
    h.send(h.job(10, SequenceId(1), &read, &Cancel::default()));
    while !matches!(h.engine.events.recv_timeout(PATIENCE).unwrap(), EngineEvent::Reading { id: 10, .. }) {}
    // Sent during the read: answered before its end.
    let question = Request { tokens: 12, ..h.request(0) };
    h.send(h.job(11, SequenceId(2), &question, &Cancel::default()));
    let mut done = 0;
    loop {
        match h.engine.events.recv_timeout(PATIENCE).unwrap() {
            EngineEvent::Reading { id: 10, done: now, .. } => done = now,
            EngineEvent::Done { id: 11, .. } => break,
            EngineEvent::Done { id, .. } => panic!("job {id} is done first"),
            _ => {}
        }
    }
    assert!(done < total, "{done} of {total}");
    while h.hear(&mut outputs) != Some(10) {}
    same(&outputs[&10], &alone, "the document");
}
