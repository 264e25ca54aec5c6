//! Functions that a request offers: read from each API, shown to the model, and forced if the request says so.
//!
//! The tools of a namespace become separate functions, named `NAMESPACE__NAME` to the model; a custom tool, which
//! takes free text, turns into a function with one text. Tools that the server would have to run are left out.
//!
//! A deferred function, and one that a later turn adds, is described in the text of the turn that offers it, so that the
//! text before it stays as it was.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::choice::{Choice, choice_named, choice_of, in_namespace};
use super::turns::Offer;
use super::{Call, Calls, Fields, Refusal, Result, Turn, kind, leave_out};
use crate::text::grammar::Grammar;
use crate::text::references::each;

/// The field of the schema in Anthropic's functions.
pub(super) const ANTHROPIC: &str = "input_schema";
const MOST_FUNCTIONS: usize = 256;
/// For templates without functions.
pub(super) const FORM: &str = "A call is written as JSON between two marks, and its result is then told to you:\n\
                    <tool_call>\n{\"name\": NAME, \"arguments\": {…}}\n</tool_call>";

/// Serialized as the model reads it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Tool {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    parameters: Value,
    #[serde(skip)]
    strict: Option<bool>,
    /// It takes free text, as the one argument `input`.
    #[serde(skip)]
    custom: bool,
    /// Its namespace, and its name there.
    #[serde(skip)]
    listed: Option<(String, String)>,
    /// The system text describes it.
    #[serde(skip)]
    first: bool,
    /// It may be called after the last turn.
    #[serde(skip)]
    open: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tools {
    /// Of several with one name, the last one counts.
    list: Vec<Tool>,
    pub choice: Choice,
    pub one_call: bool,
    /// The request used `functions`: an answer has one `function_call`.
    pub legacy: bool,
}

fn tool(mut fields: Fields, schema: &'static str) -> Result<Tool> {
    let name = fields.need_text("name")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
        return Err(fields.wrong("name", "must be 1 to 128 letters, digits, _, -, ., : or /"));
    }
    let description = fields.text("description")?;
    let parameters = match fields.take(schema) {
        None => json!({ "type": "object", "properties": {} }),
        Some(Value::Object(map)) => Value::Object(map),
        Some(other) => return Err(fields.wrong(schema, format!("must be a JSON schema, it is {}", kind(&other)))),
    };
    let strict = fields.truth("strict")?;
    // The model calls functions directly, not from a program that it writes.
    fields.refuse("allowed_callers", |v| v.as_array().is_some_and(|by| by.contains(&json!("direct"))))?;
    fields.ignore(&["cache_control", "input_examples", "eager_input_streaming", "output_schema"]);
    let first = !fields.on("defer_loading")?;
    fields.done()?;
    Ok(Tool { name, description, parameters, strict, custom: false, listed: None, first, open: first })
}

/// Reads a custom tool. The model sees its grammar, but the server does not enforce it.
fn custom(mut fields: Fields) -> Result<Tool> {
    let format = fields.take("format");
    let mut tool = tool(fields, "parameters")?;
    let format = format.filter(|format| format["type"] != "text");
    let grammar = format.as_ref().and_then(|f| f["definition"].as_str().or(f["grammar"]["definition"].as_str()));
    if format.is_some() && !leave_out("tools[].format") {
        return Err(Refusal::field("tools", "tools: the grammar of a custom tool is not enforced here"));
    }
    if let Some(grammar) = grammar {
        let description = tool.description.unwrap_or_default();
        tool.description = Some(format!("{description}\nThe input follows this grammar:\n{grammar}"));
    }
    tool.custom = true;
    tool.parameters = json!({
        "type": "object",
        "properties": { "input": { "type": "string" } },
        "required": ["input"],
        "additionalProperties": false,
    });
    Ok(tool)
}

