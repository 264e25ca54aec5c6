//! Opening a data directory: identifies it, tests whether it can be written, and removes leftovers of earlier runs.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use super::database::{Access, Limits, Store};
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::salvage::{copy_database, private_place, salvage};
use super::schema;
use super::scratch::Scratch;
use crate::core::counted;
use crate::core::plain_words;

/// The purpose of opening: decides the reaction to a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Write,
    Read,
}

/// A directory that is being opened.
struct Place {
    layout: Layout,
    disk: Arc<dyn Disk>,
    limits: Limits,
}

impl Store {
    /// Opens a data directory, creating it if needed, and removes unfinished files of earlier processes.
    ///
    /// A directory that cannot be written, a database of a newer program, or a damaged one to which nothing can be
    /// added opens read-only: see [`Store::access`]. On a full disk the reserve is released. Refused are a directory
    /// with other things in it, a foreign database, and one too damaged to read any session.
    pub fn open(root: &Path, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        open_for(root, disk, limits, Purpose::Write)
    }

    /// As [`Store::open`], for reading only. On a full disk it reads a copy elsewhere before it releases the reserve.
    /// A missing directory is not created.
    pub fn open_to_read(root: &Path, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        let absolute = std::path::absolute(root).map_err(no_folder(root))?;
        if matches!(absolute.try_exists(), Ok(false)) {
            return Place { layout: Layout::new(&absolute), disk, limits }.nothing();
        }
        open_for(root, disk, limits, Purpose::Read)
    }

    /// Compares the directory's mark with the database's. Marks a new directory or one of an earlier version.
    fn recognise(&mut self) {
        let wanted = self.directory_id();
        let found = directory::read_mark(&self.layout, &*self.disk);
        match (wanted, found) {
            (Ok(wanted), Some(found)) if wanted == found => self.known = true,
            (Ok(_), Some(_)) => self.notes.push(format!(
                "{} and its sala.db belong to different data directories: nothing is removed from it. \
                 If that is intended: sala-chat doctor --check",
                self.layout.root.display()
            )),
            (Ok(wanted), None) => {
                // Without a mark nothing is removed; it has no other effect.
                self.known = directory::write_mark(&self.layout, &*self.disk, &wanted).is_ok();
            }
            // Not recorded (a full disk): the next start will.
            (Err(_), _) => {}
        }
    }

    pub(super) fn directory_id(&self) -> Result<String> {
        let sql = "SELECT value FROM property WHERE name = 'directory'";
        if let Ok(id) = self.read(|db| Ok(db.query_row(sql, [], |r| r.get::<_, String>(0))?)) {
            return Ok(id);
        }
        self.transaction(|tx| {
            tx.execute("INSERT OR IGNORE INTO property VALUES ('directory', lower(hex(randomblob(16))))", [])?;
            Ok(tx.query_row(sql, [], |r| r.get(0))?)
        })
    }

    pub(super) fn identify(&self) -> std::io::Result<[(u64, u64); 2]> {
        Ok([self.disk.look(&self.layout.root)?.identity, self.disk.look(&self.layout.database)?.identity])
    }
}

fn open_for(root: &Path, disk: Arc<dyn Disk>, limits: Limits, purpose: Purpose) -> Result<Store> {
    let root = &std::path::absolute(root).map_err(no_folder(root))?;
    if root.exists() && !root.is_dir() {
        return Err(no_folder(root)(ErrorKind::NotADirectory.into()));
    }
    // From here on no link is followed.
    let mut place = Place { layout: Layout::of(root).map_err(no_folder(root))?, disk, limits };
    let _held = place.layout.share_present();
    let there = match directory::survey(&place.layout, &*place.disk) {
        Err(e @ StoreError::Damaged { .. }) if place.layout.database.is_file() => return place.salvaged(&e),
        found => found?,
    };
    // An error shows below.
    let _ = place.disk.make_dir(&place.layout.root);
    place.layout = Layout::of(root).map_err(no_folder(root))?;
    match directory::make_ready(&place.layout, &*place.disk, there) {
        Ok(()) => place.writable().or_else(|e| place.after_error(e, purpose)),
        Err(e) if super::error::is_full(&e) => {
            place.after_error(StoreError::Full { path: place.layout.root.clone() }, purpose)
        }
        Err(e) if there && e.kind() == ErrorKind::NotFound => {
            let moved = std::io::Error::new(e.kind(), "it was moved away just now: try again");
            Err(StoreError::io("open", &place.layout.database)(moved))
        }
        Err(e) if place.layout.database.is_file() => {
            let shown = place.layout.root.display();
            let why = format!("{shown} cannot be written ({}): texts can be read, nothing is saved.", plain_words(&e));
            Ok(Store { broken: true, ..place.readable(why)? })
        }
        Err(source) => Err(no_folder(&place.layout.root)(source)),
    }
}

