//! Keeps weights that were packed while loading for the next start, which then reads half or a quarter of the bytes of
//! plain ones and repacks nothing of already packed ones.

use std::path::Path;
use std::sync::Arc;

use crate::engine::protocol::{Cancel, EngineOptions, WeightsChoice};
use crate::model::quantize::{Claim, Stage, is_finished, kept_folders, quantize};
use crate::model::{Checkpoint, ModelError, Recipe};

/// Smaller weights are packed so fast that keeping them does not pay.
const WORTH_BYTES: u64 = 1 << 30;
/// Background packing uses 1/SHARE of the threads; the conversation continues meanwhile.
const SHARE: usize = 4;
const THREADS: usize = 2;

/// By recipe, weights of earlier starts that replace the folder's, or the reason why they do not.
#[derive(Default)]
pub(super) struct Found(Vec<(Recipe, Result<Checkpoint, ModelError>)>);

pub(super) fn look(checkpoint: &Checkpoint, options: &EngineOptions) -> Found {
    let Some(dir) = &options.keep_weights else { return Found::default() };
    let recipes = match Recipe::asked_for(options.weights) {
        Some(recipe) => vec![recipe],
        None => std::iter::once(Recipe::Stored).chain(Recipe::PACKING.iter().copied()).collect(),
    };
    let packs = recipes.into_iter().filter(|recipe| checkpoint.packs_while_loading(*recipe));
    let found = packs.filter_map(|recipe| Some((recipe, checkpoint.packed_earlier(dir, recipe).transpose()?)));
    Found(found.collect())
}

impl Found {
    /// Replaces the checkpoint by the weights of an earlier start with the same recipe, if there are any, and returns
    /// a note.
    pub(super) fn instead_of(self, checkpoint: Checkpoint) -> (Checkpoint, Option<String>) {
        match self.0.into_iter().find(|(recipe, _)| *recipe == checkpoint.recipe) {
            Some((recipe, Ok(earlier))) => {
                let name = Some(recipe).filter(|recipe| recipe.packs()).map(|recipe| recipe.name().to_owned());
                let name = name.or_else(|| earlier.published()).unwrap_or_default();
                // Of the source: the copy holds what was packed again.
                let kept = match checkpoint.kept() {
                    Ok(kept) => kept.map_or_else(String::new, |kept| format!(" {kept}")),
                    Err(error) => format!(" {error}."),
                };
                (earlier, Some(format!("{name} weights as an earlier start packed them.{kept}")))
            }
            Some((_, Err(error))) => {
                let mend = if let ModelError::File { .. } = error { "mend that, or " } else { "" };
                let line = format!(
                    "Packed weights of an earlier start are not used ({error}); {mend}sala-chat prune removes them."
                );
                (checkpoint, Some(line))
            }
            None => (checkpoint, None),
        }
    }
}

pub(super) fn likely(options: &EngineOptions) -> bool {
    let packs = options.weights != WeightsChoice::Bf16;
    let finished = |dir: &Path| kept_folders(dir).iter().any(|kept| kept.stage == Stage::Finished);
    packs && options.keep_weights.as_deref().is_some_and(finished)
}

