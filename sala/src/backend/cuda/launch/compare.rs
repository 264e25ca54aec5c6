//! Comparisons of results with each other.

use super::up64;

kernels! { "compare.cu", device:
    /// Sets `*found`, which is 0, where a and b differ in any of n16 16-byte words
    Differ [differ] (found: Ptr("u32*"), a: Ptr("const uint4*"), b: Ptr("const uint4*"), n16: u64)
    grid [up64(n16, 1024), 1, 1], threads 256, shared 0;
}
