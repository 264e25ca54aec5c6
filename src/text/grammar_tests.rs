use super::*;
use crate::engine::protocol::{Steer, Steered};
use crate::text::Before;
use crate::text::steer::{self, Watched};
use crate::text::tokenizer::tests::{demo, sentencepiece};

#[path = "../../tests/support/closing.rs"]
mod closing;

/// A short text that keeps to a grammar.
pub(crate) fn shortest(masked: &mut dyn Constrain, tokenizer: &Tokenizer) -> String {
    let (stop, mut written) = (tokenizer.stop_ids(&[]), Vec::new());
    let spell = |token| tokenizer.spell(&[token], Before::Text);
    loop {
        assert!(written.len() < 300, "{}", tokenizer.spell(&written, Before::Text));
        let most = tokenizer.max_id;
        let next = closing::next(&mut |t| masked.allows(t), &spell, most, &stop, written.len());
        let Some(token) = next.filter(|t| !stop.contains(t)) else {
            return tokenizer.spell(&written, Before::Text);
        };
        masked.accept(token);
        written.push(token);
    }
}

fn grammars_of(tokenizer: Tokenizer) -> (Arc<Tokenizer>, Grammars) {
    let tokenizer = Arc::new(tokenizer);
    let grammars = Grammars::new(&tokenizer, &tokenizer.stop_ids(&[])).unwrap();
    (tokenizer, grammars)
}

