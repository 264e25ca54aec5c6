// InfLLM-V2 sparse attention for given tokens: scores of a chunk's rows (docs/model.md §5.4-5.6).
//
// A launch block takes 16 neighbouring rows of one KV head, a warp two of them. Keys are the 16 rows of a product, a row's (at most 16) query heads its
// columns, so that few lanes have to add up a key's heads. They come through shared memory in tiles of 64, two under way, and are shared by the rows.
// Every row's sums run over its own keys in ascending order: they do not depend on the rows beside it.
#include "attention.cuh"

constexpr u32 ROWS = 16;
constexpr float LOWEST = -1e30f;  // below any score
constexpr u32 TILE = 64;
constexpr u32 TILE_ELEMENTS = TILE * HEAD;

// Tiles lie unpadded in shared memory; 16-byte chunks of a row are permuted so that eight rows of one chunk hit all banks.
DEVICE u32 key_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 7)) * 8; }

// 64 compressed keys from `first`, a multiple of 64, of `count` (zeros beyond), by 256 threads.
DEVICE void fetch_keys(bf16* to, const bf16* from, u32 first, u32 count, u32 stride, u32 key_tile, u32 width) {
    const u32 j = threadIdx.x >> 4, chunk = threadIdx.x & 15;
    const bf16* here = from + compressed_at(first, stride, key_tile, width) + j * width + chunk * 8;
    if (first + TILE <= count) {
#pragma unroll
        for (u32 i = 0; i < TILE; i += 16) copy_async(to + key_at(j + i, chunk), here + i * width);
    } else {
#pragma unroll
        for (u32 i = 0; i < TILE; i += 16) {
            const bool counts = first + j + i < count;
            copy_async(to + key_at(j + i, chunk), counts ? here + i * width : from + chunk * 8, counts);
        }
    }
}
// Query heads of one KV head as the columns of a product whose rows are keys: two tiles of 8 heads, lane 4g + t with head g of each.
struct QueryColumns {
    uint2 of[2][HEAD / 16];  // heads g and g + 8
    DEVICE_METHOD void load(const bf16* q, u32 group) {
        const u32 g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32* from = reinterpret_cast<const u32*>(q + (half * 8 + g) * HEAD + 2 * t);
            const bool live = half * 8 + g < group;
#pragma unroll
            for (u32 b = 0; b < HEAD / 16; b++) of[half][b] = live ? make_uint2(from[b * 8], from[b * 8 + 4]) : make_uint2(0, 0);
        }
    }
};

// Scores of the 16 keys from row `first` of a tile on for two rows: s[row][half of the heads][..], keys g and g + 8, heads 2t and 2t + 1.
DEVICE void score_16(float (&s)[2][2][4], const QueryColumns (&query)[2], const bf16* keys, u32 first) {
    const u32 lane = threadIdx.x & 31;
    u32 x[2][4];  // the keys' next columns are on their way while some are multiplied
    auto load = [&](u32 b) { load_matrix(x[b & 1], keys + key_at(first + (lane & 15), 2 * b + (lane >> 4))); };
    load(0);
#pragma unroll
    for (u32 b = 0; b < HEAD / 16; b++) {
        if (b + 1 < HEAD / 16) load(b + 1);
        const u32(&y)[4] = x[b & 1];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) mma(s[i][half], y[0], y[1], y[2], y[3], query[i].of[half][b].x, query[i].of[half][b].y);
    }
}

