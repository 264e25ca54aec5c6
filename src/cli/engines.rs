//! From settings to what answers: a named server, with its key, which is read here and shown nowhere; an engine of a running
//! `sala-chat serve` of the same data directory; or one of this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Context, Exit, Failure};
use crate::client::attach::{self, Loads, Place, Way};
use crate::client::remote::{Key, Patience, RemoteOptions, address, in_the_open};
use crate::config::settings::server;
use crate::engine;
use crate::engine::protocol::{Engine, EngineOptions, RowSource, RowsFault, RowsPlace};
use crate::store::{RealDisk, StoredRows};

pub fn place(context: &Context) -> Place {
    Place::of(&context.dirs.data)
}

pub fn park(context: &Context) -> Result<Exit, Failure> {
    match attach::park(&place(context)) {
        Ok(Some(host)) => {
            context.print(&format!("{host} is parked: the memory of its model is free.")).map(|()| Exit::Ok)
        }
        Ok(None) => Err(Failure::new(Exit::Failure, "no sala-chat serve runs on this data directory")
            .hint("/park does it in the chat that holds the GPU; from outside: kill -USR1 PID, pgrep sala-chat lists the PIDs")),
        Err(why) => Err(Failure::new(Exit::Failure, why)),
    }
}

pub fn rows(place: &RowsPlace) -> Result<Arc<dyn RowSource>, RowsFault> {
    StoredRows::open(place, Arc::new(RealDisk)).map(|rows| Arc::new(rows) as Arc<dyn RowSource>)
}

/// The engine of a running server that loads exactly this; else one of this process, with a note if a server runs.
pub fn begin(context: &Context, options: EngineOptions) -> std::io::Result<Engine> {
    let (place, wanted) = (place(context), Loads::from(&options));
    let found = match context.config().engine.url.trim() {
        "" => attach::find(&place, &wanted),
        _ => Ok(None),
    };
    match found {
        Ok(None) => engine::spawn(options),
        Err(why) => {
            let mut notes = options.notes.clone();
            notes.insert(0, format!("{why}: this terminal loads its own model."));
            engine::spawn(EngineOptions { notes, ..options })
        }
        Ok(Some(link)) => {
            let find = move || attach::find(&place, &wanted);
            let load = move || engine::spawn(options.clone());
            attach::spawn(link, Way { find: Box::new(find), load: Box::new(load) })
        }
    }
}

/// What the settings say of a server; `None` where this machine answers.
pub fn remote(context: &Context) -> Result<Option<RemoteOptions>, Failure> {
    let engine = &context.config().engine;
    let Some(named) = server(&engine.url) else { return Ok(None) };
    let url = address(named).map_err(Failure::usage)?;
    let key = key(context, in_the_open(&url))?;
    let seconds = Duration::from_secs;
    Ok(Some(RemoteOptions {
        url: named.to_owned(),
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
    let bad = |what: String, why: &str| Failure::new(Exit::Usage, format!("the key in {what} cannot be used: {why}"));
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
