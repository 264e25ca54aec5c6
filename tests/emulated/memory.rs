//! Memory of the emulated device that detects accesses out of bounds: guard words before an allocation, a page that faults at its
//! end, NaN in it.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::super::driver::{DevicePtr, failed};
use crate::backend::Result;

/// Bytes of guard before an allocation.
const GUARD: usize = 256;
/// Allocations start at multiples of this: what kernels load at once.
const ALIGNMENT: usize = 16;
/// Of the host; larger ones only leave a page more unused.
const PAGE: usize = 4096;
/// What guards hold.
const GUARD_BYTE: u8 = 0xA5;
/// What fresh memory holds: NaN in bf16 and in f32.
pub(super) const POISON: u8 = 0xFF;

/// Where an allocation lies: a page that faults ends it, so that a kernel that reads beyond it does not get far.
struct Room {
    /// Of the mapping, the last page included.
    bytes: usize,
    /// From its start to the allocation.
    before: usize,
}

fn room_of(bytes: usize) -> Room {
    let used = bytes.next_multiple_of(ALIGNMENT);
    let room = (used + GUARD).next_multiple_of(PAGE);
    Room { bytes: room + PAGE, before: room - used }
}

/// The guard words before an allocation and those between its end and the page that faults.
pub(super) fn holds(at: u64, bytes: usize) -> bool {
    // SAFETY: `alloc` made the mapping with both.
    let (before, after) = unsafe {
        (
            std::slice::from_raw_parts((at as usize - GUARD) as *const u8, GUARD),
            std::slice::from_raw_parts((at as usize + bytes) as *const u8, bytes.next_multiple_of(ALIGNMENT) - bytes),
        )
    };
    before.iter().chain(after).all(|b| *b == GUARD_BYTE)
}

/// An allocation of so many bytes.
pub(super) fn alloc(bytes: usize) -> Result<DevicePtr> {
    let room = room_of(bytes);
    // SAFETY: a fresh anonymous mapping, filled up to its last page, which nothing may touch.
    unsafe {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let block = libc::mmap(null_mut(), room.bytes, rights, kind, -1, 0);
        if block == libc::MAP_FAILED {
            return Err(failed("alloc", format!("{bytes} bytes refused by the host")));
        }
        let block = block.cast::<u8>();
        if libc::mprotect(block.add(room.bytes - PAGE).cast(), PAGE, libc::PROT_NONE) != 0 {
            return Err(failed("alloc", std::io::Error::last_os_error()));
        }
        std::ptr::write_bytes(block, GUARD_BYTE, room.bytes - PAGE);
        std::ptr::write_bytes(block.add(room.before), POISON, bytes);
        Ok(block.add(room.before) as u64)
    }
}

/// Gives it back.
///
/// # Safety
/// `at` is from [`alloc`] with as many bytes, and is not used any more.
pub(super) unsafe fn free(at: DevicePtr, bytes: usize) {
    let room = room_of(bytes);
    // SAFETY: the caller's; with the same room.
    unsafe { libc::munmap((at as usize - room.before) as *mut c_void, room.bytes) };
}
