// Shared by the attention kernels: the layout of the caches, queries as tensor-core operands, and the partial softmax
// of one thread block over 128 keys.
//
// The query heads of a KV head (at most 16) are the 16 rows of a tensor-core tile. Scores are in units of log 2: key j
// has the score s_j and the weight 2^(s_j − max), where
//   s_j = scale · log2(e) · (q · k_j).
//
// A dot product may permute its inner axis as long as both operands use the same permutation. So a lane loads 16
// contiguous bytes of a key (columns 8t..8t+7 of each 32) from row-major memory and uses them as its fragments of two
// products.
#pragma once
#include "common.cuh"

constexpr float NEVER = -INFINITY;
constexpr float LOWEST = -1e30f;  // below any score

// Layout of the caches, bf16. All sparse layers of a sequence share two arrays of tiles, so that forks which share
// their pages need few pages of their own:
//   keys and values: a tile is a KV block of 64 positions, [layer][k, v][64][kv_heads, 128];
//   compressed keys: a tile is KEY_TILE positions, [layer][k1 [256][kv_heads, 128], k2 [64][kv_heads, 128]].
// `k`, `v`, `k1` and `k2` point to a layer's first row. `tile` is the distance in elements between two tiles, `width`
// that between two rows, kv_heads · 128.
constexpr u32 KEY_TILE = 4096;

// Offset in elements of the key or value of position p. The 64 rows of a KV block are contiguous.
DEVICE u64 row_at(u32 p, u32 tile, u32 width) { return u64(p / BLOCK) * tile + p % BLOCK * width; }
// Offset in elements of compressed key j of a level with one key every `stride` positions. 64 keys from a multiple of
// 64 on are contiguous.
DEVICE u64 compressed_at(u32 j, u32 stride, u32 tile, u32 width) {
    const u32 of = j * stride / KEY_TILE;
    return u64(of) * tile + (j - of * (KEY_TILE / stride)) * width;
}

// Number of compressed keys with their whole window at or before position p.
DEVICE u32 visible_keys(u32 p, u32 window, u32 stride) { return p + 1 < window ? 0 : (p + 1 - window) / stride + 1; }

// The query heads of one KV head as the 16-row operand, lane = 4g + t: lo[b] holds columns 32b + 8t .. 32b + 8t + 7 of
// head g, hi[b] those of head g + 8. Heads from `group` on are zero.
struct Queries {
    uint4 lo[4], hi[4];
    // q: the group's first head, [group][128] bf16.
    DEVICE_METHOD void load(const bf16* q, u32 group) {
        const u32 g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (u32 b = 0; b < 4; b++) {
            lo[b] = g < group ? load16(q + g * HEAD + b * 32 + t * 8) : make_uint4(0, 0, 0, 0);
            hi[b] = g + 8 < group ? load16(q + (g + 8) * HEAD + b * 32 + t * 8) : make_uint4(0, 0, 0, 0);
        }
    }
    DEVICE_METHOD static Queries of(const bf16* q, u32 group) {
        Queries all;
        all.load(q, group);
        return all;
    }
    // Adds the products with 8 keys over part p = 0..7 of the columns, two for each 32. k: the lane's 16 bytes of key g in columns
    // 32 · (p / 2) on. s[0], s[1]: head g with keys 2t, 2t + 1; s[2], s[3]: head g + 8 with the same keys. A sum waits for its last
    // product, so callers take a part of several sums in turn.
    DEVICE_METHOD void score(float (&s)[4], uint4 k, u32 p) const {
        const uint4 x = lo[p / 2], y = hi[p / 2];
        if (p % 2) mma(s, x.z, y.z, x.w, y.w, k.z, k.w);
        else mma(s, x.x, y.x, x.y, y.y, k.x, k.y);
    }
};

// Partial attention of one row and the `group` query heads of a KV head to 128 keys, by a thread block of 4 warps with
// 32 keys each. For a later merge over thread blocks it writes, for each head h,
//   part_o[h · stride · 128 ..]    = Σ_j 2^(s_j − m) v_j, f32, not divided by the sum of the weights
//   part_ml[h · stride]            = (m, Σ_j 2^(s_j − m)), m = max_j s_j
//   part_block[2 · h · stride + i] = the same pair over keys 64i..64i+63 alone, unless `part_block` is null.
//
// `live(j)` is whether the warp's key j counts, `row(j)` its offset in elements from k and v. Keys that do not count
// read offset 0, which must be readable. Keys go from global memory straight to fragments, values through the warp's
// own part of shared memory. `queries()` runs once both loads are in flight. Weights are f32 in the sums and bf16 in
// the product with the values.
//
// Shared memory, 34,816 bytes: values [4][32][136] bf16, then outputs [4][16][132] f32 in the same place. The order of
// all sums is fixed: keys within a warp, then warps 0..3.
constexpr u32 LD_VALUES = HEAD + 8;
constexpr u32 LD_OUTPUTS = HEAD + 4;

