//! Answers that keep to a grammar: a JSON schema becomes a mask over tokens, by `llguidance`.
//!
//! The allowed next tokens depend on the answer's tokens alone. Thoughts before an answer are free. Grammars are untrusted:
//! they are compiled with the library's limits, and what fails there is a sentence.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::references;
use super::stream::{Begin, StreamDecoder};
use super::tighten::tighten;
use super::tokenizer::Tokenizer;
use super::vocabulary::Piece;
use crate::core::caught::caught;
use crate::engine::protocol::{Constrain, Constraint, Token};

/// Stack of a thread that compiles: the library recurses with every property and every reference. What compiles in the
/// child that tries a schema compiles here too.
const STACK_BYTES: usize = 64 << 20;
/// Bytes of a text that are tried with a schema.
const TRIED_BYTES: usize = 64;
const NOTHING: &str = "no text keeps to it";
/// The library's words for a reference to another schema.
const OUTSIDE: &str = "Only absolute $ref's (#/...) are supported without 'referencing' feature; ref";

/// Does what the library may fail at, on a thread with a deep stack. The error is a phrase.
fn deep<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> Result<T, String> {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, || caught(work)).ok()?.join().ok().flatten()
    });
    done.ok_or("the library fails on it")?.map_err(|e| one_line(&e.to_string()))
}

/// What compiles for these tokens, of which `end` ends a text.
fn factory(words: &[Vec<u8>], end: Token) -> Result<ParserFactory, String> {
    deep(|| {
        let count = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(count, end), words)));
        let mut factory = ParserFactory::new_simple(&environment)?;
        factory.quiet();
        Ok(factory)
    })
}

/// What keeps a text to a grammar. The error is a phrase: it is no grammar, no text keeps to it, or it is beyond a limit.
fn compile(factory: &ParserFactory, grammar: &Grammar) -> Result<Matcher, String> {
    deep(|| {
        let grammar = match grammar {
            Grammar::Json(schema) => {
                let mut schema = compact(schema);
                references::spell_out(&mut schema);
                tighten(&mut schema).map_err(anyhow::Error::msg)?;
                TopLevelGrammar::from_json_schema(schema)
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        };
        let mut matcher = Matcher::new(Ok(factory.create_parser(grammar)?));
        anyhow::ensure!(!matcher.compute_mask_or_eos()?.is_zero(), NOTHING);
        Ok(matcher)
    })
}

/// Why a grammar cannot be used. It is compiled for texts of single bytes, and a text is begun with it.
pub(super) fn trial(grammar: &Grammar) -> Result<Option<String>, String> {
    let end = Token::from(u8::MAX) + 1;
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], &b"end"[..]].concat());
    let factory = factory(&words, end)?;
    let begin = |mut matcher: Matcher| {
        for _ in 0..TRIED_BYTES {
            if matcher.is_stopped() {
                break;
            }
            let mask = matcher.compute_mask()?;
            let mut bytes = (0..=u8::MAX).filter(|byte| mask.is_allowed(Token::from(*byte)));
            // Limits on the parts of a text rather than on its end.
            let inner = |byte: &u8| !byte.is_ascii_whitespace() && !b"}],".contains(byte);
            let Some(next) = bytes.clone().find(inner).or_else(|| bytes.next()) else { break };
            matcher.consume_token(Token::from(next))?;
        }
        Ok(())
    };
    Ok(compile(&factory, grammar).and_then(|matcher| deep(|| begin(matcher))).err())
}

/// A schema without white space between the parts of a text, unless it has settings of its own: white space takes time, and a small
/// model that may write any amount of it writes nothing else.
fn compact(schema: &Value) -> Value {
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert_with(|| json!({ "whitespace_flexible": false }));
    }
    schema
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    Json(Value),
    /// A text that this regular expression matches from its beginning to its end.
    Regex(String),
    Choice(Vec<String>),
}

impl Grammar {
    pub fn object() -> Grammar {
        Grammar::Json(json!({ "type": "object" }))
    }
}

pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    stop: Vec<Token>,
}

impl Grammars {
    pub fn new(tokenizer: &Arc<Tokenizer>, stop: &[Token]) -> Result<Grammars, String> {
        let end = stop.first().copied().ok_or("this model has no token that ends an answer")?;
        let words: Vec<Vec<u8>> = (0..=tokenizer.max_id)
            .map(|id| match tokenizer.pieces.get(id) {
                Piece::Bytes(bytes) => bytes.to_vec(),
                // Marked: never taken for text.
                Piece::Special(literal) => [&[TokTrie::SPECIAL_TOKEN_MARKER], literal.as_bytes()].concat(),
            })
            .collect();
        let factory = factory(&words, end)?;
        Ok(Grammars { factory, tokenizer: Arc::clone(tokenizer), stop: stop.to_vec() })
    }

    /// What keeps an answer that begins like this to a grammar, or a phrase as `compile`.
    pub fn constraint(&self, grammar: &Grammar, begin: Begin) -> Result<Constraint, String> {
        let first = Mutex::new(compile(&self.factory, grammar)?);
        let (tokenizer, stop) = (Arc::clone(&self.tokenizer), self.stop.clone());
        let make = move |_: &[Token]| -> Box<dyn Constrain> {
            let matcher = first.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
            let thoughts = (begin == Begin::Thought).then(|| StreamDecoder::new(tokenizer.clone(), begin));
            let (tokenizer, stop) = (tokenizer.clone(), stop.clone());
            Box::new(Masked { matcher, mask: None, thoughts, begun: false, tokenizer, stop })
        };
        Ok(Constraint(Arc::new(make), None))
    }
}

