//! Weights that were packed while loading are kept for the next start: it reads half or a quarter of the bytes of plain ones, and repacks
//! nothing of what somebody else packed.

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
    if !checkpoint.packs_while_loading() {
        return (checkpoint, None);
    }
    match checkpoint.packed_earlier(dir) {
        Ok(Some(earlier)) => {
            let recipe = Some(earlier.recipe()).filter(|recipe| recipe.packs()).map(|recipe| recipe.name().to_owned());
            let name = recipe.or_else(|| earlier.published()).unwrap_or_default();
            (earlier, Some(format!("{name} weights as an earlier start packed them.")))
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
    if !checkpoint.packs_while_loading() || bytes < WORTH_BYTES {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Recipe;

    #[test]
    fn a_start_says_whose_weights_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-mixed");
        let open = || Checkpoint::open_dir(&folder).unwrap();
        assert_eq!(earlier(open(), dir.path()).1, None, "plain weights are not packed");
        let packed = || {
            let mut checkpoint = open();
            checkpoint.set_recipe(Recipe::Bits8);
            checkpoint
        };
        assert_eq!(earlier(packed(), dir.path()).1, None, "nothing is kept yet");
        let kept = dir.path().join(packed().fingerprint());
        quantize(&packed(), None, &kept, &Cancel::default(), &mut |_| ()).unwrap();
        assert_eq!(earlier(packed(), dir.path()).1.unwrap(), "8-bit weights as an earlier start packed them.");
        assert_eq!(for_next_time(&Arc::new(packed()), dir.path(), Some(u64::MAX)), None, "it is small");
    }
}
