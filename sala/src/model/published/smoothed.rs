//! Weights with inputs that the library scales before the product (ModelOpt's NVFP4_AWQ): `(x · s) wᵀ = x (w · s)ᵀ`,
//! so a reader of any layout gives its values times the scale of their column. No form of the device has room for such
//! scales: the weight is packed again.
//!
//! ModelOpt multiplies the scales of inputs that follow a norm into the norm and writes no tensor; such weights need
//! no special reader.

use safetensors::Dtype as FileDtype;

use super::parts::{Parts, Scales};
use super::{Computed, Reader};
use crate::model::{ModelError, Result, Tensors, shown};

/// One scale per column, `[in]`.
pub(in crate::model) const INPUT_SCALES: &str = "pre_quant_scale";

/// Common part of the names of SVDQuant's low-rank tensors, with and without the quantizer's name before it.
const LOW_RANK: &str = "svdquant_lora";

struct Smoothed<'a> {
    reader: Box<dyn Reader<'a> + 'a>,
    scales: Scales<'a>,
    columns: Vec<f32>,
}

pub(super) fn with_input_scales<'a>(
    parts: &Parts<'a>,
    reader: Box<dyn Reader<'a> + 'a>,
) -> Result<Box<dyn Reader<'a> + 'a>> {
    if !parts.has(INPUT_SCALES) {
        return Ok(reader);
    }
    let inner = parts.inner;
    let shape = match parts.shape(INPUT_SCALES)? {
        [1, columns] if *columns == inner => vec![1, inner],
        _ => vec![inner],
    };
    let (dtype, bytes) = parts.part(INPUT_SCALES, &[FileDtype::BF16, FileDtype::F16, FileDtype::F32], &shape)?;
    let scales = Scales { part: INPUT_SCALES, dtype, bytes };
    let columns = (0..inner).map(|column| scales.get(column)).collect();
    Ok(Box::new(Smoothed { reader, scales, columns }))
}

impl<'a> Reader<'a> for Smoothed<'a> {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.scales.check()?;
        self.reader.check()
    }

    fn computed(&self) -> Computed {
        // The library rounds inputs, not weights: the product is rounded once, when it is packed.
        Computed::F32
    }

    fn values(&self, row: usize, dst: &mut [f32]) {
        self.reader.values(row, dst);
        dst.iter_mut().zip(&self.columns).for_each(|(v, scale)| *v *= scale);
    }
}

/// Refuses scales of a weight that is not packed: the weight may or may not include them already.
pub(super) fn refuse_plain(tensors: &Tensors, name: &str) -> Result<()> {
    let scales = format!("{name}.{INPUT_SCALES}");
    if !tensors.contains(&scales) || !tensors.contains(&format!("{name}.weight")) {
        return Ok(());
    }
    let why = "is there beside a weight that is not packed: one of the two is of another download".to_owned();
    Err(ModelError::Packed { name: scales, why })
}

/// Refuses files with SVDQuant's low-rank parts: without them every product is wrong.
pub(in crate::model) fn refuse_low_rank(tensors: &Tensors) -> Result<()> {
    match tensors.names().find(|name| name.contains(LOW_RANK)) {
        None => Ok(()),
        Some(name) => {
            let why = "belongs to a low-rank part (SVDQuant), which is not read; take the same model in NVFP4 without it, or unquantised";
            Err(ModelError::Packed { name: shown(name), why: why.to_owned() })
        }
    }
}
