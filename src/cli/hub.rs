//! Getting a model from the Hugging Face hub, into the cache layout that its other tools use too.
//!
//! Files are read in ranges and appended to a part file, so an interrupted download goes on where it stopped; finished
//! files carry their SHA-256 (small ones their git id) as name and are checked before they get it. Two downloads of one
//! repository wait for each other. The network is behind [`Hub`]: `http` is the real one, tests also use a fake. `check`
//! looks at what is on the disk.

mod check;
pub(super) mod http;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use fs4::FileExt;

use crate::engine::protocol::Cancel;

pub use check::{Kind, Verdict, complete, verify, verify_packed};

/// Bytes asked for at once: what an interruption may cost.
const RANGE_BYTES: u64 = 32 << 20;
/// Tries per range before giving up.
const TRIES: u32 = 5;
/// Reads in a row that may bring less than was asked for.
const SHORT_READS: u32 = 64;
/// Longest wait that a busy hub may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Left free on the disk beyond the download.
const MARGIN_BYTES: u64 = 1 << 30;

/// What the hub holds at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit: 40 hexadecimal digits.
    pub commit: String,
    /// Its files.
    pub files: Vec<HubFile>,
    /// The licence that its card names.
    pub licence: Option<String>,
}

/// A file on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// Name of its content in the cache: the SHA-256 of large files, the git id of small ones.
    pub blob: String,
    /// SHA-256 of the content, for large files.
    pub sha256: Option<String>,
}

/// Why a download ended early.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The network or the server.
    #[error("no answer from the hub: {0}")]
    Network(String),
    /// The server asks for patience (429, 503).
    #[error("the hub is busy: {what}")]
    Busy {
        /// In its words.
        what: String,
        /// How long it asks to wait.
        wait: Option<Duration>,
    },
    /// The server has less of the file than is here already.
    #[error("the hub has no bytes {from}… of {path}")]
    Range {
        /// The file.
        path: String,
        /// First byte asked for.
        from: u64,
    },
    /// No such repository or revision, or one that is shown to nobody who is not logged in: the hub does not tell them apart.
    #[error("the hub does not know {0}")]
    Unknown(String),
    /// No such file, or no permission.
    #[error("{0}")]
    Refused(String),
    /// The content is not what the hub announced.
    #[error("{0}: the content does not match its published hash; it was removed")]
    Damaged(String),
    /// Not enough space.
    #[error("{} needed, {} free in {dir}", gigabytes(*.need), gigabytes(*.free))]
    Space {
        /// Bytes.
        need: u64,
        /// Bytes.
        free: u64,
        /// Where.
        dir: String,
    },
    /// Writing failed.
    #[error("{path}: {source}")]
    Disk {
        /// Where.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The user stopped it.
    #[error("stopped; the next start goes on from here")]
    Stopped,
}

/// The part of the hub that a download needs.
pub trait Hub {
    /// The commit a revision means, and its files.
    ///
    /// # Errors
    /// Network, or no such repository.
    fn snapshot(&self, revision: &str) -> Result<Snapshot, HubError>;
    /// Bytes of a file: those of the range, or fewer where the connection ends early. Never more.
    ///
    /// # Errors
    /// Network, or no such file.
    fn read(&self, commit: &str, path: &str, range: Range<u64>) -> Result<Vec<u8>, HubError>;
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The file being read.
    pub file: String,
    /// Of the file.
    pub file_done: u64,
    /// Of the file.
    pub file_bytes: u64,
    /// Of all files; never goes back.
    pub done: u64,
    /// Of all files.
    pub total: u64,
    /// Over this run.
    pub bytes_per_s: f64,
    /// Set while waiting to try again: what happened, and which try comes next.
    pub trouble: Option<(String, u32)>,
}

/// A repository in the local cache.
#[derive(Clone, Debug)]
pub struct CachedRepo {
    folder: PathBuf,
}

