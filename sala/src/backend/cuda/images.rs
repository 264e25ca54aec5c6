//! Kernel images embedded in the program: one fat binary per file of `kernels/`, made by `kernels/build.sh`.
//!
//! Each holds machine code for the architectures named in `kernels/README.md` and PTX for newer ones, so a user needs
//! the NVIDIA driver and nothing else.

#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(pub T);

pub struct Image {
    pub name: &'static str,
    pub data: &'static Aligned<[u8]>,
}

macro_rules! images {
    ($($name:ident),+) => {
        &[$(Image {
            name: stringify!($name),
            data: &Aligned(*include_bytes!(concat!("../../../kernels/prebuilt/", stringify!($name), ".fatbin"))),
        }),+]
    };
}

/// The files of `kernels/`.
pub const IMAGES: &[Image] = images! {
    rows, skinny, skinny_int8, skinny_mixed, skinny_int4, skinny_int5, skinny_int6, skinny_group4, skinny_nvfp4, packed, fp8,
    lightning, lightning_prefill, sparse, sparse_select, sparse_scores, sparse_scores_hopper, sparse_attend, pool, top_logits, gemm, gemm_hopper, draft, compare
};
