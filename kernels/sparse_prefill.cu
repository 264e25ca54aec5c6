// InfLLM-V2 sparse attention for given tokens: scores and attention of a chunk's rows (docs/model.md §5.4-5.7).
//
// A launch block takes 8 neighbouring rows of one KV head, a warp a row: its (at most 16) query heads are the rows of a
// tensor-core tile, so nothing is padded. Keys and values come through shared memory in tiles of 64, two under way, and are shared by the 8 rows.
// Every row's sums run over its own keys in ascending order: they do not depend on the rows beside it.
#include "attention.cuh"

constexpr u32 ROWS = 8;
constexpr u32 TILE = 64;
constexpr u32 TILE_ELEMENTS = TILE * HEAD;

// Tiles lie unpadded; 16-byte chunks of a row are permuted so that what a warp reads at once hits all banks.
// Keys are read by lanes of two rows × four chunks, values as eight rows of one chunk.
DEVICE u32 key_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 1) << 2) * 8; }
DEVICE u32 value_at(u32 row, u32 chunk) { return row * HEAD + (chunk ^ (row & 7)) * 8; }

// 64 compressed keys from `first`, a multiple of 64, of `count` (zeros beyond), by 256 threads.
DEVICE void fetch_keys(bf16* to, const bf16* from, u32 first, u32 count, u32 stride, u32 key_tile, u32 width) {
    const u64 here = compressed_at(first, stride, key_tile, width);
    for (u32 i = threadIdx.x; i < TILE * 16; i += 256) {
        const u32 j = i >> 4, chunk = i & 15;
        const bool counts = first + j < count;
        copy_async(to + key_at(j, chunk), from + (counts ? here + j * width : 0) + chunk * 8, counts);
    }
}
// The lane's 16 bytes of key 8·n + g, block b of 32.
DEVICE uint4 key_part(const bf16* keys, u32 n, u32 b) {
    const u32 lane = threadIdx.x & 31;
    return load16(keys + key_at(n * 8 + (lane >> 2), b * 4 + (lane & 3)));
}
DEVICE void score_tile(float (&s)[8][4], const Queries& query, const bf16* keys) {
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) s[n][e] = 0.f;
#pragma unroll
        for (u32 b = 0; b < 4; b++) query.score(s[n], key_part(keys, n, b), b);
    }
}

