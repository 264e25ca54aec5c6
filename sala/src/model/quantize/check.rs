//! Checks that a folder packed by this program is unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::folder::is_part;
use super::{HASHES, WEIGHTS_INDEX};
use crate::core::files;
use crate::model::seal::{MADE_FROM, SEAL, is_passing, read_index, seal};
use crate::model::{ModelError, Tensors};

/// Bytes of one read, hashed by all cores together: enough to keep the cores busy.
const BUFFER_BYTES: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    AsWritten,
    /// The reason in words.
    Damaged(String),
    /// The system's error; the contents may be whole.
    Unreadable(String),
}

/// Checks each part of a finished folder, and the index if it does not match them. `report` receives each file before it
/// is read. `None` for another program's folder or an unfinished one; empty for one of an earlier version, which
/// recorded no hashes.
pub fn check(folder: &Path, report: &mut dyn FnMut(&str, u64)) -> Option<BTreeMap<String, Condition>> {
    let mut found = BTreeMap::new();
    let index = match read_index(folder) {
        Err(e) if is_passing(&e) => {
            found.insert(WEIGHTS_INDEX.to_owned(), Condition::Unreadable(e.to_string()));
            return Some(found);
        }
        read => read.ok()??,
    };
    let metadata = index.get("metadata")?;
    let says = |key: &str| metadata.get(key).and_then(serde_json::Value::as_str);
    let (_, expected) = (says(MADE_FROM)?, says(SEAL)?);
    let Some(hashes) = metadata.get(HASHES) else { return Some(found) };
    let files = index.get("weight_map")?.as_object()?.values().filter_map(serde_json::Value::as_str);
    let parts: BTreeSet<&str> = files.filter(|name| is_part(name)).collect();
    for name in parts {
        let path = folder.join(name);
        report(name, path.metadata().map_or(0, |m| m.len()));
        let condition = match hash(&path) {
            Ok(hash) if hashes.get(name).and_then(serde_json::Value::as_str) == Some(&hash) => Condition::AsWritten,
            Ok(_) => Condition::Damaged("it is not as it was written".to_owned()),
            Err(e) if e.kind() == ErrorKind::NotFound => Condition::Damaged("missing".to_owned()),
            Err(e) if is_passing(&e) => Condition::Unreadable(e.to_string()),
            Err(e) => Condition::Damaged(e.to_string()),
        };
        found.insert(name.to_owned(), condition);
    }
    if found.values().any(|condition| *condition != Condition::AsWritten) {
        return Some(found);
    }
    match Tensors::open_dir(folder) {
        Ok(tensors) if seal(&tensors) == expected => {}
        Err(ModelError::File { path, cause }) if is_passing(&cause) => {
            let name = path.file_name().unwrap_or(WEIGHTS_INDEX.as_ref());
            found.insert(name.to_string_lossy().into_owned(), Condition::Unreadable(cause.to_string()));
        }
        _ => {
            let why = "does not describe the parts, which are as they were written".to_owned();
            found.insert(WEIGHTS_INDEX.to_owned(), Condition::Damaged(why));
        }
    }
    Some(found)
}

/// Of all bytes of a file.
fn hash(path: &Path) -> io::Result<String> {
    let (mut file, _) = files::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().to_hex().to_string()),
            Ok(read) => {
                hasher.update_rayon(buffer.get(..read).unwrap_or_default());
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
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
            assert_eq!(hash(&path).unwrap(), blake3::hash(&bytes).to_hex().to_string(), "{size} bytes");
        }
    }
}
