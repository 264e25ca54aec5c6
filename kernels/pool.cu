// Paged caches (docs/architecture.md §6): keys and values are in page-locked host memory, and each sparse layer and KV
// head has a pool of KV blocks on the device for verify passes. Kernels read host memory at the host's own addresses.
//
// A verify pass runs, for each layer, pool_choose (looks up the chosen KV blocks and assigns slots to missing ones),
// pool_fetch (copies these from host memory) and pool_attend (attention over KV blocks in slots).
//
// Layout, for one layer:
//   pool_k, pool_v  [KV head][slot][64][128] bf16
//   table           [KV head][KV block] of a sequence: the slot of each KV block, or NOWHERE
//   owner           [KV head][slot]: address of the table entry that names the slot, 0 for a free slot
//   stamp           [KV head][slot]: the pass that chose the slot last; clock [KV head] counts passes
// A table entry and the owner of its slot name each other or neither does; they always change together.
//
// A slot equals host memory up to the last row written: a pass writes its rows to both, and any other writer of rows
// takes the KV blocks of these rows out of the pool (pool_forget).
#include "attention.cuh"
#include "cut.cuh"
#include "sequences.cuh"

constexpr int NOWHERE = -1;
constexpr u32 MOST_SLOTS = 16384;   // of a layer and KV head: 32 a thread
constexpr u32 MOST_FETCHED = 4096;  // KV blocks of a pass and KV head
constexpr u32 SLOT = BLOCK * HEAD;  // elements of a slot's keys, and of its values

// Table of a row's sequence in one sparse layer: slots [KV head][blocks].
struct RowBlocks {
    int* slots;
    u64 reserved[3];
};

// A KV block to fetch: its first row's key and value of the KV head in host memory, and its slot.
struct Fetch {
    const bf16 *k, *v;
    u32 slot, reserved[3];
};

