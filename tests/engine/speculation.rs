//! Speculation never changes the text: the built-in model decodes the same tokens and ends in the same state, bit for bit,
//! whatever is drafted (docs/speculative.md §6.3), and its own head is accepted as often as its model card says.
//!
//! The default size runs in about a minute. `SALA_PROOF=full` runs 64 prompts of 256 tokens and contexts of 1k, 9k and 64k.

mod histories;
mod masks;

use std::sync::{Arc, Mutex, MutexGuard};

use sala_chat::backend::cpu::Cpu;
use sala_chat::backend::prelude::*;
use sala_chat::engine::ngram::Lookup;
use sala_chat::engine::protocol::{
    CheckpointImage, Ended, Generate, Look, RowsImage, Sampling, SpecMode, SpecStats, Token,
};
use sala_chat::engine::speculate::{Decoder, Finder};
use sala_chat::model::draft::{DraftHead, DraftOptions};
use sala_chat::model::{Checkpoint, DEMO_TOKENIZER, Live, Model, Recipe};
use tokenizers::Tokenizer;

const IM_END: Token = 4;

/// Whether the whole proof runs.
fn full() -> bool {
    std::env::var("SALA_PROOF").is_ok_and(|v| v == "full")
}

/// One at a time: the tests would only take the processor from each other, and one of them looks at times.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

struct Skill {
    max_tokens: u64,
    prompts: Vec<Vec<Token>>,
}

/// Prompts of a skill, in the demo's chat form.
fn skill(name: &str) -> Skill {
    let tokenizer = Tokenizer::from_bytes(DEMO_TOKENIZER).unwrap();
    let all: serde_json::Value = serde_json::from_str(include_str!("../fixtures/speculation/prompts.json")).unwrap();
    let skill = &all[name];
    let prompt = |messages: &serde_json::Value| {
        let mut text = String::from("<s>");
        for message in messages.as_array().unwrap() {
            text +=
                &format!("<|im_start|>{}\n{}<|im_end|>\n", message[0].as_str().unwrap(), message[1].as_str().unwrap());
        }
        text += "<|im_start|>assistant\n";
        tokenizer.encode(text, false).unwrap().get_ids().to_vec()
    };
    Skill {
        max_tokens: skill["max_tokens"].as_u64().unwrap(),
        prompts: skill["prompts"].as_array().unwrap().iter().map(prompt).collect(),
    }
}

/// The model with one conversation.
struct Rig {
    b: Cpu,
    model: Model<Cpu>,
    live: Live<Cpu>,
    decoder: Decoder<Cpu>,
}

#[derive(Clone, Copy, PartialEq)]
enum Head {
    Own,
    Packed(Recipe),
    None,
}

impl Rig {
    fn new(head: Head, limit: usize) -> Rig {
        let mut b = Cpu::new();
        let checkpoint = Checkpoint::open("demo").unwrap();
        let model = Model::load(&mut b, &checkpoint, |_| {}).unwrap();
        let recipe = match head {
            Head::Own => Some(Recipe::Stored),
            Head::Packed(recipe) => Some(recipe),
            Head::None => None,
        };
        let head = recipe.map(|recipe| {
            let options = DraftOptions { recipe, ..DraftOptions::default() };
            DraftHead::demo(&mut b, model.spec(), &options).unwrap()
        });
        let aux_layers = head.as_ref().map_or(Vec::new(), |h| h.aux_layers().to_vec());
        let live = Live::new(&mut b, &model, limit, &aux_layers).unwrap();
        Rig { b, model, live, decoder: Decoder::new(head) }
    }

    fn reset(&mut self) {
        self.live.reset(&mut self.b).unwrap();
        self.decoder.restore(&mut self.b, &[], None).unwrap();
    }

    fn read(&mut self, given: &[Token]) {
        let mut done = 0;
        for chunk in given.chunks(self.b.prefill_rows()) {
            done += chunk.len();
            match given.len() - done {
                0 => self.live.prefill(&mut self.b, &self.model, chunk).unwrap(),
                _ => self.live.prefill_state(&mut self.b, &self.model, chunk).unwrap(),
            }
            self.live.advance(&mut self.b, chunk.len()).unwrap();
            self.decoder.read(&mut self.b, &self.model, &self.live, chunk, given.len() - done).unwrap();
        }
    }

