//! Hashes of the parts of a folder that is being packed into, noted as each is written: the index, which has them too, comes last.
//! By them whoever goes on after a stop tells what was damaged meanwhile.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::write::write_text;
use crate::model::Result;
use crate::text::files;

/// None of the model's files: it goes when the index is there.
pub(super) const NOTES: &str = ".sala-chat.hashes";

/// Hash of all bytes of a part, by the name of its file.
pub(super) type Hashes = BTreeMap<String, String>;

/// What was noted in a folder: nothing where no file says so.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(folder: &Path) -> io::Result<Hashes> {
    match files::read_text(&folder.join(NOTES), files::MODEL_CONFIG_BYTES) {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Hashes::new()),
        Err(e) => Err(e),
    }
}

/// Notes these in place of what was noted.
///
/// # Errors
/// The disk.
pub(super) fn write(folder: &Path, hashes: &Hashes) -> Result<()> {
    write_text(&folder.join(NOTES), &serde_json::json!(hashes).to_string())
}