// Looks up the chosen KV blocks of the pass's rows and assigns slots to those that are missing.
//   place [row][KV head][cap]  the slot of each chosen KV block; NOWHERE if no slot is left for it, because all hold
//                              KV blocks of this pass: pool_attend then reads it from host memory
//   fetch [KV head][slots]     the missing KV blocks; they evict the slots chosen longest ago, ties to the lowest slot
//   fetched [KV head]          their number
//   seen [KV head][4]          counts of KV blocks looked up, fetched, and read from host memory by pool_attend
// New keys xk and values xv of the pass are also written to the slots of KV blocks that are present.
//
// Grid: a thread block a KV head, 512 threads. Rows are handled one after another, so a KV block that two rows choose
// is fetched once, and the same passes leave the same pool.
KERNEL(512, 1)
pool_choose(int* place, Fetch* fetch, u32* fetched, u64* seen, u64* owner, u32* stamp, u32* clock, bf16* pool_k, bf16* pool_v, u32 slots, const bf16* xk,
            const bf16* xv, u32 ldx, const u32* list, const u32* count, u32 cap, const Row* at, const RowCache* of, const RowBlocks* tables, u32 blocks,
            u32 kv_heads, u32 row_tile, u32 rows) {
    __shared__ u16 age[MOST_SLOTS];
    __shared__ u16 victims[MOST_FETCHED];
    __shared__ u32 sums[16], missing[MAX_VERIFY];
    __shared__ uint2 reached[2][16];
    allow_next();
    wait_for_previous();
    const u32 head = blockIdx.x, t = threadIdx.x, now = clock[head] + 1;
    place += head * cap, fetch += u64(head) * slots, seen += head * 4, owner += u64(head) * slots, stamp += u64(head) * slots;
    auto lists = [&](u32 r) { return u64(r) * kv_heads + head; };
    auto places = [&](u32 r) { return place + u64(r) * kv_heads * cap; };
    auto table = [&](u32 r) { return tables[r].slots + u64(head) * blocks; };
    if (t < MAX_VERIFY) missing[t] = 0;
    __syncthreads();  // cleared

    u32 looked = 0;
    for (u32 r = 0; r < rows; r++) {
        const u32 p = at[r].position;
        const int here = table(r)[p / BLOCK];
        if (here >= 0 && t < 2 * HEAD) {
            const u32 lane = t % HEAD;
            (t < HEAD ? pool_k : pool_v)[(u64(head) * slots + here) * SLOT + p % BLOCK * HEAD + lane] = (t < HEAD ? xk : xv)[u64(r) * ldx + head * HEAD + lane];
        }
        const u32 n = count[lists(r)];
        looked += n;
        for (u32 i = t; i < n; i += 512) {
            const int slot = table(r)[list[lists(r) * cap + i]];
            places(r)[i] = slot;
            if (slot >= 0) stamp[slot] = now;
            else atomicAdd(&missing[r], 1u);
        }
    }
    __syncthreads();  // stamps and counts written
    u32 all = 0;
    for (u32 r = 0; r < rows; r++) all += missing[r];
    u32 used = 0, wanting = 0;
    if (all) {
        // Ages of slots in passes, at most 65,535. Slots chosen in this pass have age 0 and are never evicted.
        const u32 wanted = min(all, MOST_FETCHED), per = (slots + 511) / 512, s0 = t * per, s1 = min(s0 + per, slots);
        for (u32 s = t; s < slots; s += 512) age[s] = u16(min(now - stamp[s], 0xffffu));
        __syncthreads();  // ages
        const u32 cut = find_cut<16>(
            [&](auto look) {
                for (u32 s = s0; s < s1; s++) look(age[s]);
            },
            min(wanted, slots), 0, 0, reached);
        // Slots above the cut are counted in the upper half of a word, those at the cut in the lower half, as in
        // select_top.
        auto kind = [&](u32 s) -> u32 { return age[s] > cut ? 1u << 16 : cut && age[s] == cut ? 1u : 0; };
        u32 own = 0, total;
        for (u32 s = s0; s < s1; s++) own += kind(s);
        const u32 before = count_before(own, sums, total);
        const u32 above = total >> 16, ties = min(total & 0xffff, wanted > above ? wanted - above : 0), found = min(above + ties, wanted);
        u32 taken = before >> 16, level = before & 0xffff;
        for (u32 s = s0; s < s1; s++) {
            const u32 what = kind(s), to = taken + min(level, ties);
            if ((what > 1 || (what == 1 && level < ties)) && to < MOST_FETCHED) victims[to] = u16(s);
            taken += what >> 16, level += what & 1;
        }
        __syncthreads();  // victims written; sums are free
        for (u32 r = 0; r < rows; r++) {
            if (!missing[r]) continue;
            const u32 n = count[lists(r)];
            int* slot_of = table(r);
            for (u32 i0 = 0; i0 < n; i0 += 512) {
                const u32 i = i0 + t, b = i < n ? list[lists(r) * cap + i] : 0;
                const bool open = i < n && places(r)[i] < 0;  // missing when the pass began
                const int slot = open ? slot_of[b] : 0;
                const bool miss = open && slot < 0;
                u32 more;
                const u32 m = used + count_before(miss, sums, more);
                if (miss && m < found) {
                    const u32 to = victims[m];
                    if (owner[to]) *reinterpret_cast<int*>(owner[to]) = NOWHERE;
                    owner[to] = reinterpret_cast<u64>(slot_of + b), slot_of[b] = int(to), stamp[to] = now;
                    const u64 from = row_at(b * BLOCK, row_tile, kv_heads * HEAD) + head * HEAD;
                    fetch[m] = Fetch{of[r].k + from, of[r].v + from, to, {}};
                    places(r)[i] = int(to);
                } else if (open) {
                    places(r)[i] = slot;
                }
                wanting += more;
                used = min(used + more, found);
                __syncthreads();  // table entries of the row written; sums are free
            }
        }
    }
    if (t == 0) fetched[head] = used, clock[head] = now, seen[0] += looked, seen[1] += used, seen[2] += wanting - used;
}

