//! Looks for the server of a data directory, and greets it.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;

use super::place::Place;
use super::wire::{self, Greeting, Refused, VERSION, Welcome};
use super::{Loads, PATIENCE};
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

/// Connects to the server at a place. `None`: there is none.
fn meet(place: &Place) -> Result<Option<(Link, Loads)>, String> {
    let silent = |e: io::Error| format!("sala-chat serve of this data directory does not answer ({})", plain_words(&e));
    let Some(stream) = place.connect().map_err(silent)? else { return Ok(None) };
    let greeted = || -> io::Result<_> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let welcome = wire::receive_frame::<serde_json::Value>(&mut from)?;
        Ok((from, welcome))
    };
    let (from, welcome) = greeted().map_err(silent)?;
    // A server that closes the connection at once is ending.
    let Some((welcome, _)) = welcome else { return Ok(None) };
    match serde_json::from_value::<Welcome>(welcome) {
        Ok(welcome) if welcome.version == VERSION && welcome.program == env!("CARGO_PKG_VERSION") => {
            let host = format!("sala-chat serve at {} (process {})", welcome.address, welcome.pid);
            Ok(Some((Link { stream, from, host }, welcome.loads)))
        }
        Ok(_) | Err(_) => Err("sala-chat serve of this data directory is of another version".to_owned()),
    }
}

/// Sends a greeting and waits for its answer; false if the server has ended.
fn greet(link: &mut Link, greeting: Greeting) -> Result<bool, String> {
    let mut ask = || -> io::Result<Option<Refused>> {
        wire::send_frame(&mut &link.stream, &greeting, &[])?;
        if greeting == Greeting::Park {
            // Running answers end first.
            link.stream.set_read_timeout(None)?;
        }
        Ok(wire::receive_frame::<Refused>(&mut link.from)?.map(|(refused, _)| refused))
    };
    match ask() {
        Ok(Some(Some(why))) => Err(format!("{}: {why}", link.host)),
        Ok(answered) => Ok(answered.is_some()),
        Err(e) => Err(format!("{} does not answer ({})", link.host, plain_words(&e))),
    }
}

/// The name of the server at a place. `None`: there is none.
///
/// # Errors
/// The server does not answer, or has another version: a sentence without its full stop.
pub fn look(place: &Place) -> Result<Option<String>, String> {
    Ok(meet(place)?.map(|(link, _)| link.host))
}

/// Parks the model of the server at a place once nothing runs there; the server's name. `None`: there is none.
///
/// # Errors
/// The server does not answer, or refuses: a sentence without its full stop.
pub fn park(place: &Place) -> Result<Option<String>, String> {
    let Some((mut link, _)) = meet(place)? else { return Ok(None) };
    match greet(&mut link, Greeting::Park)? {
        true => Ok(Some(link.host)),
        false => Err(format!("{} has ended", link.host)),
    }
}

pub fn find(place: &Place, wanted: &Loads) -> Found {
    join(place, wanted)
        .map_or_else(Found::Unfit, |link| link.map_or(Found::NoServer, |link| Found::Server(link.into())))
}

fn join(place: &Place, wanted: &Loads) -> Result<Option<Link>, String> {
    let Some((mut link, loads)) = meet(place)? else { return Ok(None) };
    if let Some(what) = wanted.difference(&loads) {
        return Err(format!("{} runs with {what}", link.host));
    }
    let joined = greet(&mut link, Greeting::Join)?;
    // The server sends nothing while it has no events, but always reads. A failure shows at the first event.
    let _ = link.stream.set_read_timeout(None);
    Ok(joined.then_some(link))
}
