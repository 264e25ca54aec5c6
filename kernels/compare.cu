// Compares two arrays bit for bit, to check that the GEMM library returns the same bits for the same input. No copy to the host.
//
// One block of 256 threads compares 1024 words of 16 bytes; both arrays are read once.
#include "common.cuh"

// Sets `*found` where a and b differ in any of n16 16-byte words; the caller has set it to 0.
KERNEL(256, 4) differ(u32* found, const uint4* a, const uint4* b, u64 n16) {
    wait_for_previous();
    allow_next();
    bool other = false;
    for (u32 j = 0; j < 4; j++) {
        const u64 i = u64(blockIdx.x) * 1024 + j * 256 + threadIdx.x;
        if (i >= n16) continue;
        const uint4 x = load16(a + i), y = load16(b + i);
        other |= x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    // All threads that write store the same value.
    if (other) *found = 1;
}
