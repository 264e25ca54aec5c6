//! Weights packed by other tools: one reader per layout, which gives exactly the values that the publishing library
//! computes.
//!
//! `config.json` declares the family of a folder ([`Format`]); the tensors of each weight show the rest, so folders
//! that pack only some of their weights need no list of them. A reader's values are bit-equal to the library's own
//! dequantised weight (`tests/fixtures/published`, written by the libraries). Where a form of the device holds those
//! values exactly, the weight is repacked into it directly; else its values are packed like those of a bf16 weight.
//!
//! | file | owns |
//! |---|---|
//! | here | the table of layouts; one weight, its values and its own form |
//! | `parts` | its tensors, checked |
//! | `integer` | 4 and 8 bit integers: GPTQ v1 and v2, AWQ, compressed-tensors, MLX |
//! | `float` | NVFP4 and FP8 |
//! | `mx` | MXFP4 |
//! | `smoothed` | scales of a weight's inputs (ModelOpt's AWQ), and the refusal of unsupported ones |
//! | `ours` | the forms of the device, as `model quantize` writes them |

mod float;
mod integer;
mod mx;
mod ours;
mod parts;
mod smoothed;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype as FileDtype;

pub(super) use ours::is_of_an_earlier_version;
pub(super) use smoothed::{INPUT_SCALES, refuse_low_rank};

use super::Result;
use super::format::Family;
use super::tensors::{LoadedTensor, Tensors};
use crate::backend::Form;
use crate::backend::forms;
pub(super) use crate::backend::forms::e2m1;
pub(super) use crate::backend::fp8::value as e4m3;
use crate::engine::protocol::Dtype;
use parts::Parts;

/// Opens the tensors of one weight, checked by shape and type.
type Open = for<'a> fn(&Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>>;

struct Layout {
    name: &'static str,
    part: &'static str,
    dtype: FileDtype,
    families: &'static [Family],
    /// The type of another part, where two layouts store their values alike.
    companion: Option<(&'static str, FileDtype)>,
    open: Open,
}

impl Layout {
    const fn with(self, part: &'static str, dtype: FileDtype) -> Layout {
        Layout { companion: Some((part, dtype)), ..self }
    }

    fn matches(&self, tensors: &Tensors, name: &str) -> bool {
        let holds = |part: &str, dtype| tensors.raw(&format!("{name}.{part}")).is_ok_and(|found| found.0 == dtype);
        holds(self.part, self.dtype) && self.companion.is_none_or(|(part, dtype)| holds(part, dtype))
    }
}

const fn layout(
    name: &'static str,
    part: &'static str,
    dtype: FileDtype,
    families: &'static [Family],
    open: Open,
) -> Layout {
    Layout { name, part, dtype, families, companion: None, open }
}

const fn own(name: &'static str, part: &'static str, open: Open) -> Layout {
    layout(name, part, FileDtype::U8, &[Family::SalaChat], open)
}

/// Of several that match, the first counts.
const LAYOUTS: &[Layout] = &[
    layout("GPTQ", "qweight", FileDtype::I32, &[Family::Gptq], integer::gptq),
    layout("AWQ", "qweight", FileDtype::I32, &[Family::Awq], integer::awq),
    layout("pack-quantized", "weight_packed", FileDtype::I32, &[Family::CompressedTensors], integer::pack_quantized),
    layout("int-quantized", "weight", FileDtype::I8, &[Family::CompressedTensors], integer::int_quantized),
    layout("MXFP4", "weight_packed", FileDtype::U8, &[Family::CompressedTensors], |parts| {
        mx::mxfp4(parts, "weight_packed", "weight_scale")
    })
    .with("weight_scale", FileDtype::U8),
    layout("MXFP4", "weight", FileDtype::U32, &[Family::Mlx], |parts| mx::mxfp4(parts, "weight", "scales"))
        .with("scales", FileDtype::U8),
    layout("nvfp4-pack-quantized", "weight_packed", FileDtype::U8, &[Family::CompressedTensors], float::nvfp4_divided),
    layout("NVFP4", "weight", FileDtype::U8, &[Family::ModelOpt], float::nvfp4_multiplied),
    layout(
        "FP8",
        "weight",
        FileDtype::F8_E4M3,
        &[Family::Fp8, Family::CompressedTensors, Family::ModelOpt],
        float::fp8,
    ),
    layout("MLX", "weight", FileDtype::U32, &[Family::Mlx], integer::mlx),
    own("int8", "int8", |parts| ours::open(parts, &[Form::Int8])),
    own("int4", "int4_2", |parts| ours::open(parts, &[Form::Int4])),
    own("int5", "int5", |parts| ours::open(parts, &[Form::Int5])),
    own("int6", "int6", |parts| ours::open(parts, &[Form::Int6])),
    own("group4", "group4_2", |parts| ours::open(parts, &ours::GROUPS)),
    own("nvfp4", "nvfp4", |parts| ours::open(parts, &[Form::Nvfp4])),
    own(ours::EARLIER[0], ours::EARLIER[0], ours::refuse_earlier),
    own(ours::EARLIER[1], ours::EARLIER[1], ours::refuse_earlier),
];

const COMPANIONS: &[&str] = &[
    "qzeros",
    "scales",
    "g_idx",
    "biases",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "input_scale",
    "input_global_scale",
    INPUT_SCALES,
];

/// The weight (`….weight`) that a tensor of a packed folder belongs to.
pub(super) fn owner(tensor: &str) -> Option<String> {
    let (base, part) = tensor.rsplit_once('.')?;
    let known = COMPANIONS.contains(&part) || LAYOUTS.iter().any(|l| l.part == part);
    known.then(|| format!("{base}.weight"))
}

impl Tensors {
    /// The packed weight for `….weight`; `None` if it is plain.
    pub(super) fn published(&self, name: &str, shape: &[usize]) -> Result<Option<Weight<'_>>> {
        name.strip_suffix(".weight").map_or(Ok(None), |name| Weight::open(self, name, shape))
    }