    fn generate(&mut self, params: &Generate) -> (Vec<Token>, Ended) {
        let mut round = self.decoder.begin(&mut self.b, &self.model, &mut self.live, params).unwrap();
        let mut tokens = round.tokens;
        while round.ended.is_none() {
            round = self.decoder.round(&mut self.b, &self.model, &mut self.live).unwrap();
            tokens.extend(&round.tokens);
        }
        (tokens, round.ended.unwrap())
    }

    /// Everything the target remembers.
    fn image(&mut self) -> (RowsImage, CheckpointImage) {
        let rows = self.live.export_rows(&mut self.b, 0..self.live.position()).unwrap();
        (rows, self.live.export_end(&mut self.b).unwrap())
    }

    /// Bits of all of it, hashed.
    fn state(&mut self) -> String {
        let (rows, end) = self.image();
        let mut hasher = blake3::Hasher::new();
        for tensor in rows.tensors.iter().chain(&end.tensors) {
            hasher.update(format!("{} {:?}", tensor.name, tensor.shape).as_bytes());
            hasher.update(&tensor.data);
        }
        format!("{} {}", end.position, hasher.finalize())
    }

    /// What is kept with a session, and the same conversation continued from it in another process.
    fn reload(&mut self) {
        let (rows, mut end) = self.image();
        end.tensors.extend(self.decoder.export(&mut self.b, &self.model).unwrap());
        let history = self.decoder.history()[..self.live.position()].to_vec();
        self.reset();
        self.live.restore(&mut self.b, 0, &[rows], Some(&end)).unwrap();
        self.decoder.restore(&mut self.b, &history, Some(&end)).unwrap();
    }
}

