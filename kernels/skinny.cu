// Skinny GEMMs: 1..16 rows with a bf16 weight [out, inner], row-major as in the checkpoint; inner a multiple of 64. See skinny.cuh.
#include "skinny.cuh"

struct Bf16 {
    static constexpr u32 WARPS = 8;
    static constexpr bool EARLY = false, BY_STEP = false;
    static constexpr u32 COLUMNS = 64, STAGES = 6, AHEAD = 3;
    static constexpr u32 STAGE = TILE * COLUMNS * 2;  // bytes of a tile
    static_assert(STAGE == 4 * 32 * 16, "four 16-byte copies a lane");
    const bf16* w;
    const bf16* base;  // the lane's next piece of the tile's rows
    u32 out, inner, rows_left;

    // A copy instruction of a warp reads whole 128-byte lines of four rows. In shared memory the halves of every other row are
    // swapped, so that eight rows use all banks.
    DEVICE_METHOD Bf16(const unsigned char* w, u32 out, u32 inner)
        : w(reinterpret_cast<const bf16*>(w)), base(nullptr), out(out), inner(inner), rows_left(0) {}
    // Offset from where a lane reads to where it copies.
    DEVICE_METHOD static int copies_beyond(u32 lane) { return int((lane >> 3) * 128 + ((lane & 7) ^ (lane >> 3 & 1) * 4) * 16) - int(values_at(lane)); }
    DEVICE_METHOD static u32 values_at(u32 lane) { return (lane >> 2) * 128 + ((lane & 3) ^ (lane >> 2 & 1) * 4) * 16; }
    // The other half of the line: this form has no scales.
    DEVICE_METHOD static u32 scales_at(u32 lane) { return values_at(lane) ^ 64; }
    DEVICE_METHOD static u32 stage_bytes() { return R * STAGE; }
    DEVICE_METHOD static void begin(u32, bool) {}
    DEVICE_METHOD static float gain(u32, u32) { return 1.f; }
    DEVICE_METHOD void enter(u32 tile, u32 part) {
        const u32 first = min(tile * R * TILE, out - 1);
        base = w + u64(first) * inner + part * COLUMNS + (threadIdx.x & 7) * 8;
        rows_left = out - first - 1;
    }
    DEVICE_METHOD void issue(unsigned char* to, u32 every) {
#pragma unroll
        for (u32 i = 0; i < 4 * R; i++)  // rows past the end repeat the last one; their results are not stored
            copy_async(to + copies_beyond(threadIdx.x & 31) + i * 512, base + u64(min(i * 4 + (threadIdx.x >> 3 & 3), rows_left)) * inner);
        base += every * COLUMNS;
    }
    DEVICE_METHOD static void fragments(LaneAt at, u32 i, u32, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        at.values += i * STAGE, at.scales += i * STAGE;
        a0 = load16(at.values), c0 = load16(at.scales), a1 = load16(at.values + 1024), c1 = load16(at.scales + 1024);
    }
};

// 1..8 and 9..16 rows.
#define RUN(groups, epilogue) skinny<groups, epilogue>(Bf16(w, out, inner), SKINNY_CALL)
KERNEL(256, 1) skinny_store_8(SKINNY_ARGS) { RUN(1, STORE); }
KERNEL(256, 1) skinny_store_16(SKINNY_ARGS) { RUN(2, STORE); }
KERNEL(256, 1) skinny_swiglu_8(SKINNY_ARGS) { RUN(1, SWIGLU); }
KERNEL(256, 1) skinny_swiglu_16(SKINNY_ARGS) { RUN(2, SWIGLU); }
KERNEL(256, 1) skinny_add_8(SKINNY_ARGS) { RUN(1, ADD); }
KERNEL(256, 1) skinny_add_16(SKINNY_ARGS) { RUN(2, ADD); }
KERNEL(256, 1) skinny_logits_8(SKINNY_ARGS) { RUN(1, LOGITS); }
KERNEL(256, 1) skinny_logits_16(SKINNY_ARGS) { RUN(2, LOGITS); }
