//! Shared by chat completions and completions: the frame around choices, finish reasons, log-probabilities.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::stream::{data, data_done};
use super::{Collected, Fields, LikelyToken, Result, Usage, Whole, fresh_id, now_s};
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Token};
use crate::text::{Before, Places, Tokenizer};

pub(super) const MOST_CHOICES: u64 = 16;

pub(super) fn reason(whole: &Whole) -> &'static str {
    match whole.finish {
        Finish::Stop | Finish::Repeats if whole.calls > 0 => "tool_calls",
        Finish::Stop | Finish::Repeats => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Stopped | Finish::Failed => "error",
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.thought_tokens },
    })
}

/// Times in the form of llama.cpp's server.
fn timings(usage: &Usage) -> Value {
    let read = usage.prompt_tokens - usage.cached_tokens;
    let each = |ms: f64, tokens: u64| if tokens > 0 { json!(ms / tokens as f64) } else { Value::Null };
    let per_second = |ms: f64, tokens: u64| if ms > 0.0 { json!(tokens as f64 * 1e3 / ms) } else { Value::Null };
    let mut timings = json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": usage.prompt_ms,
        "prompt_per_token_ms": each(usage.prompt_ms, read),
        "prompt_per_second": per_second(usage.prompt_ms, read),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": usage.predicted_ms,
        "predicted_per_token_ms": each(usage.predicted_ms, usage.completion_tokens),
        "predicted_per_second": per_second(usage.predicted_ms, usage.completion_tokens),
    });
    if usage.drafted_tokens > 0 {
        timings["draft_n"] = usage.drafted_tokens.into();
        timings["draft_n_accepted"] = usage.accepted_tokens.into();
    }
    timings
}

/// The fields of every object of an answer.
pub(super) struct Head {
    id: String,
    model: String,
    pub fingerprint: Option<String>,
    created: u64,
    /// A stream ends with the usage.
    include_usage: bool,
}

impl Head {
    pub(super) fn read(fields: &mut Fields, id: &str, model: String) -> Result<Head> {
        let mut options = fields.object("stream_options")?.unwrap_or_default();
        let include_usage = options.on("include_usage")?;
        options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
        options.done()?;
        Ok(Head { id: fresh_id(id), model, fingerprint: None, created: now_s(), include_usage })
    }

    fn object(&self, of: &str, choices: Value) -> Value {
        let mut object = json!({ "id": self.id, "object": of, "created": self.created, "model": self.model });
        if let Some(fingerprint) = &self.fingerprint {
            object["system_fingerprint"] = fingerprint.as_str().into();
        }
        object["choices"] = choices;
        object
    }

    pub(super) fn whole(&self, of: &str, choices: Value, all: &Usage) -> Value {
        let mut whole = self.object(of, choices);
        whole["usage"] = usage(all);
        whole["timings"] = timings(all);
        whole
    }

    /// Writes an event of a stream. The last event has the times; the usage and the end mark follow it.
    pub(super) fn event(&self, of: &str, choice: Value, all: &Collected, out: &mut String) {
        let mut event = self.object(of, json!([choice]));
        if self.include_usage {
            event["usage"] = Value::Null;
        }
        if !all.is_over() {
            return data(out, &event);
        }
        event["timings"] = timings(&all.usage);
        data(out, &event);
        if self.include_usage {
            data(out, &self.whole(of, json!([]), &all.usage));
        }
        data_done(out);
    }
}

pub(super) const MOST_ALTERNATIVES: u64 = 20;

/// JSON has no infinity and no NaN: they become `null`.
fn number(log_prob: f32) -> Value {
    if log_prob.is_finite() { json!(log_prob) } else { Value::Null }
}

/// The `logprobs` of a completion, filled token by token.
#[derive(Debug, Default, Serialize)]
pub(super) struct Table {
    tokens: Vec<String>,
    #[serde(rename = "token_logprobs")]
    log_probs: Vec<Value>,
    #[serde(rename = "top_logprobs")]
    best: Vec<Value>,
    #[serde(rename = "text_offset")]
    offsets: Vec<usize>,
}

