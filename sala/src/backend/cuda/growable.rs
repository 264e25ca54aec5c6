//! Caches that grow without moving: reserved address space for the largest context, memory mapped for the part in use.
//!
//! Kernels see one array at a constant address, so CUDA graphs stay valid while a conversation grows.
//!
//! Forks share the memory below the fork, at addresses of their own ([`Growable::share`]). Shared memory is never
//! written: before a write the array replaces it by memory of its own ([`Growable::own`]).
//!
//! With [`Home::Host`] the memory is the host's, at addresses that kernels and the host share.

use std::ops::Range;
use std::sync::Arc;

use super::device::{Account, Charge, Device};
use super::driver::{DevicePtr, Home, Mapping, Queue};
use crate::backend::{Result, internal, invariant};

/// Minimum growth, so that few steps wait for it.
const STEP_BYTES: usize = 2 << 20;
/// Maximum part: splitting or unsharing a part copies at most this much.
const PART_BYTES: usize = 64 << 20;
/// Growth adds this share of the array's own memory, so that long contexts grow rarely too.
const SPARE_SHARE: usize = 32;

fn charge(device: &Device, home: Home, bytes: usize) -> Arc<Charge> {
    let account = match home {
        Home::Device => Account::State,
        Home::Host => Account::Host,
    };
    Arc::new(device.charge(account, bytes))
}

struct Part {
    mapping: Mapping,
    charge: Arc<Charge>,
}

impl Part {
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.charge) > 1
    }
}

fn bytes_of(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.mapping.bytes).sum()
}

/// A reserved range, and the parts mapped so far from its start on without gaps.
pub(crate) struct Growable {
    device: Device,
    pub(crate) home: Home,
    pub(crate) at: DevicePtr,
    reserved: usize,
    pub(crate) mapped: usize,
    parts: Vec<Part>,
    step: usize,
}

impl Growable {
    /// Reserves `limit` bytes, without memory.
    pub(crate) fn new(device: &Device, home: Home, limit: usize) -> Result<Self> {
        let granularity = device.driver().granularity(home);
        let granularity = granularity.ok_or_else(|| internal("cache", "memory that the device does not map"))?;
        let reserved = limit.max(1).next_multiple_of(granularity);
        let step = STEP_BYTES.next_multiple_of(granularity).min(reserved);
        let at = device.driver().reserve(home, reserved)?;
        Ok(Growable { device: device.clone(), home, at, reserved, mapped: 0, parts: Vec::new(), step })
    }

    /// Bytes `range` of host memory.
    ///
    /// # Safety
    /// The device must not write them while the slice is used, nor read them if they are changed.
    #[expect(clippy::mut_from_ref, reason = "memory behind an address; who uses which part of it is up to the callers")]
    pub(crate) unsafe fn host(&self, range: Range<usize>) -> Result<&mut [u8]> {
        let holds = self.home == Home::Host && range.start <= range.end && range.end <= self.mapped;
        invariant(holds, "cache", "host memory that is not there")?;
        // SAFETY: mapped this far; the rest is the caller's.
        Ok(unsafe { std::slice::from_raw_parts_mut((self.at as usize + range.start) as *mut u8, range.len()) })
    }

