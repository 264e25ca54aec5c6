// InfLLM-V2 sparse attention: selection of KV blocks (docs/model.md §5.4-5.6). For row r, query head h of KV head g,
// and s(r, h, j) = scale · log2(e) · (q[r, h] · key[j, g]),
//   z[r, h]         = log2 Σ_j 2^s(r, h, j)                    over visible compressed keys j       (select_lse: parts)
//   A[r, g, j]      = Σ_{h in g} 2^(s(r, h, j) − z[r, h])      for visible k1 rows j, else 0        (select_scores)
//   scores[r, g, b] = bf16(max A[r, g, j], j = 4b − 1 .. 4b + 3)
//   list[r, g]      = forced KV blocks and the best of the others, ascending                        (select_top*)
// select_lse and select_scores serve verify passes; prefill has its own (sparse_scores.cu). select_top* serve both.
//
// q is bf16 [rows][ldq], part float2 [row][head][splits], scores bf16 [row][KV head][score_blocks], list u32
// [row][KV head][cap], count u32 [row][KV head]. The query heads of a KV head (at most 16) are the 16 rows of a
// tensor-core tile, in select_scores its columns.
//
// A row's bits do not depend on the number of rows: splits are cut at fixed key indices, and every sum has one order.
#include "attention.cuh"
#include "cut.cuh"
#include "sequences.cuh"

constexpr u32 KEYS = 256;  // compressed keys of a thread block of select_lse
constexpr u32 WARP_KEYS = 64;
constexpr u32 SCORED = 32;  // KV blocks of a thread block of select_scores in a step; also compressed keys of a warp

// Copies this warp's 8 · tiles compressed keys from `first` on, all in one tile of the cache; keys from `count` on are
// zero. Shared memory holds 16-byte pieces [tile of 8 keys][32 columns][lane]: a lane copies exactly the pieces that it
// reads.
DEVICE void fetch_keys(uint4* to, const bf16* keys, u32 first, u32 tiles, u32 count, u32 stride, u32 key_tile, u32 width) {
    const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u64 here = compressed_at(first, stride, key_tile, width);
    for (u32 n = 0; n < tiles; n++) {
        const u32 j = n * 8 + g;
        const bool counts = first + j < count;
        const bf16* from = keys + (counts ? here + j * width : 0) + t * 8;
#pragma unroll
        for (u32 b = 0; b < 4; b++) copy_async(to + (n * 4 + b) * 32 + lane, from + b * 32, counts);
    }
}

// The rows of a thread block of select_lse and select_scores, for which it reads compressed keys once: at most SHARE rows of one
// sequence, from the row apart · blockIdx.z on. `apart` is SHARE with one sequence. With several it is 1, since any row may be the
// first of its sequence, and the thread blocks of rows within a share have none.
constexpr u32 SHARE = 4;
struct Rows {
    u32 first, n, position, start;  // `position` of the first of the n rows; `start` of the first row of the sequence in the pass

    DEVICE_METHOD Rows(const Row* at, u32 apart, u32 rows) : first(blockIdx.z * apart) {
        const Row row = at[first];
        position = row.position, start = row.start;
        n = (first - row.first) % SHARE ? 0 : min(min(SHARE, row.first + row.rows - first), rows - first);
    }
    DEVICE_METHOD u32 last() const { return position + n - 1; }
    // Whether every row chooses all of its KV blocks, so that nothing is to be scored.
    DEVICE_METHOD bool choose_all(u32 all_below) const { return !n || last() / BLOCK < all_below; }
};

// Queries of the rows of a KV head in shared memory, [row][part 8][lane] 16 bytes in the order in which lanes use them. Warp i copies
// those of row i. Heads from `group` on are zero.
struct SharedQueries {
    uint4 pieces[8][32];

    // q: the first row's first head of the group.
    DEVICE_METHOD static void fetch(SharedQueries* to, const bf16* q, u32 ldq, u32 group, u32 n) {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
        if (warp >= n) return;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 head = (i & 1) * 8 + (lane >> 2);
            copy_async(&to[warp].pieces[i][lane], q + u64(warp) * ldq + (head < group ? head * HEAD : 0) + (i >> 1) * 32 + t * 8, head < group);
        }
    }
    DEVICE_METHOD Queries load() const {
        const u32 lane = threadIdx.x & 31;
        Queries all;
#pragma unroll
        for (u32 b = 0; b < 4; b++) all.lo[b] = pieces[2 * b][lane], all.hi[b] = pieces[2 * b + 1][lane];
        return all;
    }
};
static_assert(sizeof(SharedQueries) == 4096, "bytes in src/backend/cuda/launch/select.rs");