/// Reads an entry of a list of tools; one that is left out adds none. `schema`: the field of a plain function's schema.
fn entry(mut fields: Fields, schema: &'static str, list: &mut Vec<Tool>) -> Result<()> {
    let of = fields.text("type")?;
    // In Anthropic's API `custom` is a plain function; elsewhere it takes free text.
    let is_custom = schema != ANTHROPIC;
    let by_code =
        fields.peek("allowed_callers").is_some_and(|v| v.as_array().is_some_and(|by| !by.contains(&json!("direct"))));
    if by_code && leave_out(&fields.name("allowed_callers")) {
        return Ok(());
    }
    match of.as_deref() {
        None | Some("function") => {
            let schema = if fields.has("function") { "parameters" } else { schema };
            list.push(tool(fields.below("function")?, schema)?);
        }
        Some("custom") if is_custom => list.push(custom(fields.below("custom")?)?),
        Some("custom") => list.push(tool(fields, schema)?),
        Some("namespace") if is_custom => {
            let namespace = fields.need_text("name")?;
            let from = list.len();
            fields.objects("tools")?.into_iter().try_for_each(|tool| entry(tool, schema, list))?;
            fields.ignore(&["description"]);
            fields.done()?;
            for tool in list.iter_mut().skip(from) {
                let flat = in_namespace(&namespace, &tool.name);
                tool.listed = Some((namespace.clone(), std::mem::replace(&mut tool.name, flat)));
            }
        }
        Some(other) => {
            if !leave_out(&fields.name(other)) {
                let what = format!("is {other:?}, which is not supported: name a function");
                return Err(fields.wrong("type", what).unsupported());
            }
        }
    }
    Ok(())
}

/// The functions, and the names and types of the tools that are left out.
fn list(fields: &mut Fields, name: &'static str, schema: &'static str) -> Result<(Vec<Tool>, Vec<Value>)> {
    let (mut list, mut left) = (Vec::new(), Vec::new());
    for tool in fields.objects(name)? {
        let (names, before) = ([tool.peek("name"), tool.peek("type")], list.len());
        entry(tool, schema, &mut list)?;
        if list.len() == before {
            left.extend(names.into_iter().flatten().filter(|name| name != "function"));
        }
    }
    if list.len() > MOST_FUNCTIONS {
        return Err(fields.wrong(name, format!("has {} functions, at most {MOST_FUNCTIONS} are allowed", list.len())));
    }
    let mut names = HashSet::new();
    match list.iter().find(|tool| !names.insert(&tool.name)) {
        Some(tool) => Err(fields.wrong(name, format!("has more than one function of the name {}", tool.name))),
        None => Ok((list, left)),
    }
}

/// Functions in words, for a template without them.
pub(super) fn described<'a>(begin: &str, tools: impl IntoIterator<Item = &'a Tool>, end: &str) -> String {
    let lines: String = tools.into_iter().map(|tool| format!("{}\n", json!(tool))).collect();
    format!("{begin} They are described by JSON schemas:\n<tools>\n{lines}</tools>\n{end}")
}

/// Adds what the turns offer and takes away what they withdraw.
fn offers(list: &mut Vec<Tool>, schema: &'static str, turns: &mut [Turn]) -> Result<()> {
    let form = if list.iter().any(|tool| tool.first) { "" } else { FORM };
    for turn in turns {
        let mut added = Vec::new();
        for Offer { place, tool, removed } in std::mem::take(&mut turn.offers) {
            let mut tool = Fields::of(tool, &place)?;
            let (of, name) = (tool.need_text("type")?, tool.text("name")?.unwrap_or_default());
            match (of.as_str(), list.iter().rev().find(|tool| tool.name == name)) {
                ("tool_definition", _) if !removed => entry(tool.need_object("definition")?, schema, &mut added)?,
                ("tool_reference", _) if removed => {
                    added.retain(|tool| tool.name != name);
                    list.iter_mut().filter(|tool| tool.name == name).for_each(|tool| tool.open = false);
                    add(&mut turn.text, &format!("The function {name} may no longer be called."));
                }
                ("tool_reference", Some(known)) => added.extend(Some(known.clone()).filter(|tool| !tool.open)),
                _ if leave_out(&tool.name(&of)) => {}
                _ => return Err(tool.wrong("type", format!("is {of}: it must define or name a function"))),
            }
        }
        if !added.is_empty() {
            add(&mut turn.text, described("You may call these functions from here on.", &added, form).trim_end());
        }
        for mut tool in added {
            list.iter_mut().filter(|old| old.name == tool.name).for_each(|old| old.open = false);
            (tool.first, tool.open) = (false, true);
            list.push(tool);
        }
    }
    Ok(())
}

