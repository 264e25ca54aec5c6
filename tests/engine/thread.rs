//! The engine thread with the built-in model: a job reports the state it leaves, and that state can be restored.

mod park;

use std::sync::Arc;
use std::time::Duration;

use sala_chat::engine::protocol::{
    Cancel, CheckpointImage, Command, DeviceChoice, Ended, EngineEvent, EngineFault, EngineOptions, Generate, Job,
    JobDone, Look, Looked, LookedAt, MAIN, RowSource, RowsImage, Sampling, Scoring, SequenceId, SpecMode, StateImage,
    Token,
};
use sala_chat::engine::{Engine, spawn};
use sala_chat::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use sala_chat::runtime::protocol::ThinkMode;
use sala_chat::text::template::{ChatMessage, ChatRole, RenderOptions};
use sala_chat::text::{Specials, TextModel};

const PATIENCE: Duration = Duration::from_secs(120);

struct Harness {
    engine: Engine,
    text: TextModel,
    stop: Vec<Token>,
}

/// The output of a finished job.
struct Done {
    tokens: Vec<Token>,
    ended: Ended,
    prompt: u64,
    generated: u64,
    image: Option<StateImage>,
    /// Where the generated tokens looked, all together and each.
    looked_at: LookedAt,
    looked: Vec<Looked>,
}

fn options() -> EngineOptions {
    EngineOptions { device: DeviceChoice::Cpu, context: Some(20_000), ..EngineOptions::default() }
}

impl Harness {
    fn start() -> Harness {
        Harness::with(spawn(options()).unwrap())
    }

