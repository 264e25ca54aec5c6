//! The model of an answer: whether it can give one, and whether it is the one that a request names.

use super::refusal::Refusal;
use super::{EngineIs, Shared};
use crate::engine::protocol::ModelInfo;

/// The model, if it can answer.
pub(super) fn model(shared: &Shared) -> Result<ModelInfo, Refusal> {
    match shared.engine() {
        EngineIs::Ready(info) => Ok(*info),
        EngineIs::Loading { what, done } => {
            Err(Refusal::new(503, "model_loading", format!("the model is being loaded: {what}, {:.0} %", done * 100.0)))
        }
        EngineIs::Down(down) => Err(Refusal::internal(down.why)),
    }
}

/// The model, if it is the one that a request names.
pub(super) fn model_named(shared: &Shared, name: Option<String>) -> Result<ModelInfo, Refusal> {
    let model = model(shared)?;
    match name {
        Some(name) if !name.eq_ignore_ascii_case(&model.name) && name != "default" => {
            let message = format!("there is no model {name} here, only {} (or default)", model.name);
            let mut refusal = Refusal::new(404, "model_not_found", message);
            refusal.param = Some("model".into());
            Err(refusal)
        }
        _ => Ok(model),
    }
}