template <class Queried, class Live, class Row>
DEVICE void attend_128(unsigned char* bytes, Queried queries, const bf16* k, const bf16* v, Live live, Row row, float scale, u32 group, float* part_o,
                       float2* part_ml, u32 stride, float2* part_block = nullptr) {
    __shared__ float2 merged[4][GROUP];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    bf16* values = reinterpret_cast<bf16*>(bytes) + warp * 32 * LD_VALUES;
    for (u32 i = lane; i < 32 * 16; i += 32) {
        const u32 j = i >> 4, col = (i & 15) * 8;
        const bool counts = live(j);
        copy_async(values + j * LD_VALUES + col, v + (counts ? row(j) : 0) + col, counts);
    }
    copy_commit();
    uint4 key[4][4];
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        const u32 j = n * 8 + g;
        const bf16* from = k + (live(j) ? row(j) : 0) + t * 8;
#pragma unroll
        for (u32 b = 0; b < 4; b++) key[n][b] = load16(from + b * 32);
    }
    const Queries query = queries();
    const float unit = scale * LOG2E;
    float s[4][4] = {}, m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;
#pragma unroll
    for (u32 p = 0; p < 8; p++)
#pragma unroll
        for (u32 n = 0; n < 4; n++) query.score(s[n], key[n][p / 2], p);
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) s[n][e] = live(n * 8 + 2 * t + (e & 1)) ? s[n][e] * unit : NEVER;
        m0 = fmaxf(m0, fmaxf(s[n][0], s[n][1]));
        m1 = fmaxf(m1, fmaxf(s[n][2], s[n][3]));
    }
    m0 = fmaxf(m0, shuffle_xor(m0, 1)), m0 = fmaxf(m0, shuffle_xor(m0, 2));
    m1 = fmaxf(m1, shuffle_xor(m1, 1)), m1 = fmaxf(m1, shuffle_xor(m1, 2));
    const float z0 = m0 == NEVER ? 0.f : m0, z1 = m1 == NEVER ? 0.f : m1;
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        s[n][0] = exp2_fast(s[n][0] - z0), s[n][1] = exp2_fast(s[n][1] - z0);
        s[n][2] = exp2_fast(s[n][2] - z1), s[n][3] = exp2_fast(s[n][3] - z1);
        l0 += s[n][0] + s[n][1], l1 += s[n][2] + s[n][3];
    }
    l0 += shuffle_xor(l0, 1), l0 += shuffle_xor(l0, 2);
    l1 += shuffle_xor(l1, 1), l1 += shuffle_xor(l1, 2);

    copy_wait<0>();
    __syncwarp();  // the warp's values have arrived
    float y[16][4] = {};
#pragma unroll
    for (u32 kk = 0; kk < 2; kk++) {
        const u32 a0 = pack(s[2 * kk][0], s[2 * kk][1]), a1 = pack(s[2 * kk][2], s[2 * kk][3]);
        const u32 a2 = pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), a3 = pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            u32 b[4];
            load_b_trans(b, values, LD_VALUES, n * 16, kk * 16);
            mma(y[2 * n], a0, a1, a2, a3, b[0], b[1]);
            mma(y[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
    __syncthreads();  // all warps have read their values; the outputs reuse that memory
    float* outputs = reinterpret_cast<float*>(bytes);
#pragma unroll
    for (u32 n = 0; n < 16; n++) {
        float* to = outputs + (warp * GROUP + g) * LD_OUTPUTS + n * 8 + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(y[n][0], y[n][1]);
        *reinterpret_cast<float2*>(to + 8 * LD_OUTPUTS) = make_float2(y[n][2], y[n][3]);
    }
    if (t == 0) merged[warp][g] = make_float2(m0, l0), merged[warp][g + 8] = make_float2(m1, l1);
    __syncthreads();  // outputs and (max, Σ) of all warps
    if (part_block && threadIdx.x < 2 * group) {
        const u32 h = threadIdx.x >> 1, half = threadIdx.x & 1;
        const float2 a = merged[2 * half][h], b = merged[2 * half + 1][h];
        const float m = fmaxf(a.x, b.x), z = m == NEVER ? 0.f : m;
        part_block[u64(h) * stride * 2 + half] = make_float2(m, fmaf(b.y, exp2_fast(b.x - z), a.y * exp2_fast(a.x - z)));
    }
    // A warp merges every fourth head, a lane four columns, so the merges of its heads are independent of each other.
#pragma unroll
    for (u32 i = 0; i < GROUP / 4; i++) {
        const u32 h = warp + 4 * i;
        if (h >= group) break;
        float2 part[4];
        float m = NEVER, l = 0.f;
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (u32 w = 0; w < 4; w++) part[w] = merged[w][h], m = fmaxf(m, part[w].x);
        const float z = m == NEVER ? 0.f : m;
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            const float f = exp2_fast(part[w].x - z);
            const float4 x = *reinterpret_cast<const float4*>(outputs + (w * GROUP + h) * LD_OUTPUTS + lane * 4);
            l = fmaf(part[w].y, f, l);
            o.x = fmaf(x.x, f, o.x), o.y = fmaf(x.y, f, o.y), o.z = fmaf(x.z, f, o.z), o.w = fmaf(x.w, f, o.w);
        }
        *reinterpret_cast<float4*>(part_o + u64(h) * stride * HEAD + lane * 4) = o;
        if (lane == 0) part_ml[u64(h) * stride] = make_float2(m, l);
    }
}
