//! Saved state as it crosses: arrays by name, their bytes behind the line.

use std::io;

use serde::{Deserialize, Serialize};

use crate::client::attach::frame::Blob;
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowsImage, StateImage};

/// A named array of a frame.
#[derive(Debug, Serialize, Deserialize)]
struct Array {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

fn arrays(tensors: Vec<ImageTensor>, blobs: &mut Vec<Blob>) -> Vec<Array> {
    let array = |t: ImageTensor| {
        blobs.push(t.data.shared());
        Array { name: t.name, dtype: t.dtype, shape: t.shape }
    };
    tensors.into_iter().map(array).collect()
}

fn tensors(arrays: Vec<Array>, blobs: &mut impl Iterator<Item = Blob>) -> io::Result<Vec<ImageTensor>> {
    let tensor = |Array { name, dtype, shape }: Array| {
        let data = blobs.next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let values = shape.iter().try_fold(dtype.size(), |n, axis| n.checked_mul(*axis));
        if values != Some(data.len()) {
            let what = format!("{name} of shape {shape:?} in {} bytes", data.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(ImageTensor { name, dtype, shape, data: data.into() })
    };
    arrays.into_iter().map(tensor).collect()
}

/// A [`CheckpointImage`].
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::client::attach) struct Checkpoint {
    position: u64,
    arrays: Vec<Array>,
}

impl Checkpoint {
    pub(in crate::client::attach) fn pack(image: CheckpointImage, blobs: &mut Vec<Blob>) -> Checkpoint {
        Checkpoint { position: image.position, arrays: arrays(image.tensors, blobs) }
    }

    pub(in crate::client::attach) fn unpack(
        self,
        blobs: &mut impl Iterator<Item = Blob>,
    ) -> io::Result<CheckpointImage> {
        Ok(CheckpointImage { position: self.position, tensors: tensors(self.arrays, blobs)? })
    }
}

/// A [`StateImage`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    start: u64,
    rows: u64,
    arrays: Vec<Array>,
    end: Option<Checkpoint>,
}

impl State {
    pub(super) fn pack(image: StateImage, blobs: &mut Vec<Blob>) -> State {
        let StateImage { rows: RowsImage { start, rows, tensors, segment: _ }, end } = image;
        let arrays = arrays(tensors, blobs);
        State { start, rows, arrays, end: end.map(|end| Checkpoint::pack(end, blobs)) }
    }

    pub(super) fn unpack(self, blobs: &mut impl Iterator<Item = Blob>) -> io::Result<StateImage> {
        let tensors = tensors(self.arrays, blobs)?;
        // Of use to the engine alone, and rows go to it as the file they lie in.
        let rows = RowsImage { start: self.start, rows: self.rows, tensors, segment: None };
        Ok(StateImage { rows, end: self.end.map(|end| end.unpack(blobs)).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_another_size_than_its_shape_is_refused() {
        let tensor = |values| ImageTensor {
            name: "a".into(),
            dtype: Dtype::F32,
            shape: vec![values],
            data: vec![0u8; 4].into(),
        };
        let mut blobs = Vec::new();
        let image = CheckpointImage { position: 0, tensors: vec![tensor(2)] };
        let packed = Checkpoint::pack(image, &mut blobs);
        assert_eq!(packed.unpack(&mut blobs.into_iter()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let image = CheckpointImage { position: 0, tensors: vec![tensor(1)] };
        let packed = Checkpoint::pack(image, &mut Vec::new());
        assert!(packed.unpack(&mut std::iter::empty()).is_err());
    }
}
