// Products of 1..16 rows with a weight in two forms, in one launch: its first `detail` rows, a multiple of 32, are int4, int5 or
// int6, the others are the int8 weight `w2`.
#include "skinny_packed.cuh"

template <class F> struct Mixed {
    static constexpr u32 WARPS = 16;
    static constexpr bool EARLY = true, BY_STEP = false;
    static constexpr u32 COLUMNS = UNIT_COLUMNS, STAGES = 2, AHEAD = 1;
    Packed<F, WARPS> first;
    Packed<Int8, WARPS> second;
    u32 border;              // pairs of tiles in `first`
    bool copies, multiplies;  // whether copies and fragments are at `second`

    DEVICE_METHOD Mixed(const unsigned char* w, u32 inner, u32 rows, const unsigned char* w2)
        : first(w, inner, 0), second(w2, inner, 0), border(rows / (R * TILE)), copies(false), multiplies(false) {}
    DEVICE_METHOD u32 stage_bytes() const { return second.stage_bytes(); }
    DEVICE_METHOD float gain(u32 i, u32 up) const { return multiplies ? second.gain(i, up) : first.gain(i, up); }
    DEVICE_METHOD void enter(u32 tile, u32 part) {
        copies = tile >= border;
        if (copies) second.enter(tile - border, part);
        else first.enter(tile, part);
    }
    DEVICE_METHOD void issue(unsigned char* to, u32 every) {
        if (copies) second.issue(to, every);
        else first.issue(to, every);
    }
    DEVICE_METHOD void begin(u32 tile, bool) { multiplies = tile >= border; }
    // Of the second form; `fragments` computes the place of the first form's scales.
    DEVICE_METHOD static u32 values_at(u32 lane) { return lane * 16; }
    DEVICE_METHOD static u32 scales_at(u32 lane) { return Packed<Int8, WARPS>::scales_at(lane); }
    DEVICE_METHOD void fragments(LaneAt at, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) const {
        const u32 lane = threadIdx.x & 31;
        if (multiplies) second.fragments(at, i, h, a0, a1, c0, c1);
        else first.fragments({at.values, at.values - lane * 16 + first.scales_at(lane)}, i, h, a0, a1, c0, c1);
    }
};

KERNEL(REGISTERS_96, 1) mixed4_store_8(SKINNY_ARGS) { skinny<1, STORE>(Mixed<Int4>(w, inner, detail, w2), SKINNY_CALL); }
KERNEL(REGISTERS_96, 1) mixed4_store_16(SKINNY_ARGS) { skinny<2, STORE>(Mixed<Int4>(w, inner, detail, w2), SKINNY_CALL); }
KERNEL(REGISTERS_96, 1) mixed5_store_8(SKINNY_ARGS) { skinny<1, STORE>(Mixed<Int5>(w, inner, detail, w2), SKINNY_CALL); }
KERNEL(REGISTERS_96, 1) mixed5_store_16(SKINNY_ARGS) { skinny<2, STORE>(Mixed<Int5>(w, inner, detail, w2), SKINNY_CALL); }
KERNEL(REGISTERS_96, 1) mixed6_store_8(SKINNY_ARGS) { skinny<1, STORE>(Mixed<Int6>(w, inner, detail, w2), SKINNY_CALL); }
KERNEL(REGISTERS_96, 1) mixed6_store_16(SKINNY_ARGS) { skinny<2, STORE>(Mixed<Int6>(w, inner, detail, w2), SKINNY_CALL); }
