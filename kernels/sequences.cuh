// Rows of a verify pass, which may belong to several sequences: the position of each row, and the caches and states of
// its sequence. Each table has 16 entries, one a row, so that a kernel needs a single read per row. The host writes
// them between passes. The rows of a sequence are adjacent.
#pragma once
#include "common.cuh"

struct Row {
    u32 position;  // position of the row
    u32 start;     // position of the first row of its sequence
    u32 first;     // index of that first row in the pass
    u32 rows;      // number of the sequence's rows in the pass
    u32 pending;   // accepted rows that are not yet in the sequence's recurrent states
    u32 slot;      // half of the pending ring that holds them
    u32 reserved[2];
};

// First rows of the keys, values and compressed keys of a row's sequence in one sparse layer (layout: attention.cuh).
struct RowCache {
    bf16 *k, *v, *k1, *k2;
};

// State [heads][128][128] f32, pending ring [2][16][kv_heads][128] bf16 and slopes [heads] of a row's sequence in one
// lightning layer. The decay of a head is exp(−slope).
struct RowState {
    float* state;
    bf16 *pend_k, *pend_v;
    const float* slopes;
};
