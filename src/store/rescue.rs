//! Replaces a damaged database: the only mechanism for damage of the file, of any kind. A start shows the readable
//! part of such a database (`salvage.rs`); `doctor --check` puts a new one with that part into its place and keeps the
//! damaged one under another name. Nothing in the directory changes before the new one is complete (`exchange.rs`).

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::database::Store;
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::exchange::{put_in_place, take_back};
use super::salvage::{Unread, count, salvage};
use super::schema::{self, structure_fault};
use crate::core::counted;

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