    /// Splits bytes `range` at the borders of mappings, which a copy may not cross. Address and length of each piece.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Vec<(DevicePtr, usize)> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        for part in &self.parts {
            let (from, to) = (range.start.max(start), range.end.min(start + part.mapping.bytes));
            if from < to {
                pieces.push((self.at + from as u64, to - from));
            }
            start += part.mapping.bytes;
        }
        pieces
    }

    /// Bytes of memory, each divided by the number of arrays that share it: the sum over all arrays is the memory in
    /// use.
    pub(crate) fn share_of_memory(&self) -> usize {
        self.parts.iter().map(|part| part.mapping.bytes / Arc::strong_count(&part.charge).max(1)).sum()
    }

    pub(crate) fn wants(&self, bytes: usize) -> usize {
        self.grows_by(&self.parts, bytes)
    }

    /// Bytes that [`Growable::own`] of `from` and `keep`, then [`Growable::grow`] to `bytes`, would allocate.
    pub(crate) fn wants_anew(&self, from: usize, keep: usize, bytes: usize) -> usize {
        let (mut start, mut replaced) = (0, 0);
        for (index, part) in self.parts.iter().enumerate() {
            let end = start + part.mapping.bytes;
            if end > from && part.is_shared() {
                if start >= keep {
                    let (stay, go) = self.parts.split_at(index);
                    let freed: usize = go.iter().filter(|part| !part.is_shared()).map(|part| part.mapping.bytes).sum();
                    return (replaced + self.grows_by(stay, bytes)).saturating_sub(freed);
                }
                replaced += part.mapping.bytes;
            }
            start = end;
        }
        replaced + self.grows_by(&self.parts, bytes)
    }

    fn grows_by(&self, parts: &[Part], bytes: usize) -> usize {
        let mapped = bytes_of(parts);
        if bytes <= mapped {
            return 0;
        }
        // A new fork may need no more than one step.
        let own: usize = parts.iter().filter(|part| !part.is_shared()).map(|part| part.mapping.bytes).sum();
        bytes.max(mapped + own / SPARE_SHARE).next_multiple_of(self.step).min(self.reserved).saturating_sub(mapped)
    }

    /// Maps memory for the first `bytes` bytes. New memory is zero: block loads may touch rows past the last one, and
    /// a masked row times NaN would still be NaN.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let more = self.wants(bytes);
        if more == 0 {
            return Ok(());
        }
        if self.home == Home::Device {
            self.device.make_room(more)?;
        }
        let (until, most) = (self.mapped + more, PART_BYTES.next_multiple_of(self.step));
        while self.mapped < until {
            let (start, bytes) = (self.at + self.mapped as u64, most.min(until - self.mapped));
            let mapping = self.device.driver().map(self.home, start, bytes)?;
            self.parts.push(Part { mapping, charge: charge(&self.device, self.home, bytes) });
            self.mapped += bytes;
            if self.home == Home::Device {
                // SAFETY: just mapped with this size.
                unsafe { self.device.driver().fill(start, 0, bytes, Queue::Compute)? };
            }
        }
        Ok(())
    }

    /// Replaces the content by the first `bytes` bytes of `from`, in the same memory, rounded down to whole steps.
    /// Returns the number of bytes shared.
    pub(crate) fn share(&mut self, from: &mut Growable, bytes: usize) -> Result<usize> {
        let cut = bytes / from.step * from.step;
        if self.home != from.home {
            return Ok(0);
        }
        // The old memory may be shared, so it must not be written.
        self.cut(0)?;
        if cut == 0 {
            return Ok(0);
        }
        // Without room for the split, fewer bytes are shared.
        if let Err(error) = from.split(cut) {
            tracing::debug!(%error, "a cache is shared up to the part before its end");
        }
        for part in &from.parts {
            if self.mapped + part.mapping.bytes > cut {
                break;
            }
            let mapping = self.device.driver().map_again(self.at + self.mapped as u64, &part.mapping)?;
            self.mapped += part.mapping.bytes;
            self.parts.push(Part { mapping, charge: Arc::clone(&part.charge) });
        }
        Ok(self.mapped)
    }

    /// Prepares a write from byte `from` on, where bytes from `keep` on are dead: replaces shared memory before
    /// `keep`, and unmaps the first shared piece after it with all that follows; [`Growable::grow`] maps new memory.
    pub(crate) fn own(&mut self, from: usize, keep: usize) -> Result<()> {
        let (mut index, mut start) = (0, 0);
        while let Some(part) = self.parts.get(index) {
            let bytes = part.mapping.bytes;
            if start + bytes > from && part.is_shared() {
                if start >= keep {
                    return self.cut(index);
                }
                self.replace(index, &[bytes], bytes.min(keep - start))?;
            }
            (index, start) = (index + 1, start + bytes);
        }
        Ok(())
    }

    /// Makes a part end at byte `cut`. A shared part stays whole: its copy would belong to this array alone.
    fn split(&mut self, cut: usize) -> Result<()> {
        let mut start = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let bytes = part.mapping.bytes;
            if start < cut && cut < start + bytes {
                if part.is_shared() {
                    return Ok(());
                }
                let (after, most) = (start + bytes - cut, PART_BYTES.next_multiple_of(self.step));
                let mut lengths = vec![cut - start];
                lengths.extend((0..after).step_by(most).map(|at| most.min(after - at)));
                return self.replace(index, &lengths, bytes);
            }
            start += bytes;
        }
        Ok(())
    }

    /// Replaces the memory of a part by new pieces of `lengths` bytes; its first `keep` bytes are preserved, the
    /// others become zero. Waits for the device.
    fn replace(&mut self, index: usize, lengths: &[usize], keep: usize) -> Result<()> {
        let (driver, home_of) = (self.device.driver(), self.home);
        let (parts, mapped) = (&mut self.parts, &mut self.mapped);
        let Some(old) = parts.get(index) else { return Err(internal("own", "a part that is not there")) };
        let (home, bytes) = (old.mapping.at, old.mapping.bytes);
        if home_of == Home::Device {
            self.device.make_room(bytes)?;
        }
        let aside = driver.reserve(home_of, bytes)?;
        let mut pieces: Vec<Mapping> = Vec::with_capacity(lengths.len());
        let filled = (|| {
            for length in lengths {
                let at = aside + pieces.iter().map(|p| p.bytes as u64).sum::<u64>();
                pieces.push(driver.map(home_of, at, *length)?);
            }
            if home_of == Home::Device {
                // SAFETY: both are mapped with this size, and are different memory.
                unsafe {
                    if keep > 0 {
                        driver.copy(aside, home, keep, Queue::Compute)?;
                    }
                    if keep < bytes {
                        driver.fill(aside + keep as u64, 0, bytes - keep, Queue::Compute)?;
                    }
                }
            }
            // Nothing reads or writes the old memory after this.
            driver.synchronize(Queue::Copy)?;
            driver.synchronize(Queue::Compute)?;
            if home_of == Home::Host {
                // SAFETY: as above; the device has finished its writes. New host memory is zero.
                unsafe { std::ptr::copy_nonoverlapping(home as *const u8, aside as *mut u8, keep) };
            }
            Ok(())
        })();
        let done = filled.and_then(|()| {
            let old = parts.remove(index);
            driver.unmap(old.mapping);
            let mut at = home;
            for (i, piece) in pieces.iter().enumerate() {
                let mapping = match driver.map_again(at, piece) {
                    Ok(mapping) => mapping,
                    Err(error) => {
                        // Memory after a hole would be at the wrong offset: unmap it, [`Growable::grow`] maps it
                        // again.
                        parts.drain(index + i..).for_each(|part| driver.unmap(part.mapping));
                        *mapped = bytes_of(parts);
                        return Err(error);
                    }
                };
                at += piece.bytes as u64;
                parts.insert(index + i, Part { mapping, charge: charge(&self.device, home_of, piece.bytes) });
            }
            Ok(())
        });
        for piece in pieces {
            driver.unmap(piece);
        }
        driver.release(home_of, aside, bytes);
        done
    }

    /// Waits for the device.
    fn cut(&mut self, index: usize) -> Result<()> {
        if index < self.parts.len() {
            self.device.driver().synchronize(Queue::Copy)?;
            self.device.driver().synchronize(Queue::Compute)?;
            for part in self.parts.drain(index..) {
                self.mapped -= part.mapping.bytes;
                self.device.driver().unmap(part.mapping);
            }
        }
        Ok(())
    }
}

impl Drop for Growable {
    fn drop(&mut self) {
        // Memory must not vanish under a kernel; earlier errors were reported by their own calls.
        let _ = self.device.driver().synchronize(Queue::Compute);
        let _ = self.device.driver().synchronize(Queue::Copy);
        for part in self.parts.drain(..) {
            self.device.driver().unmap(part.mapping);
        }
        self.device.driver().release(self.home, self.at, self.reserved);
    }
}
