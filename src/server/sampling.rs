//! Fields for sampling and for the form of an answer, the same in every API.

use serde_json::Value;

use super::params::Limits;
use super::{Fields, Params, Refusal, Result, Shared, Thinking, kind};
use crate::engine::protocol::{MOST_TEMPERATURE, MOST_TOKENS, TOP_LOGITS};
use crate::runtime::fresh_seed;
use crate::runtime::protocol::ThinkMode;
use crate::text::grammar::Grammar;

const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 1 << 10;

/// The grammar of an answer, and the field that it is from.
pub(super) type Format = Option<(Grammar, &'static str)>;

fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>> {
    let list = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    if list.len() > MOST_STOPS {
        return Err(fields.wrong(name, format!("has {} texts, at most {MOST_STOPS} are allowed", list.len())));
    }
    list.into_iter()
        .map(|stop| match stop {
            Value::String(text) if !text.is_empty() && text.len() <= MOST_STOP_BYTES => Ok(text),
            Value::String(_) => Err(fields.wrong(name, format!("must be texts of 1 to {MOST_STOP_BYTES} bytes"))),
            other => Err(fields.wrong(name, format!("must be a text or a list of texts, there is {}", kind(&other)))),
        })
        .collect()
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

/// Reads the reasoning effort: only `none` and `minimal` change the answer, the other levels are all alike.
fn effort(fields: &mut Fields, name: &'static str, mode: ThinkMode) -> Result<ThinkMode> {
    match fields.text(name)?.as_deref() {
        Some("none" | "minimal") => Ok(ThinkMode::Off),
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(mode),
        Some(_) => Err(fields.wrong(name, "must be none, minimal, low, medium, high, xhigh or max")),
    }
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

impl Thinking {
    fn switch(&mut self, on: Option<bool>) {
        self.mode = on.map_or(self.mode, |on| if on { ThinkMode::On } else { ThinkMode::Off });
    }

    /// Reads a switch: a boolean, or an object with `type` (Anthropic) or with `enabled`, `effort` and `max_tokens`.
    fn object(&mut self, fields: &mut Fields, name: &'static str) -> Result<()> {
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

    /// Reads one field alone: `thinking` of Anthropic's API, `reasoning` of a response.
    pub(super) fn of_field(shared: &Shared, fields: &mut Fields, name: &'static str) -> Result<Thinking> {
        let mut thinking = Thinking { mode: shared.options.settings.think, budget: None };
        thinking.object(fields, name)?;
        Ok(thinking)
    }

    /// Reads every field of a chat that controls thinking.
    pub(super) fn of_chat(shared: &Shared, fields: &mut Fields) -> Result<Thinking> {
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
        let mut inner = fields.object("chat_template_kwargs")?.unwrap_or_default();
        thinking.switch(inner.truth("thinking")?);
        thinking.switch(inner.truth("enable_thinking")?);
        inner.done().map(|()| thinking)
    }
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
    Ok(format.or(other_formats(fields)?))
}

fn other_formats(fields: &mut Fields) -> Result<Format> {
    for name in ["grammar", "guided_grammar", "ebnf"] {
        fields.refuse_because(name, "is not supported: send a JSON schema, a regular expression or a choice", |v| {
            v == ""
        })?;
    }
    let flat = one_format(fields, &["guided_json", "json_schema"], &["guided_regex", "regex"], "guided_choice")?;
    let mut inner = fields.object("structured_outputs")?.unwrap_or_default();
    for name in ["grammar", "structural_tag"] {
        inner.refuse_because(name, "is not supported: send json, regex, choice or json_object", |v| v == "")?;
    }
    let any_object = inner.on("json_object")?;
    let format = one_format(&mut inner, &["json"], &["regex"], "choice")?.map(|(grammar, _)| grammar);
    inner.done()?;
    let format = format.or(any_object.then(Grammar::object)).map(|grammar| (grammar, "structured_outputs"));
    Ok(format.or(flat))
}

fn one_format(
    fields: &mut Fields,
    json: &[&'static str],
    regex: &[&'static str],
    choice: &'static str,
) -> Result<Format> {
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
