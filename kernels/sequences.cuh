// Rows of a verify pass, which may be those of several sequences: where each row stands, and in whose caches and states. Both
// tables have an entry for each of 16 rows, so that a kernel finds what it needs with one read; the host writes them between
// passes. A sequence's rows lie beside each other.
#pragma once
#include "common.cuh"

struct Row {
    u32 position;  // of the row
    u32 start;     // of the first row of its sequence
    u32 first;     // that row's place in the pass
    u32 rows;      // of its sequence in the pass
    u32 pending;   // accepted rows that are not yet in its recurrent states
    u32 slot;      // half of the pending ring that holds them
    u32 reserved[2];
};

// Keys, values and compressed keys of a row's sequence in one sparse layer: its first rows (attention.cuh says where the others are).
struct RowCache {
    bf16 *k, *v, *k1, *k2;
};

// State, pending ring and decay rates of a row's sequence in one lightning layer.
struct RowState {
    float* state;
    bf16 *pend_k, *pend_v;
    const float* slopes;
};