impl Table {
    /// Adds the tokens of a prompt. The first has no log-probability, since no token precedes it. An implicit start
    /// token is not part of the text and is left out.
    pub(super) fn prompt(&mut self, tokenizer: &Arc<Tokenizer>, tokens: &[Token], likely: &[Likely]) {
        let mut places = Places::of_prompt(Arc::clone(tokenizer));
        let known = std::iter::once(None).chain(likely.iter().map(Some));
        for (n, (&token, likely)) in tokens.iter().zip(known).enumerate() {
            let before_the_text = n == 0 && Some(token) == tokenizer.bos;
            let at = if before_the_text { 0 } else { places.next(token) };
            self.add(tokenizer, token, at, likely);
        }
    }

    pub(super) fn answer(&mut self, tokenizer: &Tokenizer, places: &mut Places, tokens: &[LikelyToken]) {
        for token in tokens {
            self.add(tokenizer, token.token, places.next(token.token), Some(&token.likely));
        }
    }

    fn add(&mut self, tokenizer: &Tokenizer, token: Token, at: usize, likely: Option<&Likely>) {
        let spell = |token: Token| tokenizer.spell(&[token], Before::Text);
        let text = spell(token);
        self.offsets.push(at);
        self.log_probs.push(likely.map_or(Value::Null, |l| number(l.log_prob)));
        self.best.push(likely.map_or(Value::Null, |likely| {
            let mut best = Map::new();
            for (token, log_prob) in &likely.best {
                // The list is in descending order: of two tokens with the same spelling, the likelier one stays.
                best.entry(spell(*token)).or_insert_with(|| number(*log_prob));
            }
            best.entry(text.clone()).or_insert_with(|| number(likely.log_prob));
            Value::Object(best)
        }));
        self.tokens.push(text);
    }
}

