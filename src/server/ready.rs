//! The model of an answer: whether it is ready, and whether a request names it.

use super::refusal::Refusal;
use super::{EngineIs, Shared};
use crate::engine::protocol::ModelInfo;

pub(super) fn model(shared: &Shared) -> Result<ModelInfo, Refusal> {
    match shared.engine() {
        EngineIs::Ready(info) => Ok(*info),
        EngineIs::Loading { what, done } => {
            Err(Refusal::new(503, "model_loading", format!("the model is being loaded: {what}, {:.0} %", done * 100.0)))
        }
        EngineIs::Down(down) => Err(Refusal::internal(down.why)),
    }
}

/// The model, unless a request names another one; a response to an alias repeats the alias.
pub(super) fn model_named(shared: &Shared, name: Option<String>) -> Result<ModelInfo, Refusal> {
    let model = model(shared)?;
    match name.filter(|name| !name.is_empty()) {
        Some(name) if name.eq_ignore_ascii_case(&model.name) || name == "default" => Ok(model),
        Some(name) if shared.rules.model_aliases.iter().any(|alias| matches(alias, &name)) => {
            Ok(ModelInfo { name, ..model })
        }
        Some(name) => {
            let message = format!(
                "there is no model {name} here, only {} (or default); serve.model_aliases adds names",
                model.name
            );
            let mut refusal = Refusal::new(404, "model_not_found", message);
            refusal.param = Some("model".into());
            Err(refusal)
        }
        None => Ok(model),
    }
}

/// Whether a name matches an alias, in which `*` matches any text.
fn matches(alias: &str, name: &str) -> bool {
    match alias.split_once('*') {
        None => alias.eq_ignore_ascii_case(name),
        Some((start, rest)) => {
            let begins = name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
            let ends = || (start.len()..=name.len()).filter_map(|at| name.get(at..));
            begins && ends().any(|end| matches(rest, end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_may_hold_stars() {
        for (alias, name) in
            [("*", "x"), ("*", ""), ("gpt-*", "GPT-4o-mini"), ("*-mini", "o4-mini"), ("a*b*c", "aXbYc")]
        {
            assert!(matches(alias, name), "{alias} {name}");
        }
        for (alias, name) in [("gpt-4o", "gpt-4o-mini"), ("gpt-*", "xgpt-4"), ("*-mini", "o4-mini-2"), ("a*b", "ac")] {
            assert!(!matches(alias, name), "{alias} {name}");
        }
    }
}
