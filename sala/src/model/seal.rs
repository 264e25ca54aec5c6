//! The records in a folder packed by this program: its index and seal, and the keys of its metadata.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::published::is_of_an_earlier_version;
use super::tensors::{Tensors, WEIGHTS_INDEX};
use super::{ModelError, Result};
use crate::core::files;

/// Key of the metadata of each file: hash of source and recipe; in files followed by the squared error.
pub(super) const MADE_FROM: &str = "made_from";
/// Key of the metadata of the index: hash of all tensors, sampled as fingerprints are.
pub(super) const SEAL: &str = "seal";

/// Whether packing of a folder was completed, in the present layouts. [`check`](fn@super::quantize::check) compares its
/// parts with their hashes.
pub fn is_finished(folder: &Path) -> Result<bool> {
    let path = folder.join(WEIGHTS_INDEX);
    let finished = || {
        let there = files::is_there(&path)?;
        let index = if there { read_index(folder)? } else { None };
        let names = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
        Ok(there && !names.is_some_and(|names| names.keys().any(|name| is_of_an_earlier_version(name))))
    };
    finished().map_err(|cause| ModelError::File { path, cause })
}

/// The index of a finished folder; `None` if it is no JSON.
pub(super) fn read_index(folder: &Path) -> io::Result<Option<serde_json::Value>> {
    let text = files::read_text(&folder.join(WEIGHTS_INDEX), files::MODEL_CONFIG_BYTES)?;
    Ok(serde_json::from_str(&text).ok())
}

/// The recorded source of a finished folder, if its tensors match the seal (sampled as fingerprints are).
///
/// # Errors
/// A file that the system cannot read: it may be whole.
pub(super) fn sealed(folder: &Path) -> Result<Option<(String, Tensors)>> {
    let index = match read_index(folder) {
        Err(cause) if is_passing(&cause) => return Err(ModelError::File { path: folder.join(WEIGHTS_INDEX), cause }),
        read => read.ok().flatten(),
    };
    let says = |key: &str| index.as_ref()?.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let (Some(id), Some(expected)) = (says(MADE_FROM), says(SEAL)) else { return Ok(None) };
    match Tensors::open_dir(folder) {
        Ok(tensors) => Ok((seal(&tensors) == expected).then_some((id, tensors))),
        Err(ModelError::File { path, cause }) if is_passing(&cause) => Err(ModelError::File { path, cause }),
        Err(_) => Ok(None),
    }
}

/// Hash of all tensors, sampled as fingerprints are.
pub(super) fn seal(tensors: &Tensors) -> String {
    let mut hasher = blake3::Hasher::new();
    tensors.hash_into(&mut hasher);
    hasher.finalize().to_hex().to_string()
}

/// Whether an error is independent of the file's contents: disk, network, permissions, too many open files, no memory.
pub(super) fn is_passing(e: &io::Error) -> bool {
    // The program, not the system, reports damaged contents.
    let of_system = e.raw_os_error().is_some() || e.kind() == ErrorKind::OutOfMemory;
    of_system && e.kind() != ErrorKind::NotFound
}
