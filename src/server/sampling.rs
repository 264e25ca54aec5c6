//! Fields that say how an answer is drawn and what it has to be, alike in every API.

use serde_json::Value;

use super::Shared;
use super::ask::Wish;
use super::fields::{Fields, kind};
use super::refusal::Refusal;
use crate::engine::protocol::{MOST_TEMPERATURE, TOP_LOGITS};
use crate::runtime::fresh_seed;
use crate::runtime::protocol::ThinkMode;
use crate::text::grammar::Grammar;

/// Stop texts of a request.
const STOPS: usize = 16;
/// Bytes of one.
const STOP_BYTES: usize = 1 << 10;

/// Reads `stop`: a text or a list of them.
pub(super) fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, Refusal> {
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

/// Reads what all APIs have; `most` is the longest answer asked for, if any.
pub(super) fn wish(
    shared: &Shared,
    fields: &mut Fields,
    stop: Vec<String>,
    most: Option<u64>,
) -> Result<Wish, Refusal> {
    let defaults = &shared.settings;
    let mut sampling = defaults.for_answer(fresh_seed);
    let set = |field: &mut f32, value: Option<f32>| {
        if let Some(value) = value {
            *field = value;
        }
    };
    set(&mut sampling.temperature, fields.number("temperature", 0.0..=MOST_TEMPERATURE)?);
    set(&mut sampling.top_p, fields.number("top_p", 0.0..=1.0)?);
    set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
    set(&mut sampling.presence_penalty, fields.number("presence_penalty", -2.0..=2.0)?);
    set(&mut sampling.frequency_penalty, fields.number("frequency_penalty", -2.0..=2.0)?);
    set(&mut sampling.repeat_penalty, fields.number("repetition_penalty", 0.1..=10.0)?);
    // Other servers of open models have this for all of them.
    if fields.peek("top_k").is_some_and(|k| k.as_i64() == Some(-1)) {
        fields.ignore(&["top_k"]);
        sampling.top_k = 0;
    } else if let Some(k) = fields.whole("top_k", 0..=TOP_LOGITS as u64)? {
        sampling.top_k = u32::try_from(k).unwrap_or(u32::MAX);
    }
    if let Some(seed) = fields.take("seed") {
        // Any whole number is a seed, negative ones too.
        let seed = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        sampling.seed = seed.ok_or_else(|| fields.wrong("seed", "must be a whole number of 64 bits"))?;
    }
    Ok(Wish {
        sampling,
        max_tokens: most.unwrap_or(defaults.max_tokens),
        stop,
        spec: defaults.spec,
        thinking_budget: defaults.thinking_budget,
        stop_loops: defaults.stop_loops,
        raw: false,
        calls: None,
        one_call: false,
        constraint: None,
        likely: None,
        score: None,
    })
}

/// Reads how much the model is to think: only not at all is another way to answer here.
pub(super) fn effort(fields: &mut Fields, name: &'static str, mode: ThinkMode) -> Result<ThinkMode, Refusal> {
    match fields.text(name)?.as_deref() {
        Some("none" | "minimal") => Ok(ThinkMode::Off),
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(mode),
        Some(_) => Err(fields.wrong(name, "must be none, minimal, low, medium, high, xhigh or max")),
    }
}

/// Whether the model is to think, as other servers of open models take it and as OpenAI does.
pub(super) fn thinking(shared: &Shared, fields: &mut Fields) -> Result<ThinkMode, Refusal> {
    let mut mode = effort(fields, "reasoning_effort", shared.settings.think)?;
    if let Some(mut inner) = fields.object("chat_template_kwargs")? {
        match inner.truth("enable_thinking")? {
            Some(true) => mode = ThinkMode::On,
            Some(false) => mode = ThinkMode::Off,
            None => {}
        }
        inner.done()?;
    }
    Ok(mode)
}

/// What an answer has to be, as `response_format` and as `text.format` of a response say it: there the schema stands beside its
/// type. `field` is what an API asks for.
pub(super) fn format_of(mut format: Fields, field: &'static str) -> Result<Option<Grammar>, Refusal> {
    let of = format.text("type")?;
    let schema_of = |mut fields: Fields| {
        let schema = fields.need("schema")?;
        fields.ignore(&["name", "description", "strict"]);
        fields.done()?;
        Ok(Some(Grammar::Json(schema)))
    };
    match of.as_deref() {
        Some("text") => format.done().map(|()| None),
        Some("json_object") => format.done().map(|()| Some(Grammar::object())),
        Some("json_schema") => match format.object("json_schema")? {
            Some(inner) => format.done().and_then(|()| schema_of(inner)),
            None if format.peek("schema").is_none() => format.need(field).map(|_| None),
            None => schema_of(format),
        },
        _ => Err(format.wrong("type", "must be text, json_object or json_schema")),
    }
}
