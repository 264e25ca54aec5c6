//! Fields for sampling and for the form of an answer, the same in every API.

use serde_json::Value;

use super::Shared;
use super::fields::{Fields, kind};
use super::params::{Limits, Params};
use super::refusal::Refusal;
use crate::engine::protocol::{MOST_TEMPERATURE, MOST_TOKENS, TOP_LOGITS};
use crate::runtime::fresh_seed;
use crate::runtime::protocol::ThinkMode;
use crate::text::grammar::Grammar;

/// Maximum stop texts of a request.
const STOPS: usize = 16;
const STOP_BYTES: usize = 1 << 10;

/// The grammar of an answer, and the field that it is from.
pub(super) type Format = Option<(Grammar, &'static str)>;

/// Reads stop texts: a text or a list of texts.
fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, Refusal> {
    let list = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    if list.len() > STOPS {
        return Err(fields.wrong(name, format!("has {} texts, at most {STOPS} are allowed", list.len())));
    }
    list.into_iter()
        .map(|stop| match stop {
            Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES => Ok(text),
            Value::String(_) => Err(fields.wrong(name, format!("must be texts of 1 to {STOP_BYTES} bytes"))),
            other => Err(fields.wrong(name, format!("must be a text or a list of texts, there is {}", kind(&other)))),
        })
        .collect()
}

/// Reads the fields that all APIs share; `stop` is the field of stop texts, `most` the requested maximum of tokens.
pub(super) fn params(
    shared: &Shared,
    fields: &mut Fields,
    stop: &'static str,
    most: Option<u64>,
) -> Result<Params, Refusal> {
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
        sampling.top_k = u32::try_from(k).unwrap_or(u32::MAX);
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
        stop: stops(fields, stop)?,
        spec: defaults.spec,
        thinking_budget: defaults.thinking_budget,
        stop_loops: defaults.stop_loops,
        ..Params::default()
    })
}

/// Reads the reasoning effort: only `none` and `minimal` change the answer, the other levels are all alike.
pub(super) fn effort(fields: &mut Fields, name: &'static str, mode: ThinkMode) -> Result<ThinkMode, Refusal> {
    match fields.text(name)?.as_deref() {
        Some("none" | "minimal") => Ok(ThinkMode::Off),
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(mode),
        Some(_) => Err(fields.wrong(name, "must be none, minimal, low, medium, high, xhigh or max")),
    }
}

/// Reads the maximum of tokens, of which the first field counts.
pub(super) fn most_tokens(fields: &mut Fields, names: &[&'static str], least: u64) -> Result<Option<u64>, Refusal> {
    let mut most = None;
    for name in names {
        let sent =
            if fields.is_unlimited(name) { Some(MOST_TOKENS) } else { fields.whole(name, least..=MOST_TOKENS)? };
        most = most.or(sent);
    }
    Ok(most)
}

/// Whether the model thinks, and after how many tokens of thought the answer begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thinking {
    pub mode: ThinkMode,
    pub budget: Option<u64>,
}

impl Thinking {
    fn switch(&mut self, on: Option<bool>) {
        match on {
            Some(true) => self.mode = ThinkMode::On,
            Some(false) => self.mode = ThinkMode::Off,
            None => {}
        }
    }

    /// Reads a switch: a boolean, or an object with `type` (Anthropic) or with `enabled`, `effort` and `max_tokens`.
    fn object(&mut self, fields: &mut Fields, name: &'static str) -> Result<(), Refusal> {
        if fields.peek(name).is_some_and(|value| value.is_boolean()) {
            self.switch(fields.truth(name)?);
            return Ok(());
        }
        let Some(mut inner) = fields.object(name)? else { return Ok(()) };
        match inner.text("type")?.as_deref() {
            Some("enabled" | "adaptive" | "auto") => self.mode = ThinkMode::On,
            Some("disabled") => self.mode = ThinkMode::Off,
            None => {}
            Some(_) => return Err(inner.wrong("type", "must be enabled, adaptive or disabled")),
        }
        self.switch(inner.truth("enabled")?);
        self.mode = effort(&mut inner, "effort", self.mode)?;
        for budget in ["budget_tokens", "max_tokens"] {
            self.budget = inner.whole(budget, 1..=MOST_TOKENS)?.or(self.budget);
        }
        inner.ignore(&["display", "summary", "generate_summary", "exclude", "clear_thinking"]);
        inner.done()
    }

    /// Reads the field `thinking` alone, for Anthropic's API.
    pub(super) fn of_messages(shared: &Shared, fields: &mut Fields) -> Result<Thinking, Refusal> {
        let mut thinking = Thinking { mode: shared.options.settings.think, budget: None };
        thinking.object(fields, "thinking")?;
        Ok(thinking)
    }

