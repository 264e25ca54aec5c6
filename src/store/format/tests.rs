//! Segment files: any flipped bit is found, older files are read, contradictions are refused.

use super::*;
use crate::store::RealDisk;

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

fn read_rows(path: &Path, id: &SegmentId, root: &[u8; 32]) -> Result<RowsImage, Fault> {
    open(&disk(), path, None, FileKind::Rows, id, root)?.read_rows()
}

fn tensor(name: &str, rows: usize, seed: u8) -> ImageTensor {
    let data = (0..rows * 16).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect::<Vec<u8>>();
    ImageTensor { name: name.into(), dtype: Dtype::Bf16, shape: vec![rows, 2, 4], data: data.into() }
}

#[test]
fn any_flipped_bit_is_found_and_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rows");
    let tensors = [tensor("k.0", 9, 1), tensor("v.0", 9, 2), tensor("k1.0", 1, 3)];
    let order = in_file_order(&tensors);
    assert_eq!(order[0].name, "k1.0");
    let id = SegmentId([5; 32]);
    let head = head(FileKind::Rows, &id, 64, 9, &order).unwrap();
    let mut bytes = head.bytes.clone();
    order.iter().for_each(|t| bytes.extend_from_slice(&t.data));
    assert_eq!((bytes.len() as u64, head.bytes.len() % ALIGN), (head.total_bytes, 3 * 32 % ALIGN));
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_rows(&path, &id, &head.root)
    };
    let whole = read(&bytes).unwrap();
    assert_eq!((whole.start, whole.rows, whole.tensors.len()), (64, 9, 3));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let fault = read(&damaged).expect_err("found");
        assert!(fault.lasting && fault.why.starts_with("damaged: "), "byte {at}: {}", fault.why);
    }
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "cut to {length}");
    }
    // A valid file of another segment is a wrong file.
    std::fs::write(&path, &bytes).unwrap();
    let other = read_rows(&path, &SegmentId([6; 32]), &head.root).unwrap_err();
    assert_eq!(other.why, "damaged: it belongs to another segment");
}

#[test]
fn files_with_longer_chunks_are_read_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rows");
    let old = tensor("k.0", 5000, 1);
    let id = SegmentId([5; 32]);
    // The head of an older file: all of this was one chunk.
    let hash = blake3::hash(&old.data);
    let json = serde_json::json!({
        "__metadata__": {"format": FORMAT, "kind": "rows", "segment": id.hex(), "start": "0", "rows": "5000", "chunk": "1048576"},
        "blake3": {"dtype": "U8", "shape": [1, 32], "data_offsets": [0, 32]},
        "k.0": {"dtype": "BF16", "shape": [5000, 2, 4], "data_offsets": [32, 32 + 80_000]},
    });
    let text = json.to_string();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(hash.as_bytes());
    let root = *blake3::hash(&bytes).as_bytes();
    bytes.extend_from_slice(&old.data);
    std::fs::write(&path, &bytes).unwrap();
    let read = read_rows(&path, &id, &root).unwrap();
    assert_eq!(read.tensors[0].data, old.data);
    let file = open(&disk(), &path, None, FileKind::Rows, &id, &root).unwrap();
    let mut part = vec![0; 1024];
    let place = file.place("k.0").unwrap();
    file.read_into(place, 40_000, &mut part).unwrap();
    assert_eq!(part, old.data[40_000..41_024]);
}

#[test]
fn an_image_that_contradicts_itself_is_refused() {
    let id = SegmentId([0; 32]);
    let mut wrong = tensor("k.0", 4, 0);
    wrong.shape = vec![5, 2, 4];
    assert!(head(FileKind::Rows, &id, 0, 5, &[&wrong]).is_err());
    let twice = tensor("k.0", 4, 0);
    assert!(head(FileKind::Rows, &id, 0, 4, &[&twice, &twice]).is_err());
}
