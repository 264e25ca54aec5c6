// Shared by the kernels of lightning attention: norm and rotation of a head's row, and a thread's part of a state with
// the pending rows absorbed into it.
#pragma once
#include "common.cuh"

constexpr u32 TILE_V = 32;  // v columns of a thread block
static_assert(HEAD == 4 * TILE_V, "grid.x is 4");

// One head of one row, held by one warp: a lane has elements 2 · lane and 2 · lane + 1 of each half of 64. rope:
// (cos, sin) [64], or null for no rotation.
struct HeadPart {
    u32 lo, hi;
    float4 turn;  // cos, sin of pair 2 · lane, then cos, sin of the next pair

    DEVICE_METHOD HeadPart(const bf16* src, const float2* rope) {
        const u32 i = 2 * (threadIdx.x & 31);
        lo = *reinterpret_cast<const u32*>(src + i), hi = *reinterpret_cast<const u32*>(src + i + 64);
        if (rope) turn = *reinterpret_cast<const float4*>(rope + i);
    }
    // A norm's weights for the lane's elements; ones if `norm` is null.
    static DEVICE_METHOD float4 weights(const float* norm) {
        const u32 i = 2 * (threadIdx.x & 31);
        return norm ? make_float4(norm[i], norm[i + 1], norm[i + 64], norm[i + 65]) : make_float4(1.f, 1.f, 1.f, 1.f);
    }
    // dst [128] ← bf16(rotate(x · w / rms(x))), each of the two steps if its flag is set.
    DEVICE_METHOD void norm_rotate(bf16* dst, bool norm, float4 w, bool rotate, float eps) const {
        const u32 i = 2 * (threadIdx.x & 31);
        float a0 = widen_lo(lo), a1 = widen_hi(lo), b0 = widen_lo(hi), b1 = widen_hi(hi);
        if (norm) {
            float s = warp_sum(fmaf(a0, a0, fmaf(a1, a1, fmaf(b0, b0, b1 * b1))));
            float rstd = rsqrt_fast(s * (1.f / HEAD) + eps);
            a0 *= rstd * w.x, a1 *= rstd * w.y;
            b0 *= rstd * w.z, b1 *= rstd * w.w;
        }
        if (rotate) {
            float x0 = a0, x1 = a1;
            a0 = fmaf(x0, turn.x, -b0 * turn.y), b0 = fmaf(b0, turn.x, x0 * turn.y);
            a1 = fmaf(x1, turn.z, -b1 * turn.w), b1 = fmaf(b1, turn.z, x1 * turn.w);
        }
        *reinterpret_cast<u32*>(dst + i) = pack(a0, a1);
        *reinterpret_cast<u32*>(dst + i + 64) = pack(b0, b1);
    }
};

// A thread's part of S: rows k0..k0+7, columns v0..v0+V−1 of a head. An element sees the same operations for every V.
template <u32 V> struct StatePart {
    float s[8][V];
    float decay;
    float* at;  // element (k0, v0) in memory

    DEVICE_METHOD void load() {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float2* from = reinterpret_cast<const float2*>(at + i * HEAD);
#pragma unroll
            for (u32 j = 0; j < V / 2; j++) s[i][2 * j] = from[j].x, s[i][2 * j + 1] = from[j].y;
        }
    }
    DEVICE_METHOD void store() {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            float2* to = reinterpret_cast<float2*>(at + i * HEAD);
#pragma unroll
            for (u32 j = 0; j < V / 2; j++) to[j] = make_float2(s[i][2 * j], s[i][2 * j + 1]);
        }
    }
    // S ← λ S + k vᵀ. k: the thread's 8 elements; v: its V elements, two a word.
    DEVICE_METHOD void absorb(uint4 k, const u32* v) {
        const float kk[8] = {widen_lo(k.x), widen_hi(k.x), widen_lo(k.y), widen_hi(k.y), widen_lo(k.z), widen_hi(k.z), widen_lo(k.w), widen_hi(k.w)};
#pragma unroll
        for (u32 j = 0; j < V / 2; j++) {
            const float v0 = widen_lo(v[j]), v1 = widen_hi(v[j]);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                s[i][2 * j] = fmaf(kk[i], v0, decay * s[i][2 * j]);
                s[i][2 * j + 1] = fmaf(kk[i], v1, decay * s[i][2 * j + 1]);
            }
        }
    }
    // y ← qᵀ S over the thread's 8 rows, in ascending order.
    DEVICE_METHOD void read(float (&y)[V], uint4 q) const {
        const float qq[8] = {widen_lo(q.x), widen_hi(q.x), widen_lo(q.y), widen_hi(q.y), widen_lo(q.z), widen_hi(q.z), widen_lo(q.w), widen_hi(q.w)};
#pragma unroll
        for (u32 j = 0; j < V; j++) {
            y[j] = 0.f;
#pragma unroll
            for (u32 i = 0; i < 8; i++) y[j] = fmaf(qq[i], s[i][j], y[j]);
        }
    }
};

// Loads the part of S from (k0, v0) on, absorbs the `accepted` pending rows of ring half `slot` in order and, if there
// were any, stores it. state [heads][128][128] f32; pend_k, pend_v [2][16][kv_heads][128] bf16; slopes [heads].
template <u32 V>
DEVICE StatePart<V> absorb_pending(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, u32 accepted, u32 slot, u32 head, u32 heads, u32 kv_heads,
                                   u32 k0, u32 v0) {
    StatePart<V> part;
    part.decay = expf(-slopes[head]);
    part.at = state + (u64(head) * HEAD + k0) * HEAD + v0;
    part.load();
    const u32 pending = min(accepted, MAX_VERIFY);
    const u64 half = u64(slot & 1) * MAX_VERIFY * kv_heads * HEAD + u64(head / (heads / kv_heads)) * HEAD;
    for (u32 r = 0; r < pending; r++) {
        const u64 row = half + u64(r) * kv_heads * HEAD;
        part.absorb(load16(pend_k + row + k0), reinterpret_cast<const u32*>(pend_v + row + v0));
    }
    if (pending) part.store();
    return part;
}
// The same for all of S. Grid (4 tiles of 32 v columns, heads), 128 threads.
DEVICE void absorb_pending(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, const Step* step, u32 heads, u32 kv_heads) {
    const u32 k0 = (threadIdx.x >> 3) * 8, v0 = blockIdx.x * TILE_V + (threadIdx.x & 7) * 4;
    absorb_pending<4>(state, pend_k, pend_v, slopes, step->pending, step->slot, blockIdx.y, heads, kv_heads, k0, v0);
}
