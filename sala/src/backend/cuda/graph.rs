//! Graphs of steps.
//!
//! A step runs eagerly the first time (kernels are loaded, scratch is allocated), is recorded the second time and
//! replayed from then on. A CUDA graph holds raw addresses, so it is valid for the buffers of its recording: it
//! belongs to a sequence, and is dropped whenever the backend makes or frees a buffer that it may name.

use std::collections::HashMap;

use super::device::Device;
use super::driver::{Graph, Queue};
use crate::backend::{Result, StepKey};

enum Entry {
    Warm,
    Recorded(Graph),
    /// The device refused the recording: the step runs eagerly, and the reason is shown once.
    Eager,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    RunEagerly,
    Record,
    Replay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) step: StepKey,
    pub(super) of: u64,
    /// The step scores blocks: some row does not take all of them.
    pub(super) scores: bool,
}

/// Replaces a sequence id: the step names no sequence's buffers. Also the id of a device's first sequence; its buffers
/// count among those that all steps use.
pub(super) const ANY: u64 = 0;

pub(super) struct Graphs {
    device: Device,
    entries: HashMap<Key, Entry>,
    pub(super) made: usize,
}

impl Graphs {
    pub(super) fn new(device: &Device) -> Self {
        Graphs { device: device.clone(), entries: HashMap::new(), made: 0 }
    }

    pub(super) fn stage(&self, key: Key) -> Stage {
        match self.entries.get(&key) {
            None | Some(Entry::Eager) => Stage::RunEagerly,
            Some(Entry::Warm) => Stage::Record,
            Some(Entry::Recorded(_)) => Stage::Replay,
        }
    }

    pub(super) fn warmed(&mut self, key: Key) {
        self.entries.entry(key).or_insert(Entry::Warm);
    }

    pub(super) fn keep(&mut self, key: Key, graph: Graph) {
        self.made += 1;
        self.entries.insert(key, Entry::Recorded(graph));
    }

    pub(super) fn refuse(&mut self, key: Key) {
        self.entries.insert(key, Entry::Eager);
    }

    pub(super) fn replay(&self, key: Key) -> Result<()> {
        match self.entries.get(&key) {
            Some(Entry::Recorded(graph)) => self.device.driver().replay(graph),
            Some(Entry::Warm | Entry::Eager) | None => Ok(()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.forget(|_| true);
    }

    pub(super) fn forget_of(&mut self, sequence: u64) {
        self.forget(|key| key.of == sequence);
    }

    fn forget(&mut self, which: impl Fn(&Key) -> bool) {
        let (gone, kept) = self.entries.drain().partition::<HashMap<_, _>, _>(|(key, _)| which(key));
        self.entries = kept;
        if gone.is_empty() {
            return;
        }
        // A CUDA graph may still be running; errors of that work are reported by its own wait.
        let _ = self.device.driver().synchronize(Queue::Compute);
        for entry in gone.into_values() {
            if let Entry::Recorded(graph) = entry {
                self.device.driver().drop_graph(graph);
            }
        }
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.clear();
    }
}