    /// Reads every field of a chat that controls thinking.
    pub(super) fn of_chat(shared: &Shared, fields: &mut Fields) -> Result<Thinking, Refusal> {
        let mode = effort(fields, "reasoning_effort", shared.options.settings.think)?;
        let mut thinking = Thinking { mode, budget: None };
        thinking.object(fields, "thinking")?;
        thinking.object(fields, "reasoning")?;
        thinking.switch(fields.truth("enable_thinking")?);
        for budget in ["thinking_budget", "reasoning_budget"] {
            if !fields.is_unlimited(budget) {
                thinking.budget = fields.whole(budget, 0..=MOST_TOKENS)?.or(thinking.budget);
            }
        }
        if thinking.budget == Some(0) {
            thinking = Thinking { mode: ThinkMode::Off, budget: None };
        }
        if let Some(mut inner) = fields.object("chat_template_kwargs")? {
            thinking.switch(inner.truth("thinking")?);
            thinking.switch(inner.truth("enable_thinking")?);
            inner.done()?;
        }
        Ok(thinking)
    }
}

/// Reads the format of `response_format` and of `text.format` in a response; the latter has the schema as a field of
/// the format itself. `field` is the one that an error about a missing schema names.
pub(super) fn format_of(mut format: Fields, field: &'static str) -> Result<Option<Grammar>, Refusal> {
    let of = format.text("type")?;
    let schema_of = |mut inner: Fields| {
        let schema = inner.need("schema")?;
        inner.ignore(&["name", "description", "strict"]);
        inner.done()?;
        schema_grammar(schema, &format!("{field}.schema")).map(Some)
    };
    match of.as_deref() {
        Some("text") => format.done().map(|()| None),
        Some("json_object") => match format.take("schema") {
            Some(schema) => format.done().and_then(|()| schema_grammar(schema, field)).map(Some),
            None => format.done().map(|()| Some(Grammar::object())),
        },
        Some("json_schema") => match format.object("json_schema")? {
            Some(inner) => format.done().and_then(|()| schema_of(inner)),
            None if format.peek("schema").is_none() => format.need(field).map(|_| None),
            None => schema_of(format),
        },
        _ => Err(format.wrong("type", "must be text, json_object or json_schema")),
    }
}

/// Reads a schema, which some clients send as JSON in a string.
fn schema_grammar(schema: Value, field: &str) -> Result<Grammar, Refusal> {
    match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map(Grammar::Json)
            .map_err(|e| Refusal::field(field, format!("{field} is a text that is no JSON schema: {e}"))),
        other => Ok(Grammar::Json(other)),
    }
}

/// Reads `response_format`, or the format in the fields of other servers of open models.
pub(super) fn response_format(fields: &mut Fields) -> Result<Format, Refusal> {
    let format = fields.object("response_format")?.map_or(Ok(None), |format| format_of(format, "json_schema"))?;
    let other = other_formats(fields)?;
    Ok(format.map(|grammar| (grammar, "response_format")).or(other))
}

fn other_formats(fields: &mut Fields) -> Result<Format, Refusal> {
    for name in ["grammar", "guided_grammar", "ebnf"] {
        fields.refuse_because(name, "is not supported: send a JSON schema, a regular expression or a choice", |v| {
            v == ""
        })?;
    }
    let flat = one_format(fields, &["guided_json", "json_schema"], &["guided_regex", "regex"], "guided_choice")?;
    let Some(mut inner) = fields.object("structured_outputs")? else { return Ok(flat) };
    for name in ["grammar", "structural_tag"] {
        inner.refuse_because(name, "is not supported: send json, regex, choice or json_object", |v| v == "")?;
    }
    let any_object = inner.truth("json_object")? == Some(true);
    let format = one_format(&mut inner, &["json"], &["regex"], "choice")?.map(|(grammar, _)| grammar);
    inner.done()?;
    let format = format.or(any_object.then(Grammar::object)).map(|grammar| (grammar, "structured_outputs"));
    Ok(format.or(flat))
}

/// Reads a schema, a regular expression or a choice of texts, each by the names of its fields.
fn one_format(
    fields: &mut Fields,
    json: &[&'static str],
    regex: &[&'static str],
    choice: &'static str,
) -> Result<Format, Refusal> {
    let mut format = None;
    for name in json {
        let at = fields.name(name);
        let schema = fields.take(name).map(|schema| schema_grammar(schema, &at)).transpose()?;
        format = format.or(schema.map(|grammar| (grammar, *name)));
    }
    for name in regex {
        let regex = fields.text(name)?.filter(|regex| !regex.is_empty());
        format = format.or(regex.map(|regex| (Grammar::Regex(regex), *name)));
    }
    let Some(list) = fields.list(choice)? else { return Ok(format) };
    let texts: Option<Vec<String>> = list.iter().map(|text| text.as_str().map(str::to_owned)).collect();
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(format.or(Some((Grammar::Choice(texts), choice)))),
        None => Err(fields.wrong(choice, "must be a list of texts")),
    }
}
