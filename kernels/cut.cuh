// The value that so many of a block's integers reach: found by bisection, exact and the same every time.
#pragma once
#include "common.cuh"

// Largest value of BITS bits that at least `wanted` of the block's keys reach, its lowest `rest` bits 0; 0 where fewer do.
// `each(f)` calls f(key) for every key of the thread. Two bits and one barrier a turn, two buffers in turn; at most 65535 keys a warp, W warps.
template <u32 W, u32 BITS, class Each> DEVICE u32 find_cut(Each each, u32 wanted, uint2 (*reached)[W], u32 rest = 0) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 cut = 0;
    for (u32 turn = 0, shift = BITS - 2; turn * 2 + rest < BITS; turn++, shift -= 2) {
        const u32 a = cut + (1u << shift), b = cut + (2u << shift), c = cut + (3u << shift);
        u32 low = 0, high = 0;  // keys that reach a and, in the upper half, b; that reach c
        each([&](u32 key) {
            low += u32(key >= a) + (u32(key >= b) << 16);
            high += key >= c;
        });
        low = warp_add(low), high = warp_add(high);
        if (lane == 0) reached[turn & 1][warp] = make_uint2(low, high);
        __syncthreads();  // counts of this turn written, those of the turn before read
        const uint2 mine = lane < W ? reached[turn & 1][lane] : make_uint2(0, 0);
        const u32 reach_a = warp_add(mine.x & 0xffff), reach_b = warp_add(mine.x >> 16), reach_c = warp_add(mine.y);
        cut = reach_c >= wanted ? c : reach_b >= wanted ? b : reach_a >= wanted ? a : cut;
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
