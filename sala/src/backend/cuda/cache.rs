use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::driver::Home;
use super::joined::{Columns, Joined};
use super::lazy_restore::InFlight;
use super::ledger::CacheLedger;
use super::limits;
use super::pool::Paged;
use super::stretch::Stretch;
use super::tables::{Entry, TableId};
use super::tensors::HEAD;
use crate::backend::{Result, internal, invariant};
use crate::core::spec::SparseSpec;

pub struct Cache {
    joined: Arc<Mutex<Joined>>,
    pub(super) place: usize,
    pub(super) columns: Columns,
    pub(super) row_bytes: usize,
    pub(super) table: TableId,
    /// Rows of k and v in flight. Dropped before their destination.
    pub(super) in_flight: Option<InFlight>,
    /// `Some`: k and v are host memory, and this tracks their blocks on the device.
    pub(super) paged: Option<Paged>,
    pub(super) spec: SparseSpec,
}

impl Cache {
    pub(super) fn all(
        device: &Device,
        ledger: &Arc<CacheLedger>,
        spec: &SparseSpec,
        limit: usize,
        tables: &[TableId],
        home: Home,
    ) -> Result<Vec<Self>> {
        limits::sparse(spec)?;
        limits::positions(limit)?;
        // A block is loaded whole, so the last one has memory to its end.
        let limit = limit.next_multiple_of(spec.block);
        let (joined, columns) = Joined::new(device, ledger, spec, limit, home, tables.len())?;
        let joined = Arc::new(Mutex::new(joined));
        let one = |(place, (table, columns)): (usize, (&TableId, Columns))| {
            Ok(Cache {
                joined: Arc::clone(&joined),
                place,
                columns,
                row_bytes: spec.kv_heads * HEAD * 2,
                table: *table,
                in_flight: None,
                paged: match home {
                    Home::Device => None,
                    Home::Host => Some(Paged::new(device, spec, limit)?),
                },
                spec: spec.clone(),
            })
        };
        tables.iter().zip(columns).enumerate().map(one).collect()
    }

    pub(super) fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn joined_of<'a>(caches: &'a [&mut Cache]) -> Result<MutexGuard<'a, Joined>> {
        let first = caches.first().ok_or_else(|| internal("cache", "no layer of a sequence"))?;
        let joined = first.joined();
        let holds = joined.layers == caches.len() && caches.iter().all(|cache| first.is_sibling(cache));
        invariant(holds, "cache", "some layers of a sequence and not all")?;
        Ok(joined)
    }

    pub(super) fn is_sibling(&self, other: &Cache) -> bool {
        Arc::ptr_eq(&self.joined, &other.joined)
    }

    /// Prepares a write of rows from `position` on by anything but a verify pass.
    pub(super) fn forget(&self, position: usize) -> Result<()> {
        self.paged.as_ref().map_or(Ok(()), |paged| paged.forget(position))
    }

    /// `RowCache`
    pub(super) fn entry(&self) -> Entry {
        self.columns.each_ref().map(|column| column.at)
    }

    /// Elements between tiles of keys and values, and of compressed keys.
    pub(super) fn tiles(&self) -> [usize; 2] {
        let [k, _, k1, _] = &self.columns;
        [k.tile(), k1.tile()]
    }

    /// Rows of array `index` (k, v, k1 or k2), and the home of their memory.
    pub(super) fn rows(&self, index: usize, rows: &Range<usize>) -> Result<(Stretch, Home)> {
        let column = &self.columns[index];
        Ok((self.joined().rows(column, rows)?, column.home))
    }

    pub(super) fn in_flight(&self) -> Option<&InFlight> {
        self.in_flight.as_ref().filter(|a| !a.lazy_restore.complete())
    }

    /// Makes the compute queue wait for the rows at `positions` that are in flight.
    pub(super) fn wait_for(&self, positions: Range<usize>) -> Result<()> {
        self.in_flight().map_or(Ok(()), |in_flight| in_flight.wait_for(&[positions]))
    }

    pub(super) fn wants_anew(&self, keep: usize, limit: usize) -> u64 {
        if self.place == 0 { self.joined().wants_anew(keep, limit) } else { 0 }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.in_flight = None;
    }
}