// part [row][head][split] = (m, Σ 2^(s − m)), m = max s, over 256 compressed keys of `level` 1 or 2.
// Grid (split, KV head, share of rows), 128 threads, 64 keys a warp. Rows with at most `all_below` KV blocks choose them all and
// need no parts.
// Bytes moved: the keys once a share; k2 has 8 bytes a position with two KV heads.
KERNEL(128, 2)
select_lse(float2* part, const bf16* q, u32 ldq, u32 level, u32 window, u32 stride, const Row* at, const RowCache* of, u32 heads, u32 kv_heads,
           u32 key_tile, float scale, u32 rows, u32 splits, u32 all_below, u32 apart) {
    SHARED_BYTES(bytes);
    __shared__ float2 merged[SHARE][4][GROUP];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads;
    const u32 kv_head = blockIdx.y, first = blockIdx.x * KEYS;
    const Rows share(at, apart, rows);
    const bf16* keys = level == 2 ? of[share.first].k2 : of[share.first].k1;
    uint4* mine = reinterpret_cast<uint4*>(bytes) + warp * WARP_KEYS * 16;
    SharedQueries* queries = reinterpret_cast<SharedQueries*>(bytes + 4 * WARP_KEYS * 256);
    const u32 count = visible_keys(share.last(), window, stride);
    allow_next();
    if (share.choose_all(all_below)) {
        wait_for_previous();
        return;
    }
    // Compressed keys that were complete before this pass are older than the overlapping launches: they load before the
    // wait.
    const bool old = share.start && first + KEYS <= visible_keys(share.start - 1, window, stride);
    auto fetch = [&]() { fetch_keys(mine, keys + kv_head * HEAD, first + warp * WARP_KEYS, 8, count, stride, key_tile, kv_heads * HEAD); };
    if (old) fetch();
    wait_for_previous();
    if (first >= count) return;
    if (!old) fetch();
    SharedQueries::fetch(queries, q + u64(share.first) * ldq + kv_head * group * HEAD, ldq, group, share.n);
    copy_commit();
    copy_wait<0>();
    __syncthreads();  // queries of all rows
    const float unit = scale * LOG2E;
#pragma unroll 1
    for (u32 i = 0; i < share.n; i++) {
        const Queries query = queries[i].load();
        const u32 visible = visible_keys(share.position + i, window, stride);
        float s[8][4] = {}, m0 = NEVER, m1 = NEVER, l0 = 0.f, l1 = 0.f;
#pragma unroll
        for (u32 p = 0; p < 8; p++)
#pragma unroll
            for (u32 n = 0; n < 8; n++) query.score(s[n], mine[(n * 4 + p / 2) * 32 + lane], p);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            const u32 j = first + warp * WARP_KEYS + n * 8 + 2 * t;
#pragma unroll
            for (u32 e = 0; e < 4; e++) s[n][e] = j + (e & 1) < visible ? s[n][e] * unit : NEVER;
            m0 = fmaxf(m0, fmaxf(s[n][0], s[n][1]));
            m1 = fmaxf(m1, fmaxf(s[n][2], s[n][3]));
        }
        m0 = fmaxf(m0, shuffle_xor(m0, 1)), m0 = fmaxf(m0, shuffle_xor(m0, 2));
        m1 = fmaxf(m1, shuffle_xor(m1, 1)), m1 = fmaxf(m1, shuffle_xor(m1, 2));
        const float z0 = m0 == NEVER ? 0.f : m0, z1 = m1 == NEVER ? 0.f : m1;
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            l0 += exp2_fast(s[n][0] - z0) + exp2_fast(s[n][1] - z0);
            l1 += exp2_fast(s[n][2] - z1) + exp2_fast(s[n][3] - z1);
        }
        l0 += shuffle_xor(l0, 1), l0 += shuffle_xor(l0, 2);
        l1 += shuffle_xor(l1, 1), l1 += shuffle_xor(l1, 2);
        if (t == 0) merged[i][warp][g] = make_float2(m0, l0), merged[i][warp][g + 8] = make_float2(m1, l1);
    }
    __syncthreads();  // parts of all warps
    const u32 i = threadIdx.x / GROUP, head = threadIdx.x % GROUP;
    if (i < share.n && head < group && first < visible_keys(share.position + i, window, stride)) {
        float m = NEVER, l = 0.f;
        for (u32 w = 0; w < 4; w++) m = fmaxf(m, merged[i][w][head].x);
        for (u32 w = 0; w < 4; w++) l += merged[i][w][head].y * exp2_fast(merged[i][w][head].x - m);
        part[(u64(share.first + i) * heads + kv_head * group + head) * splits + blockIdx.x] = make_float2(m, l);
    }
}

