//! Weights as this program packs them (`model quantize`): the bytes that a device reads, behind the name of their form.
//!
//! A weight `[out, in]` is `NAME.int8`, `NAME.int6`, `NAME.int5`, `NAME.int4_2` or `NAME.group4_2`, bytes of shape `[out / 32 rounded up, in / 128, bytes of a unit]`,
//! or `NAME.nvfp4`, which has something behind the units of 32 rows: `[out / 32 rounded up, bytes of 32 rows]`. `NAME.int4` and `NAME.group4` are of earlier
//! versions, whose words of four-bit values lay rotated; their values are the same.
//! The layout of a unit is the table in `kernels/packed.cuh`; groups of `group4` show in its size.

use std::borrow::Cow;

use safetensors::Dtype as FileDtype;

use super::{Computed, Parts, Reader};
use crate::backend::Form;
use crate::backend::forms::{self, Group4, PAIR_ROWS};
use crate::model::Result;

struct Ours<'a> {
    part: &'static str,
    form: Form,
    inner: usize,
    bytes: &'a [u8],
    /// Its words of four-bit values are rotated, as those of earlier versions were.
    rotated: bool,
}

/// Whether a tensor is a weight as earlier versions packed it, and this one does no more.
pub(in crate::model) fn is_of_an_earlier_version(tensor: &str) -> bool {
    tensor.rsplit_once('.').is_some_and(|(_, part)| [ROTATED_INT4, ROTATED_GROUP4].contains(&part))
}

const ROTATED_INT4: &str = "int4";
const ROTATED_GROUP4: &str = "group4";

/// Forms of groups of 32, 64 and 128 columns.
const GROUPS: [Form; 3] = [Form::Group4(Group4::G32), Form::Group4(Group4::G64), Form::Group4(Group4::G128)];

pub(super) fn int8<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int8", &[Form::Int8], false)
}

pub(super) fn int4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int4_2", &[Form::Int4], false)
}

pub(super) fn rotated_int4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, ROTATED_INT4, &[Form::Int4], true)
}

pub(super) fn int5<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int5", &[Form::Int5], false)
}

pub(super) fn int6<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int6", &[Form::Int6], false)
}

pub(super) fn group4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "group4_2", &GROUPS, false)
}

pub(super) fn rotated_group4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, ROTATED_GROUP4, &GROUPS, true)
}

pub(super) fn nvfp4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "nvfp4", &[Form::Nvfp4], false)
}

fn ours<'a>(parts: &Parts<'a>, part: &'static str, forms: &[Form], rotated: bool) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let last = parts.shape(part)?.last().copied();
    let form = forms.iter().find(|f| f.stored_shape(out, inner).last().copied() == last);
    let (Some(form), true) = (form, Form::Int8.fits(inner)) else {
        let why = format!("has units of {} bytes for {inner} columns, which no {part} weight has", last.unwrap_or(0));
        return Err(parts.refuse(part, why));
    };
    let (_, bytes) = parts.part(part, &[FileDtype::U8], &form.stored_shape(out, inner))?;
    Ok(Box::new(Ours { part, form: *form, inner, bytes, rotated }))
}

impl<'a> Reader<'a> for Ours<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match forms::first_bad_unit(self.form, self.inner, self.bytes) {
            None => Ok(()),
            Some(unit) => Err((
                self.part,
                format!("holds a scale that is not finite, or too large (unit {unit}); the folder is damaged"),
            )),
        }
    }

    fn computed(&self) -> Computed {
        Computed::Bf16
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        if !self.rotated {
            forms::values(self.form, self.inner, self.bytes, row, dst);
            return;
        }
        // Only of the row's pair of tiles.
        let pair = self.form.pair_bytes(self.inner);
        let bytes = self.bytes.get(row / PAIR_ROWS * pair..).and_then(|b| b.get(..pair)).unwrap_or_default();
        forms::values(self.form, self.inner, &forms::from_rotated(self.form, bytes), row % PAIR_ROWS, dst);
    }

    fn own(&self) -> Option<(Form, bool)> {
        Some((self.form, true))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        Some(match self.rotated {
            true => Cow::Owned(forms::from_rotated(self.form, self.bytes)),
            false => Cow::Borrowed(self.bytes),
        })
    }
}
