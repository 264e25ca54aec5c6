//! Where weights come from: a folder in the Hugging Face layout, the embedded demo, or a synthetic shape.
//!
//! Owns the mapping of files into memory, the look-up of tensors by their checkpoint names, and the fingerprint that
//! decides whether saved state still belongs to a model. Checks name, type and shape of whatever it hands out; never
//! converts bf16 or f32, widens f16 to f32 (exact). Reads weight files through one read-only memory map each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::backend::{Form, WeightView};
use crate::protocol::engine::Dtype;
use crate::spec::{Mixer, ModelSpec};
use crate::text::files;

use super::{ModelError, Result, demo, format};

mod recipe;

pub use recipe::Recipe;

/// Changes when the meaning of weights or saved state changes, so that older state is not mistaken for current.
const FORMAT: u32 = 1;
/// Files up to this many bytes are hashed whole; larger ones by sampled pages.
const HASH_WHOLE: u64 = 256 << 20;
/// Distance and size of the sampled pages of large files.
const SAMPLE_EVERY: usize = 16 << 20;
const SAMPLE_BYTES: usize = 4096;

/// A file compiled into the binary.
#[derive(Clone, Copy)]
pub(super) struct EmbeddedFile {
    pub(super) name: &'static str,
    pub(super) bytes: &'static [u8],
}

enum Bytes {
    Mapped(memmap2::Mmap),
    Embedded(&'static [u8]),
}

impl Bytes {
    fn slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Embedded(bytes) => bytes,
        }
    }
}

/// Where a tensor lies.
struct Entry {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// The tensors of one or several safetensors files, by name.
pub struct Tensors {
    files: Vec<Bytes>,
    index: BTreeMap<String, Entry>,
    origin: String,
}

/// One tensor, checked. Borrowed from the file except where it had to be widened.
pub struct LoadedTensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    dtype: Dtype,
    data: Cow<'a, [u8]>,
    form: Form,
}

impl LoadedTensor<'_> {
    /// The same, to take this form on the device.
    #[must_use]
    pub fn in_form(self, form: Form) -> Self {
        LoadedTensor { form, ..self }
    }

    /// As backends take it.
    pub fn view(&self) -> WeightView<'_> {
        WeightView { name: self.name, shape: self.shape, dtype: self.dtype, data: &self.data, form: self.form }
    }
}

impl Tensors {
    /// `model.safetensors` of a folder, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// No such files, a missing shard, or a damaged file.
    pub fn open_dir(dir: &Path) -> Result<Tensors> {
        let missing = |reason: String| ModelError::NoCheckpoint { path: dir.into(), reason };
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let paths: Vec<PathBuf> = if index.is_file() {
            #[derive(serde::Deserialize)]
            struct Index {
                weight_map: BTreeMap<String, String>,
            }
            let text = files::read_text(&index, files::MODEL_CONFIG_BYTES)
                .map_err(|cause| ModelError::File { path: index.clone(), cause })?;
            let parsed: Index = serde_json::from_str(&text)
                .map_err(|e| ModelError::Damaged { origin: index.display().to_string(), cause: e.to_string() })?;
            let mut names: Vec<String> = parsed.weight_map.into_values().collect();
            names.sort();
            names.dedup();
            if let Some(bad) = names.iter().find(|n| n.contains(['/', '\\'])) {
                return Err(missing(format!("its index names a file outside of it: {bad}")));
            }
            names.into_iter().map(|n| dir.join(n)).collect()
        } else if single.is_file() {
            vec![single]
        } else {
            return Err(missing("neither model.safetensors nor model.safetensors.index.json is in it".into()));
        };
        if let Some(absent) = paths.iter().find(|p| !p.is_file()) {
            return Err(missing(format!(
                "the index names {} but it is not there; download it again",
                absent.display()
            )));
        }
        Tensors::open_files(&paths)
    }

    /// The given safetensors files.
    ///
    /// # Errors
    /// A file that cannot be mapped or is damaged.
    pub fn open_files(paths: &[PathBuf]) -> Result<Tensors> {
        let origin = paths.first().and_then(|p| p.parent()).map(|p| p.display().to_string()).unwrap_or_default();
        let mut tensors = Tensors { files: Vec::new(), index: BTreeMap::new(), origin };
        for path in paths {
            tensors.add(Bytes::Mapped(map(path)?), &path.display().to_string())?;
        }
        Ok(tensors)
    }

