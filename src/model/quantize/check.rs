//! Whether a folder that this program packed is as it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::folder::{index, is_part, made_from, seal};
use super::write::remove;
use super::{HASHES, MADE_FROM, SEAL, WEIGHTS_INDEX};
use crate::model::{Result, Tensors};
use crate::text::files;

/// What is so of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Every byte is as it was written.
    AsWritten,
    /// What was hashed of it is: an earlier version hashed samples of large folders.
    AsSampled,
    /// It is not, in words.
    Damaged(String),
}

/// Looks at each part of a finished folder, and at the index where that does not fit them. `tell` hears of a file before it is read.
/// `None`: another program's folder, or one that was not finished.
pub fn check(folder: &Path, tell: &mut dyn FnMut(&str, u64)) -> Option<BTreeMap<String, Condition>> {
    let index = index(folder)?;
    let metadata = index.get("metadata")?;
    let says = |key: &str| metadata.get(key).and_then(serde_json::Value::as_str);
    let (id, expected) = (says(MADE_FROM)?, says(SEAL)?);
    let hashes = metadata.get(HASHES);
    let files = index.get("weight_map")?.as_object()?.values().filter_map(serde_json::Value::as_str);
    let parts: BTreeSet<&str> = files.filter(|name| is_part(name)).collect();
    let mut found = BTreeMap::new();
    for name in parts {
        let path = folder.join(name);
        tell(name, path.metadata().map_or(0, |m| m.len()));
        let noted = hashes.map(|hashes| hashes.get(name).and_then(serde_json::Value::as_str).unwrap_or_default());
        found.insert(name.to_owned(), condition(&path, id, noted));
    }
    let whole = found.values().all(|condition| !matches!(condition, Condition::Damaged(_)));
    if whole && Tensors::open_dir(folder).ok().is_none_or(|tensors| seal(&tensors) != expected) {
        match hashes {
            Some(_) => {
                let why = "does not describe the parts, which are as they were written".to_owned();
                found.insert(WEIGHTS_INDEX.to_owned(), Condition::Damaged(why));
            }
            None => {
                let why = "this part or another is not as it was written".to_owned();
                found.values_mut().for_each(|condition| *condition = Condition::Damaged(why.clone()));
            }
        }
    }
    Some(found)
}

/// What is so of a part, whose hash is `noted` by versions that note one.
fn condition(path: &Path, id: &str, noted: Option<&str>) -> Condition {
    if !path.is_file() {
        return Condition::Damaged("missing".to_owned());
    }
    if made_from(path, id).is_none() {
        return Condition::Damaged("it does not say that it is a part of this folder".to_owned());
    }
    match noted.map(|noted| hash(path).map(|found| found == noted)) {
        None => Condition::AsSampled,
        Some(Ok(true)) => Condition::AsWritten,
        Some(Ok(false)) => Condition::Damaged("it is not as it was written".to_owned()),
        Some(Err(e)) => Condition::Damaged(e.to_string()),
    }
}

/// Removes the parts of a finished folder that are not as they were written, so that they are packed again.
pub(super) fn remove_damaged(folder: &Path) -> Result<()> {
    // The index stays until then: without it nobody could tell any more.
    for (name, condition) in check(folder, &mut |_, _| ()).unwrap_or_default() {
        if is_part(&name) && matches!(condition, Condition::Damaged(_)) {
            remove(&folder.join(name))?;
        }
    }
    Ok(())
}

/// Of all bytes of a file.
pub(super) fn hash(path: &Path) -> std::io::Result<String> {
    let (file, _) = files::open(path)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(hasher.finalize().to_hex().to_string())
}
