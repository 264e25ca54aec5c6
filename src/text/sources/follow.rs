//! Files and folders that are followed. A [`Looker`] compares them with its last look and reads what differs; a
//! [`Follower`] looks on its own thread when the system reports events, however many, or every few seconds where it
//! cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};
use notify::{ErrorKind, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::{Files, Found, Problem, SourceError, SourceOptions, TOTAL_FILES, find, pattern, read, resolve};
use crate::core::plain_words;
use crate::engine::protocol::Cancel;

/// Time without an event after which a look begins, and the longest delay while events continue.
const QUIET: Duration = Duration::from_millis(150);
const LONGEST_DELAY: Duration = Duration::from_secs(2);
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
    /// Why looking or watching failed.
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
        let old = SystemTime::now().duration_since(modified).is_ok_and(|age| age > SAME_STAMP);
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
    folders: BTreeSet<PathBuf>,
}

impl Looker {
    /// Takes the files as they are now for known. `paths` are those of [`whole_paths`].
    pub fn new(paths: Vec<String>, options: SourceOptions, cancel: &Cancel) -> Result<Looker, SourceError> {
        let mut looker = Looker { paths, options, seen: BTreeMap::new(), folders: BTreeSet::new() };
        let Files { found, folders, .. } = find(&looker.paths, &looker.options, cancel)?;
        looker.know(folders, &found);
        looker.seen.extend(found.into_iter().map(|f| {
            let stamp = Stamp::of(&f.path);
            (f.path, (f.name, stamp))
        }));
        Ok(looker)
    }

    fn know(&mut self, folders: Vec<PathBuf>, found: &[Found]) {
        self.folders = folders.into_iter().collect();
        // The folder of a named file, which an editor may replace.
        let named = found.iter().filter(|f| f.named || self.paths.iter().any(|p| pattern::is_pattern(p)));
        self.folders.extend(named.filter_map(|f| f.path.parent()).map(Path::to_owned));
    }