/// Adds a paragraph.
pub(super) fn add(text: &mut String, more: &str) {
    let gap = if text.is_empty() { "" } else { "\n\n" };
    text.push_str(&format!("{gap}{more}"));
}

/// The model's name of a function; a tool in a namespace also matches its short name.
fn flat(name: &str, list: &[Tool]) -> Option<String> {
    let listed = |tool: &&Tool| tool.listed.as_ref().is_some_and(|(_, own)| own == name);
    let open = || list.iter().filter(|tool| tool.open);
    let tool = open().find(|tool| tool.name == name).or_else(|| open().find(listed));
    tool.map(|tool| tool.name.clone())
}

pub(super) fn custom_input(call: &Call) -> String {
    call.arguments["input"].as_str().map_or_else(|| call.text(), str::to_owned)
}

impl Tools {
    /// Reads `tools`, `parallel_tool_calls` and `tool_choice` of any API; `schema`: the field of a function's schema.
    /// Writes into the turns what they offer.
    pub(super) fn read(fields: &mut Fields, schema: &'static str, turns: &mut [Turn]) -> Result<Tools> {
        let (mut list, left) = list(fields, "tools", schema)?;
        // Where the server would have to search for deferred functions, none waits.
        if left.iter().any(|name| name.as_str().is_some_and(|name| name.starts_with("tool_search"))) {
            list.iter_mut().for_each(|tool| (tool.first, tool.open) = (true, true));
        }
        let legacy = list.is_empty() && fields.has("functions");
        if legacy {
            (list, _) = self::list(fields, "functions", schema)?;
        }
        offers(&mut list, schema, turns)?;
        let mut one_call = fields.truth("parallel_tool_calls")? == Some(false) || legacy;
        let field = if legacy { "function_call" } else { "tool_choice" };
        let mut choice = match fields.take(field) {
            None => Choice::default(),
            Some(Value::String(word)) => choice_named(&word)
                .ok_or_else(|| fields.wrong(field, "must be auto, none, required, or name a function"))?,
            Some(value @ Value::Object(_)) => {
                let mut inner = Fields::of(value, &fields.name(field))?;
                one_call |= inner.on("disable_parallel_tool_use")?;
                match legacy {
                    true => Choice { allowed: Some(vec![inner.need_text("name")?]), must: true },
                    false => choice_of(inner, &left)?,
                }
            }
            Some(other) => return Err(fields.wrong(field, format!("is {}", kind(&other)))),
        };
        let missing = || fields.wrong(field, "asks for a tool that is not in tools, left out, or deferred until named");
        if choice.must && !list.iter().any(|tool| tool.open) {
            return Err(missing());
        }
        for name in choice.allowed.iter_mut().flatten() {
            *name = flat(name, &list).ok_or_else(missing)?;
        }
        Ok(Tools { list, choice, one_call, legacy })
    }

    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.list.iter().rev().find(|tool| tool.name == name).is_some_and(|tool| tool.custom)
    }

    /// The namespace of a function, and its name there.
    pub(super) fn listed(&self, name: &str) -> Option<&(String, String)> {
        self.list.iter().rev().find(|tool| tool.name == name)?.listed.as_ref()
    }

    /// The functions and the choice, in the form of a response.
    pub(super) fn shown(&self) -> (Value, Value) {
        let one = |t: &Tool| {
            json!({
                "type": if t.custom { "custom" } else { "function" },
                "name": t.name,
                "description": t.description,
                "parameters": t.parameters,
                "strict": t.strict,
            })
        };
        let named = |name: &String| json!({ "type": "function", "name": name });
        let choice = match (self.choice.allowed.as_deref(), self.choice.must) {
            (None, false) => json!("auto"),
            (Some([]), _) => json!("none"),
            (None, true) => json!("required"),
            (Some([name]), true) => named(name),
            (Some(names), must) => json!({
                "type": "allowed_tools",
                "mode": if must { "required" } else { "auto" },
                "tools": names.iter().map(named).collect::<Value>(),
            }),
        };
        (self.list.iter().map(one).collect(), choice)
    }

    fn open(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter().filter(|tool| tool.open)
    }

    pub(super) fn may_be_called(&self) -> bool {
        self.open().next().is_some() && self.choice.allowed != Some(Vec::new())
    }

    /// The functions of the system text: later turns do not change them.
    pub(super) fn first(&self) -> Vec<&Tool> {
        self.list.iter().filter(|tool| tool.first && self.choice.allowed != Some(Vec::new())).collect()
    }

    /// The functions of which the answer must call one; `None` if no call is required.
    fn forced(&self) -> Option<Vec<&Tool>> {
        let allowed = |t: &&Tool| self.choice.allowed.as_ref().is_none_or(|names| names.contains(&t.name));
        self.choice.must.then(|| self.open().filter(allowed).collect())
    }

    /// The grammar of an answer with a required call: the call alone, as JSON.
    pub(super) fn grammar(&self) -> Option<Grammar> {
        let wanted = self.forced()?;
        let one = |tool: &Tool, place: &str| {
            let mut arguments = tool.parameters.clone();
            let place = format!("{place}/properties/arguments");
            let has = |name: &str| tool.parameters.get(name).is_some();
            if !has("type") && has("properties") && !["$ref", "allOf", "anyOf", "oneOf"].into_iter().any(has) {
                arguments["type"] = "object".into();
            }
            if arguments.get("type").is_some_and(|of| of == "object") {
                move_to(&place, &mut arguments);
            } else {
                // Arguments are an object, even if their schema does not require one.
                move_to(&format!("{place}/allOf/1"), &mut arguments);
                arguments = json!({ "allOf": [{ "type": "object" }, arguments] });
            }
            json!({
                "type": "object",
                "properties": { "name": { "const": tool.name }, "arguments": arguments },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        Some(Grammar::Json(match wanted.as_slice() {
            [] => return None,
            [tool] => one(tool, ""),
            tools => {
                let each = tools.iter().enumerate().map(|(i, tool)| one(tool, &format!("/anyOf/{i}")));
                json!({ "anyOf": each.collect::<Value>() })
            }
        }))
    }

    pub(super) fn calls(&self) -> Option<Calls> {
        let open = || self.open().map(|tool| tool.name.clone()).collect();
        let closed = self.list.iter().any(|tool| !tool.open);
        let only = self.choice.allowed.clone().or_else(|| closed.then(open));
        self.may_be_called().then(|| Calls::new(self.choice.must, only))
    }
}

/// Rewrites a schema for its `place` in another one, a JSON pointer. Only references by pointer are relative to the
/// root: those to an address or an anchor stay. An `$id` moves no root, as in the library that compiles schemas.
fn move_to(place: &str, schema: &mut Value) {
    each(schema, &mut |reference: &mut String| {
        let pointer = reference.strip_prefix('#').filter(|p| p.is_empty() || p.starts_with('/'));
        if let Some(pointer) = pointer {
            *reference = format!("#{place}{pointer}");
        }
    });
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
