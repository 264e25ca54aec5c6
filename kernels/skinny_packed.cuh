// Skinny products (skinny.cuh) with a packed weight (packed.cuh).
#pragma once
#include "packed.cuh"
#include "skinny.cuh"

// Launch bounds of kernels with 512 threads. The larger numbers limit registers, so that small kernels of the next launches fit
// on the same multiprocessor.
constexpr u32 REGISTERS_80 = 768, REGISTERS_96 = 640;

// Factor of the sums: a power of two, or one factor a row, stored after the units of a pair.
template <class F, bool ROWS = (F::PAIR > 0)> struct Gain {
    DEVICE_METHOD static void load(const unsigned char*) {}
    DEVICE_METHOD static float of(u32, u32) { return F::GAIN; }
};
template <class F> struct Gain<F, true> {
    float rows[R][2];
    DEVICE_METHOD void load(const unsigned char* factors) {
        const float* from = reinterpret_cast<const float*>(factors) + ((threadIdx.x & 31) >> 2);
#pragma unroll
        for (u32 i = 0; i < R; i++) rows[i][0] = from[i * TILE], rows[i][1] = from[i * TILE + 8];
    }
    DEVICE_METHOD float of(u32 i, u32 up) const { return rows[i][up]; }
};

// The weight of a block of N warps.
template <class F, u32 N = F::WARPS> struct Packed {
    static constexpr u32 WARPS = N;
    static constexpr bool EARLY = true;
    static constexpr bool BY_STEP = F::BY_STEP;
    static constexpr u32 COLUMNS = UNIT_COLUMNS, STAGES = F::STAGES, AHEAD = F::AHEAD;
    const unsigned char *w, *base;
    u32 units, detail;
    bool copies_scales;  // this lane copies 16 bytes of the scales
    Gain<F> gains;

    DEVICE_METHOD Packed(const unsigned char* w, u32 inner, u32 detail) : w(w), base(nullptr), units(inner / COLUMNS), detail(detail), copies_scales((threadIdx.x & 31) * 16 < F::scale_bytes(detail)) {}
    DEVICE_METHOD float gain(u32 i, u32 up) const { return gains.of(i, up); }
    DEVICE_METHOD u32 stage_bytes() const { return F::VALUES + F::scale_bytes(detail); }
    DEVICE_METHOD const unsigned char* pair(u32 tile) const { return w + u64(tile) * units * stage_bytes() + u64(tile) * F::PAIR; }
    // `enter` loads the factors of the first pair, before the wait for the previous launch.
    DEVICE_METHOD void begin(u32 tile, bool again) {
        if (again) gains.load(pair(tile) + u64(units) * stage_bytes());
    }
    DEVICE_METHOD void enter(u32 tile, u32 part) {
        if (!base) gains.load(pair(tile) + u64(units) * stage_bytes());
        base = pair(tile) + part * stage_bytes() + (threadIdx.x & 31) * 16;
    }
    DEVICE_METHOD void issue(unsigned char* to, u32 every) {
#pragma unroll
        for (u32 i = 0; i < F::VALUES / 512; i++) copy_async(to + i * 512, base + i * 512);
        if (copies_scales) copy_async(to + F::VALUES, base + F::VALUES);
        base += every * stage_bytes();
    }
    DEVICE_METHOD static u32 values_at(u32 lane) { return lane * 16; }
    DEVICE_METHOD static u32 scales_at(u32 lane) { return F::VALUES + F::scales_at(lane); }
    DEVICE_METHOD void fragments(LaneAt at, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) const { F::fragments(at, detail, i, h, a0, a1, c0, c1); }
    DEVICE_METHOD static float step_gain(LaneAt at, u32 i, u32 up) { return F::step_gain(at, i, up); }
};
