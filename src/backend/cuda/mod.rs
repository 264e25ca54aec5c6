//! The GPU backend: launches kernels, owns device memory, records decode steps.
//!
//! `driver` is the border to a device; everything above it runs the same on a GPU (`nvidia`) and on the emulated device
//! (`emulated`), which is how it is tested without one. Unsafe code is confined to this folder.
#![allow(unsafe_code)]

mod device;
pub(crate) mod driver;
mod emulated;
mod growable;
mod images;
mod nvidia;
mod products;
