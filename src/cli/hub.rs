//! Models from the Hugging Face hub, in the cache folder that other hub tools use too. `hf-hub` knows addresses and
//! cache layout; its own download has no time limits and uses the server's words as file names, so bytes are read here.
//! A file grows as `.sala-part`, so an interrupted download continues; it gets its name after its hash is checked.

mod check;
mod client;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use fs4::FileExt;
use hf_hub::Repo;

use super::{Exit, Failure};
use crate::config::settings::ModelConfig;
use crate::core::{bytes, plain_words};

pub use check::{Kind, Verdict, complete, verify};
#[cfg(test)]
use client::STALL;
use client::cache_folder;
pub(super) use client::{Hub, is_id};

const TRIES: u32 = 5;
/// A request that reads this much resets the count of tries.
const LEAST_BYTES: u64 = 64 << 10;
const REPORT_BYTES: u64 = 1 << 20;
const LONGEST_WAIT: Duration = Duration::from_secs(300);
const MARGIN_BYTES: u64 = 1 << 30;

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub commit: String,
    pub files: Vec<HubFile>,
    pub licence: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    pub path: String,
    pub bytes: u64,
    /// Name of its content in the cache: the SHA-256 of large files, the git id of small ones.
    pub blob: String,
}

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("no answer from the hub: {0}")]
    Network(String),
    /// Status 429 or 503, with the pause that it asks for.
    #[error("the hub is busy")]
    Busy(Option<Duration>),
    /// No such repository or revision, or a private one: the hub does not distinguish them without a token.
    #[error("the hub does not know {0}")]
    Unknown(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}: the content does not match its published hash; it was removed")]
    Damaged(String),
    #[error("{0}")]
    Disk(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    pub file: String,
    /// Of all files; never decreases.
    pub done: u64,
    pub total: u64,
    pub bytes_per_s: f64,
    /// While waiting for the next try: the reason, and the number of the try.
    pub trouble: Option<(String, u32)>,
}

/// The downloaded model of the settings, found without the network.
pub fn installed(config: &ModelConfig) -> Option<PathBuf> {
    CachedRepo::of(&config.repo).installed(&config.revision, Kind::Model)
}

/// The folder that `speculation.draft` or `--draft` names: a folder, or a hub id that was downloaded.
pub fn draft_folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = PathBuf::from(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    if !is_id(name) {
        let failure = Failure::new(Exit::NoModel, format!("{name}: no such draft head folder"));
        return Err(failure.hint("Without one: --draft off"));
    }
    CachedRepo::of(name).installed("main", Kind::Head).ok_or_else(|| {
        Failure::new(Exit::NoModel, format!("the draft head {name} is not on this computer"))
            .hint(format!("Get it: sala-chat model download {name}. Or go without: --draft off"))
    })
}

#[derive(Clone, Debug)]
pub struct CachedRepo {
    folder: PathBuf,
}

impl CachedRepo {
    pub(super) fn of(repo: &str) -> CachedRepo {
        CachedRepo::new(&cache_folder(), repo)
    }

    fn new(cache: &Path, repo: &str) -> CachedRepo {
        CachedRepo { folder: cache.join(Repo::model(repo.to_owned()).folder_name()) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn installed(&self, revision: &str, what: Kind) -> Option<PathBuf> {
        let revision = revision_path(revision).ok()?;
        let commit = fs::read_to_string(self.folder.join("refs").join(&revision)).ok();
        let commit = commit.as_deref().map_or(revision.to_str()?, str::trim);
        let folder = self.folder.join("snapshots").join(commit);
        (is_commit(commit) && complete(&folder, what)).then_some(folder)
    }

    /// Fetches the missing files of a snapshot; returns its folder. What was read stays for the next try.
    pub(super) fn download(
        &self,
        hub: &Hub,
        revision: &str,
        snapshot: &Snapshot,
        wait: &dyn Fn(Duration),
        report: &mut dyn FnMut(&Progress),
    ) -> Result<PathBuf, HubError> {
        let revision = revision_path(revision)?;
        if !is_commit(&snapshot.commit) {
            let commit = clean(&snapshot.commit);
            return Err(HubError::Refused(format!("the hub names an invalid commit: {commit}")));
        }
        let blobs = self.folder.join("blobs");
        let target = self.folder.join("snapshots").join(&snapshot.commit);
        make(&blobs)?;
        make(&target)?;
        let total = blobs_of(snapshot).map(|f| f.bytes).sum();
        let progress = Progress { total, ..Progress::default() };
        let mut run = Run { wait, report, progress, before: 0, start: Instant::now() };
        let _alone = self.alone(&mut run)?;
        let missing = self.missing_bytes(snapshot);
        let free = fs4::available_space(&blobs).map_err(|e| disk(&blobs, e))?;
        let need = missing.saturating_add(MARGIN_BYTES);
        if free < need {
            let (need, free, dir) = (bytes(need), bytes(free), blobs.display());
            return Err(HubError::Disk(format!("{need} needed, {free} free in {dir}")));
        }
        run.before = total - missing;
        run.progress.done = run.before;
        for file in &snapshot.files {
            let blob = blobs.join(&file.blob);
            if !has_size(&blob, file.bytes) {
                fetch(hub, &snapshot.commit, file, &blob, &mut run)?;
            }
            link(&target, file)?;
        }
        let refs = self.folder.join("refs").join(&revision);
        make(refs.parent().unwrap_or(&self.folder))?;
        fs::write(&refs, &snapshot.commit).map_err(|e| disk(&refs, e))?;
        Ok(target)
    }

    /// Waits until no other download of this repository runs; held until dropped.
    fn alone(&self, run: &mut Run<'_>) -> Result<fs::File, HubError> {
        let path = self.folder.join("sala-download.lock");
        let open = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
        let file = open.map_err(|e| disk(&path, e))?;
        let mut again = 1;
        while let Err(e) = FileExt::try_lock(&file) {
            if let fs4::TryLockError::Error(e) = e {
                return Err(disk(&path, e));
            }
            run.report(Some(("another download of it runs".to_owned(), again)));
            (run.wait)(Duration::from_secs(1));
            again += 1;
        }
        Ok(file)
    }

    pub fn missing_bytes(&self, snapshot: &Snapshot) -> u64 {
        let missing = |f: &HubFile| {
            let blob = self.folder.join("blobs").join(&f.blob);
            let here = if has_size(&blob, f.bytes) { f.bytes } else { len(&part_path(&blob)) };
            f.bytes.saturating_sub(here)
        };
        blobs_of(snapshot).map(missing).sum()
    }
}

struct Run<'a> {
    wait: &'a dyn Fn(Duration),
    report: &'a mut dyn FnMut(&Progress),
    progress: Progress,
    /// Bytes that were there when it began.
    before: u64,
    start: Instant,
}

impl Run<'_> {
    fn report(&mut self, trouble: Option<(String, u32)>) {
        let fetched = self.progress.done.saturating_sub(self.before) as f64;
        self.progress.bytes_per_s = fetched / self.start.elapsed().as_secs_f64().max(0.001);
        self.progress.trouble = trouble;
        (self.report)(&self.progress);
    }