fn params(temperature: f32, spec: SpecMode, max_tokens: u64) -> Generate {
    let sampling = Sampling { temperature, top_p: 1.0, seed: 17, ..Sampling::default() };
    Generate {
        sampling,
        max_tokens,
        stop: vec![2, IM_END],
        spec,
        steering: None,
        constraint: None,
        likely: None,
        look: Look::default(),
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

/// What a scripted finder proposes at every position of a text that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    Right,
    Wrong,
    /// Each token right with probability three quarters.
    Random,
    Nothing,
}

fn finder(script: Script, text: Arc<Vec<Token>>) -> Finder {
    Box::new(move |history, room| {
        let next = text.get(history.len()..).unwrap_or_default();
        let spoil = |i: usize, t: Token| match script {
            Script::Right | Script::Nothing => t,
            Script::Wrong => (t + 7) % 3000,
            Script::Random if mix(history.len() as u64, i as u64).is_multiple_of(4) => (t + 7) % 3000,
            Script::Random => t,
        };
        let tokens: Vec<Token> = next.iter().take(room).enumerate().map(|(i, t)| spoil(i, *t)).collect();
        (script != Script::Nothing && !tokens.is_empty()).then_some(Lookup { tokens, matched: 64, agreement: 1.0 })
    })
}

/// A prompt's tokens with the plain answer, its end and the state after it.
struct Plain {
    prompt: Vec<Token>,
    text: Arc<Vec<Token>>,
    ended: Ended,
    state: String,
}

fn plain(rig: &mut Rig, prompt: &[Token], temperature: f32, tokens: u64) -> Plain {
    rig.reset();
    rig.read(prompt);
    let (answer, ended) = rig.generate(&params(temperature, SpecMode::Off, tokens));
    assert_eq!(rig.decoder.stats().drafted, 0);
    let text = Arc::new(prompt.iter().chain(&answer).copied().collect());
    Plain { prompt: prompt.to_vec(), text, ended, state: rig.state() }
}

fn assert_same(rig: &mut Rig, plain: &Plain, temperature: f32, tokens: u64, mode: SpecMode, what: &str) -> SpecStats {
    rig.reset();
    rig.read(&plain.prompt);
    let (answer, ended) = rig.generate(&params(temperature, mode, tokens));
    let text: Vec<Token> = plain.prompt.iter().chain(&answer).copied().collect();
    let at = text.iter().zip(plain.text.iter()).take_while(|(a, b)| a == b).count();
    assert_eq!((&text, ended), (&*plain.text, plain.ended), "{what}, {mode:?}: the text differs from token {at} on");
    assert_eq!(rig.state(), plain.state, "{what}, {mode:?}: the state differs");
    let stats = rig.decoder.stats().clone();
    assert_eq!(stats.rounds, stats.plain_rounds + stats.eagle_rounds + stats.ngram_rounds);
    stats
}

#[test]
fn text_and_state_are_the_same_with_any_drafts() {
    let _alone = alone();
    let per_skill = if full() { 13 } else { 1 };
    let tokens = if full() { 256 } else { 40 };
    let mut prompts = Vec::new();
    for name in ["help", "story", "recall", "math_words", "doc_qa"] {
        prompts.extend(skill(name).prompts.into_iter().take(per_skill));
    }
    let mut own = Rig::new(Head::Own, 4096);
    let mut bare = Rig::new(Head::None, 4096);
    for (i, prompt) in prompts.iter().enumerate() {
        for temperature in [0.0, 0.9] {
            let plain = plain(&mut own, prompt, temperature, tokens);
            for script in [Script::Right, Script::Wrong, Script::Random] {
                // All depths in the full proof, else one of each kind per prompt.
                for (j, depth) in [1, 3, 7, 15].into_iter().enumerate() {
                    if full() || (i + j + script as usize).is_multiple_of(4) {
                        bare.decoder.set_finder(finder(script, plain.text.clone()));
                        let what = format!("prompt {i}, temperature {temperature}, {script:?}");
                        let stats = assert_same(&mut bare, &plain, temperature, tokens, SpecMode::Depth(depth), &what);
                        match script {
                            Script::Right => assert_eq!(stats.accepted, stats.drafted, "{what}"),
                            Script::Wrong => assert_eq!(stats.accepted, 0, "{what}"),
                            Script::Random | Script::Nothing => {}
                        }
                    }
                }
            }
            let modes: &[SpecMode] = if full() {
                &[SpecMode::Auto, SpecMode::On, SpecMode::Depth(1), SpecMode::Depth(7)]
            } else {
                &[SpecMode::Auto, SpecMode::Depth(5)]
            };
            for mode in modes {
                assert_same(
                    &mut own,
                    &plain,
                    temperature,
                    tokens,
                    *mode,
                    &format!("prompt {i}, temperature {temperature}, own drafts"),
                );
            }
        }
    }
}

#[test]
fn a_head_in_fewer_bits_drafts_about_as_well() {
    let _alone = alone();
    let prompts: Vec<_> =
        ["help", "doc_qa", "recall"].iter().flat_map(|name| skill(name).prompts.into_iter().take(2)).collect();
    let mut own = Rig::new(Head::Own, 4096);
    let plain: Vec<Plain> = prompts.iter().map(|prompt| plain(&mut own, prompt, 0.0, 60)).collect();
    let per_round = |head: Head| {
        let mut rig = Rig::new(head, 4096);
        let stats = plain.iter().map(|plain| assert_same(&mut rig, plain, 0.0, 60, SpecMode::Depth(5), "packed head"));
        let (rounds, accepted) = stats.fold((0, 0), |sum, s| (sum.0 + s.rounds, sum.1 + s.accepted));
        accepted as f64 / rounds as f64
    };
    let whole = per_round(Head::Own);
    for recipe in [Recipe::Bits8, Recipe::Bits4] {
        let packed = per_round(Head::Packed(recipe));
        eprintln!("{}: {packed:.2} drafts accepted a round, {whole:.2} in 16 bits", recipe.name());
        assert!(packed > 0.9 * whole, "{}: {packed:.2} drafts accepted a round, {whole:.2} in 16 bits", recipe.name());
    }
}

#[test]
fn long_contexts_keep_text_and_state() {
    let _alone = alone();
    // Across the block selection, and in the full proof across the demo's dense length and its trained length.
    let lengths: &[usize] = if full() { &[1_000, 9_000, 64_000] } else { &[2_500] };
    let mut own = Rig::new(Head::Own, 66_000);
    for &length in lengths {
        let documents: Vec<Token> = skill("doc_qa").prompts.into_iter().flatten().collect();
        let mut prompt: Vec<Token> = documents.iter().cycle().take(length).copied().collect();
        prompt.extend(&skill("help").prompts[0]);
        for temperature in [0.0, 0.9] {
            let plain = plain(&mut own, &prompt, temperature, 48);
            for mode in [SpecMode::Auto, SpecMode::Depth(7)] {
                assert_same(&mut own, &plain, temperature, 48, mode, &format!("context {length}"));
            }
        }
    }
}

#[test]
fn penalties_follow_the_drafted_path() {
    let _alone = alone();
    let mut own = Rig::new(Head::Own, 4096);
    let prompt = &skill("story").prompts[1];
    let mut answers = Vec::new();
    for mode in [SpecMode::Off, SpecMode::Depth(7), SpecMode::Auto] {
        own.reset();
        own.read(prompt);
        let mut params = params(0.8, mode, 64);
        (params.sampling.repeat_penalty, params.sampling.frequency_penalty, params.sampling.top_k) = (1.2, 0.3, 20);
        answers.push(own.generate(&params));
    }
    assert!(answers[0].0.len() > 20);
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
}

#[test]
fn limits_are_kept_in_the_middle_of_a_round() {
    let _alone = alone();
    let prompt = skill("story").prompts.remove(0);
    let mut rig = Rig::new(Head::None, prompt.len() + 20);
    let plain = plain(&mut rig, &prompt, 0.0, 1000);
    assert_eq!(plain.ended, Ended::Context);
    // The last token drawn does not fit any more; it is pending.
    assert_eq!((plain.text.len(), rig.live.position()), (prompt.len() + 21, prompt.len() + 20));
    for tokens in [1, 2, 7, 1000] {
        rig.decoder.set_finder(finder(Script::Right, plain.text.clone()));
        rig.reset();
        rig.read(&prompt);
        let (answer, ended) = rig.generate(&params(0.0, SpecMode::Depth(15), tokens));
        let want = (tokens as usize).min(21);
        assert_eq!(answer, plain.text[prompt.len()..][..want]);
        assert_eq!(ended, if tokens < 21 { Ended::Length } else { Ended::Context });
        assert_eq!(rig.live.position(), prompt.len() + want - 1);
    }
    // A drafted stop: nothing follows it, neither in the text nor in the state.
    let stop = plain.text[prompt.len() + 6];
    let first = plain.text[prompt.len()..].iter().position(|t| *t == stop).unwrap();
    rig.reset();
    rig.read(&prompt);
    let (answer, ended) = rig.generate(&Generate { stop: vec![stop], ..params(0.0, SpecMode::Depth(15), 1000) });
    assert_eq!((answer.as_slice(), ended), (&plain.text[prompt.len()..][..first], Ended::Stop));
    assert_eq!(rig.live.position(), prompt.len() + first);
}

#[test]
fn the_demo_head_reaches_the_acceptance_of_its_card() {
    let _alone = alone();
    let mut rig = Rig::new(Head::Own, 4096);
    rig.decoder.set_finder(finder(Script::Nothing, Arc::default()));
    // Tokens per step over the prompts of each skill as the model card has them, and prompts used here.
    let card =
        [("doc_qa", 4.41, 8), ("help", 5.45, 24), ("recall", 4.39, 12), ("math_words", 4.15, 32), ("story", 4.84, 6)];
    let (mut steps, mut want, mut got) = (0.0, 0.0, 0.0);
    let mut off: Vec<String> = Vec::new();
    for (name, tokens_per_step, prompts) in card {
        let skill = skill(name);
        let (mut rounds, mut tokens) = (0u64, 0u64);
        for prompt in skill.prompts.iter().take(if full() { 64 } else { prompts }) {
            rig.reset();
            rig.read(prompt);
            let (answer, ended) = rig.generate(&params(0.0, SpecMode::Depth(5), skill.max_tokens));
            // The card counts the token that ends the turn; its first token is drawn with the prompt.
            tokens += answer.len() as u64 - 1 + u64::from(ended == Ended::Stop);
            rounds += rig.decoder.stats().rounds;
        }
        let rate = tokens as f64 / rounds as f64;
        eprintln!("{name}: {rate:.3} tokens per step over {rounds} steps, the card says {tokens_per_step}");
        if (rate / tokens_per_step - 1.0).abs() >= 0.12 {
            off.push(format!("{name}: {rate} against {tokens_per_step}"));
        }
        (steps, want, got) = (steps + rounds as f64, want + tokens_per_step * rounds as f64, got + tokens as f64);
    }
    assert!(off.is_empty(), "{off:?}");
    assert!(
        (got / want - 1.0).abs() < 0.05,
        "{} against {} tokens per step over {steps} steps",
        got / steps,
        want / steps
    );
}
