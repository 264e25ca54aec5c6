//! Packs a model's weights once and writes them as a folder that loads like any other, at the speed of the disk.
//!
//! One safetensors file per part of the model (embedding, each layer, head), each written under a temporary name and
//! renamed when it is complete and its hash recorded, so that a stopped run continues with the parts that are
//! unchanged. The index is written last: a folder without it is not a checkpoint. One process writes a folder at a
//! time ([`Claim`]). The bytes equal those that a device makes of the same weights while loading them.

mod check;
mod folder;
mod statistics;
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
use crate::backend::{BackendError, Form, internal};
use crate::core::spec::ModelSpec;
use crate::engine::protocol::{Cancel, Dtype};

pub use super::seal::is_finished;
pub use check::{Compared, Condition, check, remove_damaged};
use folder::written;
pub use folder::{
    Holds, KeptFolder, Removed, Stage, free_bytes, holds, is_aside, is_outdated, is_unfinished, kept_folders,
    remove_kept,
};
pub use write::Claim;
pub(super) use write::{Made, write_tensors};
use write::{remove, write_text};

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
    pub earlier: bool,
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
    /// `None` if no part is missing.
    pub statistics: Option<&'a Statistics>,
}

/// [`quantize_claimed`] into a folder that this call claims and clears of stopped runs' temporary files.
pub fn quantize(
    source: &Checkpoint,
    calibration: Option<&Calibration<'_>>,
    out: &Path,
    stop: &Cancel,
    progress: &mut dyn FnMut(&Part),
) -> Result<Option<u64>> {
    let claim = Claim::take(out)?;
    claim.remove_left()?;
    match remove_damaged(source, &claim, stop, &mut |_, _| ())? {
        Some(compared) => quantize_claimed(source, calibration, &claim, &compared, stop, progress),
        None => Ok(None),
    }
}

/// Packs `source` by its recipe into a folder after [`remove_damaged`]; with `calibration`, by its statistics.
/// `progress` receives every part once it is on the disk. `None` after a stop.
pub fn quantize_claimed(
    source: &Checkpoint,
    calibration: Option<&Calibration<'_>>,
    claim: &Claim,
    compared: &Compared,
    stop: &Cancel,
    progress: &mut dyn FnMut(&Part),
) -> Result<Option<u64>> {
    let Source::Tensors(tensors) = &source.source else { return Err(ModelError::Unknown(source.name().to_owned())) };
    source.check()?;
    source.expect();
    let out = claim.folder();
    let id = calibration.map_or_else(|| source.fingerprint(), |c| c.id.to_owned());
    let parts = parts(source.spec());
    let (mut total, mut index, mut hashes) = (0, BTreeMap::new(), BTreeMap::new());
    let mut noted = compared.0.clone();
    for (i, (name, weights)) in parts.iter().enumerate() {
        if stop.is_cancelled() {
            return Ok(None);
        }
        let file = part_file(i);
        let path = out.join(&file);
        let (errors, earlier) = match written(&path, &id)? {
            Some(errors) => (errors, true),
            None => {
                if is_finished(out)? {
                    // The folder is incomplete from here to the new index; the notes keep the hashes of its parts.
                    check::note(out, &noted)?;
                    remove(&out.join(WEIGHTS_INDEX))?;
                }
                let (errors, hash) = write_part(source, tensors, calibration, weights, &path, &id)?;
                noted.insert(file.clone(), hash);
                check::note(out, &noted)?;
                (errors, false)
            }
        };
        let bytes = path.metadata().map_err(at(&path))?.len();
        total += bytes;
        let hash = match noted.get(&file) {
            Some(hash) => hash.clone(),
            // A part of an earlier version without a noted hash: only samples of it were compared.
            None => {
                let hash = check::hash(&path, stop).map_err(|cause| ModelError::File { path: path.clone(), cause })?;
                let Some(hash) = hash else { return Ok(None) };
                hash
            }
        };
        hashes.insert(file.clone(), hash);
        let made = Tensors::open_files(std::slice::from_ref(&path))?;
        index.extend(made.names().map(|tensor| (tensor.to_owned(), file.clone())));
        progress(&Part { name: name.clone(), number: i + 1, of: parts.len(), bytes, errors, earlier });
    }
    let files: Vec<PathBuf> = (0..parts.len()).map(|i| out.join(part_file(i))).collect();
    let seal = seal(&Tensors::open_files(&files)?);
    let mut config: serde_json::Value = serde_json::from_str(source.config())
        .map_err(|e| ModelError::Damaged { origin: CONFIG.into(), cause: e.to_string() })?;
    if let Some(config) = config.as_object_mut() {
        config.remove("quantization");
        let (format, calibrated) = (source.recipe.name(), calibration.is_some());
        let made = serde_json::json!({
            "quant_method": METHOD, "format": format, MADE_FROM: id, "calibrated": calibrated,
            WEIGHTS: source.stored_fingerprint(),
        });
        config.insert("quantization_config".into(), made);
    }
    write_text(&out.join(CONFIG), &config.to_string())?;
    let metadata = serde_json::json!({ "total_size": total, MADE_FROM: id, SEAL: seal, HASHES: hashes });
    let index = serde_json::json!({ "metadata": metadata, "weight_map": index });
    write_text(&out.join(WEIGHTS_INDEX), &index.to_string())?;
    remove(&out.join(write::NOTES))?;
    Ok(Some(total))
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
    // Reads the rounded errors back, so that a continued run reports the same.
    Ok((written(path, id)?.unwrap_or(errors), hash))
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
            let moments = match calibration.map(|c| c.statistics) {
                Some(None) => return Err(internal("quantize", "statistics that are missing").into()),
                Some(Some(statistics)) => statistics.of(base).map(|moments| moments.blocks.as_slice()),
                None => None,
            };
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
