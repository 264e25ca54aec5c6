//! Packs a model's weights once and writes them as a folder that loads like any other, at the speed of the disk.
//!
//! One safetensors file per part of the model (embedding, each layer, head), each written under a temporary name and
//! renamed when it is complete. The index, with the hash of each part, is written last: a folder without it is not a
//! checkpoint, and packing into it starts again. One process writes a folder at a time ([`Claim`]). The bytes equal
//! those that a device makes of the same weights while loading them.

mod check;
mod folder;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::calibrate::Statistics;
use super::format::METHOD;
use super::seal::{MADE_FROM, SEAL, seal};
use super::tensors::{Tensors, WEIGHTS_INDEX, part_file};
use super::weights::{Fate, Source};
use super::{Checkpoint, ModelError, Result};
use crate::backend::forms::{OutputErrors, Packed};
use crate::backend::{BackendError, Form};
use crate::core::spec::ModelSpec;
use crate::engine::protocol::{Cancel, Dtype};

pub use super::seal::is_finished;
pub use check::{Condition, check};
use folder::clear;
pub use folder::{Holds, KeptFolder, Removed, Stage, free_bytes, holds, is_aside, kept_folders, remove_kept};
pub use write::Claim;
use write::write_text;
pub(super) use write::{Made, write_tensors};

const CONFIG: &str = "config.json";
/// Key of `quantization_config`: hash of the source weights, independent of form and calibration.
const WEIGHTS: &str = "weights";

/// Key of the metadata of the index: hash of all bytes of each part's file.
const HASHES: &str = "hashes";

#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `layer 3`.
    pub name: String,
    pub number: usize,
    pub of: usize,
    pub bytes: u64,
    pub errors: Errors,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    pub weights: f64,
    /// Squared error of the matrices' outputs over the calibration text, relative to the squared outputs, mean over
    /// matrices: first of plain packing, then of the calibrated packing in the file.
    pub outputs: Option<[f64; 2]>,
}

pub struct Calibration<'a> {
    /// Of weights and text ([`super::calibrate::identity`]).
    pub id: &'a str,
    pub statistics: &'a Statistics,
}

/// The index of a folder with all its parts.
#[derive(Debug)]
#[must_use]
pub struct Index {
    path: PathBuf,
    content: serde_json::Value,
    /// Of all parts.
    pub bytes: u64,
}

impl Index {
    /// Makes the folder a checkpoint.
    pub fn write(&self) -> Result<()> {
        write_text(&self.path, &self.content.to_string())
    }
}

/// Packs `source` by its recipe, with `calibration` by its statistics, in place of what an earlier run left in the
/// folder. `progress` receives every part once it is on the disk. `None` after a stop.
pub fn quantize(
    source: &Checkpoint,
    calibration: Option<&Calibration<'_>>,
    claim: &Claim,
    stop: &Cancel,
    progress: &mut dyn FnMut(&Part),
) -> Result<Option<Index>> {
    let Source::Tensors(tensors) = &source.source else { return Err(ModelError::Unknown(source.name().to_owned())) };
    source.check()?;
    source.expect();
    let out = claim.folder();
    let id = calibration.map_or_else(|| source.fingerprint(), |c| c.id.to_owned());
    clear(out)?;
    // Before the parts: the next run recognises its own unfinished folder by it.
    write_text(&out.join(CONFIG), &config(source, &id, calibration.is_some())?)?;
    let parts = parts(source.spec());
    let (mut total, mut index, mut hashes) = (0, BTreeMap::new(), BTreeMap::new());
    for (i, (name, weights)) in parts.iter().enumerate() {
        if stop.is_cancelled() {
            return Ok(None);
        }
        let file = part_file(i);
        let path = out.join(&file);
        let (errors, hash) = write_part(source, tensors, calibration, weights, &path, &id)?;
        let bytes = path.metadata().map_err(at(&path))?.len();
        total += bytes;
        hashes.insert(file.clone(), hash);
        let made = Tensors::open_files(std::slice::from_ref(&path))?;
        index.extend(made.names().map(|tensor| (tensor.to_owned(), file.clone())));
        progress(&Part { name: name.clone(), number: i + 1, of: parts.len(), bytes, errors });
    }
    let files: Vec<PathBuf> = (0..parts.len()).map(|i| out.join(part_file(i))).collect();
    let seal = seal(&Tensors::open_files(&files)?);
    let metadata = serde_json::json!({ "total_size": total, MADE_FROM: id, SEAL: seal, HASHES: hashes });
    let content = serde_json::json!({ "metadata": metadata, "weight_map": index });
    Ok(Some(Index { path: out.join(WEIGHTS_INDEX), content, bytes: total }))
}

fn config(source: &Checkpoint, id: &str, calibrated: bool) -> Result<String> {
    let mut config: serde_json::Value = serde_json::from_str(source.config())
        .map_err(|e| ModelError::Damaged { origin: CONFIG.into(), cause: e.to_string() })?;
    if let Some(config) = config.as_object_mut() {
        config.remove("quantization");
        let made = serde_json::json!({
            "quant_method": METHOD, "format": source.recipe.name(), MADE_FROM: id, "calibrated": calibrated,
            WEIGHTS: source.stored_fingerprint(),
        });
        config.insert("quantization_config".into(), made);
    }
    Ok(config.to_string())
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> ModelError + '_ {
    move |cause| ModelError::Write { path: path.into(), cause }
}

