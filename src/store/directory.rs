//! The data directory itself: its owner, its contents, and which files may be removed.
//!
//! | name | content |
//! |---|---|
//! | `sala-chat.id` | the mark: this directory is ours, and which one it is |
//! | `sala.db`, `-wal`, `-shm` | SQLite |
//! | `sala.db.damaged-<time>`, `-wal` | a damaged database, kept next to its replacement (`rescue.rs`) |
//! | `sala.db.rescued-<time>` | the replacement, until it is in place (`rescue.rs`) |
//! | `segments/` | files of model state: `<64 hex>.rows`, `<64 hex>.end`; with `.<process>-<n>.tmp` while they are written, `.<process>.gone` while they are removed |
//! | `locks/` | `session-<id>.lock`, `writing.lock`, `store.lock`, `part-<process>-<n>` (see `export.rs`) |
//! | `locks/serve.*` | address of a running `sala-chat serve` (`attach::Place`) |
//! | `reserve` | bytes released when the disk is full |
//!
//! Invariants: a directory with other things in it is never taken over; a name of another form is never opened for
//! writing or removed; nothing is removed unless the mark and the database name the same directory.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use super::disk::{Disk, Look, open_plain};
use super::error::{Result, StoreError, is_full};
use super::format::FileKind;
use super::schema;
use super::segment::SegmentId;
use crate::core::places;
use crate::core::sanitize::shell_word;

