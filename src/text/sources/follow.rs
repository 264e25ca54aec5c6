//! Files and folders that are followed. A [`Looker`] compares them with its last look and reads what differs; a
//! [`Follower`] looks on its own thread, every second. That needs no watches of the system, which has few of them and
//! none for disks of other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use super::{Files, Found, Problem, SourceError, SourceOptions, TOTAL_FILES, find, read, resolve};
use crate::engine::protocol::Cancel;

/// Time between two looks; at least so many times as long as the last one took.
const EVERY: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;
/// A file that changed less than this before a look may change again without another time stamp.
const SAME_STAMP: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDisk {
    Text(String),
    Gone,
    /// There is a file, but no text: the reason.
    Unreadable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub name: String,
    pub now: OnDisk,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub changes: Vec<Change>,
    /// Why looking failed.
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: SystemTime,
    file: (u64, u64),
}

impl Stamp {
    /// `None` for a file that may change again without another stamp, or is gone.
    fn of(path: &Path) -> Option<Stamp> {
        let meta = std::fs::metadata(path).ok()?;
        let modified = meta.modified().ok()?;
        // A time in the future is as good, if it is as far away.
        let age = SystemTime::now().duration_since(modified).unwrap_or_else(|ahead| ahead.duration());
        let old = age > SAME_STAMP;
        old.then_some(Stamp { bytes: meta.len(), modified, file: (meta.dev(), meta.ino()) })
    }
}

/// Existing paths without `~`, `.` and a relative start, so that a file has one path. Patterns stay as they are.
pub fn whole_paths(paths: &[String], options: &SourceOptions) -> Vec<String> {
    let whole = |given: &String| {
        let path: PathBuf = resolve(given, &options.base).components().collect();
        path.to_str().filter(|_| path.exists()).map_or_else(|| given.clone(), str::to_owned)
    };
    paths.iter().map(whole).collect()
}

#[derive(Debug)]
pub struct Looker {
    paths: Vec<String>,
    options: SourceOptions,
    seen: BTreeMap<PathBuf, (String, Option<Stamp>)>,
}

impl Looker {
    /// Takes the files as they are now for known. `paths` are those of [`whole_paths`].
    pub fn new(paths: Vec<String>, options: SourceOptions, cancel: &Cancel) -> Result<Looker, SourceError> {
        let Files { found, .. } = find(&paths, &options, cancel)?;
        let known = |f: Found| {
            let stamp = Stamp::of(&f.path);
            (f.path, (f.name, stamp))
        };
        Ok(Looker { paths, options, seen: found.into_iter().map(known).collect() })
    }

    fn look(&mut self, cancel: &Cancel) -> Result<Look, SourceError> {
        let (mut found, mut note) = (Vec::new(), None);
        for path in &self.paths {
            match find(std::slice::from_ref(path), &self.options, cancel) {
                Ok(files) => {
                    if files.found.is_empty() && self.seen.keys().any(|seen| seen.starts_with(path)) {
                        note = Some(format!("{path} has no files any more: what was read of it stays as it is."));
                    }
                    found.extend(files.found);
                }
                Err(SourceError::NotFound { .. } | SourceError::NoMatch(_)) => {}
                Err(e) => return Err(e),
            }
        }
        let mut changes = self.gone(&found);
        let mut room = self.options.max_file_bytes.saturating_mul(TOTAL_FILES);
        for file in found {
            let stamp = Stamp::of(&file.path);
            if stamp.is_some() && self.seen.get(&file.path).is_some_and(|(_, known)| *known == stamp) {
                continue;
            }
            let now = match read(&Found { named: false, ..file.clone() }, &self.options, cancel) {
                Err(Problem::Cancelled) => return Err(SourceError::Cancelled),
                Ok(document) if document.text.len() as u64 > room => {
                    OnDisk::Unreadable("too much changed at once".into())
                }
                Ok(document) => {
                    room -= document.text.len() as u64;
                    OnDisk::Text(document.text)
                }
                Err(Problem::Empty | Problem::WhiteSpace) => OnDisk::Text(String::new()),
                // It vanished: the next look does not find it.
                Err(_) if !file.path.exists() => continue,
                Err(problem) => OnDisk::Unreadable(problem.to_string()),
            };
            self.seen.insert(file.path.clone(), (file.name.clone(), stamp));
            changes.push(Change { path: file.path, name: file.name, now });
        }
        Ok(Look { changes, note })
    }

    /// Files that were deleted. Those of a folder that is gone as a whole stay known: it may be a disk that is away.
    fn gone(&mut self, found: &[Found]) -> Vec<Change> {
        let there: BTreeSet<&PathBuf> = found.iter().map(|f| &f.path).collect();
        let root_has_files = |path: &Path| {
            let root = self.paths.iter().map(Path::new).find(|root| path.starts_with(root) && path != *root);
            root.is_none_or(|root| found.iter().any(|f| f.path.starts_with(root)))
                && path.parent().is_some_and(|folder| root.is_some() || folder.exists())
        };
        let absent = |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let is_gone = |path: &&PathBuf| !there.contains(path) && absent(path) && root_has_files(path);
        let gone: Vec<PathBuf> = self.seen.keys().filter(is_gone).cloned().collect();
        let change = |path: PathBuf| {
            let (name, _) = self.seen.remove(&path)?;
            Some(Change { path, name, now: OnDisk::Gone })
        };
        gone.into_iter().filter_map(change).collect()
    }
}

struct Shared {
    looker: Mutex<Looker>,
    report: Box<dyn Fn(Look) + Send + Sync>,
}

impl Shared {
    /// Looks and reports under the lock, so that reports keep the order of looks; `always`: even if nothing changed.
    fn look(&self, cancel: &Cancel, always: bool) {
        let mut looker = self.looker.lock().unwrap_or_else(PoisonError::into_inner);
        let look = match looker.look(cancel) {
            Err(SourceError::Cancelled) => return,
            Err(e) => Look { note: Some(e.to_string()), ..Look::default() },
            Ok(look) => look,
        };
        if always || look != Look::default() {
            (self.report)(look);
        }
    }
}

/// Dropping it ends its thread.
pub struct Follower {
    shared: Arc<Shared>,
    stop: Cancel,
    _end: Sender<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Follower {
    pub fn start(looker: Looker, report: impl Fn(Look) + Send + Sync + 'static) -> std::io::Result<Follower> {
        let (_end, ended) = bounded(0);
        let shared = Arc::new(Shared { looker: Mutex::new(looker), report: Box::new(report) });
        let (of, stop) = (Arc::clone(&shared), Cancel::default());
        let cancel = stop.clone();
        let follow = move || {
            let mut pause = Duration::ZERO;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                of.look(&cancel, false);
                pause = EVERY.max(SHARE * begun.elapsed());
            }
        };
        std::thread::Builder::new().name("follow".into()).spawn(follow)?;
        Ok(Follower { shared, stop, _end })
    }

    /// A look at once, which is always reported.
    pub fn look(&self) -> impl FnOnce(&Cancel) + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |cancel| shared.look(cancel, true)
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
