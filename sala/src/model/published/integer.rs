//! Integers of 4 and 8 bits with a scale and an offset per group of columns: GPTQ, AWQ, compressed-tensors, MLX.

use std::borrow::Cow;

use safetensors::Dtype as FileDtype;

use super::parts::{Parts, Scales, word};
use super::{Computed, Reader};
use crate::backend::Form;
use crate::backend::forms::{Group4, IntegerRows, Packed};
use crate::model::Result;

/// Nibble of a word that holds row j of its eight rows: the inverse of AWQ's order.
const AWQ_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Storage order of the integers of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// `[in·bits/32, out]` words; values of a word are neighbours along a row (GPTQ).
    WordsDown,
    /// `[out, in·bits/32]` words; values of a word are neighbours along a row.
    WordsAcross,
    /// `[in, out·bits/32]` words; values of a word are rows, in AWQ's order.
    Awq,
    /// `[out, in]` signed bytes.
    Bytes,
}

/// Subtracted from `q`, or added to `scale · q`.
enum Offset<'a> {
    Middle,
    /// Integer zero points, `[groups, out·bits/32]` words; GPTQ's first version stores one less, wrapped.
    Gptq {
        words: &'a [u8],
        adds_one: bool,
        symmetric: bool,
    },
    /// The same in AWQ's order.
    Awq {
        words: &'a [u8],
    },
    /// `[out·bits/32, groups]` words.
    PackedDown {
        words: &'a [u8],
    },
    /// `[out, groups]` signed bytes, or one for all; the middle is 0.
    Bytes {
        bytes: &'a [u8],
    },
    /// Added to `scale · q`, `[out, groups]` (MLX).
    Bias(Scales<'a>),
}

struct Integer<'a> {
    out: usize,
    inner: usize,
    bits: usize,
    order: Order,
    values: &'a [u8],
    scales: Scales<'a>,
    groups: usize,
    columns: usize,
    offset: Offset<'a>,
    /// Group of each column if they are not in order: name of the part, and i32 values.
    index: Option<(&'static str, &'a [u8])>,
}

/// Bits of a value, given that `words` words hold `inner` of them.
fn bits(parts: &Parts<'_>, part: &str, words: usize) -> Result<usize> {
    // Checked: in a tensor without values a side may have any length.
    match [4, 8].into_iter().find(|b| words.checked_mul(32) == Some(parts.inner * b)) {
        Some(bits) => Ok(bits),
        None => {
            let why = format!("has {words} words for {} columns; 4 or 8 bits a value are read", parts.inner);
            Err(parts.refuse(part, why))
        }
    }
}

const UNUSED_MAY_BE: &str = "weight_g_idx";

/// `g_idx`; `None` if it is absent, unused or the plain order.
fn index<'a>(parts: &Parts<'a>, part: &'static str, columns: usize) -> Result<Option<(&'static str, &'a [u8])>> {
    if !parts.has(part) {
        return Ok(None);
    }
    let (_, bytes) = parts.part(part, &[FileDtype::I32], &[parts.inner])?;
    let in_order = (0..parts.inner).all(|k| word(bytes, k) as usize == k / columns);
    // compressed-tensors fills an unused index with -1.
    let unused = part == UNUSED_MAY_BE && (0..parts.inner).all(|k| word(bytes, k) == u32::MAX);
    Ok((!in_order && !unused).then_some((part, bytes)))
}

/// `qweight`, `qzeros`, `scales`, `g_idx`.
pub(super) fn gptq<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let out = parts.out;
    let rows = parts.shape("qweight")?.first().copied().unwrap_or(0);
    let bits = bits(parts, "qweight", rows)?;
    let (_, values) = parts.part("qweight", &[FileDtype::I32], &[rows, out])?;
    let groups = parts.shape("scales")?.first().copied().unwrap_or(0);
    let columns = parts.columns("scales", groups)?;
    let scales = parts.scales("scales", &[groups, out])?;
    let (_, words) = parts.part("qzeros", &[FileDtype::I32], &[groups, out.div_ceil(32 / bits)])?;
    // The stored value identifies symmetric zero points: some tools write version 2 without declaring it.
    let (middle, first) = (1u32 << (bits - 1), word(words, 0) & ((1 << bits) - 1));
    let (symmetric, v2) = parts.format().map_or((true, false), |f| (f.symmetric, f.gptq_v2));
    let adds_one = match (symmetric, first) {
        (true, z) if z == middle - 1 => true,
        (true, z) if z == middle => false,
        (true, z) => {
            let why = format!("says zero point {z} where config.json says symmetric ({} or {middle})", middle - 1);
            return Err(parts.refuse("qzeros", why));
        }
        (false, _) => !v2,
    };
    let offset = Offset::Gptq { words, adds_one, symmetric };
    let index = index(parts, "g_idx", columns)?;
    let inner = parts.inner;
    Ok(Box::new(Integer { out, inner, bits, order: Order::WordsDown, values, scales, groups, columns, offset, index }))
}