    fn advance(&mut self, new: u64) {
        let reported = self.progress.done / REPORT_BYTES;
        self.progress.done = (self.progress.done + new).min(self.progress.total);
        if self.progress.done / REPORT_BYTES > reported {
            self.report(None);
        }
    }
}

fn fetch(hub: &Hub, commit: &str, file: &HubFile, blob: &Path, run: &mut Run<'_>) -> Result<(), HubError> {
    let part = part_path(blob);
    if len(&part) > file.bytes {
        fs::remove_file(&part).map_err(|e| disk(&part, e))?;
    }
    let mut out = OpenOptions::new().create(true).append(true).open(&part).map_err(|e| disk(&part, e))?;
    run.progress.file.clone_from(&file.path);
    run.report(None);
    let (mut here, mut tries) = (len(&part), 0);
    while here < file.bytes {
        let start = here;
        let read = hub.read(commit, &file.path, start..file.bytes, &mut |piece| {
            out.write_all(piece).map_err(|e| disk(&part, e))?;
            here += piece.len() as u64;
            run.advance(piece.len() as u64);
            Ok(())
        });
        let (why, pause) = match read {
            Ok(()) => break,
            Err(HubError::Network(why)) => (why, None),
            Err(HubError::Busy(pause)) => ("the hub is busy".to_owned(), pause),
            Err(e) => return Err(e),
        };
        tries = if here - start >= LEAST_BYTES { 1 } else { tries + 1 };
        if tries >= TRIES {
            return Err(HubError::Network(why));
        }
        run.report(Some((why, tries + 1)));
        (run.wait)(pause.unwrap_or(Duration::from_secs(1 << tries)).min(LONGEST_WAIT));
    }
    run.report(None);
    out.sync_all().map_err(|e| disk(&part, e))?;
    drop(out);
    if check::content(&part, &file.blob).map_err(|e| disk(&part, e))? == Some(false) {
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

/// The files of a snapshot; files with the same content are fetched once.
fn blobs_of(snapshot: &Snapshot) -> impl Iterator<Item = &HubFile> {
    let mut seen = std::collections::HashSet::new();
    snapshot.files.iter().filter(move |f| seen.insert(&f.blob))
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn revision_path(revision: &str) -> Result<PathBuf, HubError> {
    let path = PathBuf::from(revision);
    let safe = !revision.is_empty() && path.components().all(|c| matches!(c, Component::Normal(_)));
    if safe { Ok(path) } else { Err(HubError::Refused(format!("{} is not a revision", clean(revision)))) }
}

/// Text from outside, harmless on a terminal.
fn clean(text: &str) -> String {
    crate::core::sanitize::sanitize_line(text).chars().take(200).collect()
}

/// Weights, settings, tokenizer and licence; never a path that leads out of the folder.
fn wanted(path: &str) -> bool {
    let normal = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    let safe = normal && !path.chars().any(char::is_control) && path.len() < 300;
    let extension = path.rsplit('.').next().unwrap_or_default();
    safe && (matches!(extension, "safetensors" | "json" | "jinja" | "md" | "model") || path.starts_with("LICENSE"))
}

fn part_path(blob: &Path) -> PathBuf {
    blob.with_extension("sala-part")
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

fn has_size(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|m| m.len() == bytes)
}

fn make(dir: &Path) -> Result<(), HubError> {
    fs::create_dir_all(dir).map_err(|e| disk(dir, e))
}

fn disk(path: &Path, source: std::io::Error) -> HubError {
    HubError::Disk(format!("{}: {}", path.display(), plain_words(&source)))
}

#[cfg(test)]
#[path = "hub/http_tests.rs"]
mod http_tests;
#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
