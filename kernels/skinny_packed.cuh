// The products of skinny.cuh for a form of packed.cuh.
#pragma once
#include "packed.cuh"
#include "skinny.cuh"

// Bounds for kernels of 512 threads: as if there were more, so that registers are left for the small kernels that run beside them.
constexpr u32 REGISTERS_80 = 768, REGISTERS_96 = 640;

// `N` warps of a block share the steps.
template <class F, u32 N = F::WARPS> struct Packed {
    static constexpr u32 WARPS = N;
    static constexpr bool EARLY = true;
    static constexpr u32 COLUMNS = UNIT_COLUMNS, STAGES = F::STAGES, AHEAD = F::AHEAD;
    const unsigned char *w, *base;
    u32 units, detail;
    bool behind;  // this lane copies of what is behind the values

    DEVICE_METHOD Packed(const unsigned char* w, u32 inner, u32 detail) : w(w), base(nullptr), units(inner / COLUMNS), detail(detail), behind((threadIdx.x & 31) * 16 < F::behind(detail)) {}
    DEVICE_METHOD static float gain() { return F::GAIN; }
    DEVICE_METHOD u32 stage_bytes() const { return F::VALUES + F::behind(detail); }
    DEVICE_METHOD static void begin(u32) {}
    DEVICE_METHOD void enter(u32 tile) { base = w + (u64(tile) * units + (threadIdx.x >> 5)) * stage_bytes() + (threadIdx.x & 31) * 16; }
    DEVICE_METHOD void issue(unsigned char* to) {
        to += (threadIdx.x & 31) * 16;
#pragma unroll
        for (u32 i = 0; i < F::VALUES / 512; i++) copy_async(to + i * 512, base + i * 512);
        if (behind) copy_async(to + F::VALUES, base + F::VALUES);
        base += WARPS * stage_bytes();
    }
    DEVICE_METHOD void fragments(const unsigned char* from, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) const {
        F::fragments(from, detail, i, h, a0, a1, c0, c1);
    }
};
