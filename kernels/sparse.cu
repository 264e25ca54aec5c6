// InfLLM-V2 sparse attention (docs/model.md §5): appending rows to the cache, and attention of the rows of a verify
// pass over their chosen KV blocks. For row r at position p and query head h of KV head g,
//   o[r, h] = Σ_t softmax_t(scale · q[r, h] · k[t, g]) v[t, g],  t <= p and KV block ⌊t / 64⌋ in list[r, g].
//
// A layer of a verify pass runs append_kv_verify, the selection (sparse_select.cu), attend_verify (partial attention to
// two KV blocks each) and attend_combine (merge of the parts, attention mass of each KV block).
//
// Cache: rows [kv_heads, 128] bf16 in tiles (layout: attention.cuh) of keys k, values v, compressed keys k1 of level 1
// (mean of 32 keys, stride 16) and k2 of level 2 (mean of 128 keys, stride 64). q is bf16 [rows][ldq], o f32
// [rows][ldo], list u32 [row][KV head][cap] ascending, count u32 [row][KV head].
//
// A row's bits do not depend on the number of rows: splits are cut at fixed indices of its list, and every sum has one
// order.
#include "attention.cuh"
#include "sequences.cuh"

// ---- cache ----------------------------------------------------------------------------------------------------------

// Appends row r of a sequence: its key and value, and the compressed keys of the windows that end with it.
// Grid (row, KV head), 128 threads, one a column of the head. xk and xv hold the sequence's rows of this pass, the
// first at position `start`. Keys of this pass are read from xk and older ones from the cache, so thread blocks do not
// depend on each other.
//
// Bytes moved per row: 1 KB for k and v of two KV heads, 16 KB of keys for every 16th row (k1), 64 KB for every 64th
// (k2). Prefill reads these keys from L2: each twice for k1 and twice for k2.
DEVICE void append_row(const RowCache& to, const bf16* xk, const bf16* xv, u32 ldx, u32 start, u32 r, u32 kv_heads, u32 row_tile, u32 key_tile) {
    const u32 p = start + r, lane = blockIdx.y * HEAD + threadIdx.x, width = kv_heads * HEAD;
    const u64 here = row_at(p, row_tile, width) + lane;
    to.k[here] = xk[u64(r) * ldx + lane];
    to.v[here] = xv[u64(r) * ldx + lane];
    auto mean = [&](u32 window) {
        float s = 0.f;
#pragma unroll 32
        for (u32 i = 0; i < window; i++) {
            const u32 at = p + 1 - window + i;
            s += widen(at >= start ? xk[u64(at - start) * ldx + lane] : to.k[row_at(at, row_tile, width) + lane]);
        }
        return narrow(s / float(window));
    };
    if ((p + 1) % 16 == 0 && p + 1 >= 32) to.k1[compressed_at((p + 1) / 16 - 2, 16, key_tile, width) + lane] = mean(32);
    if ((p + 1) % 64 == 0 && p + 1 >= 128) to.k2[compressed_at((p + 1) / 64 - 2, 64, key_tile, width) + lane] = mean(128);
}

// Prefill: rows of one sequence from step->position on, into its cache.
KERNEL(128, 8)
append_kv(bf16* k, bf16* v, bf16* k1, bf16* k2, const bf16* xk, const bf16* xv, u32 ldx, const Step* step, u32 kv_heads, u32 row_tile, u32 key_tile, u32 rows) {
    allow_next();
    wait_for_previous();
    append_row(RowCache{k, v, k1, k2}, xk, xv, ldx, step->position, blockIdx.x, kv_heads, row_tile, key_tile);
}

// Verify pass: each row into the cache of its own sequence.
KERNEL(128, 8)
append_kv_verify(const bf16* xk, const bf16* xv, u32 ldx, const Row* at, const RowCache* of, u32 kv_heads, u32 row_tile, u32 key_tile, u32 rows) {
    allow_next();
    const u32 start = at[blockIdx.x].start, first = at[blockIdx.x].first;
    const RowCache to = of[blockIdx.x];
    wait_for_previous();
    append_row(to, xk + u64(first) * ldx, xv + u64(first) * ldx, ldx, start, blockIdx.x - first, kv_heads, row_tile, key_tile);
}

// ---- attention over the chosen KV blocks ----------------------------------------------------------------------------

constexpr u32 SPLIT_BLOCKS = 2;  // chosen KV blocks of a split