    pub(super) fn embedded(files: &[EmbeddedFile]) -> Result<Tensors> {
        let origin = files.first().map(|f| f.name).unwrap_or_default().to_string();
        let mut tensors = Tensors { files: Vec::new(), index: BTreeMap::new(), origin };
        for file in files {
            tensors.add(Bytes::Embedded(file.bytes), file.name)?;
        }
        Ok(tensors)
    }

    fn add(&mut self, bytes: Bytes, origin: &str) -> Result<()> {
        let damaged = |cause: String| ModelError::Damaged { origin: origin.into(), cause };
        // Checks that the header is whole and that its ranges tile the rest of the file.
        let (header, metadata) =
            safetensors::SafeTensors::read_metadata(bytes.slice()).map_err(|e| damaged(e.to_string()))?;
        let start = header + 8;
        for (name, info) in metadata.tensors() {
            let entry = Entry {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                range: start + info.data_offsets.0..start + info.data_offsets.1,
            };
            if self.index.insert(name.clone(), entry).is_some() {
                return Err(damaged(format!("tensor `{name}` is in two files")));
            }
        }
        self.files.push(bytes);
        Ok(())
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// Shape of a tensor, slowest axis first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.index.get(name).map(|e| e.shape.as_slice())
    }

    /// A floating-point tensor of exactly this shape.
    ///
    /// # Errors
    /// Missing, of another shape, or neither BF16, F16 nor F32.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        self.check(name, shape)?;
        let (name, entry, bytes) = self.entry(name)?;
        let (dtype, data) = match entry.dtype {
            safetensors::Dtype::BF16 => (Dtype::Bf16, Cow::Borrowed(bytes)),
            safetensors::Dtype::F16 => (Dtype::F32, Cow::Owned(widen_f16(bytes))),
            _ => (Dtype::F32, Cow::Borrowed(bytes)),
        };
        Ok(LoadedTensor { name, shape: &entry.shape, dtype, data, form: Form::Bf16 })
    }

    /// Whether [`Tensors::get`] would succeed, without touching the contents.
    ///
    /// # Errors
    /// As [`Tensors::get`].
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        let (_, entry, _) = self.entry(name)?;
        if entry.shape != shape {
            return Err(ModelError::TensorShape {
                name: name.into(),
                expected: shape.into(),
                found: entry.shape.clone(),
            });
        }
        match entry.dtype {
            safetensors::Dtype::F32 | safetensors::Dtype::BF16 | safetensors::Dtype::F16 => Ok(()),
            other => Err(ModelError::TensorType { name: name.into(), found: format!("{other:?}") }),
        }
    }

    /// A tensor's type as the file names it, its shape, and its bytes. For integer and boolean tensors.
    ///
    /// # Errors
    /// Missing.
    pub fn raw(&self, name: &str) -> Result<(safetensors::Dtype, &[usize], &[u8])> {
        let (_, entry, bytes) = self.entry(name)?;
        Ok((entry.dtype, &entry.shape, bytes))
    }

    fn entry(&self, name: &str) -> Result<(&str, &Entry, &[u8])> {
        let absent = || ModelError::MissingTensor { name: name.into(), origin: self.origin.clone() };
        let (key, entry) = self.index.get_key_value(name).ok_or_else(absent)?;
        let bytes = self.files.get(entry.file).and_then(|f| f.slice().get(entry.range.clone())).ok_or_else(absent)?;
        Ok((key, entry, bytes))
    }

    /// Adds names, types, shapes and contents to a hash: whole for small checkpoints, else the first and last page of
    /// every tensor and a page every 16 MiB. Independent of how the tensors are spread over files.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let total: u64 = self.index.values().map(|e| e.range.len() as u64).sum();
        for (name, entry) in &self.index {
            hasher.update(format!("{name} {:?} {:?}\n", entry.dtype, entry.shape).as_bytes());
            let bytes = self.files.get(entry.file).and_then(|f| f.slice().get(entry.range.clone())).unwrap_or_default();
            if total <= HASH_WHOLE {
                hasher.update(bytes);
                continue;
            }
            for page in (0..bytes.len()).step_by(SAMPLE_EVERY).chain([bytes.len().saturating_sub(SAMPLE_BYTES)]) {
                let end = bytes.len().min(page + SAMPLE_BYTES);
                hasher.update(bytes.get(page..end).unwrap_or_default());
            }
        }
    }
}

#[allow(unsafe_code)]
fn map(path: &Path) -> Result<memmap2::Mmap> {
    let fail = |cause| ModelError::File { path: path.into(), cause };
    let file = std::fs::File::open(path).map_err(fail)?;
    // SAFETY: the map is read-only and lives inside `Bytes`, which hands out slices bound to its own lifetime. As with
    // every memory map, the file must not be shortened or rewritten while the program runs; weight files are written
    // once, under another name, and never changed in place by this program.
    unsafe { memmap2::Mmap::map(&file) }.map_err(fail)
}

