//! Tensors of safetensors files by name, mapped into memory, with a check of name, type and shape on every access.
//! Never converts bf16 or f32, widens f16 to f32 (exact). [`super::published`] reads packed weights.
//!
//! | file | owns |
//! |---|---|
//! | `ahead` | reading files into memory before their use |
//! | here | the mapping of files into memory and the look-up of tensors by their names |

mod ahead;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::format::Format;
use super::{ModelError, Result, shown};
use crate::backend::{Form, WeightView};
use crate::core::files;
use crate::engine::protocol::Dtype;
use ahead::Ahead;

/// Files up to this many bytes are hashed whole; larger ones by sampled pages.
const HASH_WHOLE: u64 = 256 << 20;
const SAMPLE_EVERY: usize = 16 << 20;
const SAMPLE_BYTES: usize = 4096;

/// Name and bytes of a file of the built-in model.
pub(super) type Embedded = (&'static str, &'static [u8]);

enum Bytes {
    Mapped(memmap2::Mmap, Arc<File>),
    Embedded(&'static [u8]),
}

impl Bytes {
    fn slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map, _) => map,
            Bytes::Embedded(bytes) => bytes,
        }
    }
}

struct Entry {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

#[derive(Default)]
pub struct Tensors {
    files: Vec<Bytes>,
    index: BTreeMap<String, Entry>,
    origin: String,
    format: Option<Format>,
    ahead: OnceLock<Ahead>,
}

pub struct LoadedTensor<'a> {
    name: Cow<'a, str>,
    shape: Cow<'a, [usize]>,
    dtype: Dtype,
    data: Cow<'a, [u8]>,
    /// File and offset of `data`, if it is borrowed from a file.
    file: Option<(&'a File, u64)>,
    form: Form,
}

impl LoadedTensor<'_> {
    pub(super) fn unpacked(name: &str, shape: &[usize], dtype: Dtype, values: Vec<u8>) -> Self {
        let (name, shape) = (Cow::Owned(name.to_owned()), Cow::Owned(shape.to_vec()));
        LoadedTensor { name, shape, dtype, data: Cow::Owned(values), file: None, form: Form::Bf16 }
    }

    #[must_use]
    pub(super) fn into_f32(self) -> Self {
        if self.dtype != Dtype::Bf16 {
            return self;
        }
        let wide = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes();
        let data = self.data.chunks_exact(2).flat_map(wide).collect();
        LoadedTensor { data: Cow::Owned(data), file: None, dtype: Dtype::F32, ..self }
    }

    #[must_use]
    pub fn in_form(self, form: Form) -> Self {
        LoadedTensor { form, ..self }
    }

    pub fn view(&self) -> WeightView<'_> {
        let LoadedTensor { name, shape, dtype, data, file, form } = self;
        WeightView { name, shape, dtype: *dtype, data, file: *file, form: *form }
    }
}

pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// Name of the file of part `i` of a folder that this program packs; part 0 is written first.
pub(super) fn part_file(i: usize) -> String {
    format!("part-{i:03}.safetensors")
}

impl Tensors {
    /// `model.safetensors` of a folder, or the shards that `model.safetensors.index.json` names.
    pub fn open_dir(dir: &Path) -> Result<Tensors> {
        let missing = |reason: String| ModelError::NoCheckpoint { path: dir.into(), reason };
        let is_there =
            |path: &Path| files::is_there(path).map_err(|cause| ModelError::File { path: path.into(), cause });
        let single = dir.join("model.safetensors");
        let index = dir.join(WEIGHTS_INDEX);
        let mut expected = BTreeMap::new();
        let paths: Vec<PathBuf> = if is_there(&index)? {
            #[derive(serde::Deserialize)]
            struct Index {
                weight_map: BTreeMap<String, String>,
            }
            let text = files::read_text(&index, files::MODEL_CONFIG_BYTES)
                .map_err(|cause| ModelError::File { path: index.clone(), cause })?;
            let parsed: Index = serde_json::from_str(&text)
                .map_err(|e| ModelError::Damaged { origin: index.display().to_string(), cause: e.to_string() })?;
            let mut names: Vec<String> = parsed.weight_map.values().cloned().collect();
            expected = parsed.weight_map;
            names.sort();
            names.dedup();
            if names.is_empty() {
                return Err(missing(format!(
                    "its {WEIGHTS_INDEX} names no tensors; download that again, or remove it where model.safetensors is whole"
                )));
            }
            let named = |n: &str| !n.contains(|c: char| c == '\\' || c.is_control());
            let own = |n: &str| named(n) && Path::new(n).file_name() == Some(OsStr::new(n));
            if let Some(bad) = names.iter().find(|n| !own(n)) {
                return Err(missing(format!("its index names `{}`, which is no file of this folder", shown(bad))));
            }
            names.into_iter().map(|n| dir.join(n)).collect()
        } else if is_there(&single)? {
            vec![single]
        } else if is_there(&dir.join(part_file(0)))? {
            let words = "packing it was not finished; give the same `sala-chat model quantize` again";
            return Err(missing(words.into()));
        } else if holds_gguf(dir) {
            return Err(missing(
                "it holds GGUF, which is not read; take the folder with the model's safetensors".into(),
            ));
        } else {
            return Err(missing(format!("neither model.safetensors nor {WEIGHTS_INDEX} is in it")));
        };
        for path in &paths {
            if !is_there(path)? {
                let file = path.display();
                return Err(missing(format!("the index names {file} but it is not there; download it again")));
            }
        }
        let tensors = Tensors::open_files(&paths)?;
        // Shards of two downloads in one folder: the index belongs to one of them.
        match expected.iter().find(|(name, _)| !tensors.contains(name)) {
            None => Ok(tensors),
            Some((name, file)) => Err(missing(format!(
                "its index names tensor `{}` in {file}, which does not have it; download it again",
                shown(name)
            ))),
        }
    }

