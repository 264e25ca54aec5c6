//! Hashes of the parts of an unfinished folder, noted as each part is written, because the index, which has them too,
//! is written last. A continued run compares the parts with them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::write::write_text;
use crate::core::files;
use crate::model::Result;

/// Not a file of the model: removed once the index exists.
pub(super) const NOTES: &str = ".sala-chat.hashes";

/// Hash of all bytes of a part, by the name of its file.
pub(super) type Hashes = BTreeMap<String, String>;

/// The noted hashes; empty without a file.
pub(super) fn read(folder: &Path) -> io::Result<Hashes> {
    match files::read_text(&folder.join(NOTES), files::MODEL_CONFIG_BYTES) {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Hashes::new()),
        Err(e) => Err(e),
    }
}

pub(super) fn write(folder: &Path, hashes: &Hashes) -> Result<()> {
    write_text(&folder.join(NOTES), &serde_json::json!(hashes).to_string())
}
