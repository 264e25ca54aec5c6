//! The data directory itself: its owner, its contents, and which files may be removed.
//!
//! | name | content |
//! |---|---|
//! | `sala-chat.id` | the mark: this directory is ours, and which one it is |
//! | `sala.db`, `-wal`, `-shm` | SQLite |
//! | `sala.db.damaged-<time>`, `-wal` | a damaged database, kept next to its replacement (`rescue.rs`) |
//! | `sala.db.rescued`, `.rescuing` | the replacement, until it is in place; and until it is complete |
//! | `segments/` | files of model state: `<64 hex>.rows`, `<64 hex>.end`; with `.<process>-<n>.tmp` while they are written, `.<process>.gone` while they are removed |
//! | `locks/` | `session-<id>.lock`, `writing.lock`, `store.lock`, `part-<process>-<n>` (see `export.rs`) |
//! | `locks/serve.*` | address of a running `sala-chat serve` (`attach::Place`) |
//! | `reserve` | bytes released when the disk is full |
//!
//! Invariants: a directory with other things in it is never taken over; a name of another form is never opened for
//! writing or removed; nothing is removed unless the mark and the database name the same directory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;

use super::disk::{Disk, Look, open_plain, write_whole};
use super::error::{Result, StoreError, is_full};
use super::format::FileKind;
use super::schema;
use super::segment::SegmentId;
use crate::core::places;
use crate::core::sanitize::shell_word;

const UNFINISHED: &str = "tmp";
const LEAVING: &str = "gone";
const PRESENT: &str = "store";
const MARK: &str = "sala-chat data directory 1";
/// The file system itself creates this in its root directory.
const OF_THE_SYSTEM: &str = "lost+found";

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub root: PathBuf,
    pub database: PathBuf,
    pub rescued: PathBuf,
    pub segments: PathBuf,
    pub locks: PathBuf,
    pub reserve: PathBuf,
    pub mark: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Layout {
        Layout {
            root: root.to_path_buf(),
            database: root.join("sala.db"),
            rescued: root.join("sala.db.rescued"),
            segments: root.join(places::SEGMENTS),
            locks: root.join(places::LOCKS),
            reserve: root.join(places::RESERVE),
            mark: root.join("sala-chat.id"),
        }
    }

    /// Resolves links on the way, which are the user's own.
    pub fn of(root: &Path) -> io::Result<Layout> {
        let root = std::path::absolute(root)?;
        Ok(Layout::new(&root.canonicalize().unwrap_or(root)))
    }

    pub fn log_of(database: &Path) -> PathBuf {
        with_end(database, "-wal")
    }

    pub fn index_of(database: &Path) -> PathBuf {
        with_end(database, "-shm")
    }

    /// A free name for a database that is damaged, and for its log.
    pub fn aside(&self, time: &str) -> PathBuf {
        let name = |n: u32| match n {
            1 => with_end(&self.database, &format!(".damaged-{time}")),
            n => with_end(&self.database, &format!(".damaged-{time}-{n}")),
        };
        let is_free =
            |path: &PathBuf| [path, &Layout::log_of(path)].iter().all(|path| path.symlink_metadata().is_err());
        (1..).map(name).find(is_free).unwrap_or_else(|| name(0))
    }

    pub fn file(&self, id: &SegmentId, kind: FileKind) -> PathBuf {
        self.segments.join(format!("{}.{}", id.hex(), kind.extension()))
    }

    /// The file of an advisory lock, mode 0600.
    pub fn open_lock(&self, name: &str) -> io::Result<File> {
        open_plain(&self.lock_file(name), OFlags::RDWR | OFlags::CREATE)
    }

    fn lock_file(&self, name: &str) -> PathBuf {
        self.locks.join(format!("{name}.lock"))
    }

    /// The lock that each process with the directory open holds shared.
    pub fn open_present(&self) -> io::Result<File> {
        self.open_lock(PRESENT)
    }

    /// A share in that lock if it exists: while held, no database is exchanged. Waits for an exchange in progress.
    pub fn share_present(&self) -> Option<File> {
        let lock = open_plain(&self.lock_file(PRESENT), OFlags::RDONLY).ok()?;
        lock.lock_shared().is_ok().then_some(lock)
    }

    /// A new name at each call: several writers, of one process too, may write the same document.
    pub fn unfinished(&self, id: &SegmentId, kind: FileKind) -> PathBuf {
        self.segments.join(format!("{}.{}.{}.{UNFINISHED}", id.hex(), kind.extension(), unique()))
    }

    pub fn leaving(&self, id: &SegmentId, kind: FileKind) -> PathBuf {
        self.segments.join(format!("{}.{}.{}.{LEAVING}", id.hex(), kind.extension(), std::process::id()))
    }

    pub fn probe(&self) -> PathBuf {
        self.segments.join(format!("probe-{}.{UNFINISHED}", unique()))
    }
}

