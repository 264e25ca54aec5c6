//! Caches that grow without moving: address space for the largest context, memory under what is used.
//!
//! Kernels see one contiguous array whose address never changes, so CUDA graphs stay valid while a conversation grows.
//! Where the device cannot reserve address space, the whole size is allocated at once.

use super::device::{Account, Device, DeviceBuffer};
use super::driver::{DevicePtr, Mapping, Queue};
use crate::backend::Result;

/// Memory is added at least this much at a time, so that growth is rare beside steps.
const STEP_BYTES: usize = 2 << 20;
/// And by this share of what is there, so that long contexts grow rarely too.
const SPARE_SHARE: usize = 32;

enum Backing {
    /// Reserved range and what is under it so far.
    Mapped { at: DevicePtr, reserved: usize, mapped: usize, parts: Vec<Mapping>, step: usize },
    /// All of it from the start.
    Whole(DeviceBuffer),
}

/// A growable array in device memory.
pub(crate) struct Growable {
    device: Device,
    backing: Backing,
}

impl Growable {
    /// Room for `limit` bytes, none of it backed by memory yet where the device can do that.
    pub(crate) fn new(device: &Device, what: &str, limit: usize) -> Result<Self> {
        let backing = match device.driver().granularity() {
            Some(granularity) => {
                let reserved = limit.max(1).next_multiple_of(granularity);
                let step = STEP_BYTES.next_multiple_of(granularity).min(reserved);
                Backing::Mapped { at: device.driver().reserve(reserved)?, reserved, mapped: 0, parts: Vec::new(), step }
            }
            None => Backing::Whole(device.alloc(what, limit.max(1), Account::State)?),
        };
        Ok(Growable { device: device.clone(), backing })
    }

    /// Where it starts; never changes.
    pub(crate) fn ptr(&self) -> DevicePtr {
        match &self.backing {
            Backing::Mapped { at, .. } => *at,
            Backing::Whole(buffer) => buffer.ptr(),
        }
    }

    /// Bytes with memory under them.
    pub(crate) fn backed(&self) -> usize {
        match &self.backing {
            Backing::Mapped { mapped, .. } => *mapped,
            Backing::Whole(buffer) => buffer.bytes(),
        }
    }

    /// Bytes that [`Growable::grow`] to `bytes` would take from the device.
    pub(crate) fn wants(&self, bytes: usize) -> usize {
        match &self.backing {
            Backing::Mapped { mapped, .. } if bytes <= *mapped => 0,
            Backing::Mapped { mapped, step, reserved, .. } => {
                bytes.max(mapped + mapped / SPARE_SHARE).next_multiple_of(*step).min(*reserved).saturating_sub(*mapped)
            }
            Backing::Whole(_) => 0,
        }
    }

    /// Puts memory under the first `bytes` bytes. New memory is zero: block loads may touch rows past the last one,
    /// and a masked row times NaN would still be NaN.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let more = self.wants(bytes);
        if more == 0 {
            return Ok(());
        }
        if let Backing::Mapped { at, mapped, parts, .. } = &mut self.backing {
            let start = *at + *mapped as u64;
            let part = self.device.driver().map(start, more)?;
            parts.push(part);
            *mapped += more;
            self.device.charge(Account::State, more);
            // SAFETY: just mapped with this size.
            unsafe { self.device.driver().fill(start, 0, more, Queue::Compute)? };
        }
        Ok(())
    }
}

impl Drop for Growable {
    fn drop(&mut self) {
        if let Backing::Mapped { at, reserved, mapped, parts, .. } = &mut self.backing {
            // Memory must not vanish under a kernel; errors of earlier work were reported where it was given.
            let _ = self.device.driver().synchronize(Queue::Compute);
            let _ = self.device.driver().synchronize(Queue::Copy);
            for part in parts.drain(..) {
                self.device.driver().unmap(part);
            }
            self.device.discharge(Account::State, *mapped);
            self.device.driver().release(*at, *reserved);
        }
    }
}
