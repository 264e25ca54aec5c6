//! KV rows that load lazily after a restore: threads read them from their files, check them and copy them to the
//! device while the engine already works; an operation waits only for the rows it reads.
//!
//! Rows travel in *units* of 64 positions, counted from the first row of their file, keys and values together.
//! Requested units are first, the others follow layer by layer, in the order in which a pass needs them. A unit counts
//! as arrived once its copies are on the copy queue: [`LazyRestore::wait_for`] makes the compute queue wait for that
//! point. Rows of a paged cache are read straight into host memory, where they stay.
//!
//! While rows are in flight no step is captured or replayed: a CUDA graph cannot wait for rows that depend on its own
//! choice of blocks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::device::{Device, Pinned};
use super::driver::{Event, Home, Queue};
use super::stretch::Stretch;
use crate::backend::{BackendError, Result};
use crate::engine::protocol::{Cancel, PIECE_BYTES, RowSource, RowsFault};

/// Positions: the block size of attention.
const UNIT: usize = 64;
/// If at least one in this many units of a piece is requested, the whole piece is read: many short reads and copies
/// take longer.
const DENSE: usize = 4;
const GLANCE: Duration = Duration::from_millis(20);
/// Minimum and maximum: enough requests to saturate a fast disk, and enough threads to keep up with checksums.
const THREADS: [usize; 2] = [2, 16];

pub(super) struct Source {
    pub(super) feed: Arc<dyn RowSource>,
    pub(super) start: usize,
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
    pub(super) arrays: [(String, Stretch); 2],
    pub(super) home: Home,
}

impl Source {
    fn units(&self) -> usize {
        self.rows.div_ceil(UNIT)
    }

    /// Maximum number of unrequested units in one read.
    fn run(&self) -> usize {
        (PIECE_BYTES / (UNIT * self.row_bytes).max(1)).max(1)
    }

    fn units_of(&self, positions: &Range<usize>) -> Range<usize> {
        let from = positions.start.max(self.start) - self.start;
        let to = positions.end.min(self.start + self.rows);
        match to.checked_sub(self.start) {
            Some(to) if to > from => from / UNIT..to.div_ceil(UNIT),
            _ => 0..0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Taken,
    Arrived,
}

#[derive(Default)]
struct Plan {
    units: Vec<Vec<Progress>>,
    urgent: VecDeque<(usize, Range<usize>)>,
    next: usize,
    left: usize,
    active: usize,
    given_up: bool,
    cancel: Option<Cancel>,
    failed: Option<BackendError>,
}

impl Plan {
    fn take(&mut self, most: impl Fn(usize) -> usize) -> Option<(usize, Range<usize>)> {
        if self.given_up || self.failed.is_some() {
            return None;
        }
        while let Some((source, wanted)) = self.urgent.pop_front() {
            if let Some(run) = self.take_from(source, wanted.clone(), most(source)) {
                if run.end < wanted.end {
                    self.urgent.push_front((source, run.end..wanted.end));
                }
                return Some((source, run));
            }
        }
        while let Some(units) = self.units.get(self.next) {
            let all = 0..units.len();
            match self.take_from(self.next, all, most(self.next)) {
                Some(run) => return Some((self.next, run)),
                None => self.next += 1,
            }
        }
        None
    }

    fn take_from(&mut self, source: usize, wanted: Range<usize>, most: usize) -> Option<Range<usize>> {
        let units = self.units.get_mut(source)?;
        let waits = |p: &Progress| *p == Progress::Waiting;
        let start = wanted.start + units.get(wanted.clone())?.iter().position(waits)?;
        let run = units.get_mut(start..wanted.end)?;
        let n = run.iter().take(most).take_while(|p| waits(p)).count();
        run.iter_mut().take(n).for_each(|p| *p = Progress::Taken);
        Some(start..start + n)
    }
}

pub(super) struct LazyRestore {
    device: Device,
    sources: Vec<Source>,
    plan: Mutex<Plan>,
    changed: Condvar,
}

/// Counts a thread in [`LazyRestore`]; the drop removes it on every way out.
struct Active<'a>(&'a LazyRestore);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let mut plan = self.0.plan();
        if std::thread::panicking() && plan.failed.is_none() {
            plan.failed = Some(BackendError::Rows(RowsFault::new("reading it panicked")));
        }
        plan.active -= 1;
        drop(plan);
        self.0.changed.notify_all();
    }
}

