//! Getting a model from the Hugging Face hub, into the cache layout that its other tools use too.
//!
//! Files are read in ranges and appended to a part file, so an interrupted download goes on where it stopped; finished
//! files carry their SHA-256 as name and are checked before they get it. The network is behind [`Hub`]; tests use a fake.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::protocol::engine::Cancel;

/// Bytes asked for at once: what an interruption may cost.
const RANGE_BYTES: u64 = 32 << 20;
/// Tries per range before giving up.
const TRIES: u32 = 5;
/// Left free on the disk beyond the download.
const MARGIN_BYTES: u64 = 1 << 30;

/// What the hub holds at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<HubFile>,
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
    /// No such repository, revision or file, or no permission.
    #[error("{0}")]
    Refused(String),
    /// The content is not what the hub announced.
    #[error("{0}: the content does not match its SHA-256; it was removed")]
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
    /// Bytes of a file.
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
        let commit = fs::read_to_string(self.folder.join("refs").join(revision)).ok();
        let commit = commit.as_deref().map_or(revision, str::trim);
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
        let blobs = self.folder.join("blobs");
        let target = self.folder.join("snapshots").join(&snapshot.commit);
        make(&blobs)?;
        make(&target)?;
        let missing = self.missing_bytes(snapshot);
        let free = fs4::available_space(&blobs).map_err(|e| disk(&blobs, e))?;
        if free < missing.saturating_add(MARGIN_BYTES) {
            return Err(HubError::Space { need: missing + MARGIN_BYTES, free, dir: blobs.display().to_string() });
        }
        let total = snapshot.files.iter().map(|f| f.bytes).sum();
        let mut meter = Meter { done: total - missing, total, fetched: 0, start: Instant::now() };
        for file in &snapshot.files {
            let blob = blobs.join(&file.blob);
            if !has_size(&blob, file.bytes) {
                fetch(hub, &snapshot.commit, file, &blob, wait, &mut |f, n, t| progress(&meter.tell(f, n, t)), cancel)?;
            }
            link(&target, file)?;
        }
        let refs = self.folder.join("refs").join(revision);
        make(refs.parent().unwrap_or(&self.folder))?;
        fs::write(&refs, &snapshot.commit).map_err(|e| disk(&refs, e))?;
        Ok(target)
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
        snapshot.files.iter().map(missing).sum()
    }
}

/// Checks the files of an installed model: name, size, and what is wrong if something is.
///
/// # Errors
/// The folder cannot be read.
pub fn verify(folder: &Path, tell: &mut dyn FnMut(&str, u64)) -> Result<Vec<(String, Option<String>)>, std::io::Error> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|e| e.path()).collect();
    names.sort();
    let mut rows = Vec::new();
    for path in names {
        let Some(name) = path.file_name().map(|n| n.to_string_lossy().into_owned()) else {
            continue;
        };
        let Ok(meta) = fs::metadata(&path) else {
            rows.push((name, Some("missing".to_owned())));
            continue;
        };
        if !meta.is_file() {
            continue;
        }
        tell(&name, meta.len());
        let blob = fs::read_link(&path).ok().and_then(|l| Some(l.file_name()?.to_string_lossy().into_owned()));
        let wrong = match blob {
            Some(hash) if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
                match sha256(&path)? == hash {
                    true => None,
                    false => Some("content does not match its SHA-256".to_owned()),
                }
            }
            _ if name.ends_with(".json") => {
                serde_json::from_slice::<serde::de::IgnoredAny>(&fs::read(&path)?).err().map(|e| e.to_string())
            }
            _ => None,
        };
        rows.push((name, wrong));
    }
    Ok(rows)
}

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model with its tokenizer.
    Model,
    /// A draft head: it uses the model's tokenizer.
    Head,
}

/// Whether a folder is complete: a config, every weight file the index names, for a model its tokenizer.
pub fn complete(folder: &Path, what: Kind) -> bool {
    let has = |name: &str| fs::metadata(folder.join(name)).is_ok_and(|m| m.is_file() && m.len() > 0);
    if !has("config.json") || (what == Kind::Model && !has("tokenizer.json")) {
        return false;
    }
    let index = fs::read(folder.join("model.safetensors.index.json")).ok();
    let index = index.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    match index.as_ref().and_then(|i| i.get("weight_map")).and_then(|m| m.as_object()) {
        Some(map) => map.values().all(|f| f.as_str().is_some_and(has)),
        None => has("model.safetensors"),
    }
}

/// Files worth having: weights, settings, tokenizer, licence; and no path that leads elsewhere.
pub fn wanted(path: &str) -> bool {
    let safe = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
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
    while done < file.bytes {
        let range = done..file.bytes.min(done + RANGE_BYTES);
        let mut tries = 0;
        let bytes = loop {
            if cancel.is_cancelled() {
                return Err(HubError::Stopped);
            }
            match hub.read(commit, &file.path, range.clone()) {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => break bytes,
                Err(HubError::Network(_)) | Ok(_) if tries + 1 < TRIES => {
                    tries += 1;
                    tell((file, done), 0, Some(("network error".to_owned(), tries + 1)));
                    wait(Duration::from_secs(1 << tries));
                }
                Ok(short) => {
                    return Err(HubError::Network(format!(
                        "{}: {} bytes instead of {range:?}",
                        file.path,
                        short.len()
                    )));
                }
                Err(e) => return Err(e),
            }
        };
        out.write_all(&bytes).map_err(|e| disk(&part, e))?;
        done = range.end;
        tell((file, done), bytes.len() as u64, None);
    }
    out.sync_all().map_err(|e| disk(&part, e))?;
    drop(out);
    if let Some(expected) = &file.sha256
        && sha256(&part).map_err(|e| disk(&part, e))? != *expected
    {
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

fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(buffer.get(..n).unwrap_or(&[])),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
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
