//! Checks that a folder packed by this program is unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::folder::{errors_from, is_part};
use super::write::{Claim, NOTES, remove, write_text};
use super::{HASHES, WEIGHTS_INDEX, part_file, parts};
use crate::core::files;
use crate::engine::protocol::Cancel;
use crate::model::seal::{MADE_FROM, SEAL, is_passing, read_header, read_index, seal};
use crate::model::{Checkpoint, ModelError, Result, Tensors};

/// Bytes of one read, hashed by all cores together, between two checks for a stop: enough to keep the cores busy.
const BUFFER_BYTES: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    AsWritten,
    AsSampled,
    /// Unknown: an earlier version hashed all parts together, and another part is damaged or unreadable; or packing
    /// stopped before it noted the hash.
    NotCompared,
    /// The reason in words.
    Damaged(String),
    /// The system's error; the contents may be whole.
    Unreadable(String),
}

/// Hash of all bytes of a part, by the name of its file.
pub(super) type Hashes = BTreeMap<String, String>;

/// The hashes of the parts of an unfinished folder, noted as each part is written, because the index, which has them
/// too, is written last. Empty without a file.
fn noted(folder: &Path) -> io::Result<Hashes> {
    match files::read_text(&folder.join(NOTES), files::MODEL_CONFIG_BYTES) {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Hashes::new()),
        Err(e) => Err(e),
    }
}

pub(super) fn note(folder: &Path, hashes: &Hashes) -> Result<()> {
    write_text(&folder.join(NOTES), &serde_json::json!(hashes).to_string())
}

/// Hashes of the parts of a folder that [`remove_damaged`] found unchanged.
#[derive(Debug, Default)]
pub struct Compared(pub(super) Hashes);

/// Checks each part of a finished folder, and the index if it does not match them. `report` receives each file before it
/// is read. `None` for another program's folder or an unfinished one.
pub fn check(folder: &Path, report: &mut dyn FnMut(&str, u64)) -> Option<BTreeMap<String, Condition>> {
    compare(folder, &Cancel::default(), report).map(|(found, _)| found)
}

/// The same with a stop signal; after a stop the result is incomplete.
fn compare(
    folder: &Path,
    stop: &Cancel,
    report: &mut dyn FnMut(&str, u64),
) -> Option<(BTreeMap<String, Condition>, Compared)> {
    let (mut found, mut compared) = (BTreeMap::new(), Compared::default());
    let index = match read_index(folder) {
        Err(e) if is_passing(&e) => {
            found.insert(WEIGHTS_INDEX.to_owned(), Condition::Unreadable(e.to_string()));
            return Some((found, compared));
        }
        read => read.ok()??,
    };
    let metadata = index.get("metadata")?;
    let says = |key: &str| metadata.get(key).and_then(serde_json::Value::as_str);
    let (id, expected) = (says(MADE_FROM)?, says(SEAL)?);
    let hashes = metadata.get(HASHES);
    let files = index.get("weight_map")?.as_object()?.values().filter_map(serde_json::Value::as_str);
    let parts: BTreeSet<&str> = files.filter(|name| is_part(name)).collect();
    for name in parts {
        if stop.is_cancelled() {
            break;
        }
        let path = folder.join(name);
        report(name, path.metadata().map_or(0, |m| m.len()));
        let noted = hashes.map(|hashes| hashes.get(name).and_then(serde_json::Value::as_str).unwrap_or_default());
        let condition = condition(&path, id, noted, stop);
        if let (Condition::AsWritten, Some(hash)) = (&condition, noted) {
            compared.0.insert(name.to_owned(), hash.to_owned());
        }
        found.insert(name.to_owned(), condition);
    }
    if stop.is_cancelled() {
        return Some((found, compared));
    }
    if !found.values().all(|condition| matches!(condition, Condition::AsWritten | Condition::AsSampled)) {
        without_seal(&mut found);
        return Some((found, compared));
    }
    match Tensors::open_dir(folder) {
        Ok(tensors) if seal(&tensors) == expected => {}
        Err(ModelError::File { path, cause }) if is_passing(&cause) => {
            without_seal(&mut found);
            let name = path.file_name().unwrap_or(WEIGHTS_INDEX.as_ref());
            found.insert(name.to_string_lossy().into_owned(), Condition::Unreadable(cause.to_string()));
        }
        _ if hashes.is_some() => {
            let why = "does not describe the parts, which are as they were written".to_owned();
            found.insert(WEIGHTS_INDEX.to_owned(), Condition::Damaged(why));
        }
        _ => {
            let why = "this part or another is not as it was written".to_owned();
            found.values_mut().for_each(|condition| *condition = Condition::Damaged(why.clone()));
        }
    }
    Some((found, compared))
}