fn widen_f16(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks_exact(2).flat_map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes()).collect()
}

/// What the weights are read from.
pub(super) enum Source {
    Tensors(Tensors),
    /// Made on the device from this seed.
    Synthetic(u64),
}

/// An opened source of weights: its shape, its name, and its tensors.
pub struct Checkpoint {
    name: String,
    directory: Option<PathBuf>,
    spec: ModelSpec,
    recipe: Recipe,
    pub(super) source: Source,
}

/// What a folder's settings say of packed weights, in words; `None` for plain ones.
fn declared_format(dir: &Path, config: &str) -> Result<Option<String>> {
    let path = dir.join("hf_quant_config.json");
    let beside = match files::read_text(&path, files::MODEL_CONFIG_BYTES) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(cause) => return Err(ModelError::File { path, cause }),
    };
    // What is no JSON at all is refused with its place when the shape is read.
    let Ok(config) = serde_json::from_str(config) else { return Ok(None) };
    let beside = beside.as_deref().map(serde_json::from_str).transpose();
    let beside = beside.map_err(|e| ModelError::NoCheckpoint { path, reason: e.to_string() })?;
    Ok(format::quantised(&config, beside.as_ref()))
}

impl Checkpoint {
    /// `demo`, `synthetic:9b[:seed]`, `synthetic:tiny[:seed]`, or the path of a folder with `config.json` and weights.
    ///
    /// # Errors
    /// See [`ModelError`]; shapes of tensors are checked by [`super::Model::load`].
    pub fn open(what: &str) -> Result<Checkpoint> {
        if what == "demo" {
            return demo::checkpoint();
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
    ///
    /// # Errors
    /// A missing or unreadable file, a configuration that cannot be run, or damaged weights.
    pub fn open_dir(dir: &Path) -> Result<Checkpoint> {
        let path = dir.join("config.json");
        if !path.is_file() {
            return Err(ModelError::NoCheckpoint { path: dir.into(), reason: "config.json is not in it".into() });
        }
        let text =
            files::read_text(&path, files::MODEL_CONFIG_BYTES).map_err(|cause| ModelError::File { path, cause })?;
        if let Some(what) = declared_format(dir, &text)? {
            return Err(ModelError::Quantised { path: dir.into(), what });
        }
        let spec = ModelSpec::from_json(&text)?;
        let name = dir.file_name().map_or_else(|| dir.display().to_string(), |n| n.to_string_lossy().into_owned());
        let source = Source::Tensors(Tensors::open_dir(dir)?);
        Ok(Checkpoint { name, directory: Some(dir.into()), spec, recipe: Recipe::Stored, source })
    }

    pub(super) fn embedded(name: &str, config: &str, files: &[EmbeddedFile]) -> Result<Checkpoint> {
        let spec = ModelSpec::from_json(config)?;
        let source = Source::Tensors(Tensors::embedded(files)?);
        Ok(Checkpoint { name: name.into(), directory: None, spec, recipe: Recipe::Stored, source })
    }

    fn synthetic(name: &str, shape: &str) -> Result<Checkpoint> {
        let unknown = || ModelError::Unknown(name.into());
        let (shape, seed) = match shape.split_once(':') {
            Some((shape, seed)) => (shape, seed.parse().map_err(|_| unknown())?),
            None => (shape, 0),
        };
        let config = match shape {
            "9b" => include_str!("config_9b.json"),
            "tiny" => include_str!("config_tiny.json"),
            _ => return Err(unknown()),
        };
        Checkpoint::made_up(name, config, seed)
    }

    /// Names of tensors in the files that the model has no use for.
    pub fn unknown_tensors(&self) -> Vec<String> {
        let Source::Tensors(tensors) = &self.source else {
            return Vec::new();
        };
        let expected: std::collections::BTreeSet<String> =
            Checkpoint::expected_tensors(&self.spec).into_iter().map(|(name, _)| name).collect();
        tensors.names().filter(|name| !expected.contains(*name)).map(str::to_owned).collect()
    }

    /// Random weights for any configuration.
    pub(super) fn made_up(name: &str, config: &str, seed: u64) -> Result<Checkpoint> {
        let spec = ModelSpec::from_json(config)?;
        let source = Source::Synthetic(seed);
        Ok(Checkpoint { name: name.into(), directory: None, spec, recipe: Recipe::Stored, source })
    }

    /// `demo`, `synthetic:9b`, or the folder's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder, if there is one: tokenizer and draft head may be beside the weights.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The model's shape.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Changes the shape's options (dense rule, score norm) before the model is loaded.
    pub fn spec_mut(&mut self) -> &mut ModelSpec {
        &mut self.spec
    }

    /// How weights are kept on the device.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// Chooses how weights are kept on the device, before the model is loaded.
    pub fn set_recipe(&mut self, recipe: Recipe) {
        self.recipe = recipe;
    }

    /// The form that a matrix takes, by its name without `.weight`.
    pub fn form(&self, name: &str, inner: usize) -> Form {
        self.recipe.form(&self.spec, name, inner)
    }

    /// `bf16` or `f32`, by the first projection.
    pub fn dtype(&self) -> Dtype {
        match &self.source {
            Source::Synthetic(_) => Dtype::Bf16,
            Source::Tensors(t) => match t.index.get("model.embed_tokens.weight").map(|e| e.dtype) {
                Some(safetensors::Dtype::BF16) => Dtype::Bf16,
                _ => Dtype::F32,
            },
        }
    }

    /// Hash over format, spec, tensor contents and the form they take, 32 hex digits. Saved state is valid only under the same. Large
    /// checkpoints are sampled ([`Tensors::hash_into`]), so this takes well under a second.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("sala-chat {FORMAT}\n{:?}\n", self.spec).as_bytes());
        match &self.source {
            Source::Tensors(t) => t.hash_into(&mut hasher),
            Source::Synthetic(seed) => {
                hasher.update(format!("synthetic {seed}").as_bytes());
            }
        }
        match self.recipe {
            // What was saved before there was a choice is still good.
            Recipe::Stored | Recipe::Bf16 => {}
            recipe => {
                hasher.update(format!("weights {}", recipe.name()).as_bytes());
            }
        }
        hasher.finalize().to_hex().chars().take(32).collect()
    }

    /// A tensor by its checkpoint name, checked against `shape`.
    ///
    /// # Errors
    /// Missing, of another shape or type; every name is missing from a synthetic model.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        match &self.source {
            Source::Tensors(t) => t.get(name, shape),
            Source::Synthetic(_) => Err(ModelError::MissingTensor { name: name.into(), origin: self.name.clone() }),
        }
    }

    /// Every tensor that the shape asks for, with its shape, in the checkpoint's names (docs/model.md §2).
    pub fn expected_tensors(spec: &ModelSpec) -> Vec<(String, Vec<usize>)> {
        let (h, i) = (spec.hidden, spec.intermediate);
        let mut all = vec![("model.embed_tokens.weight".to_string(), vec![spec.vocab, h])];
        for (layer, mixer) in spec.mixers.iter().enumerate() {
            let mut add =
                |name: &str, shape: Vec<usize>| all.push((format!("model.layers.{layer}.{name}.weight"), shape));
            add("input_layernorm", vec![h]);
            let (q, kv, gate) = match mixer {
                Mixer::Sparse => {
                    let s = &spec.sparse;
                    (s.heads * s.head_dim, s.kv_heads * s.head_dim, s.gate.then_some("self_attn.o_gate"))
                }
                Mixer::Lightning => {
                    let l = &spec.lightning;
                    if l.output_norm {
                        add("self_attn.o_norm", vec![l.heads * l.head_dim]);
                    }
                    if l.qk_norm {
                        add("self_attn.q_norm", vec![l.head_dim]);
                        add("self_attn.k_norm", vec![l.head_dim]);
                    }
                    (l.heads * l.head_dim, l.kv_heads * l.head_dim, l.output_gate.then_some("self_attn.z_proj"))
                }
            };
            add("self_attn.q_proj", vec![q, h]);
            add("self_attn.k_proj", vec![kv, h]);
            add("self_attn.v_proj", vec![kv, h]);
            add("self_attn.o_proj", vec![h, q]);
            if let Some(gate) = gate {
                add(gate, vec![q, h]);
            }
            add("post_attention_layernorm", vec![h]);
            add("mlp.gate_proj", vec![i, h]);
            add("mlp.up_proj", vec![i, h]);
            add("mlp.down_proj", vec![h, i]);
        }
        all.push(("model.norm.weight".into(), vec![h]));
        if !spec.tie_embeddings {
            all.push(("lm_head.weight".into(), vec![spec.vocab, h]));
        }
        all
    }
}

#[cfg(test)]
mod tests;