/// `<process>-<n>`: given out once.
pub(super) fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentName {
    State(SegmentId, FileKind),
    Unfinished,
}

impl SegmentName {
    pub fn of(name: &Path) -> Option<SegmentName> {
        let name = name.to_str()?;
        // Earlier versions wrote the process alone.
        let process = |text: &str| text.split('-').take(3).all(|number| number.parse::<u32>().is_ok());
        if let Some(probe) = name.strip_prefix("probe-") {
            return probe.strip_suffix(".tmp").filter(|p| process(p)).map(|_| SegmentName::Unfinished);
        }
        let mut parts = name.split('.');
        let stem = parts.next()?;
        let kind = match parts.next()? {
            "rows" => FileKind::Rows,
            "end" => FileKind::End,
            _ => return None,
        };
        // Only our own spelling of the digits is our name.
        let id = SegmentId::from_hex(stem).filter(|id| id.hex() == stem)?;
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Some(SegmentName::State(id, kind)),
            (Some(p), Some(UNFINISHED | LEAVING), None) if process(p) => Some(SegmentName::Unfinished),
            _ => None,
        }
    }
}

/// Examines a directory before any change. Returns whether there is a database.
pub(super) fn survey(layout: &Layout, disk: &dyn Disk) -> Result<bool> {
    let names = match disk.list(&layout.root) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        // A directory without read permission lets names be opened; opening its files shows the rest.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(disk.look(&layout.database).is_ok()),
        Err(e) => return Err(StoreError::NoFolder { path: layout.root.clone(), source: e }),
    };
    let look = match disk.look(&layout.database) {
        Ok(_) if layout.database.is_symlink() => return Err(StoreError::Linked { path: layout.database.clone() }),
        Ok(look) if !look.is_file => return Err(StoreError::Foreign { path: layout.database.clone() }),
        Ok(look) => Some(look),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(StoreError::io("read", &layout.database)(e)),
    };
    if disk.look(&layout.rescued).is_ok_and(|look| look.is_file) {
        let detail = "it is being made anew, or that was stopped".to_owned();
        return Err(StoreError::Damaged { path: layout.database.clone(), detail });
    }
    let bytes = look.map_or(0, |l| l.bytes);
    if bytes == 0 {
        let used = disk.list(&layout.segments).unwrap_or_default().iter().any(|n| {
            // Unfinished files may be from an interrupted first run.
            matches!(SegmentName::of(n), Some(SegmentName::State(..)))
        });
        // An earlier version killed at its first start has its text in the log alone.
        let logged = disk.look(&Layout::log_of(&layout.database)).is_ok_and(|l| l.bytes > 0) && look.is_some();
        if read_mark(layout, disk).is_some() || (used && !logged) {
            let detail = if look.is_some() { "it is empty" } else { "it is missing" }.to_owned();
            return Err(StoreError::NoDatabase { path: layout.database.clone(), detail });
        }
        let ours = |name: &Path| {
            let Some(text) = name.to_str() else { return false };
            if places::ALL.contains(&text) {
                return disk.look(&layout.root.join(name)).is_ok_and(|look| is_of_kind(text, &look));
            }
            text == OF_THE_SYSTEM || text.starts_with("sala.db") || text.starts_with("bench-")
        };
        return match names.iter().find(|n| !ours(n)) {
            Some(name) => {
                Err(StoreError::NotOurs { path: layout.root.clone(), what: name.to_string_lossy().into_owned() })
            }
            None => Ok(look.is_some()),
        };
    }
    let foreign = |path: &PathBuf, is_foreign: fn(&Look) -> bool| disk.look(path).is_ok_and(|look| is_foreign(&look));
    let (log, index) = (Layout::log_of(&layout.database), Layout::index_of(&layout.database));
    let folders = [&layout.segments, &layout.locks].into_iter().find(|path| foreign(path, |look| look.is_file));
    let files = [&log, &index].into_iter().find(|path| foreign(path, |look| !look.is_file));
    if let Some(path) = folders.or(files) {
        let what = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(StoreError::NotOurs { path: layout.root.clone(), what });
    }
    let head = disk.read_at(&layout.database, 0, bytes.min(100)).map_err(StoreError::io("read", &layout.database))?;
    schema::check_header(&layout.database, &head, bytes, read_mark(layout, disk).is_some()).map(|()| true)
}

/// Whether an entry with one of our names can be ours while there is no database. The reserve is made later.
fn is_of_kind(name: &str, look: &Look) -> bool {
    match name {
        places::RESERVE => false,
        // A link to one is the user's own.
        places::SERVE_KEY | places::CONFIG_FILE => !look.is_dir,
        _ => !look.is_file,
    }
}