/// `qweight`, `qzeros`, `scales`.
pub(super) fn awq<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    if !out.is_multiple_of(8) {
        return Err(parts.refuse("qweight", format!("words of 8 rows do not divide {out} rows")));
    }
    let (_, values) = parts.part("qweight", &[FileDtype::I32], &[inner, out / 8])?;
    let groups = parts.shape("scales")?.first().copied().unwrap_or(0);
    let columns = parts.columns("scales", groups)?;
    let scales = parts.scales("scales", &[groups, out])?;
    let (_, words) = parts.part("qzeros", &[FileDtype::I32], &[groups, out / 8])?;
    let (order, offset, bits, index) = (Order::Awq, Offset::Awq { words }, 4, None);
    Ok(Box::new(Integer { out, inner, bits, order, values, scales, groups, columns, offset, index }))
}

/// `weight_packed`, `weight_scale`, `weight_shape`, `weight_zero_point`, `weight_g_idx`.
pub(super) fn pack_quantized<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    if parts.has("weight_shape") {
        let (_, bytes) = parts.part("weight_shape", &[FileDtype::I64], &[2])?;
        let found: Vec<i64> = bytes.chunks_exact(8).filter_map(|b| b.try_into().ok().map(i64::from_le_bytes)).collect();
        if found != [out as i64, inner as i64] {
            return Err(parts.refuse("weight_shape", format!("says {found:?}, config.json asks for [{out}, {inner}]")));
        }
    }
    let across = parts.shape("weight_packed")?.get(1).copied().unwrap_or(0);
    let bits = bits(parts, "weight_packed", across)?;
    let (_, values) = parts.part("weight_packed", &[FileDtype::I32], &[out, across])?;
    let (groups, shape) = groups(parts, "weight_scale")?;
    let columns = parts.columns("weight_scale", groups)?;
    let scales = parts.scales("weight_scale", &shape)?;
    let offset = zero_point(parts, bits, groups)?;
    let index = index(parts, UNUSED_MAY_BE, columns)?;
    let order = Order::WordsAcross;
    Ok(Box::new(Integer { out, inner, bits, order, values, scales, groups, columns, offset, index }))
}

/// compressed-tensors: groups of a row, and the shape of the scales. One number (`strategy: tensor`) covers all rows.
fn groups(parts: &Parts<'_>, part: &str) -> Result<(usize, Vec<usize>)> {
    Ok(match parts.shape(part)? {
        one @ ([] | [1] | [1, 1]) => (1, one.to_vec()),
        [_] => (1, vec![parts.out, 1]),
        more => {
            let groups = more.get(1).copied().unwrap_or(0);
            (groups, vec![parts.out, groups])
        }
    })
}

fn zero_point<'a>(parts: &Parts<'a>, bits: usize, groups: usize) -> Result<Offset<'a>> {
    const PART: &str = "weight_zero_point";
    if !parts.has(PART) {
        return Ok(Offset::Middle);
    }
    if parts.tensors.raw(&parts.full(PART))?.0 == FileDtype::I8 {
        let shape = match parts.shape(PART)? {
            one @ ([] | [1] | [1, 1]) if groups == 1 => one.to_vec(),
            _ => vec![parts.out, groups],
        };
        let (_, bytes) = parts.part(PART, &[FileDtype::I8], &shape)?;
        return Ok(Offset::Bytes { bytes });
    }
    let (_, words) = parts.part(PART, &[FileDtype::I32], &[parts.out.div_ceil(32 / bits), groups])?;
    Ok(Offset::PackedDown { words })
}