/// The `logprobs` of a chat completion, without thoughts.
pub(super) fn likely_chat(tokenizer: &Tokenizer, tokens: &[LikelyToken]) -> Value {
    let one = |token: Token, log_prob: f32| {
        let text = tokenizer.spell(&[token], Before::Text);
        // The token's own bytes, not those of the text: it may be part of a character, and clients join the bytes.
        json!({ "token": text, "logprob": number(log_prob), "bytes": tokenizer.bytes(token) })
    };
    let content: Value = tokens
        .iter()
        .filter(|t| !t.thought)
        .map(|token| {
            let mut entry = one(token.token, token.likely.log_prob);
            entry["top_logprobs"] = token.likely.best.iter().map(|(token, log_prob)| one(*token, *log_prob)).collect();
            entry
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::stream::Event;

    #[test]
    fn a_stream_ends_after_its_last_answer_with_what_all_took() {
        let options = json!({ "stream_options": { "include_usage": true } });
        let head = Head::read(&mut Fields::of(options, "").unwrap(), "id-", "m".into()).unwrap();
        let mut all = Collected::new(2);
        let mut out = String::new();
        for (index, over) in [(1, false), (0, true)] {
            let usage = Usage { completion_tokens: 3, thought_tokens: 1, ..Usage::default() };
            let whole = Whole { finish: Finish::Length, stopped_by: None, usage, calls: 0 };
            all.take(index, &Event::Ended(whole.clone()));
            head.event("chunk", json!({ "of": index, "reason": reason(&whole) }), &all, &mut out);
            assert_eq!(all.is_over(), over);
        }
        let events: Vec<&str> = out.split_terminator("\n\n").collect();
        let read = |at: usize| -> Value { serde_json::from_str(events[at].strip_prefix("data: ").unwrap()).unwrap() };
        assert_eq!((&read(0)["choices"], read(0).get("timings")), (&json!([{ "of": 1, "reason": "length" }]), None));
        assert_eq!(read(1)["choices"], json!([{ "of": 0, "reason": "length" }]));
        assert_eq!(read(1)["timings"]["predicted_n"], 6);
        assert_eq!((&read(2)["usage"]["completion_tokens"], &read(2)["choices"]), (&json!(6), &json!([])));
        assert_eq!(events[3..], ["data: [DONE]"]);
    }

    /// One tokenizer of bytes, and one of pieces with byte tokens.
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

    fn token(tokens: &[Token]) -> Vec<LikelyToken> {
        let likely = |token: Token| Likely { log_prob: -0.5, best: vec![(token, -0.5)] };
        tokens.iter().map(|&token| LikelyToken { token, likely: likely(token), thought: false }).collect()
    }

    #[test]
    fn bytes_of_a_token_are_its_own_where_it_is_part_of_a_character() {
        for tokenizer in both() {
            let text = "Meet Jürgen \u{1F9ED} 你<|im_end|>";
            let tokens = tokenizer.encode_after(text, Before::Text).unwrap();
            let chat = likely_chat(&tokenizer, &token(&tokens));
            let bytes = |entry: &Value| -> Vec<u8> { serde_json::from_value(entry["bytes"].clone()).unwrap() };
            let entries = chat["content"].as_array().unwrap();
            assert_eq!(entries.iter().flat_map(bytes).collect::<Vec<u8>>(), text.as_bytes());
            assert!(entries.iter().any(|e| e["token"] == "\u{FFFD}"), "no character is made of several tokens");
            for entry in entries {
                assert_eq!(bytes(&entry["top_logprobs"][0]), bytes(entry));
            }
        }
    }

    /// The index, in characters, of the character that contains byte `at`.
    fn place(text: &str, at: usize) -> usize {
        text.char_indices().take_while(|(begins, _)| *begins <= at).count().saturating_sub(1)
    }

    #[test]
    fn offsets_are_places_in_the_text_where_tokens_are_parts_of_characters() {
        let (prompt, answer) = ("Für \u{1F9ED} a", "Jürgen 你 \u{1F642}b");
        for tokenizer in both() {
            let read = tokenizer.encode_prompt(prompt).unwrap();
            let written = token(&tokenizer.encode_after(answer, Before::Text).unwrap());
            let likely = vec![Likely { log_prob: -0.5, best: Vec::new() }; read.len() - 1];
            let mut table = Table::default();
            table.prompt(&tokenizer, &read, &likely);
            let after = Places::after(Arc::clone(&tokenizer), prompt.chars().count());
            table.answer(&tokenizer, &mut after.clone(), &written);

            // The start token, then by bytes; a tokenizer may put a space of its own in front.
            let bytes = |tokens: &[Token]| tokens.iter().map(|t| tokenizer.bytes(*t).len()).sum::<usize>();
            let own = bytes(&read[1..]) - prompt.len();
            let mut expected = vec![0];
            expected.extend((1..read.len()).map(|n| place(prompt, bytes(&read[1..n]).saturating_sub(own))));
            let whole = format!("{prompt}{answer}");
            let written_ids: Vec<Token> = written.iter().map(|t| t.token).collect();
            let begins = |n: usize| prompt.len() + bytes(&written_ids[..n]);
            expected.extend((0..written.len()).map(|n| place(&whole, begins(n))));
            assert_eq!(table.offsets, expected);
            assert!(expected.windows(2).skip(1).any(|w| w[0] == w[1]), "no character is made of several tokens");

            // A stream has one table for each token.
            let mut places = after;
            let streamed = written.iter().flat_map(|one| {
                let mut table = Table::default();
                table.answer(&tokenizer, &mut places, std::slice::from_ref(one));
                table.offsets
            });
            assert_eq!(streamed.collect::<Vec<usize>>(), expected[read.len()..]);
        }
    }

    #[test]
    fn a_character_that_is_never_completed_has_a_place_and_a_hidden_token_takes_none() {
        for tokenizer in both() {
            let mut tokens = tokenizer.encode_after("a\u{1F642}", Before::Text).unwrap();
            tokens.pop();
            let cut = tokens.len();
            tokens.extend(tokenizer.id("<|im_end|>"));
            tokens.extend(tokenizer.encode_after("b", Before::Text).unwrap());
            let mut decoder = crate::text::StreamDecoder::raw(Arc::clone(&tokenizer));
            let text: String = tokens.iter().map(|t| decoder.push(*t).answer).collect();
            assert_eq!(text, "a\u{FFFD}b");
            let mut places = Places::after(Arc::clone(&tokenizer), 0);
            let places: Vec<usize> = tokens.iter().map(|t| places.next(*t)).collect();
            // The hidden token ends the character.
            assert!(places[1..=cut].iter().all(|at| *at == 1), "{places:?}");
            assert_eq!((places[0], &places[cut + 1..]), (0, &[2][..]));
        }
    }
}
