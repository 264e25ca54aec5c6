//! Caches that grow without moving: address space for the largest context, memory under what is used.
//!
//! Kernels see one contiguous array whose address never changes, so CUDA graphs stay valid while a conversation grows.
//! Where the device cannot reserve address space, the whole size is allocated at once.
//!
//! Arrays may have memory in common: what is below a fork is under the addresses of both ([`Growable::share`]). Nobody writes
//! there; who is about to makes it its own first ([`Growable::own`]).

use std::sync::Arc;

use super::device::{Account, Device, DeviceBuffer};
use super::driver::{DevicePtr, Mapping, Queue};
use crate::backend::{Result, internal};

/// Memory is added at least this much at a time, so that growth is rare beside steps.
const STEP_BYTES: usize = 2 << 20;
/// And by this share of what the array has for itself, so that long contexts grow rarely too.
const SPARE_SHARE: usize = 32;

/// Memory in the accounts, until its last holder lets go of it.
struct Charge {
    device: Device,
    bytes: usize,
}

impl Charge {
    fn new(device: &Device, bytes: usize) -> Arc<Charge> {
        device.charge(Account::State, bytes);
        Arc::new(Charge { device: device.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.discharge(Account::State, self.bytes);
    }
}

/// A piece of memory under the array.
struct Part {
    mapping: Mapping,
    /// Held by every array that has this piece.
    charge: Arc<Charge>,
}

impl Part {
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.charge) > 1
    }
}

