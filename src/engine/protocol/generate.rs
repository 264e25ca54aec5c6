//! What to generate: sampling, speculation, and who looks at tokens as they are drawn.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Look, Token, exact};

/// How the next token is chosen. Order of the filters: docs/speculative.md §6.1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: u32,
    /// Smallest set with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Drop what is below this share of the best.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of prompt and answer; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from tokens that this generation has written; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each time that it has written a token; 0 is off.
    pub frequency_penalty: f32,
    /// Noise is keyed by (seed, position), so a seed reproduces a text whatever else changes.
    pub seed: u64,
}

impl Sampling {
    /// The seed, where it changes anything: at temperature 0 nothing is drawn.
    pub fn seed_of_draws(&self) -> Option<u64> {
        (self.temperature > 0.0).then_some(self.seed)
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum SpecMode {
    Off,
    /// Draft whenever it is expected to pay.
    #[default]
    Auto,
    On,
    /// Always draft this many tokens (1..=15).
    Depth(u8),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    pub sampling: Sampling,
    pub max_tokens: u64,
    /// Ids that end the turn. The one that ended it is not part of the state.
    pub stop: Vec<Token>,
    pub spec: SpecMode,
    #[serde(skip)]
    pub steering: Option<Steering>,
    pub look: Look,
    /// Says which tokens may be drawn; all may where there is none.
    #[serde(skip)]
    pub constraint: Option<Constraint>,
    /// Report this many of the likeliest tokens with each token: [`EngineEvent::Tokens`](super::EngineEvent::Tokens).
    pub likely: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    Take,
    Instead(Token),
    /// It is, and the last one: the text repeats itself ([`Ended::Repeats`](super::Ended::Repeats)).
    Last,
}

/// Sees each token of an answer in order, before it is decoded to text. Its decisions must depend on those tokens
/// alone, so that an answer is the same with speculation on and off.
pub trait Steer: Send {
    /// `token` was drawn; it does not end the turn unless `ends` is set.
    fn drawn(&mut self, token: Token, ends: bool) -> Steered;
}

/// What is looked for in an answer that is steered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Tokens of thought after which `</think>` is put; 0 is no limit.
    pub thought_tokens: u64,
    pub loops: bool,
}

/// What is looked for, and where the answer begins: all that another process needs to make the same [`Steering`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    pub watched: Watched,
    pub in_thought: bool,
    /// Tokens of that thought that were written before.
    pub spent: u64,
}

/// Makes a [`Steer`] for each run of an answer, and says what it looks for.
#[derive(Clone)]
pub struct Steering(pub Arc<dyn Fn() -> Box<dyn Steer> + Send + Sync>, pub Watching);

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steering")
    }
}

impl PartialEq for Steering {
    fn eq(&self, other: &Steering) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Says which tokens of an answer may be drawn, in order. What it says must depend on those tokens and the ones in front of them
/// alone, so that an answer is the same with speculation on and off.
pub trait Constrain: Send {
    fn allows(&mut self, token: Token) -> bool;
    /// A bias added to the logit of a token; `None`: it may not follow.
    fn favours(&mut self, token: Token) -> Option<f32> {
        self.allows(token).then_some(0.0)
    }
    /// Whether a token may be favoured that is not among the likeliest of a row, so that all of them are looked at.
    fn reaches_all(&self) -> bool {
        false
    }
    /// Looks ahead before the first token is drawn. `rows`: the likeliest next tokens first after the prompt, then
    /// after each of the tokens returned last. Returns no tokens when it has seen enough.
    fn ahead(&mut self, _rows: &[Vec<(Token, f32)>]) -> Vec<Token> {
        Vec::new()
    }
    fn accept(&mut self, token: Token);
    /// Why no token may follow: a phrase.
    fn stuck(&self) -> String;
}

/// How a model quotes: all that another process needs to make the same [`Constraint`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quoting {
    /// The words that begin a quote, up to and with the mark.
    pub opening: String,
    /// What a word counts for a sentence that shares it with the question, in logits; 0 is off.
    pub words: f32,
    /// What the length of a sentence counts for it, in logits; 0 is off.
    pub length: f32,
    /// How far a sentence is in front of others, in logits, where a quote of it is neither favoured nor the contrary; 0 is off.
    pub margin: f32,
    /// What a word counts for a sentence that has one related to it, in logits; 0 is off.
    pub related: f32,
    /// How strongly a quote is favoured by the share of the question that its sentence covers, in logits from none to
    /// all of it; 0 is off.
    pub covered: f32,
    pub thesaurus: String,
}

/// Makes a [`Constrain`] for each run of an answer from the tokens in front of it, and says whether quotes are all that it is about.
#[derive(Clone)]
pub struct Constraint(pub Arc<dyn Fn(&[Token]) -> Box<dyn Constrain> + Send + Sync>, pub Option<Quoting>);

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Constraint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// How likely a token was, and which were likeliest in its place: natural logarithms, before temperature and everything else
/// that the sampling does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Likely {
    /// The token's; of one that is not among the known ones, the least of them, which is more than its own.
    #[serde(with = "exact")]
    pub log_prob: f32,
    #[serde(with = "exact")]
    pub best: Vec<(Token, f32)>,
}
