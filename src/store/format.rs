//! The two files of a segment: `<id>.rows` (KV rows and compressed keys) and `<id>.end` (recurrent state).
//!
//! Both are valid safetensors files, little-endian. Layout:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | header length, u64 |
//! | header | JSON: tensors and `__metadata__` (format, kind, segment, start, rows, chunk), padded with spaces |
//! | 32 × chunks | tensor `blake3` `[chunks, 32]` u8: one BLAKE3 per chunk of each tensor, in file order |
//! | rest | tensors: compressed keys first, so that one short read returns them; then `k.*`, `v.*`; rows in position order |
//!
//! A chunk is `chunk` bytes of one tensor (the last of a tensor may be shorter), so any range of rows can be checked
//! on its own. New files have chunks of [`CHUNK_BYTES`]; older ones had 1 MiB. The database holds the *root*, BLAKE3
//! of everything before the first tensor: it covers the chunk hashes and the header, and those cover the rest.
//!
//! Never decides whether a file should exist; never trusts a length it has not checked.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use safetensors::Dtype as FileDtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::disk::Disk;
use super::segment::SegmentId;
use crate::core::plain_words;
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowsImage};

/// Bytes of a tensor under one checksum, in new files: one block of 64 positions of the 9B model.
pub(super) const CHUNK_BYTES: u64 = 32 << 10;
/// Changes with the layout above.
const FORMAT: &str = "sala-chat segment 1";
const HASH_BYTES: u64 = 32;
/// Tensor data begins at a multiple of this.
const ALIGN: usize = 64;
/// A file with a longer header is not ours.
const MAX_HEADER_BYTES: u64 = 16 << 20;
const CHUNK_RANGE: std::ops::RangeInclusive<u64> = 1 << 10..=64 << 20;
/// Checksums of 512 GiB of tensors.
const MAX_CHECKSUM_BYTES: u64 = 512 << 20;
const CHECKSUMS: &str = "blake3";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKind {
    Rows,
    End,
}

impl FileKind {
    pub(super) fn extension(self) -> &'static str {
        match self {
            FileKind::Rows => "rows",
            FileKind::End => "end",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Completes "state … cannot be used: ".
    pub why: String,
    /// The fault is permanent; false for an I/O error that may pass.
    pub lasting: bool,
}

impl Fault {
    fn damaged(what: &str) -> Fault {
        Fault { why: format!("damaged: {what}"), lasting: true }
    }

    fn io(e: &std::io::Error) -> Fault {
        let (why, lasting) = match e.kind() {
            std::io::ErrorKind::NotFound => ("its file is missing".to_owned(), true),
            std::io::ErrorKind::UnexpectedEof => ("damaged: its file is shorter than it was".to_owned(), true),
            _ => (format!("its file cannot be read ({})", plain_words(e)), false),
        };
        Fault { why, lasting }
    }
}

pub(super) struct Head {
    pub bytes: Vec<u8>,
    pub root: [u8; 32],
    pub total_bytes: u64,
}

#[derive(Debug)]
pub(super) struct TensorPlace {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub offset: u64,
    pub bytes: u64,
    first_chunk: usize,
}

impl TensorPlace {
    pub(super) fn image(&self, data: Vec<u8>) -> ImageTensor {
        ImageTensor { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), data: data.into() }
    }
}

/// A file with a checked head.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub id: SegmentId,
    pub root: [u8; 32],
    pub path: PathBuf,
    pub start: u64,
    pub rows: u64,
    pub tensors: Vec<TensorPlace>,
    disk: Arc<dyn Disk>,
    chunk: u64,
    hashes: Vec<[u8; 32]>,
}

/// Compressed keys first: they are needed before other rows.
pub(super) fn in_file_order(tensors: &[ImageTensor]) -> Vec<&ImageTensor> {
    let mut order: Vec<&ImageTensor> = tensors.iter().collect();
    order.sort_by_key(|t| !t.name.starts_with("k1.") && !t.name.starts_with("k2."));
    order
}

const DTYPES: [(Dtype, FileDtype); 4] = [
    (Dtype::F32, FileDtype::F32),
    (Dtype::Bf16, FileDtype::BF16),
    (Dtype::U32, FileDtype::U32),
    (Dtype::U8, FileDtype::U8),
];

