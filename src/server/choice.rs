//! `tool_choice` of any API: which functions an answer may or must call, by name.

use serde_json::Value;

use super::{Fields, Refusal, Result, leave_out};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choice {
    /// Names of the functions that the model may call; `None`: all.
    pub allowed: Option<Vec<String>>,
    pub must: bool,
}

/// The model's name of the function that an object names, with its namespace if it has one.
pub(super) fn called(fields: &mut Fields) -> Result<Option<String>> {
    let (name, namespace) = (fields.text("name")?, fields.text("namespace")?);
    Ok(name.map(|name| namespace.map_or(name.clone(), |namespace| in_namespace(&namespace, &name))))
}

pub(super) fn in_namespace(namespace: &str, name: &str) -> String {
    let gap = if namespace.is_empty() || namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{gap}{name}")
}

pub(super) fn choice_named(word: &str) -> Option<Choice> {
    Some(match word {
        "auto" => Choice::default(),
        "none" => Choice { allowed: Some(Vec::new()), must: false },
        "any" | "required" => Choice { allowed: None, must: true },
        _ => return None,
    })
}

/// `left`: names and types of tools that are left out.
pub(super) fn choice_of(mut inner: Fields, left: &[Value]) -> Result<Choice> {
    let of = inner.text("type")?.unwrap_or_default();
    if of == "allowed_tools" {
        let mut allowed = inner.below("allowed_tools")?;
        let must = match allowed.text("mode")?.as_deref() {
            None | Some("auto") => false,
            Some("required") => true,
            Some(_) => return Err(allowed.wrong("mode", "must be auto or required")),
        };
        let named_by = |tool: &Fields| tool.peek("name").or(tool.peek("type"));
        let is_left =
            |tool: &Fields| named_by(tool).is_some_and(|name| left.contains(&name)) && leave_out("tool_choice");
        let (left, offered): (Vec<_>, Vec<_>) = allowed.objects("tools")?.into_iter().partition(is_left);
        let names = offered.into_iter().map(named).filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        // If it names left-out tools alone, no function may be called.
        if names.is_empty() && (left.is_empty() || must) {
            return Err(allowed.wrong("tools", "names no function"));
        }
        return allowed.done().map(|()| Choice { must, allowed: Some(names) });
    }
    let choice = match (of.as_str(), named(inner)?) {
        ("function" | "tool" | "custom" | "", Some(name)) => Some(Choice { allowed: Some(vec![name]), must: true }),
        (word, None) => choice_named(word),
        (_, Some(_)) => None,
    };
    let what = "tool_choice must be auto, none, any, allowed_tools, or name a function";
    choice.ok_or_else(|| Refusal::field("tool_choice", what))
}

/// The function that an object names, next to `type` or below `function` or `custom`.
fn named(mut fields: Fields) -> Result<Option<String>> {
    fields.ignore(&["type"]);
    let mut fields = fields.below("function")?.below("custom")?;
    let name = called(&mut fields)?;
    fields.done().map(|()| name)
}