    /// A floating-point tensor of exactly this shape; a packed one dequantised as its library does it.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        let Some(weight) = self.published(name, shape)? else { return self.plain(name, shape) };
        self.took(name);
        let (dtype, values) = weight.values()?;
        Ok(LoadedTensor::unpacked(name, shape, dtype, values))
    }

    /// Whether [`Tensors::get`] would succeed, without touching the contents.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        match self.published(name, shape)? {
            Some(_) => Ok(()),
            None => self.check_plain(name, shape),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Computed {
    Bf16,
    F16,
    F32,
}

impl Computed {
    fn of(dtype: FileDtype) -> Computed {
        match dtype {
            FileDtype::BF16 => Computed::Bf16,
            FileDtype::F16 => Computed::F16,
            _ => Computed::F32,
        }
    }

    fn round(self, x: f32) -> f32 {
        match self {
            Computed::Bf16 => bf16::from_f32(x).to_f32(),
            Computed::F16 => f16::from_f32(x).to_f32(),
            Computed::F32 => x,
        }
    }
}

trait Reader<'a>: Sync {
    /// Checks the contents, as opposed to the shapes. The error is (part, reason).
    fn check(&self) -> Result<(), (&'static str, String)>;
    fn computed(&self) -> Computed {
        Computed::Bf16
    }
    /// Row `row`, as the library computes it.
    fn values(&self, row: usize, dst: &mut [f32]);
    /// The form of the device that holds the weight as published, and whether it does so to the bit.
    fn own(&self) -> Option<(Form, bool)> {
        None
    }
    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        None
    }
}

pub(super) struct Weight<'a> {
    parts: Parts<'a>,
    layout: &'static Layout,
    reader: Box<dyn Reader<'a> + 'a>,
}

