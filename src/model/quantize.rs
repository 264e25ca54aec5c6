//! Packs a model's weights once and writes them as a folder that loads like any other, at the speed of the disk.
//!
//! One safetensors file per part of the model (embedding, each layer, head), each written under another name and renamed when it is
//! whole, so that a run that was stopped goes on where it was. The index is written last: a folder without it is not a checkpoint.
//! What is written is what a device would make of the same weights while loading them, to the bit.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;

use super::calibrate::Statistics;
use super::published::is_of_an_earlier_version;
use super::weights::{FINGERPRINT_DIGITS, Fate, Source};
use super::{Checkpoint, ModelError, Result, Tensors};
use crate::backend::forms::{OutputErrors, Packed};
use crate::backend::{BackendError, Form, internal};
use crate::protocol::engine::{Cancel, Dtype};
use crate::spec::ModelSpec;

/// What `quant_method` says of a folder that this program wrote.
pub(super) const METHOD: &str = "sala-chat";
const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
/// Key of the metadata of each file: hash of what it was made from and how; in files followed by the squared error.
pub(super) const MADE_FROM: &str = "made_from";

/// Key of `quantization_config`: hash of the weights that were packed, whatever to and by whatever text.
const WEIGHTS: &str = "weights";

/// What a file is called until it is whole.
pub(super) const PARTIAL: &str = ".part-";

/// Name of the file of part `i`.
fn part_file(i: usize) -> String {
    format!("part-{i:03}.safetensors")
}

/// That of the first, which an unfinished folder has before anything else.
pub(super) fn first_part() -> String {
    part_file(0)
}

/// A part that is on the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `layer 3`.
    pub name: String,
    /// Its number, from 1, and how many there are.
    pub number: usize,
    /// Of how many.
    pub of: usize,
    /// Its file.
    pub bytes: u64,
    /// What packing cost.
    pub errors: Errors,
    /// An earlier run wrote it.
    pub earlier: bool,
}

/// Squared errors of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of what was packed, relative to the squared weights.
    pub weights: f64,
    /// Of what its matrices compute over the text of the calibration, relative to the squares of that, a mean over them: of plain
    /// packing, and of what is in the file.
    pub outputs: Option<[f64; 2]>,
}

/// Packing by what the model computes with.
pub struct Calibration<'a> {
    /// Of weights and text ([`super::calibrate::identity`]).
    pub id: &'a str,
    /// `None` if no part is missing.
    pub statistics: Option<&'a Statistics>,
}

/// A tensor on its way to the file.
struct Made {
    name: String,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Packs `source` by its recipe into the folder `out`, with `calibration` by its statistics. `progress` hears every part when it is on
/// the disk. `None` if it was stopped.
///
/// # Errors
/// A source without files, tensors that cannot be read, values that are not finite, the disk.
pub fn quantize(
    source: &Checkpoint,
    calibration: Option<&Calibration<'_>>,
    out: &Path,
    stop: &Cancel,
    progress: &mut dyn FnMut(&Part),
) -> Result<Option<u64>> {
    let Source::Tensors(tensors) = &source.source else {
        return Err(ModelError::Unknown(source.name().to_owned()));
    };
    source.check()?;
    source.expect();
    std::fs::create_dir_all(out).map_err(at(out))?;
    let id = calibration.map_or_else(|| source.fingerprint(), |c| c.id.to_owned());
    let parts = parts(source.spec());
    let (mut total, mut index) = (0, BTreeMap::new());
    for (i, (name, weights)) in parts.iter().enumerate() {
        if stop.is_cancelled() {
            return Ok(None);
        }
        let file = part_file(i);
        let path = out.join(&file);
        let (errors, earlier) = match written(&path, &id) {
            Some(errors) => (errors, true),
            None => {
                // A folder that was finished and is packed again is whole for nobody meanwhile.
                remove(&out.join(INDEX))?;
                (write_part(source, tensors, calibration, weights, &path, &id)?, false)
            }
        };
        let bytes = path.metadata().map_err(at(&path))?.len();
        total += bytes;
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
        let (format, calibrated) = (source.recipe().name(), calibration.is_some());
        let made = serde_json::json!({
            "quant_method": METHOD, "format": format, MADE_FROM: id, "calibrated": calibrated,
            WEIGHTS: source.stored_fingerprint(),
        });
        config.insert("quantization_config".into(), made);
    }
    write_text(&out.join(CONFIG), &config.to_string())?;
    let index =
        serde_json::json!({ "metadata": { "total_size": total, MADE_FROM: id, "seal": seal }, "weight_map": index });
    write_text(&out.join(INDEX), &index.to_string())?;
    Ok(Some(total))
}

/// What a folder holds that something is to be packed into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// No model, or what is to be packed.
    Free,
    /// The same weights packed to another form, which is named.
    OtherForm(String),
    /// The same weights in this form, by other text or none.
    OtherCalibration {
        /// By some text.
        calibrated: bool,
    },
    /// Packed by an earlier version, which did not say what from.
    Unsaid,
    /// Another model.
    Other,
    /// No model, but a file that packing has not written, which is named.
    Files(String),
}