/// The library's message on one line. For a regular expression the error is on the last line; for a schema that only refers to
/// itself there is a single word.
fn one_line(text: &str) -> String {
    let plain = [
        ("panic", "the library fails on it"),
        ("oneOf constraints are not supported", "the parts of a oneOf overlap; anyOf can be kept to"),
        ("Failed to generate regex", "its limits are beyond the numbers that can be kept to"),
    ];
    if let Some((_, instead)) = plain.into_iter().find(|(begin, _)| text.starts_with(begin)) {
        return instead.to_owned();
    }
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let first = lines.next().unwrap_or("it cannot be used");
    let line = match lines.next_back().filter(|_| first.ends_with(':')) {
        _ if StopReason::NoExtensionBias.to_string() == first => NOTHING.to_owned(),
        Some(last) => format!("{first} {last}"),
        None => first
            .replace("Unimplemented keys", "keywords that cannot be enforced")
            .replace(OUTSIDE, "a $ref must point into the schema, as #/$defs/NAME, not to")
            .replace("Unsatisfiable schema", "no value keeps to it"),
    };
    line.chars().take(300).collect()
}

struct Masked {
    matcher: Matcher,
    /// Allowed next tokens, once computed.
    mask: Option<SimpleVob>,
    /// While a thought is open, which is free.
    thoughts: Option<StreamDecoder>,
    /// More than white space follows the thought.
    begun: bool,
    tokenizer: Arc<Tokenizer>,
    stop: Vec<Token>,
}

impl Masked {
    /// Allowed next tokens; `None` at the end of the text or after a failure of the library.
    fn mask(&mut self) -> Option<&SimpleVob> {
        if self.mask.is_none() && !self.matcher.is_stopped() {
            self.mask = self.matcher.compute_mask().ok();
        }
        self.mask.as_ref()
    }

    /// Tokens of this text, however it was cut when it was drawn.
    fn tokens(&self, text: &[u8]) -> Vec<Token> {
        self.matcher.tok_env().map_or_else(|_| Vec::new(), |env| env.tok_trie().greedy_tokenize(text))
    }

    fn takes(&mut self, text: &[u8]) -> bool {
        let tokens = self.tokens(text);
        self.matcher.validate_tokens(&tokens).is_ok_and(|valid| valid == tokens.len())
    }

    /// Consumes the beginning of the answer. The white space that a template forces after a thought is left out where the grammar
    /// does not begin with it.
    fn begin(&mut self, text: &[u8]) {
        let own = text.trim_ascii_start();
        let text = if own.len() == text.len() || self.takes(text) { text } else { own };
        self.begun = !own.is_empty();
        let tokens = self.tokens(text);
        if !tokens.is_empty() {
            self.consume(&tokens);
        }
    }

    fn consume(&mut self, tokens: &[Token]) {
        self.mask = None;
        // A failure here shows as a position without an allowed token.
        let _ = self.matcher.consume_tokens(tokens);
    }

    fn is_text(&self, token: Token) -> bool {
        matches!(self.tokenizer.pieces.get(token), Piece::Bytes(bytes) if !bytes.is_empty())
    }
}

impl Constrain for Masked {
    fn allows(&mut self, token: Token) -> bool {
        if let Some(thoughts) = &self.thoughts {
            let rest = thoughts.after_thought(token).map(<[u8]>::to_vec);
            // A thought is not the answer: it is closed by the model or by its budget.
            let ends = self.stop.contains(&token);
            return !ends && rest.is_none_or(|text| self.takes(&text) || self.takes(text.trim_ascii_start()));
        }
        if self.stop.contains(&token) {
            // Looks for what is recognised late. A text with which the library failed is not complete.
            let continues = self.mask().is_some();
            return match self.matcher.stop_reason() {
                StopReason::NotStopped => continues && self.matcher.is_accepting().unwrap_or(false),
                StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence => true,
                _ => false,
            };
        }
        self.is_text(token) && self.mask().is_some_and(|mask| mask.is_allowed(token))
    }

    fn accept(&mut self, token: Token) {
        if let Some(thoughts) = &mut self.thoughts {
            let rest = thoughts.after_thought(token).map(<[u8]>::to_vec);
            thoughts.push(token);
            if !thoughts.in_thought() {
                self.thoughts = None;
                self.begin(&rest.unwrap_or_default());
            }
            return;
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        match tokenizer.pieces.get(token) {
            _ if self.stop.contains(&token) => {}
            Piece::Bytes(text) if !self.begun => self.begin(text),
            Piece::Bytes(_) | Piece::Special(_) => self.consume(&[token]),
        }
    }

    fn stuck(&self) -> String {
        match self.matcher.get_error() {
            Some(why) => one_line(&why),
            None => format!("no token continues it ({})", self.matcher.stop_reason()),
        }
    }
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
pub(crate) mod tests;