    fn look(&mut self, cancel: &Cancel) -> Result<Look, SourceError> {
        let (mut found, mut folders, mut note) = (Vec::new(), Vec::new(), None);
        for path in &self.paths {
            match find(std::slice::from_ref(path), &self.options, cancel) {
                Ok(files) => {
                    if files.found.is_empty() && self.seen.keys().any(|seen| seen.starts_with(path)) {
                        note = Some(format!("{path} has no files any more: what was read of it stays as it is."));
                    }
                    found.extend(files.found);
                    folders.extend(files.folders);
                }
                Err(SourceError::NotFound { .. } | SourceError::NoMatch(_)) => {}
                Err(e) => return Err(e),
            }
        }
        // A watch of a folder that vanished is set again when it is back.
        self.know(folders, &found);
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

#[derive(Clone, Copy, Debug)]
pub struct Watching {
    /// Most folders with a watch of the system; with more, none is used.
    pub most: usize,
    /// Time between two looks without watches.
    pub every: Duration,
}

impl Default for Watching {
    fn default() -> Watching {
        Watching { most: 50_000, every: Duration::from_secs(3) }
    }
}

struct Shared {
    looker: Mutex<Looker>,
    report: Box<dyn Fn(Look) + Send + Sync>,
}

impl Shared {
    /// Looks and reports while holding the lock, so that reports keep the order of looks.
    fn look(&self, cancel: &Cancel) -> BTreeSet<PathBuf> {
        let mut looker = self.looker.lock().unwrap_or_else(PoisonError::into_inner);
        match looker.look(cancel) {
            Err(SourceError::Cancelled) => {}
            Err(e) => (self.report)(Look { note: Some(e.to_string()), ..Look::default() }),
            Ok(look) => (self.report)(look),
        }
        looker.folders.clone()
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
    pub fn start(
        looker: Looker,
        watching: Watching,
        report: impl Fn(Look) + Send + Sync + 'static,
    ) -> std::io::Result<Follower> {
        let (_end, ended) = bounded(0);
        let folders = looker.folders.clone();
        let shared = Arc::new(Shared { looker: Mutex::new(looker), report: Box::new(report) });
        let (of, stop) = (Arc::clone(&shared), Cancel::default());
        let cancel = stop.clone();
        let follow = move || follow(&of, folders, watching, &ended, &cancel);
        std::thread::Builder::new().name("follow".into()).spawn(follow)?;
        Ok(Follower { shared, stop, _end })
    }

    /// A look at once; reports like any other.
    pub fn look(&self) -> impl FnOnce(&Cancel) + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |cancel| drop(shared.look(cancel))
    }
}

fn follow(shared: &Shared, folders: BTreeSet<PathBuf>, watching: Watching, ended: &Receiver<()>, cancel: &Cancel) {
    let (to, changed) = bounded(1);
    // After a failure, looks at intervals take the place of watches.
    let mut watch = Watch::new(to).and_then(|watch| watch.on(folders, watching.most));
    // For what changed before the watch.
    shared.look(cancel);
    let (mut pause, mut is_reported) = (QUIET, false);
    loop {
        let (poll, events) = match &watch {
            Ok(_) => (never(), changed.clone()),
            Err(_) => (after(watching.every), never()),
        };
        if let Err(why) = &watch
            && !std::mem::replace(&mut is_reported, true)
        {
            let seconds = watching.every.as_secs_f64().ceil();
            let text = format!("Changes are looked for every {seconds} s, because {why}.");
            (shared.report)(Look { note: Some(text), ..Look::default() });
        }
        select! {
            recv(ended) -> _ => return,
            recv(poll) -> _ => {}
            recv(events) -> _ => {
                let latest = Instant::now() + LONGEST_DELAY.max(pause);
                while Instant::now() < latest && changed.recv_timeout(pause).is_ok() {}
            }
        }
        let begun = Instant::now();
        let folders = shared.look(cancel);
        // Of a folder that never rests, looking takes a small part of the time.
        pause = QUIET.max(5 * begun.elapsed());
        watch = watch.and_then(|watch| watch.on(folders, watching.most));
    }
}

struct Watch {
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
}

impl Watch {
    fn new(events: Sender<()>) -> Result<Watch, String> {
        // Reading files causes events too. One event waiting is enough for a look.
        let on_event = move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|e| matches!(e.kind, EventKind::Access(_))) {
                let _ = events.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(on_event).map_err(|e| reason(&e))?;
        Ok(Watch { watcher, folders: BTreeSet::new() })
    }

    /// Watches these folders in place of others.
    fn on(mut self, folders: BTreeSet<PathBuf>, most: usize) -> Result<Watch, String> {
        if folders.len() > most {
            return Err(format!("there are more than {most} folders"));
        }
        for folder in folders.difference(&self.folders) {
            match self.watcher.watch(folder, RecursiveMode::NonRecursive) {
                _ if is_remote(folder) => return Err(format!("{} is on another machine", folder.display())),
                // It vanished meanwhile.
                Err(e) if !matches!(e.kind, ErrorKind::PathNotFound) => {
                    return Err(format!("{} cannot be watched: {}", folder.display(), reason(&e)));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.folders.difference(&folders).for_each(|folder| drop(self.watcher.unwatch(folder)));
        Ok(Watch { folders, ..self })
    }
}

fn reason(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "the system's limit of watches is reached; raise fs.inotify.max_user_watches".into()
        }
        ErrorKind::Io(e) => plain_words(e),
        _ => plain_words(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn is_remote(_folder: &Path) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn is_remote(folder: &Path) -> bool {
    // File systems of other machines, where changes cause no events: NFS, SMB, CIFS, 9P, FUSE, Ceph, AFS.
    const REMOTE: [i64; 7] = [0x6969, 0xFE53_4D42, 0xFF53_4D42, 0x0102_1997, 0x6573_5546, 0x00C3_6400, 0x5346_414F];
    rustix::fs::statfs(folder).is_ok_and(|disk| REMOTE.contains(&disk.f_type))
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