// Pooled scores of KV blocks: scores [row][KV head][b] = bf16(max A_j), j = 4b − 1 .. 4b + 3, A_j = Σ_h 2^(s_j − z_h).
// Grid (x, KV head, share of rows), 128 threads. A step is 32 KV blocks, 32 level-1 keys a warp. A thread block takes neighbouring
// steps, as many as every other, and the keys of its next step load meanwhile; in the first, the last warp also has the 8 keys
// before it. So the work common to a row (z, queries) is done once a thread block, and a grid of thread blocks that all run at once
// covers a long context. `window` and `stride` are those of the keys that select_lse read.
// Bytes moved: k1 once a share, 32 bytes a position with two KV heads.
KERNEL(128, 2)
select_scores(bf16* scores, const float2* part, const bf16* q, u32 ldq, u32 window, u32 stride, const Row* at, const RowCache* of, u32 heads, u32 kv_heads,
              u32 key_tile, float scale, u32 rows, u32 splits, u32 score_blocks, u32 all_below, u32 apart) {
    // Keys of a step, tiles of 8 keys of a warp, 16-byte pieces of a step.
    constexpr u32 STEP = 4 * SCORED, TILES = SCORED / 8, PARTS = (4 * TILES + 1) * 128;
    SHARED_BYTES(bytes);
    __shared__ float z[SHARE][GROUP];
    __shared__ __align__(16) float level1[2][SHARE][8 + STEP];  // A of keys first − 8 .. first + 127; steps alternate between the two
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const Rows share(at, apart, rows);
    const bf16* k1 = of[share.first].k1;
    SharedQueries* queries = reinterpret_cast<SharedQueries*>(bytes + 2 * PARTS * 16);
    allow_next();
    const u32 all = share.last() / BLOCK / SCORED + 1, most = (all + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * most;
    if (share.choose_all(all_below) || begin >= all) {
        wait_for_previous();
        return;
    }
    const u32 count = visible_keys(share.last(), 32, 16), steps = min(most, all - begin);
    auto first_of = [&](u32 step) { return (begin + step) * STEP; };
    // A lane reads only the pieces that it copied, so no barrier orders copies and reads.
    auto mine = [&](u32 step, u32 tile) { return reinterpret_cast<uint4*>(bytes) + (step & 1) * PARTS + tile * 128; };
    auto fetch = [&](u32 step) {
        const u32 first = first_of(step), width = kv_heads * HEAD;
        const bf16* keys = k1 + kv_head * HEAD;
        fetch_keys(mine(step, warp * TILES), keys, first + warp * SCORED, TILES, count, 16, key_tile, width);
        if (warp == 3 && step == 0) fetch_keys(mine(step, 4 * TILES), keys, first - 8, first ? 1 : 0, count, 16, key_tile, width);
    };
    // Whether all keys of a step were complete before this pass, as in select_lse.
    auto old = [&](u32 step) { return step < steps && share.start && first_of(step) + STEP <= visible_keys(share.start - 1, 32, 16); };
#pragma unroll
    for (u32 step = 0; step < 2; step++) {
        if (old(step)) fetch(step);
    }
    wait_for_previous();
    SharedQueries::fetch(queries, q + u64(share.first) * ldq + kv_head * group * HEAD, ldq, group, share.n);
#pragma unroll
    for (u32 step = 0; step < 2; step++) {
        if (step < steps && !old(step)) fetch(step);
        copy_commit();  // copies issued before the wait, and queries, belong to the first group
    }
    const float unit = scale * LOG2E;
    const u32 ones = all_ones();
    {
        // z of the warp's heads in all rows, merged over all parts. Heads and rows are interleaved, so the loads of one do not wait
        // for another.
        constexpr u32 HEADS = GROUP / 4;
        const float2* from = part + (u64(share.first) * heads + kv_head * group + warp) * splits;
        u32 parts[SHARE];
        float m[SHARE][HEADS], l[SHARE][HEADS];
        auto each = [&](auto what) {
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) {
                if (i >= share.n) break;
#pragma unroll
                for (u32 k = 0; k < HEADS; k++) what(i, k);
            }
        };
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) parts[i] = (visible_keys(share.position + i, window, stride) + KEYS - 1) / KEYS;
        const u32 longest = parts[SHARE - 1];
        each([&](u32 i, u32 k) { m[i][k] = NEVER, l[i][k] = 0.f; });
        for (u32 n = lane; n < longest; n += 32)
            each([&](u32 i, u32 k) {
                if (warp + 4 * k < group && n < parts[i]) m[i][k] = fmaxf(m[i][k], from[(i * heads + 4 * k) * splits + n].x);
            });
        each([&](u32 i, u32 k) { m[i][k] = warp_max(m[i][k]); });
        for (u32 n = lane; n < longest; n += 32)
            each([&](u32 i, u32 k) {
                if (warp + 4 * k < group && n < parts[i]) {
                    const float2 one = from[(i * heads + 4 * k) * splits + n];
                    l[i][k] += one.y * exp2_fast(one.x - m[i][k]);
                }
            });
        // A lane takes the logarithm of one sum.
        float top = NEVER, sum = 0.f;
        each([&](u32 i, u32 k) {
            l[i][k] = warp_sum(l[i][k]);
            if (lane == i * HEADS + k) top = m[i][k], sum = l[i][k];
        });
        const u32 i = lane / HEADS, head = warp + lane % HEADS * 4;
        // Without a visible key in z every score is 0. Heads from `group` on have none.
        if (i < share.n) z[i][head] = head < group && visible_keys(share.position + i, window, stride) ? top + log2f(sum) : INFINITY;
    }
    float before = 0.f;  // A of the key before the step, in lane 0 of the row's warp
    for (u32 step = 0; step < steps; step++) {
        const u32 first = first_of(step);
        copy_wait<1>();
        if (step == 0) __syncthreads();  // z and queries of all rows
        // Operands of the products with each row: the keys of two tiles, 16 columns. They are 16 rows and the heads are columns, so
        // that few lanes have to add up the heads of a key.
        uint4 key[TILES / 2][8];
#pragma unroll
        for (u32 n = 0; n < TILES / 2; n++)
#pragma unroll
            for (u32 b = 0; b < 4; b++) {
                const uint4 low = mine(step, warp * TILES + 2 * n)[b * 32 + lane], high = mine(step, warp * TILES + 2 * n + 1)[b * 32 + lane];
                key[n][2 * b] = make_uint4(low.x & ones, high.x & ones, low.y & ones, high.y & ones);
                key[n][2 * b + 1] = make_uint4(low.z & ones, high.z & ones, low.w & ones, high.w & ones);
            }
        // Unrolled, so that products of a row overlap with exponentials of the one before.
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            if (i >= share.n) break;
            const Queries query = queries[i].load();
            const u32 visible = visible_keys(share.position + i, 32, 16);
            float* own = level1[step & 1][i];
            const float zs[4] = {z[i][2 * t], z[i][2 * t + 1], z[i][2 * t + 8], z[i][2 * t + 9]};
            // s[h]: keys g of two tiles, heads 2t and 2t + 1 of half h.
            auto score = [&](float (&s)[2][4], uint4 k, u32 b) {
                const uint4 lo = query.lo[b / 2], hi = query.hi[b / 2];
                mma(s[0], k.x, k.y, k.z, k.w, b % 2 ? lo.z : lo.x, b % 2 ? lo.w : lo.y);
                mma(s[1], k.x, k.y, k.z, k.w, b % 2 ? hi.z : hi.x, b % 2 ? hi.w : hi.y);
            };
            // A of key g of the first tile (e = 0) or the second (e = 2).
            auto sum = [&](const float (&s)[2][4], u32 e) {
                float a = exp2_fast(s[0][e] * unit - zs[0]) + exp2_fast(s[0][e + 1] * unit - zs[1]);
                a += exp2_fast(s[1][e] * unit - zs[2]) + exp2_fast(s[1][e + 1] * unit - zs[3]);
                a += shuffle_xor(a, 1);
                return a + shuffle_xor(a, 2);
            };
            auto keep = [&](float a, u32 at) {  // A of key first − 8 + at; 0 if the key is not visible
                const u32 j = first + at;
                if (t == 0) own[at] = j >= 8 && j - 8 < visible ? a : 0.f;
            };
            // Sums of different keys in turn: a sum waits for its last product.
            float s[TILES / 2][2][4] = {};
#pragma unroll
            for (u32 b = 0; b < 8; b++)
#pragma unroll
                for (u32 n = 0; n < TILES / 2; n++) score(s[n], key[n][b], b);
#pragma unroll
            for (u32 n = 0; n < TILES; n++) keep(sum(s[n / 2], n % 2 * 2), 8 + warp * SCORED + n * 8 + g);
            if (warp == 3 && step == 0) {
                float front[2][4] = {};
#pragma unroll
                for (u32 b = 0; b < 8; b++) {
                    const uint4 x = mine(step, 4 * TILES)[b / 2 * 32 + lane];
                    score(front, b % 2 ? make_uint4(x.z, x.z, x.w, x.w) : make_uint4(x.x, x.x, x.y, x.y), b);
                }
                keep(sum(front, 0), g);
            }
        }
        if (step + 2 < steps) fetch(step + 2);
        copy_commit();
        __syncthreads();  // `level1` of this step is complete; that of the previous step is free
        const u32 b = first / 4 + lane;
        if (warp < share.n) {
            const float* own = level1[step & 1][warp];
            const float4 a = *reinterpret_cast<const float4*>(own + 8 + lane * 4);
            const float left = lane || step == 0 ? own[7 + lane * 4] : before;
            const float best = fmaxf(fmaxf(fmaxf(left, a.x), fmaxf(a.y, a.z)), a.w);
            before = __uint_as_float(shuffle(__float_as_uint(a.w), 31));
            if (b < score_blocks) scores[(u64(share.first + warp) * kv_heads + kv_head) * score_blocks + b] = narrow(best);
        }
    }
}