/// What `out` holds, for packing `source` into it under the name of `id`.
pub fn holds(source: &Checkpoint, id: &str, out: &Path) -> Holds {
    let path = out.join(CONFIG);
    if !path.exists() {
        // What an earlier run of the same packing left when it was stopped.
        let ours = |path: &Path| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let aside = name.starts_with('.') || name == super::calibrate::FILE;
            aside || (is_part(name) && header(path).is_none_or(|_| made_from(path, id).is_some()))
        };
        let other = entries(out).into_iter().find(|path| !ours(path));
        let name = other.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        return name.map_or(Holds::Free, Holds::Files);
    }
    let read = || {
        let text = crate::text::files::read_text(&path, crate::text::files::MODEL_CONFIG_BYTES).ok()?;
        let config: serde_json::Value = serde_json::from_str(&text).ok()?;
        config.get("quantization_config").cloned()
    };
    let Some(made) = read() else { return Holds::Other };
    let says = |key: &str| made.get(key).and_then(serde_json::Value::as_str);
    let ours = says("quant_method") == Some(METHOD);
    match (says(MADE_FROM), says(WEIGHTS), says("format")) {
        (Some(made_from), ..) if ours && made_from == id => Holds::Free,
        (_, None, _) if ours => Holds::Unsaid,
        (_, Some(weights), Some(format)) if ours && weights == source.stored_fingerprint() => {
            match format == source.recipe().name() {
                true => Holds::OtherCalibration { calibrated: made.get("calibrated") == Some(&true.into()) },
                false => Holds::OtherForm(format.to_owned()),
            }
        }
        _ => Holds::Other,
    }
}

/// Whether a part is missing that [`quantize`] would have to pack.
pub fn is_unfinished(source: &Checkpoint, id: &str, out: &Path) -> bool {
    (0..parts(source.spec()).len()).any(|i| written(&out.join(part_file(i)), id).is_none())
}

/// Whether all of a folder was written once; [`quantize`] takes its parts for whole, whatever became of them since.
pub fn is_finished(folder: &Path) -> bool {
    folder.join(INDEX).is_file()
}

/// Whether a finished folder holds weights that this version packs otherwise.
pub fn is_outdated(folder: &Path) -> bool {
    let read = || {
        let text = crate::text::files::read_text(&folder.join(INDEX), crate::text::files::MODEL_CONFIG_BYTES).ok()?;
        let index: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(index.get("weight_map")?.as_object()?.keys().any(|name| is_of_an_earlier_version(name)))
    };
    read() == Some(true)
}

