//! Functions that a request offers: read from each API, shown to the model, and forced if the request says so.
//!
//! The tools of a namespace become separate functions, named `NAMESPACE__NAME` to the model; a custom tool, which
//! takes free text, turns into a function with one text. Tools that the server would have to run are left out.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Call, Calls, Fields, Refusal, Result, kind, leave_out};
use crate::text::grammar::Grammar;
use crate::text::references::each;

/// The field of the schema in Anthropic's functions.
pub(super) const ANTHROPIC: &str = "input_schema";
const MOST_FUNCTIONS: usize = 256;

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
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Choice {
    /// Names of the functions that the model may call; `None`: all.
    allowed: Option<Vec<String>>,
    must: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tools {
    pub list: Vec<Tool>,
    choice: Choice,
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
    fields.ignore(&["cache_control", "defer_loading", "input_examples", "eager_input_streaming", "output_schema"]);
    fields.done()?;
    Ok(Tool { name, description, parameters, strict, custom: false, listed: None })
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

/// The model's name of the function that an object names, with its namespace if it has one.
pub(super) fn called(fields: &mut Fields) -> Result<Option<String>> {
    let (name, namespace) = (fields.text("name")?, fields.text("namespace")?);
    Ok(name.map(|name| namespace.map_or(name.clone(), |namespace| in_namespace(&namespace, &name))))
}

fn in_namespace(namespace: &str, name: &str) -> String {
    let gap = if namespace.is_empty() || namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{gap}{name}")
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

fn choice_named(word: &str) -> Option<Choice> {
    Some(match word {
        "auto" => Choice::default(),
        "none" => Choice { allowed: Some(Vec::new()), must: false },
        "any" | "required" => Choice { allowed: None, must: true },
        _ => return None,
    })
}

/// `left`: names and types of tools that are left out.
fn choice_of(mut inner: Fields, left: &[Value]) -> Result<Choice> {
    let of = inner.text("type")?.unwrap_or_default();
    if of == "allowed_tools" {
        let mut allowed = inner.below("allowed_tools")?;
        let must = match allowed.text("mode")?.as_deref() {
            None | Some("auto") => false,
            Some("required") => true,
            Some(_) => return Err(allowed.wrong("mode", "must be auto or required")),
        };
        let (left, offered): (Vec<_>, Vec<_>) =
            allowed.objects("tools")?.into_iter().partition(|tool| is_left(tool, left));
        let names = offered.into_iter().map(named).filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        // If it names left-out tools alone, no function may be called.
        if names.is_empty() && left.is_empty() {
            return Err(allowed.wrong("tools", "names no function"));
        }
        return allowed.done().map(|()| Choice { must: must && !names.is_empty(), allowed: Some(names) });
    }
    let choice = match (of.as_str(), named(inner)?) {
        ("function" | "tool" | "custom" | "", Some(name)) => Some(Choice { allowed: Some(vec![name]), must: true }),
        (word, None) => choice_named(word),
        (_, Some(_)) => None,
    };
    let what = "tool_choice must be auto, none, any, allowed_tools, or name a function";
    choice.ok_or_else(|| Refusal::field("tool_choice", what))
}

/// Whether an object names a tool that is left out: by its name, or by its type if it has none.
fn is_left(named: &Fields, left: &[Value]) -> bool {
    let name = named.peek("name").or(named.peek("type"));
    name.is_some_and(|name| left.contains(&name)) && leave_out("tool_choice")
}

/// The function that an object names, next to `type` or below `function` or `custom`.
fn named(mut fields: Fields) -> Result<Option<String>> {
    fields.ignore(&["type"]);
    let mut fields = fields.below("function")?.below("custom")?;
    let name = called(&mut fields)?;
    fields.done().map(|()| name)
}

/// The model's name of a function; a tool in a namespace also matches its short name.
fn flat(name: &str, list: &[Tool]) -> Option<String> {
    let listed = |tool: &&Tool| tool.listed.as_ref().is_some_and(|(_, own)| own == name);
    let tool = list.iter().find(|tool| tool.name == name).or_else(|| list.iter().find(listed));
    tool.map(|tool| tool.name.clone())
}

pub(super) fn custom_input(call: &Call) -> String {
    call.arguments["input"].as_str().map_or_else(|| call.text(), str::to_owned)
}

impl Tools {
    /// Reads `tools`, `parallel_tool_calls` and `tool_choice` of any API; `schema`: the field of a function's schema.
    pub(super) fn read(fields: &mut Fields, schema: &'static str) -> Result<Tools> {
        let (mut list, left) = list(fields, "tools", schema)?;
        let legacy = list.is_empty() && fields.has("functions");
        if legacy {
            (list, _) = self::list(fields, "functions", schema)?;
        }
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
                    false if is_left(&inner, &left) => Choice::default(),
                    false => choice_of(inner, &left)?,
                }
            }
            Some(other) => return Err(fields.wrong(field, format!("is {}", kind(&other)))),
        };
        let missing = || fields.wrong(field, "asks for a function that is not in tools");
        if choice.must && list.is_empty() {
            return Err(missing());
        }
        for name in choice.allowed.iter_mut().flatten() {
            *name = flat(name, &list).ok_or_else(missing)?;
        }
        Ok(Tools { list, choice, one_call, legacy })
    }

    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.list.iter().any(|tool| tool.name == name && tool.custom)
    }

    /// The namespace of a function, and its name there.
    pub(super) fn listed(&self, name: &str) -> Option<&(String, String)> {
        self.list.iter().find(|tool| tool.name == name)?.listed.as_ref()
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

    pub(super) fn may_be_called(&self) -> bool {
        !self.list.is_empty() && self.choice.allowed != Some(Vec::new())
    }

    /// The functions of which the answer must call one; `None` if no call is required.
    fn forced(&self) -> Option<Vec<&Tool>> {
        let allowed = |t: &&Tool| self.choice.allowed.as_ref().is_none_or(|names| names.contains(&t.name));
        self.choice.must.then(|| self.list.iter().filter(allowed).collect())
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
        self.may_be_called().then(|| Calls::new(self.choice.must, self.choice.allowed.clone()))
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
