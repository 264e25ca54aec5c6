//! Sources of weights: a folder in the Hugging Face layout, the embedded demo, or a synthetic shape.
//!
//! Owns the parts of a checkpoint and the fingerprint that decides whether saved state still belongs to a model.
//!
//! | file | owns |
//! |---|---|
//! | here | sources of weights, their expected names, the fingerprint |
//! | `recipe` | the form of each weight of a plain folder |
//! | `kept` | the form of weights that a folder holds packed, and the line that reports it |

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::backend::Form;
use crate::backend::forms::Group4;
use crate::core::files;
use crate::core::spec::ModelSpec;
use crate::engine::protocol::{BUILT_IN, Dtype, Precision};

use super::demo;
use super::format::{Format, METHOD};
use super::published::refuse_low_rank;
use super::seal::{is_finished, sealed};
use super::tensors::{LoadedTensor, Tensors};
use super::{ModelError, Result};

mod kept;
mod recipe;

pub(super) use kept::Fate;
pub use kept::Kept;
pub use recipe::Recipe;

/// Changes when the meaning of weights or saved state changes, so that older state is not mistaken for current.
const FORMAT: u32 = 1;
const PUBLISHED: [(&str, Form); 2] = [("nvfp4", Form::Nvfp4), ("gptq", Form::Group4(Group4::G128))];
pub(super) const FINGERPRINT_DIGITS: usize = 32;

pub(super) enum Source {
    Tensors(Tensors),
    /// Made on the device from this seed; with a form, the matrices of the layers have it as in a published folder.
    Synthetic(u64, Option<Form>),
}

struct MadeFrom {
    id: String,
    published: Option<String>,
}

pub struct Checkpoint {
    name: String,
    directory: Option<PathBuf>,
    spec: ModelSpec,
    /// Set only before the model is loaded.
    pub recipe: Recipe,
    /// The arithmetic of prefill products; set only before the model is loaded.
    pub prefill: Precision,
    config: String,
    made_from: Option<MadeFrom>,
    hashed: OnceLock<blake3::Hasher>,
    pub(super) source: Source,
}

/// Name, `config.json` and the declared format of a folder.
pub(super) fn opened(dir: &Path) -> Result<(String, String, Option<Format>)> {
    let path = dir.join("config.json");
    let text = files::read_text(&path, files::MODEL_CONFIG_BYTES).map_err(|cause| ModelError::File { path, cause })?;
    let format = declared_format(dir, &text)?;
    if let Some(what) = format.as_ref().and_then(Format::refusal) {
        return Err(ModelError::Quantised { path: dir.into(), what });
    }
    let name = dir.file_name().map_or_else(|| dir.display().to_string(), |n| n.to_string_lossy().into_owned());
    Ok((name, text, format))
}

/// The declared format of packed weights; `None` for plain ones.
fn declared_format(dir: &Path, config: &str) -> Result<Option<Format>> {
    let path = dir.join("hf_quant_config.json");
    let sibling = match files::read_text(&path, files::MODEL_CONFIG_BYTES) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(cause) => return Err(ModelError::File { path, cause }),
    };
    // The reader of the shape reports invalid JSON with its position.
    let Ok(config) = serde_json::from_str(config) else { return Ok(None) };
    let sibling = sibling.as_deref().map(serde_json::from_str).transpose();
    let sibling = sibling.map_err(|e| ModelError::NoCheckpoint { path, reason: e.to_string() })?;
    Ok(Format::declared(&config, sibling.as_ref()))
}

impl Checkpoint {
    /// `demo`, `synthetic:9b[-nvfp4|-gptq][:seed]`, `synthetic:tiny[…][:seed]`, or the path of a folder with
    /// `config.json` and weights. [`super::Model::load`] checks the shapes of tensors.
    pub fn open(what: &str) -> Result<Checkpoint> {
        if what == BUILT_IN {
            let source = Source::Tensors(Tensors::embedded(&demo::WEIGHTS)?);
            return Ok(Checkpoint::bare(what, ModelSpec::from_json(demo::DEMO_CONFIG)?, demo::DEMO_CONFIG, source));
        }
        if let Some(rest) = what.strip_prefix("synthetic:") {
            return Checkpoint::synthetic(what, rest);
        }
        let dir = Path::new(what);
        if !dir.is_dir() {
            return Err(ModelError::Unknown(what.into()));
        }
        Checkpoint::open_dir(dir)
    }

