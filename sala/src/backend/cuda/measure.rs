//! Measured ceilings of a device, for comparison with achieved speeds.
//!
//! Every figure is the best of several timed runs over more memory than the caches hold, by the device's own clock.

use serde::Serialize;

use super::device::{Account, DeviceBuffer};
use super::driver::{GemmOut, Queue};
use super::ops::{Narrow, Output};
use super::{Cuda, check_shape, launch};
use crate::backend::{Form, Memory, Result, Steps};

/// Zero where a measurement does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ceilings {
    pub read_gb_per_s: f64,
    /// Device-to-device copy, bytes read plus bytes written.
    pub copy_gb_per_s: f64,
    pub gemm_tflops: f64,
    /// From page-locked host memory.
    pub to_device_gb_per_s: f64,
}

const RUNS: usize = 6;

impl Cuda {
    /// Compares two arrays of 16-byte words with the kernel that proves the GEMM library.
    pub fn differ(&mut self, a: &[u8], b: &[u8]) -> Result<bool> {
        let fits = a.len() == b.len() && a.len().is_multiple_of(16);
        check_shape(fits, "differ", "equally many words of 16 bytes", format_args!("{} and {}", a.len(), b.len()))?;
        let device = self.device.clone();
        let made = |bytes| device.zeroed("measurement", bytes, Account::Work);
        let (first, second, flag) = (made(a.len())?, made(b.len())?, made(16)?);
        self.staging.send_bytes(first.ptr(), a)?;
        self.staging.send_bytes(second.ptr(), b)?;
        let n16 = (a.len() / 16) as u64;
        // SAFETY: both arrays have so many words, the flag is one.
        unsafe { launch::Differ { found: flag.ptr(), a: first.ptr(), b: second.ptr(), n16 }.launch(device.driver())? };
        Ok(self.staging.fetch(flag.ptr(), 4)? != [0; 4])
    }

    /// bf16 rows of `n` values in e4m3, and their scales, as prefill in fp8 makes them.
    pub fn narrowed(&mut self, values: &[u16], n: usize) -> Result<(Vec<u8>, Vec<f32>)> {
        let rows = values.len() / n.max(1);
        let fits = !values.is_empty() && rows * n == values.len() && n.is_multiple_of(8);
        check_shape(fits, "narrow", "rows of a multiple of 8 values", format_args!("{} of {n}", values.len()))?;
        let device = self.device.clone();
        let made = |bytes| device.zeroed("measurement", bytes, Account::Work);
        let (from, to, scales) = (made(values.len() * 2)?, made(values.len())?, made(rows * 4)?);
        self.staging.send_bytes(from.ptr(), bytemuck::cast_slice(values))?;
        self.narrow(Narrow { values: to.ptr(), scales: scales.ptr() }, from.ptr(), rows, n)?;
        let bytes = self.staging.fetch(to.ptr(), values.len())?;
        let scales = self.staging.fetch(scales.ptr(), rows * 4)?;
        Ok((bytes, scales.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()))
    }

