//! How likely tokens were, in the forms of the completions and of the chat completions.

use serde_json::{Map, Value, json};

use super::ask::Told;
use crate::protocol::engine::{Likely, Token};
use crate::text::{Before, Tokenizer};

/// A number that JSON can hold; what is no number is `null`.
fn number(log_prob: f32) -> Value {
    if log_prob.is_finite() { json!(log_prob) } else { Value::Null }
}

/// The `logprobs` of a completion, filled token by token.
#[derive(Debug, Default)]
pub(super) struct Table {
    tokens: Vec<String>,
    log_probs: Vec<Value>,
    best: Vec<Value>,
    offsets: Vec<usize>,
    /// Characters of the text so far.
    at: usize,
}

impl Table {
    /// For a stretch of text that begins at this character.
    pub(super) fn at(at: usize) -> Table {
        Table { at, ..Table::default() }
    }

    /// One more token; the first of a prompt has nothing before it that could make it likely. A start token that the text is read behind
    /// has no place in it.
    pub(super) fn add(&mut self, tokenizer: &Tokenizer, token: Token, likely: Option<&Likely>) {
        let spell = |token: Token| tokenizer.spell(&[token], Before::Text);
        let text = spell(token);
        let before_the_text = self.tokens.is_empty() && likely.is_none() && Some(token) == tokenizer.bos();
        self.offsets.push(self.at);
        self.at += if before_the_text { 0 } else { text.chars().count() };
        self.log_probs.push(likely.map_or(Value::Null, |l| number(l.log_prob)));
        self.best.push(likely.map_or(Value::Null, |likely| {
            let mut best = Map::new();
            for (token, log_prob) in &likely.best {
                // Most first: of two that are spelled alike the likelier one is told.
                best.entry(spell(*token)).or_insert_with(|| number(*log_prob));
            }
            best.entry(text.clone()).or_insert_with(|| number(likely.log_prob));
            Value::Object(best)
        }));
        self.tokens.push(text);
    }

    /// Where the next stretch begins.
    pub(super) fn end(&self) -> usize {
        self.at
    }

    /// The object.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.log_probs,
            "top_logprobs": self.best,
            "text_offset": self.offsets,
        })
    }
}

/// The `logprobs` of a chat completion; thoughts are left out.
pub(super) fn chat(tokenizer: &Tokenizer, tokens: &[Told]) -> Value {
    let one = |token: Token, log_prob: f32| {
        let text = tokenizer.spell(&[token], Before::Text);
        // Not those of the text: a token may be part of a character, and clients put its bytes together.
        json!({ "token": text, "logprob": number(log_prob), "bytes": tokenizer.bytes(token) })
    };
    let content: Value = tokens
        .iter()
        .filter(|t| !t.thought)
        .map(|told| {
            let mut entry = one(told.token, told.likely.log_prob);
            entry["top_logprobs"] = told.likely.best.iter().map(|(token, log_prob)| one(*token, *log_prob)).collect();
            entry
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Of bytes, and of pieces with byte tokens.
    fn both() -> [Arc<Tokenizer>; 2] {
        let demo = Tokenizer::from_bytes(
            include_bytes!("../../assets/demo/tokenizer.json"),
            Some(include_bytes!("../../assets/demo/tokenizer_config.json")),
            None,
        );
        let config = br#"{"add_bos_token": true, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#;
        let pieces = include_bytes!("../../tests/tokenizers/pieces.json");
        [demo.unwrap(), Tokenizer::from_bytes(pieces, Some(config), None).unwrap()].map(Arc::new)
    }

    fn told(tokens: &[Token]) -> Vec<Told> {
        let likely = |token: Token| Likely { log_prob: -0.5, best: vec![(token, -0.5)] };
        tokens.iter().map(|&token| Told { token, likely: likely(token), thought: false }).collect()
    }

    #[test]
    fn bytes_of_a_token_are_its_own_where_it_is_part_of_a_character() {
        for tokenizer in both() {
            let text = "Meet Jürgen \u{1F9ED} 你<|im_end|>";
            let tokens = tokenizer.encode_behind(text, Before::Text).unwrap();
            let chat = chat(&tokenizer, &told(&tokens));
            let bytes = |entry: &Value| -> Vec<u8> { serde_json::from_value(entry["bytes"].clone()).unwrap() };
            let entries = chat["content"].as_array().unwrap();
            assert_eq!(entries.iter().flat_map(bytes).collect::<Vec<u8>>(), text.as_bytes());
            assert!(entries.iter().any(|e| e["token"] == "\u{FFFD}"), "no character is made of several tokens");
            for entry in entries {
                assert_eq!(bytes(&entry["top_logprobs"][0]), bytes(entry));
            }
        }
    }
}
