//! Recurrent states that leave the device while work continues: the device makes a copy, and a thread reads it back.
//!
//! The caller continues at once, with tensors that receive their bytes later ([`TensorData`]). The compute queue makes
//! the copy, in order: its bytes are those of that moment. Large states, and states while memory is short ([`READY`]),
//! are read back directly, while the caller waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;

use super::device::{Account, Device, DeviceBuffer};
use super::driver::{DevicePtr, Event, Queue};
use super::staging::Staging;
use super::stretch::Stretch;
use crate::backend::Result;
use crate::engine::protocol::{Arriving, TensorData};

/// Limit of one snapshot: the recurrent states of a model.
const MOST: usize = 64 << 20;
/// Limit of all snapshots together: those of eight answers that end in one round.
const ALL: usize = 512 << 20;
/// A snapshot is allocated only while this many times its size is free: the rest belongs to conversations.
const READY: u64 = 32;
/// Rounding of snapshots, so that their memory is reusable.
const STEP: usize = 2 << 20;
const ALIGN: usize = 256;
/// The share of threads that fill memory with read-back bytes, and their limit.
const THREADS: [usize; 2] = [4, 4];

type Spare = Arc<Mutex<Vec<DeviceBuffer>>>;

struct Work {
    memory: DeviceBuffer,
    taken: Event,
    /// Address and size of each part, and the receiver of its bytes.
    parts: Vec<(DevicePtr, usize, Arriving)>,
}

pub(super) struct Readback {
    device: Device,
    to: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    spare: Spare,
    made: usize,
}

impl Readback {
    /// # Errors
    /// No page-locked memory, or the system cannot start a thread.
    pub(super) fn start(device: &Device) -> Result<Self> {
        let (to, work) = crossbeam_channel::unbounded::<Work>();
        let (spare, mut staging) = (Spare::default(), Staging::new(device)?);
        let (kept, own) = (Arc::clone(&spare), device.clone());
        let [share, most] = THREADS;
        // A separate pool: all threads of the common one may be waiting for this thread's results.
        let pool = rayon::ThreadPoolBuilder::new().num_threads((rayon::current_num_threads() / share).clamp(1, most));
        let pool = pool.build().map_err(|e| super::driver::failed("starting threads", e))?;
        let thread = std::thread::Builder::new().name("readback".into()).spawn(move || {
            for Work { memory, taken, parts } in work {
                pool.install(|| read(&own, &mut staging, &taken, parts));
                own.driver().drop_event(taken);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
            }
        });
        let thread = thread.map_err(|e| super::driver::failed("starting a thread", e))?;
        Ok(Readback { device: device.clone(), to: Some(to), thread: Some(thread), spare, made: 0 })
    }

    /// The bytes of these places after all work queued so far; `None` if they are too many for a snapshot.
    pub(super) fn take(&mut self, places: &[(DevicePtr, usize)]) -> Result<Option<Vec<TensorData>>> {
        let bytes = places.iter().map(|(_, bytes)| bytes.next_multiple_of(ALIGN)).sum::<usize>();
        if bytes == 0 {
            return Ok(None);
        }
        let (Some(to), Some(memory)) = (self.to.clone(), self.memory(bytes)?) else { return Ok(None) };
        let driver = self.device.driver();
        let (mut at, mut parts, mut data) = (memory.ptr(), Vec::new(), Vec::new());
        for (src, bytes) in places {
            if *bytes > 0 {
                // SAFETY: the caller owns the source; the snapshot has room for all parts, and nothing else uses it now.
                unsafe { driver.copy(at, *src, *bytes, Queue::Compute)? };
            }
            let (later, arriving) = TensorData::later();
            parts.push((at, *bytes, arriving));
            data.push(later);
            at += bytes.next_multiple_of(ALIGN) as u64;
        }
        let taken = driver.event()?;
        driver.record(&taken, Queue::Compute)?;
        // If the thread has ended, its parts are dropped, which their receivers report.
        let _ = to.send(Work { memory, taken, parts });
        Ok(Some(data))
    }

    fn memory(&mut self, bytes: usize) -> Result<Option<DeviceBuffer>> {
        if bytes > MOST {
            return Ok(None);
        }
        let size = bytes.next_multiple_of(STEP);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = spare.iter().position(|memory| memory.bytes() == size) {
            return Ok(Some(spare.swap_remove(at)));
        }
        drop(spare);
        if self.made + size > ALL || self.device.free_bytes()? < READY * size as u64 {
            return Ok(None);
        }
        let memory = self.device.alloc("a snapshot of state", size, Account::Work)?;
        self.made += size;
        Ok(Some(memory))
    }
}

fn read(device: &Device, staging: &mut Staging, taken: &Event, parts: Vec<(DevicePtr, usize, Arriving)>) {
    let places: Vec<Stretch> = parts.iter().map(|(at, bytes, _)| Stretch::plain(*at, *bytes)).collect();
    let fetched = device.driver().wait_host(taken).and_then(|()| staging.fetch_ready(&places));
    match fetched {
        Ok(all) => parts.into_iter().zip(all).for_each(|((.., arriving), data)| arriving.set(Ok(data))),
        Err(error) => parts.into_iter().for_each(|(.., arriving)| arriving.set(Err(error.to_string()))),
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed; unread parts are lost.
            let _ = thread.join();
        }
    }
}
