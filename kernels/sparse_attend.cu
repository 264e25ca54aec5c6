// InfLLM-V2 sparse attention in prefill: attention of a chunk's rows over their chosen KV blocks (docs/model.md §5.7).
// For row r at position p and query head h of KV head g,
//   o[r, h] = Σ_t softmax_t(scale · q[r, h] · k[t, g]) v[t, g],  t <= p and KV block ⌊t / 64⌋ in list[r, g].
// q is bf16 [rows][ldq], o f32 [rows][ldo], k and v bf16 in tiles (attention.cuh), list u32 [row][KV head][cap]
// ascending, count u32 [row][KV head]. At most 16,384 KV blocks.
//
// Grid (11 rows, KV head), 384 threads: a consumer warp for each row, and one producer warp. The producer copies the
// union of the rows' KV blocks through shared memory once, in ascending order, in halves of 32 keys and their values: a
// ring of `slots` slots. Neighbouring rows often choose different KV blocks, so consumers do not move in lockstep. Each
// works through its own list as halves arrive and publishes its progress; the producer refills the slots that all rows
// have passed.
//   ready     halves that have arrived; with the copy engine halves requested, which arrive at their slots' barriers
//   needs[w]  the first half that row w may still need
//
// A row's sums run over its own list only, in ascending order, so its bits do not depend on the other rows.
// Bytes moved: 32 KiB for each KV block of the union of 11 rows, mostly from L2.
#include "attention.cuh"
#include "bulk.cuh"

