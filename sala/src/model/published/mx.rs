//! MXFP4 (OCP microscaling): e2m1 values, and a power of two for each 32 columns. compressed-tensors and MLX store the
//! same bytes under names of their own.

use std::borrow::Cow;

use rayon::prelude::*;
use safetensors::Dtype as FileDtype;

use super::Reader;
use super::float::unpack;
use super::parts::Parts;
use crate::backend::Form;
use crate::backend::forms::{Factor, Nvfp4Rows, Packed};
use crate::model::Result;

const BLOCK: usize = 32;
const NOT_A_NUMBER: u8 = 0xff;
/// Exponents of the powers of two that e4m3 holds.
const E4M3_POWERS: [i32; 2] = [-9, 8];

struct Mxfp4<'a> {
    out: usize,
    inner: usize,
    /// Two values per byte, the first in the lower half. `[out, inner / 2]`
    values: &'a [u8],
    scale_part: &'static str,
    /// e8m0: 2^(code - 127). `[out, inner / 32]`
    scales: &'a [u8],
}

/// `values` in bytes or words.
pub(super) fn mxfp4<'a>(parts: &Parts<'a>, values: &str, scale_part: &'static str) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    if !inner.is_multiple_of(BLOCK) {
        return Err(parts.refuse(values, format!("blocks of {BLOCK} do not divide {inner} columns")));
    }
    let each = if parts.tensors.raw(&parts.full(values))?.0 == FileDtype::U32 { 8 } else { 2 };
    let (_, values) = parts.part(values, &[FileDtype::U8, FileDtype::U32], &[out, inner / each])?;
    let (_, scales) = parts.part(scale_part, &[FileDtype::U8], &[out, inner / BLOCK])?;
    Ok(Box::new(Mxfp4 { out, inner, values, scale_part, scales }))
}

fn power_of_two(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        NOT_A_NUMBER => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// e4m3 of 2^exponent; 0 below the smallest.
fn e4m3_power(exponent: i32) -> u8 {
    match exponent {
        -6.. => ((exponent + 7) as u8) << 3,
        -9..=-7 => 1 << (exponent + 9),
        _ => 0,
    }
}

impl Mxfp4<'_> {
    /// The code for the largest e4m3 power, if the others fit below it. Blocks of zeros need no scale.
    fn largest_code(&self) -> Option<u8> {
        let [least, most] = E4M3_POWERS;
        let largest = self.scales.par_iter().copied().max()?;
        let fits = |(code, values): (&u8, &[u8])| {
            i32::from(largest) - i32::from(*code) <= most - least || values.iter().all(|byte| byte & 0x77 == 0)
        };
        let all = self.scales.par_iter().zip(self.values.par_chunks(BLOCK / 2)).all(fits);
        (all && Self::factor(largest).is_some_and(Factor::is_usable)).then_some(largest)
    }

    fn factor(largest: u8) -> Option<Factor> {
        // The factor is a normal number, which every device multiplies with exactly.
        let code = largest.checked_sub(E4M3_POWERS[1] as u8).filter(|code| *code > 0)?;
        Some(Factor::Times(power_of_two(code)))
    }
}

impl<'a> Reader<'a> for Mxfp4<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self.scales.par_iter().position_first(|code| *code == NOT_A_NUMBER) {
            None => Ok(()),
            Some(i) => {
                Err((self.scale_part, format!("holds a scale that is not finite (number {i}); the folder is damaged")))
            }
        }
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        let values = self.values.get(row * self.inner / 2..).unwrap_or_default().chunks(BLOCK / 2);
        let scales = self.scales.get(row * self.inner / BLOCK..).unwrap_or_default();
        for ((dst, bytes), code) in dst.chunks_mut(BLOCK).zip(values).zip(scales) {
            unpack(bytes, power_of_two(*code), dst);
        }
    }

    fn own(&self) -> Option<(Form, bool)> {
        (Form::Nvfp4.fits(self.inner) && self.largest_code().is_some()).then_some((Form::Nvfp4, true))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        let largest = self.largest_code()?;
        let e4m3 = |code: &u8| [e4m3_power(i32::from(*code) - i32::from(largest) + E4M3_POWERS[1]); 2];
        let scales: Vec<u8> = self.scales.par_iter().flat_map_iter(e4m3).collect();
        let rows = Nvfp4Rows { values: self.values, scales: &scales, factor: Self::factor(largest)? };
        Packed::nvfp4(self.out, self.inner, rows).map(|packed| Cow::Owned(packed.into_bytes()))
    }
}