/// Builds the head of a file that holds `tensors` in this order. Errors are phrases: an image that contradicts itself.
pub(super) fn head(
    kind: FileKind,
    id: &SegmentId,
    start: u64,
    rows: u64,
    tensors: &[&ImageTensor],
) -> Result<Head, String> {
    let chunks: u64 = tensors.iter().map(|t| (t.data.len() as u64).div_ceil(CHUNK_BYTES)).sum();
    let mut offset = 0;
    let mut place = |name: &str, dtype: FileDtype, shape: Vec<usize>, bytes: usize| {
        let data_offsets = (offset, offset + bytes);
        offset += bytes;
        (name.to_owned(), TensorInfo { dtype, shape, data_offsets })
    };
    let checksums = (chunks * HASH_BYTES) as usize;
    let mut places = vec![place(CHECKSUMS, FileDtype::U8, vec![chunks as usize, HASH_BYTES as usize], checksums)];
    for t in tensors {
        let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == t.dtype).map_or(FileDtype::U8, |(_, dtype)| *dtype);
        places.push(place(&t.name, dtype, t.shape.clone(), t.data.len()));
    }
    let count = places.len();
    let of = |name: &str, value: String| (name.to_owned(), value);
    let metadata = HashMap::from([
        of("format", FORMAT.into()),
        of("kind", kind.extension().into()),
        of("segment", id.hex()),
        of("start", start.to_string()),
        of("rows", rows.to_string()),
        of("chunk", CHUNK_BYTES.to_string()),
    ]);
    let header = Metadata::new(Some(metadata), places).map_err(|e| e.to_string())?;
    if header.tensors().len() != count {
        return Err("a tensor occurs twice".to_owned());
    }
    let mut json = serde_json::to_value(&header).map_err(|e| e.to_string())?;
    // The same state is the same file.
    json.sort_all_objects();
    let mut text = json.to_string().into_bytes();
    let padded = (8 + text.len()).next_multiple_of(ALIGN) - 8;
    text.resize(padded, b' ');

    let mut bytes = Vec::with_capacity(8 + text.len() + checksums);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    for t in tensors {
        for chunk in t.data.chunks(CHUNK_BYTES as usize) {
            bytes.extend_from_slice(blake3::hash(chunk).as_bytes());
        }
    }
    let root = *blake3::hash(&bytes).as_bytes();
    let total_bytes = (8 + text.len() + header.data_len()) as u64;
    Ok(Head { bytes, root, total_bytes })
}

/// Opens a file, or a part of a larger one (`within`). The contents of that are untrusted: the root proves only that
/// they are complete, not who made them.
pub(super) fn open(
    disk: &Arc<dyn Disk>,
    path: &Path,
    within: Option<Range<u64>>,
    kind: FileKind,
    id: &SegmentId,
    root: &[u8; 32],
) -> Result<OpenFile, Fault> {
    let whole = || disk.look(path).map(|look| 0..look.bytes).map_err(|e| Fault::io(&e));
    let within = within.map_or_else(whole, Ok)?;
    let read = |offset: u64, len: u64| {
        let from =
            within.start.checked_add(offset).filter(|from| from.checked_add(len).is_some_and(|to| to <= within.end));
        let from = from.ok_or_else(|| Fault::io(&std::io::ErrorKind::UnexpectedEof.into()))?;
        disk.read_at(path, from, len).map_err(|e| Fault::io(&e))
    };
    let unreadable = || Fault::damaged("its header is unreadable");
    let length = read(0, 8)?;
    let length = u64::from_le_bytes(length.try_into().map_err(|_| Fault::damaged("no header"))?);
    if length > MAX_HEADER_BYTES {
        return Err(Fault::damaged("its header is not one"));
    }
    let text = read(8, length)?;
    // The tensors follow each other without a gap, and each has the size of its shape.
    let header: Metadata = serde_json::from_slice(&text).map_err(|_| unreadable())?;
    let field = |name: &str| header.metadata().as_ref().and_then(|all| all.get(name)).cloned().unwrap_or_default();
    let data = 8 + length;
    let table = match header.info(CHECKSUMS) {
        Some(TensorInfo { data_offsets: (0, end), .. }) if *end as u64 <= MAX_CHECKSUM_BYTES => *end as u64,
        _ => return Err(Fault::damaged("its checksums are missing")),
    };
    let table_bytes = read(data, table)?;
    let mut hash = blake3::Hasher::new();
    hash.update(&length.to_le_bytes()).update(&text).update(&table_bytes);
    if hash.finalize().as_bytes() != root {
        return Err(Fault::damaged("its header does not match its checksum"));
    }
    // From here on the header is known to be the written one.
    if field("format") != FORMAT {
        return Err(Fault { why: format!("written in another format ({:?})", field("format")), lasting: true });
    }
    if field("segment") != id.hex() || field("kind") != kind.extension() {
        return Err(Fault::damaged("it belongs to another segment"));
    }
    let number = |name: &str| field(name).parse::<u64>().map_err(|_| unreadable());
    let (start, rows) = (number("start")?, number("rows")?);
    let chunk = number("chunk")?;
    if !CHUNK_RANGE.contains(&chunk) || start.checked_add(rows).is_none() {
        return Err(unreadable());
    }

    let hashes: Vec<[u8; 32]> = table_bytes.as_chunks::<32>().0.to_vec();
    let mut tensors = Vec::new();
    let mut first_chunk = 0usize;
    for name in header.offset_keys().into_iter().filter(|name| name != CHECKSUMS) {
        let Some(info) = header.info(&name) else { continue };
        let dtype = DTYPES.iter().find(|(_, dtype)| *dtype == info.dtype).map(|(dtype, _)| *dtype);
        let dtype = dtype.ok_or_else(|| Fault::damaged(&format!("tensor {name} has unknown type {:?}", info.dtype)))?;
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let end = within.start.checked_add(data).and_then(|at| at.checked_add(to)).filter(|end| *end <= within.end);
        let end = end.ok_or_else(|| Fault::io(&std::io::ErrorKind::UnexpectedEof.into()))?;
        let bytes = to - from;
        let shape = info.shape.clone();
        tensors.push(TensorPlace { name, dtype, shape, offset: end - bytes, bytes, first_chunk });
        first_chunk += bytes.div_ceil(chunk) as usize;
    }
    // Every chunk has a checksum, so every byte is covered and the numbers above are bounded by the file's size.
    if first_chunk != hashes.len() {
        return Err(Fault::damaged("its checksums are not for these tensors"));
    }
    let (disk, path) = (Arc::clone(disk), path.to_owned());
    Ok(OpenFile { id: *id, root: *root, path, start, rows, tensors, disk, chunk, hashes })
}