const UNFINISHED: &str = "tmp";
const LEAVING: &str = "gone";
const DAMAGED: &str = ".damaged-";
const RESCUED: &str = ".rescued-";
const PRESENT: &str = "store";
const MARK: &str = "sala-chat data directory 1";
/// State files without a row stay this long: a database restored from a copy may name them.
const ORPHAN_AGE: Duration = Duration::from_secs(3 * 24 * 3600);
/// The file system itself creates this in its root directory.
const OF_THE_SYSTEM: &str = "lost+found";

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub root: PathBuf,
    pub database: PathBuf,
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
            segments: root.join(places::SEGMENTS),
            locks: root.join(places::LOCKS),
            reserve: root.join(places::RESERVE),
            mark: root.join("sala-chat.id"),
        }
    }

    pub fn log_of(database: &Path) -> PathBuf {
        with_end(database, "-wal")
    }

    pub fn index_of(database: &Path) -> PathBuf {
        with_end(database, "-shm")
    }

    pub fn rescued(&self, time: &str) -> PathBuf {
        with_end(&self.database, &format!("{RESCUED}{time}"))
    }

    pub fn aside(&self, time: &str) -> PathBuf {
        with_end(&self.database, &format!("{DAMAGED}{time}"))
    }

    pub fn begun(&self, disk: &dyn Disk) -> io::Result<Vec<String>> {
        let start = self.rescued("");
        let start = start.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let names = disk.list(&self.root)?;
        let times = names.iter().filter_map(|name| name.to_str()?.strip_prefix(start));
        Ok(times.filter(|time| is_time(time)).map(str::to_owned).collect())
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

    /// A share in that lock if its file exists: while held, no database is exchanged for another. Waits for an
    /// exchange in progress.
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

/// Whether `text` is a time as in the names of replaced databases: `20260102-030405`, with `-2` added to a taken one.
fn is_time(text: &str) -> bool {
    let is_number = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = text.split('-');
    let (day, second, further, end) = (parts.next(), parts.next(), parts.next(), parts.next());
    day.is_some_and(|day| is_number(day, 8))
        && second.is_some_and(|second| is_number(second, 6))
        && further.is_none_or(|n| is_number(n, n.len().max(1)))
        && end.is_none()
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
///
/// # Errors
/// [`StoreError::NotOurs`] for a directory with other things in it, [`StoreError::Foreign`] for another program's
/// database, [`StoreError::Linked`] for a link in its place, [`StoreError::NoDatabase`] for state with an empty or
/// missing database, [`StoreError::Damaged`] for a damaged header or an interrupted replacement.
pub(super) fn survey(layout: &Layout, disk: &dyn Disk) -> Result<bool> {
    let names = match disk.list(&layout.root) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        // A directory without read permission lets names be opened; opening its files shows the rest.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(disk.look(&layout.database).is_ok()),
        Err(e) => return Err(StoreError::NoFolder { path: layout.root.clone(), source: e }),
    };
    let damaged = |detail: &str| StoreError::NoDatabase { path: layout.database.clone(), detail: detail.to_owned() };
    let look = match disk.look(&layout.database) {
        Ok(_) if layout.database.is_symlink() => return Err(StoreError::Linked { path: layout.database.clone() }),
        Ok(look) if !look.is_file => return Err(StoreError::Foreign { path: layout.database.clone() }),
        Ok(look) => Some(look),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(StoreError::io("read", &layout.database)(e)),
    };
    if look.is_none() && layout.begun(disk).is_ok_and(|times| !times.is_empty()) {
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
            return Err(damaged(if look.is_some() { "it is empty" } else { "it is missing" }));
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
    match schema::what_it_is(&head, bytes, read_mark(layout, disk).is_some()) {
        schema::Head::Ours | schema::Head::Blank => Ok(true),
        // The rest may still be readable.
        schema::Head::Damaged => {
            Err(StoreError::Damaged { path: layout.database.clone(), detail: "its header is not ours".into() })
        }
        schema::Head::OfAnother => Err(StoreError::Foreign { path: layout.database.clone() }),
        schema::Head::None => Err(damaged("it is no database")),
    }
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

/// Whether a folder is a data directory or can become one. For files written there before the store is open. Changes
/// nothing.
pub fn check_folder(root: &Path) -> Result<()> {
    let root = std::path::absolute(root).map_err(StoreError::io("look at", root))?;
    survey(&Layout::new(&root.canonicalize().unwrap_or(root)), &super::disk::RealDisk).map(drop)
}

/// Creates missing entries and tests whether files can be created. A database that was `there` is not created: another
/// process may be replacing it.
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
    let part = layout.mark.with_extension("new");
    let write = || -> io::Result<()> {
        let mut file = disk.create(&part)?;
        file.write(format!("{MARK}\n{id}\n").as_bytes())?;
        file.sync()?;
        disk.rename(&part, &layout.mark)?;
        disk.sync_dir(&layout.root)
    };
    write().inspect_err(|_| {
        let _ = disk.remove(&part);
    })
}

pub(super) fn new_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
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

/// Removes leftovers of earlier runs in `segments/`: unfinished files at once, files that `named` rejects if they are
/// old enough or `all` is set. Never a name of another form. Returns the number of removed files.
pub(super) fn sweep(layout: &Layout, disk: &dyn Disk, all: bool, named: impl Fn(&SegmentId, FileKind) -> bool) -> u64 {
    let now = SystemTime::now();
    let old = |path: &Path| {
        // A time in the future means a wrong clock, so the age is unknown.
        disk.look(path).is_ok_and(|l| l.is_file && now.duration_since(l.modified).is_ok_and(|age| age > ORPHAN_AGE))
    };
    let mut removed = 0;
    for name in disk.list(&layout.segments).unwrap_or_default() {
        let path = layout.segments.join(&name);
        let unused = match SegmentName::of(&name) {
            Some(SegmentName::Unfinished) => true,
            Some(SegmentName::State(id, kind)) => !named(&id, kind) && (all || old(&path)),
            None => false,
        };
        if unused && disk.look(&path).is_ok_and(|l| l.is_file) && disk.remove(&path).is_ok() {
            removed += 1;
        }
    }
    removed
}

/// The order in which state is removed to make room: state of marks and heads (`true`) last, else by last use.
pub(super) type Turn = (bool, i64);

/// Removes state files until `bytes` are free or removed: first those without a turn, then by turn, and within a turn
/// the newest file first, because the others are usable without it. Returns the removed ones.
pub(super) fn remove_oldest(
    layout: &Layout,
    disk: &dyn Disk,
    bytes: u64,
    turns: &HashMap<SegmentId, Turn>,
) -> Vec<(SegmentId, FileKind)> {
    let state = |name: PathBuf| match SegmentName::of(&name)? {
        SegmentName::State(id, kind) => {
            let path = layout.segments.join(&name);
            let look = disk.look(&path).ok().filter(|l| l.is_file)?;
            Some((look.modified, look.bytes, path, id, kind))
        }
        SegmentName::Unfinished => None,
    };
    let mut files: Vec<_> = disk.list(&layout.segments).unwrap_or_default().into_iter().filter_map(state).collect();
    files.sort_by_key(|(modified, _, _, id, _)| (turns.get(id).copied(), Reverse(*modified)));
    let (mut gone, mut freed) = (Vec::new(), 0);
    for (_, size, path, id, kind) in files {
        if freed >= bytes || !disk.free_bytes(&layout.root).is_ok_and(|free| free < bytes) {
            break;
        }
        if disk.remove(&path).is_ok() {
            freed += size;
            gone.push((id, kind));
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::super::disk::RealDisk;
    use super::*;

    #[test]
    fn making_room_removes_state_in_the_order_of_use_whatever_the_age_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        std::fs::create_dir(&layout.segments).unwrap();
        let id = |n: u8| SegmentId([n; 32]);
        let begun = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for n in 1..=5 {
            let path = layout.file(&id(n), FileKind::End);
            std::fs::write(&path, b"state").unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(begun + Duration::from_secs(u64::from(n))).unwrap();
        }
        // The first is marked, the second was used last, two are on one path, and the last has no turn.
        let turns = [(1, (true, 1)), (2, (false, 9)), (3, (false, 2)), (4, (false, 2))];
        let turns: HashMap<SegmentId, Turn> = turns.into_iter().map(|(n, turn)| (id(n), turn)).collect();
        let gone = remove_oldest(&layout, &RealDisk, u64::MAX, &turns);
        assert_eq!(gone, [5, 4, 3, 2, 1].map(|n| (id(n), FileKind::End)));
    }

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
