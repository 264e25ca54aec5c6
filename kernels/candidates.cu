// The best 256 logits of each row and log Σ exp over all of them, so that little crosses to the host.
//
// Order: logit descending, id ascending; NaN counts as lowest. Two steps: the best 256 of every 2048 logits, then the best of those.
// Each step finds the cut by bisection over the 32 bits of an order-preserving integer (a count of all values per step) and gives
// ties at the cut to the lowest ids, so the result is exact and the same every time. Bytes moved: the logits once.
#include "common.cuh"

constexpr u32 BEST = 256;
constexpr u32 SPLIT = 2048;
constexpr u32 NO_ID = 0xffffffffu;

DEVICE u32 order_key(float x) {
    const u32 b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0;
    return b >> 31 ? ~b : b | 0x80000000u;
}
DEVICE float key_value(u32 k) { return k == 0 ? -INFINITY : __uint_as_float(k >> 31 ? k & 0x7fffffffu : ~k); }

// Sum over the block's W warps; one barrier a turn, two buffers in turn.
template <u32 W> DEVICE u32 count_all(u32 x, u32 (*sums)[W], u32 turn) {
    const u32 lane = threadIdx.x & 31;
    for (u32 m = 16; m; m >>= 1) x += shuffle(x, lane ^ m);
    if (lane == 0) sums[turn & 1][threadIdx.x >> 5] = x;
    __syncthreads();  // sums of this turn written, those of the turn before read
    u32 s = 0;
#pragma unroll
    for (u32 w = 0; w < W; w++) s += sums[turn & 1][w];
    return s;
}
// Largest key that at least `wanted` of the block's keys reach; `reach(trial)` counts this thread's.
template <u32 W, class F> DEVICE u32 find_cut(F reach, u32 wanted, u32 (*sums)[W]) {
    u32 cut = 0;
    for (u32 bit = 0; bit < 32; bit++) {
        const u32 trial = cut | 0x80000000u >> bit;
        if (count_all<W>(reach(trial), sums, bit) >= wanted) cut = trial;
    }
    __syncthreads();  // sums of the last turn read
    return cut;
}
// Sum over the threads before this one; `all` becomes the block's sum.
template <u32 W> DEVICE u32 count_before(u32 own, u32 (*sums)[W], u32& all) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 before = own;
    for (u32 d = 1; d < 32; d *= 2) {
        const u32 other = shuffle_up(before, d);
        if (lane >= d) before += other;
    }
    if (lane == 31) sums[0][warp] = before;
    __syncthreads();  // sums of the warps
    before -= own;
    all = 0;
    for (u32 w = 0; w < W; w++) {
        if (w < warp) before += sums[0][w];
        all += sums[0][w];
    }
    return before;
}

// Block (split, row), 256 threads of 8 consecutive logits. Kept in id order, padded with −inf and NO_ID.
KERNEL(256, 4) candidates_split(float* val, u32* id, float2* lse, const float* logits, u32 ld, u32 vocab, u32 rows, u32 splits) {
    __shared__ u32 sums[2][8];
    __shared__ float scratch[8];
    wait_for_previous();
    allow_next();
    const u32 first = blockIdx.x * SPLIT, i0 = first + threadIdx.x * 8, here = min(vocab - first, SPLIT), wanted = min(here, BEST);
    const float* from = logits + u64(blockIdx.y) * ld;
    u32 key[8];
    float x[8], m = -INFINITY, s = 0.f;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        x[i] = i0 + i < vocab ? from[i0 + i] : -INFINITY;
        key[i] = i0 + i < vocab ? order_key(x[i]) : 0;
        m = fmaxf(m, x[i]);
    }
    m = warp_max(m);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = m;
    __syncthreads();  // maxima of the warps
#pragma unroll
    for (u32 w = 0; w < 8; w++) m = fmaxf(m, scratch[w]);
    __syncthreads();  // maxima read
    const float z = m == -INFINITY ? 0.f : m;
#pragma unroll
    for (u32 i = 0; i < 8; i++) s += expf(x[i] - z);
    s = block_sum(s, scratch);
    const u32 part = blockIdx.y * splits + blockIdx.x;
    if (threadIdx.x == 0) lse[part] = make_float2(m, s);

    const u32 cut = find_cut<8>(
        [&](u32 trial) {
            u32 n = 0;
#pragma unroll
            for (u32 i = 0; i < 8; i++) n += key[i] >= trial;
            return n;
        },
        wanted, sums);
    u32 own = 0, all;
    auto kind = [&](u32 i) -> u32 { return i0 + i >= vocab ? 0 : key[i] > cut ? 1u << 16 : key[i] == cut ? 1u : 0; };
