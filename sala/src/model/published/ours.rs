//! Weights as this program packs them (`model quantize`): the bytes that a device reads, under the name of their form.
//!
//! A weight `[out, in]` is `NAME.int8`, `NAME.int6`, `NAME.int5`, `NAME.int4_2` or `NAME.group4_2`, bytes of shape
//! `[out / 32 rounded up, in / 128, bytes of a unit]`, or `NAME.nvfp4`, which has further data after the units of 32
//! rows: `[out / 32 rounded up, bytes of 32 rows]`. The layout of a unit is the table in `kernels/packed.cuh`; its size
//! shows the groups of `group4`. `NAME.int4` and `NAME.group4` are of earlier versions, with another order of bits.

use std::borrow::Cow;

use safetensors::Dtype as FileDtype;

use super::{Parts, Reader};
use crate::backend::Form;
use crate::backend::forms::{self, Group4};
use crate::model::Result;

struct Ours<'a> {
    part: &'static str,
    form: Form,
    inner: usize,
    bytes: &'a [u8],
}

/// Parts that only earlier versions wrote.
pub(super) const EARLIER: [&str; 2] = ["int4", "group4"];

pub(super) const GROUPS: [Form; 3] = [Form::Group4(Group4::G32), Form::Group4(Group4::G64), Form::Group4(Group4::G128)];

/// Whether a tensor has a layout that only earlier versions write.
pub(in crate::model) fn is_of_an_earlier_version(tensor: &str) -> bool {
    tensor.rsplit_once('.').is_some_and(|(_, part)| EARLIER.contains(&part))
}

pub(super) fn refuse_earlier<'a>(parts: &Parts<'a>) -> Result<Box<dyn Reader<'a> + 'a>> {
    let why =
        "was packed by an earlier version; pack its source again: sala-chat model quantize FOLDER --to 4bit -o NEW";
    Err(parts.refuse(parts.layout, why.to_owned()))
}

pub(super) fn open<'a>(parts: &Parts<'a>, forms: &[Form]) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let part = forms.first().and_then(|form| form.row()).map_or("", |row| row.part);
    let last = parts.shape(part)?.last().copied();
    let form = forms.iter().find(|f| f.stored_shape(out, inner).last().copied() == last);
    let (Some(form), true) = (form, Form::Int8.fits(inner)) else {
        let why = format!("has units of {} bytes for {inner} columns, which no {part} weight has", last.unwrap_or(0));
        return Err(parts.refuse(part, why));
    };
    let (_, bytes) = parts.part(part, &[FileDtype::U8], &form.stored_shape(out, inner))?;
    Ok(Box::new(Ours { part, form: *form, inner, bytes }))
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
