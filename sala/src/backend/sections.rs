//! Sections of a weight: neighbouring rows with their own precision (bf16 or fp8) in prefill.
//!
//! The bits of a section's columns do not depend on the other sections: a pass may leave out columns that nothing
//! reads.

use std::ops::Range;

use super::{Result, internal, invariant};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::Precision;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    pub rows: usize,
    pub precision: Precision,
}

pub fn of_projection(spec: &ModelSpec, mixer: Mixer, precision: Precision) -> Vec<Section> {
    let section = |rows: Range<usize>, precision| Section { rows: rows.len(), precision };
    match mixer {
        // Keys choose blocks, and keys and values are read for the rest of a conversation, so they stay in bf16. They
        // are a section of their own: many passes need nothing else of the last layer.
        Mixer::Sparse => {
            let s = &spec.sparse;
            let all = [
                section(0..s.kv_columns().start, Precision::Bf16),
                section(s.kv_columns(), Precision::Bf16),
                section(s.gate_columns(), precision),
            ];
            all.into_iter().filter(|s| s.rows > 0).collect()
        }
        Mixer::Lightning => vec![section(0..spec.lightning.projection_width(), precision)],
    }
}

/// The rows and precision of `sections`, cut to `only` if given.
pub(super) fn within(sections: &[Section], only: Option<&Range<usize>>) -> Result<Vec<(Range<usize>, Precision)>> {
    let mut end = 0;
    let mut found = Vec::with_capacity(sections.len());
    for Section { rows, precision } in sections {
        let section = end..end + rows;
        end = section.end;
        match only {
            Some(only) if section.end <= only.start || only.end <= section.start => {}
            Some(only) if section.start < only.start || only.end < section.end => {
                return Err(internal("gemm", "a part of a section"));
            }
            Some(_) | None => found.push((section, *precision)),
        }
    }
    Ok(found)
}

pub(super) fn check(sections: &[Section], out: usize) -> Result<()> {
    let rows: usize = sections.iter().map(|s| s.rows).sum();
    invariant(rows == out, "gemm", "sections that are not the whole weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_taken_whole_or_not_at_all() {
        let spec = ModelSpec::from_json(include_str!("../model/config_9b.json")).unwrap();
        let all = of_projection(&spec, Mixer::Sparse, Precision::Fp8);
        let (plain, narrow) = (Precision::Bf16, Precision::Fp8);
        let found = within(&all, None).unwrap();
        assert_eq!(found, [(0..4_096, plain), (4_096..4_608, plain), (4_608..8_704, narrow)]);
        check(&all, spec.sparse.projection_width()).unwrap();
        assert!(check(&all, 8_192).is_err());
        assert_eq!(within(&all, Some(&spec.sparse.kv_columns())).unwrap(), [(4_096..4_608, plain)]);
        assert!(within(&all, Some(&(0..4_352))).is_err());
        let one = of_projection(&spec, Mixer::Lightning, narrow);
        assert_eq!(within(&one, None).unwrap(), [(0..spec.lightning.projection_width(), narrow)]);
    }
}