    #[must_use]
    pub fn in_format(self, format: Option<Format>) -> Tensors {
        Tensors { format, ..self }
    }

    pub fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    pub fn open_files(paths: &[PathBuf]) -> Result<Tensors> {
        let origin = paths.first().and_then(|p| p.parent()).map(|p| p.display().to_string()).unwrap_or_default();
        let mut tensors = Tensors { origin, ..Tensors::default() };
        for path in paths {
            let (map, file) = map(path)?;
            tensors.add(Bytes::Mapped(map, Arc::new(file)), &path.display().to_string())?;
        }
        Ok(tensors)
    }

    pub(super) fn embedded(files: &[Embedded]) -> Result<Tensors> {
        let origin = files.first().map_or(String::new(), |(name, _)| (*name).to_owned());
        let mut tensors = Tensors { origin, ..Tensors::default() };
        for &(name, bytes) in files {
            tensors.add(Bytes::Embedded(bytes), name)?;
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
                return Err(damaged(format!("tensor `{}` is in two files", shown(&name))));
            }
        }
        self.files.push(bytes);
        Ok(())
    }

    /// Asks the system to read the tensors of these names, in this order, a little ahead of their use. Does not wait.
    pub(super) fn expect<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        let place = |name| {
            let entry = self.index.get(name)?;
            match self.files.get(entry.file)? {
                Bytes::Mapped(_, file) => Some((Arc::clone(file), entry.range.start as u64, entry.range.len() as u64)),
                Bytes::Embedded(_) => None,
            }
        };
        self.ahead.get_or_init(|| Ahead::start(names.into_iter().filter_map(place)));
    }

    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// A floating-point tensor of exactly this shape, as the file has it.
    pub(super) fn plain(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        self.check_plain(name, shape)?;
        self.took(name);
        let (name, entry, bytes) = self.entry(name)?;
        let (dtype, data) = match entry.dtype {
            safetensors::Dtype::BF16 => (Dtype::Bf16, Cow::Borrowed(bytes)),
            safetensors::Dtype::F16 => (Dtype::F32, Cow::Owned(widen_f16(bytes))),
            _ => (Dtype::F32, Cow::Borrowed(bytes)),
        };
        let (name, shape) = (Cow::Borrowed(name), Cow::Borrowed(entry.shape.as_slice()));
        let file = self.file_of(&data);
        Ok(LoadedTensor { name, shape, dtype, data, file, form: Form::Bf16 })
    }

    pub(super) fn took(&self, name: &str) {
        if let (Some(ahead), Some(entry)) = (self.ahead.get(), self.index.get(name)) {
            ahead.took(entry.range.len() as u64);
        }
    }

    pub(super) fn all_read(&self) {
        if let Some(ahead) = self.ahead.get() {
            ahead.stop();
        }
    }

    /// Bytes of a form that a device reads without conversion.
    pub(super) fn packed<'a>(
        &'a self,
        name: &str,
        shape: &[usize],
        form: Form,
        data: Cow<'a, [u8]>,
    ) -> LoadedTensor<'a> {
        self.took(name);
        let file = self.file_of(&data);
        LoadedTensor { data, file, form, ..LoadedTensor::unpacked(name, shape, Dtype::U8, Vec::new()) }
    }

    /// The file of these borrowed bytes, and their offset in it.
    fn file_of(&self, bytes: &[u8]) -> Option<(&File, u64)> {
        let first = bytes.as_ptr().addr();
        self.files.iter().find_map(|file| match file {
            Bytes::Mapped(map, file) => {
                let at = first.checked_sub(map.as_ptr().addr())?;
                (at + bytes.len() <= map.len()).then_some((&**file, at as u64))
            }
            Bytes::Embedded(_) => None,
        })
    }

    /// Whether [`Tensors::plain`] would succeed, without touching the contents.
    pub(super) fn check_plain(&self, name: &str, shape: &[usize]) -> Result<()> {
        let (_, entry, _) = self.entry(name)?;
        if entry.shape != shape {
            let (expected, found) = (shape.into(), entry.shape.clone());
            return Err(ModelError::TensorShape { name: name.into(), expected, found });
        }
        match entry.dtype {
            safetensors::Dtype::F32 | safetensors::Dtype::BF16 | safetensors::Dtype::F16 => Ok(()),
            other => Err(ModelError::TensorType { name: name.into(), found: format!("{other:?}") }),
        }
    }

    /// A tensor's type as the file names it, its shape, and its bytes. For integer and boolean tensors.
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
    /// every tensor and a page every 16 MiB. Independent of the distribution of tensors over files.
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
fn map(path: &Path) -> Result<(memmap2::Mmap, File)> {
    let fail = |cause| ModelError::File { path: path.into(), cause };
    let (file, _) = files::open(path).map_err(fail)?;
    // SAFETY: the map is read-only and lives inside `Bytes`, which hands out slices bound to its own lifetime. As with
    // every memory map, the file must not be shortened or rewritten while the program runs; weight files are written
    // once, under another name, and never changed in place by this program.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
    Ok((map, file))
}

fn widen_f16(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks_exact(2).flat_map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes()).collect()
}

fn holds_gguf(dir: &Path) -> bool {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.path().extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
}
