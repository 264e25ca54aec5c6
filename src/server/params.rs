//! How an answer is sampled, what form it has and where it ends: the fields for that, the same in every API, and the
//! tokens that a request favours, forbids, or allows to end its answer (`logit_bias`, `min_tokens`, `stop_token_ids`).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::request::token_id;
use super::{Calls, Fields, Refusal, Result, Shared, token_list};
use crate::engine::protocol::{
    Constrain, Constraint, MOST_TEMPERATURE, MOST_TOKENS, Sampling, SpecMode, TOP_LOGITS, Token, Watched,
};
use crate::runtime::fresh_seed;
use crate::text::grammar::Grammar;

const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 1 << 10;
/// Bias that forbids a token, from OpenAI's API.
const FORBIDDEN: f32 = -100.0;
/// Each token of an answer is compared with the list.
const MOST_ENTRIES: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(super) struct Params {
    pub sampling: Sampling,
    pub limits: Limits,
    pub max_tokens: u64,
    /// The number of answers.
    pub wanted: usize,
    pub streamed: bool,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    pub spec: SpecMode,
    /// Tokens of thought after which the answer begins; 0 sets no limit.
    pub thinking_budget: u64,
    pub stop_loops: bool,
    /// Unchanged text: thoughts are not separated.
    pub raw: bool,
    pub calls: Option<Calls>,
    pub one_call: bool,
    pub constraint: Option<Constraint>,
    /// Log-probabilities of the answer's tokens, with this many alternatives each.
    pub likely: Option<u8>,
    /// The same for the prompt's tokens.
    pub score: Option<u8>,
}

impl Params {
    /// The conditions that end an answer early. An answer with a grammar must stay valid to its end, however
    /// repetitive: only the grammar or the maximum length ends it.
    pub(super) fn watched(&self) -> Watched {
        // A constraint on quotes alone leaves the answer free.
        let bound = self.constraint.as_ref().is_some_and(|constraint| constraint.1.is_none());
        Watched { thought_tokens: self.thinking_budget, loops: self.stop_loops && !bound }
    }
}

