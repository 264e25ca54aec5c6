//! The tensors of one packed weight, each checked on access.

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype as FileDtype;

use super::super::format::Format;
use super::super::{ModelError, Result, Tensors};
use super::e4m3;

pub(super) struct Parts<'a> {
    pub(super) tensors: &'a Tensors,
    /// Without `.weight`.
    pub(super) name: String,
    pub(super) out: usize,
    pub(super) inner: usize,
    pub(super) layout: &'static str,
}

impl<'a> Parts<'a> {
    pub(super) fn full(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    pub(super) fn refuse(&self, part: &str, why: String) -> ModelError {
        ModelError::Packed { name: self.full(part), why }
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.tensors.contains(&self.full(part))
    }

    pub(super) fn format(&self) -> Option<&'a Format> {
        self.tensors.format()
    }

    pub(super) fn shape(&self, part: &str) -> Result<&'a [usize]> {
        Ok(self.tensors.raw(&self.full(part))?.1)
    }

    /// A tensor of one of these types and exactly this shape.
    pub(super) fn part(&self, part: &str, types: &[FileDtype], shape: &[usize]) -> Result<(FileDtype, &'a [u8])> {
        let (dtype, found, bytes) = self.tensors.raw(&self.full(part))?;
        if found != shape {
            let Parts { layout, out, inner, .. } = self;
            let why = format!("has shape {found:?}; {layout} of a [{out}, {inner}] weight has {shape:?} here");
            return Err(self.refuse(part, why));
        }
        if !types.contains(&dtype) {
            return Err(self.refuse(part, format!("holds {dtype:?}; {} has {types:?} here", self.layout)));
        }
        Ok((dtype, bytes))
    }

    pub(super) fn scales(&self, part: &'static str, shape: &[usize]) -> Result<Scales<'a>> {
        let types = [FileDtype::F16, FileDtype::BF16, FileDtype::F32, FileDtype::F8_E4M3];
        let (dtype, bytes) = self.part(part, &types, shape)?;
        Ok(Scales { part, dtype, bytes })
    }

    pub(super) fn scalar(&self, part: &'static str) -> Result<f32> {
        let shape = self.shape(part)?.to_vec();
        if shape.iter().product::<usize>() != 1 {
            return Err(self.refuse(part, format!("has shape {shape:?}; it should be one number")));
        }
        let scales = self.scales(part, &shape)?;
        scales.check().map_err(|(part, why)| self.refuse(part, why))?;
        Ok(scales.get(0))
    }

    /// Columns of each of `groups` equal groups.
    pub(super) fn columns(&self, part: &str, groups: usize) -> Result<usize> {
        if groups > 0 && self.inner.is_multiple_of(groups) {
            return Ok(self.inner / groups);
        }
        Err(self.refuse(part, format!("has {groups} groups, which do not divide {} columns", self.inner)))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    pub(super) part: &'static str,
    pub(super) dtype: FileDtype,
    pub(super) bytes: &'a [u8],
}

impl Scales<'_> {
    pub(super) fn get(&self, i: usize) -> f32 {
        let two = || self.bytes.get(2 * i..2 * i + 2).and_then(|b| b.try_into().ok());
        match self.dtype {
            FileDtype::F16 => two().map_or(f32::NAN, |b| f16::from_le_bytes(b).to_f32()),
            FileDtype::BF16 => two().map_or(f32::NAN, |b| bf16::from_le_bytes(b).to_f32()),
            FileDtype::F8_E4M3 => self.bytes.get(i).map_or(f32::NAN, |b| e4m3(*b)),
            _ => {
                let four = self.bytes.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok());
                four.map_or(f32::NAN, f32::from_le_bytes)
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self.dtype {
            FileDtype::F16 | FileDtype::BF16 => self.bytes.len() / 2,
            FileDtype::F8_E4M3 => self.bytes.len(),
            _ => self.bytes.len() / 4,
        }
    }

    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let bad = match self.dtype {
            FileDtype::F8_E4M3 => self.bytes.par_iter().position_first(|b| b & 0x7f == 0x7f),
            _ => (0..self.len()).find(|i| !self.get(*i).is_finite()),
        };
        match bad {
            None => Ok(()),
            Some(i) => {
                Err((self.part, format!("holds a scale that is not finite (number {i}); the folder is damaged")))
            }
        }
    }
}

pub(super) fn word(bytes: &[u8], i: usize) -> u32 {
    bytes.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
