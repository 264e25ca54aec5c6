//! The same bytes without the store: the speed of plain reads from the disk or the system's cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rayon::prelude::*;

use crate::cli::{Exit, Failure};
use crate::store::{SegmentId, Store};

const PIECE: usize = 8 << 20;

fn failed(file: &Path, e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Disk, format!("{}: {e}", file.display()))
}

/// The files that a restore of the path to `tip` reads.
pub(super) fn of_path(store: &Store, tip: &SegmentId, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let segments = folder.join("data").join("segments");
    let rows = store.load_path(tip)?.into_iter().map(|s| format!("{}.rows", s.id.hex()));
    Ok(rows.chain([format!("{}.end", tip.hex())]).map(|name| segments.join(name)).collect())
}

pub(super) fn drop_from_cache(files: &[PathBuf]) -> Result<(), Failure> {
    for file in files {
        let open = File::open(file).map_err(|e| failed(file, e))?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| failed(file, e))?;
        drop(open);
    }
    Ok(())
}

/// Milliseconds to read the files on all threads, into memory that is allocated already.
pub(super) fn read(files: &[PathBuf]) -> Result<f64, Failure> {
    let mut pieces = Vec::new();
    for file in files {
        let bytes = std::fs::metadata(file).map_err(|e| failed(file, e))?.len();
        pieces.extend((0..bytes).step_by(PIECE).map(|at| (file, at, (bytes - at).min(PIECE as u64) as usize)));
    }
    let begun = Instant::now();
    pieces.par_iter().try_for_each_init(
        || vec![0u8; PIECE],
        |buffer, (file, at, bytes)| {
            let wanted = buffer.get_mut(..*bytes).unwrap_or_default();
            File::open(file).and_then(|f| f.read_exact_at(wanted, *at)).map_err(|e| failed(file, e))
        },
    )?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
