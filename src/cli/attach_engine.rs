//! From settings to an engine of this machine: that of a running `sala-chat serve` of the same data directory, or one of this
//! process.

use std::sync::Arc;

use super::{Context, Exit, Failure, out};
use crate::client::attach::{self, Found, Loads, Place, Way};
use crate::config::settings::EngineSource;
use crate::core::sanitize::Clean;
use crate::engine;
use crate::engine::protocol::{Engine, EngineOptions, RowSource, RowsFault, RowsPlace};
use crate::store::{RealDisk, StoredRows};

pub fn place(context: &Context) -> Place {
    Place::of(&context.dirs.data)
}

pub fn park(context: &Context) -> Result<Exit, Failure> {
    match attach::park(&place(context)) {
        Ok(Some(host)) => {
            out::line(&Clean::line(&format!("{host} is parked: the memory of its model is free.")))?;
            Ok(Exit::Ok)
        }
        Ok(None) => Err(Failure::new(Exit::Failure, "no sala-chat serve runs on this data directory")
            .hint("In a chat, /park does it; from outside, kill -USR1 with its process number")),
        Err(why) => Err(Failure::new(Exit::Failure, why)),
    }
}

/// Opens rows that another process handed over.
pub fn rows(place: &RowsPlace) -> Result<Arc<dyn RowSource>, RowsFault> {
    StoredRows::open(place, Arc::new(RealDisk)).map(|rows| Arc::new(rows) as Arc<dyn RowSource>)
}

/// Begins an engine: a server's, if one runs that loads just this; else one here, which says why if it could have been the other.
pub fn begin(context: &Context, options: EngineOptions) -> std::io::Result<Engine> {
    let (place, wanted) = (place(context), Loads::from(&options));
    let found = match context.config().engine_source() {
        EngineSource::Here | EngineSource::Url(_) => Found::NoServer,
        EngineSource::Any => attach::find(&place, &wanted),
    };
    match found {
        Found::NoServer => engine::spawn(options),
        Found::Unfit(why) => {
            let mut notes = options.notes.clone();
            notes.insert(0, format!("{why}: this terminal loads its own model."));
            engine::spawn(EngineOptions { notes, ..options })
        }
        Found::Server(link) => {
            let find = move || attach::find(&place, &wanted);
            let load = move || engine::spawn(options.clone());
            attach::spawn(*link, Way { find: Box::new(find), load: Box::new(load) })
        }
    }
}