fn grammars() -> (Arc<Tokenizer>, Grammars) {
    grammars_of(demo())
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn what_is_no_json_of_the_schema_cannot_be_drawn() {
    let (tokenizer, grammars) = grammars();
    let constraint = grammars.constraint(&Grammar::Json(schema()), Begin::Answer).unwrap();
    let stop = tokenizer.stop_ids(&[])[0];
    let follows = |text: &str| {
        let mut masked = (constraint.0)(&[]);
        tokenizer.encode_after(text, Before::Text).unwrap().into_iter().all(|token| {
            let allowed = masked.allows(token);
            masked.accept(token);
            allowed
        }) && masked.allows(stop)
    };
    assert!(follows("{\"name\":\"Ann\",\"age\":7}"));
    // White space is no part of it.
    for spaced in [
        "{\"name\": \"Ann\",\"age\":7}",
        "{\"name\":\"Ann\", \"age\":7}",
        "{\n\"name\":\"Ann\",\"age\":7}",
        " {\"name\"",
    ] {
        assert!(!follows(spaced), "{spaced}");
    }
    for wrong in
        ["{}", "{\"name\":\"Ann\"}", "{\"name\":7,\"age\":7}", "Sure: {\"name\"", "{\"name\":\"Ann\",\"age\":7"]
    {
        assert!(!follows(wrong), "{wrong}");
    }
}

#[test]
fn an_answer_of_what_is_left_to_the_grammar_is_json_of_the_schema() {
    let (tokenizer, grammars) = grammars();
    let constraint = grammars.constraint(&Grammar::Json(schema()), Begin::Thought).unwrap();
    let mut masked = (constraint.0)(&[]);
    // Thoughts are free.
    for token in tokenizer.encode_after("Hm {.\n</think>", Before::Text).unwrap() {
        assert!(masked.allows(token));
        masked.accept(token);
    }
    let text = shortest(masked.as_mut(), &tokenizer);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
}

/// What is drawn under a constraint and steered, as a generation does it.
struct Drawn(Box<dyn Constrain>, Box<dyn Steer>, Vec<Token>);

impl Constrain for Drawn {
    fn allows(&mut self, token: Token) -> bool {
        self.0.allows(token)
    }

    fn accept(&mut self, token: Token) {
        let token = match self.1.drawn(token, false) {
            Steered::Take | Steered::Last => token,
            Steered::Instead(other) => other,
        };
        self.0.accept(token);
        self.2.push(token);
    }

    fn stuck(&self) -> String {
        self.0.stuck()
    }
}

#[test]
fn after_a_thought_closed_by_its_budget_the_answer_keeps_to_its_grammar() {
    // The tag is a control token of one, and several tokens of text of the other.
    for tokenizer in [demo(), sentencepiece()] {
        let (tokenizer, grammars) = grammars_of(tokenizer);
        let constraint = grammars.constraint(&Grammar::Json(schema()), Begin::Thought).unwrap();
        let watched = Watched { thought_tokens: 6, loops: false };
        let steering = steer::steering(watched, &tokenizer, Begin::Thought, 0).unwrap().unwrap();
        let mut drawn = Drawn((constraint.0)(&[]), (steering.0)(), Vec::new());
        let thought = tokenizer.encode_after("hm, one two three four five six seven", Before::Text).unwrap();
        thought.iter().take(7).for_each(|token| drawn.accept(*token));
        shortest(&mut drawn, &tokenizer);
        let text = tokenizer.spell(&drawn.2, Before::Text);
        let (thought, answer) = text.split_once("</think>").unwrap();
        assert!(thought.starts_with("hm, ") && answer.starts_with("\n\n{"), "{text}");
        let value: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
    }
}

#[test]
fn an_answer_does_not_end_while_a_thought_is_open() {
    let (tokenizer, grammars) = grammars();
    let constraint = grammars.constraint(&Grammar::Json(json!({ "type": "integer" })), Begin::Thought).unwrap();
    let (mut masked, stop) = ((constraint.0)(&[]), tokenizer.stop_ids(&[])[0]);
    for token in tokenizer.encode_after("Seven.\n</think>7", Before::Text).unwrap() {
        assert!(!masked.allows(stop) && masked.allows(token));
        masked.accept(token);
    }
    assert!(masked.allows(stop));
}

#[test]
fn a_token_that_closes_a_thought_and_begins_the_answer_does_both() {
    let mut json: Value = serde_json::from_slice(include_bytes!("../../tests/tokenizers/pieces.json")).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let first = added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap() + 1;
    for (id, text) in (first..).zip([">{", ">\n\n{", ">no"]) {
        added.push(json!({
            "id": id, "content": text, "special": false, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        }));
    }
    let config: &[u8] = br#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#;
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes(), Some(config), None).unwrap();
    let (tokenizer, grammars) = grammars_of(tokenizer);
    let constraint = grammars.constraint(&Grammar::Json(schema()), Begin::Thought).unwrap();
    let [brace, after_lines, word] = [0, 1, 2].map(|i| first as Token + i);
    for closing in [brace, after_lines] {
        let mut masked = (constraint.0)(&[]);
        for token in tokenizer.encode_after("so a", Before::Text).unwrap() {
            masked.accept(token);
        }
        // A thought may have any text.
        assert!(masked.allows(word) && masked.allows(closing));
        for token in tokenizer.encode_after(".\n</think", Before::Text).unwrap() {
            masked.accept(token);
        }
        assert!(!masked.allows(word) && masked.allows(closing));
        masked.accept(closing);
        let text = format!("{{{}", shortest(masked.as_mut(), &tokenizer));
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
    }
}

#[test]
fn a_grammar_that_cannot_continue_allows_no_token_and_no_end() {
    let (tokenizer, grammars) = grammars();
    let constraint = grammars.constraint(&Grammar::Json(schema()), Begin::Answer).unwrap();
    let mut masked = (constraint.0)(&[]);
    // What the mask would not have let through.
    for token in tokenizer.encode_after("no json", Before::Text).unwrap() {
        masked.accept(token);
    }
    assert_eq!((0..=tokenizer.max_id).find(|token| masked.allows(*token)), None);
    assert!(!masked.stuck().is_empty());
}

