//! Kernel images embedded in the program: one fat binary per file of `kernels/`, made by `kernels/build.sh`.
//!
//! Each holds machine code for the architectures named in `kernels/README.md` and PTX for newer ones, so a user needs
//! the NVIDIA driver and nothing else.

/// Bytes with the alignment the driver's loader expects.
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(pub T);

/// One embedded image.
pub struct Image {
    /// File name without suffix, for messages.
    pub name: &'static str,
    /// A fat binary.
    pub data: &'static Aligned<[u8]>,
}

macro_rules! images {
    ($($name:literal),* $(,)?) => {
        &[$(Image { name: $name, data: &Aligned(*include_bytes!(concat!("../../../kernels/prebuilt/", $name, ".fatbin"))) }),*]
    };
}

/// Every image; symbols are unique over all of them.
pub const IMAGES: &[Image] = images![
    "compare",
    "draft",
    "fp8",
    "gemm",
    "lightning",
    "packed",
    "pool",
    "rows",
    "skinny",
    "skinny_group4",
    "skinny_int4",
    "skinny_int5",
    "skinny_int6",
    "skinny_int8",
    "skinny_mixed",
    "skinny_nvfp4",
    "sparse",
    "sparse_prefill",
    "top_logits"
];