impl Place {
    /// The reaction to a database that cannot be opened for writing.
    fn after_error(&self, e: StoreError, purpose: Purpose) -> Result<Store> {
        let (layout, disk) = (&self.layout, &*self.disk);
        let shown = layout.root.display();
        if matches!(e, StoreError::Damaged { .. }) {
            return self.salvaged(&e);
        }
        if e.cannot_make_files() {
            return self.readable(format!(
                "{shown}: cannot create files next to sala.db (the disk may have no free inode): texts can be read, nothing is \
                 saved. Remove some files, then start again."
            ));
        }
        if !e.is_full() {
            return Err(e);
        }
        if purpose == Purpose::Read
            && let Ok(store) = self.readable(format!("Disk full on {shown}: texts can be read, nothing is saved."))
        {
            return Ok(store);
        }
        if directory::free_reserve(layout, disk) {
            match self.writable() {
                Ok(mut store) => {
                    store.notes.push(format!("Disk full on {shown}: the reserve was given up. Free some space."));
                    return Ok(store);
                }
                // A disk without a free inode.
                Err(e) if e.is_full() || e.cannot_make_files() => {}
                Err(e) => return Err(e),
            }
        }
        self.readable(format!(
            "Disk full on {shown} and no reserve left: texts can be read, nothing is saved. Free some space. Files in {} \
             may be deleted; their state is read again when needed.",
            layout.segments.display()
        ))
    }

    fn writable(&self) -> Result<Store> {
        let database = &self.layout.database;
        let (writer, newer) = schema::open_writable(database)?;
        if let Some(version) = newer {
            drop(writer);
            return self.readable(format!(
                "{} was written by a newer sala-chat (format {version}, this one knows {}): texts can be read, \
                 nothing is saved. Update sala-chat.",
                database.display(),
                schema::VERSION
            ));
        }
        match self.disk.look(database) {
            Ok(look) if look.bytes <= schema::CHECKED_BYTES => schema::check_structure(&writer, database)?,
            _ => schema::check_usable(&writer, database)?,
        }
        let reader = schema::open_readable(database, database)?;
        let mut store = self.store(Access::Writable, [reader, writer]);
        store.identity = store.identify().ok();
        store.present = store.layout.open_present().ok().filter(|file| file.lock_shared().is_ok());
        store.recognise();
        super::export::remove_unfinished(&store.layout, &*store.disk);
        let removed = store.sweep(false);
        if removed > 0 {
            let removed = counted(removed as u64, "unfinished state file");
            store.notes.push(format!("Removed {removed} of an earlier run."));
        }
        store.notes.extend(directory::open_to_others(&store.layout, &*store.disk));
        store.fill_reserve();
        Ok(store)
    }

    fn nothing(&self) -> Result<Store> {
        let elsewhere = private_place()?;
        let target = elsewhere.path().join("sala.db");
        directory::make_database(&target).map_err(StoreError::io("make", &target))?;
        schema::open_writable(&target)?;
        Ok(Store { notes: Vec::new(), ..self.reading("nothing is kept there yet".to_owned(), elsewhere)? })
    }

    fn salvaged(&self, e: &StoreError) -> Result<Store> {
        let detail = e.damage().unwrap_or_default();
        let (place, ..) = salvage(&self.layout, &*self.disk, &detail)?;
        let why = format!(
            "{} is damaged ({detail}): what can be read is shown, nothing is saved. sala-chat doctor --check writes a new \
             database of everything that can be read and keeps the old file.",
            self.layout.database.display()
        );
        Ok(Store { broken: true, ..self.reading(why, place)? })
    }

    fn readable(&self, why: String) -> Result<Store> {
        // SQLite writes files next to a WAL database even to read it: read a copy.
        let copy = private_place()?;
        let target = copy.path().join("sala.db");
        copy_database(&self.layout, &*self.disk, &target)?;
        // Applies the log, migrates an older database (a newer one stays as it is), and indexes new texts.
        if let Ok((db, None)) = schema::open_writable(&target) {
            let _ = db.execute_batch(
                "INSERT INTO message_text(rowid, text) SELECT id, text FROM message WHERE indexed = 0;
                 UPDATE message SET indexed = 1 WHERE indexed = 0;",
            );
        }
        self.reading(why, copy)
    }

    fn reading(&self, why: String, copy: Scratch) -> Result<Store> {
        let target = copy.path().join("sala.db");
        let open = || schema::open_readable(&target, &self.layout.database);
        let store = self.store(Access::ReadOnly { why: why.clone() }, [open()?, open()?]);
        Ok(Store { notes: vec![why], copy: Some(copy), ..store })
    }

    fn store(&self, access: Access, [reader, writer]: [Connection; 2]) -> Store {
        Store {
            layout: self.layout.clone(),
            disk: Arc::clone(&self.disk),
            limits: self.limits.clone(),
            access,
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            ids: Mutex::new(0..0),
            left_out: Mutex::default(),
            unlinked: Mutex::default(),
            uses: Mutex::default(),
            notes: Vec::new(),
            identity: None,
            known: false,
            present: None,
            copy: None,
            broken: false,
        }
    }
}

fn no_folder(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::NoFolder { path: path.clone(), source }
}
