// The 256 best logits of each row, and log Σ exp over all its logits, so that little data crosses to the host. logits
// is f32 [rows][ld].
//
// Order: logit descending, then id ascending; NaN is lowest. top_logits_groups takes the maximum of each small group of
// logits. top_logits_pick finds the 256th largest maximum: a bound that at least 256 logits reach, and few more. It
// gathers these and ranks them against each other, which is exact. If more than MOST reach the bound (long runs of
// equal logits), it finds the cut over all logits instead. The result does not depend on the order of threads; every
// sum has one order.
// Bytes moved: the logits once, 294 KB a row in the 9B model.
#include "cut.cuh"

constexpr u32 BEST = 256;
constexpr u32 SPLIT = 2048;  // logits of a thread block of top_logits_groups
constexpr u32 MOST = 2048;   // candidates that are ranked
constexpr u32 NO_ID = 0xffffffffu;
// Words of a row's result: 256 logits, 256 ids, log Σ exp, padding.
constexpr u32 FOUND = 2 * BEST + 4;
// Groups at which the search for the bound may end: a bound below the 256th largest maximum is correct, too.
constexpr u32 LOOSE = BEST + 32;
// Logits of these groups that a thread reads in a round. One round covers LOOSE groups of 32.
constexpr u32 LOOKS = LOOSE * 32 / 1024;

// An integer that orders like x; 0 for NaN.
DEVICE u32 order_key(float x) {
    const u32 b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0;
    return b >> 31 ? ~b : b | 0x80000000u;
}
DEVICE float key_value(u32 k) { return k == 0 ? -INFINITY : __uint_as_float(k >> 31 ? k & 0x7fffffffu : ~k); }
// Unique for each logit; larger for a better rank.
DEVICE u64 sort_key(u32 key, u32 id) { return u64(key) << 32 | (NO_ID - id); }

// tops [row][ceil(vocab / group)]: the largest order_key of each `group` (8, 16 or 32) of logits; lse [row][split]:
// (max, Σ exp) of 2048 logits.
// Grid (split, row), 256 threads of 8 consecutive logits, splits = ceil(vocab / 2048).
KERNEL(256, 4) top_logits_groups(u32* tops, float2* lse, const float* logits, u32 ld, u32 vocab, u32 group, u32 rows, u32 splits) {
    __shared__ float scratch[8];
    allow_next();
    wait_for_previous();
    const u32 i0 = blockIdx.x * SPLIT + threadIdx.x * 8, lane = threadIdx.x & 31;
    const float* from = logits + u64(blockIdx.y) * ld;
    u32 top = 0;
    float x[8], m = -INFINITY, s = 0.f;
    if (i0 + 8 <= vocab && ld % 4 == 0) {
        const float4 a = load_fresh(from + i0), b = load_fresh(from + i0 + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = i0 + i < vocab ? from[i0 + i] : -INFINITY;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        top = max(top, i0 + i < vocab ? order_key(x[i]) : 0);
        m = fmaxf(m, x[i]);
    }
    for (u32 n = 1; n * 8 < group; n *= 2) top = max(top, shuffle(top, lane ^ n));
    if (i0 < vocab && i0 % group == 0) tops[blockIdx.y * ((vocab + group - 1) / group) + i0 / group] = top;
    m = warp_max(m);
    if (lane == 0) scratch[threadIdx.x >> 5] = m;
    __syncthreads();  // maxima of the warps
#pragma unroll
    for (u32 w = 0; w < 8; w++) m = fmaxf(m, scratch[w]);
    __syncthreads();  // maxima read
    const float z = m == -INFINITY ? 0.f : m;
#pragma unroll
    for (u32 i = 0; i < 8; i++) s += expf(x[i] - z);
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) lse[blockIdx.y * splits + blockIdx.x] = make_float2(m, s);
}

