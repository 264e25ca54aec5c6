//! Files of a model on the disk: whether all are there, whole, and what their authors published.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::HubFile;
use crate::model::Tensors;
use crate::model::quantize::{self, Condition};

const JSON_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Model,
    /// A draft head: it uses the model's tokenizer.
    Head,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Verified(&'static str),
    /// No fault was found, and no hash is known.
    Unverified(&'static str),
    Wrong(String),
}

pub(super) const UNPUBLISHED: Verdict = Verdict::Unverified("not verified: no hash of it is known here");

impl Verdict {
    pub fn words(&self) -> &str {
        match self {
            Verdict::Verified(words) | Verdict::Unverified(words) => words,
            Verdict::Wrong(why) => why,
        }
    }

    pub fn problem(&self) -> Option<&str> {
        match self {
            Verdict::Wrong(why) => Some(why),
            Verdict::Verified(_) | Verdict::Unverified(_) => None,
        }
    }
}

impl From<Condition> for Verdict {
    fn from(condition: Condition) -> Verdict {
        match condition {
            Condition::AsWritten => Verdict::Verified("as it was written"),
            Condition::Damaged(why) => Verdict::Wrong(why),
            Condition::Unreadable(why) => Verdict::Wrong(format!("cannot be read: {why}")),
        }
    }
}

/// Checks each file of an installed model: `packed` are the parts of a folder that this program packed, `published` what the
/// hub lists, also what is missing. `report` hears of a file before it is read.
pub fn verify(
    folder: &Path,
    mut packed: BTreeMap<String, Condition>,
    published: &[HubFile],
    report: &mut dyn FnMut(&str, u64),
) -> std::io::Result<Vec<(String, Verdict)>> {
    let named = |e: fs::DirEntry| (e.file_name().to_string_lossy().into_owned(), e.path());
    let mut all: BTreeMap<String, PathBuf> = fs::read_dir(folder)?.flatten().map(named).collect();
    // Adds files of subfolders and missing ones.
    all.extend(published.iter().map(|file| (file.path.clone(), folder.join(&file.path))));
    let mut rows = Vec::new();
    for (name, path) in all.into_iter().filter(|(name, _)| !quantize::is_aside(name)) {
        let known = published.iter().find(|file| file.path == name);
        let verdict = match (packed.remove(&name), fs::metadata(&path)) {
            (Some(condition), _) => condition.into(),
            (None, Ok(meta)) if meta.is_file() => {
                report(&name, meta.len());
                verdict(&path, &name, meta.len(), known)?
            }
            (None, Ok(_)) if known.is_none() => continue,
            (None, _) => Verdict::Wrong("missing".to_owned()),
        };
        rows.push((name, verdict));
    }
    rows.extend(packed.into_iter().map(|(name, condition)| (name, condition.into())));
    Ok(rows)
}

fn verdict(path: &Path, name: &str, bytes: u64, published: Option<&HubFile>) -> std::io::Result<Verdict> {
    if let Some(file) = published.filter(|file| file.bytes != bytes) {
        return Ok(Verdict::Wrong(format!("{bytes} bytes, published are {}", file.bytes)));
    }
    if name.ends_with(".safetensors")
        && let Err(e) = Tensors::open_files(&[path.to_owned()])
    {
        return Ok(Verdict::Wrong(e.to_string()));
    }
    if name.ends_with(".json")
        && let Err(e) = serde_json::from_reader::<_, serde::de::IgnoredAny>(File::open(path)?.take(JSON_BYTES))
    {
        return Ok(Verdict::Wrong(e.to_string()));
    }
    // In the cache the link's target is named after the published hash.
    let in_cache = || {
        let link = fs::read_link(path).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    };
    let Some(blob) = published.map(|file| file.blob.clone()).or_else(in_cache) else {
        return Ok(UNPUBLISHED);
    };
    Ok(match content(path, &blob)? {
        Some(true) => Verdict::Verified("ok"),
        Some(false) => Verdict::Wrong("content does not match its published hash".to_owned()),
        None => UNPUBLISHED,
    })
}

/// Whether the content is the published one; `None` where the id is neither a SHA-256 nor a git id.
pub(super) fn content(path: &Path, blob: &str) -> std::io::Result<Option<bool>> {
    let found = match blob.len() {
        _ if !blob.bytes().all(|b| b.is_ascii_hexdigit()) => return Ok(None),
        64 => digest(path, Sha256::new())?,
        // git hashes "blob", the length, and the content.
        40 => digest(path, Sha1::new().chain_update(format!("blob {}\0", fs::metadata(path)?.len())))?,
        _ => return Ok(None),
    };
    Ok(Some(found.eq_ignore_ascii_case(blob)))
}

fn digest<D: Digest>(path: &Path, start: D) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (start, vec![0; 1 << 20]);
    while let Some(read @ [_, ..]) = file.read(&mut buffer).map(|n| buffer.get(..n))? {
        hash.update(read);
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// A complete folder has a config, every weight file whole, and for a model its tokenizer.
pub fn complete(folder: &Path, what: Kind) -> bool {
    let has = |name: &&str| fs::metadata(folder.join(name)).is_ok_and(|m| m.is_file() && m.len() > 0);
    let files: &[&str] = match what {
        Kind::Model => &["config.json", "tokenizer.json", "tokenizer_config.json"],
        Kind::Head => &["config.json"],
    };
    files.iter().all(has) && Tensors::open_dir(folder).is_ok()
}