impl CachedRepo {
    /// `cache` is the hub's cache folder, `repo` is `owner/name`.
    pub fn new(cache: &Path, repo: &str) -> CachedRepo {
        CachedRepo { folder: cache.join(format!("models--{}", repo.replace('/', "--"))) }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a revision if everything a model or a draft head needs is there.
    pub fn installed(&self, revision: &str, what: Kind) -> Option<PathBuf> {
        let revision = revision_path(revision).ok()?;
        let commit = fs::read_to_string(self.folder.join("refs").join(&revision)).ok();
        let commit = commit.as_deref().map_or(revision.to_str()?, str::trim);
        if !is_commit(commit) {
            return None;
        }
        let folder = self.folder.join("snapshots").join(commit);
        complete(&folder, what).then_some(folder)
    }

    /// Fetches what is missing of a snapshot; the folder that holds it.
    ///
    /// # Errors
    /// See [`HubError`]. What was read stays for the next try.
    pub fn download(
        &self,
        hub: &dyn Hub,
        revision: &str,
        snapshot: &Snapshot,
        wait: &dyn Fn(Duration),
        progress: &mut dyn FnMut(&Progress),
        cancel: &Cancel,
    ) -> Result<PathBuf, HubError> {
        let revision = revision_path(revision)?;
        if !is_commit(&snapshot.commit) {
            return Err(HubError::Refused(format!("the hub names a commit that is none: {}", clean(&snapshot.commit))));
        }
        let blobs = self.folder.join("blobs");
        let target = self.folder.join("snapshots").join(&snapshot.commit);
        make(&blobs)?;
        make(&target)?;
        let _alone = self.alone(snapshot, wait, progress, cancel)?;
        let missing = self.missing_bytes(snapshot);
        let free = fs4::available_space(&blobs).map_err(|e| disk(&blobs, e))?;
        if free < missing.saturating_add(MARGIN_BYTES) {
            return Err(HubError::Space { need: missing + MARGIN_BYTES, free, dir: blobs.display().to_string() });
        }
        let total = blobs_of(snapshot).map(|f| f.bytes).sum();
        let mut meter = Meter { done: total - missing, total, fetched: 0, start: Instant::now() };
        for file in &snapshot.files {
            let blob = blobs.join(&file.blob);
            if !has_size(&blob, file.bytes) {
                fetch(hub, &snapshot.commit, file, &blob, wait, &mut |f, n, t| progress(&meter.tell(f, n, t)), cancel)?;
            }
            link(&target, file)?;
        }
        let refs = self.folder.join("refs").join(&revision);
        make(refs.parent().unwrap_or(&self.folder))?;
        fs::write(&refs, &snapshot.commit).map_err(|e| disk(&refs, e))?;
        Ok(target)
    }

    /// Waits until no other download of this repository runs; held until dropped.
    fn alone(
        &self,
        snapshot: &Snapshot,
        wait: &dyn Fn(Duration),
        progress: &mut dyn FnMut(&Progress),
        cancel: &Cancel,
    ) -> Result<fs::File, HubError> {
        let path = self.folder.join("sala-download.lock");
        let open = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
        let file = open.map_err(|e| disk(&path, e))?;
        let total = snapshot.files.iter().map(|f| f.bytes).sum();
        for again in 1.. {
            match FileExt::try_lock(&file) {
                Ok(()) => break,
                Err(fs4::TryLockError::WouldBlock) if cancel.is_cancelled() => return Err(HubError::Stopped),
                Err(fs4::TryLockError::WouldBlock) => {
                    let trouble = Some(("another download of it runs".to_owned(), again));
                    let (file, done) = (String::new(), total - self.missing_bytes(snapshot).min(total));
                    progress(&Progress { file, file_done: 0, file_bytes: 0, done, total, bytes_per_s: 0.0, trouble });
                    wait(Duration::from_secs(1));
                }
                Err(fs4::TryLockError::Error(e)) => return Err(disk(&path, e)),
            }
        }
        Ok(file)
    }

    /// Bytes that a download would fetch.
    pub fn missing_bytes(&self, snapshot: &Snapshot) -> u64 {
        let blobs = self.folder.join("blobs");
        let missing = |f: &HubFile| {
            if has_size(&blobs.join(&f.blob), f.bytes) {
                0
            } else {
                f.bytes.saturating_sub(part_len(&part_path(&blobs.join(&f.blob))))
            }
        };
        blobs_of(snapshot).map(missing).sum()
    }
}

/// The files of a snapshot; of several with the same content one, which is fetched once.
fn blobs_of(snapshot: &Snapshot) -> impl Iterator<Item = &HubFile> {
    let mut seen = std::collections::HashSet::new();
    snapshot.files.iter().filter(move |f| seen.insert(&f.blob))
}

/// A commit as git names it.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A revision as a path below `refs`.
fn revision_path(revision: &str) -> Result<PathBuf, HubError> {
    let path = PathBuf::from(revision);
    let safe = !revision.is_empty() && path.components().all(|c| matches!(c, Component::Normal(_)));
    if safe { Ok(path) } else { Err(HubError::Refused(format!("{} is no revision", clean(revision)))) }
}

/// Words of the hub, harmless on a terminal.
fn clean(text: &str) -> String {
    crate::text::sanitize::sanitize_line(text).chars().take(200).collect()
}

/// Files worth having: weights, settings, tokenizer, licence; and no path that leads elsewhere.
pub fn wanted(path: &str) -> bool {
    let normal = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    let safe = normal && !path.chars().any(char::is_control) && path.len() < 300;
    let extension = path.rsplit('.').next().unwrap_or_default();
    safe && (matches!(extension, "safetensors" | "json" | "jinja" | "md" | "model") || path.starts_with("LICENSE"))
}

/// `19.5 GB`.
pub fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

struct Meter {
    done: u64,
    total: u64,
    fetched: u64,
    start: Instant,
}

impl Meter {
    fn tell(&mut self, file: (&HubFile, u64), new: u64, trouble: Option<(String, u32)>) -> Progress {
        self.done = (self.done + new).min(self.total);
        self.fetched += new;
        Progress {
            file: file.0.path.clone(),
            file_done: file.1,
            file_bytes: file.0.bytes,
            done: self.done,
            total: self.total,
            bytes_per_s: self.fetched as f64 / self.start.elapsed().as_secs_f64().max(0.001),
            trouble,
        }
    }
}

type Tell<'a> = dyn FnMut((&HubFile, u64), u64, Option<(String, u32)>) + 'a;

fn fetch(
    hub: &dyn Hub,
    commit: &str,
    file: &HubFile,
    blob: &Path,
    wait: &dyn Fn(Duration),
    tell: &mut Tell,
    cancel: &Cancel,
) -> Result<(), HubError> {
    let part = part_path(blob);
    if part_len(&part) > file.bytes {
        fs::remove_file(&part).map_err(|e| disk(&part, e))?;
    }
    let mut out = OpenOptions::new().create(true).append(true).open(&part).map_err(|e| disk(&part, e))?;
    let mut done = part_len(&part);
    tell((file, done), 0, None);
    let (mut tries, mut short) = (0, 0);
    while done < file.bytes {
        if cancel.is_cancelled() {
            return Err(HubError::Stopped);
        }
        let range = done..file.bytes.min(done + RANGE_BYTES);
        let wanted = range.end - range.start;
        let (why, pause) = match hub.read(commit, &file.path, range) {
            Ok(bytes) if !bytes.is_empty() && bytes.len() as u64 <= wanted && short < SHORT_READS => {
                short = if (bytes.len() as u64) < wanted { short + 1 } else { 0 };
                tries = 0;
                out.write_all(&bytes).map_err(|e| disk(&part, e))?;
                done += bytes.len() as u64;
                tell((file, done), bytes.len() as u64, None);
                continue;
            }
            Ok(bytes) => (format!("{}: {} bytes instead of {wanted}", file.path, bytes.len()), None),
            Err(HubError::Network(why)) => (why, None),
            Err(HubError::Busy { what, wait }) => (what, wait),
            Err(HubError::Range { .. }) if done > 0 => {
                // What is here cannot be of this file.
                out.set_len(0).map_err(|e| disk(&part, e))?;
                done = 0;
                ("starting this file again".to_owned(), Some(Duration::ZERO))
            }
            Err(e) => return Err(e),
        };
        tries += 1;
        if tries >= TRIES {
            return Err(HubError::Network(why));
        }
        tell((file, done), 0, Some((why, tries + 1)));
        wait(pause.unwrap_or(Duration::from_secs(1 << tries)).min(LONGEST_WAIT));
    }
    out.sync_all().map_err(|e| disk(&part, e))?;
    drop(out);
    if check::content(&part, file).map_err(|e| disk(&part, e))? == Some(false) {
        fs::remove_file(&part).map_err(|e| disk(&part, e))?;
        return Err(HubError::Damaged(file.path.clone()));
    }
    fs::rename(&part, blob).map_err(|e| disk(blob, e))
}

/// `snapshots/COMMIT/PATH -> ../../blobs/BLOB`.
fn link(target: &Path, file: &HubFile) -> Result<(), HubError> {
    let path = target.join(&file.path);
    let depth = Path::new(&file.path).components().count();
    let to = format!("{}blobs/{}", "../".repeat(depth + 1), file.blob);
    make(path.parent().unwrap_or(target))?;
    match fs::read_link(&path) {
        Ok(old) if old == Path::new(&to) => return Ok(()),
        Ok(_) => fs::remove_file(&path).map_err(|e| disk(&path, e))?,
        Err(_) => {}
    }
    std::os::unix::fs::symlink(to, &path).map_err(|e| disk(&path, e))
}

fn part_path(blob: &Path) -> PathBuf {
    blob.with_extension("sala-part")
}

fn part_len(part: &Path) -> u64 {
    fs::metadata(part).map_or(0, |m| m.len())
}

fn has_size(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|m| m.len() == bytes)
}

fn make(dir: &Path) -> Result<(), HubError> {
    fs::create_dir_all(dir).map_err(|e| disk(dir, e))
}

fn disk(path: &Path, source: std::io::Error) -> HubError {
    HubError::Disk { path: path.display().to_string(), source }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
