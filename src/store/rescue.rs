//! Replaces a damaged database: the only mechanism for damage of the file, of any kind. A start shows the readable
//! part of such a database (`salvage.rs`); `doctor --check` puts a new one with that part into its place and keeps the
//! damaged one under another name. Nothing in the directory changes before the new one is complete.
//!
//! The exchange happens in a process that has the directory alone. Both names contain the same time until the new
//! database is in place. These names let the next run undo an interrupted exchange, but only in an unambiguous case.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::database::Store;
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::salvage::{Unread, count, salvage};
use super::schema::{self, structure_fault};
use crate::core::counted;
use crate::text::clock;

const WRITE_BYTES: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// The database is whole, missing, or of another program.
    Nothing,
    /// The database is damaged, and another process has the directory open and keeps writing into it.
    InUse { path: PathBuf, detail: String },
    /// A new one is in its place.
    Done(Rescued),
}

impl Rescue {
    pub fn in_use_notice(&self) -> Option<String> {
        let Rescue::InUse { path, detail } = self else { return None };
        Some(format!(
            "{} is damaged ({detail}) and another sala-chat has it open: close that one first, then sala-chat doctor --check \
             writes a new database of everything that can be read and keeps the old file",
            path.display()
        ))
    }
}

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
    /// Replaces a damaged database by a new one with everything that can be read. Leaves a database of a newer program
    /// alone. Undoes an interrupted attempt first.
    ///
    /// # Errors
    /// Nothing is readable, or an I/O error. The damaged database then has its old name or its `.damaged-` name.
    pub fn rescue(root: &Path, disk: &dyn Disk) -> Result<Rescue> {
        let root = std::path::absolute(root).map_err(StoreError::io("look at", root))?;
        let layout = Layout::new(&root.canonicalize().unwrap_or(root));
        // Nothing is created in a directory that is not ours.
        if !matches!(directory::survey(&layout, disk), Ok(true) | Err(StoreError::Damaged { .. })) {
            return Ok(Rescue::Nothing);
        }
        let look =
            || directory::survey(&layout, disk).and_then(|there| if there { check_whole(&layout) } else { Ok(()) });
        // First without the lock: others can start meanwhile, and most databases are whole.
        let begun = layout.begun(disk).map_err(StoreError::io("read", &layout.root))?;
        if begun.is_empty() && !matches!(look(), Err(StoreError::Damaged { .. })) {
            return Ok(Rescue::Nothing);
        }
        // A copy of the database alone has no `locks/`.
        let _ = disk.make_dir(&layout.locks);
        let held = hold(&layout);
        let alone = matches!(held, Ok((_, true)));
        if alone {
            take_back(&layout, disk)?;
        }
        // Another process may have exchanged it before the lock was taken.
        let opened = look();
        let Err(StoreError::Damaged { detail, .. }) = opened else { return Ok(Rescue::Nothing) };
        let _held = held.map_err(StoreError::io("lock", &layout.locks))?;
        if !alone {
            return Ok(Rescue::InUse { path: layout.database, detail });
        }
        if !layout.database.is_file() {
            // Several attempts were interrupted: which one to undo is unknown.
            return Ok(Rescue::Nothing);
        }
        let (place, fresh, lost) = salvage(&layout, disk, &detail)?;
        let (sessions, messages) = count(&fresh)?;
        let aside = put_in_place(&layout, disk, &fresh)?;
        drop(place);
        Ok(Rescue::Done(Rescued { detail, sessions, messages, lost, aside }))
    }
}