    /// A folder with `config.json` and safetensors weights, single or sharded.
    pub fn open_dir(dir: &Path) -> Result<Checkpoint> {
        // A path that exists and is no file gives its error on reading.
        if dir.join("config.json").symlink_metadata().is_err() {
            return Err(ModelError::NoCheckpoint { path: dir.into(), reason: "config.json is not in it".into() });
        }
        let (name, text, format) = opened(dir)?;
        let spec = ModelSpec::from_json(&text).map_err(|cause| ModelError::FolderSpec { dir: dir.into(), cause })?;
        let tensors = Tensors::open_dir(dir)?.in_format(format);
        refuse_low_rank(&tensors)?;
        let source = Source::Tensors(tensors);
        Ok(Checkpoint { directory: Some(dir.into()), ..Checkpoint::bare(&name, spec, &text, source) })
    }

    fn bare(name: &str, spec: ModelSpec, config: &str, source: Source) -> Checkpoint {
        let (name, config) = (name.to_owned(), config.to_owned());
        let (recipe, prefill) = (Recipe::Stored, Precision::Bf16);
        let hashed = OnceLock::new();
        Checkpoint { name, directory: None, spec, recipe, prefill, config, made_from: None, hashed, source }
    }

    /// The kept copy below `dir` that an earlier start packed from this folder by this recipe, to use in place of the
    /// folder's weights.
    pub fn packed_earlier(&self, dir: &Path, recipe: Recipe) -> Result<Option<Checkpoint>> {
        let id = self.fingerprint_as(recipe, recipe);
        let folder = dir.join(&id);
        if !is_finished(&folder)? {
            return Ok(None);
        }
        let format = Format::declared(&serde_json::json!({"quantization_config": {"quant_method": METHOD}}), None);
        match sealed(&folder)? {
            Some((made_from, tensors)) if made_from == id => {
                let (directory, prefill) = (self.directory.clone(), self.prefill);
                let source = Source::Tensors(tensors.in_format(format));
                let made_from = Some(MadeFrom { id, published: self.published() });
                let bare = Checkpoint::bare(&self.name, self.spec.clone(), &self.config, source);
                let earlier = Checkpoint { directory, recipe, prefill, made_from, ..bare };
                earlier.check()?;
                Ok(Some(earlier))
            }
            _ => Err(ModelError::Damaged {
                origin: folder.display().to_string(),
                cause: "its files are not those that its index describes".into(),
            }),
        }
    }

    pub fn config(&self) -> &str {
        &self.config
    }

    fn synthetic(name: &str, shape: &str) -> Result<Checkpoint> {
        let unknown = || ModelError::Unknown(name.into());
        let (shape, seed) = match shape.split_once(':') {
            Some((shape, seed)) => (shape, seed.parse().map_err(|_| unknown())?),
            None => (shape, 0),
        };
        let (shape, form) = match shape.split_once('-') {
            Some((shape, published)) => {
                let found = PUBLISHED.iter().find(|(name, _)| *name == published).ok_or_else(unknown)?;
                (shape, Some(found.1))
            }
            None => (shape, None),
        };
        let config = match shape {
            "9b" => include_str!("config_9b.json"),
            "tiny" => include_str!("config_tiny.json"),
            _ => return Err(unknown()),
        };
        Checkpoint::made_up(name, config, seed, form)
    }

    /// Names of tensors in the files that the model does not use.
    pub fn unknown_tensors(&self) -> Vec<String> {
        let Source::Tensors(tensors) = &self.source else { return Vec::new() };
        let expected: std::collections::BTreeSet<String> =
            self.spec.tensors().into_iter().map(|(name, _)| name).collect();
        let part = |name: &str| {
            tensors.format().is_some() && super::published::owner(name).is_some_and(|weight| expected.contains(&weight))
        };
        tensors.names().filter(|name| !expected.contains(*name) && !part(name)).map(str::to_owned).collect()
    }