/// The grammar of an answer, and the field that it is from.
pub(super) type Format = Option<(Grammar, &'static str)>;

fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>> {
    let list = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    let text = |stop: &Value| stop.as_str().filter(|t| (1..=MOST_STOP_BYTES).contains(&t.len())).map(str::to_owned);
    let texts: Option<Vec<String>> = list.iter().map(text).collect();
    texts.filter(|texts| texts.len() <= MOST_STOPS).ok_or_else(|| {
        fields
            .wrong(name, format!("must be a text or at most {MOST_STOPS} texts, each of 1 to {MOST_STOP_BYTES} bytes"))
    })
}

/// Reads the fields that all APIs share; `stop` is the field of stop texts, `most` the requested maximum of tokens.
pub(super) fn params(shared: &Shared, fields: &mut Fields, stop: &'static str, most: Option<u64>) -> Result<Params> {
    let defaults = &shared.options.settings;
    let mut sampling = defaults.for_answer(fresh_seed);
    fields.set("temperature", 0.0..=MOST_TEMPERATURE, &mut sampling.temperature)?;
    fields.set("top_p", 0.0..=1.0, &mut sampling.top_p)?;
    fields.set("min_p", 0.0..=1.0, &mut sampling.min_p)?;
    fields.set("presence_penalty", -2.0..=2.0, &mut sampling.presence_penalty)?;
    fields.set("frequency_penalty", -2.0..=2.0, &mut sampling.frequency_penalty)?;
    fields.set("repeat_penalty", 0.1..=10.0, &mut sampling.repeat_penalty)?;
    fields.set("repetition_penalty", 0.1..=10.0, &mut sampling.repeat_penalty)?;
    if fields.is_unlimited("top_k") {
        sampling.top_k = 0;
    } else if let Some(k) = fields.whole("top_k", 0..=TOP_LOGITS as u64)? {
        sampling.top_k = k;
    }
    if let Some(seed) = fields.take("seed") {
        // Any whole number is a seed, negative ones too.
        let seed = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        sampling.seed = seed.ok_or_else(|| fields.wrong("seed", "must be a whole number of 64 bits"))?;
    }
    // The server always uses a kept prefix.
    fields.ignore(&["cache_prompt"]);
    Ok(Params {
        sampling,
        limits: Limits::read(shared, fields)?,
        max_tokens: most.unwrap_or(defaults.max_tokens),
        wanted: 1,
        streamed: fields.on("stream")?,
        stop: stops(fields, stop)?,
        spec: defaults.spec,
        thinking_budget: defaults.thinking_budget,
        stop_loops: defaults.stop_loops,
        ..Params::default()
    })
}

/// Reads the maximum of tokens, of which the first field counts.
pub(super) fn most_tokens(fields: &mut Fields, names: &[&'static str], least: u64) -> Result<Option<u64>> {
    let mut most = None;
    for name in names {
        let sent =
            if fields.is_unlimited(name) { Some(MOST_TOKENS) } else { fields.whole(name, least..=MOST_TOKENS)? };
        most = most.or(sent);
    }
    Ok(most)
}

/// Reads a format of the field `name`. Its schema is in its field `below`, or in a field of its own.
pub(super) fn format_of(format: Option<Fields>, name: &'static str, below: &'static str) -> Result<Format> {
    let Some(mut format) = format else { return Ok(None) };
    let grammar = match format.text("type")?.as_deref() {
        Some("text") => return format.done().map(|()| None),
        Some("json_object") => {
            let schema = format.take("schema");
            format.done()?;
            schema.map_or(Ok(Grammar::object()), |schema| schema_grammar(schema, below))?
        }
        Some("json_schema") => {
            if !format.has("schema") && !format.has("json_schema") {
                format.require(below)?;
            }
            let mut inner = format.below("json_schema")?;
            let schema = inner.need("schema")?;
            inner.ignore(&["name", "description", "strict"]);
            inner.done()?;
            schema_grammar(schema, &format!("{below}.schema"))?
        }
        _ => return Err(format.wrong("type", "must be text, json_object or json_schema")),
    };
    Ok(Some((grammar, name)))
}

/// Reads a schema, which some clients send as JSON in a string.
fn schema_grammar(schema: Value, field: &str) -> Result<Grammar> {
    match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map(Grammar::Json)
            .map_err(|e| Refusal::field(field, format!("{field} is a text that is no JSON schema: {e}"))),
        other => Ok(Grammar::Json(other)),
    }
}

/// Reads `response_format`, or the format in the fields of other servers of open models.
pub(super) fn response_format(fields: &mut Fields) -> Result<Format> {
    let format = format_of(fields.object("response_format")?, "response_format", "json_schema")?;
    let structured = fields.object("structured_outputs")?.map(structured_outputs).transpose()?.flatten();
    let format = format.or(structured.map(|grammar| (grammar, "structured_outputs")));
    let why = "is not supported: send a JSON schema, a regular expression or a choice";
    for name in ["grammar", "guided_grammar", "ebnf"] {
        fields.refuse_because(name, why, |v| v == "")?;
    }
    let older = grammar_of(fields, ["guided_json", "guided_regex"], Some("guided_choice"))?;
    Ok(format.or(older).or(grammar_of(fields, ["json_schema", "regex"], None)?))
}

fn structured_outputs(mut fields: Fields) -> Result<Option<Grammar>> {
    for name in ["grammar", "structural_tag"] {
        fields.refuse_because(name, "is not supported: send json, regex, choice or json_object", |v| v == "")?;
    }
    let format = grammar_of(&mut fields, ["json", "regex"], Some("choice"))?;
    let object = fields.on("json_object")?.then(Grammar::object);
    fields.done().map(|()| format.map(|(grammar, _)| grammar).or(object))
}

/// The first format of these fields, with its field.
fn grammar_of(fields: &mut Fields, [json, regex]: [&'static str; 2], choice: Option<&'static str>) -> Result<Format> {
    let at = fields.name(json);
    let schema = fields.take(json).map(|schema| schema_grammar(schema, &at)).transpose()?;
    let pattern = fields.text(regex)?.filter(|pattern| !pattern.is_empty()).map(Grammar::Regex);
    let format = schema.map(|grammar| (grammar, json)).or(pattern.map(|grammar| (grammar, regex)));
    let Some(choice) = choice else { return Ok(format) };
    let texts: Option<Vec<String>> = fields.typed(choice, "a list of texts")?;
    if texts.as_ref().is_some_and(Vec::is_empty) {
        return Err(fields.wrong(choice, "must be a list of texts, it is empty"));
    }
    Ok(format.or(texts.map(|texts| (Grammar::Choice(texts), choice))))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    bias: Arc<HashMap<Token, f32>>,
    min_tokens: u64,
    /// Further tokens that end the answer; they are not part of it.
    pub stop: Vec<Token>,
}

impl Limits {
    pub(super) fn read(shared: &Shared, fields: &mut Fields) -> Result<Limits> {
        let given: Vec<(Value, Value)> = match fields.take("logit_bias") {
            None => Vec::new(),
            Some(Value::Object(map)) => {
                let number = |text: String| text.parse::<u64>().map_or(Value::Null, Value::from);
                map.into_iter().map(|(token, bias)| (number(token), bias)).collect()
            }
            // The pairs of llama.cpp's server.
            Some(Value::Array(list)) => list.iter().map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
            Some(_) => return Err(fields.wrong("logit_bias", "must be an object of token ids and numbers")),
        };
        let stop = fields.list("stop_token_ids")?.unwrap_or_default();
        for (name, count) in [("logit_bias", given.len()), ("stop_token_ids", stop.len())] {
            if count > MOST_ENTRIES {
                return Err(fields.wrong(name, format!("has more than {MOST_ENTRIES} entries")));
            }
        }
        let stop = token_list(shared, &stop, "stop_token_ids")?;
        let mut bias = HashMap::new();
        for (token, value) in given {
            let value = if value == Value::Bool(false) { Some(f64::from(FORBIDDEN)) } else { value.as_f64() };
            let (Some(token), Some(value)) = (token_id(shared, &token), value.filter(|v| v.abs() <= 100.0)) else {
                let most = shared.renderer.model().tokenizer.max_id;
                let what = format!("must hold token ids from 0 to {most}, each with a number from -100 to 100");
                return Err(fields.wrong("logit_bias", what));
            };
            bias.insert(token, value as f32);
        }
        let min_tokens = fields.whole("min_tokens", 0..=MOST_TOKENS)?.unwrap_or(0);
        Ok(Limits { bias: Arc::new(bias), min_tokens, stop })
    }

    /// A constraint with these limits and `inner`; `ends` are all tokens that end the answer.
    pub(super) fn around(&self, inner: Option<Constraint>, ends: &[Token]) -> Option<Constraint> {
        if self.bias.is_empty() && self.min_tokens == 0 {
            return inner;
        }
        // The grammar decides where its answer ends.
        let min_tokens = if inner.as_ref().is_some_and(|inner| inner.1.is_none()) { 0 } else { self.min_tokens };
        let quoting = inner.as_ref().and_then(|inner| inner.1.clone());
        let (limits, ends): (Limits, Arc<[Token]>) = (Limits { min_tokens, ..self.clone() }, ends.into());
        let make = move |before: &[Token]| -> Box<dyn Constrain> {
            let inner = inner.as_ref().map(|inner| (inner.0)(before));
            Box::new(Limited { inner, limits: limits.clone(), ends: Arc::clone(&ends), written: 0 })
        };
        Some(Constraint(Arc::new(make), quoting))
    }
}

struct Limited {
    inner: Option<Box<dyn Constrain>>,
    limits: Limits,
    ends: Arc<[Token]>,
    written: u64,
}

impl Constrain for Limited {
    fn allows(&mut self, token: Token) -> bool {
        self.favours(token).is_some()
    }

    fn favours(&mut self, token: Token) -> Option<f32> {
        let bias = self.limits.bias.get(&token).copied().unwrap_or(0.0);
        let too_soon = self.written < self.limits.min_tokens && self.ends.contains(&token);
        if bias <= FORBIDDEN || too_soon {
            return None;
        }
        let inner = self.inner.as_mut().map_or(Some(0.0), |inner| inner.favours(token));
        inner.map(|inner| inner + bias)
    }

    fn reaches_all(&self) -> bool {
        self.limits.bias.values().any(|bias| *bias > 0.0)
    }

    fn ahead(&mut self, rows: &[Vec<(Token, f32)>]) -> Vec<Token> {
        self.inner.as_mut().map_or_else(Vec::new, |inner| inner.ahead(rows))
    }

    fn accept(&mut self, token: Token) {
        self.written += 1;
        if let Some(inner) = &mut self.inner {
            inner.accept(token);
        }
    }

    fn stuck(&self) -> String {
        let inner = self.inner.as_ref().map(|inner| inner.stuck());
        inner.unwrap_or_else(|| "logit_bias and min_tokens leave no token that may come next".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::Quoting;

    #[test]
    fn an_answer_that_is_kept_to_a_grammar_is_not_watched_for_loops() {
        let constraint = |quoting| Constraint(Arc::new(|_| unreachable!("nothing is drawn")), quoting);
        let loops = |constraint| {
            let params = Params { thinking_budget: 5, stop_loops: true, constraint, ..Params::default() };
            let watched = params.watched();
            assert_eq!(watched.thought_tokens, 5);
            watched.loops
        };
        assert!(loops(None) && loops(Some(constraint(Some(Quoting::default())))));
        assert!(!loops(Some(constraint(None))));
    }

    #[test]
    fn tokens_are_favoured_forbidden_and_end_the_answer_late_enough() {
        let bias = Arc::new(HashMap::from([(1, 5.0), (2, FORBIDDEN)]));
        let limits = Limits { bias, min_tokens: 2, stop: Vec::new() };
        let Constraint(make, _) = limits.around(None, &[9]).unwrap();
        let mut kept = make(&[]);
        assert_eq!((kept.favours(1), kept.favours(2), kept.favours(3)), (Some(5.0), None, Some(0.0)));
        assert!(kept.reaches_all());
        for _ in 0..2 {
            assert!(!kept.allows(9));
            kept.accept(3);
        }
        assert!(kept.allows(9));
        assert!(Limits::default().around(None, &[9]).is_none());
    }
}