// z[row][head] = log2 Σ 2^s over the visible compressed keys, −inf if there is none. Block (8 rows, KV head), 8 warps.
KERNEL(256, 2)
prefill_lse(float* z, const bf16* q, u32 ldq, const bf16* keys, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads, u32 key_tile, float scale,
            u32 row0, u32 rows) {
    SHARED_BYTES(bytes);
    bf16* tiles = reinterpret_cast<bf16*>(bytes);
    wait_for_previous();
    allow_next();
    const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const u32 mine = min(blockIdx.x * ROWS + warp, rows - 1), position = step->position + row0;
    const u32 most = visible_keys(position + min(blockIdx.x * ROWS + ROWS, rows) - 1, window, stride), count = visible_keys(position + mine, window, stride);
    const u32 steps = (most + TILE - 1) / TILE;
    const bf16* from = keys + kv_head * HEAD;
    Queries query;
    query.load(q + u64(row0 + mine) * ldq + kv_head * group * HEAD, group);
    const float unit = scale * LOG2E;
    float m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;  // of this lane's columns
    if (steps) fetch_keys(tiles, from, 0, most, stride, key_tile, kv_heads * HEAD);
    copy_commit();
    for (u32 n = 0; n < steps; n++) {
        copy_wait<0>();
        __syncthreads();  // tile n arrived; the other buffer is free
        if (n + 1 < steps) fetch_keys(tiles + ((n + 1) & 1) * TILE_ELEMENTS, from, (n + 1) * TILE, most, stride, key_tile, kv_heads * HEAD);
        copy_commit();
        float s[8][4];
        score_tile(s, query, tiles + (n & 1) * TILE_ELEMENTS);
        float t0 = m0, t1 = m1;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) s[i][e] = n * TILE + i * 8 + 2 * t + (e & 1) < count ? s[i][e] * unit : NEVER;
            t0 = fmaxf(t0, fmaxf(s[i][0], s[i][1]));
            t1 = fmaxf(t1, fmaxf(s[i][2], s[i][3]));
        }
        const float z0 = t0 == NEVER ? 0.f : t0, z1 = t1 == NEVER ? 0.f : t1;
        l0 *= exp2_fast(m0 - z0), l1 *= exp2_fast(m1 - z1);
        m0 = t0, m1 = t1;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            l0 += exp2_fast(s[i][0] - z0) + exp2_fast(s[i][1] - z0);
            l1 += exp2_fast(s[i][2] - z1) + exp2_fast(s[i][3] - z1);
        }
    }
    auto merge = [&](float m, float l) {  // over the four lanes of a head
        float top = fmaxf(m, shuffle_xor(m, 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        l *= exp2_fast(m - (top == NEVER ? 0.f : top));
        l += shuffle_xor(l, 1);
        l += shuffle_xor(l, 2);
        return top == NEVER ? NEVER : top + log2f(l);
    };
    const float z0 = merge(m0, l0), z1 = merge(m1, l1);
    if (t == 0 && blockIdx.x * ROWS + warp < rows) {
        float* to = z + u64(mine) * heads + kv_head * group;
        if (g < group) to[g] = z0;
        if (g + 8 < group) to[g + 8] = z1;
    }
}

// Pooled scores of 256 KV blocks for 16 rows, as select_scores. Block (256 KV blocks, 16 rows, KV head), 8 warps of two rows, which
// share what a warp loads. Tiles of compressed keys of level 1 pass by, first the one in front, of whose keys the last belongs to the first pool.
// Keys are the 16 rows of a product and heads its columns, so that few lanes have to add up a key's heads.
constexpr u32 SPAN = 256;
constexpr u32 SCORE_ROWS = 16;
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
    const u32 last = min(blockIdx.y * SCORE_ROWS + SCORE_ROWS, rows) - 1, last_block = (position + last) / BLOCK;
    if (b0 > last_block) return;
    const u32 most = visible_keys(position + last, 32, 16), until = min(last_block - b0, SPAN - 1) / 16 + 2;  // tile 0 is the one in front
    const bf16* from = k1 + kv_head * HEAD;
    const float unit = scale * LOG2E;
    Queries query[2];
    float zs[2][4];
    u32 count[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 mine = min(blockIdx.y * SCORE_ROWS + warp * 2 + i, rows - 1);
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
        for (u32 k = n ? 0 : 48; k < TILE; k += 16) {
            float s[2][2][4] = {};  // [row][half of the heads]: keys k + g and k + g + 8, heads 2t and 2t + 1
#pragma unroll
            for (u32 b = 0; b < 4; b++) {
                const uint4 x = load16(keys + key_at(k + g, b * 4 + t)), y = load16(keys + key_at(k + 8 + g, b * 4 + t));
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const uint4 lo = query[i].lo[b], hi = query[i].hi[b];
                    mma(s[i][0], x.x, y.x, x.y, y.y, lo.x, lo.y);
                    mma(s[i][1], x.x, y.x, x.y, y.y, hi.x, hi.y);
                    mma(s[i][0], x.z, y.z, x.w, y.w, lo.z, lo.w);
                    mma(s[i][1], x.z, y.z, x.w, y.w, hi.z, hi.w);
                }
            }
            const u32 j = first + n * TILE + k + g;  // of the key, plus a tile
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                auto sum = [&](u32 e) {
                    float a = exp2_fast(s[i][0][e] * unit - zs[i][0]) + exp2_fast(s[i][0][e + 1] * unit - zs[i][1]);
                    a += exp2_fast(s[i][1][e] * unit - zs[i][2]) + exp2_fast(s[i][1][e + 1] * unit - zs[i][3]);
                    a += shuffle_xor(a, 1);
                    return a + shuffle_xor(a, 2);
                };
                const float a0 = sum(0), a1 = sum(2);
                float* to = level1 + i * (TILE + 8) + 8 + k + g;
                if (t == 0) to[0] = j < count[i] + TILE ? a0 : 0.f, to[8] = j + 8 < count[i] + TILE ? a1 : 0.f;
            }
        }
        __syncwarp();  // the tile's A complete
        float* a = level1 + (lane >> 4) * (TILE + 8) + 8;
        const u32 at = lane & 15, r = blockIdx.y * SCORE_ROWS + warp * 2 + (lane >> 4), block = b0 + n * 16 - 16 + at;
        if (n && block < score_blocks && r < rows) {
            const float* five = a + at * 4;
            const float best = fmaxf(fmaxf(fmaxf(five[-1], five[0]), fmaxf(five[1], five[2])), five[3]);
            scores[(u64(r) * kv_heads + kv_head) * score_blocks + block] = narrow(best);
        }
        __syncwarp();  // pooled
        if (at == 0) a[-1] = a[TILE - 1];
    }
}