/// `weight` as signed bytes, `weight_scale` per group, per row or for the whole.
pub(super) fn int_quantized<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let (_, values) = parts.part("weight", &[FileDtype::I8], &[out, inner])?;
    let (groups, shape) = groups(parts, "weight_scale")?;
    let columns = parts.columns("weight_scale", groups)?;
    let scales = parts.scales("weight_scale", &shape)?;
    let offset = zero_point(parts, 8, groups)?;
    let order = Order::Bytes;
    Ok(Box::new(Integer { out, inner, bits: 8, order, values, scales, groups, columns, offset, index: None }))
}

/// `weight`, `scales`, `biases`.
pub(super) fn mlx<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let across = parts.shape("weight")?.get(1).copied().unwrap_or(0);
    let bits = bits(parts, "weight", across)?;
    let (_, values) = parts.part("weight", &[FileDtype::U32], &[out, across])?;
    let groups = parts.shape("scales")?.get(1).copied().unwrap_or(0);
    let columns = parts.columns("scales", groups)?;
    let scales = parts.scales("scales", &[out, groups])?;
    let offset = Offset::Bias(parts.scales("biases", &[out, groups])?);
    let order = Order::WordsAcross;
    Ok(Box::new(Integer { out, inner, bits, order, values, scales, groups, columns, offset, index: None }))
}

impl Integer<'_> {
    /// `q` as stored, from 0.
    fn stored(&self, row: usize, column: usize) -> u32 {
        let (per, mask) = (32 / self.bits, (1u32 << self.bits) - 1);
        let (at, place) = match self.order {
            Order::WordsDown => (column / per * self.out + row, column % per),
            Order::WordsAcross => (row * (self.inner / per) + column / per, column % per),
            Order::Awq => (column * (self.out / 8) + row / 8, AWQ_NIBBLE.get(row % 8).copied().unwrap_or(0)),
            Order::Bytes => {
                let byte = self.values.get(row * self.inner + column).copied().unwrap_or(0);
                return u32::from(byte ^ 0x80);
            }
        };
        word(self.values, at) >> (place * self.bits) & mask
    }

    fn group(&self, column: usize) -> usize {
        self.index.map_or(column / self.columns.max(1), |(_, index)| word(index, column) as usize)
    }

    fn scale_of(&self, row: usize, group: usize) -> f32 {
        match self.order {
            Order::WordsDown | Order::Awq => self.scales.get(group * self.out + row),
            Order::WordsAcross | Order::Bytes if self.scales.len() == 1 => self.scales.get(0),
            Order::WordsAcross | Order::Bytes => self.scales.get(row * self.groups + group),
        }
    }

    fn zero_of(&self, row: usize, group: usize) -> i32 {
        let (per, mask) = (32 / self.bits, (1u32 << self.bits) - 1);
        let middle = 1i32 << (self.bits - 1);
        let zero = match &self.offset {
            Offset::Middle => return middle,
            Offset::Bias(_) => return 0,
            Offset::Bytes { bytes } => {
                let at = if bytes.len() == 1 { 0 } else { row * self.groups + group };
                return middle + bytes.get(at).map_or(0, |b| i32::from(*b as i8));
            }
            Offset::Gptq { words, adds_one, .. } => {
                let word = word(words, group * self.out.div_ceil(per) + row / per);
                (word >> (row % per * self.bits)).wrapping_add(u32::from(*adds_one)) & mask
            }
            Offset::Awq { words } => {
                let place = AWQ_NIBBLE.get(row % 8).copied().unwrap_or(0);
                word(words, group * (self.out / 8) + row / 8) >> (place * 4) & mask
            }
            Offset::PackedDown { words } => {
                word(words, row / per * self.groups + group) >> (row % per * self.bits) & mask
            }
        };
        zero as i32
    }

    /// The first row and group with a zero point off the middle of the range.
    fn off_the_middle(&self) -> Option<(usize, usize)> {
        let middle = 1i32 << (self.bits - 1);
        let mut places = (0..self.groups).flat_map(|group| (0..self.out).map(move |row| (row, group)));
        places.find(|(row, group)| self.zero_of(*row, *group) != middle)
    }

    fn own_form(&self) -> Option<Form> {
        if self.index.is_some() || matches!(self.offset, Offset::Bias(_)) || !Form::Int8.fits(self.inner) {
            return None;
        }
        match (self.bits, Group4::of(self.columns)?) {
            (4, group) => Some(Form::Group4(group)),
            // `q − zero` of every value is a signed byte.
            (_, Group4::G128) if matches!(self.offset, Offset::Middle) || self.off_the_middle().is_none() => {
                Some(Form::Int8)
            }
            _ => None,
        }
    }
}

