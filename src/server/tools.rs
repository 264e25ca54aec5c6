//! Functions that a request offers: read from each API, shown to the model, and forced where the request says so.

use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::fields::{Fields, kind};
use super::references;
use super::refusal::Refusal;
use super::turns::Turn;
use crate::runtime::render::Renderer;
use crate::text::grammar::Grammar;
use crate::text::{ChatRole, RenderOptions};

/// Where a schema stands in Anthropic's functions.
pub(super) const ANTHROPIC: &str = "input_schema";
/// Functions of one request.
const MOST: usize = 256;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tool {
    name: String,
    description: Option<String>,
    /// A JSON schema.
    parameters: Value,
    /// As it was said.
    strict: Option<bool>,
}

/// Whether the model has to call one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Choice {
    #[default]
    Auto,
    /// It must not.
    None,
    /// One of them.
    Any,
    /// This one.
    Named(String),
    /// Of these only, none or one; or one of them for sure.
    Of { names: Vec<String>, must: bool },
}

/// The functions of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tools {
    list: Vec<Tool>,
    choice: Choice,
    /// There may be one call in an answer, not more.
    one: bool,
}

/// Reads a function whose fields are `name`, `description` and its schema.
fn tool(mut fields: Fields, schema: &'static str) -> Result<Tool, Refusal> {
    let name = fields.text("name")?.ok_or_else(|| fields.wrong("name", "is missing"))?;
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
    // By the model, and not by a program that it writes.
    fields.refuse("allowed_callers", |v| *v == json!(["direct"]))?;
    fields.ignore(&["cache_control", "defer_loading", "input_examples", "eager_input_streaming"]);
    fields.done()?;
    Ok(Tool { name, description, parameters, strict })
}

/// Reads `tools`. `beside` is where the schema stands in a function that is not below `function`.
fn list(fields: &mut Fields, beside: &'static str) -> Result<Vec<Tool>, Refusal> {
    let given = fields.list("tools")?.unwrap_or_default();
    if given.len() > MOST {
        return Err(fields.wrong("tools", format!("has {} functions, at most {MOST} are allowed", given.len())));
    }
    let one = |(i, value): (usize, Value)| {
        let at = format!("tools[{i}]");
        let mut fields = Fields::of(value, &at)?;
        // With Anthropic a plain function; elsewhere one that takes free text, which no schema describes.
        let custom = beside == ANTHROPIC;
        if let Some(other) = fields.take("type").filter(|of| of != "function" && !(custom && of == "custom")) {
            let mut refusal = fields.wrong("type", format!("is {other}, which is not supported: name a function"));
            refusal.code = "unsupported_parameter";
            return Err(refusal);
        }
        match fields.object("function")? {
            Some(function) => fields.done().and_then(|()| tool(function, "parameters")),
            None => tool(fields, beside),
        }
    };
    let list = given.into_iter().enumerate().map(one).collect::<Result<Vec<Tool>, Refusal>>()?;
    let again = list.iter().enumerate().find(|(i, tool)| list.iter().take(*i).any(|before| before.name == tool.name));
    match again {
        Some((_, tool)) => Err(fields.wrong("tools", format!("has more than one function of the name {}", tool.name))),
        None => Ok(list),
    }
}

/// Reads a `tool_choice` that is an object.
fn choice_of(mut inner: Fields) -> Result<Choice, Refusal> {
    let of = inner.text("type")?.unwrap_or_default();
    if of == "allowed_tools" {
        // Beside its type, or below a field of that name.
        let mut allowed = match inner.object("allowed_tools")? {
            Some(below) => inner.done().and(Ok(below))?,
            None => inner,
        };
        let must = match allowed.text("mode")?.as_deref() {
            None | Some("auto") => false,
            Some("required") => true,
            Some(_) => return Err(allowed.wrong("mode", "must be auto or required")),
        };
        let mut names = Vec::new();
        for (i, value) in allowed.list("tools")?.into_iter().flatten().enumerate() {
            names.extend(named(Fields::of(value, &format!("{}[{i}]", allowed.name("tools")))?)?);
        }
        return allowed.done().map(|()| Choice::Of { names, must });
    }
    match (of.as_str(), named(inner)?) {
        ("auto", None) => Ok(Choice::Auto),
        ("none", None) => Ok(Choice::None),
        ("any", None) => Ok(Choice::Any),
        ("function" | "tool", Some(name)) => Ok(Choice::Named(name)),
        _ => {
            Err(Refusal::field("tool_choice", "tool_choice must be auto, none, any, allowed_tools, or name a function"))
        }
    }
}