impl<'a> Weight<'a> {
    /// The weight `name` (without `.weight`) of a folder, if it is packed; `shape` is `[out, in]` by config.json.
    pub(super) fn open(tensors: &'a Tensors, name: &str, shape: &[usize]) -> Result<Option<Weight<'a>>> {
        let [out, inner] = *shape else { return Ok(None) };
        let declares = |layout: &&Layout| tensors.format().is_some_and(|f| layout.families.contains(&f.family));
        let mut matching = LAYOUTS.iter().filter(|layout| layout.matches(tensors, name));
        let any = matching.clone().next();
        let declared = matching.find(declares);
        let Some(layout) = declared.or(any) else {
            smoothed::refuse_plain(tensors, name)?;
            return Ok(None);
        };
        let parts = Parts { tensors, name: name.to_owned(), out, inner, layout: layout.name };
        if declared.is_none() {
            let says = tensors.format().map_or("no packed weights", |f| f.family.name());
            let why = format!("holds {:?} as {} does, but config.json declares {says}", layout.dtype, layout.name);
            return Err(parts.refuse(layout.part, why));
        }
        if layout.part != "weight" && tensors.contains(&format!("{name}.weight")) {
            return Err(parts.refuse(
                "weight",
                format!("is there beside `{}`: one of the two is of another download", layout.part),
            ));
        }
        let reader = smoothed::with_input_scales(&parts, (layout.open)(&parts)?)?;
        Ok(Some(Weight { parts, layout, reader }))
    }

    pub(super) fn layout(&self) -> &'static str {
        self.layout.name
    }

    /// The form of the device that holds it as published, and whether to the bit (else its scales are rounded to
    /// bf16).
    pub(super) fn own(&self) -> Option<(Form, bool)> {
        self.reader.own()
    }

    fn checked(&self) -> Result<()> {
        self.reader.check().map_err(|(part, why)| self.parts.refuse(part, why))
    }

    pub(super) fn packed(&self) -> Result<Cow<'a, [u8]>> {
        self.checked()?;
        let packed = self.packed_unchecked()?;
        // Rounding the file's scales to bf16 can make finite ones infinite; our own folders already hold bf16 scales.
        let ours = self.layout.families == [Family::SalaChat];
        let form = self.own().map(|(form, _)| form).filter(|_| !ours);
        match form.and_then(|form| forms::first_bad_unit(form, self.parts.inner, &packed)) {
            None => Ok(packed),
            Some(unit) => Err(self.parts.refuse(
                self.layout.part,
                format!("has a scale that is too large for bf16 (unit {unit}); the folder is damaged"),
            )),
        }
    }

    /// Like [`Weight::packed`], for a folder that was checked when it was written.
    pub(super) fn packed_unchecked(&self) -> Result<Cow<'a, [u8]>> {
        self.reader.packed().ok_or_else(|| self.parts.refuse(self.layout.part, "has no form of its own".into()))
    }

    /// Every value: bf16 if the library computes bf16, else f32. Row-major, little-endian.
    pub(super) fn values(&self) -> Result<(Dtype, Vec<u8>)> {
        self.checked()?;
        let (inner, computed) = (self.parts.inner, self.reader.computed());
        let dtype = if computed == Computed::Bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let mut data = vec![0u8; self.parts.out * inner * dtype.size()];
        // Several rows at a time: in some layouts neighbouring rows share words.
        const TOGETHER: usize = 32;
        let bad =
            data.par_chunks_mut((TOGETHER * inner * dtype.size()).max(1)).enumerate().find_map_any(|(block, data)| {
                let mut row = vec![0f32; inner];
                for (i, data) in data.chunks_exact_mut((inner * dtype.size()).max(1)).enumerate() {
                    self.reader.values(block * TOGETHER + i, &mut row);
                    if let Some(column) = row.iter().position(|v| !v.is_finite()) {
                        return Some((block * TOGETHER + i, column));
                    }
                    match dtype {
                        Dtype::Bf16 => row.iter().zip(data.chunks_exact_mut(2)).for_each(|(v, to)| {
                            to.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
                        }),
                        _ => row.iter().zip(data.chunks_exact_mut(4)).for_each(|(v, to)| {
                            to.copy_from_slice(&v.to_le_bytes());
                        }),
                    }
                }
                None
            });
        match bad {
            None => Ok((dtype, data)),
            Some((row, column)) => {
                let why = format!(
                    "stands for a value that is not finite (row {row}, column {column}); the folder is damaged"
                );
                Err(self.parts.refuse(self.layout.part, why))
            }
        }
    }
}