// z[row][head] = log2 Σ 2^s over the visible compressed keys, −inf if there is none. Block (16 rows, KV head), 8 warps of two rows, which share what a
// warp loads. A lane sums over the keys it has, 2^s in units of the largest so far; lanes are put together at the end.
KERNEL(256, 2)
prefill_lse(float* z, const bf16* q, u32 ldq, const bf16* keys, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads, u32 key_tile, float scale,
            u32 row0, u32 rows) {
    SHARED_BYTES(bytes);
    bf16* tiles = reinterpret_cast<bf16*>(bytes);
    wait_for_previous();
    allow_next();
    const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const u32 first = blockIdx.x * ROWS, position = step->position + row0, most = visible_keys(position + min(first + ROWS, rows) - 1, window, stride);
    const u32 steps = (most + TILE - 1) / TILE;
    const bf16* from = keys + kv_head * HEAD;
    auto fetch = [&](u32 n) {
        if (n < steps) fetch_keys(tiles + (n & 1) * TILE_ELEMENTS, from, n * TILE, most, stride, key_tile, kv_heads * HEAD);
        copy_commit();
    };
    fetch(0);
    QueryColumns query[2];
    u32 mine[2], count[2];
    float m[2][4], l[2][4] = {};  // of heads 8·(e / 2) + 2t + e % 2
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        mine[i] = min(first + warp * 2 + i, rows - 1), count[i] = visible_keys(position + mine[i], window, stride);
        query[i].load(q + u64(row0 + mine[i]) * ldq + kv_head * group * HEAD, group);
#pragma unroll
        for (u32 e = 0; e < 4; e++) m[i][e] = LOWEST;
    }
    const float unit = scale * LOG2E;
    for (u32 n = 0; n < steps; n++) {
        copy_wait<0>();
        __syncthreads();  // tile n arrived; the other buffer is free
        fetch(n + 1);
        const bool whole = n * TILE + TILE <= min(count[0], count[1]);
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) {
            float s[2][2][4] = {};
            score_16(s, query, tiles + (n & 1) * TILE_ELEMENTS, k);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
#pragma unroll
                for (u32 e = 0; e < 8; e++) s[i][e >> 2][e & 3] *= unit;
                if (!whole)
#pragma unroll
                    for (u32 e = 0; e < 8; e++)
                        if (n * TILE + k + g + (e & 2) * 4 >= count[i]) s[i][e >> 2][e & 3] = NEVER;
                float top[4];
                bool more = false;
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    top[e] = fmaxf(m[i][e], fmaxf(s[i][e >> 1][e & 1], s[i][e >> 1][(e & 1) + 2]));
                    more |= top[e] != m[i][e];
                }
                if (vote(more)) {  // rare after the first keys; a factor of 1 changes no bit
#pragma unroll
                    for (u32 e = 0; e < 4; e++) l[i][e] *= exp2_fast(m[i][e] - top[e]), m[i][e] = top[e];
                }
#pragma unroll
                for (u32 e = 0; e < 4; e++) l[i][e] += exp2_fast(s[i][e >> 1][e & 1] - m[i][e]) + exp2_fast(s[i][e >> 1][(e & 1) + 2] - m[i][e]);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        float* to = z + u64(mine[i]) * heads + kv_head * group;
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            float top = m[i][e], sum = l[i][e];
#pragma unroll
            for (u32 lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, shuffle_xor(top, lanes));
            sum *= exp2_fast(m[i][e] - top);
#pragma unroll
            for (u32 lanes = 4; lanes < 32; lanes *= 2) sum += shuffle_xor(sum, lanes);
            const u32 head = (e >> 1) * 8 + 2 * t + (e & 1);
            if (g == 0 && head < group && first + warp * 2 + i < rows) to[head] = top == LOWEST ? NEVER : top + log2f(sum);
        }
    }
}

