// InfLLM-V2 sparse attention: the cache, and attention of the rows of a verify pass over the blocks they chose (docs/model.md §5).
//
// Cache: rows [kv, 128] bf16 of keys, values and compressed keys k1 of level 1 (mean of 32 keys, stride 16) and k2 of level 2 (mean of 128, stride 64), in tiles.
// Query heads of a KV head (at most 16) are the 16 rows of a tensor-core tile. Scores are kept in units of log 2.
// A row is worked on with the same arithmetic whatever the number of rows; splits are cut at absolute places.
#include "attention.cuh"
#include "sequences.cuh"

// ---- cache -------------------------------------------------------------------------------------------------------------

// Block (row, KV head), a thread a lane of the head. Keys of this pass are read from x, older ones from the cache, so blocks do
// not depend on each other. Bytes moved: k, v once, keys of completed windows once more (2·3 times in prefill, from level 2).
// A sequence's rows begin with xk, xv at position `start`.
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

KERNEL(128, 8)
append_kv(bf16* k, bf16* v, bf16* k1, bf16* k2, const bf16* xk, const bf16* xv, u32 ldx, const Step* step, u32 kv_heads, u32 row_tile, u32 key_tile, u32 rows) {
    allow_next();
    wait_for_previous();
    append_row(RowCache{k, v, k1, k2}, xk, xv, ldx, step->position, blockIdx.x, kv_heads, row_tile, key_tile);
}

KERNEL(128, 8)
append_kv_verify(const bf16* xk, const bf16* xv, u32 ldx, const Row* at, const RowCache* of, u32 kv_heads, u32 row_tile, u32 key_tile, u32 rows) {
    allow_next();
    const u32 start = at[blockIdx.x].start, first = at[blockIdx.x].first;
    const RowCache to = of[blockIdx.x];
    wait_for_previous();
    append_row(to, xk + u64(first) * ldx, xv + u64(first) * ldx, ldx, start, blockIdx.x - first, kv_heads, row_tile, key_tile);
}

// ---- attention over the chosen blocks --------------------------------------------------------------------------------------

// Two chosen blocks: 128 keys, 32 a warp. Block (split, KV head, row), 4 warps. Bytes moved: 64 KiB a block.
constexpr u32 SPLIT_BLOCKS = 2;

KERNEL(128, 4)
attend_verify(float* part_o, float2* part_ml, float2* part_block, const bf16* q, u32 ldq, const u32* list, const u32* count, u32 cap, const Row* at,
              const RowCache* of, u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows, u32 splits, u32 all_until) {
    SHARED_BYTES(bytes);
    const u32 warp = threadIdx.x >> 5, group = heads / kv_heads;
    const u32 split = blockIdx.x, kv_head = blockIdx.y, r = blockIdx.z, width = kv_heads * HEAD;
    allow_next();
    const u32 p = at[r].position, entry = split * SPLIT_BLOCKS + (warp >> 1);
    const bf16 *k = of[r].k, *v = of[r].v;
    // A row before `all_until` takes every block, and those that end before this pass are older than the launches under way.
    const bool old = p < all_until && (entry + 1) * BLOCK <= at[r].start;
    u32 listed = entry, chosen = entry + 1;
    if (!old) {
        wait_for_previous();
        listed = list[(u64(r) * kv_heads + kv_head) * cap + min(entry, cap - 1)], chosen = count[r * kv_heads + kv_head];
        if (split * SPLIT_BLOCKS >= chosen) return;
    }
    // An odd list's last split has one block: the other two warps see no key.
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

// Shares of a head's attention are counted in whole numbers: they add up to the same whatever their order.
constexpr float MASS = 4194304.f;  // 2^22, a head's whole attention

// Block (head, row), 8 warps. A warp sums every eighth part, a lane four columns, and the warps' sums are added in order. Nothing that is read waits for
// anything else that is read: what lies behind the chosen blocks is loaded with the rest and left out.
// Every layer of the pass adds to `mass` [row][ldm blocks]: at most 1024 heads in all.
KERNEL(256, 4)
attend_combine(float* o, u32 ldo, const float* next_norm, bf16* next_x, float* next_sums, const bf16* gate, u32 ldg, u32* mass, u32 ldm, const float* part_o, const float2* part_ml, const float2* part_block, const u32* list, const u32* count,
               u32 cap, u32 heads, u32 kv_heads, u32 rows, u32 splits) {
    constexpr u32 WARPS = 8, AT_ONCE = 8;  // parts of a warp under way
    __shared__ float4 sums[WARPS][32];
    allow_next();
    wait_for_previous();
    const u32 head = blockIdx.x, r = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u64 lists = u64(r) * kv_heads + head / (heads / kv_heads);
    const u64 at = (u64(r) * heads + head) * splits;
    part_o += at * HEAD + lane * 4, part_ml += at, part_block += at * SPLIT_BLOCKS, list += lists * cap;
    const u32 chosen = count[lists], parts = (chosen + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS;
    float2 ml[2];  // of parts lane and lane + 32
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
    const u32 mine = threadIdx.x;  // a chosen block whose share this thread counts
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

// Adds what rows row0 .. row0 + rows of a pass gave each KV block to `sums` [block] (freely chosen, forced): the first `init`
// blocks and the `local` before a row's own are forced. Block: 256 KV blocks.
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
