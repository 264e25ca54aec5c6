//! Frames on a local socket: a JSON head and the raw bytes of arrays after it.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | length of the head, u32 little-endian |
//! | 4 | number of arrays, u32 |
//! | 8 × arrays | length of each, u64 |
//! | head | JSON |
//! | rest | the arrays, one after the other |
//!
//! Lengths are limited before use, and memory grows with the bytes that arrive.

use std::io::{self, Read, Write};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a head: the tokens of the longest context take a tenth.
const HEAD: u32 = 256 << 20;
const ARRAYS: u32 = 1 << 16;
const ARRAY: u64 = 64 << 30;

pub(super) type Blob = Arc<Vec<u8>>;

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(super) fn send<T: Serialize>(to: &mut impl Write, head: &T, blobs: &[Blob]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let length = u32::try_from(head.len()).ok().filter(|n| *n <= HEAD);
    let length = length.ok_or_else(|| wrong(format!("a message of {} bytes", head.len())))?;
    let count = u32::try_from(blobs.len()).map_err(|e| wrong(e.to_string()))?;
    let mut start = Vec::with_capacity(8 + 8 * blobs.len() + head.len());
    start.extend_from_slice(&length.to_le_bytes());
    start.extend_from_slice(&count.to_le_bytes());
    blobs.iter().for_each(|blob| start.extend_from_slice(&(blob.len() as u64).to_le_bytes()));
    start.extend_from_slice(&head);
    to.write_all(&start)?;
    blobs.iter().try_for_each(|blob| to.write_all(blob))
}

fn bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn word<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut word = [0; N];
    from.read_exact(&mut word)?;
    Ok(word)
}

/// Reads a frame; `None` if the other side has ended between two frames.
///
/// # Errors
/// The other side ended inside a frame, or sent something else.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(T, Vec<Blob>)>> {
    let mut first = [0; 1];
    if from.read(&mut first)? == 0 {
        return Ok(None);
    }
    let [b, c, d] = word(from)?;
    let (length, count) = (u32::from_le_bytes([first[0], b, c, d]), u32::from_le_bytes(word(from)?));
    if length > HEAD || count > ARRAYS {
        return Err(wrong(format!("a message of {length} bytes with {count} arrays")));
    }
    let lengths: Vec<u64> = (0..count).map(|_| Ok(u64::from_le_bytes(word(from)?))).collect::<io::Result<_>>()?;
    if let Some(long) = lengths.iter().find(|n| **n > ARRAY) {
        return Err(wrong(format!("an array of {long} bytes")));
    }
    let head = serde_json::from_slice(&bytes(from, u64::from(length))?)?;
    let blobs = lengths.into_iter().map(|n| bytes(from, n).map(Arc::new)).collect::<io::Result<_>>()?;
    Ok(Some((head, blobs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_as_sent_and_an_end_between_two_differs_from_one_inside() {
        let blobs = vec![Arc::new(vec![1, 2, 3]), Arc::new(Vec::new())];
        let mut wire = Vec::new();
        send(&mut wire, &"head", &blobs).unwrap();
        let mut from = wire.as_slice();
        assert_eq!(receive::<String>(&mut from).unwrap(), Some(("head".to_owned(), blobs)));
        assert_eq!(receive::<String>(&mut from).unwrap(), None);
        for cut in 1..wire.len() {
            let error = receive::<String>(&mut &wire[..cut]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        for odd in [[0xff; 16], [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(receive::<String>(&mut odd.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let mut long = vec![2, 0, 0, 0, 1, 0, 0, 0];
        long.extend((ARRAY + 1).to_le_bytes());
        assert_eq!(receive::<String>(&mut long.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut short = vec![2, 0, 0, 0, 1, 0, 0, 0];
        short.extend(ARRAY.to_le_bytes());
        short.extend(b"{}x");
        assert_eq!(
            receive::<serde_json::Value>(&mut short.as_slice()).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
