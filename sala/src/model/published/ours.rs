//! Weights as this program packs them (`model quantize`): the bytes that a device reads, under the name of their form.
//!
//! A weight `[out, in]` is `NAME.int8`, `NAME.int6`, `NAME.int5`, `NAME.int4_2` or `NAME.group4_2`, bytes of shape
//! `[out / 32 rounded up, in / 128, bytes of a unit]`, or `NAME.nvfp4`, which has further data after the units of 32
//! rows: `[out / 32 rounded up, bytes of 32 rows]`. `NAME.int4` and `NAME.group4` are of earlier versions: the same
//! values with rotated words of four-bit values. The layout of a unit is the table in `kernels/packed.cuh`; its size
//! shows the groups of `group4`.

use std::borrow::Cow;
use std::sync::OnceLock;

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
    /// For a weight of an earlier version: its bytes in the present layout, converted on first use.
    turned: Option<OnceLock<Vec<u8>>>,
}

/// Parts of earlier versions, with rotated words of four-bit values.
pub(super) const ROTATED_INT4: &str = "int4";
pub(super) const ROTATED_GROUP4: &str = "group4";

pub(super) const GROUPS: [Form; 3] = [Form::Group4(Group4::G32), Form::Group4(Group4::G64), Form::Group4(Group4::G128)];

/// Whether a tensor has a layout that only earlier versions write.
pub(in crate::model) fn is_of_an_earlier_version(tensor: &str) -> bool {
    tensor.rsplit_once('.').is_some_and(|(_, part)| [ROTATED_INT4, ROTATED_GROUP4].contains(&part))
}

/// `rotated`: the part of an earlier version.
pub(super) fn open<'a>(
    parts: &Parts<'a>,
    forms: &[Form],
    rotated: Option<&'static str>,
) -> Result<Box<dyn Reader<'a> + 'a>> {
    let (out, inner) = (parts.out, parts.inner);
    let now = forms.first().and_then(|form| form.row()).map_or("", |row| row.part);
    let part = rotated.unwrap_or(now);
    let last = parts.shape(part)?.last().copied();
    let form = forms.iter().find(|f| f.stored_shape(out, inner).last().copied() == last);
    let (Some(form), true) = (form, Form::Int8.fits(inner)) else {
        let why = format!("has units of {} bytes for {inner} columns, which no {part} weight has", last.unwrap_or(0));
        return Err(parts.refuse(part, why));
    };
    let (_, bytes) = parts.part(part, &[FileDtype::U8], &form.stored_shape(out, inner))?;
    Ok(Box::new(Ours { part, form: *form, inner, bytes, turned: rotated.map(|_| OnceLock::new()) }))
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
        let turned =
            self.turned.as_ref().map(|turned| turned.get_or_init(|| forms::from_rotated(self.form, self.bytes)));
        forms::values(self.form, self.inner, turned.map_or(self.bytes, Vec::as_slice), row, dst);
    }

    fn own(&self) -> Option<(Form, bool)> {
        Some((self.form, true))
    }

    fn packed(&self) -> Option<Cow<'a, [u8]>> {
        Some(match self.turned {
            Some(_) => Cow::Owned(forms::from_rotated(self.form, self.bytes)),
            None => Cow::Borrowed(self.bytes),
        })
    }
}
