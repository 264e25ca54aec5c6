//! Notes about the device and the draft head that appear once per machine. `/doctor` and `sala-chat doctor` always
//! show them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::core::files;

/// Size limit of the file; a larger one is replaced, and all notes appear again.
const BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceNotes {
    Unsaid,
    Always,
    /// Once per machine; the file holds the hash of each shown note, one a line.
    Once(PathBuf),
}

impl DeviceNotes {
    /// Whether to show a note now, and records it. If that fails, the note appears again, which is harmless.
    pub(super) fn is_news(&self, note: &str) -> bool {
        let file = match self {
            DeviceNotes::Unsaid => return false,
            DeviceNotes::Always => return true,
            DeviceNotes::Once(file) => file,
        };
        let line = format!("{}\n", blake3::hash(note.as_bytes()).to_hex());
        let known = files::read_text(file, BYTES);
        if known.as_ref().is_ok_and(|known| known.contains(&line)) {
            return false;
        }
        if let Err(e) = remember(file, &line, known.is_ok()) {
            tracing::debug!("{}: {e}", file.display());
        }
        true
    }
}

fn remember(file: &Path, line: &str, append: bool) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut how = OpenOptions::new();
    how.write(true).create(true).mode(0o600).append(append).truncate(!append);
    how.open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_news_once_a_machine() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state/told");
        let once = DeviceNotes::Once(file.clone());
        assert!(once.is_news("No usable NVIDIA GPU") && once.is_news("another"));
        assert!(!once.is_news("No usable NVIDIA GPU") && !once.is_news("another"));
        std::fs::write(&file, vec![b'x'; 100 << 10]).unwrap();
        assert!(once.is_news("another") && !once.is_news("another"));
        assert!(DeviceNotes::Always.is_news("x") && !DeviceNotes::Unsaid.is_news("x"));
    }
}
