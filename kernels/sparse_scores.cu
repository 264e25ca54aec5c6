// InfLLM-V2 sparse attention in prefill: scores of KV blocks for a chunk's rows (docs/model.md §5.4-5.6). For row r,
// query head h of KV head g, and s(r, h, j) = scale · log2(e) · (q[r, h] · key[j, g]),
//   z[r, h]         = log2 Σ_j 2^s(r, h, j)                    over visible compressed keys j       (prefill_lse)
//   A[r, g, j]      = Σ_{h in g} 2^(s(r, h, j) − z[r, h])      for visible k1 rows j, else 0        (prefill_scores)
//   scores[r, g, b] = bf16(max A[r, g, j], j = 4b − 1 .. 4b + 3)
// q is bf16 [rows][ldq], z f32 [row][head], scores bf16 [row − row0][KV head][score_blocks].
//
// A thread block handles 16 neighbouring rows of one KV head, a warp two of them. Tiles of 64 compressed keys pass
// through two buffers in shared memory and serve all rows. In a product the keys are the 16 rows and a row's
// (at most 16) query heads the columns, so that few lanes have to add up the heads of a key.
//
// A row's sums run over its own keys in ascending order, so its bits do not depend on the other rows.
#include "attention.cuh"

constexpr u32 ROWS = 16;
constexpr u32 TILE = 64;
constexpr u32 TILE_ELEMENTS = TILE * HEAD;

// Offset in elements of a key's 16-byte chunk in a tile. Tiles are unpadded; the chunks of a row are permuted so that
// eight rows of one chunk hit all banks.
DEVICE u32 key_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 7)) * 8; }

// Copies 64 compressed keys from `first` on, a multiple of 64, by 256 threads. Keys from `count` on are zero.
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
// The query heads of one KV head as the columns of a product with keys as rows: two tiles of 8 heads. Lane 4g + t holds
// head g of each tile; heads from `group` on are zero.
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

// Adds the products of two query rows with the 16 keys of a tile from its row `first` on: s[row][half][e], half i for
// heads 8i..8i+7. e = 0, 1 are key g with heads 2t, 2t + 1 of the half, e = 2, 3 key g + 8.
DEVICE void score_16(float (&s)[2][2][4], const QueryColumns (&query)[2], const bf16* keys, u32 first) {
    const u32 lane = threadIdx.x & 31;
    u32 x[2][4];  // double buffer: the next 16 columns load while 16 are multiplied
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

// z[row][head] = log2 Σ 2^s over the visible compressed keys of `keys` (one level: `window`, `stride`), −inf if
// there is none.
// Grid (16 rows, KV head), 256 threads; the two rows of a warp share its loads. A lane sums 2^s over its own keys in
// units of its largest score so far; the lanes are merged at the end.
KERNEL(256, 2)
prefill_lse(float* z, const bf16* q, u32 ldq, const bf16* keys, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads, u32 key_tile, float scale,
            u32 rows) {
    SHARED_BYTES(bytes);
    bf16* tiles = reinterpret_cast<bf16*>(bytes);
    wait_for_previous();
    allow_next();
    const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const u32 first = blockIdx.x * ROWS, position = step->position, most = visible_keys(position + min(first + ROWS, rows) - 1, window, stride);
    const u32 steps = (most + TILE - 1) / TILE;
    const bf16* from = keys + kv_head * HEAD;
    auto fetch = [&](u32 n) {
        if (n < steps) fetch_keys(tiles + (n & 1) * TILE_ELEMENTS, from, n * TILE, most, stride, key_tile, kv_heads * HEAD);
        copy_commit();
    };
    fetch(0);
    QueryColumns query[2];
    u32 mine[2], count[2];
    float m[2][4], l[2][4] = {};  // [row][e]: max and Σ of head 8 · (e / 2) + 2t + e % 2
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        mine[i] = min(first + warp * 2 + i, rows - 1), count[i] = visible_keys(position + mine[i], window, stride);
        query[i].load(q + u64(mine[i]) * ldq + kv_head * group * HEAD, group);
#pragma unroll
        for (u32 e = 0; e < 4; e++) m[i][e] = LOWEST;
    }
    const float unit = scale * LOG2E;
    for (u32 n = 0; n < steps; n++) {
        copy_wait<0>();
        __syncthreads();  // tile n has arrived; the other buffer is free
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

constexpr u32 SPAN = 256;  // KV blocks of a thread block of prefill_scores

// Pooled scores of KV blocks, as select_scores for a verify pass.
// Grid (256 KV blocks, 16 rows, KV head), 256 threads; the two rows of a warp share its loads. Each tile of level-1
// keys serves 16 KV blocks. Tile 0 precedes the first KV block: only its last 16 keys are multiplied, and the last of
// them belongs to the first pool.
// Bytes moved: 64 KB of k1 from L2 for 16 rows and 64 KV blocks.
KERNEL(256, 2)
prefill_scores(bf16* scores, const float* z, const bf16* q, u32 ldq, const bf16* k1, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads,
               u32 key_tile, float scale, u32 row0, u32 rows, u32 score_blocks) {
    // Two tiles; then for each row A of the key before a tile (index 7) and of the tile's keys (from index 8).
    SHARED_BYTES(bytes);
    bf16* tiles = reinterpret_cast<bf16*>(bytes);
    float* level1 = reinterpret_cast<float*>(bytes + 2 * TILE_ELEMENTS * 2) + (threadIdx.x >> 5) * 2 * (TILE + 8);
    allow_next();
    wait_for_previous();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads, kv_head = blockIdx.z;
    const u32 b0 = blockIdx.x * SPAN, first = b0 * 4, position = step->position + row0;
    const u32 last = min(blockIdx.y * ROWS + ROWS, rows) - 1, last_block = (position + last) / BLOCK;
    if (b0 > last_block) return;
    // Tiles n < until; tile 0 precedes the first KV block.
    const u32 most = visible_keys(position + last, 32, 16), until = min(last_block - b0, SPAN - 1) / 16 + 2;
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
            const float x = head < group ? z[u64(row0 + mine) * heads + kv_head * group + head] : INFINITY;
            zs[i][e] = x == NEVER ? INFINITY : x;  // without a visible key in z, A is 0
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
        __syncthreads();  // tile n has arrived; the other buffer is free
        fetch(n + 1);
        const bf16* keys = tiles + (n & 1) * TILE_ELEMENTS;
        float sums[TILE / 16] = {};
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) {
            if (n == 0 && k < 48) continue;
            float s[2][2][4] = {};
            score_16(s, query, keys, k);
            // Sums over the heads of a key. A quad of lanes has four (row, key) to sum: each lane ends with one of
            // them, added in the order of a butterfly.
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
            const u32 j = first + n * TILE + k + g + (odd ? 8 : 0);  // index of the key, plus TILE
            sums[k / 16] = j < (high ? count[1] : count[0]) + TILE ? sum : 0.f;
        }
        float* to = level1 + (t & 2 ? TILE + 8 : 0) + 8 + g + (t & 1 ? 8 : 0);
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) to[k] = sums[k / 16];
        __syncwarp();  // A of the tile is complete
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
