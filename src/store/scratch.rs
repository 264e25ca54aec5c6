//! Folders for data that must not outlive the process: databases of `--no-save`, copies of a database that cannot be
//! opened in place. They are in memory if the system has such a place, have mode 0700 from the start, and the next
//! start removes those of a killed process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use super::disk::{Disk, Look, RealDisk, open_plain};

const PREFIX: &str = "sala-chat-scratch-";
const HELD: &str = "held.lock";
/// A folder without a lock is being created, or its process was killed before the lock.
const UNHELD_AGE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
    _held: File,
}

impl Scratch {
    pub fn new() -> io::Result<Scratch> {
        let places = places();
        sweep(&places);
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        let made = places.iter().find_map(|place| builder.tempdir_in(place).ok());
        let dir = made.map_or_else(|| builder.tempdir(), Ok)?;
        // The lock gets its name only when it is held: another start must not treat the folder as a leftover.
        let (new, held) = (dir.path().join("new.lock"), dir.path().join(HELD));
        let file = open_plain(&new, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        file.try_lock()?;
        RealDisk.rename(&new, &held)?;
        Ok(Scratch { dir, _held: file })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn places() -> Vec<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    let mut places: Vec<PathBuf> = Some(memory).filter(|m| m.is_dir()).into_iter().collect();
    places.push(std::env::temp_dir());
    // SQLite follows no link on the way to a database.
    places.into_iter().map(|place| place.canonicalize().unwrap_or(place)).collect()
}

/// Removes the folders of killed processes.
fn sweep(places: &[PathBuf]) {
    let me = rustix::process::geteuid().as_raw();
    for place in places {
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        for entry in entries.flatten() {
            if !entry.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX)) {
                continue;
            }
            let path = entry.path();
            let ours = |l: &Look| l.is_dir && l.owner == me;
            if RealDisk.look(&path).is_ok_and(|l| ours(&l) && is_left(&path, &l)) {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
}

fn is_left(path: &Path, look: &Look) -> bool {
    match open_plain(&path.join(HELD), OFlags::RDWR) {
        Ok(held) => held.try_lock().is_ok(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            SystemTime::now().duration_since(look.modified).is_ok_and(|age| age > UNHELD_AGE)
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_a_killed_process_are_removed_and_held_ones_stay() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str, held: bool| {
            let dir = place.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("sala.db"), "text").unwrap();
            if held {
                std::fs::write(dir.join(HELD), "").unwrap();
            }
            dir
        };
        let left = make("sala-chat-scratch-left", true);
        let young = make("sala-chat-scratch-young", false);
        let foreign = make("someone-elses", true);
        let live = make("sala-chat-scratch-live", true);
        let holder = File::open(live.join(HELD)).unwrap();
        holder.try_lock().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join(HELD), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), place.path().join("sala-chat-scratch-link")).unwrap();
        sweep(&[place.path().to_owned()]);
        assert!(!left.exists() && young.exists() && foreign.exists() && live.exists());
        assert!(elsewhere.path().join(HELD).exists(), "a link is not followed");

        let scratch = Scratch::new().unwrap();
        assert_eq!(std::fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o700);
        sweep(&places());
        assert!(scratch.path().exists(), "held by this process");
    }
}
