//! Names of the rows of a sequence: the ends of their segments, so that another sequence can copy rows of the same
//! name instead of reading them.
//!
//! A name covers all rows below its position ([`segment_name`](crate::engine::protocol::segment_name)). Cutting,
//! copying and restoring rows does the same to their names, here in `model/`.

use std::sync::Arc;

use crate::engine::protocol::RowSource;

/// Positions at which segments end, ascending, and their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Named(Vec<(usize, [u8; 32])>);

impl Named {
    pub(super) fn cut(&mut self, keep: usize) {
        self.0.retain(|(end, _)| *end <= keep);
    }

    /// Adds a segment end above all known ends.
    pub(super) fn add(&mut self, end: usize, name: [u8; 32]) {
        if self.0.last().is_none_or(|(last, _)| *last < end) {
            self.0.push((end, name));
        }
    }

    pub(super) fn at(&self, end: usize) -> Option<[u8; 32]> {
        self.0.binary_search_by_key(&end, |(at, _)| *at).ok().and_then(|at| self.0.get(at)).map(|(_, name)| *name)
    }

    pub(super) fn last_at(&self, end: usize) -> Option<&[u8; 32]> {
        self.0.last().filter(|(last, _)| *last == end).map(|(_, name)| name)
    }

    /// Segment ends of `rows`, the last one first.
    fn ends(rows: &[Arc<dyn RowSource>]) -> impl DoubleEndedIterator<Item = (usize, [u8; 32])> {
        rows.iter().filter_map(|rows| {
            let end = usize::try_from(rows.start() + rows.rows()).ok()?;
            Some((end, rows.segment()?))
        })
    }

    pub(super) fn add_all(&mut self, rows: &[Arc<dyn RowSource>]) {
        Named::ends(rows).for_each(|(end, name)| self.add(end, name));
    }

    /// The greatest position up to which the rows here equal `rows`.
    pub(super) fn common(&self, rows: &[Arc<dyn RowSource>]) -> usize {
        let here = |end: &(usize, [u8; 32])| {
            self.0.binary_search_by_key(&end.0, |(at, _)| *at).is_ok_and(|at| self.0.get(at) == Some(end))
        };
        Named::ends(rows).rev().find(here).map_or(0, |(end, _)| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::RowsImage;

    fn rows(ends: &[(u64, u8)]) -> Vec<Arc<dyn RowSource>> {
        let mut start = 0;
        let each = ends.iter().map(|(end, name)| {
            let segment = (*name > 0).then_some([*name; 32]);
            let image = RowsImage { start, rows: end - start, tensors: Vec::new(), segment };
            start = *end;
            Arc::new(image) as Arc<dyn RowSource>
        });
        each.collect()
    }

    #[test]
    fn the_longest_common_path_is_found_whatever_follows_it() {
        let mut named = Named::default();
        assert_eq!(named.common(&rows(&[(10, 1)])), 0);
        named.add_all(&rows(&[(10, 1), (20, 2), (30, 0), (40, 4)]));
        assert_eq!(named.common(&rows(&[(10, 1), (20, 2), (33, 7)])), 20);
        assert_eq!(named.common(&rows(&[(10, 1), (20, 9)])), 10);
        // A name at another position, and rows without a name.
        assert_eq!(named.common(&rows(&[(11, 1), (30, 0)])), 0);
        // The cut into segments does not matter.
        assert_eq!(named.common(&rows(&[(40, 4), (50, 5)])), 40);
        named.cut(39);
        assert_eq!(named.common(&rows(&[(40, 4), (50, 5)])), 0);
        assert_eq!(named.common(&rows(&[(20, 2), (40, 4)])), 20);
        named.cut(0);
        assert_eq!(named.common(&rows(&[(10, 1)])), 0);
    }
}
