//! Finds GPUs, and checks whether one can run the kernels.

use cudarc::driver::{result, sys};

use crate::backend::Result;

/// The driver's own words.
pub(super) fn words(e: result::DriverError) -> String {
    e.error_string().map_or_else(|_| format!("{:?}", e.0), |words| words.to_string_lossy().into_owned())
}

/// Names of the GPUs that the driver lists; the error is the reason why there is none.
pub fn list() -> Result<Vec<String>, String> {
    // SAFETY: only opens the library and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err("driver not found (libcuda.so.1)".to_owned());
    }
    result::init().map_err(|e| format!("the driver does not start: {}", words(e)))?;
    let count = result::device::get_count().map_err(|e| format!("the driver lists no GPU: {}", words(e)))?;
    let name = |i| result::device::get(i).and_then(result::device::get_name);
    (0..count).map(|i| name(i).map_err(|e| format!("GPU {i}: {}", words(e)))).collect()
}

/// Takes no memory on the GPU.
///
/// # Errors
/// A sentence without the words "No usable NVIDIA GPU".
pub fn usable(ordinal: usize) -> Result<(), String> {
    find(ordinal).map(|_| ())
}

pub(super) struct Found {
    pub(super) device: sys::CUdevice,
    pub(super) name: String,
    /// Ten times the dotted number.
    pub(super) capability: u32,
}

pub(super) fn find(ordinal: usize) -> Result<Found, String> {
    use sys::CUdevice_attribute as A;
    let names = list()?;
    let missing = || format!("GPU {ordinal} was asked for, the driver lists {}", names.len());
    let name = names.get(ordinal).cloned().ok_or_else(missing)?;
    let index = i32::try_from(ordinal).map_err(|_| "GPU number too large".to_owned())?;
    let device = result::device::get(index).map_err(|e| format!("cuDeviceGet: {}", words(e)))?;
    let capability = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
        + attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if capability < 80 {
        let (major, minor) = (capability / 10, capability % 10);
        return Err(format!("{name} has compute capability {major}.{minor}, 8.0 or newer is needed"));
    }
    Ok(Found { device, name, capability })
}

pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, String> {
    // SAFETY: `device` came from the driver.
    let value = unsafe { result::device::get_attribute(device, which) }
        .map_err(|e| format!("cuDeviceGetAttribute: {}", words(e)))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

pub(super) fn allocation_kind(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    // SAFETY: an all-zero value is valid for this plain C structure of numbers and one nullable pointer.
    let mut kind: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    kind.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = device;
    kind
}
