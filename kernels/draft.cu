// The EAGLE-3 draft head apart from its GEMMs (docs/speculative.md §3.1): its input, its window of keys and values, and
// attention of one query.
//   x = [rmsnorm(scale · table[token]) | rmsnorm(g)],  o = Σ_j softmax_j(scale · q · k_j) v_j over the window.
//
// The window wk, wv is a ring over positions, [capacity][kv_heads][128] bf16: position p is in ring slot p % capacity.
// Keys are stored rotated (half-split pairs i, i + 64), with angles formed in double. Heads are 128 wide, at most 16
// per KV head.
//
// A row's bits do not depend on the number of rows, and every sum has one order.
#include "attention.cuh"

constexpr u32 SLOTS = 128;  // ring slots of a thread block

// x [rows][2 · hidden] bf16: x[r] = [rmsnorm(scale · table[tokens[r]]) | rmsnorm(g[r])]. The first half is zero for a
// token outside of the vocabulary. g is f32 [rows][hidden]; with `normed` its rows are replaced by their normed form.
// Grid (row), 256 threads.
// Bytes moved: a row of the table and one of g, each read twice, the second time from cache; x once.
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
    const float rstd = (token < vocab ? scale : 0.f) / sqrtf(block_sum(s, scratch) / float(hidden) + eps);
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

// (cos, sin) of pair i at `position`. The angle is a double: a float is not exact enough beyond position 100,000.
DEVICE float2 rotation_of(u32 i, u32 position, const double* inv_freq) {
    double s, c;
    sincos(double(position) * inv_freq[i], &s, &c);
    return make_float2(float(c), float(s));
}
// Rotates the pair (i, i + 64) of a head.
DEVICE void rotate_pair(bf16* dst, const bf16* src, u32 i, float2 turn) {
    const float a = widen(src[i]), b = widen(src[i + 64]);
    dst[i] = narrow(fmaf(a, turn.x, -b * turn.y));
    dst[i + 64] = narrow(fmaf(b, turn.x, a * turn.y));
}

// Writes the rotated keys and the values of rows step->position, step->position + 1, .. into the window. kv is bf16
// [rows][ldkv] with columns [k (kv_heads · 128) | v (kv_heads · 128)].
// Bytes moved: kv read once, the window's slots written once.
// Grid (row, KV head), 64 threads, one a pair (i, i + 64) of columns.
KERNEL(64, 8)
draft_append(bf16* wk, bf16* wv, const bf16* kv, u32 ldkv, const double* inv_freq, const DraftStep* step, u32 capacity, u32 kv_heads, u32 rows) {
    allow_next();
    wait_for_previous();
    const u32 position = step->position + blockIdx.x;
    const u64 to = (u64(position % capacity) * kv_heads + blockIdx.y) * HEAD;
    const bf16* from = kv + u64(blockIdx.x) * ldkv + blockIdx.y * HEAD;
    rotate_pair(wk + to, from, threadIdx.x, rotation_of(threadIdx.x, position, inv_freq));
    wv[to + threadIdx.x] = from[kv_heads * HEAD + threadIdx.x];
    wv[to + threadIdx.x + 64] = from[kv_heads * HEAD + threadIdx.x + 64];
}

// Partial attention of one query at step->position + row to 128 ring slots. Slot s holds the newest position at or
// before the query's that is s modulo `capacity`; it counts if that position exists (not before step->first) and is one
// of the last `window`. Writes part_o [head][splits][128] f32 and part_ml [head][splits] as attend_128 defines them.
// Grid (split, KV head), 128 threads, splits = ceil(capacity / 128).
// Bytes moved: the window once.
KERNEL(128, 2)
draft_attend(float* part_o, float2* part_ml, const bf16* q, const bf16* wk, const bf16* wv, const double* inv_freq, const DraftStep* step, u32 capacity,
             u32 window, u32 heads, u32 kv_heads, float scale, u32 row, u32 splits) {
    SHARED_BYTES(bytes);
    __shared__ __align__(16) bf16 rotated[GROUP * HEAD];
    allow_next();
    wait_for_previous();
    const u32 group = heads / kv_heads, kv_head = blockIdx.y, position = step->position + row, width = kv_heads * HEAD;
    // A thread rotates the same pair in each of its heads.
    const float2 turn = rotation_of(threadIdx.x % 64, position, inv_freq);
    for (u32 i = threadIdx.x; i < group * 64; i += 128) rotate_pair(rotated + i / 64 * HEAD, q + (kv_head * group + i / 64) * HEAD, i % 64, turn);
    __syncthreads();  // rotated queries written
    auto queries = [&]() { return Queries::of(rotated, group); };
    const u32 slot0 = blockIdx.x * SLOTS + (threadIdx.x >> 5) * 32, head = position % capacity, first = step->first;
    auto live = [&](u32 j) {
        const u32 slot = slot0 + j;
        const u32 back = head >= slot ? head - slot : head + capacity - slot;  // distance to the query's position
        return slot < capacity && back < window && back <= position && position - back >= first;
    };
    const u64 at = u64(kv_head * group) * splits + blockIdx.x;
    attend_128(bytes, queries, wk + kv_head * HEAD, wv + kv_head * HEAD, live, [&](u32 j) { return u64(slot0 + j) * width; }, scale, group, part_o + at * HEAD,
               part_ml + at, splits);
}

// Merges the splits of a head in ascending order: o [head][128] bf16 = Σ_i 2^(m_i − m) part_o_i / Σ_i 2^(m_i − m) l_i,
// where m = max_i m_i and (m_i, l_i) = part_ml_i.
// Grid (head), 128 threads, one a column.
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