// Partial attention of a row to one split of its list: two chosen KV blocks, 128 keys, 32 a warp.
// Grid (split, KV head, row), 128 threads, splits = ceil(cap / 2). Splits past the row's count write nothing.
//
// Writes part_o [row][head][splits][128] f32, part_ml [row][head][splits] and part_block [row][head][2 · splits]
// (max, Σ) as attend_128 defines them. A row before position `all_until` chooses every KV block: entry i of its list is
// KV block i.
// Bytes moved: 64 KiB of keys and values a thread block.
KERNEL(128, 4)
attend_verify(float* part_o, float2* part_ml, float2* part_block, const bf16* q, u32 ldq, const u32* list, const u32* count, u32 cap, const Row* at,
              const RowCache* of, u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 splits, u32 all_until) {
    SHARED_BYTES(bytes);
    const u32 warp = threadIdx.x >> 5, group = heads / kv_heads;
    const u32 split = blockIdx.x, kv_head = blockIdx.y, r = blockIdx.z, width = kv_heads * HEAD;
    allow_next();
    const u32 p = at[r].position, entry = split * SPLIT_BLOCKS + (warp >> 1);
    const bf16 *k = of[r].k, *v = of[r].v;
    // KV blocks that end before the sequence's first row of this pass are older than the overlapping launches: their
    // keys and values are loaded before the wait if the list is known without reading it.
    const bool old = p < all_until && (entry + 1) * BLOCK <= at[r].start;
    u32 listed = entry, chosen = entry + 1;
    if (!old) {
        wait_for_previous();
        listed = list[(u64(r) * kv_heads + kv_head) * cap + min(entry, cap - 1)], chosen = count[r * kv_heads + kv_head];
        if (split * SPLIT_BLOCKS >= chosen) return;
    }
    // The last split of a list of odd length has one KV block; warps 2 and 3 then have no keys.
    const u32 start = entry < chosen ? listed * BLOCK + (warp & 1) * 32 : p + 1;
    const u32 keys = start <= p ? min(32u, p + 1 - start) : 0;
    const u64 first = row_at(keys ? start : 0, row_tile, width) + kv_head * HEAD;
    const u64 to = (u64(r) * heads + kv_head * group) * splits + split;
    auto queries = [&]() {
        if (old) wait_for_previous();
        return Queries::of(q + u64(r) * ldq + kv_head * group * HEAD, group);
    };
    attend_128(bytes, queries, k + first, v + first, [&](u32 j) { return j < keys; }, [&](u32 j) { return u64(j) * width; }, scale, group, part_o + to * HEAD,
               part_ml + to, splits, part_block + to * SPLIT_BLOCKS);
}

// Unit of attention mass: a head's whole attention is 2^22. Mass is counted in whole numbers, so atomic adds give the
// same sum in any order.
constexpr float MASS = 4194304.f;

