// The value that so many of a block's integers reach: found by counting, the same every time.
#pragma once
#include "common.cuh"

// How many of the block's keys reach each of three values. `each(f)` calls f(key) for every key of the thread; at most 65535 keys a warp, W warps.
// One barrier; turns that follow each other take two buffers in turn.
template <u32 W, class Each> DEVICE void count_reaching(u32 (&reach)[3], Each each, u32 a, u32 b, u32 c, uint2 (&reached)[W]) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 low = 0, high = 0;  // keys that reach a and, in the upper half, b; that reach c
    each([&](u32 key) {
        low += u32(key >= a) + (u32(key >= b) << 16);
        high += key >= c;
    });
    low = warp_add(low), high = warp_add(high);
    if (lane == 0) reached[warp] = make_uint2(low, high);
    __syncthreads();  // counts of this turn written, those of the turn before read
    const uint2 mine = lane < W ? reached[lane] : make_uint2(0, 0);
    reach[0] = warp_add(mine.x & 0xffff), reach[1] = warp_add(mine.x >> 16), reach[2] = warp_add(mine.y);
}

// The largest value that at least `wanted` of the block's keys reach (one at least, of as many; without a key any value), or one at most `slack` below it, or
// any that no more than `most` and no fewer than `wanted` of them reach. A quarter of what is left between the least and the largest key a turn, so that keys close
// to each other take few turns.
template <u32 W, class Each> DEVICE u32 find_cut(Each each, u32 wanted, u32 most, u32 slack, uint2 (*reached)[W]) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 least = 0xffffffffu, largest = 0;
    each([&](u32 key) { least = min(least, key), largest = max(largest, key); });
    least = warp_least(least), largest = warp_most(largest);
    if (lane == 0) reached[1][warp] = make_uint2(least, largest);
    __syncthreads();  // of the warps
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

// Sum over the threads before this one; `all` becomes the block's sum. Free again after the next barrier.
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