// Pooled scores of 256 KV blocks for 16 rows, as select_scores. Block (256 KV blocks, 16 rows, KV head), 8 warps of two rows, which
// share what a warp loads. Tiles of compressed keys of level 1 pass by, first the one in front, of whose keys the last belongs to the first pool.
constexpr u32 SPAN = 256;
KERNEL(256, 2)
prefill_scores(bf16* scores, const float* z, const bf16* q, u32 ldq, const bf16* k1, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads,
               u32 key_tile, float scale, u32 row0, u32 rows, u32 score_blocks) {
    SHARED_BYTES(bytes);  // two tiles, then for each row A of a tile's keys behind that of the key before
    bf16* tiles = reinterpret_cast<bf16*>(bytes);
    float* level1 = reinterpret_cast<float*>(bytes + 2 * TILE_ELEMENTS * 2) + (threadIdx.x >> 5) * 2 * (TILE + 8);
    allow_next();
    wait_for_previous();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads, kv_head = blockIdx.z;
    const u32 b0 = blockIdx.x * SPAN, first = b0 * 4, position = step->position + row0;
    const u32 last = min(blockIdx.y * ROWS + ROWS, rows) - 1, last_block = (position + last) / BLOCK;
    if (b0 > last_block) return;
    const u32 most = visible_keys(position + last, 32, 16), until = min(last_block - b0, SPAN - 1) / 16 + 2;  // tile 0 is the one in front
    const bf16* from = k1 + kv_head * HEAD;
    const float unit = scale * LOG2E;
    QueryColumns query[2];
    float zs[2][4];
    u32 count[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 mine = min(blockIdx.y * ROWS + warp * 2 + i, rows - 1);
        query[i].load(q + u64(row0 + mine) * ldq + kv_head * group * HEAD, group);
        count[i] = visible_keys(position + mine, 32, 16);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const u32 head = (e >> 1) * 8 + 2 * t + (e & 1);
            const float x = head < group ? z[u64(mine) * heads + kv_head * group + head] : INFINITY;
            zs[i][e] = x == NEVER ? INFINITY : x;  // no such key visible: scores are 0
        }
    }
    auto fetch = [&](u32 n) {
        if (n < until) fetch_keys(tiles + (n & 1) * TILE_ELEMENTS, from, first + n * TILE - TILE, most, 16, key_tile, kv_heads * HEAD);
        copy_commit();
    };
    const u32 skip = b0 ? 0 : 1;
    fetch(skip);
    if (lane < 2) level1[lane * (TILE + 8) + 7] = 0.f;
    for (u32 n = skip; n < until; n++) {
        copy_wait<0>();
        __syncthreads();  // tile n arrived; the other buffer is free
        fetch(n + 1);
        const bf16* keys = tiles + (n & 1) * TILE_ELEMENTS;
        float sums[TILE / 16] = {};
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) {
            if (n == 0 && k < 48) continue;
            float s[2][2][4] = {};
            score_16(s, query, keys, k);
            // Sums over a key's heads: of four (row, key) each lane of a quad ends with one, added in the order of a butterfly.
            float a[4];
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    a[2 * i + e] = exp2_fast(s[i][0][2 * e] * unit - zs[i][0]) + exp2_fast(s[i][0][2 * e + 1] * unit - zs[i][1]);
                    a[2 * i + e] += exp2_fast(s[i][1][2 * e] * unit - zs[i][2]) + exp2_fast(s[i][1][2 * e + 1] * unit - zs[i][3]);
                }
            const bool odd = t & 1, high = t & 2;
            const float x0 = shuffle_xor(odd ? a[0] : a[1], 1), x1 = shuffle_xor(odd ? a[2] : a[3], 1);
            const float b0 = (odd ? a[1] : a[0]) + x0, b1 = (odd ? a[3] : a[2]) + x1;
            const float sum = (high ? b1 : b0) + shuffle_xor(high ? b0 : b1, 2);
            const u32 j = first + n * TILE + k + g + (odd ? 8 : 0);  // of the key, plus a tile
            sums[k / 16] = j < (high ? count[1] : count[0]) + TILE ? sum : 0.f;
        }
        float* to = level1 + (t & 2 ? TILE + 8 : 0) + 8 + g + (t & 1 ? 8 : 0);
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) to[k] = sums[k / 16];
        __syncwarp();  // the tile's A complete
        float* a = level1 + (lane >> 4) * (TILE + 8) + 8;
        const u32 at = lane & 15, r = blockIdx.y * ROWS + warp * 2 + (lane >> 4), block = b0 + n * 16 - 16 + at;
        if (n && block < score_blocks && r < rows) {
            const float* five = a + at * 4;
            const float best = fmaxf(fmaxf(fmaxf(five[-1], five[0]), fmaxf(five[1], five[2])), five[3]);
            scores[(u64(r) * kv_heads + kv_head) * score_blocks + block] = narrow(best);
        }
        __syncwarp();  // pooled
        if (at == 0) a[-1] = a[TILE - 1];
    }
}
