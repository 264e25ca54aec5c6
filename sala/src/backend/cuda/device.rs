//! A device with its accounting: owned memory, page-locked staging, and the total of each kind of memory.
//!
//! Buffers free their memory when they are dropped; a buffer never moves. Graphs hold raw addresses, so they are
//! dropped before the buffers they name (see [`super::graph`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DevicePtr, Driver, Queue};
use crate::backend::{BackendError, Result};
use crate::engine::protocol::MemoryInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    Weights,
    State,
    Work,
    /// Copies on the device of blocks that are in host memory.
    Pool,
    Host,
}

#[derive(Default)]
struct Accounts {
    /// Indexed by [`Account`].
    bytes: [AtomicU64; 5],
    fenced: Mutex<HashMap<DevicePtr, usize>>,
}

const GUARD_BYTES: usize = 256;
const GUARD: u8 = 0xA5;

/// Whether allocations end with guard words, for `Device::check_guards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Guards {
    #[default]
    Off,
    On,
}

#[derive(Clone)]
pub(crate) struct Device {
    driver: Arc<dyn Driver>,
    accounts: Arc<Accounts>,
    spare: Arc<Spare>,
    guards: Guards,
    most: Option<u64>,
}

pub(crate) type SpareKey = (u64, usize);

/// Buffers that only save work; they are freed when memory is needed. A user holds its buffer until the kernels that
/// read it are launched; freeing memory waits for the device.
#[derive(Default)]
pub(crate) struct Spare(Mutex<HashMap<SpareKey, Arc<DeviceBuffer>>>);

impl Spare {
    fn kept(&self) -> MutexGuard<'_, HashMap<SpareKey, Arc<DeviceBuffer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: SpareKey) -> Option<Arc<DeviceBuffer>> {
        self.kept().get(&key).cloned()
    }

    fn bytes(&self) -> u64 {
        self.kept().values().map(|buffer| buffer.bytes() as u64).sum()
    }

    pub(crate) fn give_up(&self) {
        let given = std::mem::take(&mut *self.kept());
        drop(given);
    }
}

/// This share of the program's memory stays free when a spare buffer is allocated, so that other allocations rarely
/// evict it.
const KEPT_FREE: u64 = 64;

/// Memory of a real device beyond the program's allocations: context (533 MiB on an H200), code of kernels, graphs,
/// the GEMM library.
const CONTEXT_BYTES: u64 = 704 << 20;

impl Device {
    pub(crate) fn new(driver: Arc<dyn Driver>, guards: Guards, most: Option<u64>) -> Self {
        Device { driver, accounts: Arc::default(), spare: Arc::default(), guards, most }
    }

    /// Whether the device is closed: no buffer, graph or thread holds it any more.
    #[cfg(feature = "emulated")]
    pub(super) fn closes(&self) -> impl Fn() -> bool + Send + use<> {
        let driver = Arc::downgrade(&self.driver);
        move || driver.strong_count() == 0
    }

