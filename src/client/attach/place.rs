//! Locates a running server, by three files in `locks/` of its data directory, and greets it.
//!
//! | name | content |
//! |---|---|
//! | `serve.lock` | locked by the server while it runs; the system unlocks it when the process ends |
//! | `serve.sock` | the socket, mode 0600 |
//! | `serve.json` | for people and scripts: address, process, socket; mode 0600, written whole |
//!
//! The socket alone decides: the socket of a killed server refuses connections. The holder of the lock may remove the
//! files of an earlier server.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::wire::{self, Greeting, Refused, VERSION, Welcome};
use super::{Loads, PATIENCE};
use crate::core::{files, plain_words};

const PATH: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) place: Place,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A remaining file does no harm: the socket refuses connections.
        let _ = std::fs::remove_file(self.place.record());
        let _ = std::fs::remove_file(self.place.socket());
    }
}

fn at<T>(socket: &Path, act: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        return act(socket);
    };
    if socket.as_os_str().len() <= PATH {
        return act(socket);
    }
    let open = File::open(folder)?;
    act(&Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())).join(name))
}

impl Place {
    pub fn of(data: &Path) -> Place {
        Place { folder: data.join(crate::core::places::LOCKS) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("serve.sock")
    }

    fn record(&self) -> PathBuf {
        self.folder.join("serve.json")
    }

    pub(super) fn take(&self, address: &str) -> io::Result<Option<(Held, UnixListener)>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let lock = self.folder.join("serve.lock");
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
        }
        let socket = self.socket();
        for stale in [&socket, &self.record()] {
            match std::fs::remove_file(stale) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                Ok(()) | Err(_) => {}
            }
        }
        let listener = at(&socket, |path| UnixListener::bind(path))?;
        let held = Held { place: self.clone(), _lock: lock };
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
        // For people: a path need not be UTF-8.
        let record = json!({ "address": address, "pid": std::process::id(), "socket": socket.to_string_lossy() });
        files::create(&self.record(), format!("{record}\n").as_bytes())?;
        Ok(Some((held, listener)))
    }

    pub(super) fn connect(&self) -> io::Result<Option<UnixStream>> {
        use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
        match at(&self.socket(), |path| UnixStream::connect(path)) {
            Ok(stream) => Ok(Some(stream)),
            Err(e) if matches!(e.kind(), ConnectionRefused | NotFound | NotADirectory) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

pub struct Link {
    pub(super) stream: UnixStream,
    pub(super) from: BufReader<UnixStream>,
    /// `sala-chat serve at 127.0.0.1:8181 (process 4711)`.
    pub(super) host: String,
}

/// Connects to the server at a place. `None`: there is none.
fn meet(place: &Place) -> Result<Option<(Link, Loads)>, String> {
    let silent = |e: io::Error| format!("sala-chat serve of this data directory does not answer ({})", plain_words(&e));
    let Some(stream) = place.connect().map_err(silent)? else { return Ok(None) };
    let greeted = || -> io::Result<_> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let welcome = wire::receive_head::<serde_json::Value>(&mut from)?;
        Ok((from, welcome))
    };
    let (from, welcome) = greeted().map_err(silent)?;
    // A server that closes the connection at once is ending.
    let Some(welcome) = welcome else { return Ok(None) };
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
        wire::send_head(&mut &link.stream, &greeting)?;
        if greeting == Greeting::Park {
            link.stream.set_read_timeout(None)?;
        }
        wire::receive_head(&mut link.from)
    };
    match ask() {
        Ok(Some(Some(why))) => Err(format!("{}: {why}", link.host)),
        Ok(answered) => Ok(answered.is_some()),
        Err(e) => Err(format!("{} does not answer ({})", link.host, plain_words(&e))),
    }
}

/// The name of the server at a place. `None`: there is none.
/// Fails with a sentence without its full stop: the server does not answer, or has another version.
pub fn look(place: &Place) -> Result<Option<String>, String> {
    Ok(meet(place)?.map(|(link, _)| link.host))
}

/// Parks the model of the server at a place once nothing runs there; the server's name. `None`: there is none.
/// Fails with a sentence without its full stop: the server does not answer, or refuses.
pub fn park(place: &Place) -> Result<Option<String>, String> {
    let Some((mut link, _)) = meet(place)? else { return Ok(None) };
    match greet(&mut link, Greeting::Park)? {
        true => Ok(Some(link.host)),
        false => Err(format!("{} has ended", link.host)),
    }
}

/// Joins the server at a place. `None`: there is none.
/// Fails with a sentence without its full stop: the server does not answer, refuses, or loads something else.
pub fn find(place: &Place, wanted: &Loads) -> Result<Option<Link>, String> {
    let Some((mut link, loads)) = meet(place)? else { return Ok(None) };
    if let Some(what) = wanted.difference(&loads) {
        return Err(format!("{} runs with {what}", link.host));
    }
    let joined = greet(&mut link, Greeting::Join)?;
    // The server sends nothing while it has no events, but always reads. A failure shows at the first event.
    let _ = link.stream.set_read_timeout(None);
    Ok(joined.then_some(link))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_place_has_one_holder_and_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(&dir.path().join("data"));
        assert!(place.connect().unwrap().is_none());
        let (held, listener) = place.take("127.0.0.1:1").unwrap().unwrap();
        assert!(place.take("127.0.0.1:2").unwrap().is_none());
        assert_eq!((mode(&place.socket()), mode(&place.record())), (0o600, 0o600));
        assert_eq!(mode(place.socket().parent().unwrap()), 0o700);
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(place.record()).unwrap()).unwrap();
        assert_eq!((&record["address"], &record["pid"]), (&json!("127.0.0.1:1"), &json!(std::process::id())));
        assert!(place.connect().unwrap().is_some());
        drop((held, listener));
        assert!(!place.socket().exists() && !place.record().exists());
        assert!(place.connect().unwrap().is_none());
    }

    #[test]
    fn a_folder_with_a_name_that_is_not_text_is_a_place() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(&dir.path().join(std::ffi::OsStr::from_bytes(b"d\xffta")));
        let (_held, _listener) = place.take("127.0.0.1:1").unwrap().unwrap();
        assert!(place.connect().unwrap().is_some() && place.record().exists());
    }

    #[test]
    fn the_place_of_a_killed_server_is_free_and_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(dir.path());
        let (held, listener) = place.take("127.0.0.1:1").unwrap().unwrap();
        // After a kill the system closes lock and socket, and the files stay.
        let Held { place: _, _lock: lock } = &held;
        lock.unlock().unwrap();
        // Not by closing it: a child that another test forks just then holds it until it runs its program.
        UnixStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both).unwrap();
        std::mem::forget(held);
        assert!(place.socket().exists() && place.connect().unwrap().is_none());
        let (held, _listener) = place.take("127.0.0.1:2").unwrap().unwrap();
        assert!(place.connect().unwrap().is_some());
        drop(held);
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(&dir.path().join("d".repeat(150)));
        let (_held, _listener) = place.take("127.0.0.1:1").unwrap().unwrap();
        assert!(place.connect().unwrap().is_some());
    }
}