    fn with(engine: Engine) -> Harness {
        let text =
            TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap();
        let stop = text.tokenizer.stop_ids(&[2, 4]);
        let harness = Harness { engine, text, stop };
        loop {
            match harness.event() {
                EngineEvent::Ready(info) => {
                    assert_eq!(
                        (info.name.as_str(), info.device_kind.as_str(), info.context_limit),
                        ("demo", "cpu", 20_000)
                    );
                    assert!(info.draft.is_some());
                    return harness;
                }
                EngineEvent::Loading { done, .. } => assert!((0.0..=1.0).contains(&done)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn event(&self) -> EngineEvent {
        self.engine.events.recv_timeout(PATIENCE).unwrap()
    }

    fn question(&self, text: &str) -> Vec<Token> {
        let messages = [ChatMessage::new(ChatRole::User, text)];
        let prompt = self.text.template.render(&messages, &RenderOptions::prompt(ThinkMode::Auto)).unwrap();
        self.text.tokenizer.encode_prompt(&prompt).unwrap()
    }

    fn generate(&self, spec: SpecMode) -> Option<Generate> {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Some(Generate {
            sampling,
            max_tokens: 100,
            stop: self.stop.clone(),
            spec,
            steering: None,
            constraint: None,
            likely: None,
            look: Look::default(),
        })
    }

    fn run(&self, prompt: Vec<Token>, generate: Option<Generate>, cancel: Cancel) -> Result<Done, String> {
        self.engine
            .commands
            .send(Command::Run(Job { id: 7, sequence: MAIN, prompt, generate, score: None, export: true, cancel }))
            .unwrap();
        let (mut tokens, mut looked) = (Vec::new(), Vec::new());
        loop {
            match self.event() {
                EngineEvent::Reading { id: 7, .. } => {}
                EngineEvent::Tokens { id: 7, tokens: more, looked: where_to, .. } => {
                    tokens.extend(more);
                    looked.extend(where_to);
                }
                EngineEvent::Done { id: 7, done } => {
                    let JobDone { ended, prompt_in_state: prompt, generated_in_state: generated, .. } = *done;
                    let (image, looked_at) = (done.image, done.looked_at);
                    return Ok(Done { tokens, ended, prompt, generated, image, looked_at, looked });
                }
                EngineEvent::Failed { id: 7, fault } if !fatal(&fault) => return Err(fault.to_string()),
                other => panic!("{other:?}"),
            }
        }
    }

    fn restore(
        &self,
        keep: u64,
        rows: Vec<RowsImage>,
        end: Option<CheckpointImage>,
        history: Vec<Token>,
    ) -> Result<(), String> {
        self.engine
            .commands
            .send(Command::Restore {
                id: 9,
                sequence: MAIN,
                keep,
                rows: rows.into_iter().map(|r| Arc::new(r) as Arc<dyn RowSource>).collect(),
                end,
                history: Arc::new(history),
            })
            .unwrap();
        match self.event() {
            EngineEvent::Restored { id: 9, .. } => Ok(()),
            EngineEvent::Failed { id: 9, fault } if !fatal(&fault) => Err(fault.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

fn fatal(fault: &EngineFault) -> bool {
    matches!(fault, EngineFault::Fatal { .. })
}

fn bytes(image: &StateImage) -> Vec<(String, Vec<u8>)> {
    let end = image.end.iter().flat_map(|end| &end.tensors);
    let tensors = image.rows.tensors.iter().chain(end).filter(|t| !t.name.starts_with("draft."));
    tensors.map(|t| (t.name.clone(), t.data.to_vec())).collect()
}

#[test]
fn a_job_answers_and_its_image_restores_the_same_bits() {
    let h = Harness::start();
    let question = h.question("What is sala-chat?");
    let first = h.run(question.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(first.ended, Ended::Stop);
    let text = h.text.tokenizer.decode(&first.tokens, Specials::Hide);
    assert!(text.starts_with("sala-chat is a chat program for the terminal."), "{text}");
    assert_eq!((first.prompt, first.generated), (question.len() as u64, first.tokens.len() as u64));
    let image = first.image.unwrap();
    assert_eq!(image.rows.rows, first.prompt + first.generated);

    // Off the same prefix, without drafts: the same text and the same state.
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    let plain = h.run(question.clone(), h.generate(SpecMode::Off), Cancel::default()).unwrap();
    assert_eq!(plain.tokens, first.tokens);
    assert!(bytes(&plain.image.unwrap()) == bytes(&image));

    // A follow-up on the live state equals one on the restored state.
    let mut history = question;
    history.extend(&first.tokens);
    let follow = h.question("What is 17 + 25?");
    let live = h.run(follow.clone(), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    h.restore(0, vec![image.rows.clone()], image.end.clone(), history).unwrap();
    let restored = h.run(follow, h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(live.tokens, restored.tokens);
    assert!(bytes(&live.image.unwrap()) == bytes(&restored.image.unwrap()));
}

#[test]
fn a_stop_during_a_read_keeps_whole_chunks_and_reports_them() {
    let h = Harness::start();
    let long = h.question(&"The lamp is in the attic. ".repeat(1500));
    let cancel = Cancel::default();
    let job = Job {
        id: 7,
        sequence: MAIN,
        prompt: long.clone(),
        generate: h.generate(SpecMode::Auto),
        score: None,
        export: true,
        cancel: cancel.clone(),
    };
    h.engine.commands.send(Command::Run(job)).unwrap();
    let (prompt, image) = loop {
        match h.event() {
            EngineEvent::Reading { done, total, .. } => {
                assert_eq!(total, long.len() as u64);
                assert!(done <= total);
                cancel.cancel();
            }
            EngineEvent::Done { done, .. } => {
                assert_eq!((done.ended, done.generated_in_state), (Ended::Cancelled, 0));
                break (done.prompt_in_state, done.image.unwrap());
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(prompt > 0 && prompt < long.len() as u64, "{prompt}");
    assert_eq!((image.rows.rows, image.end.unwrap().position), (prompt, prompt));
}

#[test]
fn a_refused_job_or_image_leaves_an_engine_that_works() {
    let h = Harness::start();
    let error = h.run(vec![11; 20_001], None, Cancel::default()).err().unwrap();
    assert!(error.contains("20000") || error.contains("20,000"), "{error}");
    let end = CheckpointImage { position: 5, tensors: Vec::new() };
    assert!(h.restore(0, Vec::new(), Some(end), vec![1; 5]).is_err());
    assert!(h.run(vec![1, 99_999], None, Cancel::default()).is_err());
    let done = h.run(h.question("What is 17 + 25?"), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(h.text.tokenizer.decode(&done.tokens, Specials::Hide), "17 + 25 = 42.");
}

#[test]
fn scoring_with_hidden_blocks_leaves_the_state_unchanged() {
    let h = Harness::start();
    let t = &h.text.tokenizer;
    let line =
        |i: usize| format!("The {} stands beside the {} lamp.", ["bridge", "tower", "gate"][i % 3], i * 7919 % 997);
    let mut lines: Vec<String> = (0..120).map(line).collect();
    lines[40] = "The access code of Minfell is 749245.".into();
    let mut turns = ChatMessage::document("notes.txt", &lines.join("\n")).to_vec();
    turns.push(ChatMessage::new(ChatRole::User, "What is the access code of Minfell?"));
    let prompt = h.text.template.render(&turns, &RenderOptions::prompt(ThinkMode::Auto)).unwrap();
    let until = |words: &str| t.encode_prompt(&prompt[..prompt.find(words).unwrap()]).unwrap().len() as u32 / 64;
    let fact = until("The access code of Minfell is")..until("749245") + 1;
    let other = fact.end + 10..fact.end + 12;
    let tokens = t.encode_prompt(&prompt).unwrap();
    let answer = t.encode_plain("The document says: \"The access code of Minfell is 749245.\"").unwrap();
    // Nothing, the fact, another place.
    let hidden = vec![Vec::new(), vec![fact], vec![other]];
    let job = |score| Job {
        id: 7,
        sequence: MAIN,
        prompt: tokens.clone(),
        generate: None,
        score,
        export: true,
        cancel: Cancel::default(),
    };
    let run = |job: Job| {
        h.engine.commands.send(Command::Run(job)).unwrap();
        loop {
            match h.event() {
                EngineEvent::Reading { .. } => {}
                EngineEvent::Done { done, .. } => return (done.image.unwrap(), done.scored, done.prompt_in_state),
                other => panic!("{other:?}"),
            }
        }
    };
    let (scored_image, scored, read) = run(job(Some(Scoring { tokens: answer.clone(), likely: None, hidden })));
    assert_eq!(read, tokens.len() as u64);
    let sums: Vec<f32> = scored.iter().map(|s| s.iter().sum()).collect();
    assert!(scored.iter().all(|s| s.len() == answer.len() - 1));
    assert!(sums[0] > -3.0 && sums[1] < sums[0] - 3.0 && (sums[2] - sums[0]).abs() < 1.0, "{sums:?}");
    // Neither its saved state nor its answer depends on the scoring.
    let more = h.run(h.question("What is 17 + 25?"), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    let (image, nothing, _) = run(job(None));
    assert!(nothing.is_empty() && bytes(&image) == bytes(&scored_image));
    let plain = h.run(h.question("What is 17 + 25?"), h.generate(SpecMode::Auto), Cancel::default()).unwrap();
    assert_eq!(plain.tokens, more.tokens);
    assert!(bytes(&plain.image.unwrap()) == bytes(&more.image.unwrap()));
}

#[test]
fn a_question_does_not_wait_for_a_long_scoring_job() {
    let h = Harness::start();
    let text = h.question(&"The lamp is in the attic. ".repeat(200));
    assert!(text.len() > 600, "several turns");
    let scoring = Scoring { tokens: text, likely: Some(1), hidden: vec![Vec::new(); 2] };
    let job = |id, sequence, prompt: Vec<Token>, cancel| Job {
        id,
        sequence,
        prompt,
        generate: None,
        score: None,
        export: false,
        cancel,
    };
    let scores = |id| Job { score: Some(scoring.clone()), ..job(id, MAIN, vec![3, 4, 5], Cancel::default()) };
    let (question, params) = (h.question("What is 17 + 25?"), h.generate(SpecMode::Auto));
    let other = |id| Job { generate: params.clone(), ..job(id, SequenceId(5), question.clone(), Cancel::default()) };
    let until_done = |ids: &[u64]| {
        let mut done = Vec::new();
        while done.len() < ids.len() {
            match h.event() {
                EngineEvent::Reading { .. } | EngineEvent::Tokens { .. } => {}
                EngineEvent::Done { id, done: job } => done.push((id, job)),
                other => panic!("{other:?}"),
            }
        }
        done
    };
    let send = |job| h.engine.commands.send(Command::Run(job)).unwrap();
    send(scores(1));
    let alone = until_done(&[1]).remove(0).1;
    assert_eq!(alone.scored.len(), 2);
    assert!(alone.scored[0] == alone.scored[1] && alone.scored[0].len() == scoring.tokens.len() - 1);
    assert_eq!(alone.likely.len(), alone.scored[0].len());
    // During an answer: that one ends first, and neither changes the other.
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    send(scores(2));
    send(other(3));
    let both = until_done(&[2, 3]);
    assert_eq!([both[0].0, both[1].0], [3, 2]);
    assert!(both[1].1.scored == alone.scored && both[1].1.likely == alone.likely);
    // A stop ends it in the middle, with the state as it was.
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    let cancel = Cancel::default();
    send(Job { cancel: cancel.clone(), ..scores(4) });
    let first = h.event();
    assert!(matches!(first, EngineEvent::Reading { id: 4, .. }), "{first:?}");
    cancel.cancel();
    let stopped = until_done(&[4]).remove(0).1;
    assert_eq!((stopped.ended, stopped.prompt_in_state), (Ended::Cancelled, 3));
    assert!(stopped.scored.len() < 2);
    let go_on = h.run(vec![6], None, Cancel::default()).unwrap();
    h.restore(0, Vec::new(), None, Vec::new()).unwrap();
    h.run(vec![3, 4, 5], None, Cancel::default()).unwrap();
    let plain = h.run(vec![6], None, Cancel::default()).unwrap();
    assert!(bytes(&go_on.image.unwrap()) == bytes(&plain.image.unwrap()));
}

fn shares(looked: &Looked) -> Vec<(u32, f64)> {
    looked.blocks.iter().map(|b| (b.block, f64::from(b.share))).collect()
}

#[test]
fn an_answer_reports_where_it_looked_with_any_drafts() {
    let h = Harness::start();
    let question = h.question(&format!("{} What is sala-chat?", "The lamp is in the attic. ".repeat(100)));
    let ask = |spec: SpecMode, look: Look| {
        h.restore(0, Vec::new(), None, Vec::new()).unwrap();
        let params = h.generate(spec).map(|g| Generate { look, max_tokens: 40, ..g });
        h.run(question.clone(), params, Cancel::default()).unwrap()
    };
    let each = Look { each_token: true, ..Look::default() };
    let plain = ask(SpecMode::Off, each);
    let answer = &plain.looked_at.answer;
    // The first token is drawn from the last row that was read; every other one by a row of its own.
    assert_eq!((answer.tokens, answer.block_tokens), (plain.generated, 64));
    assert!(plain.generated > 5, "{:?}", plain.tokens);
    assert_eq!(plain.looked_at.thoughts, Looked { block_tokens: 64, ..Looked::default() });
    let all: f64 = shares(answer).iter().map(|(_, share)| share).sum();
    assert!((all - 1.0).abs() < 1e-5, "{all}");
    let last = (plain.prompt + plain.generated) / 64;
    assert!(answer.blocks.iter().all(|b| u64::from(b.block) <= last && b.forced <= b.share && b.share > 0.0));
    // Everything is in reach of the local window here, and the document got its part all the same.
    assert!(answer.blocks.iter().all(|b| (b.forced - b.share).abs() < 1e-6));
    assert!(shares(answer).iter().filter(|(block, _)| (1..last as u32 - 2).contains(block)).count() > 4);

    // Each token reports its own look, and together they are the whole.
    assert_eq!(plain.looked.len(), plain.tokens.len() - 1);
    for (block, share) in shares(answer) {
        let of = |looked: &Looked| shares(looked).iter().find(|(b, _)| *b == block).map_or(0.0, |(_, share)| *share);
        let mean = plain.looked.iter().map(of).sum::<f64>() / plain.looked.len() as f64;
        let rows = plain.generated as f64 / plain.looked.len() as f64;
        assert!((mean - share).abs() < 2e-3 + (rows - 1.0).abs(), "block {block}: {mean}, in all {share}");
    }

    // Refused drafts leave nothing, and neither does the job before.
    let drafted = ask(SpecMode::Depth(6), Look::default());
    assert_eq!(drafted.tokens, plain.tokens);
    assert_eq!(drafted.looked_at, plain.looked_at);
    assert!(drafted.looked.is_empty());

    // What is written up to a token counts apart.
    let until = plain.tokens[4];
    let first = plain.tokens.iter().position(|t| *t == until).unwrap() as u64;
    let split = ask(SpecMode::Depth(6), Look { thoughts_until: Some(until), ..Look::default() });
    let LookedAt { thoughts, answer: rest } = &split.looked_at;
    assert_eq!((thoughts.tokens, thoughts.tokens + rest.tokens), (first, answer.tokens));
    for (block, share) in shares(answer) {
        let of = |looked: &Looked| shares(looked).iter().find(|(b, _)| *b == block).map_or(0.0, |(_, share)| *share);
        let both = (of(thoughts) * thoughts.tokens as f64 + of(rest) * rest.tokens as f64) / answer.tokens as f64;
        assert!((both - share).abs() < 1e-4, "block {block}: {both}, in all {share}");
    }
}
