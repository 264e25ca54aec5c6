//! State in transfer between engine and session: arrays of rows, states at a position, and reasons for unreadable
//! rows.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatePart {
    Rows,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{why}")]
pub struct RowsFault {
    /// The file name of its segment; `None` for rows of no file.
    pub segment: Option<[u8; 32]>,
    pub part: StatePart,
    pub why: String,
    /// Permanent; false for a passing fault, such as a disk that does not respond.
    pub lasting: bool,
}

impl RowsFault {
    /// For rows of no file: a missing array, a reader that ended early.
    pub fn new(why: impl Into<String>) -> RowsFault {
        RowsFault { segment: None, part: StatePart::Rows, why: why.into(), lasting: false }
    }
}

/// The arrays of a layer's keys and values in the order of images, without their layer: of every row, and the
/// compressed keys of two levels.
pub const ROW_ARRAYS: [&str; 4] = ["k", "v", "k1", "k2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    Bf16,
    U32,
    U8,
}

impl Dtype {
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 => 1,
        }
    }

    /// Decodes little-endian values; `None` for types that hold no real numbers.
    pub fn floats(self, data: &[u8]) -> Option<Vec<f32>> {
        match self {
            Dtype::F32 => Some(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
            Dtype::Bf16 => Some(
                data.chunks_exact(2)
                    .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
                    .collect(),
            ),
            Dtype::U32 | Dtype::U8 => None,
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct ImageTensor {
    /// `k.{layer}`, `v.{layer}`, `k1.{layer}`, `k2.{layer}` in rows; `state.{layer}`, `draft.*` in end states.
    pub name: String,
    pub dtype: Dtype,
    /// Slowest axis first.
    pub shape: Vec<usize>,
    #[serde(skip)]
    pub data: TensorData,
}

/// The bytes of a tensor, shared by its clones. They may still be in transfer from the device: the first access waits.
/// If the transfer failed they are empty, and [`TensorData::arrived`] has the reason.
#[derive(Clone)]
pub struct TensorData(Arc<OnceLock<Result<Arc<Vec<u8>>, String>>>);

/// The sending end of [`TensorData`]; a drop without data marks them as failed.
pub struct Arriving(TensorData);

impl TensorData {
    pub fn later() -> (TensorData, Arriving) {
        let data = TensorData(Arc::default());
        (data.clone(), Arriving(data))
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    /// Why the transfer failed, as a phrase.
    pub fn arrived(&self) -> Result<&Arc<Vec<u8>>, String> {
        self.0.wait().as_ref().map_err(Clone::clone)
    }

    /// Waits. Empty if the transfer failed.
    pub fn shared(&self) -> Arc<Vec<u8>> {
        self.arrived().cloned().unwrap_or_default()
    }
}

impl Arriving {
    pub fn set(self, data: Result<Vec<u8>, String>) {
        self.give(data.map(Arc::new));
    }

    fn give(&self, data: Result<Arc<Vec<u8>>, String>) {
        // Set once: by its owner, or in place of it when that is dropped.
        let _ = self.0.0.set(data);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.give(Err("the device was closed before it had sent them".to_owned()));
    }
}

impl Deref for TensorData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.arrived().map_or(&[], |data| data.as_slice())
    }
}

impl Default for TensorData {
    fn default() -> TensorData {
        Vec::new().into()
    }
}

impl From<Arc<Vec<u8>>> for TensorData {
    fn from(data: Arc<Vec<u8>>) -> TensorData {
        TensorData(Arc::new(OnceLock::from(Ok(data))))
    }
}

impl From<Vec<u8>> for TensorData {
    fn from(data: Vec<u8>) -> TensorData {
        Arc::new(data).into()
    }
}

impl std::fmt::Debug for TensorData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.get() {
            None => f.write_str("on its way"),
            Some(Ok(data)) => write!(f, "{} bytes", data.len()),
            Some(Err(why)) => write!(f, "never came: {why}"),
        }
    }
}

impl PartialEq for TensorData {
    fn eq(&self, other: &TensorData) -> bool {
        **self == **other
    }
}

impl Eq for TensorData {}

impl ImageTensor {
    pub fn new(name: &str, dtype: Dtype, shape: Vec<usize>, data: impl Into<TensorData>) -> Self {
        ImageTensor { name: name.to_owned(), dtype, shape, data: data.into() }
    }

    pub fn of_floats(name: &str, shape: Vec<usize>, values: &[f32]) -> Self {
        Self::new(name, Dtype::F32, shape, bytemuck::cast_slice(values).to_vec())
    }

    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Whether it has this shape, and all of its bytes.
    pub fn is_whole(&self, shape: &[usize]) -> bool {
        self.shape == shape && self.data.len() == self.bytes()
    }
}

impl std::fmt::Debug for ImageTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {:?} ({:?})", self.name, self.dtype, self.shape, self.data)
    }
}

/// KV rows of consecutive positions: what a segment adds to the caches. Append-only, independent of how it was computed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RowsImage {
    pub start: u64,
    pub rows: u64,
    /// `k.{layer}` and `v.{layer}` `[rows, kv_heads, head_dim]`; `k1.{layer}`, `k2.{layer}`: the compressed keys
    /// of windows that end inside these rows.
    pub tensors: Vec<ImageTensor>,
    #[serde(skip)]
    pub segment: Option<[u8; 32]>,
}

