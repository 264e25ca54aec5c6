//! Statistics of a calibration, kept in the destination folder until packing is complete, so that a stopped run can
//! continue.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::at;
use super::write::{Made, write_tensors};
use crate::backend::forms::UNIT_COLUMNS;
use crate::core::spec::ModelSpec;
use crate::model::calibrate::{BLOCK, Moments, Statistics};
use crate::model::seal::{MADE_FROM, header};
use crate::model::{Result, Tensors};

pub(super) const STATISTICS: &str = "calibration.safetensors";

impl Statistics {
    pub fn save(&self, folder: &Path, id: &str) -> Result<()> {
        let path = folder.join(STATISTICS);
        let made = self.named().map(|(name, Moments { blocks })| {
            let shape = vec![blocks.len() / BLOCK, UNIT_COLUMNS, UNIT_COLUMNS];
            Made { name, dtype: safetensors::Dtype::F32, shape, bytes: Cow::Borrowed(bytemuck::cast_slice(blocks)) }
        });
        std::fs::create_dir_all(folder).map_err(at(&path))?;
        let metadata = HashMap::from([(MADE_FROM.to_owned(), id.to_owned())]);
        write_tensors(&path, &made.collect::<Vec<_>>(), metadata).map(drop)
    }

    /// The statistics of a stopped run in this folder; `None` unless they are of the same weights and text.
    pub fn kept(folder: &Path, id: &str, spec: &ModelSpec) -> Option<Statistics> {
        let path = folder.join(STATISTICS);
        let head = header(&path)?;
        (head.get(MADE_FROM)?.as_str()? == id).then_some(())?;
        let file = Tensors::open_files(std::slice::from_ref(&path)).ok()?;
        let mut kept = Statistics::new(spec);
        let names: Vec<String> = kept.named().map(|(name, _)| name).collect();
        let all = kept.layers.iter_mut().flatten().chain(std::iter::once(&mut kept.head));
        for (name, moments) in names.iter().zip(all) {
            let (dtype, _, bytes) = file.raw(name).ok()?;
            let fits = dtype == safetensors::Dtype::F32 && bytes.len() == moments.blocks.len() * size_of::<f32>();
            fits.then_some(())?;
            let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            moments.blocks.iter_mut().zip(values).for_each(|(to, v)| *to = v);
        }
        Some(kept)
    }

    pub fn forget(folder: &Path) {
        // A file that remains takes room and does no harm: the index does not name it.
        let _ = std::fs::remove_file(folder.join(STATISTICS));
    }
}
