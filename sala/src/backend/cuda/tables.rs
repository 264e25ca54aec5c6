//! The caches and states of the rows of a verify pass: for each layer an entry for each of 16 rows, in device memory
//! (`RowCache` and `RowState` of `kernels/sequences.cuh`).
//!
//! The host keeps the same tables, compares, and sends only changes: nothing while a single conversation runs. CUDA
//! graphs name the tables and never their entries.

use std::ops::Range;

use super::device::{Account, Device, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, Event, Queue};
use crate::backend::{BackendError, MAX_VERIFY_ROWS, Result, internal, invariant};

const LAYERS: usize = 96;
/// Tables of caches and states outside of any layer, for tests and measurements; used in turn.
const OTHERS: usize = 160;
const ENTRY_WORDS: usize = 4;
const TABLE_WORDS: usize = MAX_VERIFY_ROWS * ENTRY_WORDS;
const TABLE_BYTES: usize = TABLE_WORDS * 8;

/// Addresses of one sequence in one layer, in the order of the kernels' struct.
pub(super) type Entry = [DevicePtr; ENTRY_WORDS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TableId(usize);

/// Tables of caches and states; a second set locates the blocks of those caches ([`TableId::of_blocks`]).
const TABLES: usize = LAYERS + OTHERS;

impl TableId {
    pub(super) fn of_blocks(self) -> TableId {
        TableId(self.0 + TABLES)
    }
}

pub(super) struct Tables {
    device: Device,
    memory: DeviceBuffer,
    here: Vec<u64>,
    /// By table: all its rows belong to one sequence.
    alone: Vec<bool>,
    changed: Option<Range<usize>>,
    halves: [Pinned; 2],
    sent: [Event; 2],
    next: usize,
    made: usize,
    /// During a recording no entry may change.
    fixed: bool,
}

impl Tables {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let tables = 2 * TABLES;
        Ok(Tables {
            memory: device.zeroed("tables", tables * TABLE_BYTES, Account::Work)?,
            here: vec![0; tables * TABLE_WORDS],
            alone: vec![false; tables],
            changed: None,
            halves: [device.pinned(tables * TABLE_BYTES)?, device.pinned(tables * TABLE_BYTES)?],
            sent: [device.driver().event()?, device.driver().event()?],
            next: 0,
            made: 0,
            fixed: false,
            device: device.clone(),
        })
    }

    pub(super) fn other(&mut self) -> TableId {
        self.made += 1;
        TableId(LAYERS + self.made % OTHERS)
    }

    pub(super) fn of_layer(layer: usize) -> Result<TableId> {
        if layer < LAYERS {
            return Ok(TableId(layer));
        }
        Err(BackendError::Unsupported(format!("layer {layer} is beyond the {LAYERS} that the kernels have tables for")))
    }

    pub(super) fn ptr(&self, table: TableId) -> DevicePtr {
        self.memory.ptr() + (table.0 * TABLE_BYTES) as u64
    }

    /// Sets the buffers of a pass's rows: for each sequence its number of rows and its entry; rows after them get the
    /// last entry. Runs for every layer before every pass, nearly always without a change.
    pub(super) fn set(
        &mut self,
        table: TableId,
        mut rows: impl Iterator<Item = usize>,
        mut of: impl Iterator<Item = Entry>,
    ) -> Result<()> {
        let apart = || internal("verify", "caches and sequences of a pass do not belong together");
        let here = &mut self.here[table.0 * TABLE_WORDS..(table.0 + 1) * TABLE_WORDS];
        let alone = &mut self.alone[table.0];
        let mut next = (rows.next(), of.next());
        let one = matches!(next, (Some(MAX_VERIFY_ROWS), Some(_)));
        if one && *alone && next.1.is_some_and(|entry| here.starts_with(&entry)) {
            return if (rows.next(), of.next()) == (None, None) { Ok(()) } else { Err(apart()) };
        }
        let (mut lines, mut last, mut differs) = (here.chunks_exact_mut(ENTRY_WORDS), None, false);
        let mut put = |line: &mut [u64], entry: &Entry| {
            differs |= line != entry;
            line.copy_from_slice(entry);
        };
        *alone = one;
        while let (Some(rows_of), Some(entry)) = next {
            lines.by_ref().take(rows_of).for_each(|line| put(line, &entry));
            last = Some(entry);
            next = (rows.next(), of.next());
        }
        lines.zip(last.iter().cycle()).for_each(|(line, last)| put(line, last));
        if differs {
            let changed = self.changed.take().unwrap_or(table.0..table.0 + 1);
            self.changed = Some(changed.start.min(table.0)..changed.end.max(table.0 + 1));
        }
        match (next, last) {
            ((None, None), Some(_)) => Ok(()),
            ((None, None), None) => Err(internal("verify", "a pass of no sequence")),
            _ => Err(apart()),
        }
    }

    pub(super) fn fixed(&mut self, fixed: bool) {
        self.fixed = fixed;
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let Some(changed) = self.changed.clone() else { return Ok(()) };
        invariant(!self.fixed, "verify", "a step names buffers that were not bound before")?;
        let half = self.next;
        self.next ^= 1;
        let words = &self.here[changed.start * TABLE_WORDS..changed.end * TABLE_WORDS];
        let (pinned, sent) = (&mut self.halves[half], &self.sent[half]);
        self.device.driver().wait_host(sent)?;
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let slot = &mut pinned.as_mut_slice()[..bytes.len()];
        slot.copy_from_slice(bytes);
        let dst = self.memory.ptr() + (changed.start * TABLE_BYTES) as u64;
        // SAFETY: the half is not written again before `sent` has passed; the tables are this long.
        unsafe { self.device.driver().copy_in(dst, slot.as_ptr(), bytes.len(), Queue::Compute)? };
        self.device.driver().record(sent, Queue::Compute)?;
        self.changed = None;
        Ok(())
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // Copies read the pinned halves; earlier errors were reported by their own calls.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for event in &mut self.sent {
            self.device.driver().drop_event(std::mem::replace(event, Event(0)));
        }
    }
}
