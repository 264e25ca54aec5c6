//! One process writes a session; others may look or fork. Advisory locks in `locks/`, one file per session.
//!
//! The system's file lock decides; it ends with its process, so a stale owner can never block. The file's content only
//! identifies the owner: process id, terminal, since when. A file system without locks does not prevent a session: SQLite
//! has the last word there.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};

use serde::{Deserialize, Serialize};

use super::database::Store;
use super::error::{Result, StoreError};
use crate::core::now_ms;
use crate::core::transcript::SessionId;
use crate::text::clock;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub pid: u32,
    pub tty: Option<String>,
    pub since_ms: i64,
}

/// The right to write a session, released on drop.
#[derive(Debug)]
pub struct SessionLock {
    file: File,
    /// The previous owner, if it ended without releasing the session.
    pub stale: Option<Owner>,
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // Empty content: the owner released it in order. The file stays, because others may be opening it.
        let _ = self.file.set_len(0);
        let _ = File::unlock(&self.file);
    }
}

impl Store {
    /// [`StoreError::InUse`] has the other process's id, terminal and time.
    pub fn lock_session(&self, id: SessionId, name: &str) -> Result<SessionLock> {
        let path = self.layout.locks.join(format!("session-{}.lock", id.0));
        let mut file = self.layout.open_lock(&format!("session-{}", id.0)).map_err(StoreError::io("open", &path))?;
        let before = read_owner(&mut file);
        let in_use = |owner: Option<Owner>| StoreError::InUse {
            name: name.to_owned(),
            pid: owner.as_ref().map_or(0, |o| o.pid),
            tty: owner.as_ref().and_then(|o| o.tty.clone()),
            since: owner.as_ref().map_or_else(|| "just now".into(), |o| local_time(o.since_ms)),
        };
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(in_use(before));
        }
        let me = Owner { pid: std::process::id(), tty: tty(), since_ms: now_ms() };
        let write = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&serde_json::to_vec(&me)?)
        };
        // Only the lock counts; without the content the message to the second process is less precise.
        let _ = write(&mut file);
        Ok(SessionLock { file, stale: before })
    }

    pub(super) fn is_in_use(&self, id: SessionId) -> bool {
        let name = format!("session-{}", id.0);
        if matches!(self.layout.locks.join(format!("{name}.lock")).try_exists(), Ok(false)) {
            return false;
        }
        // When in doubt it is in use.
        let lock = self.layout.open_lock(&name);
        lock.map_or(true, |file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

fn read_owner(file: &mut File) -> Option<Owner> {
    file.seek(SeekFrom::Start(0)).ok()?;
    serde_json::from_reader(file.take(4096)).ok()
}

fn tty() -> Option<String> {
    let name = rustix::termios::ttyname(std::io::stdin(), Vec::new()).ok()?.into_string().ok()?;
    Some(name.strip_prefix("/dev/").unwrap_or(&name).to_owned())
}

/// `13:20`, with the date if that is another day.
fn local_time(ms: i64) -> String {
    let Ok(at) = jiff::Timestamp::from_millisecond(ms) else { return "an unknown time".into() };
    let zone = jiff::tz::TimeZone::system();
    let (at, now) = (at.to_zoned(zone.clone()), clock::now().to_zoned(zone));
    let pattern = if at.date() == now.date() { "%H:%M" } else { "%-d %b %H:%M" };
    at.strftime(pattern).to_string()
}