/// Source of KV rows for a restore: memory, or files that are read and checked on the way to the device.
pub trait RowSource: Send + Sync + std::fmt::Debug {
    fn start(&self) -> u64;
    fn rows(&self) -> u64;
    /// Type and shape of an array of this name (as in [`RowsImage::tensors`]), if there is one.
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)>;
    /// Fills `into` with bytes of an array, from byte `at` on. Several threads call it at a time; multiples of
    /// [`SOURCE_BYTES`] cost least.
    ///
    /// # Errors
    /// No such bytes, or they cannot be read, or are not what was saved.
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault>;
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault>;
    /// Their place in a file, for an engine in another process that reads them itself: from here on they count as
    /// read. `None` if there is no file.
    fn hand_over(&self) -> Option<RowsPlace> {
        None
    }
    /// The segment that ends with them, if known. It names all rows from position 0 up to their end: rows of one name
    /// are interchangeable.
    fn segment(&self) -> Option<[u8; 32]> {
        None
    }
    /// The rows were shared from another sequence: from here on they count as read.
    fn pass_over(&self) {}
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsPlace {
    #[serde(with = "path_bytes")]
    pub file: PathBuf,
    pub segment: [u8; 32],
    /// Of the file's head, which holds the checksums of the rest.
    pub checksum: [u8; 32],
}

mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(from).map(|bytes| OsString::from_vec(bytes).into())
    }
}

/// Alignment for [`RowSource::fill`]: bytes under one checksum, as many as one block of 64 positions has in the 9B
/// model, so that a block can be read on its own.
pub const SOURCE_BYTES: usize = 32 << 10;
/// Best size of one thread's read in an array that is read whole: small enough to stay in a processor's cache.
pub const PIECE_BYTES: usize = 32 * SOURCE_BYTES;

impl RowSource for RowsImage {
    fn start(&self) -> u64 {
        self.start
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.map(|t| (t.dtype, t.shape.clone()))
    }

    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        let found = self.tensors.iter().find(|t| t.name == name);
        let from = found.and_then(|t| t.data.get(at..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or_else(|| RowsFault::new(format!("{name} has no such bytes")))?);
        Ok(())
    }

    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.cloned().ok_or_else(|| RowsFault::new(format!("there is no {name}")))
    }

    fn segment(&self) -> Option<[u8; 32]> {
        self.segment
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointImage {
    pub position: u64,
    /// `state.{layer}` `[heads, head_dim, head_dim]` f32, and the draft window (`draft.*`) if there is a head.
    pub tensors: Vec<ImageTensor>,
}

/// All data of one segment, in transfer between engine and session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StateImage {
    pub rows: RowsImage,
    /// State at its end; `None` where thinned.
    pub end: Option<CheckpointImage>,
}

impl StateImage {
    pub fn tensors(&self) -> impl Iterator<Item = &ImageTensor> {
        self.rows.tensors.iter().chain(self.end.iter().flat_map(|end| &end.tensors))
    }

    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut ImageTensor> {
        self.rows.tensors.iter_mut().chain(self.end.iter_mut().flat_map(|end| &mut end.tensors))
    }

    pub fn bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Waits for the transfer from the device.
    ///
    /// # Errors
    /// Why it failed, as a phrase.
    pub fn arrived(&self) -> Result<(), String> {
        self.tensors().try_for_each(|tensor| tensor.data.arrived().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_waits_for_bytes_that_arrive_later() {
        let (data, arriving) = TensorData::later();
        let tensor = ImageTensor { name: "k".into(), dtype: Dtype::Bf16, shape: vec![2, 2], data };
        assert_eq!((tensor.bytes(), format!("{tensor:?}").as_str()), (8, "k Bf16 [2, 2] (on its way)"));
        let looks = std::thread::spawn({
            let data = tensor.data.clone();
            move || data.to_vec()
        });
        arriving.set(Ok((0..8).collect()));
        assert_eq!(looks.join().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tensor.data, TensorData::from((0..8).collect::<Vec<u8>>()));
    }

    #[test]
    fn a_file_with_a_name_that_is_no_text_still_survives_json() {
        use std::os::unix::ffi::OsStrExt as _;
        let file = PathBuf::from(std::ffi::OsStr::from_bytes(b"/d\xffta/1.rows"));
        let place = RowsPlace { file, segment: [1; 32], checksum: [2; 32] };
        let json = serde_json::to_vec(&place).unwrap();
        assert_eq!(serde_json::from_slice::<RowsPlace>(&json).unwrap(), place);
    }

    #[test]
    fn bytes_that_never_arrive_are_reported_as_missing() {
        let (data, arriving) = TensorData::later();
        drop(arriving);
        assert!(data.is_empty() && data.arrived().is_err());
        let tensor = ImageTensor { name: "k".into(), dtype: Dtype::U8, shape: vec![1], data };
        let image = StateImage { rows: RowsImage { tensors: vec![tensor], ..RowsImage::default() }, end: None };
        assert!(image.arrived().unwrap_err().contains("closed"));
    }
}