/// The function that an object names, beside its type or below `function`.
fn named(mut fields: Fields) -> Result<Option<String>, Refusal> {
    fields.ignore(&["type"]);
    let name = match fields.object("function")? {
        Some(mut function) => {
            let name = function.text("name")?;
            function.done()?;
            name
        }
        None => fields.text("name")?,
    };
    fields.done().map(|()| name)
}

impl Tools {
    /// Reads `tools`, `parallel_tool_calls` and `tool_choice` of any of the APIs; `schema` is where a function's schema stands.
    pub(super) fn read(fields: &mut Fields, schema: &'static str) -> Result<Tools, Refusal> {
        let list = list(fields, schema)?;
        let mut one = fields.truth("parallel_tool_calls")? == Some(false);
        let choice = match fields.take("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "required" => Choice::Any,
                _ => return Err(fields.wrong("tool_choice", "must be auto, none, required, or name a function")),
            },
            Some(value @ Value::Object(_)) => {
                let mut inner = Fields::of(value, &fields.name("tool_choice"))?;
                one |= inner.truth("disable_parallel_tool_use")? == Some(true);
                choice_of(inner)?
            }
            Some(other) => return Err(fields.wrong("tool_choice", format!("is {}", kind(&other)))),
        };
        let is_there = |name: &String| list.iter().any(|t| t.name == *name);
        let known = match &choice {
            Choice::Named(name) => is_there(name),
            Choice::Of { names, .. } => !names.is_empty() && names.iter().all(is_there),
            Choice::Any => !list.is_empty(),
            Choice::Auto | Choice::None => true,
        };
        if !known {
            return Err(fields.wrong("tool_choice", "asks for a function that is not in tools"));
        }
        Ok(Tools { list, choice, one })
    }

    /// Whether the answer ends behind its first call.
    pub(super) fn one_call(&self) -> bool {
        self.one
    }

    /// The functions and the choice, as a response tells them.
    pub(super) fn told(&self) -> (Value, Value) {
        let one = |t: &Tool| {
            json!({
                "type": "function",
                "name": t.name,
                "description": t.description,
                "parameters": t.parameters,
                "strict": t.strict,
            })
        };
        let named = |name: &String| json!({ "type": "function", "name": name });
        let choice = match &self.choice {
            Choice::Auto => json!("auto"),
            Choice::None => json!("none"),
            Choice::Any => json!("required"),
            Choice::Named(name) => named(name),
            Choice::Of { names, must } => json!({
                "type": "allowed_tools",
                "mode": if *must { "required" } else { "auto" },
                "tools": names.iter().map(named).collect::<Value>(),
            }),
        };
        (self.list.iter().map(one).collect(), choice)
    }

    /// Whether calls are looked for in the answer.
    pub(super) fn may_be_called(&self) -> bool {
        !self.list.is_empty() && self.choice != Choice::None
    }

    fn as_json(&self) -> Vec<Value> {
        let one = |t: &Tool| {
            let mut function = Map::new();
            function.insert("name".into(), t.name.clone().into());
            if let Some(description) = &t.description {
                function.insert("description".into(), description.clone().into());
            }
            function.insert("parameters".into(), t.parameters.clone());
            json!({ "type": "function", "function": function })
        };
        self.list.iter().map(one).collect()
    }

    /// Shows them to the model: what the template takes, or else words in the system text. Calls that were made are shown also
    /// where nothing may be called any more.
    pub(super) fn show(&self, renderer: &Renderer, turns: &mut Vec<Turn>) -> Vec<Value> {
        let called = turns.iter().any(|turn| !turn.calls.is_empty() || turn.role == ChatRole::Tool);
        if !self.may_be_called() && !called {
            return Vec::new();
        }
        if takes_tools(renderer) {
            return if self.may_be_called() { self.as_json() } else { Vec::new() };
        }
        if self.may_be_called() {
            self.describe(turns);
        }
        // A template without functions knows no calls and no results either.
        for turn in turns.iter_mut() {
            for call in std::mem::take(&mut turn.calls) {
                let call = json!({ "name": call.name, "arguments": call.arguments });
                let gap = if turn.text.is_empty() { "" } else { "\n" };
                turn.text = format!("{}{gap}<tool_call>\n{call}\n</tool_call>", turn.text);
            }
            if turn.role == ChatRole::Tool {
                *turn = Turn::new(ChatRole::User, format!("<tool_response>\n{}\n</tool_response>", turn.text));
            }
        }
        Vec::new()
    }

    /// Describes them in the system text.
    fn describe(&self, turns: &mut Vec<Turn>) {
        let mut text = String::from("You may call these functions. They are described by JSON schemas:\n<tools>\n");
        for tool in self.as_json() {
            text.push_str(&tool["function"].to_string());
            text.push('\n');
        }
        text.push_str(
            "</tools>\nA call is written as JSON between two marks, and its result is then told to you:\n\
             <tool_call>\n{\"name\": NAME, \"arguments\": {…}}\n</tool_call>",
        );
        match turns.first_mut().filter(|t| t.role == ChatRole::System) {
            Some(system) => system.text = format!("{}\n\n{text}", system.text),
            None => turns.insert(0, Turn::new(ChatRole::System, text)),
        }
    }

    /// The functions of which one must be called; `None` where none has to be.
    fn forced(&self) -> Option<Vec<&Tool>> {
        Some(match &self.choice {
            Choice::Auto | Choice::None | Choice::Of { must: false, .. } => return None,
            Choice::Any => self.list.iter().collect(),
            Choice::Named(name) => self.list.iter().filter(|t| t.name == *name).collect(),
            Choice::Of { names, must: true } => self.list.iter().filter(|t| names.contains(&t.name)).collect(),
        })
    }

    /// What an answer has to be that must call a function: the call alone, as JSON.
    pub(super) fn grammar(&self) -> Option<Grammar> {
        let wanted = self.forced()?;
        let one = |tool: &Tool, place: &str| {
            let mut arguments = tool.parameters.clone();
            let place = format!("{place}/properties/arguments");
            if tool.parameters.get("type").is_some_and(|of| of == "object") {
                references::move_to(&place, &mut arguments);
            } else {
                // Arguments are an object, also where their schema does not say so.
                references::move_to(&format!("{place}/allOf/1"), &mut arguments);
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

    /// How calls are looked for in the answer.
    pub(super) fn calls(&self) -> Option<Calls> {
        if !self.may_be_called() {
            return None;
        }
        Some(match (self.forced(), &self.choice) {
            (Some(forced), _) => Calls::whole(forced.into_iter().map(|tool| tool.name.clone()).collect()),
            (None, Choice::Of { names, .. }) => Calls::only(names.clone()),
            (None, _) => Calls::default(),
        })
    }
}

/// Whether the model's template shows functions by itself.
fn takes_tools(renderer: &Renderer) -> bool {
    let messages = json!([{ "role": "user", "content": "?" }]);
    let parameters = json!({ "type": "object", "properties": {}, "required": [] });
    let tool =
        json!({ "type": "function", "function": { "name": "probe", "description": "-", "parameters": parameters } });
    let render = |tools: Vec<Value>| {
        let options = RenderOptions { add_generation_prompt: true, tools, ..RenderOptions::default() };
        renderer.model().template.render_json(&messages, &options)
    };
    render(vec![tool]).is_ok_and(|text| text.contains("probe"))
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
