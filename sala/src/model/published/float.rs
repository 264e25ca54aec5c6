//! 4 and 8 bit floating-point weights: NVFP4 and FP8.

use std::borrow::Cow;

use safetensors::Dtype as FileDtype;

use super::parts::{Parts, Scales};
use super::{Computed, Reader, e2m1, e4m3};
use crate::backend::Form;
use crate::backend::forms::{Factor, Nvfp4Rows, Packed};
use crate::model::Result;
use crate::model::format::Family;

const BLOCK: usize = 16;

/// Two values a byte, an e4m3 scale per 16 columns, and one factor for all.
struct Nvfp4<'a> {
    out: usize,
    inner: usize,
    packed: &'a [u8],
    scales: Scales<'a>,
    factor: Factor,
}

/// ModelOpt: `bf16(e2m1 · (e4m3 · factor))`.
pub(super) fn nvfp4_multiplied<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    nvfp4(parts, "weight", "weight_scale_2", Factor::Times)
}

/// compressed-tensors: `bf16(e2m1 · (e4m3 / factor))`.
pub(super) fn nvfp4_divided<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    nvfp4(parts, "weight_packed", "weight_global_scale", Factor::Over)
}

fn nvfp4<'a>(
    parts: &Parts<'a>,
    values: &str,
    factor_part: &'static str,
    kind: fn(f32) -> Factor,
) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    if !inner.is_multiple_of(BLOCK) {
        return Err(parts.refuse(values, format!("blocks of 16 do not divide {inner} columns")));
    }
    let (_, packed) = parts.part(values, &[FileDtype::U8], &[out, inner / 2])?;
    let (dtype, bytes) = parts.part("weight_scale", &[FileDtype::F8_E4M3], &[out, inner / BLOCK])?;
    let factor = parts.scalar(factor_part)?;
    if !kind(factor).is_usable() {
        let why = format!("is {factor:e}; the factor of a weight is positive and leaves its values in range");
        return Err(parts.refuse(factor_part, why));
    }
    let scales = Scales { part: "weight_scale", dtype, bytes };
    Ok(Box::new(Nvfp4 { out, inner, packed, scales, factor: kind(factor) }))
}

impl<'a> Reader<'a> for Nvfp4<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.scales.check()
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        let packed = self.packed.get(row * self.inner / 2..).unwrap_or_default();
        let first = row * self.inner / BLOCK;
        for (block, (dst, packed)) in dst.chunks_mut(BLOCK).zip(packed.chunks(BLOCK / 2)).enumerate() {
            let scale = self.scales.get(first + block);
            let scale = self.factor.applied(scale);
            unpack(packed, scale, dst);
        }
    }

    fn own(&self) -> Option<(Form, bool)> {
        Form::Nvfp4.fits(self.inner).then_some((Form::Nvfp4, true))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        let rows = Nvfp4Rows { values: self.packed, scales: self.scales.bytes, factor: self.factor };
        Packed::nvfp4(self.out, self.inner, rows).map(|packed| Cow::Owned(packed.into_bytes()))
    }
}

/// `bf16(e2m1 · scale)`, the even value in the low half of a byte.
pub(super) fn unpack(packed: &[u8], scale: f32, dst: &mut [f32]) {
    for (pair, byte) in dst.chunks_mut(2).zip(packed) {
        for (v, nibble) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
            *v = Computed::Bf16.round(e2m1(nibble) * scale);
        }
    }
}

/// One byte a value, `e4m3 · scale`; scales of the whole, of rows, or of blocks.
struct Fp8<'a> {
    inner: usize,
    bytes: &'a [u8],
    scales: Scales<'a>,
    block: [usize; 2],
    /// Scales are rounded to this type first.
    scale_type: Computed,
    computed: Computed,
}

pub(super) fn fp8<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let (_, bytes) = parts.part("weight", &[FileDtype::F8_E4M3], &[out, inner])?;
    let part = if parts.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
    let shape = parts.shape(part)?.to_vec();
    let [high, wide] = parts.format().and_then(|f| f.blocks).unwrap_or([128, 128]);
    let block = match shape.as_slice() {
        [] | [1] | [1, 1] => [out, inner],
        [rows] | [rows, 1] if *rows == out => [1, inner],
        [rows, columns] if *rows == out.div_ceil(high) && *columns == inner.div_ceil(wide) => [high, wide],
        other => {
            let why = format!(
                "has shape {other:?}, which is neither one scale, nor one per row, nor one per {high}x{wide} block of [{out}, {inner}]"
            );
            return Err(parts.refuse(part, why));
        }
    };
    let scales = parts.scales(part, &shape)?;
    // compressed-tensors multiplies in the type of the scales, ModelOpt in the model's bf16, DeepSeek's code in f32
    // with rounding afterwards.
    let family = parts.format().map(|format| format.family);
    let (scale_type, computed) = match (family, Computed::of(scales.dtype)) {
        (Some(Family::ModelOpt), _) => (Computed::Bf16, Computed::Bf16),
        (Some(Family::Fp8), Computed::F32) => (Computed::F32, Computed::Bf16),
        (_, scale) => (scale, scale),
    };
    Ok(Box::new(Fp8 { inner, bytes, scales, block, scale_type, computed }))
}

impl<'a> Reader<'a> for Fp8<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.scales.check()?;
        match self.bytes.iter().position(|b| b & 0x7f == 0x7f) {
            None => Ok(()),
            Some(i) => {
                Err(("weight", format!("holds a value that is not a number (number {i}); the folder is damaged")))
            }
        }
    }

    fn computed(&self) -> Computed {
        self.computed
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        let bytes = self.bytes.get(row * self.inner..(row + 1) * self.inner).unwrap_or_default();
        let [high, wide] = self.block.map(|n| n.max(1));
        let first = row / high * self.inner.div_ceil(wide);
        for (i, (dst, bytes)) in dst.chunks_mut(wide).zip(bytes.chunks(wide)).enumerate() {
            let scale = self.scale_type.round(self.scales.get(first + i));
            for (v, byte) in dst.iter_mut().zip(bytes) {
                *v = self.computed.round(e4m3(*byte) * scale);
            }
        }
    }
}
