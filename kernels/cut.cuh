// Selection within a thread block: the value that a given number of its integer keys reach, found by counting. Counts
// do not depend on the order of the keys, so the result is the same in every run.
#pragma once
#include "common.cuh"

// Counts how many keys of the thread block's W warps reach each of a, b and c. `each(f)` calls f(key) for every key of
// the thread; a warp has at most 65,535 keys. Contains one barrier, so consecutive calls must alternate between two
// buffers.
template <u32 W, class Each> DEVICE void count_reaching(u32 (&reach)[3], Each each, u32 a, u32 b, u32 c, uint2 (&reached)[W]) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 low = 0, high = 0;  // low: keys that reach a in the lower half, b in the upper half; high: keys that reach c
    each([&](u32 key) {
        low += u32(key >= a) + (u32(key >= b) << 16);
        high += key >= c;
    });
    low = warp_add(low), high = warp_add(high);
    if (lane == 0) reached[warp] = make_uint2(low, high);
    __syncthreads();  // counts of this call written, those of the previous call read
    const uint2 mine = lane < W ? reached[lane] : make_uint2(0, 0);
    reach[0] = warp_add(mine.x & 0xffff), reach[1] = warp_add(mine.x >> 16), reach[2] = warp_add(mine.y);
}

// The cut: the largest value that at least `wanted` of the thread block's keys reach, 1 <= wanted <= number of keys.
// Without any key the result is arbitrary. The search also ends at a value at most `slack` below the cut, or at one
// that at least `wanted` and at most `most` keys reach. Each turn narrows the range between the smallest and the
// largest key to a quarter, so keys close to each other take few turns.
template <u32 W, class Each> DEVICE u32 find_cut(Each each, u32 wanted, u32 most, u32 slack, uint2 (*reached)[W]) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 least = 0xffffffffu, largest = 0;
    each([&](u32 key) { least = min(least, key), largest = max(largest, key); });
    least = warp_least(least), largest = warp_most(largest);
    if (lane == 0) reached[1][warp] = make_uint2(least, largest);
    __syncthreads();  // smallest and largest key of every warp
    const uint2 mine = lane < W ? reached[1][lane] : make_uint2(0xffffffffu, 0);
    u32 cut = warp_least(mine.x), width = warp_most(mine.y) - cut;
    if (warp_least(mine.x) > warp_most(mine.y)) return cut;  // no key
    for (u32 turn = 0; width > slack; turn++) {
        const u32 step = width / 4 + 1;
        u32 reach[3];
        count_reaching(reach, each, cut + step, cut + 2 * step, cut + 3 * step, reached[turn & 1]);
        const u32 up = reach[2] >= wanted ? 3 : reach[1] >= wanted ? 2 : reach[0] >= wanted ? 1 : 0;
        cut += up * step, width = up == 3 ? width - 3 * step : step - 1;
        if (up && reach[up - 1] <= most) break;
    }
    return cut;
}

// Exclusive prefix sum over the threads of the block; `all` receives the sum over all of them. `sums` may be reused
// after the next barrier.
template <u32 W> DEVICE u32 count_before(u32 own, u32 (&sums)[W], u32& all) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 before = own;
    for (u32 d = 1; d < 32; d *= 2) {
        const u32 other = shuffle_up(before, d);
        if (lane >= d) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();  // sums of the warps
    const u32 theirs = lane < W ? sums[lane] : 0;
    before += warp_add(lane < warp ? theirs : 0) - own;
    all = warp_add(theirs);
    return before;
}
