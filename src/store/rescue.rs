//! Replaces a damaged database: the only mechanism for damage of the file, of any kind. A start shows the readable
//! part of such a database (`salvage.rs`); `doctor --check` puts a new one with that part into its place and keeps the
//! damaged one under another name.
//!
//! The exchange happens in a process that has the directory alone. It begins when the new database, complete and synced,
//! has the name `sala.db.rescued`. From then on the directory cannot be written, and the next run finishes an
//! interrupted exchange.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::database::Store;
use super::directory::{self, Layout};
use super::disk::{Disk, DiskFile, write_whole};
use super::error::{Result, StoreError};
use super::salvage::{Unread, count, salvage};
use super::schema::{self, structure_fault};
use crate::core::counted;
use crate::text::clock;

const WRITE_BYTES: u64 = 8 << 20;

/// A new database is in the place of the damaged one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    pub detail: String,
    pub sessions: u64,
    /// Without placeholders for unreadable messages.
    pub messages: u64,
    pub lost: Unread,
    pub aside: PathBuf,
}

impl Rescued {
    pub fn summary(&self) -> String {
        format!(
            "sala.db was damaged ({}): {} of {} were read from it into a new one. The damaged file is {}; \
             remove it once nothing is missing",
            self.detail,
            counted(self.messages, "message"),
            counted(self.sessions, "session"),
            self.aside.display()
        )
    }

    pub fn losses(&self) -> Vec<String> {
        let Unread { rows, tables } = &self.lost;
        let rows = (*rows > 0).then(|| format!("{} of the damaged database could not be read", counted(*rows, "row")));
        let tables = tables.iter().map(|table| {
            format!("The table \"{table}\" was not found in the damaged database: the new one lacks its content")
        });
        rows.into_iter().chain(tables).collect()
    }
}

impl Store {
    /// Replaces a damaged database by a new one with everything that can be read, or finishes an interrupted exchange.
    /// `None`: the database is whole, missing, of a newer program or of another one.
    pub fn rescue(root: &Path, disk: &dyn Disk) -> Result<Option<Rescued>> {
        let layout = Layout::of(root).map_err(StoreError::io("look at", root))?;
        let damage = || match check_whole(&layout, disk) {
            Err(StoreError::Damaged { detail, .. }) => Some(detail),
            _ => None,
        };
        // First without the lock: others can start meanwhile, and most databases are whole.
        if damage().is_none() {
            return Ok(None);
        }
        // A copy of the database alone has no `locks/`.
        let _ = disk.make_dir(&layout.locks);
        let (_held, alone) = hold(&layout).map_err(StoreError::io("lock", &layout.locks))?;
        // Another process may have exchanged it before the lock was taken.
        let Some(detail) = damage() else { return Ok(None) };
        if !alone {
            return Err(StoreError::DamagedInUse { path: layout.database, detail });
        }
        if is_there(disk, &layout.rescued)? {
            let aside = exchange(&layout, disk)?;
            let (sessions, messages) = count(&layout.database)?;
            return Ok(Some(Rescued { detail, sessions, messages, lost: Unread::default(), aside }));
        }
        let (place, fresh, lost) = salvage(&layout, disk, &detail)?;
        let (sessions, messages) = count(&fresh)?;
        make_ready(&layout, disk, &fresh)?;
        drop(place);
        let aside = exchange(&layout, disk)?;
        Ok(Some(Rescued { detail, sessions, messages, lost, aside }))
    }
}

/// An error for a database that cannot be opened for writing, or that has damage in its structure or indexes.
fn check_whole(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    let path = &layout.database;
    // Nothing is created in a directory that is not ours.
    if !directory::survey(layout, disk)? {
        return Ok(());
    }
    let (db, newer) = schema::open_writable(path)?;
    if newer.is_some() {
        return Ok(());
    }
    schema::check_structure(&db, path)?;
    match structure_fault(&db)? {
        Some(detail) => Err(StoreError::Damaged { path: path.clone(), detail }),
        None => Ok(()),
    }
}

/// The lock of a directory, and whether no other process has the directory open. Waits for an exchange in progress.
fn hold(layout: &Layout) -> io::Result<(File, bool)> {
    let lock = layout.open_present()?;
    match lock.try_lock() {
        Ok(()) => Ok((lock, true)),
        Err(TryLockError::WouldBlock) => {
            lock.lock_shared()?;
            Ok((lock, false))
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn make_ready(layout: &Layout, disk: &dyn Disk, fresh: &Path) -> Result<()> {
    let part = layout.rescued.with_extension("rescuing");
    let bytes = disk.look(fresh).map_err(StoreError::io("read", fresh))?.bytes;
    let copy = |file: &mut dyn DiskFile| {
        let mut at = 0;
        while at < bytes {
            let some = disk.read_at(fresh, at, WRITE_BYTES.min(bytes - at))?;
            file.write(&some)?;
            at += some.len() as u64;
        }
        Ok(())
    };
    write_whole(disk, &part, &layout.rescued, copy).map_err(StoreError::io("write", &part))
}

/// Moves the damaged database aside, with its log, and the new one into its place. Returns the damaged one's path.
fn exchange(layout: &Layout, disk: &dyn Disk) -> Result<PathBuf> {
    let aside = layout.aside(&clock::local().strftime("%Y%m%d-%H%M%S").to_string());
    let (log, index) = (Layout::log_of(&layout.database), Layout::index_of(&layout.database));
    for (from, to) in [(&layout.database, &aside), (&log, &Layout::log_of(&aside))] {
        if is_there(disk, from)? {
            rename(disk, from, to)?;
        }
    }
    disk.remove(&index).map_err(StoreError::io("remove", &index))?;
    // SQLite would take a remaining log for one of the new database.
    sync(layout, disk)?;
    rename(disk, &layout.rescued, &layout.database)?;
    sync(layout, disk)?;
    Ok(aside)
}

fn is_there(disk: &dyn Disk, path: &Path) -> Result<bool> {
    match disk.look(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io("read", path)(e)),
    }
}

fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    disk.rename(from, to).map_err(StoreError::io("rename", from))
}

fn sync(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    disk.sync_dir(&layout.root).map_err(StoreError::io("sync", &layout.root))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::disk::RealDisk;
    use super::*;

    #[test]
    fn two_of_one_second_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let time = "20260102-030405";
        let name = |end: &str| dir.path().join(format!("sala.db.damaged-{time}{end}"));
        for (taken, free) in [(None, ""), (Some(""), "-2"), (Some("-2-wal"), "-3"), (Some("-3"), "-4")] {
            if let Some(taken) = taken {
                fs::write(name(taken), "damaged").unwrap();
            }
            assert_eq!(layout.aside(time), name(free));
        }
        for _ in 0..2 {
            fs::write(&layout.database, "again").unwrap();
            fs::write(dir.path().join("fresh"), "new").unwrap();
            make_ready(&layout, &RealDisk, &dir.path().join("fresh")).unwrap();
            let aside = exchange(&layout, &RealDisk).unwrap();
            assert_eq!(
                (fs::read(aside).unwrap(), fs::read(&layout.database).unwrap()),
                (b"again".to_vec(), b"new".to_vec())
            );
        }
    }
}