// found [row][FOUND]: a row's best logits, their ids and log Σ exp; −inf and NO_ID beyond the vocabulary. It may be
// host memory: it is written once, in whole lines.
// Grid (row), 1024 threads. Shared memory: the row's tops, then the indices of the groups that reach the bound.
KERNEL(1024, 1)
top_logits_pick(float* found, const u32* tops, const float2* lse, const float* logits, u32 ld, u32 vocab, u32 group, u32 rows, u32 splits) {
    SHARED_BYTES(bytes);
    __shared__ uint2 reached[2][32];
    __shared__ u32 sums[32], counters[2];
    __shared__ __align__(16) u64 best[MOST];
    __shared__ __align__(16) u32 to[FOUND];
    allow_next();
    wait_for_previous();
    const u32 r = blockIdx.x, groups = (vocab + group - 1) / group;
    const float* from = logits + u64(r) * ld;
    u32* top = reinterpret_cast<u32*>(bytes);
    u32* hits = top + groups;
    if (threadIdx.x < 2) counters[threadIdx.x] = 0;
    for (u32 i = threadIdx.x; i < groups; i += 1024) top[i] = tops[u64(r) * groups + i];
    __syncthreads();  // tops loaded
    const u32 bound = groups <= BEST ? 0 : find_cut<32>([&](auto look) { for (u32 i = threadIdx.x; i < groups; i += 1024) look(top[i]); }, BEST, LOOSE, 3, reached);
    // The order of `hits` and `best` varies from run to run; the ranks restore the order.
    for (u32 i = threadIdx.x; i < groups; i += 1024)
        if (top[i] >= bound) hits[atomicAdd(&counters[0], 1)] = i;
    __syncthreads();  // hits written
    const u32 looks = counters[0] * group, shift = u32(__ffs(int(group))) - 1, lane = threadIdx.x & 31;
    for (u32 i0 = threadIdx.x; i0 - threadIdx.x < looks; i0 += LOOKS * 1024) {
        u32 id[LOOKS], key[LOOKS], here[LOOKS], all = 0;
#pragma unroll
        for (u32 i = 0; i < LOOKS; i++) {
            const u32 look = i0 + i * 1024;
            id[i] = look < looks ? (hits[look >> shift] << shift) + (look & (group - 1)) : NO_ID;
            key[i] = id[i] < vocab ? order_key(from[id[i]]) : 0;
        }
#pragma unroll
        for (u32 i = 0; i < LOOKS; i++) here[i] = vote(id[i] < vocab && key[i] >= bound), all += u32(__popc(here[i]));
        u32 at = lane == 0 && all ? atomicAdd(&counters[1], all) : 0;
        at = shuffle(at, 0);
#pragma unroll
        for (u32 i = 0; i < LOOKS; i++) {
            const u32 slot = at + u32(__popc(here[i] & ((1u << lane) - 1)));
            if (here[i] >> lane & 1 && slot < MOST) best[slot] = sort_key(key[i], id[i]);
            at += u32(__popc(here[i]));
        }
    }
    __syncthreads();  // candidates written
    u32 n = counters[1];
    if (n > MOST) {
        const u32 each = (vocab + 1023) / 1024, i0 = min(threadIdx.x * each, vocab), i1 = min(i0 + each, vocab);
        const u32 cut = find_cut<32>([&](auto look) { for (u32 i = i0; i < i1; i++) look(order_key(from[i])); }, BEST, 0, 0, reached);
        u32 above = 0, level = 0, all_above, all_level;
        for (u32 i = i0; i < i1; i++) {
            const u32 key = order_key(from[i]);
            above += key > cut, level += key == cut;
        }
        u32 taken = count_before(above, sums, all_above);
        __syncthreads();  // sums read
        level = count_before(level, sums, all_level);
        const u32 ties = BEST - all_above;
        for (u32 i = i0; i < i1; i++) {
            const u32 key = order_key(from[i]);
            if (key > cut || (key == cut && level < ties)) best[taken + min(level, ties)] = sort_key(key, i);
            taken += key > cut, level += key == cut;
        }
        n = BEST;
    }
    if (threadIdx.x == 0 && n % 2) best[n] = 0;
    __syncthreads();  // `best` is complete, not yet in order
    // The rank of a candidate is the number of larger ones, counted by two lanes, two candidates at a time.
    for (u32 e0 = threadIdx.x / 2; e0 - threadIdx.x % 32 / 2 < n; e0 += 512) {
        const u64 me = e0 < n ? best[e0] : 0;
        u32 rank = 0;
#pragma unroll 4
        for (u32 i = threadIdx.x % 2 * 2; i < n; i += 4) {
            const uint4 two = load16(best + i);
            rank += (u64(two.y) << 32 | two.x) > me;
            rank += (u64(two.w) << 32 | two.z) > me;
        }
        rank += shuffle(rank, (threadIdx.x & 31) ^ 1);
        if (e0 < n && rank < BEST && threadIdx.x % 2 == 0) {
            to[rank] = __float_as_uint(key_value(u32(me >> 32)));
            to[BEST + rank] = NO_ID - u32(me);
        }
    }
    if (threadIdx.x >= 992) {  // the last warp, which seldom has a candidate to rank
        float m = -INFINITY, s = 0.f;
        for (u32 i = threadIdx.x - 992; i < splits; i += 32) m = fmaxf(m, lse[r * splits + i].x);
        m = warp_max(m);
        for (u32 i = threadIdx.x - 992; i < splits; i += 32) {
            const float2 part = lse[r * splits + i];
            s += part.x == -INFINITY ? 0.f : part.y * expf(part.x - m);
        }
        s = warp_sum(s);
        if (threadIdx.x >= 992 + 28) to[2 * BEST + threadIdx.x - (992 + 28)] = threadIdx.x == 992 + 28 ? __float_as_uint(m + logf(s)) : 0;
    }
    if (threadIdx.x < BEST && threadIdx.x >= n) {
        to[threadIdx.x] = __float_as_uint(-INFINITY);
        to[BEST + threadIdx.x] = NO_ID;
    }
    __syncthreads();  // the row's result is complete
    if (threadIdx.x < FOUND / 4) reinterpret_cast<uint4*>(found + u64(r) * FOUND)[threadIdx.x] = load16(to + threadIdx.x * 4);
}