/// An error for a database that cannot be opened for writing, or that has damage in its structure or indexes.
fn check_whole(layout: &Layout) -> Result<()> {
    let path = &layout.database;
    let (db, found) = schema::open_writable(path)?;
    if let schema::Found::Newer(_) = found {
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

/// Moves the damaged database aside, with its log, and the new one into its place. Returns the damaged one's path.
fn put_in_place(layout: &Layout, disk: &dyn Disk, fresh: &Path) -> Result<PathBuf> {
    let time = free_time(layout, disk, &clock::local().strftime("%Y%m%d-%H%M%S").to_string())?;
    let done = make_ready(layout, disk, fresh, &time).and_then(|()| exchange(layout, disk, &time));
    if done.is_err() {
        // The next attempt undoes the rest.
        let _ = take_back(layout, disk);
    }
    done.map(|()| layout.aside(&time))
}

fn free_time(layout: &Layout, disk: &dyn Disk, wanted: &str) -> Result<String> {
    let mut time = wanted.to_owned();
    for n in 2.. {
        let aside = layout.aside(&time);
        let taken = is_there(disk, &aside)?
            || is_there(disk, &Layout::log_of(&aside))?
            || is_there(disk, &layout.rescued(&time))?;
        if !taken {
            break;
        }
        time = format!("{wanted}-{n}");
    }
    Ok(time)
}

fn make_ready(layout: &Layout, disk: &dyn Disk, fresh: &Path, time: &str) -> Result<()> {
    let ready = layout.rescued(time);
    let bytes = disk.look(fresh).map_err(StoreError::io("read", fresh))?.bytes;
    let mut file = disk.create(&ready).map_err(StoreError::io("make", &ready))?;
    let mut at = 0;
    while at < bytes {
        let part = disk.read_at(fresh, at, WRITE_BYTES.min(bytes - at)).map_err(StoreError::io("read", fresh))?;
        file.write(&part).map_err(StoreError::io("write", &ready))?;
        at += part.len() as u64;
    }
    file.sync().map_err(StoreError::io("sync", &ready))?;
    sync(layout, disk)
}

fn exchange(layout: &Layout, disk: &dyn Disk, time: &str) -> Result<()> {
    let aside = layout.aside(time);
    rename(disk, &layout.database, &aside)?;
    let (log, index) = (Layout::log_of(&layout.database), Layout::index_of(&layout.database));
    if is_there(disk, &log)? {
        rename(disk, &log, &Layout::log_of(&aside))?;
    }
    disk.remove(&index).map_err(StoreError::io("remove", &index))?;
    // SQLite would take a remaining log for one of the new database.
    sync(layout, disk)?;
    rename(disk, &layout.rescued(time), &layout.database)?;
    sync(layout, disk)
}

/// Undoes an interrupted exchange: the damaged database returns to its place with its log, and the replacement is
/// removed. In an ambiguous case everything stays.
fn take_back(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    let begun = layout.begun(disk).map_err(StoreError::io("read", &layout.root))?;
    let (mut moved, mut not_moved) = (Vec::new(), Vec::new());
    for time in begun {
        if is_there(disk, &layout.aside(&time))? { moved.push(time) } else { not_moved.push(time) }
    }
    let drop_ready = |times: &[String]| -> Result<()> {
        for ready in times.iter().map(|time| layout.rescued(time)) {
            disk.remove(&ready).map_err(StoreError::io("remove", &ready))?;
        }
        Ok(())
    };
    if is_there(disk, &layout.database)? {
        // The damaged database is aside, so another process put this one into place.
        return drop_ready(&not_moved);
    }
    let [time] = moved.as_slice() else { return Ok(()) };
    let aside = layout.aside(time);
    let (log, place) = (Layout::log_of(&aside), Layout::log_of(&layout.database));
    if is_there(disk, &log)? {
        if is_there(disk, &place)? {
            return Ok(());
        }
        rename(disk, &log, &place)?;
    }
    rename(disk, &aside, &layout.database)?;
    sync(layout, disk)?;
    drop_ready(&moved)
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
    fn only_times_as_we_write_them_are_of_a_database_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let ours = ["20260102-030405", "20260102-030405-2"];
        let others =
            ["", "x", "20260102", "20260102-03040", "20260102-030405-", "20260102-030405-wal", "20260102-030405-2-3"];
        for time in ours.iter().chain(&others) {
            fs::write(layout.rescued(time), "").unwrap();
        }
        let mut begun = layout.begun(&RealDisk).unwrap();
        begun.sort();
        assert_eq!(begun, ours);
    }

    #[test]
    fn two_of_one_second_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let free = || free_time(&layout, &RealDisk, "20260102-030405").unwrap();
        let (first, second) = (layout.aside("20260102-030405"), layout.aside("20260102-030405-2"));
        assert_eq!(free(), "20260102-030405");
        fs::write(first, "damaged").unwrap();
        assert_eq!(free(), "20260102-030405-2");
        fs::write(Layout::log_of(&second), "its log").unwrap();
        assert_eq!(free(), "20260102-030405-3");
        fs::write(layout.rescued("20260102-030405-3"), "made of it").unwrap();
        assert_eq!(free(), "20260102-030405-4");
        fs::write(&layout.database, "again").unwrap();
        fs::write(dir.path().join("fresh"), "new").unwrap();
        let aside = put_in_place(&layout, &RealDisk, &dir.path().join("fresh")).unwrap();
        assert_eq!(
            (fs::read(aside).unwrap(), fs::read(&layout.database).unwrap()),
            (b"again".to_vec(), b"new".to_vec())
        );
    }

    #[test]
    fn what_is_in_doubt_stays_as_it_is() {
        let cases: [&[&str]; 4] = [
            // Two exchanges begun.
            &[
                "sala.db.damaged-20260102-030405",
                "sala.db.damaged-20260102-030406",
                "sala.db.rescued-20260102-030405",
                "sala.db.rescued-20260102-030406",
            ],
            // The damaged database of one is elsewhere.
            &[
                "sala.db.damaged-20260102-030404",
                "sala.db.damaged-20260102-030405-shm",
                "sala.db.damaged-20260102-030406",
                "sala.db.rescued-20260102-030405",
            ],
            // A copy was restored meanwhile.
            &["sala.db", "sala.db.damaged-20260102-030405", "sala.db.rescued-20260102-030405"],
            // Two logs.
            &[
                "sala.db-wal",
                "sala.db.damaged-20260102-030405",
                "sala.db.damaged-20260102-030405-wal",
                "sala.db.rescued-20260102-030405",
            ],
        ];
        for names in cases {
            let dir = tempfile::tempdir().unwrap();
            for name in names {
                fs::write(dir.path().join(name), "").unwrap();
            }
            take_back(&Layout::new(dir.path()), &RealDisk).unwrap();
            let mut left = RealDisk.list(dir.path()).unwrap();
            left.sort();
            assert_eq!(left, names.iter().map(PathBuf::from).collect::<Vec<_>>());
        }
    }
}
