// Keys and values of prefill in shared memory.
#pragma once
#include "attention.cuh"

// Tiles lie unpadded; 16-byte chunks of a row are permuted so that what a warp reads at once hits all banks.
// `key_at`: for lanes of two rows × four chunks; `value_at`: for matrices of eight rows of one chunk, also of keys.
DEVICE u32 key_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 1) << 2) * 8; }
DEVICE u32 value_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 7)) * 8; }

// The lane's 16 bytes of key 8·n + g, block b of 32.
DEVICE uint4 key_part(const bf16* keys, u32 n, u32 b) {
    const u32 lane = threadIdx.x & 31;
    return load16(keys + key_at(n * 8 + (lane >> 2), b * 4 + (lane & 3)));
}