#[test]
fn a_schema_that_cannot_be_met_is_refused_with_a_sentence() {
    let (_, grammars) = grammars();
    let refused = |grammar| grammars.constraint(&grammar, Begin::Answer).unwrap_err();
    for schema in
        [json!({ "type": "no such type" }), json!({ "type": "string", "minLength": 5, "maxLength": 2 }), json!(7)]
    {
        let why = refused(Grammar::Json(schema.clone()));
        assert!(!why.is_empty() && !why.contains('\n'), "{schema}: {why}");
    }
    for (limits, says) in [
        (json!({ "type": "integer", "maximum": i64::MIN }), "2^53"),
        (json!({ "type": "integer", "minimum": i64::MAX }), "2^53"),
        (json!({ "type": "integer", "minimum": i64::MAX - 4095 }), "beyond the numbers"),
        (json!({ "type": "number", "minimum": 5.5, "maximum": 4.5 }), "no value keeps to it"),
        (json!({ "type": "integer", "exclusiveMinimum": 4, "maximum": 4 }), "no value keeps to it"),
        (json!({ "type": "string", "minLength": 1_i64 << 60 }), "more than an answer can hold"),
    ] {
        let why = refused(Grammar::Json(limits.clone()));
        assert!(why.contains(says) && !why.contains("panic") && !why.contains("regex"), "{limits}: {why}");
    }
    assert_eq!(refused(Grammar::Json(json!({ "$ref": "#" }))), "no text keeps to it");
    let many = refused(Grammar::Json(json!({ "type": "array", "uniqueItems": true, "x-own": 1 })));
    assert!(many.ends_with("keywords that cannot be enforced: [\"uniqueItems\"]"), "{many}");
    let group = refused(Grammar::Json(json!({ "type": "string", "pattern": "((" })));
    assert!(group.contains("unclosed group"), "{group}");
}

#[test]
fn references_with_escapes_are_followed_and_one_that_leads_nowhere_is_named() {
    let (tokenizer, grammars) = grammars();
    let stop = tokenizer.stop_ids(&[])[0];
    let definitions = json!({
        "a/b": { "const": "slash" }, "a~b": { "const": "tilde" }, "a%b": { "const": "percent" }, "A<b>": { "const": "angle" },
        "in": { "$defs": { "most": { "anyOf": [{ "const": "inner" }, { "type": "array", "items": { "$ref": "#/$defs/a~0b" } }] } } },
    });
    let keeps = |reference: &str, text: &str| {
        let schema = json!({ "$defs": definitions, "type": "object", "properties": { "x": { "$ref": reference } },
            "required": ["x"], "additionalProperties": false });
        let constraint = grammars.constraint(&Grammar::Json(schema), Begin::Answer).unwrap();
        let mut masked = (constraint.0)(&[]);
        tokenizer.encode_after(text, Before::Text).unwrap().into_iter().all(|token| {
            let allowed = masked.allows(token);
            masked.accept(token);
            allowed
        }) && masked.allows(stop)
    };
    for (reference, value) in [
        ("#/%24defs/A%3Cb%3E", "\"angle\""),
        ("#/$defs/a~0b", "\"tilde\""),
        ("#/$defs/a%25b", "\"percent\""),
        ("#/$defs/a%b", "\"percent\""),
        ("#/$defs/in/$defs/most", "\"inner\""),
        ("#/$defs/in/$defs/most/anyOf/1", "[\"tilde\"]"),
    ] {
        assert!(keeps(reference, &format!("{{\"x\":{value}}}")), "{reference}");
        assert!(!keeps(reference, "{\"x\":\"other\"}"), "{reference}");
    }
    for lost in ["#/$defs/a~1b", "#/$defs/in/3", "#/properties/x/0", "other.json", "#anchor"] {
        let schema = json!({ "$defs": definitions, "properties": { "x": { "$ref": lost } } });
        let why = grammars.constraint(&Grammar::Json(schema), Begin::Answer).unwrap_err();
        assert!(why.contains(&format!("'{lost}'")) && !why.contains('\n'), "{why}");
    }
    // What nothing refers to may refer to what it likes.
    let unused = json!({ "$defs": { "x": { "$ref": "other.json" } }, "type": "integer" });
    assert!(grammars.constraint(&Grammar::Json(unused), Begin::Answer).is_ok());
}
