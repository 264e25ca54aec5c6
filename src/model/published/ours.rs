//! Weights as this program packs them (`model quantize`): the bytes that a device reads, behind the name of their form.
//!
//! A weight `[out, in]` is `NAME.int8`, `NAME.int6`, `NAME.int5`, `NAME.int4` or `NAME.group4`, bytes of shape `[out / 32 rounded up, in / 128, bytes of a unit]`, or
//! `NAME.nvfp4`, which has something behind the units of 32 rows: `[out / 32 rounded up, bytes of 32 rows]`.
//! The layout of a unit is the table in `kernels/packed.cuh`; groups of `group4` show in its size.

use std::borrow::Cow;

use safetensors::Dtype as FileDtype;

use super::{Computed, Parts, Reader};
use crate::backend::Form;
use crate::backend::forms::{self, Group4};
use crate::model::Result;

struct Ours<'a> {
    form: Form,
    inner: usize,
    bytes: &'a [u8],
}

pub(super) fn int8<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int8", &[Form::Int8])
}

pub(super) fn int4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int4", &[Form::Int4])
}

pub(super) fn int5<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int5", &[Form::Int5])
}

pub(super) fn int6<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "int6", &[Form::Int6])
}

pub(super) fn group4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "group4", &[Group4::G32, Group4::G64, Group4::G128].map(Form::Group4))
}

pub(super) fn nvfp4<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    ours(parts, "nvfp4", &[Form::Nvfp4])
}

fn ours<'a>(parts: &Parts<'a>, part: &str, forms: &[Form]) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let last = parts.shape(part)?.last().copied();
    let form = forms.iter().find(|f| f.stored_shape(out, inner).last().copied() == last);
    let (Some(form), true) = (form, Form::Int8.fits(inner)) else {
        let why = format!("has units of {} bytes for {inner} columns, which no {part} weight has", last.unwrap_or(0));
        return Err(parts.refuse(part, why));
    };
    let (_, bytes) = parts.part(part, &[FileDtype::U8], &form.stored_shape(out, inner))?;
    Ok(Box::new(Ours { form: *form, inner, bytes }))
}

impl<'a> Reader<'a> for Ours<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match forms::first_bad_unit(self.form, self.inner, self.bytes) {
            None => Ok(()),
            Some(unit) => Err((
                self.form.name(),
                format!("holds a scale that is not finite, or too large (unit {unit}); the folder is damaged"),
            )),
        }
    }

    fn computed(&self) -> Computed {
        Computed::Bf16
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        forms::values(self.form, self.inner, self.bytes, row, dst);
    }

    fn own(&self) -> Option<(Form, bool)> {
        Some((self.form, true))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        Some(Cow::Borrowed(self.bytes))
    }
}
