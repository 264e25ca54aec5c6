//! Statistics of a calibration, kept in the destination folder until packing is complete, so that a stopped run can
//! continue.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorView;

use super::header::header;
use super::write::write_tensors;
use crate::backend::forms::UNIT_COLUMNS;
use crate::core::spec::ModelSpec;
use crate::model::calibrate::{BLOCK, Statistics};
use crate::model::seal::MADE_FROM;
use crate::model::{ModelError, Result, Tensors};

pub(super) const STATISTICS: &str = "calibration.safetensors";

impl Statistics {
    pub fn save(&self, folder: &Path, id: &str) -> Result<()> {
        let path = folder.join(STATISTICS);
        let at = |cause: std::io::Error| ModelError::Write { path: path.clone(), cause };
        let other = |e: safetensors::SafeTensorError| at(std::io::Error::other(e.to_string()));
        let views = self.named().map(|(name, moments)| {
            let shape = vec![moments.blocks.len() / BLOCK, UNIT_COLUMNS, UNIT_COLUMNS];
            let view = TensorView::new(safetensors::Dtype::F32, shape, bytemuck::cast_slice(&moments.blocks));
            Ok((name, view.map_err(other)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        std::fs::create_dir_all(folder).map_err(at)?;
        write_tensors(&path, views, HashMap::from([(MADE_FROM.to_owned(), id.to_owned())]))?;
        Ok(())
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