    /// Bytes that may still be allocated: free on the device or spare, and within the program's limit.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        Ok(self.untaken_bytes()? + self.spare.bytes())
    }

    fn untaken_bytes(&self) -> Result<u64> {
        let free = self.driver.free_bytes()?;
        let context = if self.driver.info().driver_version > 0 { CONTEXT_BYTES } else { 0 };
        let taken = [Account::Weights, Account::State, Account::Work, Account::Pool]
            .into_iter()
            .map(|account| self.account(account))
            .sum::<u64>();
        Ok(self.most.map_or(free, |most| most.saturating_sub(taken + context).min(free)))
    }

    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Memory for a buffer that saves work, under its own key; `None` if little would be left to others.
    pub(crate) fn spare_room(&self, key: SpareKey, bytes: usize) -> Result<Option<Arc<DeviceBuffer>>> {
        let all = self.driver.info().total_bytes;
        if self.untaken_bytes()? < bytes as u64 + self.most.unwrap_or(all).min(all) / KEPT_FREE {
            return Ok(None);
        }
        let made = Arc::new(self.alloc("weights in e4m3", bytes, Account::Weights)?);
        self.spare.kept().insert(key, Arc::clone(&made));
        Ok(Some(made))
    }

    /// Frees spare buffers if `bytes` more would not fit otherwise.
    pub(crate) fn make_room(&self, bytes: usize) -> Result<()> {
        if self.untaken_bytes()? < bytes as u64 {
            self.spare.give_up();
        }
        Ok(())
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        self.driver.as_ref()
    }

    /// Work queued on `then` from now on waits for the present work of `first`.
    pub(crate) fn order(&self, first: Queue, then: Queue) -> Result<()> {
        let event = self.driver.event()?;
        let ordered = self.driver.record(&event, first).and_then(|()| self.driver.wait(then, &event));
        self.driver.drop_event(event);
        ordered
    }

    fn account(&self, account: Account) -> u64 {
        self.accounts.bytes[account as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn charge(&self, account: Account, bytes: usize) -> Charge {
        self.accounts.bytes[account as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        Charge { device: self.clone(), account, bytes }
    }

    /// `used` is the device's count, other programs included; `total` is that plus the bytes that may still be
    /// allocated.
    pub(crate) fn memory(&self) -> MemoryInfo {
        let total = self.driver.info().total_bytes;
        let used = self.driver.free_bytes().map_or(0, |free| total.saturating_sub(free));
        MemoryInfo {
            weights: self.account(Account::Weights),
            state: self.account(Account::State),
            work: self.account(Account::Work),
            pool: self.account(Account::Pool),
            host: self.account(Account::Host),
            used,
            total: self.untaken_bytes().map_or(total, |free| total.min(used + free)),
        }
    }

    pub(crate) fn alloc(&self, what: &str, bytes: usize, account: Account) -> Result<DeviceBuffer> {
        let free = self.free_bytes()?;
        if bytes as u64 > free {
            return Err(BackendError::Memory {
                what: what.to_owned(),
                needed: bytes as u64,
                free,
                advice: "close other programs on the GPU, or choose a smaller model with --model".to_owned(),
            });
        }
        self.make_room(bytes)?;
        let ptr = match self.guards {
            Guards::Off => self.driver.alloc(bytes)?,
            Guards::On => {
                let ptr = self.driver.alloc(bytes + GUARD_BYTES)?;
                // SAFETY: the guard follows the buffer, inside the allocation.
                unsafe { self.driver.fill(ptr + bytes as u64, GUARD, GUARD_BYTES, Queue::Compute)? };
                self.fenced().insert(ptr, bytes);
                ptr
            }
        };
        Ok(DeviceBuffer { ptr, charge: self.charge(account, bytes) })
    }

    pub(crate) fn zeroed(&self, what: &str, bytes: usize, account: Account) -> Result<DeviceBuffer> {
        let buffer = self.alloc(what, bytes, account)?;
        // SAFETY: the buffer was just made with this size.
        unsafe { self.driver.fill(buffer.ptr, 0, bytes, Queue::Compute)? };
        Ok(buffer)
    }

    fn fenced(&self) -> MutexGuard<'_, HashMap<DevicePtr, usize>> {
        self.accounts.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits.
    pub(crate) fn check_guards(&self) -> Result<()> {
        let fenced: Vec<(DevicePtr, usize)> = self.fenced().iter().map(|(at, bytes)| (*at, *bytes)).collect();
        let mut words = vec![GUARD; fenced.len() * GUARD_BYTES];
        for ((at, bytes), guard) in fenced.iter().zip(words.chunks_exact_mut(GUARD_BYTES)) {
            // SAFETY: the guard is part of the allocation; the host reads after the wait.
            unsafe { self.driver.copy_out(guard.as_mut_ptr(), at + *bytes as u64, GUARD_BYTES, Queue::Compute)? };
        }
        self.driver.synchronize(Queue::Compute)?;
        match fenced.iter().zip(words.chunks_exact(GUARD_BYTES)).find(|(_, guard)| guard.iter().any(|b| *b != GUARD)) {
            None => Ok(()),
            Some(((_, bytes), _)) => Err(super::driver::failed(
                "guard words",
                format!("a kernel wrote past the end of a buffer of {bytes} bytes"),
            )),
        }
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned> {
        Ok(Pinned { ptr: self.driver.host_alloc(bytes)?, bytes, device: self.clone() })
    }
}

pub(crate) struct Charge {
    device: Device,
    account: Account,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.accounts.bytes[self.account as usize].fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

pub(crate) struct DeviceBuffer {
    ptr: DevicePtr,
    charge: Charge,
}

impl DeviceBuffer {
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(crate) fn bytes(&self) -> usize {
        self.charge.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let device = &self.charge.device;
        if device.guards == Guards::On {
            device.fenced().remove(&self.ptr);
        }
        device.driver.free(self.ptr);
    }
}

pub(crate) struct Pinned {
    device: Device,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: plain host memory, owned by this value alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with this size; callers wait for copies first.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.device.driver.host_free(self.ptr);
    }
}
