//! Bytes of an array in one piece, or in pieces at equal distances, like the rows of a cache.

use super::driver::{DevicePtr, Driver, Pitched, Queue};
use crate::backend::{Result, internal};

#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    base: DevicePtr,
    /// Size of a piece, and distance between pieces.
    chunk: usize,
    pitch: usize,
    from: usize,
    pub(super) bytes: usize,
}

impl Stretch {
    pub(super) fn plain(at: DevicePtr, bytes: usize) -> Stretch {
        Stretch { base: at, chunk: usize::MAX, pitch: 0, from: 0, bytes }
    }

    pub(super) fn in_pieces(at: DevicePtr, chunk: usize, pitch: usize, bytes: usize) -> Stretch {
        if chunk == pitch { Stretch::plain(at, bytes) } else { Stretch { base: at, chunk, pitch, from: 0, bytes } }
    }

    pub(super) fn part(self, at: usize, bytes: usize) -> Stretch {
        Stretch { from: self.from + at, bytes, ..self }
    }

    fn address(&self, at: usize) -> DevicePtr {
        self.base + (at / self.chunk * self.pitch + at % self.chunk) as u64
    }

    fn spans(&self) -> Vec<Pitched> {
        let (mut at, end, mut spans) = (self.from, self.from + self.bytes, Vec::new());
        while at < end {
            let within = at % self.chunk;
            let (bytes, rows) = match (end - at) / self.chunk {
                whole if within == 0 && whole > 0 => (self.chunk, whole),
                _ => ((self.chunk - within).min(end - at), 1),
            };
            spans.push(Pitched { at: self.address(at), bytes, rows, pitch: self.pitch });
            at += bytes * rows;
        }
        spans
    }

    /// A slice of host memory.
    ///
    /// # Safety
    /// The bytes must be host memory in one piece that stays mapped for `'a`; the device must not write them
    /// meanwhile, nor read them if they are changed.
    pub(super) unsafe fn host<'a>(&self) -> Result<&'a mut [u8]> {
        match self.spans().as_slice() {
            [] => Ok(&mut []),
            // SAFETY: the caller's.
            [one] if one.rows == 1 => Ok(unsafe { std::slice::from_raw_parts_mut(one.at as *mut u8, one.bytes) }),
            _ => Err(internal("cache", "host memory in pieces")),
        }
    }

    /// # Safety
    /// As for [`Driver::copy_in`], for all bytes of the stretch.
    pub(super) unsafe fn copy_in(&self, driver: &dyn Driver, src: *const u8, queue: Queue) -> Result<()> {
        let mut done = 0;
        for span in self.spans() {
            // SAFETY: the caller's; the spans' bytes add up to what it has.
            unsafe {
                match span.rows {
                    1 => driver.copy_in(span.at, src.add(done), span.bytes, queue)?,
                    _ => driver.copy_in_rows(&span, src.add(done), queue)?,
                }
            }
            done += span.bytes * span.rows;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Driver::copy_out`], for all bytes of the stretch.
    pub(super) unsafe fn copy_out(&self, driver: &dyn Driver, dst: *mut u8, queue: Queue) -> Result<()> {
        let mut done = 0;
        for span in self.spans() {
            // SAFETY: the caller's; the spans' bytes add up to what it has.
            unsafe {
                match span.rows {
                    1 => driver.copy_out(dst.add(done), span.at, span.bytes, queue)?,
                    _ => driver.copy_out_rows(dst.add(done), &span, queue)?,
                }
            }
            done += span.bytes * span.rows;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(stretch: Stretch) -> Vec<(DevicePtr, usize)> {
        let of = |s: Pitched| (0..s.rows).map(move |row| (s.at + (row * s.pitch) as u64, s.bytes));
        stretch.spans().into_iter().flat_map(of).collect()
    }

    #[test]
    fn an_array_in_pieces_is_copied_in_as_few_as_it_has() {
        let array = Stretch::in_pieces(1000, 10, 100, 1 << 20);
        assert_eq!(pieces(array.part(0, 10)), [(1000, 10)]);
        assert_eq!(pieces(array.part(13, 4)), [(1103, 4)]);
        assert_eq!(pieces(array.part(17, 36)), [(1107, 3), (1200, 10), (1300, 10), (1400, 10), (1500, 3)]);
        assert_eq!(array.part(17, 36).spans().len(), 3);
        assert_eq!(pieces(array.part(17, 36).part(3, 5)), [(1200, 5)]);
        assert!(array.part(20, 0).spans().is_empty());
    }

    #[test]
    fn adjacent_rows_are_one_piece() {
        for array in [Stretch::plain(1000, 99), Stretch::in_pieces(1000, 10, 10, 99)] {
            assert_eq!(pieces(array.part(17, 50)), [(1017, 50)]);
        }
    }
}