/// Packs the loaded weights in the background, unless they are small, kept already, or the disk is too full. Returns a
/// note.
pub(super) fn for_next_time(checkpoint: &Arc<Checkpoint>, dir: &Path, free: Option<u64>) -> Option<String> {
    let recipe = checkpoint.recipe;
    let bytes = checkpoint.bytes(recipe);
    if !checkpoint.packs_while_loading(recipe) || bytes < WORTH_BYTES {
        return None;
    }
    let size = format!("{:.1} GB", bytes as f64 / 1e9);
    let (checkpoint, folder) = (Arc::clone(checkpoint), dir.join(checkpoint.fingerprint()));
    if free.is_none_or(|free| free < 3 * bytes) {
        return Some(format!("The packed weights ({size}) are not kept: too little space below {}.", dir.display()));
    }
    if is_finished(&folder).unwrap_or(true) {
        // Damaged, which is reported already, or unreadable, and perhaps whole.
        return None;
    }
    let pack = move || match quantize(&checkpoint, None, &Claim::take(&folder)?, &Cancel::default(), &mut |_| ())? {
        Some(index) => index.write(),
        None => Ok(()),
    };
    let work = move || {
        let threads = std::thread::available_parallelism().map_or(0, usize::from) / SHARE;
        let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads.max(THREADS)).build() else { return };
        match pool.install(pack) {
            // Another start keeps the same weights.
            Ok(()) | Err(ModelError::InUse { .. }) => {}
            Err(error) => tracing::warn!("packed weights are not kept: {error}"),
        }
    };
    std::thread::Builder::new().name("keep-weights".into()).spawn(work).ok()?;
    Some(format!("The packed weights ({size}) are being kept in {} for a faster start.", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(source: &Checkpoint, into: &Path) {
        let claim = Claim::take(into).unwrap();
        quantize(source, None, &claim, &Cancel::default(), &mut |_| ()).unwrap().unwrap().write().unwrap();
    }

    fn fp8_folder() -> tempfile::TempDir {
        use safetensors::Dtype::{F8_E4M3, F32};
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-mixed");
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(source.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["quantization_config"] = serde_json::json!({"quant_method": "fp8"});
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut parts = Vec::new();
        for (name, tensor) in file.iter() {
            let (name, shape) = (name.to_string(), tensor.shape().to_vec());
            if name.ends_with("mlp.down_proj.weight") {
                let values = (0..shape.iter().product::<usize>()).map(|i| (i * 37 % 100) as u8).collect();
                parts.push((format!("{name}_scale"), F32, Vec::new(), 0.01f32.to_le_bytes().to_vec()));
                parts.push((name, F8_E4M3, shape, values));
            } else {
                parts.push((name, tensor.dtype(), shape, tensor.data().to_vec()));
            }
        }
        let view = |dtype, shape: &Vec<usize>, bytes| {
            safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap()
        };
        let views: Vec<_> = parts.iter().map(|(n, d, s, b)| (n.clone(), view(*d, s, b.as_slice()))).collect();
        safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
        dir
    }

    #[test]
    fn values_that_are_not_as_published_are_called_that_of_a_kept_copy_too() {
        let (folder, dir) = (fp8_folder(), tempfile::tempdir().unwrap());
        let open = || Checkpoint::open_dir(folder.path()).unwrap();
        let note = open().kept().unwrap().unwrap().to_string();
        assert_eq!(note, "FP8: 6 packed again (int8), which changes their values; 44 that were not packed as bf16.");
        pack(&open(), &dir.path().join(open().fingerprint()));
        let options = EngineOptions { keep_weights: Some(dir.path().to_path_buf()), ..EngineOptions::default() };
        let checkpoint = open();
        let (earlier, line) = look(&checkpoint, &options).instead_of(checkpoint);
        assert!(earlier.kept().unwrap().is_none(), "it is the copy");
        assert_eq!(line.unwrap(), format!("FP8 weights as an earlier start packed them. {note}"));
    }

    #[test]
    fn a_start_names_the_owner_of_its_weights() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-mixed");
        let keep_weights = Some(dir.path().to_path_buf());
        let earlier = |recipe: Recipe, weights: WeightsChoice| {
            let mut checkpoint = Checkpoint::open_dir(&folder).unwrap();
            let options = EngineOptions { keep_weights: keep_weights.clone(), weights, ..EngineOptions::default() };
            // The recipe is chosen during the search.
            let found = look(&checkpoint, &options);
            checkpoint.recipe = recipe;
            found.instead_of(checkpoint)
        };
        assert_eq!(earlier(Recipe::Bits8, WeightsChoice::Auto).1, None, "nothing is kept yet");
        let mut packed = Checkpoint::open_dir(&folder).unwrap();
        packed.recipe = Recipe::Bits8;
        let kept = dir.path().join(packed.fingerprint());
        pack(&packed, &kept);
        for weights in [WeightsChoice::Auto, WeightsChoice::Bits8] {
            let (checkpoint, line) = earlier(Recipe::Bits8, weights);
            assert_eq!(line.unwrap(), "8-bit weights as an earlier start packed them.");
            assert_eq!((checkpoint.recipe, checkpoint.fingerprint()), (Recipe::Bits8, packed.fingerprint()));
        }
        assert_eq!(earlier(Recipe::Stored, WeightsChoice::Auto).1, None, "plain weights are not packed");
        assert_eq!(earlier(Recipe::Bits4, WeightsChoice::Auto).1, None, "another recipe");
        std::fs::write(kept.join("part-001.safetensors"), "torn").unwrap();
        let line = earlier(Recipe::Bits8, WeightsChoice::Auto).1.unwrap();
        assert!(line.starts_with("Packed weights of an earlier start are not used ("), "{line}");
        // Links to themselves cannot be opened with any permissions.
        for name in ["part-001.safetensors", "model.safetensors.index.json"] {
            let path = kept.join(name);
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&path, &path).unwrap();
            let line = earlier(Recipe::Bits8, WeightsChoice::Auto).1.unwrap();
            let begin = format!("Packed weights of an earlier start are not used (cannot read {}: ", path.display());
            assert!(line.starts_with(&begin), "{line}");
            assert!(line.ends_with("); mend that, or sala-chat prune removes them."), "{line}");
        }
        assert_eq!(for_next_time(&Arc::new(packed), dir.path(), Some(u64::MAX)), None, "it is small");
    }
}