impl OpenFile {
    pub(super) fn place(&self, name: &str) -> Option<&TensorPlace> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Reads checked bytes of a tensor from `at` on: whole chunks directly into place, partial ones through a copy.
    pub(super) fn read_into(&self, place: &TensorPlace, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let end = at.saturating_add(into.len() as u64);
        if end > place.bytes {
            return Err(Fault::damaged("its file is shorter than it was"));
        }
        let first = at / self.chunk;
        let (from, to) = (first * self.chunk, (end.div_ceil(self.chunk) * self.chunk).min(place.bytes));
        let offset = place.offset + from;
        if (from, to) == (at, end) {
            self.disk.read_into(&self.path, offset, into).map_err(|e| Fault::io(&e))?;
            return self.check(place, first, into);
        }
        let chunks = self.disk.read_at(&self.path, offset, to - from).map_err(|e| Fault::io(&e))?;
        self.check(place, first, &chunks)?;
        into.copy_from_slice(chunks.get((at - from) as usize..(end - from) as usize).unwrap_or_default());
        Ok(())
    }

    fn check(&self, place: &TensorPlace, first: u64, data: &[u8]) -> Result<(), Fault> {
        for (i, chunk) in data.chunks(self.chunk as usize).enumerate() {
            let index = place.first_chunk + first as usize + i;
            if self.hashes.get(index).map(|h| h.as_slice()) != Some(blake3::hash(chunk).as_bytes().as_slice()) {
                return Err(Fault::damaged(&format!("part of {} does not match its checksum", place.name)));
            }
        }
        Ok(())
    }

    pub(super) fn read(&self) -> Result<Vec<ImageTensor>, Fault> {
        let tensor = |place: &TensorPlace| {
            // The file is as long as its header says, so this is bounded by the file's size.
            let mut data = vec![0; place.bytes as usize];
            self.read_into(place, 0, &mut data)?;
            Ok(place.image(data))
        };
        self.tensors.par_iter().map(tensor).collect()
    }

    pub(super) fn read_rows(&self) -> Result<RowsImage, Fault> {
        Ok(RowsImage { start: self.start, rows: self.rows, tensors: self.read()?, segment: Some(self.id.0) })
    }

    pub(super) fn read_end(&self) -> Result<CheckpointImage, Fault> {
        Ok(CheckpointImage { position: self.start, tensors: self.read()? })
    }
}

#[cfg(test)]
mod tests;
