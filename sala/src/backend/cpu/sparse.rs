//! InfLLM-V2 on the CPU (docs/model.md §5): operations of the sparse layers. [`super::cache`] holds the keys,
//! [`super::select`] chooses blocks, [`super::selection`] holds the choice, [`super::attend`] computes attention.

use std::ops::Range;

use super::cache::Cache;
use super::select::{Queries, select};
use super::selection::{Selection, Sums};
use super::{Buf, Cpu, attend};
use crate::backend::{BlockMass, MassOf, Pass, Result, Sparse, check_shape, internal};
use crate::core::spec::SparseSpec;

impl Sparse for Cpu {
    fn append_kv(&mut self, caches: &mut [&mut Cache], x: &Buf, spec: &SparseSpec, pass: Pass) -> Result<()> {
        let k = spec.heads * spec.head_dim;
        let v = k + spec.kv_heads * spec.head_dim;
        let mut rest = x.rows(pass);
        for (group, cache) in self.groups(pass, caches.len())?.iter().zip(caches) {
            let (own, others) = rest.split_at(group.rows * x.width);
            cache.append(own, x.width, [k, v], group.place.position);
            rest = others;
            #[cfg(any(test, feature = "emulated"))]
            if self.planted == Some(super::Planted::StaleBlock) {
                cache.make_stale(group.place.position..group.place.position + group.rows, 3);
            }
        }
        Ok(())
    }

    fn select_blocks(
        &mut self,
        sel: &mut Selection,
        x: &Buf,
        caches: &[&Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        let mut row = 0;
        sel.positions.clear();
        for (group, cache) in self.groups(pass, caches.len())?.iter().zip(caches) {
            let first = group.place.position;
            sel.positions.extend(first..first + group.rows);
            let own = &x.rows(pass)[row * x.width..(row + group.rows) * x.width];
            select(sel, row, Queries { x: own, width: x.width, first }, cache, spec);
            row += group.rows;
        }
        match pass {
            Pass::Prefill { rows } => sel.leave_out_hidden(spec, rows),
            Pass::Verify { .. } => Ok(()),
        }
    }

    fn hide_blocks(&mut self, sel: &mut Selection, blocks: &[Range<u32>]) {
        sel.hidden = blocks.to_vec();
    }

    fn attend(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        sel: &mut Selection,
        caches: &[&Cache],
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        let (mut row, out) = (0, spec.heads * spec.head_dim);
        for (group, cache) in self.groups(pass, caches.len())?.iter().zip(caches) {
            let end = group.place.position + group.rows;
            let fits = matches!(pass, Pass::Prefill { .. }) || end.div_ceil(spec.block) <= sel.ld;
            check_shape(fits, "attend", format_args!("at most {} positions", sel.ld * spec.block), end)?;
            let rows = row..row + group.rows;
            let own = &x.rows(pass)[rows.start * x.width..rows.end * x.width];
            let q = Queries { x: own, width: x.width, first: group.place.position };
            attend::attend(&mut o.rows_mut(pass)[rows.start * out..rows.end * out], row, q, sel, cache, spec, pass);
            row = rows.end;
        }
        Ok(())
    }

    fn read_selection(&mut self, sel: &Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>> {
        Ok((0..rows).map(|row| sel.read(spec, row)).collect())
    }

    fn add_mass(
        &mut self,
        sel: &mut Selection,
        spec: &SparseSpec,
        rows: Range<usize>,
        position: usize,
        of: MassOf,
    ) -> Result<()> {
        let ld = sel.ld;
        for (i, r) in rows.enumerate() {
            let row = sel.mass.get(r * ld..(r + 1) * ld);
            let row = row.ok_or_else(|| internal("add_mass", "more rows than a verify pass has"))?.to_vec();
            let own = (position + i) / spec.block;
            for (b, (sum, share)) in sel.sums[of as usize].iter_mut().zip(row).enumerate().take(own + 1) {
                if spec.is_forced(b, own) {
                    sum.forced += u64::from(share);
                } else {
                    sum.chosen += u64::from(share);
                }
            }
        }
        Ok(())
    }

    fn clear_mass(&mut self, sel: &mut Selection, rows: Range<usize>) -> Result<()> {
        let all = sel.mass.len();
        sel.mass[(rows.start * sel.ld).min(all)..(rows.end * sel.ld).min(all)].fill(0);
        Ok(())
    }

    fn reset_mass(&mut self, sel: &mut Selection) -> Result<()> {
        sel.mass.fill(0);
        sel.sums.iter_mut().for_each(|sum| sum.fill(BlockMass::default()));
        Ok(())
    }

    fn exchange_sums(&mut self, sel: &mut Selection, sums: &mut Sums) {
        std::mem::swap(&mut sel.sums, sums);
    }

    fn read_mass(&mut self, sel: &Selection, of: MassOf) -> Result<Vec<BlockMass>> {
        Ok(sel.sums[of as usize].iter().take(self.place.position.div_ceil(sel.block)).copied().collect())
    }

    fn read_row_mass(&mut self, sel: &Selection, rows: Range<usize>, blocks: usize) -> Result<Vec<Vec<u32>>> {
        let of_rows = sel.mass.chunks_exact(sel.ld).take(rows.end).skip(rows.start);
        Ok(of_rows.map(|row| row.iter().take(blocks).copied().collect()).collect())
    }
}
