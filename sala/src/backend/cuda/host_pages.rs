//! Host memory mapped piece by piece into reserved ranges of addresses, like device memory. All pieces are parts of
//! one memory file, so that several ranges can map a piece at once, and a long context needs no file handles.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::{DevicePtr, failed};
use crate::backend::{BackendError, Result};

const LARGE_PAGE: usize = 2 << 20;
const SMALL_PAGE: usize = 4 << 10;
/// `madvise` value that makes large pages at once; Linux 6.1 and later.
const MADV_COLLAPSE: i32 = 25;

#[derive(Default)]
pub(super) struct HostPages {
    pieces: Mutex<Pieces>,
}

#[derive(Default)]
struct Pieces {
    file: Option<OwnedFd>,
    /// Offset of the next piece. Offsets are never reused: an old piece may still be mapped elsewhere.
    next: u64,
    held: HashMap<u64, usize>,
}

fn system(op: &str) -> BackendError {
    failed(op, std::io::Error::last_os_error())
}

impl Pieces {
    fn file(&mut self) -> Result<i32> {
        if let Some(file) = &self.file {
            return Ok(file.as_raw_fd());
        }
        // SAFETY: a fresh file in memory, owned from here on.
        let file = unsafe {
            match libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC) {
                file if file < 0 => return Err(system("memory file")),
                file => OwnedFd::from_raw_fd(file),
            }
        };
        Ok(self.file.insert(file).as_raw_fd())
    }

    /// # Safety
    /// As [`HostPages::map`].
    unsafe fn put(&mut self, at: DevicePtr, bytes: usize, place: u64) -> Result<()> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let file = self.file()?;
        // SAFETY: the caller's.
        let put = unsafe { libc::mmap(at as *mut c_void, bytes, rights, kind, file, place as libc::off_t) };
        if put == libc::MAP_FAILED {
            return Err(system("map"));
        }
        *self.held.entry(place).or_insert(0) += 1;
        Ok(())
    }
}

impl HostPages {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves addresses without memory, aligned to a large page: access faults.
    pub(super) fn reserve(bytes: usize) -> Result<DevicePtr> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous range that nothing may touch yet.
        let at = unsafe { libc::mmap(null_mut(), bytes + LARGE_PAGE, libc::PROT_NONE, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(system("reserve"));
        }
        let before = (at as usize).next_multiple_of(LARGE_PAGE) - at as usize;
        let end = at as usize + before + bytes.next_multiple_of(SMALL_PAGE);
        // SAFETY: both are in the range just made, before and after the returned part.
        unsafe {
            if before > 0 {
                libc::munmap(at, before);
            }
            libc::munmap(end as *mut c_void, at as usize + bytes + LARGE_PAGE - end);
        }
        Ok((at as usize + before) as DevicePtr)
    }

    /// # Safety
    /// From [`HostPages::reserve`]; the addresses are no longer used.
    pub(super) unsafe fn release(at: DevicePtr, bytes: usize) {
        // SAFETY: the caller's.
        unsafe { libc::munmap(at as *mut c_void, bytes) };
    }

    /// Maps a new zero piece into part of a reserved range; returns its offset.
    ///
    /// # Safety
    /// The range is from [`HostPages::reserve`] and long enough; whole pages.
    pub(super) unsafe fn map(&self, at: DevicePtr, bytes: usize) -> Result<u64> {
        let mut pieces = self.pieces();
        let (place, file) = (pieces.next, pieces.file()?);
        // SAFETY: the file is ours.
        if unsafe { libc::ftruncate(file, (place + bytes as u64) as libc::off_t) } != 0 {
            return Err(system("memory file"));
        }
        // SAFETY: the caller's.
        unsafe { pieces.put(at, bytes, place)? };
        // Large pages, made from the present small ones, are quicker to lock and to copy from; without them the memory
        // works the same.
        for page in (0..bytes).step_by(LARGE_PAGE) {
            // SAFETY: mapped just now, and zero; advice changes no contents.
            unsafe {
                ((at as usize + page) as *mut u8).write_volatile(0);
                libc::madvise((at as usize + page) as *mut c_void, LARGE_PAGE.min(bytes - page), MADV_COLLAPSE);
            }
        }
        pieces.next += bytes as u64;
        Ok(place)
    }

    /// # Safety
    /// As [`HostPages::map`]; the piece is mapped, and as long.
    pub(super) unsafe fn map_again(&self, at: DevicePtr, bytes: usize, piece: u64) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.pieces().put(at, bytes, piece) }
    }

    /// Restores the reservation; the memory is freed with its last mapping.
    ///
    /// # Safety
    /// From [`HostPages::map`]; the addresses are no longer used.
    pub(super) unsafe fn unmap(&self, at: DevicePtr, bytes: usize, piece: u64) {
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let mut pieces = self.pieces();
        // SAFETY: the caller's.
        unsafe { libc::mmap(at as *mut c_void, bytes, libc::PROT_NONE, none, -1, 0) };
        let left = pieces.held.get_mut(&piece).map_or(0, |held| {
            *held = held.saturating_sub(1);
            *held
        });
        if left == 0 {
            pieces.held.remove(&piece);
            if let Some(file) = &pieces.file {
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: the file is ours and nothing has this part of it any more.
                unsafe { libc::fallocate(file.as_raw_fd(), hole, piece as libc::off_t, bytes as libc::off_t) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_there_until_its_last_range_lets_go_of_it() {
        const BYTES: usize = 64 << 10;
        let pages = HostPages::default();
        let ranges = [(); 2].map(|()| HostPages::reserve(2 * BYTES).unwrap());
        // SAFETY: ranges of two pieces each, used by this test alone.
        unsafe {
            let word = |at: u64| &mut *(at as *mut u64);
            let first = pages.map(ranges[0], BYTES).unwrap();
            assert_eq!(*word(ranges[0]), 0);
            *word(ranges[0]) = 7;
            pages.map_again(ranges[1], BYTES, first).unwrap();
            pages.unmap(ranges[0], BYTES, first);
            // New memory at the same address differs from the other range's.
            let second = pages.map(ranges[0], BYTES).unwrap();
            assert_eq!((*word(ranges[0]), *word(ranges[1])), (0, 7));
            *word(ranges[0]) = 8;
            assert_eq!(*word(ranges[1]), 7);
            pages.unmap(ranges[1], BYTES, first);
            pages.unmap(ranges[0], BYTES, second);
            assert!(pages.pieces().held.is_empty());
            for range in ranges {
                HostPages::release(range, 2 * BYTES);
            }
        }
    }
}