// Merges the splits of a row's head. With m = max_i m_i over its splits i,
//   o = Σ_i 2^(m_i − m) part_o_i / Σ_i 2^(m_i − m) l_i,  (m_i, l_i) = part_ml_i.
// Grid (head, row), 256 threads. Warp w sums splits w, w + 8, .. in ascending order, a lane four columns; the sums of
// the warps are added in order 0..7.
//
// No load waits for the result of another: parts past the chosen KV blocks are loaded with the rest and left out of the
// sums.
//
// With `next_x` it also prepares the row for the next GEMM (Next in common.cuh), times sigmoid(gate) unless `gate` is
// null. Each chosen KV block's share of the head's attention is added to mass [row][ldm] u32, a column a KV block. All
// sparse layers of a pass add to the same mass: at most 1000 heads together, or 32 bits overflow.
// Bytes moved: all parts once, 0.8 MB a row in the 9B model (48 splits).
KERNEL(256, 4)
attend_combine(float* o, u32 ldo, const float* next_norm, bf16* next_x, float* next_sums, const bf16* gate, u32 ldg, u32* mass, u32 ldm, const float* part_o, const float2* part_ml, const float2* part_block, const u32* list, const u32* count,
               u32 cap, u32 heads, u32 kv_heads, u32 rows, u32 splits) {
    constexpr u32 WARPS = 8, AT_ONCE = 8;  // AT_ONCE: parts that a warp loads together
    __shared__ float4 sums[WARPS][32];
    allow_next();
    wait_for_previous();
    const u32 head = blockIdx.x, r = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u64 lists = u64(r) * kv_heads + head / (heads / kv_heads);
    const u64 at = (u64(r) * heads + head) * splits;
    part_o += at * HEAD + lane * 4, part_ml += at, part_block += at * SPLIT_BLOCKS, list += lists * cap;
    const u32 chosen = count[lists], parts = (chosen + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS;
    float2 ml[2];  // (m_i, l_i) of parts lane and lane + 32; later x is the factor 2^(m_i − m)
    float4 x[AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < 2; i++) ml[i] = lane + 32 * i < splits ? part_ml[lane + 32 * i] : make_float2(NEVER, 0.f);
    auto load = [&](u32 first) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 part = first + warp + WARPS * i;
            x[i] = part < splits ? *reinterpret_cast<const float4*>(part_o + u64(part) * HEAD) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
    };
    load(0);
    const u32 mine = threadIdx.x;  // index in the list of the chosen KV block that this thread adds mass to
    const float2 my_part = mine < splits * SPLIT_BLOCKS ? part_block[mine] : make_float2(NEVER, 0.f);
    const u32 my_block = mine < cap ? list[mine] : 0, column = head * HEAD + threadIdx.x;
    const Next next = NEXT(heads * HEAD);
    float factor = 0.f;
    if (next.x && threadIdx.x < HEAD) factor = gate ? next.weight(column) * sigmoid(widen(gate[u64(r) * ldg + column])) : next.weight(column);

    float m = NEVER, l = 0.f;
#pragma unroll
    for (u32 i = 0; i < 2; i++) m = fmaxf(m, lane + 32 * i < parts ? ml[i].x : NEVER);
    for (u32 i = lane + 64; i < parts; i += 32) m = fmaxf(m, part_ml[i].x);
    m = warp_max(m);
#pragma unroll
    for (u32 i = 0; i < 2; i++) ml[i].x = lane + 32 * i < parts ? exp2_fast(ml[i].x - m) : 0.f, l = lane + 32 * i < parts ? fmaf(ml[i].y, ml[i].x, l) : l;
    for (u32 i = lane + 64; i < parts; i += 32) l = fmaf(part_ml[i].y, exp2_fast(part_ml[i].x - m), l);
    l = warp_sum(l);
    float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
    for (u32 first = 0; first < parts; first += WARPS * AT_ONCE) {
        if (first) load(first);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 part = first + warp + WARPS * i;
            const float f = first ? part < parts ? exp2_fast(part_ml[part].x - m) : 0.f
                                  : __uint_as_float(shuffle(__float_as_uint(ml[i / 4].x), (warp + WARPS * i) % 32));
            if (part < parts) y.x = fmaf(x[i].x, f, y.x), y.y = fmaf(x[i].y, f, y.y), y.z = fmaf(x[i].z, f, y.z), y.w = fmaf(x[i].w, f, y.w);
        }
    }
    sums[warp][lane] = y;
    __syncthreads();  // sums of the warps
    const float once = rcp_fast(l);
    if (threadIdx.x < HEAD) {
        const float* from = reinterpret_cast<const float*>(sums) + threadIdx.x;
        float all = 0.f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) all += from[w * HEAD];
        o[u64(r) * ldo + column] = all * once;
        if (next.x) next.put(r, column, all * once, factor, true);
    }
    auto count_share = [&](float2 part, u32 block) {
        const u32 share = u32(part.y * exp2_fast(part.x - m) * once * MASS + 0.5f);
        if (share) atomicAdd(mass + u64(r) * ldm + block, share);
    };
    if (mine < chosen) count_share(my_part, my_block);
    for (u32 i = mine + 256; i < chosen; i += 256) count_share(part_block[i], list[i]);
}

// Adds the mass of rows row0 .. row0 + rows − 1 of a pass to sums [KV block] (freely chosen, forced), u64 each. Forced
// are the first `init` KV blocks, a row's own and the `local` before it. One thread a KV block, 256 threads. Runs
// between passes, so the position of row 0 is a parameter.
// Bytes moved: for each KV block 4 bytes of mass a row, and 16 bytes of sums read and written.
KERNEL(256, 4) mass_add(u64* sums, const u32* mass, u32 ldm, u32 position, u32 blocks, u32 init, u32 local, u32 row0, u32 rows) {
    allow_next();
    wait_for_previous();
    const u32 b = blockIdx.x * 256 + threadIdx.x;
    if (b >= blocks) return;
    u64 chosen = 0, forced = 0;
    for (u32 r = row0; r < row0 + rows; r++) {
        const u32 share = mass[u64(r) * ldm + b];
        if (b < init || b + local >= (position + r) / BLOCK) forced += share;
        else chosen += share;
    }
    sums[2 * b] += chosen;
    sums[2 * b + 1] += forced;
}