/// Byte `i` of the reserve. Not zeros, which some file systems store without using space.
pub(super) fn reserve_byte(i: u32) -> u8 {
    (i.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

pub(super) fn is_our_reserve(layout: &Layout, disk: &dyn Disk) -> bool {
    const COMPARED: u64 = 64;
    let Ok(look) = disk.look(&layout.reserve) else { return false };
    let begin = || disk.read_at(&layout.reserve, 0, look.bytes.min(COMPARED));
    look.is_file && begin().is_ok_and(|bytes| bytes.iter().zip(0..).all(|(byte, i)| *byte == reserve_byte(i)))
}

pub(super) fn free_reserve(layout: &Layout, disk: &dyn Disk) -> bool {
    is_our_reserve(layout, disk) && disk.remove(&layout.reserve).is_ok()
}

/// Whether a folder is a data directory or can become one: for files written there before the store is open.
pub fn check_folder(root: &Path) -> Result<()> {
    survey(&Layout::of(root).map_err(StoreError::io("look at", root))?, &super::disk::RealDisk).map(drop)
}

/// Creates missing entries; tests whether files can be created. A process may be replacing a database that was `there`.
pub(super) fn make_ready(layout: &Layout, disk: &dyn Disk, there: bool) -> io::Result<()> {
    for dir in [&layout.root, &layout.segments, &layout.locks] {
        disk.make_dir(dir)?;
    }
    // SQLite creates its log there later.
    rustix::fs::access(&layout.root, rustix::fs::Access::WRITE_OK)?;
    // Only a probe file shows whether files can be created here: permissions, read-only mounts, quotas.
    let probe = layout.probe();
    let made = disk.create(&probe).map(drop);
    disk.remove(&probe)?;
    match made {
        // Full is not read-only: the database's free pages and the reserve may still hold text.
        Err(e) if !is_full(&e) => return Err(e),
        _ => {}
    }
    if there { open_plain(&layout.database, OFlags::RDWR).map(drop) } else { make_database(&layout.database) }
}

/// Creates a database file before SQLite does, so that it and its companions are private.
pub(super) fn make_database(path: &Path) -> io::Result<()> {
    open_plain(path, OFlags::RDWR | OFlags::CREATE).map(drop)
}

pub(super) fn read_mark(layout: &Layout, disk: &dyn Disk) -> Option<String> {
    let bytes = disk.look(&layout.mark).ok().filter(|l| l.is_file && l.bytes < 4096)?.bytes;
    let text = String::from_utf8(disk.read_at(&layout.mark, 0, bytes).ok()?).ok()?;
    let mut lines = text.lines();
    (lines.next() == Some(MARK)).then(|| lines.next().map(str::to_owned))?
}

pub(super) fn write_mark(layout: &Layout, disk: &dyn Disk, id: &str) -> io::Result<()> {
    let text = format!("{MARK}\n{id}\n");
    write_whole(disk, &layout.mark.with_extension("new"), &layout.mark, |file| file.write(text.as_bytes()))
}

/// A sentence if others can write here: the program trusts the directory's files as its own.
pub(super) fn open_to_others(layout: &Layout, disk: &dyn Disk) -> Option<String> {
    let places = [&layout.root, &layout.segments, &layout.locks, &layout.database];
    let me = rustix::process::geteuid().as_raw();
    let wrong = places.into_iter().find_map(|path| {
        let look = disk.look(path).ok()?;
        let wrong = if look.owner != me { "belongs to another user" } else { "can be written by others" };
        (look.owner != me || look.mode & 0o022 != 0).then_some((path, wrong))
    });
    wrong.map(|(path, wrong)| {
        let root = shell_word(&layout.root.to_string_lossy());
        format!("{} {wrong}: they can change your conversations. chmod -R go-w {root}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_we_give_are_ours() {
        let hex = SegmentId([0xab; 32]).hex();
        let of = |name: &str| SegmentName::of(Path::new(name));
        assert_eq!(of(&format!("{hex}.rows")), Some(SegmentName::State(SegmentId([0xab; 32]), FileKind::Rows)));
        assert_eq!(of(&format!("{hex}.end")), Some(SegmentName::State(SegmentId([0xab; 32]), FileKind::End)));
        for ours in [
            format!("{hex}.rows.17.tmp"),
            format!("{hex}.rows.17-2.tmp"),
            format!("{hex}.end.17.gone"),
            "probe-3.tmp".into(),
        ] {
            assert_eq!(of(&ours), Some(SegmentName::Unfinished), "{ours}");
        }
        let upper = hex.to_uppercase();
        for other in [
            "thesis.tex",
            "notes.tmp",
            "probe-.tmp",
            "probe-x.tmp",
            ".rows",
            &format!("{hex}.rows.tmp"),
            &format!("{hex}.rows.gone"),
            &format!("{hex}.rows.bak"),
            &format!("{hex}.rows.1.tmp.2"),
            &format!("{hex}.zip"),
            &format!("{upper}.rows"),
            &hex[..63],
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