/// Bytes free on the disk of a folder that may not exist yet.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let there = folder.ancestors().find(|d| d.exists())?;
    rustix::fs::statvfs(there).ok().map(|stat| stat.f_bavail * stat.f_frsize)
}

/// What a finished folder says it was made from, if its files are what its index says (sampled as fingerprints are).
pub(super) fn sealed(folder: &Path) -> Option<(String, Tensors)> {
    let text = crate::text::files::read_text(&folder.join(INDEX), crate::text::files::MODEL_CONFIG_BYTES).ok()?;
    let index: serde_json::Value = serde_json::from_str(&text).ok()?;
    let says = |key: &str| index.get("metadata").and_then(|m| m.get(key)).and_then(serde_json::Value::as_str);
    let (id, expected) = (says(MADE_FROM)?.to_owned(), says("seal")?.to_owned());
    let tensors = Tensors::open_dir(folder).ok()?;
    (seal(&tensors) == expected).then_some((id, tensors))
}

fn seal(tensors: &Tensors) -> String {
    let mut hasher = blake3::Hasher::new();
    tensors.hash_into(&mut hasher);
    hasher.finalize().to_hex().to_string()
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> ModelError + '_ {
    move |cause| ModelError::Write { path: path.into(), cause }
}

/// Names of parts, with the expected tensors of each.
fn parts(spec: &ModelSpec) -> Vec<(String, Vec<(String, Vec<usize>)>)> {
    let mut all: Vec<(String, Vec<(String, Vec<usize>)>)> = Vec::new();
    for (tensor, shape) in Checkpoint::expected_tensors(spec) {
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

/// The errors that an earlier run noted in a file made from the same, if it is whole and as this version packs.
fn written(path: &Path, id: &str) -> Option<Errors> {
    let tensors = Tensors::open_files(&[path.to_path_buf()]).ok()?;
    made_from(path, id).filter(|_| !tensors.names().any(is_of_an_earlier_version))
}

/// The errors that a run noted in a file made from the same, whatever became of the file and whoever packed it.
fn made_from(path: &Path, id: &str) -> Option<Errors> {
    let meta = header(path)?;
    let (made_from, errors) = meta.get(MADE_FROM)?.as_str()?.split_once(' ')?;
    let errors: Vec<f64> = errors.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    match *errors.as_slice() {
        _ if made_from != id => None,
        [weights] => Some(Errors { weights, outputs: None }),
        [weights, plain, careful] => Some(Errors { weights, outputs: Some([plain, careful]) }),
        _ => None,
    }
}

/// The metadata of a safetensors file.
pub(super) fn header(path: &Path) -> Option<serde_json::Value> {
    let mut head = Vec::new();
    let mut file = std::fs::File::open(path).ok()?;
    let mut size = [0u8; 8];
    std::io::Read::read_exact(&mut file, &mut size).ok()?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, u64::from_le_bytes(size)), &mut head).ok()?;
    let mut head: serde_json::Value = serde_json::from_slice(&head).ok()?;
    head.get_mut("__metadata__").map(serde_json::Value::take)
}