// Attention over the chosen blocks. Block (8 rows, KV head), a warp a row and one that brings the keys.
//
// The union of the rows' blocks passes through shared memory once, ascending, in halves of 32 keys and their values: a ring of `slots`.
// Neighbouring rows often want different blocks, so they do not march in step: each works through its own list as halves
// arrive and says how far it is; the bringing warp refills what all have left behind. `ready` halves have arrived; row w needs none before
// `needs[w]`. A row's sums run over its own list only, so they do not depend on the rows beside it. At most 16384 KV blocks.
constexpr u32 WORDS = 512;
constexpr u32 ALL_DONE = 0x7fffffffu;
constexpr u32 HALF = 32;
constexpr u32 FLIGHT = 2;  // halves under way while there is room: measured, more of the ring is better left to those at work
struct Half {
    bf16 k[HALF * HEAD], v[HALF * HEAD];
};
struct AttendShared {
    uint4 q[ROWS][4][2][32];  // [warp][32-block][heads g, heads g + 8][lane]: each lane reads what it wrote
    u32 any[WORDS];        // the union, a bit a block
    u16 before[WORDS];     // blocks of the union before a word's
    u32 needs[ROWS], ready;
    DEVICE_METHOD Half* halves() { return reinterpret_cast<Half*>(reinterpret_cast<unsigned char*>(this) + (sizeof(*this) + 127) / 128 * 128); }
};
static_assert(sizeof(AttendShared) <= 35'968 && sizeof(Half) == 16'384, "src/backend/cuda/launch.rs asks for this much");

// Fills the ring until the union is through; one warp. Rows below `low` are not there.
DEVICE void bring(AttendShared& sh, const bf16* k, const bf16* v, u32 row_tile, u32 width, u32 words, u32 low, u32 end, u32 slots) {
    const u32 lane = threadIdx.x & 31, at = lane >> 4, chunk = lane & 15;
    u32 n = 0;  // halves asked for
    auto publish = [&](u32 ready) {
        __syncwarp();  // every lane's copies have arrived
        if (lane == 0) store_shared(&sh.ready, ready);
    };
    auto full = [&]() { return vote(lane < ROWS && load_shared(&sh.needs[lane < ROWS ? lane : 0]) + slots <= n) != 0; };
    for (u32 w = 0; w < words; w++)
        for (u32 bits = sh.any[w]; bits; bits &= bits - 1) {
            const u32 b = w * 32 + u32(__ffs(int(bits))) - 1;
            for (u32 half = 0; half < 2; half++, n++) {
                if (full()) {
                    copy_wait<0>();
                    publish(n);
                    while (full()) spin();
                }
                Half& to = sh.halves()[n % slots];
                const u32 first = b * BLOCK + half * HALF + at;
                const u64 here = row_at(first, row_tile, width), none = row_at(low, row_tile, width);
#pragma unroll
                for (u32 i = 0; i < HALF / 2; i++) {
                    const bool counts = first + 2 * i < end;
                    const u64 from = (counts ? here + 2 * i * width : none) + chunk * 8;
                    copy_async(to.k + key_at(at + 2 * i, chunk), k + from, counts);
                    copy_async(to.v + value_at(at + 2 * i, chunk), v + from, counts);
                }
                copy_commit();
                copy_wait<FLIGHT - 1>();
                if (n + 1 >= FLIGHT) publish(n + 2 - FLIGHT);
            }
        }
    copy_wait<0>();
    publish(n);
}

