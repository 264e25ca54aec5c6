//! Looks for the server of a data directory and joins it.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;

use super::place::Place;
use super::wire::{Greeting, Refused, VERSION, Welcome};
use super::{Loads, PATIENCE, frame};
use crate::core::plain_words;

pub struct Link {
    pub(super) stream: UnixStream,
    pub(super) from: BufReader<UnixStream>,
    /// `sala-chat serve at 127.0.0.1:8181 (process 4711)`.
    pub(super) host: String,
}

pub enum Found {
    NoServer,
    Server(Box<Link>),
    Unfit(String),
}

fn name(welcome: &Welcome) -> String {
    format!("sala-chat serve at {} (process {})", welcome.address, welcome.pid)
}

fn meet(place: &Place) -> Result<Option<(UnixStream, BufReader<UnixStream>, Welcome)>, String> {
    let silent = |e: io::Error| format!("sala-chat serve of this data directory does not answer ({})", plain_words(&e));
    let Some(stream) = place.connect().map_err(silent)? else { return Ok(None) };
    let greeted = || -> io::Result<_> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let welcome = frame::receive::<serde_json::Value>(&mut from)?;
        Ok((from, welcome))
    };
    // A server that closes the connection at once is ending.
    let Some((from, (welcome, _))) = greeted().map(|(from, w)| w.map(|w| (from, w))).map_err(silent)? else {
        return Ok(None);
    };
    let version = welcome.get("version").and_then(serde_json::Value::as_u64);
    match serde_json::from_value::<Welcome>(welcome) {
        Ok(welcome) if version == Some(u64::from(VERSION)) && welcome.program == env!("CARGO_PKG_VERSION") => {
            Ok(Some((stream, from, welcome)))
        }
        Ok(_) | Err(_) => Err("sala-chat serve of this data directory is of another version".to_owned()),
    }
}

/// The name of the server at a place. `None`: there is none.
///
/// # Errors
/// The server does not answer, or has another version: a sentence without its full stop.
pub fn look(place: &Place) -> Result<Option<String>, String> {
    let Some((stream, _, welcome)) = meet(place)? else { return Ok(None) };
    // The server does not need this message.
    let _ = frame::send(&mut &stream, &Greeting::Look, &[]);
    Ok(Some(name(&welcome)))
}

/// Parks the model of the server at a place once nothing runs there; the server's name. `None`: there is none.
///
/// # Errors
/// The server does not answer, or refuses: a sentence without its full stop.
pub fn park(place: &Place) -> Result<Option<String>, String> {
    let Some((stream, mut from, welcome)) = meet(place)? else { return Ok(None) };
    let host = name(&welcome);
    let mut parked = || -> io::Result<_> {
        frame::send(&mut &stream, &Greeting::Park, &[])?;
        // Running answers end first.
        stream.set_read_timeout(None)?;
        frame::receive::<Refused>(&mut from)
    };
    match parked() {
        Ok(Some((None, _))) => Ok(Some(host)),
        Ok(Some((Some(why), _))) => Err(format!("{host}: {why}")),
        Ok(None) => Err(format!("{host} has ended")),
        Err(e) => Err(format!("{host} does not answer ({})", plain_words(&e))),
    }
}

pub fn find(place: &Place, wanted: &Loads) -> Found {
    let (stream, mut from, welcome) = match meet(place) {
        Ok(Some(met)) => met,
        Ok(None) => return Found::NoServer,
        Err(why) => return Found::Unfit(why),
    };
    let host = name(&welcome);
    if let Some(what) = wanted.difference(&welcome.loads) {
        return Found::Unfit(format!("{host} runs with {what}"));
    }
    let mut join = || -> io::Result<Option<(Refused, Vec<frame::Blob>)>> {
        frame::send(&mut &stream, &Greeting::Join, &[])?;
        let refused = frame::receive::<Refused>(&mut from)?;
        // The server sends nothing while it has no events, but always reads.
        stream.set_read_timeout(None)?;
        Ok(refused)
    };
    match join() {
        Ok(Some((None, _))) => Found::Server(Box::new(Link { stream, from, host })),
        Ok(Some((Some(why), _))) => Found::Unfit(format!("{host}: {why}")),
        Ok(None) => Found::NoServer,
        Err(e) => Found::Unfit(format!("{host} does not answer ({})", plain_words(&e))),
    }
}