    pub(super) fn made_up(name: &str, config: &str, seed: u64, published: Option<Form>) -> Result<Checkpoint> {
        let spec = ModelSpec::from_json(config)?;
        let source = Source::Synthetic(seed, published);
        Ok(Checkpoint::bare(name, spec, config, source))
    }

    /// `demo`, `synthetic:9b`, or the folder's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// False for a folder with the same name.
    pub fn is_built_in(&self) -> bool {
        self.directory.is_none() && self.name == BUILT_IN
    }

    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// For options (dense rule, score norm); only before the model is loaded.
    pub fn spec_mut(&mut self) -> &mut ModelSpec {
        self.hashed = OnceLock::new();
        &mut self.spec
    }

    /// `bf16` or `f32`, by the first projection.
    pub fn dtype(&self) -> Dtype {
        match &self.source {
            Source::Synthetic(..) => Dtype::Bf16,
            Source::Tensors(t) => match t.raw("model.embed_tokens.weight").map(|(dtype, ..)| dtype) {
                Ok(safetensors::Dtype::F32 | safetensors::Dtype::F16) => Dtype::F32,
                _ => Dtype::Bf16,
            },
        }
    }

    /// Asks the system to read plain weights ahead of loading. Does not wait.
    pub fn expect(&self) {
        if let Source::Tensors(tensors) = &self.source {
            let expected = self.spec.tensors();
            tensors.expect(expected.iter().map(|(name, _)| name.as_str()));
        }
    }

    pub fn all_read(&self) {
        if let Source::Tensors(tensors) = &self.source {
            tensors.all_read();
        }
    }

    /// Key of saved state: hash of the weights and the arithmetic of prefill, 32 hex digits.
    pub fn state_fingerprint(&self) -> String {
        let weights = self.fingerprint();
        match self.prefill {
            // The plain hash keeps state of versions without a choice valid.
            Precision::Bf16 => weights,
            Precision::Fp8 => {
                let hash = blake3::hash(format!("{weights} prefill {}", self.prefill.name()).as_bytes());
                hash.to_hex().chars().take(FINGERPRINT_DIGITS).collect()
            }
        }
    }

    /// Hash over format, spec, tensor contents and the form they take, 32 hex digits. Large checkpoints are sampled
    /// ([`Tensors::hash_into`]), so this takes well under a second.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_as(self.recipe, self.recipe)
    }

    /// The same for the weights in the folder's form, independent of the recipe.
    pub(super) fn stored_fingerprint(&self) -> String {
        self.fingerprint_as(Recipe::Stored, self.recipe)
    }

    fn fingerprint_as(&self, recipe: Recipe, forms: Recipe) -> String {
        if let Some(made_from) = &self.made_from {
            return made_from.id.clone();
        }
        let hashed = self.hashed.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(format!("sala-chat {FORMAT}\n{:?}\n", self.spec).as_bytes());
            match &self.source {
                Source::Tensors(t) => t.hash_into(&mut hasher),
                Source::Synthetic(seed, form) => {
                    hasher.update(format!("synthetic {seed}").as_bytes());
                    if let Some(form) = form {
                        hasher.update(format!(" {form:?}").as_bytes());
                    }
                }
            }
            hasher
        });
        let mut hasher = hashed.clone();
        recipe.hash_into(&mut hasher);
        self.hash_published_forms(forms, &mut hasher);
        hasher.finalize().to_hex().chars().take(FINGERPRINT_DIGITS).collect()
    }

    /// A tensor by its checkpoint name, checked against `shape`.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        match &self.source {
            Source::Tensors(t) => t.get(name, shape),
            Source::Synthetic(..) => Err(ModelError::MissingTensor { name: name.into(), origin: self.name.clone() }),
        }
    }
}

#[cfg(test)]
mod tests;
