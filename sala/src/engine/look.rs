//! Attention mass of the sparse layers, as shares of blocks.

use crate::backend::BlockMass;
use crate::core::spec::SparseSpec;
use crate::engine::protocol::{BlockLook, Looked};

/// A sum over `tokens` rows.
pub(super) fn shares(sums: &[BlockMass], tokens: u64, spec: &SparseSpec) -> Looked {
    let all: u64 = sums.iter().map(|m| m.chosen + m.forced).sum();
    let share = |mass: u64| (mass as f64 / all.max(1) as f64) as f32;
    let blocks = (0..).zip(sums).filter(|(_, m)| m.chosen + m.forced > 0).map(|(block, m)| BlockLook {
        block,
        share: share(m.chosen + m.forced),
        forced: share(m.forced),
    });
    Looked { tokens, block_tokens: u32::try_from(spec.block).unwrap_or(u32::MAX), blocks: blocks.collect() }
}

/// One row at `position`. Runs between decode steps for each token: the many blocks of a long context that the row did
/// not choose are merely skipped.
pub(super) fn row(mass: &[u32], position: usize, spec: &SparseSpec) -> Looked {
    let own = position / spec.block;
    let all: u64 = mass.iter().map(|m| u64::from(*m)).sum();
    let blocks = mass.iter().enumerate().filter(|(_, mass)| **mass > 0).map(|(block, mass)| {
        let share = (f64::from(*mass) / all as f64) as f32;
        let forced = if spec.is_forced(block, own) { share } else { 0.0 };
        BlockLook { block: u32::try_from(block).unwrap_or(u32::MAX), share, forced }
    });
    Looked { tokens: 1, block_tokens: u32::try_from(spec.block).unwrap_or(u32::MAX), blocks: blocks.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::spec::ModelSpec;

    #[test]
    fn shares_add_up_to_one_and_forced_blocks_are_separate() {
        let spec = ModelSpec::from_json(include_str!("../model/config_9b.json")).unwrap().sparse;
        let sums = [
            BlockMass { chosen: 0, forced: 300 },
            BlockMass::default(),
            BlockMass { chosen: 500, forced: 0 },
            BlockMass { chosen: 50, forced: 150 },
        ];
        let looked = shares(&sums, 7, &spec);
        assert_eq!((looked.tokens, looked.block_tokens), (7, 64));
        let blocks: Vec<_> = looked.blocks.iter().map(|b| (b.block, b.share, b.forced)).collect();
        assert_eq!(blocks, [(0, 0.3, 0.3), (2, 0.5, 0.0), (3, 0.2, 0.15)]);
        // Row at position 64·40: the first block and the 32 before its own are forced.
        let mass = [1u32; 41];
        let looked = row(&mass, 64 * 40, &spec);
        let forced = looked.blocks.iter().filter(|b| b.forced > 0.0).map(|b| b.block);
        assert_eq!(forced.collect::<Vec<_>>(), [vec![0], (8..=40).collect()].concat());
        assert!((looked.blocks.iter().map(|b| b.share).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(shares(&[], 0, &spec).blocks, []);
    }
}
