//! Weights that were packed while loading are kept for the next start, which then reads half or a quarter of the bytes.

use std::path::Path;
use std::sync::Arc;

use crate::model::Checkpoint;
use crate::model::quantize::{kept_folders, quantize};
use crate::protocol::engine::{Cancel, EngineOptions, WeightsChoice};

/// Weights of fewer bytes are packed faster than they are worth keeping.
const WORTH_BYTES: u64 = 1 << 30;
/// The share of the threads that pack in the background: the conversation goes on beside them.
const SHARE: usize = 4;
/// But at least these.
const THREADS: usize = 2;

/// The weights of an earlier start in place of the folder's, where they are kept below `dir`. The line says what was found.
pub(super) fn earlier(checkpoint: Checkpoint, dir: &Path) -> (Checkpoint, Option<String>) {
    if !checkpoint.recipe().packs() {
        return (checkpoint, None);
    }
    match checkpoint.packed_earlier(dir) {
        Ok(Some(earlier)) => {
            let line = format!("{} weights as an earlier start packed them.", earlier.recipe().name());
            (earlier, Some(line))
        }
        Ok(None) => (checkpoint, None),
        Err(error) => {
            let line =
                format!("Packed weights of an earlier start are not used ({error}); sala-chat prune removes them.");
            (checkpoint, Some(line))
        }
    }
}

/// Whether a start may take packed weights of an earlier one in place of the folder's.
pub(super) fn likely(options: &EngineOptions) -> bool {
    let packs = options.weights != WeightsChoice::Bf16;
    packs && options.keep_weights.as_deref().is_some_and(|dir| !kept_folders(dir).is_empty())
}

/// Packs in the background what was just loaded, unless it is small, kept already, or the disk is too full. The line says so.
pub(super) fn for_next_time(checkpoint: &Arc<Checkpoint>, dir: &Path, free: Option<u64>) -> Option<String> {
    let recipe = checkpoint.recipe();
    let bytes = checkpoint.bytes(recipe);
    let plain = checkpoint.directory().is_some() && checkpoint.published().is_none() && !checkpoint.is_packed_earlier();
    if !recipe.packs() || !plain || bytes < WORTH_BYTES {
        return None;
    }
    let size = format!("{:.1} GB", bytes as f64 / 1e9);
    if free.is_none_or(|free| free < 3 * bytes) {
        return Some(format!("The packed weights ({size}) are not kept: too little space below {}.", dir.display()));
    }
    let (checkpoint, folder) = (Arc::clone(checkpoint), dir.join(checkpoint.fingerprint()));
    let work = move || {
        let threads = std::thread::available_parallelism().map_or(0, usize::from) / SHARE;
        let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads.max(THREADS)).build() else { return };
        if let Err(error) = pool.install(|| quantize(&checkpoint, None, &folder, &Cancel::default(), &mut |_| ())) {
            tracing::warn!("packed weights are not kept: {error}");
        }
    };
    std::thread::Builder::new().name("keep-weights".into()).spawn(work).ok()?;
    Some(format!("The packed weights ({size}) are being kept in {} for a faster start.", dir.display()))
}
