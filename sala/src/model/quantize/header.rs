//! The metadata in the header of a safetensors file.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::core::files;

pub(super) fn header(path: &Path) -> Option<serde_json::Value> {
    read_header(path).ok().flatten()
}

/// `None` for another type of file, or without metadata.
pub(super) fn read_header(path: &Path) -> io::Result<Option<serde_json::Value>> {
    let (mut file, bytes) = files::open(path)?;
    let mut size = [0u8; 8];
    match file.read_exact(&mut size) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(size);
    if length > bytes.min(files::HEADER_BYTES) {
        return Ok(None);
    }
    let mut head = Vec::new();
    file.take(length).read_to_end(&mut head)?;
    let head: Option<serde_json::Value> = serde_json::from_slice(&head).ok();
    Ok(head.and_then(|mut head| head.get_mut("__metadata__").map(serde_json::Value::take)))
}