impl LazyRestore {
    /// Starts the threads.
    pub(super) fn start(device: &Device, sources: Vec<Source>) -> Result<Arc<Self>> {
        let units: Vec<_> = sources.iter().map(|s| vec![Progress::Waiting; s.units()]).collect();
        let threads = rayon::current_num_threads().clamp(THREADS[0], THREADS[1]);
        let left = units.iter().map(Vec::len).sum();
        let lazy_restore = Arc::new(LazyRestore {
            device: device.clone(),
            sources,
            plan: Mutex::new(Plan { units, left, ..Plan::default() }),
            changed: Condvar::new(),
        });
        for _ in 0..threads {
            lazy_restore.plan().active += 1;
            let at_work = Arc::clone(&lazy_restore);
            let spawned = std::thread::Builder::new().name("rows".into()).spawn(move || {
                let active = Active(&at_work);
                if let Err(e) = at_work.bring() {
                    let mut plan = at_work.plan();
                    plan.failed.get_or_insert(e);
                }
                drop(active);
            });
            if let Err(e) = spawned {
                lazy_restore.plan().active -= 1;
                lazy_restore.give_up();
                return Err(super::driver::failed("starting a thread", e));
            }
        }
        Ok(lazy_restore)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn complete(&self) -> bool {
        let plan = self.plan();
        plan.active == 0 && (plan.left == 0 || plan.given_up)
    }

    pub(super) fn stop_on(&self, cancel: Option<&Cancel>) {
        self.plan().cancel = cancel.cloned();
    }

    /// Makes the compute queue wait for the rows at `positions`, of the sources in `of`.
    ///
    /// # Errors
    /// A row that cannot be read, here or elsewhere; [`BackendError::Stopped`]; the device.
    pub(super) fn wait_for(&self, of: &Range<usize>, positions: &[Range<usize>]) -> Result<()> {
        let mut missing = Vec::new();
        let mut plan = self.plan();
        for (source, rows) in self.sources.iter().enumerate().take(of.end).skip(of.start) {
            let known = &plan.units[source];
            let units = positions.iter().flat_map(|p| rows.units_of(p));
            let needed: Vec<usize> = units.filter(|u| known[*u] != Progress::Arrived).collect();
            let all = known.len();
            for part in needed.chunk_by(|a, b| a / rows.run() == b / rows.run()) {
                let first = part.first().map_or(0, |u| u / rows.run() * rows.run());
                let run = first..(first + rows.run()).min(all);
                if part.len() * DENSE >= run.len() {
                    plan.urgent.push_back((source, run));
                    continue;
                }
                for close in part.chunk_by(|a, b| a + 1 == *b) {
                    let first = close.first().copied().unwrap_or(0);
                    plan.urgent.push_back((source, first..first + close.len()));
                }
            }
            missing.extend(needed.into_iter().map(|unit| (source, unit)));
        }
        let mut missing = missing.into_iter().peekable();
        while let Some((source, unit)) = missing.peek() {
            if plan.units[*source][*unit] == Progress::Arrived {
                missing.next();
            } else if let Some(failed) = &plan.failed {
                return Err(failed.clone());
            } else if plan.given_up {
                return Err(BackendError::Rows(RowsFault::new("it was given up")));
            } else if plan.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                return Err(BackendError::Stopped);
            } else {
                let woken = self.changed.wait_timeout(plan, GLANCE);
                plan = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        drop(plan);
        self.device.order(Queue::Copy, Queue::Compute)
    }

    /// Waits for the rows below `keep` and cancels the others. No copy is in flight afterwards, even after an error.
    pub(super) fn sync(&self, keep: usize) -> Result<()> {
        // A stopped job must not cancel this wait.
        self.plan().cancel = None;
        let kept = 0..keep;
        let waited = match keep {
            0 => Ok(()),
            _ => self.wait_for(&(0..self.sources.len()), std::slice::from_ref(&kept)),
        };
        self.give_up();
        waited
    }

    /// Cancels the rows that have not arrived; no copy is under way afterwards.
    pub(super) fn give_up(&self) {
        let mut plan = self.plan();
        plan.given_up = true;
        while plan.active > 0 {
            plan = self.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn bring(&self) -> Result<()> {
        let driver = self.device.driver();
        let mut slots = Vec::with_capacity(2);
        let staged = self.sources.iter().any(|source| source.home == Home::Device);
        for _ in 0..2 {
            slots.push((self.device.pinned(if staged { PIECE_BYTES } else { 1 })?, driver.event()?));
        }
        let brought = self.bring_through(&mut slots);
        for (slot, event) in slots {
            // The slot may be freed once its last copy has passed; if that cannot be determined it must stay.
            match driver.wait_host(&event) {
                Ok(()) => drop(slot),
                Err(_) => std::mem::forget(slot),
            }
            driver.drop_event(event);
        }
        brought
    }

    fn bring_through(&self, slots: &mut [(Pinned, Event)]) -> Result<()> {
        let driver = self.device.driver();
        let most = |source: usize| self.sources[source].run();
        loop {
            let taken = self.plan().take(most);
            let Some((index, units)) = taken else { return Ok(()) };
            let source = &self.sources[index];
            let rows = units.start * UNIT..(units.end * UNIT).min(source.rows);
            let at = rows.start * source.row_bytes;
            for ((slot, event), (name, dst)) in slots.iter_mut().zip(&source.arrays) {
                let dst = dst.part(at, rows.len() * source.row_bytes);
                if source.home == Home::Host {
                    // SAFETY: the cache has room for these rows and outlives this thread (its drop ends the restore
                    // first); nothing reads them before they have arrived.
                    let to = unsafe { dst.host()? };
                    source.feed.fill(name, at, to).map_err(BackendError::Rows)?;
                    continue;
                }
                driver.wait_host(event)?;
                let bytes = slot.as_mut_slice().get_mut(..dst.bytes);
                let bytes =
                    bytes.ok_or_else(|| super::shape("rows", format!("at most {PIECE_BYTES} bytes"), rows.len()))?;
                source.feed.fill(name, at, bytes).map_err(BackendError::Rows)?;
                // SAFETY: the cache has room for these rows and outlives this thread (its drop ends the restore
                // first); the slot is not filled again before its event has passed.
                unsafe { dst.copy_in(driver, bytes.as_ptr(), Queue::Copy)? };
                driver.record(event, Queue::Copy)?;
            }
            let mut plan = self.plan();
            plan.left -= units.len();
            plan.units[index][units].fill(Progress::Arrived);
            drop(plan);
            self.changed.notify_all();
        }
    }
}

pub(super) struct InFlight {
    pub(super) lazy_restore: Arc<LazyRestore>,
    pub(super) sources: Range<usize>,
}

impl InFlight {
    /// Makes the compute queue wait for rows at `positions`; errors as in [`LazyRestore::wait_for`].
    pub(super) fn wait_for(&self, positions: &[Range<usize>]) -> Result<()> {
        self.lazy_restore.wait_for(&self.sources, positions)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The cache is dropped or refilled.
        self.lazy_restore.give_up();
    }
}