// Copies the listed KV blocks from host memory into their slots, 16 bytes a load.
// Grid (share, KV head), 256 threads. The keys of a KV block and its values are two items; a thread block takes every
// `shares`-th item.
// Bytes moved: 32 KiB of host memory for each KV block and KV head.
KERNEL(256, 4) pool_fetch(bf16* pool_k, bf16* pool_v, const Fetch* fetch, const u32* fetched, u32 slots, u32 kv_heads, u32 shares) {
    allow_next();
    wait_for_previous();
    const u32 head = blockIdx.y, n = fetched[head] * 2, chunk = threadIdx.x & 15, first = threadIdx.x >> 4;
    for (u32 item = blockIdx.x; item < n; item += shares) {
        const Fetch one = fetch[u64(head) * slots + item / 2];
        const bf16* from = item & 1 ? one.v : one.k;
        bf16* to = (item & 1 ? pool_v : pool_k) + (u64(head) * slots + one.slot) * SLOT;
        uint4 x[BLOCK / 16];
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16; i++) x[i] = load16(from + u64(first + i * 16) * kv_heads * HEAD + chunk * 8);
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16; i++) store16(to + (first + i * 16) * HEAD + chunk * 8, x[i]);
    }
}

constexpr u32 SPLIT_BLOCKS = 2;  // chosen KV blocks of a split

// attend_verify over KV blocks in slots, and in host memory for those without one: the same sums in the same order, so
// the same bits.
// Grid (split, KV head, row), 128 threads.
// Bytes moved: 64 KiB of keys and values a thread block.
KERNEL(128, 4)
pool_attend(float* part_o, float2* part_ml, float2* part_block, const bf16* q, u32 ldq, const u32* list, const u32* count, const int* place, u32 cap,
            const Row* at, const RowCache* of, const bf16* pool_k, const bf16* pool_v, u32 slots, u32 heads, u32 kv_heads, u32 row_tile, float scale, u32 rows,
            u32 splits) {
    SHARED_BYTES(bytes);
    const u32 warp = threadIdx.x >> 5, group = heads / kv_heads;
    const u32 split = blockIdx.x, kv_head = blockIdx.y, r = blockIdx.z;
    allow_next();
    const u32 p = at[r].position;
    const bf16 *k = of[r].k, *v = of[r].v;
    wait_for_previous();
    const u64 lists = u64(r) * kv_heads + kv_head;
    const u32 chosen = count[lists], entry = split * SPLIT_BLOCKS + (warp >> 1);
    if (split * SPLIT_BLOCKS >= chosen) return;
    // The last split of a list of odd length has one KV block; warps 2 and 3 then have no keys.
    const u32 start = entry < chosen ? list[lists * cap + entry] * BLOCK + (warp & 1) * 32 : p + 1;
    const u32 keys = start <= p ? min(32u, p + 1 - start) : 0;
    const int slot = entry < chosen ? place[lists * cap + entry] : NOWHERE;
    const bool here = slot >= 0;
    const u32 width = here ? HEAD : kv_heads * HEAD;
    const u64 first = here ? (u64(kv_head) * slots + slot) * SLOT + (warp & 1) * 32 * HEAD : row_at(keys ? start : 0, row_tile, width) + kv_head * HEAD;
    auto queries = [&]() { return Queries::of(q + u64(r) * ldq + kv_head * group * HEAD, group); };
    const u64 to = (u64(r) * heads + kv_head * group) * splits + split;
    attend_128(bytes, queries, (here ? pool_k : k) + first, (here ? pool_v : v) + first, [&](u32 j) { return j < keys; }, [&](u32 j) { return u64(j) * width; },
               scale, group, part_o + to * HEAD, part_ml + to, splits, part_block + to * SPLIT_BLOCKS);
}

// Takes a sequence's KV blocks from `from` on out of the pool; their slots become free.
// Grid (256 KV blocks, KV head), 256 threads.
// Bytes moved: 4 bytes a KV block, and the entries of those in the pool.
KERNEL(256, 4) pool_forget(int* table, u64* owner, u32* stamp, u32 slots, u32 blocks, u32 from, u32 kv_heads) {
    allow_next();
    wait_for_previous();
    const u32 b = from + blockIdx.x * 256 + threadIdx.x, head = blockIdx.y;
    if (b >= blocks) return;
    int* entry = table + u64(head) * blocks + b;
    if (*entry < 0) return;
    owner[u64(head) * slots + *entry] = 0, stamp[u64(head) * slots + *entry] = 0, *entry = NOWHERE;
}