constexpr u32 OWN = 32;  // most KV blocks of a thread

// The chosen KV blocks of a row, ascending: list [row][KV head][cap], count [row][KV head]. Forced are the first `init`
// KV blocks, the row's own and the `local` before it. The others are free: the best by score fill up to `topk`, ties at
// the cut go to the lowest indices. A row with at most `topk` KV blocks, or at p with p + 1 < dense_until, chooses all.
// `at` is null in prefill. Scores are not negative, so their bits order like their values (cut.cuh).
//
// The cut is found in two steps. The k-th largest of the threads' best scores, k being the number of free KV blocks to
// choose, is a bound no higher than the cut. Only scores that reach the bound, a few of a long list, are gathered; the
// cut is found among them.
//
// Grid (KV head, row), W warps; a thread has 8, 16, 24 or 32 consecutive KV blocks. scores
// [row − row0][KV head][score_blocks], score_blocks a multiple of 64. Shared memory: a word for each KV block, its
// index and score.
template <u32 W>
DEVICE void choose(unsigned char* bytes, u32* list, u32* count, const bf16* scores, const Step* step, const Row* at, u32 kv_heads, u32 score_blocks, u32 cap, u32 init, u32 local, u32 topk,
           u32 dense_until, u32 row0, u32 rows) {
    constexpr u32 THREADS = W * 32;
    __shared__ u32 sums[2][W];
    __shared__ uint2 reached[2][W];
    allow_next();
    const u32 row = row0 + blockIdx.y, p = at ? at[row].position : step->position + row, last = p / BLOCK, n = last + 1;
    wait_for_previous();
    u32* to = list + (u64(row) * kv_heads + blockIdx.x) * cap;
    if (n <= topk || p + 1 < dense_until) {
        const u32 all = min(n, cap);
        for (u32 b = threadIdx.x; b < all; b += THREADS) to[b] = b;
        if (threadIdx.x == 0) count[row * kv_heads + blockIdx.x] = all;
        return;
    }
    const u32 from = min(init, n), until = last > local ? max(last - local, from) : from;  // free: from <= b < until
    const u32 forced = n - (until - from), wanted = topk > forced ? topk - forced : 0;
    const u32 per = min(OWN, (n + THREADS * 8 - 1) / (THREADS * 8) * 8), b0 = threadIdx.x * per;
    const bf16* mine = scores + (u64(blockIdx.y) * kv_heads + blockIdx.x) * score_blocks + b0;
    auto below = [](u32 bits) { return bits < 32 ? (1u << bits) - 1 : 0xffffffffu; };
    // The thread's free KV blocks, a bit each.
    const u32 own = until > b0 ? below(min(per, until - b0)) & ~(from > b0 ? below(from - b0) : 0) : 0;
    u32 key[OWN / 2], low = 0, high = 0;  // key: two scores each; the best is the upper half of `low` or of `high`
#pragma unroll
    for (u32 i = 0; i < OWN / 8; i++) {
        const uint4 x = own >> (i * 8) ? load16(mine + i * 8) : make_uint4(0, 0, 0, 0);
        key[4 * i] = x.x, key[4 * i + 1] = x.y, key[4 * i + 2] = x.z, key[4 * i + 3] = x.w;
    }
#pragma unroll
    for (u32 i = 0; i < OWN / 2; i++) {
        key[i] &= (own >> (2 * i) & 1 ? 0xffffu : 0) | (own >> (2 * i + 1) & 1 ? 0xffff0000u : 0);
        low = max(low, key[i] << 16), high = max(high, key[i]);
    }
    const u32 best = max(low, high) >> 16, owners = until > from ? (until - 1) / per - from / per + 1 : 0, some = max(wanted, 1u);
    const u32 bound = owners < some ? 0 : find_cut<W>([&](auto look) { if (own) look(best); }, some, some + 32, 3, reached);
    u32 reach = 0;
#pragma unroll
    for (u32 i = 0; i < OWN / 2; i++) reach |= u32((key[i] & 0xffff) >= bound) << (2 * i) | u32(key[i] >> 16 >= bound) << (2 * i + 1);
    reach &= own;
    u32* found = reinterpret_cast<u32*>(bytes);  // free KV blocks that reach the bound, ascending
    u32 all;
    for (u32 place = count_before(__popc(reach), sums[0], all); reach; reach &= reach - 1) {
        const u32 i = u32(__ffs(reach) - 1);
        found[place++] = (b0 + i) << 16 | mine[i];
    }
    __syncthreads();  // `found` written
    // Entries f0 <= f < f1 of `found` are the thread's: nearly always at most one.
    const u32 share = (all + THREADS - 1) / THREADS, f0 = min(threadIdx.x * share, all), f1 = min(f0 + share, all);
    const u32 cut = find_cut<W>(
        [&](auto look) {
            for (u32 f = f0; f < f1; f++) look(found[f] & 0xffff);
        },
        some, 0, 0, reached);
    // Entries above the cut are counted in the upper half of a word, those at the cut in the lower half; `before` sums
    // the threads before this one.
    u32 kinds = 0;
    auto kind = [&](u32 f) -> u32 { return (found[f] & 0xffff) > cut ? 1u << 16 : (found[f] & 0xffff) == cut ? 1u : 0; };
    for (u32 f = f0; f < f1; f++) kinds += kind(f);
    const u32 before = count_before(kinds, sums[1], all);
    const u32 ties = wanted - (all >> 16);
    u32 taken = before >> 16, level = before & 0xffff;
    for (u32 f = f0; f < f1; f++) {
        const u32 what = kind(f);
        if (what > 1 || (what == 1 && level < ties)) {
            const u32 place = from + taken + min(level, ties);
            if (place < cap) to[place] = found[f] >> 16;
        }
        taken += what >> 16;
        level += what & 1;
    }
    for (u32 i = threadIdx.x; i < forced; i += THREADS) {
        const u32 place = i < from ? i : i + wanted;
        if (place < cap) to[place] = i < from ? i : until + i - from;
    }
    if (threadIdx.x == 0) count[row * kv_heads + blockIdx.x] = min(forced + wanted, cap);
}

#define SELECT_ARGS \
    u32 *list, u32 *count, const bf16 *scores, const Step *step, const Row *at, u32 kv_heads, u32 score_blocks, u32 cap, u32 init, u32 local, u32 topk, \
        u32 dense_until, u32 row0, u32 rows
#define SELECT list, count, scores, step, at, kv_heads, score_blocks, cap, init, local, topk, dense_until, row0, rows
// At most 16,384 KV blocks, 1,048,576 positions.
KERNEL(512, 2) select_top(SELECT_ARGS) {
    SHARED_BYTES(bytes);
    choose<16>(bytes, SELECT);
}
// At most 4,096 KV blocks, faster where there are many rows: four warps wait for each other less than sixteen.
KERNEL(128, 8) select_top_many(SELECT_ARGS) {
    SHARED_BYTES(bytes);
    choose<4>(bytes, SELECT);
}