    /// f32 rows of `n` values after a norm and a gate (either may be empty) in e4m3 with their scales, made directly
    /// and by way of bf16.
    pub fn gated(&mut self, values: &[f32], norm: &[f32], gate: &[u16], n: usize) -> Result<[Vec<u8>; 2]> {
        let rows = values.len() / n.max(1);
        let fits = |given: usize, wanted: usize| given == 0 || given == wanted;
        let whole = !values.is_empty() && rows * n == values.len() && fits(norm.len(), n) && fits(gate.len(), rows * n);
        check_shape(whole, "gate", "whole rows", format_args!("{} of {n}", values.len()))?;
        let device = self.device.clone();
        let made = |bytes: usize| device.zeroed("measurement", bytes.max(16), Account::Work);
        let (o, plain) = (made(values.len() * 4)?, made(values.len() * 2)?);
        self.staging.send_bytes(o.ptr(), bytemuck::cast_slice(values))?;
        let (norm_at, gate_at) = (made(norm.len() * 4)?, made(gate.len() * 2)?);
        self.staging.send_bytes(norm_at.ptr(), bytemuck::cast_slice(norm))?;
        self.staging.send_bytes(gate_at.ptr(), bytemuck::cast_slice(gate))?;
        let norm = if norm.is_empty() { 0 } else { norm_at.ptr() };
        let gate = if gate.is_empty() { 0 } else { gate_at.ptr() };
        let bytes = (rows * n).next_multiple_of(16);
        let (direct, by_way) = (made(bytes + rows * 4)?, made(bytes + rows * 4)?);
        let at = |buffer: &DeviceBuffer| Narrow { values: buffer.ptr(), scales: buffer.ptr() + bytes as u64 };
        let (o, eps) = (o.ptr(), 1e-5);
        let Narrow { values: dst, scales } = at(&direct);
        // SAFETY: all arrays have so many rows of so many values.
        unsafe {
            launch::NarrowGated { dst, scales, o, ldo: n, norm, eps, gate, ldg: n, n, rows }.launch(device.driver())?;
            let dst = plain.ptr();
            launch::GateRows { dst, ldd: n, sums: 0, o, ldo: n, norm, eps, gate, ldg: n, n, rows }
                .launch(device.driver())?;
        }
        self.narrow(at(&by_way), plain.ptr(), rows, n)?;
        let mut fetch = |buffer: &DeviceBuffer| self.staging.fetch(buffer.ptr(), bytes + rows * 4);
        Ok([fetch(&direct)?, fetch(&by_way)?])
    }

    pub fn ceilings(&mut self, bytes: usize, n: usize) -> Result<Ceilings> {
        let device = self.device.clone();
        let (from, to) =
            (device.zeroed("measurement", bytes, Account::Work)?, device.zeroed("measurement", bytes, Account::Work)?);
        // Not zeros: some hardware is faster on them.
        // SAFETY: the buffer has this many bf16 values.
        unsafe {
            launch::RandomBf16 { dst: from.ptr(), n: (bytes / 2) as u64, std: 1.0, seed: 1 }.launch(device.driver())?
        };
        let copy = self.best(|b| {
            // SAFETY: two buffers of this size.
            unsafe { b.device.driver().copy(to.ptr(), from.ptr(), bytes, Queue::Compute) }
        })?;
        let read = self.best(|b| {
            // SAFETY: `from` has this many words; `to` has room for a sum per block.
            unsafe {
                launch::MeasureRead { out: to.ptr(), src: from.ptr(), n16: (bytes / 16) as u64 }
                    .launch(b.device.driver())
            }
        })?;
        let pinned = device.pinned(bytes.min(256 << 20))?;
        let part = pinned.bytes();
        let host = pinned.as_ptr();
        let inward = self.best(|b| {
            // SAFETY: page-locked memory of this size, alive until the timer has waited.
            unsafe { b.device.driver().copy_in(to.ptr(), host, part, Queue::Compute) }
        })?;
        drop((from, to));
        let w = self.random_matrix(&[(n, Form::Bf16)], n, 0.02, 2)?;
        let x = self.random_matrix(&[(n, Form::Bf16)], n, 1.0, 3)?;
        let d = device.zeroed("measurement", n * n * 2, Account::Work)?;
        let (x_ptr, d_ptr) = (self.widened(&x, 0..n)?, d.ptr());
        self.segment_at(usize::MAX);
        let gemm = self.best(|b| {
            let input = b.plain_input(x_ptr, &w, n)?;
            b.gemm(input, &w, None, Output { d: d_ptr, ldd: n, to: GemmOut::Bf16, scale: 1.0 })
        })?;
        let rate = |amount: f64, ms: f32| {
            if ms > 0.0 { amount / f64::from(ms) } else { 0.0 }
        };
        Ok(Ceilings {
            read_gb_per_s: rate(bytes as f64 / 1e6, read),
            copy_gb_per_s: rate(2.0 * bytes as f64 / 1e6, copy),
            gemm_tflops: rate(2.0 * (n as f64).powi(3) / 1e9, gemm),
            to_device_gb_per_s: rate(part as f64 / 1e6, inward),
        })
    }

    fn best(&mut self, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<f32> {
        work(self)?;
        let mut best = f32::INFINITY;
        for _ in 0..RUNS {
            best = best.min(self.timed(&mut work)?);
        }
        Ok(best)
    }
}
