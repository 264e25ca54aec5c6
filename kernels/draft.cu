// The draft head beside its GEMMs: its input, its window of keys (a ring over positions), attention of one query
// (docs/speculative.md §3.1). Angles are formed in double; k is stored rotated. Heads are 128 wide, at most 16 per KV head.
#include "attention.cuh"

constexpr u32 SLOTS = 128;  // ring slots of a launch block

// x[r] = [rmsnorm(scale · table[token]) | rmsnorm(g[r])]; with `normed`, g[r] becomes its normed form. One block a row.
KERNEL(256, 2)
draft_input(bf16* x, float* g, const bf16* table, const u32* tokens, const float* input_norm, const float* hidden_norm, float scale, float eps, u32 normed,
            u32 hidden, u32 vocab, u32 rows) {
    __shared__ float scratch[8];
    allow_next();
    wait_for_previous();
    const u32 r = blockIdx.x, token = tokens[r];
    bf16* to = x + u64(r) * 2 * hidden;
    const bf16* e = table + u64(token < vocab ? token : 0) * hidden;
    float s = 0.f;
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) {
        const uint2 v = *reinterpret_cast<const uint2*>(e + i);
        const float a = scale * widen_lo(v.x), b = scale * widen_hi(v.x), c = scale * widen_lo(v.y), d = scale * widen_hi(v.y);
        s = fmaf(a, a, fmaf(b, b, fmaf(c, c, fmaf(d, d, s))));
    }
    const float rstd = (token < vocab ? scale : 0.f) / sqrtf(block_sum(s, scratch) / float(hidden) + eps);  // zeros for an id outside
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) {
        const uint2 v = *reinterpret_cast<const uint2*>(e + i);
        const float4 w = *reinterpret_cast<const float4*>(input_norm + i);
        store_row4(to + i, make_float4(widen_lo(v.x) * rstd * w.x, widen_hi(v.x) * rstd * w.y, widen_lo(v.y) * rstd * w.z, widen_hi(v.y) * rstd * w.w));
    }
    float* stream = g + u64(r) * hidden;
    s = 0.f;
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) {
        const float4 v = load_fresh(stream + i);
        s = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, s))));
    }
    const float norm = 1.f / sqrtf(block_sum(s, scratch) / float(hidden) + eps);
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) {
        const float4 w = load4(hidden_norm + i);
        float4 v = load_fresh(stream + i);
        v = make_float4(v.x * norm * w.x, v.y * norm * w.y, v.z * norm * w.z, v.w * norm * w.w);
        store_row4(to + hidden + i, v);
        if (normed) *reinterpret_cast<float4*>(stream + i) = v;
    }
}

// (cos, sin) of pair i at `position`. The angle is a double: a float of a position beyond 100,000 is not exact enough.
DEVICE float2 turn_of(u32 i, u32 position, const double* inv_freq) {
    double s, c;
    sincos(double(position) * inv_freq[i], &s, &c);
    return make_float2(float(c), float(s));
}
// One pair (i, i + 64) of a head, rotated.
DEVICE void rotate_pair(bf16* dst, const bf16* src, u32 i, float2 turn) {
    const float a = widen(src[i]), b = widen(src[i + 64]);
    dst[i] = narrow(fmaf(a, turn.x, -b * turn.y));
    dst[i + 64] = narrow(fmaf(b, turn.x, a * turn.y));
}

// Block (row, KV head), a thread a pair of lanes. kv [rows, k (kv·128) | v (kv·128)].
KERNEL(64, 8)
draft_append(bf16* wk, bf16* wv, const bf16* kv, u32 ldkv, const double* inv_freq, const DraftStep* step, u32 capacity, u32 kv_heads, u32 rows) {
    allow_next();
    wait_for_previous();
    const u32 position = step->position + blockIdx.x;
    const u64 to = (u64(position % capacity) * kv_heads + blockIdx.y) * HEAD;
    const bf16* from = kv + u64(blockIdx.x) * ldkv + blockIdx.y * HEAD;
    rotate_pair(wk + to, from, threadIdx.x, turn_of(threadIdx.x, position, inv_freq));
    wv[to + threadIdx.x] = from[kv_heads * HEAD + threadIdx.x];
    wv[to + threadIdx.x + 64] = from[kv_heads * HEAD + threadIdx.x + 64];
}

// One query row at `position + row`. Slot s holds the newest position at or before the query's that is s modulo the
// capacity; it counts iff that lies inside the window. Block (128 slots, KV head), 4 warps.
KERNEL(128, 2)
draft_attend(float* part_o, float2* part_ml, const bf16* q, const bf16* wk, const bf16* wv, const double* inv_freq, const DraftStep* step, u32 capacity,
             u32 window, u32 heads, u32 kv_heads, float scale, u32 row, u32 splits) {
    SHARED_BYTES(bytes);
    __shared__ __align__(16) bf16 rotated[GROUP * HEAD];
    allow_next();
    wait_for_previous();
    const u32 group = heads / kv_heads, kv_head = blockIdx.y, position = step->position + row, width = kv_heads * HEAD;
    // A thread's pair is the same in every head it turns.
    const float2 turn = turn_of(threadIdx.x % 64, position, inv_freq);
    for (u32 i = threadIdx.x; i < group * 64; i += 128) rotate_pair(rotated + i / 64 * HEAD, q + (kv_head * group + i / 64) * HEAD, i % 64, turn);
    __syncthreads();  // the rotated queries
    auto queries = [&]() { return Queries::of(rotated, group); };
    const u32 slot0 = blockIdx.x * SLOTS + (threadIdx.x >> 5) * 32, head = position % capacity, first = step->first;
    auto live = [&](u32 j) {
        const u32 slot = slot0 + j;
        const u32 back = head >= slot ? head - slot : head + capacity - slot;  // positions before the query's
        return slot < capacity && back < window && back <= position && position - back >= first;
    };
    const u64 at = u64(kv_head * group) * splits + blockIdx.x;
    attend_128(bytes, queries, wk + kv_head * HEAD, wv + kv_head * HEAD, live, [&](u32 j) { return u64(slot0 + j) * width; }, scale, group, part_o + at * HEAD,
               part_ml + at, splits);
}

// Merges the parts of a head in ascending order. Block: one head, a thread a lane of it.
KERNEL(128, 8) draft_combine(bf16* o, const float* part_o, const float2* part_ml, u32 heads, u32 splits) {
    __shared__ float scratch[4];
    allow_next();
    wait_for_previous();
    part_o += u64(blockIdx.x) * splits * HEAD, part_ml += u64(blockIdx.x) * splits;
    float m = NEVER;
    for (u32 i = threadIdx.x; i < splits; i += 128) m = fmaxf(m, part_ml[i].x);
    m = warp_max(m);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = m;
    __syncthreads();  // maxima of the warps
    m = fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3]));
    float l = 0.f, y = 0.f;
#pragma unroll 16
    for (u32 i = 0; i < splits; i++) {
        const float2 ml = part_ml[i];
        const float f = exp2_fast(ml.x - m);
        l = fmaf(ml.y, f, l);
        y = fmaf(part_o[u64(i) * HEAD + threadIdx.x], f, y);
    }
    o[blockIdx.x * HEAD + threadIdx.x] = narrow(y / l);
}