fn parts(spec: &ModelSpec) -> Vec<(String, Vec<(String, Vec<usize>)>)> {
    let mut all: Vec<(String, Vec<(String, Vec<usize>)>)> = Vec::new();
    for (tensor, shape) in spec.tensors() {
        let layer = tensor.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let name = match layer {
            Some((layer, _)) => format!("layer {layer}"),
            None if tensor.starts_with("model.embed") => "embedding".to_owned(),
            None => "head".to_owned(),
        };
        match all.last_mut() {
            Some((last, tensors)) if *last == name => tensors.push((tensor, shape)),
            _ => all.push((name, vec![(tensor, shape)])),
        }
    }
    all
}

fn write_part(
    source: &Checkpoint,
    tensors: &Tensors,
    calibration: Option<&Calibration<'_>>,
    weights: &[(String, Vec<usize>)],
    path: &Path,
    id: &str,
) -> Result<(Errors, String)> {
    let (mut made, mut sums, mut outputs) = (Vec::new(), (0f64, 0f64), Vec::new());
    for (name, shape) in weights {
        let (tensor, cost) = pack(source, tensors, calibration, name, shape)?;
        made.push(tensor);
        sums = (sums.0 + cost.error, sums.1 + cost.square);
        outputs.extend(cost.outputs.filter(|o| o.all > 0.0).map(|o| [o.plain / o.all, o.careful / o.all]));
    }
    let mean = |i: usize| outputs.iter().filter_map(|o| o.get(i)).sum::<f64>() / outputs.len() as f64;
    let errors = Errors {
        weights: if sums.1 > 0.0 { sums.0 / sums.1 } else { 0.0 },
        outputs: (!outputs.is_empty()).then(|| [mean(0), mean(1)]),
    };
    let noted = match errors.outputs {
        None => format!("{id} {:.4e}", errors.weights),
        Some([plain, careful]) => format!("{id} {:.4e} {plain:.4e} {careful:.4e}", errors.weights),
    };
    // One key and few digits: the same weights give the same file.
    let hash = write_tensors(path, &made, HashMap::from([(MADE_FROM.to_owned(), noted)]))?;
    Ok((errors, hash))
}

#[derive(Default)]
struct Cost {
    /// Σ (w − w')² of the packed values.
    error: f64,
    /// Σ w²
    square: f64,
    outputs: Option<OutputErrors>,
}

fn pack(
    source: &Checkpoint,
    tensors: &Tensors,
    calibration: Option<&Calibration<'_>>,
    name: &str,
    shape: &[usize],
) -> Result<(Made<'static>, Cost)> {
    let base = name.trim_end_matches(".weight");
    if let [out, inner] = *shape {
        let (_, form, fate) = source.fate(source.recipe, base, shape)?;
        if let Some(row) = form.row() {
            let shape = form.stored_shape(out, inner);
            let made = |bytes: Vec<u8>| Made {
                name: format!("{base}.{}", row.part),
                dtype: safetensors::Dtype::U8,
                shape,
                bytes: bytes.into(),
            };
            if matches!(fate, Fate::Exact | Fate::Nearly) {
                let loaded = source.weight(base, &[out, inner])?;
                return Ok((made(loaded.view().data.to_vec()), Cost::default()));
            }
            let moments = calibration.and_then(|c| c.statistics.of(base)).map(|moments| moments.blocks.as_slice());
            let (packed, cost) = pack_rows(tensors, name, form, [out, inner], moments)?;
            return Ok((made(packed.into_bytes()), cost));
        }
    }
    let loaded = tensors.get(name, shape)?;
    let view = loaded.view();
    let dtype = if view.dtype == Dtype::Bf16 { safetensors::Dtype::BF16 } else { safetensors::Dtype::F32 };
    Ok((
        Made { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: view.data.to_vec().into() },
        Cost::default(),
    ))
}

fn pack_rows(
    tensors: &Tensors,
    name: &str,
    form: Form,
    [out, inner]: [usize; 2],
    moments: Option<&[f32]>,
) -> Result<(Packed, Cost)> {
    use rayon::prelude::*;
    let loaded = tensors.get(name, &[out, inner])?;
    let view = loaded.view();
    let size = view.dtype.size();
    let row = |row: usize, dst: &mut [f32]| {
        let data = view.data.get(row * inner * size..(row + 1) * inner * size).unwrap_or_default();
        match view.dtype {
            Dtype::Bf16 => data.chunks_exact(2).zip(dst).for_each(|(b, v)| {
                *v = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }),
            _ => data.chunks_exact(4).zip(dst).for_each(|(b, v)| *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        }
    };
    let packed = match moments {
        None => Packed::pack(form, out, inner, row).map(|packed| (packed, None)),
        Some(moments) => {
            Packed::pack_careful(form, out, inner, moments, row).map(|(packed, errors)| (packed, Some(errors)))
        }
    };
    let (packed, outputs) = packed.map_err(|_| BackendError::NotFinite(name.to_owned()))?;
    let (error, square) = (0..out)
        .into_par_iter()
        .map_init(
            || (vec![0f32; inner], vec![0f32; inner]),
            |(before, after), r| {
                row(r, before);
                packed.values(r, after);
                let pairs = before.iter().zip(after.iter());
                pairs.fold((0f64, 0f64), |s, (b, a)| (s.0 + f64::from(b - a).powi(2), s.1 + f64::from(*b).powi(2)))
            },
        )
        .reduce(|| (0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    Ok((packed, Cost { error, square, outputs }))
}