#pragma unroll
    for (u32 i = 0; i < 8; i++) own += kind(i);
    const u32 before = count_before<8>(own, sums, all), ties = wanted - (all >> 16);
    u32 taken = before >> 16, level = before & 0xffff;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 what = kind(i);
        if (what > 1 || (what == 1 && level < ties)) {
            const u64 at = u64(part) * BEST + taken + min(level, ties);
            val[at] = x[i];
            id[at] = i0 + i;
        }
        taken += what >> 16;
        level += what & 1;
    }
    for (u32 i = wanted + threadIdx.x; i < BEST; i += 256) {
        val[u64(part) * BEST + i] = -INFINITY;
        id[u64(part) * BEST + i] = NO_ID;
    }
}

// Block: one row, 1024 threads. Shared: the keys of all splits.
KERNEL(1024, 1)
candidates_merge(float* out_val, u32* out_id, float* out_lse, const float* val, const u32* id, const float2* lse, u32 vocab, u32 rows, u32 splits) {
    SHARED_BYTES(bytes);
    u32* keys = reinterpret_cast<u32*>(bytes);
    __shared__ u32 sums[2][32];
    __shared__ u64 best[BEST];
    wait_for_previous();
    allow_next();
    const u32 r = blockIdx.x, all_keys = splits * BEST, each = ((all_keys + 1023) / 1024) | 1, i0 = min(threadIdx.x * each, all_keys), i1 = min(i0 + each, all_keys);
    const u64 base = u64(r) * all_keys;
    const u32 wanted = min(vocab, BEST);
    for (u32 i = threadIdx.x; i < all_keys; i += 1024) keys[i] = order_key(val[base + i]);
    if (threadIdx.x < BEST) best[threadIdx.x] = BEST - 1 - threadIdx.x;  // below every real one, and distinct
    if (threadIdx.x < 32) {
        float m = -INFINITY, s = 0.f;
        for (u32 i = threadIdx.x; i < splits; i += 32) m = fmaxf(m, lse[r * splits + i].x);
        m = warp_max(m);
        for (u32 i = threadIdx.x; i < splits; i += 32) {
            const float2 part = lse[r * splits + i];
            s += part.x == -INFINITY ? 0.f : part.y * expf(part.x - m);
        }
        s = warp_sum(s);
        if (threadIdx.x == 0) out_lse[r] = m + logf(s);
    }
    __syncthreads();  // keys and empty places
    const u32 cut = find_cut<32>(
        [&](u32 trial) {
            u32 n = 0;
            for (u32 i = i0; i < i1; i++) n += keys[i] >= trial;
            return n;
        },
        wanted, sums);
    // Ids ascend over the whole list, so ties at the cut go to the lowest. Padding has no id and is never taken.
    u32 own = 0, all;
    auto kind = [&](u32 i) -> u32 { return keys[i] > cut ? 1u << 16 : keys[i] == cut && id[base + i] != NO_ID ? 1u : 0; };
    for (u32 i = i0; i < i1; i++) own += kind(i);
    const u32 before = count_before<32>(own, sums, all), ties = wanted - (all >> 16);
    u32 taken = before >> 16, level = before & 0xffff;
    for (u32 i = i0; i < i1; i++) {
        const u32 what = kind(i);
        if (what > 1 || (what == 1 && level < ties)) best[taken + min(level, ties)] = u64(keys[i]) << 32 | (NO_ID - id[base + i]);
        taken += what >> 16;
        level += what & 1;
    }
    __syncthreads();  // the best, not yet in order
    // Rank of each: how many are above it. Four threads an element would not be faster than the barrier they need.
    if (threadIdx.x < BEST) {
        const u64 me = best[threadIdx.x];
        u32 rank = 0;
#pragma unroll 8
        for (u32 i = 0; i < BEST; i++) rank += best[i] > me;
        const bool real = me >= BEST;
        out_val[r * BEST + rank] = real ? key_value(u32(me >> 32)) : -INFINITY;
        out_id[r * BEST + rank] = real ? NO_ID - u32(me) : NO_ID;
    }
}