fn write_part(
    source: &Checkpoint,
    tensors: &Tensors,
    calibration: Option<&Calibration<'_>>,
    weights: &[(String, Vec<usize>)],
    path: &Path,
    id: &str,
) -> Result<Errors> {
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
    let failed = |e: safetensors::SafeTensorError| at(path)(std::io::Error::other(e.to_string()));
    let views: Vec<(&str, TensorView<'_>)> = made
        .iter()
        .map(|m| Ok((m.name.as_str(), TensorView::new(m.dtype, m.shape.clone(), &m.bytes).map_err(failed)?)))
        .collect::<Result<_>>()?;
    let noted = match errors.outputs {
        None => format!("{id} {:.4e}", errors.weights),
        Some([plain, careful]) => format!("{id} {:.4e} {plain:.4e} {careful:.4e}", errors.weights),
    };
    // One key and few digits: the same weights give the same file.
    let metadata = HashMap::from([(MADE_FROM.to_owned(), noted)]);
    let folder = path.parent().unwrap_or(Path::new("."));
    let partial = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(folder).map_err(at(path))?;
    safetensors::serialize_to_file(views, Some(metadata), partial.path()).map_err(failed)?;
    partial.as_file().sync_all().map_err(at(path))?;
    partial.persist(path).map_err(|e| at(path)(e.error))?;
    // With the digits that a run that goes on will find.
    Ok(written(path, id).unwrap_or(errors))
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at(path)(e)),
        _ => Ok(()),
    }
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut partial = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(folder).map_err(at(path))?;
    partial.write_all(text.as_bytes()).map_err(at(path))?;
    partial.as_file().sync_all().map_err(at(path))?;
    partial.persist(path).map_err(|e| at(path)(e.error))?;
    Ok(())
}

/// What packing one tensor cost.
#[derive(Default)]
struct Cost {
    /// Σ (w − w')² of what was packed.
    error: f64,
    /// Σ w²
    square: f64,
    outputs: Option<OutputErrors>,
}

/// One tensor as the folder is to hold it.
fn pack(
    source: &Checkpoint,
    tensors: &Tensors,
    calibration: Option<&Calibration<'_>>,
    name: &str,
    shape: &[usize],
) -> Result<(Made, Cost)> {
    let base = name.trim_end_matches(".weight");
    if let [out, inner] = *shape {
        let (form, fate) = source.fate_of(base, shape)?;
        if let Some(row) = form.row() {
            let shape = form.stored_shape(out, inner);
            let made =
                |bytes| Made { name: format!("{base}.{}", row.part), dtype: safetensors::Dtype::U8, shape, bytes };
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
    Ok((Made { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: view.data.to_vec() }, Cost::default()))
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

/// Folders of packed weights that earlier starts left, below `dir`: name and bytes of what is ours in them.
pub fn kept_folders(dir: &Path) -> Vec<(PathBuf, u64)> {
    let folders = if is_folder(dir) { entries(dir) } else { Vec::new() };
    let ours = |p: &PathBuf| is_folder(p) && is_fingerprint(p);
    let size =
        |p: &Path| -> u64 { own_files(p).iter().filter_map(|f| f.symlink_metadata().ok()).map(|m| m.len()).sum() };
    let mut all: Vec<(PathBuf, u64)> = folders.into_iter().filter(ours).map(|p| (p.clone(), size(&p))).collect();
    all.sort();
    all
}

/// Removes them; what was freed. What somebody else put beside our files stays, and its folder with it.
///
/// # Errors
/// A file that cannot be removed.
pub fn remove_kept(dir: &Path) -> std::io::Result<u64> {
    let mut freed = 0;
    for (folder, bytes) in kept_folders(dir) {
        for file in own_files(&folder) {
            std::fs::remove_file(&file)?;
        }
        freed += bytes;
        match std::fs::remove_dir(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => return Err(e),
            _ => {}
        }
    }
    Ok(freed)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

/// A folder itself: what a link leads to may be anybody's.
fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_dir())
}

/// Named as [`Checkpoint::fingerprint`] names.
fn is_fingerprint(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    name.is_some_and(|n| n.len() == FINGERPRINT_DIGITS && n.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Named as a part is.
fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|rest| rest.strip_suffix(".safetensors"));
    number.is_some_and(|n| n.parse::<usize>().is_ok_and(|i| part_file(i) == name))
}

/// Files of a kept folder whose names are those that [`quantize`] writes, whole or on the way.
fn own_files(folder: &Path) -> Vec<PathBuf> {
    let is_ours = |name: &str| name == CONFIG || name == INDEX || name.starts_with(PARTIAL) || is_part(name);
    let files = entries(folder).into_iter();
    files.filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(is_ours) && !is_folder(p)).collect()
}
