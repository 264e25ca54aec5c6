//! The fields of a request that every object of its response repeats: each field is present, with its default if the
//! request omits it.

use serde_json::{Map, Value, json};

use crate::engine::protocol::Sampling;
use crate::server::fields::{Fields, kind};
use crate::server::refusal::Refusal;
use crate::server::response::number;
use crate::server::tools::Tools;

#[derive(Clone, Debug)]
pub(super) struct Repeated {
    pub instructions: Option<String>,
    pub previous: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub store: bool,
    pub effort: Option<String>,
    pub sampling: Sampling,
    pub tools: Tools,
    pub text: Value,
    pub noted: Map<String, Value>,
}

impl Default for Repeated {
    fn default() -> Self {
        Repeated {
            instructions: None,
            previous: None,
            max_output_tokens: None,
            store: true,
            effort: None,
            sampling: Sampling::default(),
            tools: Tools::default(),
            text: text(None),
            noted: noted(&mut Fields::default()).unwrap_or_default(),
        }
    }
}

/// Reads the fields that are repeated but have no effect.
pub(super) fn noted(fields: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let metadata = match fields.take("metadata") {
        None => Map::new(),
        Some(Value::Object(map)) if map.values().all(Value::is_string) => map,
        Some(Value::Object(_)) => return Err(fields.wrong("metadata", "must hold strings")),
        Some(other) => return Err(fields.wrong("metadata", format!("must be an object, it is {}", kind(&other)))),
    };
    // A prompt that is too long is refused, which both values allow.
    let truncation = fields.text("truncation")?.unwrap_or_else(|| "disabled".to_owned());
    if !["auto", "disabled"].contains(&&*truncation) {
        return Err(fields.wrong("truncation", "must be auto or disabled"));
    }
    let mut noted = Map::new();
    noted.insert("metadata".into(), metadata.into());
    noted.insert("truncation".into(), truncation.into());
    // Limits tools that the server runs: it runs none.
    noted.insert("max_tool_calls".into(), fields.whole("max_tool_calls", 1..=u64::from(u32::MAX))?.into());
    for name in ["safety_identifier", "prompt_cache_key", "user"] {
        noted.insert(name.into(), fields.text(name)?.into());
    }
    Ok(noted)
}

/// The format of an answer for the response; the default is text.
pub(super) fn text(given: Option<&Value>) -> Value {
    let format = given.and_then(|given| given.get("format")).filter(|format| !format.is_null());
    let mut shown = match format {
        Some(format) if format["type"] == "json_schema" => {
            let of = format.get("json_schema").unwrap_or(format);
            json!({ "format": {
                "type": "json_schema",
                "name": of.get("name").cloned().unwrap_or_else(|| "answer".into()),
                "description": of.get("description"),
                "schema": of.get("schema"),
                "strict": of.get("strict").is_some_and(|strict| strict == true),
            } })
        }
        Some(format) => json!({ "format": { "type": format["type"] } }),
        None => json!({ "format": { "type": "text" } }),
    };
    if let Some(verbosity) = given.and_then(|given| given.get("verbosity")).filter(|v| !v.is_null()) {
        shown["verbosity"] = verbosity.clone();
    }
    shown
}

impl Repeated {
    pub(super) fn shown(&self) -> Value {
        let (tools, tool_choice) = self.tools.shown();
        let sampling = &self.sampling;
        let mut shown = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": !self.tools.one_call(),
            "previous_response_id": self.previous,
            "reasoning": { "effort": self.effort, "summary": null },
            "store": self.store,
            "temperature": number(sampling.temperature),
            "text": self.text,
            "tool_choice": tool_choice,
            "tools": tools,
            "top_logprobs": 0,
            "top_p": number(sampling.top_p),
            "presence_penalty": number(sampling.presence_penalty),
            "frequency_penalty": number(sampling.frequency_penalty),
        });
        for (name, value) in &self.noted {
            shown[name] = value.clone();
        }
        shown
    }
}