// PART: only blocks from <= b < until, which lie at their places behind k and v while others need not. A row's sums wait between its
// first and its last part: outputs, not divided yet, in `o`; each lane's (max, Σ) in `parts` [row][head][4].
template <bool PART>
DEVICE void attend_chunk(unsigned char* bytes, float* o, u32 ldo, const bf16* q, u32 ldq, const bf16* k, const bf16* v, const u32* list, const u32* count, u32 cap,
                         const Step* step, u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots, float2* parts, u32 from, u32 until) {
    AttendShared& sh = *reinterpret_cast<AttendShared*>(bytes);
    allow_next();
    wait_for_previous();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const u32 first = blockIdx.x * ROWS, last = min(first + ROWS, rows) - 1, mine = min(first + warp, last), width = kv_heads * HEAD;
    bool works = first + warp <= last && warp < ROWS;
    const u32 position = step->position, p = position + mine, end = position + last + 1, blocks = (end + BLOCK - 1) / BLOCK;
    const u32 words = min((blocks + 31) / 32, WORDS);

    for (u32 i = threadIdx.x; i < words; i += (ROWS + 1) * 32) sh.any[i] = 0;
    if (threadIdx.x < ROWS) sh.needs[threadIdx.x] = first + threadIdx.x <= last ? 0 : ALL_DONE;
    if (threadIdx.x == 0) sh.ready = 0;
    if (works) {
        Queries query;
        query.load(q + u64(mine) * ldq + kv_head * group * HEAD, group);
#pragma unroll
        for (u32 b = 0; b < 4; b++) sh.q[warp][b][0][lane] = query.lo[b], sh.q[warp][b][1][lane] = query.hi[b];
    }
    __syncthreads();  // cleared
    const u32 n = count[mine * kv_heads + kv_head];
    const u32* own = list + (u64(mine) * kv_heads + kv_head) * cap;
    u32 begin = 0, stop = n;  // of the list: this launch's entries
    if (PART) {
        u32 below = 0;  // entries before `from`, and before `until` in the upper half
        for (u32 i = lane; i < n; i += 32) below += u32(own[i] < from) + (u32(own[i] < until) << 16);
        below = warp_add(below);
        begin = below & 0xffff, stop = below >> 16;
        if (begin == stop) {
            works = false;
            if (warp < ROWS && lane == 0) store_shared(&sh.needs[warp], ALL_DONE);
        }
    }
    if (works)
        for (u32 i = begin + lane; i < stop; i += 32) atomicOr(&sh.any[own[i] / 32], 1u << (own[i] % 32));
    __syncthreads();  // the union
    if (warp == ROWS) {
        u32 sum = 0;
        for (u32 i = lane * 16; i < min(lane * 16 + 16, words); i++) sum += __popc(sh.any[i]);
        u32 upto = sum;
        for (u32 d = 1; d < 32; d *= 2) {
            const u32 other = shuffle_up(upto, d);
            if (lane >= d) upto += other;
        }
        sum = upto - sum;
        for (u32 i = lane * 16; i < min(lane * 16 + 16, words); i++) sh.before[i] = u16(sum), sum += __popc(sh.any[i]);
    }
    __syncthreads();  // and how many blocks lie before each word
    if (warp == ROWS) {
        bring(sh, k + kv_head * HEAD, v + kv_head * HEAD, row_tile, width, words, PART ? from * BLOCK : 0, end, slots);
    }
    if (!works) return;
    const float unit = scale * LOG2E;
    float y[16][4] = {}, m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;
    auto output = [&]() { return o + u64(mine) * ldo + kv_head * group * HEAD + 2 * t; };
    float2* sums = PART ? parts + (u64(mine) * heads + kv_head * group) * 4 + t : nullptr;
    if (PART && begin) {
        const float* to = output();
        if (g < group) {
            const float2 ml = sums[g * 4];
            m0 = ml.x, l0 = ml.y;
        }
        if (g + 8 < group) {
            const float2 ml = sums[(g + 8) * 4];
            m1 = ml.x, l1 = ml.y;
        }
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            const float2 a = g < group ? *reinterpret_cast<const float2*>(to + g * HEAD + i * 8) : make_float2(0.f, 0.f);
            const float2 b = g + 8 < group ? *reinterpret_cast<const float2*>(to + (g + 8) * HEAD + i * 8) : make_float2(0.f, 0.f);
            y[i][0] = a.x, y[i][1] = a.y, y[i][2] = b.x, y[i][3] = b.y;
        }
    }
    u32 next = n ? own[begin] : 0;
    for (u32 i = begin; i < stop; i++) {
        const u32 b = next, seen = p - b * BLOCK;  // key j counts iff j <= seen
        if (i + 1 < n) next = own[i + 1];
        u32 at = 2 * (sh.before[b / 32] + __popc(sh.any[b / 32] & ((1u << b % 32) - 1)));
#pragma unroll 1
        for (u32 half = 0; half < 2 && half * HALF <= seen; half++, at++) {
            __syncwarp();  // all lanes have left the half before
            if (lane == 0) store_shared(&sh.needs[warp], at);
            while (load_shared(&sh.ready) <= at) spin();
            __syncwarp();
            const Half& from = sh.halves()[at % slots];
            float s[4][4] = {};
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                const uint4 lo = sh.q[warp][c][0][lane], hi = sh.q[warp][c][1][lane];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const uint4 x = key_part(from.k, j, c);
                    mma(s[j], lo.x, hi.x, lo.y, hi.y, x.x, x.y);
                    mma(s[j], lo.z, hi.z, lo.w, hi.w, x.z, x.w);
                }
            }
            float t0 = m0, t1 = m1;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) s[j][e] = half * HALF + j * 8 + 2 * t + (e & 1) <= seen ? s[j][e] * unit : NEVER;
                t0 = fmaxf(t0, fmaxf(s[j][0], s[j][1]));
                t1 = fmaxf(t1, fmaxf(s[j][2], s[j][3]));
            }
            t0 = fmaxf(t0, shuffle_xor(t0, 1)), t0 = fmaxf(t0, shuffle_xor(t0, 2));
            t1 = fmaxf(t1, shuffle_xor(t1, 1)), t1 = fmaxf(t1, shuffle_xor(t1, 2));
            if (vote(t0 != m0 || t1 != m1)) {  // a new maximum somewhere: rare after the first blocks; a factor of 1 changes no bit
                const float f0 = exp2_fast(m0 - t0), f1 = exp2_fast(m1 - t1);
                m0 = t0, m1 = t1, l0 *= f0, l1 *= f1;
#pragma unroll
                for (u32 j = 0; j < 16; j++) y[j][0] *= f0, y[j][1] *= f0, y[j][2] *= f1, y[j][3] *= f1;
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                s[j][0] = exp2_fast(s[j][0] - m0), s[j][1] = exp2_fast(s[j][1] - m0);
                s[j][2] = exp2_fast(s[j][2] - m1), s[j][3] = exp2_fast(s[j][3] - m1);
                l0 += s[j][0] + s[j][1], l1 += s[j][2] + s[j][3];
            }