enum Backing {
    /// Reserved range and what is under it so far, from its start on without gaps.
    Mapped { at: DevicePtr, reserved: usize, mapped: usize, parts: Vec<Part>, step: usize },
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
            Backing::Mapped { mapped, step, reserved, parts, .. } => {
                // A fork that has just begun may not need more than a step.
                let own: usize = parts.iter().filter(|part| !part.is_shared()).map(|part| part.mapping.bytes).sum();
                bytes.max(mapped + own / SPARE_SHARE).next_multiple_of(*step).min(*reserved).saturating_sub(*mapped)
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
            let mapping = self.device.driver().map(start, more)?;
            parts.push(Part { mapping, charge: Charge::new(&self.device, more) });
            *mapped += more;
            // SAFETY: just mapped with this size.
            unsafe { self.device.driver().fill(start, 0, more, Queue::Compute)? };
        }
        Ok(())
    }

    /// Makes the first bytes of this array those of `from`, in the same memory, as far as whole steps of the first `bytes`
    /// bytes reach; whatever it held is gone. Says how many bytes that are: none where the device cannot do it.
    pub(crate) fn share(&mut self, from: &mut Growable, bytes: usize) -> Result<usize> {
        let Backing::Mapped { step, .. } = &from.backing else { return Ok(0) };
        let cut = bytes / step * step;
        if !matches!(self.backing, Backing::Mapped { .. }) {
            return Ok(0);
        }
        // What was here may be others' too, and must not be written.
        self.cut(0)?;
        if cut == 0 {
            return Ok(0);
        }
        // Without room for it less is shared.
        if let Err(error) = from.split(cut) {
            tracing::debug!(%error, "a cache is shared up to the part before its end");
        }
        let (Backing::Mapped { at, mapped, parts, .. }, Backing::Mapped { parts: theirs, .. }) =
            (&mut self.backing, &from.backing)
        else {
            return Err(internal("share", "memory of another kind"));
        };
        for part in theirs {
            if *mapped + part.mapping.bytes > cut {
                break;
            }
            let mapping = self.device.driver().map_again(*at + *mapped as u64, &part.mapping)?;
            *mapped += part.mapping.bytes;
            parts.push(Part { mapping, charge: Arc::clone(&part.charge) });
        }
        Ok(*mapped)
    }

    /// What lies from byte `from` on is wanted no more and about to be written: memory there that is not this array's alone is
    /// replaced where `from` is in it, and given up with all behind it where it is not; [`Growable::grow`] brings new.
    pub(crate) fn own(&mut self, from: usize) -> Result<()> {
        let Backing::Mapped { parts, .. } = &self.backing else { return Ok(()) };
        let mut start = 0;
        for (index, part) in parts.iter().enumerate() {
            let bytes = part.mapping.bytes;
            if start + bytes > from && part.is_shared() {
                if start >= from {
                    return self.cut(index);
                }
                self.replace(index, &[bytes], from - start)?;
                // Whatever follows lies behind.
                return self.own_behind(index + 1);
            }
            start += bytes;
        }
        Ok(())
    }

    fn own_behind(&mut self, index: usize) -> Result<()> {
        let Backing::Mapped { parts, .. } = &self.backing else { return Ok(()) };
        match parts.iter().skip(index).position(Part::is_shared) {
            Some(at) => self.cut(index + at),
            None => Ok(()),
        }
    }

    /// Sees that a part ends at byte `cut`, where there is memory on both sides.
    fn split(&mut self, cut: usize) -> Result<()> {
        let Backing::Mapped { parts, .. } = &self.backing else { return Ok(()) };
        let mut start = 0;
        for (index, part) in parts.iter().enumerate() {
            let bytes = part.mapping.bytes;
            if start < cut && cut < start + bytes {
                return self.replace(index, &[cut - start, start + bytes - cut], bytes);
            }
            start += bytes;
        }
        Ok(())
    }

    /// Puts new memory in the place of a part, in pieces of `lengths` bytes; its first `keep` bytes stay what they were, the others
    /// become zero. Waits for the device.
    fn replace(&mut self, index: usize, lengths: &[usize], keep: usize) -> Result<()> {
        let driver = self.device.driver();
        let Backing::Mapped { parts, .. } = &mut self.backing else { return Ok(()) };
        let Some(old) = parts.get(index) else { return Err(internal("own", "a part that is not there")) };
        let (home, bytes) = (old.mapping.at, old.mapping.bytes);
        let aside = driver.reserve(bytes)?;
        let mut pieces: Vec<Mapping> = Vec::with_capacity(lengths.len());
        let filled = (|| {
            for length in lengths {
                let at = aside + pieces.iter().map(|p| p.bytes as u64).sum::<u64>();
                pieces.push(driver.map(at, *length)?);
            }
            // SAFETY: both are mapped with this size, and are different memory.
            unsafe {
                if keep > 0 {
                    driver.copy(aside, home, keep, Queue::Compute)?;
                }
                if keep < bytes {
                    driver.fill(aside + keep as u64, 0, bytes - keep, Queue::Compute)?;
                }
            }
            // Nothing reads or writes the old memory after this.
            driver.synchronize(Queue::Copy)?;
            driver.synchronize(Queue::Compute)
        })();
        let done = filled.and_then(|()| {
            let old = parts.remove(index);
            driver.unmap(old.mapping);
            let mut at = home;
            for (i, piece) in pieces.iter().enumerate() {
                let mapping = driver.map_again(at, piece)?;
                at += piece.bytes as u64;
                parts.insert(index + i, Part { mapping, charge: Charge::new(&self.device, piece.bytes) });
            }
            Ok(())
        });
        for piece in pieces {
            driver.unmap(piece);
        }
        driver.release(aside, bytes);
        done
    }

    /// Takes the memory of part `index` and of all behind it away. Waits for the device.
    fn cut(&mut self, index: usize) -> Result<()> {
        if let Backing::Mapped { mapped, parts, .. } = &mut self.backing
            && index < parts.len()
        {
            self.device.driver().synchronize(Queue::Copy)?;
            self.device.driver().synchronize(Queue::Compute)?;
            for part in parts.drain(index..) {
                *mapped -= part.mapping.bytes;
                self.device.driver().unmap(part.mapping);
            }
        }
        Ok(())
    }
}

impl Drop for Growable {
    fn drop(&mut self) {
        if let Backing::Mapped { at, reserved, parts, .. } = &mut self.backing {
            // Memory must not vanish under a kernel; errors of earlier work were reported where it was given.
            let _ = self.device.driver().synchronize(Queue::Compute);
            let _ = self.device.driver().synchronize(Queue::Copy);
            for part in parts.drain(..) {
                self.device.driver().unmap(part.mapping);
            }
            self.device.driver().release(*at, *reserved);
        }
    }
}
