//! Parameters of a generation: sampling, speculation, and observers of drawn tokens.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Look, Token, exact};

/// Order of the filters: docs/speculative.md §6.1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: u32,
    /// Smallest set with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens below this share of the best.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of prompt and answer; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from tokens that this generation has written; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in this generation; 0 is off.
    pub frequency_penalty: f32,
    /// Noise is keyed by (seed, position), so a seed reproduces a text whatever else changes.
    pub seed: u64,
}

impl Sampling {
    /// `None` at temperature 0, where the seed has no effect.
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
    /// Drafts whenever it is expected to pay.
    #[default]
    Auto,
    On,
    /// Always drafts this many tokens (1..=15).
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
    /// Decides which tokens may be drawn; all may without it.
    #[serde(skip)]
    pub constraint: Option<Constraint>,
    /// Number of likeliest tokens to report with each token: [`EngineEvent::Tokens`](super::EngineEvent::Tokens).
    pub likely: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    Take,
    Instead(Token),
    /// Allowed, as the last one: the text repeats itself ([`Ended::Repeats`](super::Ended::Repeats)).
    Last,
}

/// Sees each token of an answer in order, before it is decoded to text. Its decisions must depend on those tokens
/// alone, so that an answer is the same with speculation on and off.
pub trait Steer: Send {
    fn drawn(&mut self, token: Token, ends: bool) -> Steered;
}

/// The conditions that steering checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Tokens of thought before `</think>` is inserted; 0 is no limit.
    pub thought_tokens: u64,
    pub loops: bool,
}

/// The conditions, and the start of the answer: another process makes the same [`Steering`] from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    pub watched: Watched,
    pub in_thought: bool,
    /// Earlier tokens of that thought.
    pub spent: u64,
}

/// Makes a [`Steer`] for each run of an answer, and names its conditions.
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

/// Decides in order which tokens of an answer may be drawn. The decision must depend only on those tokens and the ones
/// before them, so that an answer is the same with speculation on and off.
pub trait Constrain: Send {
    fn allows(&mut self, token: Token) -> bool;
    /// A bias added to the logit of a token; `None`: not allowed.
    fn favours(&mut self, token: Token) -> Option<f32> {
        self.allows(token).then_some(0.0)
    }
    /// Whether a token outside a row's likeliest may be favoured, which needs all logits.
    fn reaches_all(&self) -> bool {
        false
    }
    /// Probes before the first draw. `rows`: the likeliest next tokens first after the prompt, then after each of the
    /// tokens returned last. Returns no tokens when it has seen enough.
    fn ahead(&mut self, _rows: &[Vec<(Token, f32)>]) -> Vec<Token> {
        Vec::new()
    }
    fn accept(&mut self, token: Token);
    /// A phrase: why no token may follow.
    fn stuck(&self) -> String;
}

/// Parameters of quoting: another process makes the same [`Constraint`] from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quoting {
    /// The words that begin a quote, including the quotation mark.
    pub opening: String,
    /// Weight of each word that a sentence shares with the question, in logits; 0 is off.
    pub words: f32,
    /// Weight of a sentence's length, in logits; 0 is off.
    pub length: f32,
    /// Lead of a sentence over others, in logits, at which a quote of it gets no bias; 0 is off.
    pub margin: f32,
    /// Weight of each word with a related word in the sentence, in logits; 0 is off.
    pub related: f32,
    /// Bias of a quote by the share of the question that its sentence covers, in logits from none to all of it; 0 is
    /// off.
    pub covered: f32,
    pub thesaurus: String,
}

/// Makes a [`Constrain`] for each run of an answer from the tokens before it, and states whether it concerns quotes
/// alone.
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

/// The probability of a token and of the likeliest alternatives: natural logarithms, before temperature and all other
/// sampling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Likely {
    /// The token's own; for a token outside the known ones their minimum, an upper bound.
    #[serde(with = "exact")]
    pub log_prob: f32,
    #[serde(with = "exact")]
    pub best: Vec<(Token, f32)>,
}