/// Checks each part of an unfinished folder against the hash noted when it was written. Skips files that are not our
/// parts: packing does not reuse them.
fn compare_unfinished(
    folder: &Path,
    parts: usize,
    stop: &Cancel,
    report: &mut dyn FnMut(&str, u64),
) -> (BTreeMap<String, Condition>, Compared) {
    let (mut found, mut compared) = (BTreeMap::new(), Compared::default());
    let noted = match noted(folder) {
        Err(e) if is_passing(&e) => {
            found.insert(NOTES.to_owned(), Condition::Unreadable(e.to_string()));
            return (found, compared);
        }
        read => read.unwrap_or_default(),
    };
    for name in (0..parts).map(part_file) {
        if stop.is_cancelled() {
            break;
        }
        let path = folder.join(&name);
        let condition = match (read_header(&path), noted.get(&name)) {
            (Ok(Some(header)), Some(hash)) if header.get(MADE_FROM).is_some() => {
                report(&name, path.metadata().map_or(0, |m| m.len()));
                as_noted(&path, hash, stop).unwrap_or_else(|e| failed(&e))
            }
            (Ok(Some(header)), None) if header.get(MADE_FROM).is_some() => Condition::NotCompared,
            (Err(e), _) if is_passing(&e) => failed(&e),
            _ => continue,
        };
        if let (Condition::AsWritten, Some(hash)) = (&condition, noted.get(&name)) {
            compared.0.insert(name.clone(), hash.clone());
        }
        found.insert(name, condition);
    }
    (found, compared)
}

/// Parts without a hash of their own can only be compared all together, with the seal.
fn without_seal(found: &mut BTreeMap<String, Condition>) {
    let sampled = found.values_mut().filter(|condition| **condition == Condition::AsSampled);
    sampled.for_each(|condition| *condition = Condition::NotCompared);
}

/// Condition of a part; `noted` is its hash, if the version that wrote it noted one.
fn condition(path: &Path, id: &str, noted: Option<&str>, stop: &Cancel) -> Condition {
    let look = || -> io::Result<Condition> {
        let header = read_header(path)?;
        if header.and_then(|header| errors_from(&header, id)).is_none() {
            return Ok(Condition::Damaged("it does not say that it is a part of this folder".to_owned()));
        }
        noted.map_or(Ok(Condition::AsSampled), |noted| as_noted(path, noted, stop))
    };
    look().unwrap_or_else(|e| failed(&e))
}

fn as_noted(path: &Path, noted: &str, stop: &Cancel) -> io::Result<Condition> {
    Ok(match hash(path, stop)? {
        Some(found) if found == noted => Condition::AsWritten,
        Some(_) => Condition::Damaged("it is not as it was written".to_owned()),
        None => Condition::NotCompared,
    })
}

fn failed(e: &io::Error) -> Condition {
    match e.kind() {
        ErrorKind::NotFound => Condition::Damaged("missing".to_owned()),
        _ if is_passing(e) => Condition::Unreadable(e.to_string()),
        _ => Condition::Damaged(e.to_string()),
    }
}

/// Removes the parts of a folder, finished or not, that are damaged or cannot be compared, so that they are packed
/// again from `source`. `report` receives each part before it is read. `None` after a stop, which removes nothing.
///
/// # Errors
/// A source that cannot be packed; an unreadable part, because it may be whole: nothing is removed; the disk.
pub fn remove_damaged(
    source: &Checkpoint,
    claim: &Claim,
    stop: &Cancel,
    report: &mut dyn FnMut(&str, u64),
) -> Result<Option<Compared>> {
    source.check()?;
    let folder = claim.folder();
    let (found, compared) = match compare(folder, stop, report) {
        Some(compared) => compared,
        None => compare_unfinished(folder, parts(source.spec()).len(), stop, report),
    };
    if stop.is_cancelled() {
        return Ok(None);
    }
    for (name, condition) in &found {
        if let Condition::Unreadable(why) = condition {
            return Err(ModelError::File { path: folder.join(name), cause: io::Error::other(why.clone()) });
        }
    }
    // The index stays for now: it has the hashes.
    for (name, condition) in &found {
        if is_part(name) && matches!(condition, Condition::Damaged(_) | Condition::NotCompared) {
            remove(&folder.join(name))?;
        }
    }
    Ok(Some(compared))
}

/// Of all bytes of a file. `None` after a stop.
pub(super) fn hash(path: &Path, stop: &Cancel) -> io::Result<Option<String>> {
    let (mut file, _) = files::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    while !stop.is_cancelled() {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(Some(hasher.finalize().to_hex().to_string())),
            Ok(read) => {
                hasher.update_rayon(buffer.get(..read).unwrap_or_default());
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_several_buffers_has_the_hash_of_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part-000.safetensors");
        for size in [0, 1, BUFFER_BYTES, 2 * BUFFER_BYTES + 1_025] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let found = hash(&path, &Cancel::default()).unwrap();
            assert_eq!(found, Some(blake3::hash(&bytes).to_hex().to_string()), "{size} bytes");
        }
        let stop = Cancel::default();
        stop.cancel();
        assert_eq!(hash(&path, &stop).unwrap(), None);
    }
}