// Consumer warps. With the producer there are twelve, three on each of a multiprocessor's four register files; nine
// warps would have no more registers each.
constexpr u32 ROWS = 11;
constexpr u32 WORDS = 512;             // words of a bitmap of 16,384 KV blocks
constexpr u32 ALL_DONE = 0x7fffffffu;  // `needs` of a finished row
constexpr u32 HALF = 32;               // keys of a slot of the ring
// Halves that the producer's own copies keep in flight. Measured: more in flight is slower, the consumers use the rest
// of the ring better.
constexpr u32 FLIGHT = 2;
constexpr u32 MOST_SLOTS = 16;
// A row's sums for a head are in units of 2^(m · unit). m changes only for a score more than FAR / unit above it, so
// weights are at most 2^FAR.
constexpr float FAR = 8.f;
// The keys of a half are two panels of 64 columns, and so are its values. A panel's row has 128 bytes; its 16-byte
// chunks are permuted so that eight rows of one chunk hit all banks. This is the 128-byte swizzle that the copy engine
// writes.
constexpr u32 PANEL = HALF * 64;
struct Half {
    bf16 k[HALF * HEAD], v[HALF * HEAD];
};
// Offset in elements of a row's 16-byte chunk (8 columns) in `k` or `v` of a half.
DEVICE u32 half_at(u32 row, u32 chunk) { return (chunk >> 3) * PANEL + row * 64 + ((chunk ^ row) & 7) * 8; }
struct AttendShared {
    u32 any[WORDS];     // the union, a bit for each KV block
    u16 before[WORDS];  // KV blocks of the union in the words before this one
    u32 needs[ROWS], ready;
    u64 arrived[MOST_SLOTS];
    // The ring. Panels need addresses that are multiples of 1024, where the dynamic shared memory begins.
    DEVICE_METHOD Half* halves() { return reinterpret_cast<Half*>(reinterpret_cast<unsigned char*>(this) + 4096); }
};
static_assert(sizeof(AttendShared) <= 4096 && sizeof(Half) == 16'384, "bytes in src/backend/cuda/launch/attend.rs");

// The producer: fills the ring until the union is exhausted. Where rows share few KV blocks, the instructions of this
// one warp limit the kernel, most of all without the copy engine, where each lane issues 32 copies a half. k and v hold
// no position below `low`; tile 0 of `map` is the KV block of `low`. Positions from `end` on are zero.
DEVICE void fill_ring(AttendShared& sh, const TensorMap& map, u32 kv_head, const bf16* k, const bf16* v, u32 row_tile, u32 width, u32 words, u32 low, u32 end, u32 slots, bool bulk) {
    const u32 lane = threadIdx.x & 31, at = lane >> 4, chunk = lane & 15;
    u32 n = 0, slot = 0;  // halves requested, and the slot of the next one
    auto publish = [&](u32 ready) {
        __syncwarp();  // copies of every lane have arrived
        if (lane == 0) store_shared(&sh.ready, ready);
    };
    // Whether some row may still need the half in the next slot.
    auto full = [&]() { return vote(lane < ROWS && load_shared(&sh.needs[lane < ROWS ? lane : 0]) + slots <= n) != 0; };
    for (u32 w = 0; w < words; w++)
        for (u32 bits = sh.any[w]; bits; bits &= bits - 1) {
            const u32 b = w * 32 + u32(__ffs(int(bits))) - 1;
            for (u32 half = 0; half < 2; half++, n++) {
                if (full()) {
                    if (!bulk) {  // consumers may be waiting for halves in flight
                        copy_wait<0>();
                        publish(n);
                    }
                    while (full()) spin();
                }
                Half& to = sh.halves()[slot];
                u64* const arrived = &sh.arrived[slot];
                slot = slot + 1 == slots ? 0 : slot + 1;
                const bool whole = b * BLOCK + half * HALF + HALF <= end;
                if (bulk && whole) {
                    if (lane == 0) {
                        barrier_expect(arrived, sizeof(Half));
                        const u32 column = kv_head * HEAD, row = half * HALF, tile = b - low / BLOCK;
                        bring_box(to.k, map, column, row, tile, 0, arrived), bring_box(to.k + PANEL, map, column + 64, row, tile, 0, arrived);
                        bring_box(to.v, map, column, row, tile, 1, arrived), bring_box(to.v + PANEL, map, column + 64, row, tile, 1, arrived);
                        store_shared(&sh.ready, n + 1);
                    }
                    continue;
                }
                const u64 first = row_at(b * BLOCK + half * HALF + at, row_tile, width) + chunk * 8;
                const bf16 *from_k = k + first, *from_v = v + first;
                bf16* to_row[4];  // rows at, at + 2, at + 4, at + 6; the permutation repeats every eight rows
#pragma unroll
                for (u32 i = 0; i < 4; i++) to_row[i] = to.k + half_at(at + 2 * i, chunk);
                auto rows = [&](u32 wide) {
#pragma unroll
                    for (u32 i = 0; i < HALF / 2; i++) {
                        copy_async(to_row[i % 4] + i / 4 * 8 * 64, from_k + i * 2 * wide);
                        copy_async(to_row[i % 4] + i / 4 * 8 * 64 + HALF * HEAD, from_v + i * 2 * wide);
                    }
                };
                if (whole) {
                    if (width == 2 * HEAD) rows(2 * HEAD);  // a width known at compile time takes fewer instructions
                    else rows(width);
                } else {  // a half that extends past `end`
                    const u64 none = row_at(low, row_tile, width) + chunk * 8;
#pragma unroll 1
                    for (u32 i = 0; i < HALF / 2; i++, from_k += 2 * width, from_v += 2 * width) {
                        const bool counts = b * BLOCK + half * HALF + at + 2 * i < end;
                        copy_async(to.k + half_at(at + 2 * i, chunk), counts ? from_k : k + none, counts);
                        copy_async(to.v + half_at(at + 2 * i, chunk), counts ? from_v : v + none, counts);
                    }
                }
                copy_commit();
                if (bulk) {
                    copy_wait<0>();
                    publish(n + 1);
                    if (lane == 0) barrier_expect(arrived, 0);  // completes the phase at once
                } else {
                    copy_wait<FLIGHT - 1>();
                    if (n + 1 >= FLIGHT) publish(n + 2 - FLIGHT);
                }
            }
        }
    if (bulk) return;
    copy_wait<0>();
    publish(n);
}

// PART: attends only to the chosen KV blocks from <= b < until. k and v hold these at their usual offsets and need not
// hold others. Launches over all parts in ascending order give the bits of a single launch. Between a row's first and
// last part its sums wait in memory: outputs, not divided yet, in `o`; (m, Σ) of the four lanes of a head in `parts`
// [row][head][4].
template <bool PART>
DEVICE void attend_chunk(unsigned char* bytes, float* o, u32 ldo, const bf16* q, u32 ldq, const bf16* k, const bf16* v, const u32* list, const u32* count, u32 cap,
                         const Step* step, u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots, const TensorMap& map, float2* parts, u32 from, u32 until) {
    AttendShared& sh = *reinterpret_cast<AttendShared*>(bytes);
    allow_next();
    wait_for_previous();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = heads / kv_heads, kv_head = blockIdx.y;
    const u32 first = blockIdx.x * ROWS, last = min(first + ROWS, rows) - 1, mine = min(first + warp, last), width = kv_heads * HEAD;
    bool works = first + warp <= last && warp < ROWS;
    const u32 position = step->position, p = position + mine, end = position + last + 1, blocks = (end + BLOCK - 1) / BLOCK;
    const u32 words = min((blocks + 31) / 32, WORDS);
    const bool bulk = BULK && map.given();

    for (u32 i = threadIdx.x; i < words; i += (ROWS + 1) * 32) sh.any[i] = 0;
    if (threadIdx.x < ROWS) sh.needs[threadIdx.x] = first + threadIdx.x <= last ? 0 : ALL_DONE;
    if (threadIdx.x == 0) {
        sh.ready = 0;
        for (u32 i = 0; i < MOST_SLOTS; i++) barrier_init(&sh.arrived[i]);
        barriers_made();
    }
    __syncthreads();  // cleared
    const u32 n = count[mine * kv_heads + kv_head];
    const u32* own = list + (u64(mine) * kv_heads + kv_head) * cap;
    u32 begin = 0, stop = n;  // this launch's entries of the list
    if (PART) {
        u32 below = 0;  // entries below `from` in the lower half, below `until` in the upper half
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
    __syncthreads();  // the union is complete
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
    __syncthreads();  // `before` is complete
    if (warp == ROWS) {
        fill_ring(sh, map, kv_head, k + kv_head * HEAD, v + kv_head * HEAD, row_tile, width, words, PART ? from * BLOCK : 0, end, slots, bulk);
    }
    if (!works) return;
    u32 query[HEAD / 16][4];  // the row's heads as the 16-row operand, 16 columns a product
    {
        const bf16* first = q + u64(mine) * ldq + kv_head * group * HEAD + 2 * t;
        auto two = [&](u32 head, u32 column) { return head < group ? *reinterpret_cast<const u32*>(first + head * HEAD + column) : 0; };
#pragma unroll
        for (u32 c = 0; c < HEAD / 16; c++) {
            query[c][0] = two(g, c * 16), query[c][1] = two(g + 8, c * 16);
            query[c][2] = two(g, c * 16 + 8), query[c][3] = two(g + 8, c * 16 + 8);
        }
    }
    // Offsets in the first panel of the matrix row that this lane addresses: of eight keys by four chunks, and of
    // sixteen values by two chunks.
    const u32 key_row = half_at(lane & 7, lane >> 3), value_row = half_at(lane & 15, lane >> 4);
    const u32 inverse = 0xffffffffu / slots + 1;  // n / slots is the upper word of n · inverse
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
        const u32 b = next, seen = p - b * BLOCK;  // key j of the KV block counts if and only if j <= seen
        if (i + 1 < n) next = own[i + 1];
        u32 at = 2 * (sh.before[b / 32] + __popc(sh.any[b / 32] & ((1u << b % 32) - 1)));
#pragma unroll 1
        for (u32 half = 0; half < 2 && half * HALF <= seen; half++, at++) {
            __syncwarp();  // all lanes have read the previous half
            if (lane == 0) store_shared(&sh.needs[warp], at);
            while (load_shared(&sh.ready) <= at) spin();
            const u32 turn = __umulhi(at, inverse), slot = at - turn * slots;
            if (bulk) barrier_wait(&sh.arrived[slot], turn & 1);
            __syncwarp();
            const Half& from = sh.halves()[slot];
            float s[4][4] = {};
#pragma unroll
            for (u32 c = 0; c < 4; c++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 x[4];
                    load_matrix(x, from.k + c / 2 * PANEL + j * 8 * 64 + (key_row ^ c % 2 * 32));
                    mma(s[j], query[2 * c][0], query[2 * c][1], query[2 * c][2], query[2 * c][3], x[0], x[1]);
                    mma(s[j], query[2 * c + 1][0], query[2 * c + 1][1], query[2 * c + 1][2], query[2 * c + 1][3], x[2], x[3]);
                }
            if (half * HALF + HALF - 1 > seen) {
#pragma unroll
                for (u32 j = 0; j < 4; j++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++)
                        if (half * HALF + j * 8 + 2 * t + (e & 1) > seen) s[j][e] = NEVER;
            }
            float t0 = m0, t1 = m1;
#pragma unroll
            for (u32 j = 0; j < 4; j++) t0 = fmaxf(t0, fmaxf(s[j][0], s[j][1])), t1 = fmaxf(t1, fmaxf(s[j][2], s[j][3]));
            t0 = fmaxf(t0, shuffle_xor(t0, 1)), t0 = fmaxf(t0, shuffle_xor(t0, 2));
            t1 = fmaxf(t1, shuffle_xor(t1, 1)), t1 = fmaxf(t1, shuffle_xor(t1, 2));
            const bool far0 = (t0 - m0) * unit > FAR, far1 = (t1 - m1) * unit > FAR;
            // Rare after the first KV blocks. A head's unit depends on no other head, and a factor of 1 changes no bit.
            if (vote(far0 || far1)) {
                const float f0 = far0 ? exp2_fast((m0 - t0) * unit) : 1.f, f1 = far1 ? exp2_fast((m1 - t1) * unit) : 1.f;
                if (far0) m0 = t0;
                if (far1) m1 = t1;
                l0 *= f0, l1 *= f1;
#pragma unroll
                for (u32 j = 0; j < 16; j++) y[j][0] *= f0, y[j][1] *= f0, y[j][2] *= f1, y[j][3] *= f1;
            }
            const float n0 = -m0 * unit, n1 = -m1 * unit;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                s[j][0] = exp2_fast(fmaf(s[j][0], unit, n0)), s[j][1] = exp2_fast(fmaf(s[j][1], unit, n0));
                s[j][2] = exp2_fast(fmaf(s[j][2], unit, n1)), s[j][3] = exp2_fast(fmaf(s[j][3], unit, n1));
                l0 += s[j][0] + s[j][1], l1 += s[j][2] + s[j][3];
            }
#pragma unroll
            for (u32 kk = 0; kk < 2; kk++) {
                const u32 a0 = pack(s[2 * kk][0], s[2 * kk][1]), a1 = pack(s[2 * kk][2], s[2 * kk][3]);
                const u32 a2 = pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), a3 = pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
                // Four matrices load while the previous four are multiplied.
                u32 x[2][4];
                auto values = [&](u32 j) { load_matrix_trans(x[j & 1], from.v + j / 4 * PANEL + kk * 16 * 64 + (value_row ^ j % 4 * 16)); };
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
    __syncwarp();  // all lanes have read the last half
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
               u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots, const __grid_constant__ TensorMap map) {
    SHARED_BYTES(bytes);
    attend_chunk<false>(bytes, o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, row_tile, scale, rows, slots, map, nullptr, 0, 0);
}

KERNEL((ROWS + 1) * 32, 1)
attend_prefill_part(float* o, u32 ldo, const bf16* q, u32 ldq, const bf16* k, const bf16* v, const u32* list, const u32* count, u32 cap, const Step* step,
                    u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 slots, const __grid_constant__ TensorMap map, float2* parts, u32 from, u32 until) {
    SHARED_BYTES(bytes);
    attend_chunk<true>(bytes, o, ldo, q, ldq, k, v, list, count, cap, step, heads, kv_heads, row_tile, scale, rows, slots, map, parts, from, until);
}
