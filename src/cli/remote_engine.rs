//! From settings to a server that answers: its address, and its key, which is read here and shown nowhere.

use std::path::Path;
use std::time::Duration;

use super::{Context, Exit, Failure};
use crate::client::remote::{Key, Patience, RemoteOptions, address, in_the_open};
use crate::config::settings::EngineSource;

/// What the settings say of a server; `None` where this machine answers.
pub fn options(context: &Context) -> Result<Option<RemoteOptions>, Failure> {
    let engine = &context.config().engine;
    let EngineSource::Url(named) = context.config().engine_source() else { return Ok(None) };
    let url = address(&named).map_err(Failure::usage)?;
    let key = key(context, in_the_open(&url))?;
    let seconds = Duration::from_secs;
    Ok(Some(RemoteOptions {
        url: named,
        model: Some(engine.model.trim()).filter(|m| !m.is_empty()).map(str::to_owned),
        key,
        context: Some(engine.context).filter(|c| *c > 0),
        patience: Patience {
            first: seconds(engine.wait_s),
            stall: seconds(engine.stall_s),
            answer: seconds(engine.answer_s),
            ..Patience::default()
        },
        one_question: false,
    }))
}

/// The key of the file, else of the variable. A key without an explicit setting is not sent over an open connection.
fn key(context: &Context, open: bool) -> Result<Option<Key>, Failure> {
    let engine = &context.config().engine;
    let bad = |what: String, why: &str| Failure::new(Exit::Usage, format!("The key in {what} cannot be used: {why}"));
    if !engine.key_file.is_empty() {
        let file = Path::new(&engine.key_file);
        return Key::read(file).map(Some).map_err(|why| bad(format!("engine.key_file {}", file.display()), &why));
    }
    let named = context.loaded.origins.contains_key("engine.key_env");
    let value = match std::env::var(&engine.key_env) {
        Ok(value) if !value.trim().is_empty() && (named || !open) => value,
        Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(bad(format!("the variable {}", engine.key_env), "it holds characters that no key has"));
        }
    };
    Key::new(&value).map(Some).map_err(|why| bad(format!("the variable {}", engine.key_env), why))
}