#pragma unroll
            for (u32 kk = 0; kk < 2; kk++) {
                const u32 a0 = pack(s[2 * kk][0], s[2 * kk][1]), a1 = pack(s[2 * kk][2], s[2 * kk][3]);
                const u32 a2 = pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), a3 = pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
                // Four matrices are on their way while four are multiplied.
                u32 x[2][4];
                auto values = [&](u32 j) { load_matrix_trans(x[j & 1], from.v + value_at(kk * 16 + (lane & 15), 2 * j + (lane >> 4))); };
                values(0);
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    if (j < 7) values(j + 1);
                    mma(y[2 * j], a0, a1, a2, a3, x[j & 1][0], x[j & 1][1]);
                    mma(y[2 * j + 1], a0, a1, a2, a3, x[j & 1][2], x[j & 1][3]);
                }
            }
        }
    }
    __syncwarp();  // all lanes have left the last half
    if (lane == 0) store_shared(&sh.needs[warp], ALL_DONE);
    const bool whole = !PART || stop == n;
    if (PART && !whole) {
        if (g < group) sums[g * 4] = make_float2(m0, l0);
        if (g + 8 < group) sums[(g + 8) * 4] = make_float2(m1, l1);
    }
    l0 += shuffle_xor(l0, 1), l0 += shuffle_xor(l0, 2);
    l1 += shuffle_xor(l1, 1), l1 += shuffle_xor(l1, 2);
    float* to = output();
    const float f0 = whole ? 1.f / l0 : 1.f, f1 = whole ? 1.f / l1 : 1.f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        if (g < group) *reinterpret_cast<float2*>(to + g * HEAD + i * 8) = make_float2(y[i][0] * f0, y[i][1] * f0);
        if (g + 8 < group) *reinterpret_cast<float2*>(to + (g + 8) * HEAD + i * 8) = make_float2(y[i][2] * f1, y[i][3] * f1);
    }
}

KERNEL((ROWS + 1) * 32, 1)
attend_prefill(float* o, u32 ldo, const bf16* q, u32 ldq, const bf16* k, const bf16* v, const u32* list, const u32* count, u32 cap, const Step* step, u32 heads,
               u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots) {
    SHARED_BYTES(bytes);
    attend_chunk<false>(bytes, o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, row_tile, scale, rows, slots, nullptr, 0, 0);
}

KERNEL((ROWS + 1) * 32, 1)
attend_prefill_part(float* o, u32 ldo, const bf16* q, u32 ldq, const bf16* k, const bf16* v, const u32* list, const u32* count, u32 cap, const Step* step,
                    u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots, float2* parts, u32 from, u32 until) {
    SHARED_BYTES(bytes);
    attend_chunk<true>(bytes, o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, row_tile, scale, rows, slots, parts, from, until);
}