impl<'a> Reader<'a> for Integer<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.scales.check()?;
        match &self.offset {
            Offset::Bias(biases) => biases.check()?,
            Offset::Bytes { .. } if self.bits < 8 => {
                let middle = 1i32 << (self.bits - 1);
                let zeros =
                    (0..self.out * self.groups).map(|i| self.zero_of(i / self.groups, i % self.groups) - middle);
                if let Some(wrong) = zeros.into_iter().find(|z| !(-middle..middle).contains(z)) {
                    let (least, most, bits) = (-middle, middle - 1, self.bits);
                    let why = format!("holds zero point {wrong}, outside of {least}..={most} of {bits} bits");
                    return Err(("weight_zero_point", why));
                }
            }
            Offset::Gptq { symmetric: true, .. } => {
                if let Some((row, group)) = self.off_the_middle() {
                    let (zero, middle) = (self.zero_of(row, group), 1i32 << (self.bits - 1));
                    let why = format!(
                        "means zero point {zero} in row {row}, group {group}; config.json says symmetric ({middle})"
                    );
                    return Err(("qzeros", why));
                }
            }
            _ => {}
        }
        if let Some((part, _)) = self.index {
            let mut counts = vec![0usize; self.groups];
            for column in 0..self.inner {
                let group = self.group(column);
                match counts.get_mut(group) {
                    Some(count) => *count += 1,
                    None => return Err((part, format!("names group {group} of {} for column {column}", self.groups))),
                }
            }
            if let Some(group) = counts.iter().position(|n| *n != self.columns) {
                let n = counts.get(group).copied().unwrap_or(0);
                return Err((part, format!("gives group {group} {n} columns, the others have {}", self.columns)));
            }
        }
        Ok(())
    }

    fn computed(&self) -> Computed {
        Computed::of(self.scales.dtype)
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        let computed = self.computed();
        let (mut last, mut scale, mut zero, mut bias) = (usize::MAX, 0f32, 0i32, None);
        for (column, v) in dst.iter_mut().enumerate() {
            let group = self.group(column);
            if group != last {
                (last, scale, zero) = (group, self.scale_of(row, group), self.zero_of(row, group));
                bias = match &self.offset {
                    Offset::Bias(biases) => Some(biases.get(row * self.groups + group)),
                    _ => None,
                };
            }
            let whole = (self.stored(row, column) as i32 - zero) as f32;
            *v = match bias {
                None => computed.round(whole * scale),
                Some(bias) => computed.round(computed.round(whole * scale) + bias),
            };
        }
    }

    fn own(&self) -> Option<(Form, bool)> {
        // The device multiplies with bf16 scales and rounds to bf16, like libraries with bf16 scales.
        Some((self.own_form()?, self.computed() == Computed::Bf16))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        let packed = match self.own_form()? {
            Form::Group4(group) => Packed::group4(group, self.out, self.inner, self)?,
            Form::Int8 => Packed::int8(self.out, self.inner, self)?,
            _ => return None,
        };
        Some(Cow::Owned(packed.into_bytes()))
    }
}

impl IntegerRows for Integer<'_> {
    fn quantised(&self, row: usize, column: usize) -> u32 {
        self.stored(row, column)
    }

    fn eight(&self, row: usize, n: usize) -> u32 {
        match (self.order, self.bits) {
            (Order::WordsDown, 4) => word(self.values, n * self.out + row),
            (Order::WordsAcross, 4) => word(self.values, row * (self.inner / 8) + n),
            _ => self.eight_singly(row, n),
        }
    }

    fn scale(&self, row: usize, column: usize) -> (f32, u32) {
        let group = self.group(column);
        (self.scale_of(row, group), self.zero_of(row, group) as u32)
    }
}
