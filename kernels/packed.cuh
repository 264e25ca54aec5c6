// Packed weights (4, 5, 6 or 8 bits): their layout in memory and their conversion to bf16 in registers. src/backend/forms/ is
// the same in Rust.
//
// Layout: [pairs of 16-row tiles][inner / 128] units of 128 columns; the last pair is padded with zero rows. A unit holds its
// values in the order in which the lanes of a warp read them, then its scales. Lane 4g + t reads rows g and g + 8 of a tile
// and columns 8t..8t+7 of a block of 32.
//
// | form   | unit bytes | values                                    | scales                                                            |
// |---|---|---|---|
// | int8   | 4160 | [tile 2][half 2][block 2][lane][row 2] 8 bytes | [tile 2][g 8][row 2] bf16 scale of the 128 columns                |
// | int4   | 2304 | [tile 2][half 2][lane][block 2][row 2] a word  | [tile 2][half 2][g 8][row 2][block 2] scale e4m4, zero point 7 bits |
// | int5   | 2816 | such words, then [tile 2][half 2][lane][row 2] 16 bits | as int4                                                   |
// | int6   | 3328 | such words, then [tile 2][half 2][lane][row 2] a word  | as int4                                                   |
// | group4 | 2048 + 128·n | as int4                                | [tile 2][n = 128 / group][g 8][row 2] bf16 scale, bf16 −(16 + zero) |
// | nvfp4  | 2304 | [tile 2][half 2][lane][block 2][row 2] a word     | [tile 2][half 2][g 8][16 columns of a block 2][row 2] two scales e5m3 |
//
// Words. int4 and group4: eight nibbles, the even columns in the lower half and the odd ones in the upper half, so that one
// mask yields a pair of values. int8: columns 0, 2, 1, 3 from the lowest byte up. int5 and int6: first the words of the upper
// four bits of each value, as in int4 but rotated left by 3; then the lower bits of a row and both blocks, in int6 a word of
// pairs of bits (even columns in the lower half, odd ones in the upper half) rotated left by 1, in int5 a byte of the even
// columns and one of the odd ones, each rotated left by 2.
//
// nvfp4: the 16 e2m1 values of both words of a row hold the bits of eight bf16 pairs in place (see Nvfp4). The two scales of
// 16 columns, one for each block, are bytes rotated left by 4 as 16 bits; a byte is exponent + 22 and three bits of mantissa,
// or 0. Each pair of tiles ends with 256 bytes: [row 32] f32 factor of the sums, 128 times the weight's factor; [row 32] f32
// factor by which the publishing library multiplies scales or, if negative, by which it divides them.
//
// Values:
//   int8              bf16(q·s)
//   int4, int5, int6  bf16((N + q)·s − bf16((N + z)·s)) with N = 16, 32, 64 and z in units of N/128
//   group4            bf16((q − z)·s); with groups of 128 columns, products sum exact q − z and multiply the sums by s in f32
//   nvfp4             bf16(e2m1·fl(s·factor)); products sum exact e2m1·s and multiply the sums by the factor in f32
#pragma once
#include "common.cuh"

#ifdef SALA_EMULATOR
inline u32 rotate_right(u32 x, u32 n) { return n ? x >> n | x << (32 - n) : x; }
// Four bytes of b:a, selected by the nibbles of `selector`, lowest first.
inline u32 permute(u32 a, u32 b, u32 selector) {
    const u64 both = u64(b) << 32 | a;
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) r |= u32(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
// a·b + c of two bf16 pairs, rounded once.
inline u32 fma2(u32 a, u32 b, u32 c) {
    return pack(fmaf(widen_lo(a), widen_lo(b), widen_lo(c)), fmaf(widen_hi(a), widen_hi(b), widen_hi(c)));
}
inline u32 and_or(u32 x, u32 mask, u32 bits) { return (x & mask) | bits; }
inline u32 and_xor(u32 x, u32 mask, u32 bits) { return (x & mask) ^ bits; }
inline u32 times_plus(u32 a, u32 b, u32 c) { return a * b + c; }
inline u32 both_low(u32 x) { return x << 16 | (x & 0xffffu); }
inline u32 both_high(u32 x) { return x >> 16 | (x & 0xffff0000u); }
#else
DEVICE u32 rotate_right(u32 x, u32 n) { return __funnelshift_r(x, x, n); }
DEVICE u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
DEVICE u32 fma2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// One instruction; the compiler would emit two for two constants.
DEVICE u32 and_or(u32 x, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}
DEVICE u32 and_xor(u32 x, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}
// One instruction; the compiler would emit three for a multiplication by a power of two and a sum.
DEVICE u32 times_plus(u32 a, u32 b, u32 c) {
    u32 r;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// One half of a pair twice. In this form it is a modifier of the instruction that uses it and costs nothing.
DEVICE u32 both_low(u32 x) {
    u32 r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {lo, lo}; }" : "=r"(r) : "r"(x));
    return r;
}
DEVICE u32 both_high(u32 x) {
    u32 r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, hi}; }" : "=r"(r) : "r"(x));
    return r;
}
#endif

constexpr u32 UNIT_COLUMNS = 128;
constexpr u32 ONE2 = 0x3f803f80u, MINUS_ONE2 = 0xbf80bf80u, MINUS_ZERO2 = 0x80008000u;  // bf16 pairs
DEVICE u32 times2(u32 a, u32 b) { return fma2(a, b, MINUS_ZERO2); }

// A lane reads 16 bytes of each 512 bytes of values.
template <class F> DEVICE LaneAt lane_at(const unsigned char* unit) {
    const u32 lane = threadIdx.x & 31;
    return {unit + lane * 16, unit + F::VALUES + F::scales_at(lane)};
}

DEVICE u32 load32(const unsigned char* p) { return *reinterpret_cast<const u32*>(p); }
DEVICE uint2 load64(const unsigned char* p) { return *reinterpret_cast<const uint2*>(p); }

// 16 + q of the pairs of a word of four-bit values, rotated left by 3.
DEVICE uint4 nibbles_plus_16(u32 word) {
    auto pair = [](u32 x) { return and_or(x, 0x00780078u, 0x41804180u); };
    return make_uint4(pair(word), pair(rotate_right(word, 4)), pair(rotate_right(word, 8)), pair(rotate_right(word, 12)));
}
// q·lower + offset of the pairs of a word of four-bit values. The lowest nibble of a bf16 is the subnormal number q·2^-133 and
// the next one 16·q·2^-133. So `lower` is 2^133 and `upper` 2^129 times the factor of q in the result (int4: 2^-32·s, group4:
// 2^-6), and one shift serves four pairs.
DEVICE uint4 scaled_nibbles(u32 word, u32 lower, u32 upper, u32 offset) {
    const u32 next = word >> 8;
    return make_uint4(fma2(word & 0x000f000fu, lower, offset), fma2(word & 0x00f000f0u, upper, offset), fma2(next & 0x000f000fu, lower, offset),
                      fma2(next & 0x00f000f0u, upper, offset));
}

// A form F converts packed values to bf16:
//   eight(unit, factors, detail, i, h, b, row, g, t)  the eight values of lane 4g + t in row g + 8·row, block b of half h of
//                                                     tile i, from any memory
//   fragments(at, detail, i, h, ...)                  all values of a lane in a half, in the order of the products; the values
//                                                     are these times GAIN, a power of two (with PAIR: the row's
//                                                     factor), and times `step_gain` if BY_STEP
//   VALUES, scale_bytes(detail)                       bytes of values and of scales in a unit
//   scales_at(lane)                                   where the lane's scales begin after the values
//   PAIR                                              bytes of factors after the units of a pair
struct Int8 {
    static constexpr u32 VALUES = 4096, PAIR = 0;           // bytes
    static constexpr bool BY_STEP = false;
    static constexpr u32 WARPS = 8, STAGES = 3, AHEAD = 2;  // of a skinny product
    static DEVICE_METHOD u32 scale_bytes(u32) { return 64; }
    // bf16 q: seven bits yield 128 + (q & 127), the sign bit alone 128 or 256; both are or-ed into the constant 128.
    static DEVICE_METHOD uint4 widen(u32 w0, u32 w1, u32 s2) {
        auto pair = [&](u32 x) { return times2(fma2(and_or(x, 0x00800080u, 0x43004300u), MINUS_ONE2, and_or(x, 0x007f007fu, 0x43004300u)), s2); };
        return make_uint4(pair(w0), pair(w0 >> 8), pair(w1), pair(w1 >> 8));
    }
    static DEVICE_METHOD uint4 eight(const unsigned char* unit, const unsigned char*, u32, u32 i, u32 h, u32 b, u32 row, u32 g, u32 t) {
        const uint2 q = load64(unit + (((i * 2 + h) * 2 + b) * 32 + g * 4 + t) * 16 + row * 8);
        const u32 s = load32(unit + VALUES + (i * 8 + g) * 4);
        return widen(q.x, q.y, permute(s, s, row ? 0x3232 : 0x1010));
    }
    // 2^-32 times the value. A byte q + 128 in the lower half of a bf16 is the subnormal number (q + 128)·2^-133; one fma yields
    // (q + 128)·s·2^-32 − 128·s·2^-32, rounded as q·s. Limits: scales below 2^26; values below 2^-94 underflow.
    static constexpr float GAIN = 4294967296.f;
    static DEVICE_METHOD uint4 widen_small(u32 w0, u32 w1, u32 s2, u32 c2) {
        auto pair = [&](u32 x) { return fma2(and_xor(x, 0x00ff00ffu, 0x00800080u), s2, c2); };
        return make_uint4(pair(w0), pair(w0 >> 8), pair(w1), pair(w1 >> 8));
    }
    static DEVICE_METHOD u32 scales_at(u32 lane) { return (lane >> 2) * 4; }
    static DEVICE_METHOD void fragments(LaneAt at, u32, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        const u32 s = load32(at.scales + i * 32), large = times2(s, 0x72007200u), offset = times2(s, 0xb300b300u);
        const uint4 a = load16(at.values + (i * 2 + h) * 1024), c = load16(at.values + (i * 2 + h) * 1024 + 512);
        a0 = widen_small(a.x, a.y, both_low(large), both_low(offset)), a1 = widen_small(a.z, a.w, both_high(large), both_high(offset));
        c0 = widen_small(c.x, c.y, both_low(large), both_low(offset)), c1 = widen_small(c.z, c.w, both_high(large), both_high(offset));
    }
};

// 4, 5 or 6 bits. Every 32 columns have a scale and a zero point of one byte each.
template <u32 BITS> struct Planes {
    static constexpr u32 NIBBLES = 2048, LOW = BITS - 4;  // bytes of the upper four bits; lower bits of a value
    static constexpr u32 VALUES = 512 * BITS, PAIR = 0, WARPS = 16, STAGES = 2, AHEAD = 1;
    static constexpr bool BY_STEP = false;
    static DEVICE_METHOD u32 scale_bytes(u32) { return 256; }
    static constexpr float GAIN = 1.f;
    static constexpr u32 BASE = 0x41804180u + LOW * 0x00800080u;    // N = 2^BITS
    static constexpr u32 FIRST = 0x38803880u - LOW * 0x00800080u;   // scale e4m4, exponent 0 is 2^(-10 - BITS)
    static constexpr u32 MINUS = ((BASE >> 8 & 0x7fu) | 0x80u) * 0x01010101u;
    // The scales of two blocks in a pair, and −(N + z)·s.
    static DEVICE_METHOD uint2 scales(u32 word) {
        const u32 s2 = times_plus(word & 0x00ff00ffu, 8, FIRST);
        return make_uint2(s2, times2(permute(word, MINUS, 0x4341), s2));
    }
    // The lower bits of both rows. A rotation to the right by LOW·(4b + p) puts those of pair p of block b in place.
    static constexpr u32 LOW_MASK = LOW == 2 ? 0x00060006u : 0x00040004u;
    static DEVICE_METHOD uint2 low(const unsigned char* unit, u32 at) {
        if constexpr (LOW == 2) {
            return load64(unit + NIBBLES + at * 8);
        } else if constexpr (LOW == 1) {
            const u32 both = load32(unit + NIBBLES + at * 4);
            return make_uint2(permute(both, both, 0x1100), permute(both, both, 0x3322));
        } else {
            return make_uint2(0, 0);
        }
    }
    // N + q of the four pairs of a word.
    static DEVICE_METHOD uint4 plus_n(u32 word, u32 low) {
        if constexpr (LOW == 0) return nibbles_plus_16(word);
        auto pair = [&](u32 p) { return and_or(rotate_right(low, LOW * p), LOW_MASK, and_or(rotate_right(word, 4 * p), 0x00780078u, BASE)); };
        return make_uint4(pair(0), pair(1), pair(2), pair(3));
    }
    static DEVICE_METHOD uint4 widen(u32 word, u32 low, u32 s2, u32 c2) {
        const uint4 q = plus_n(word, low);
        return make_uint4(fma2(q.x, s2, c2), fma2(q.y, s2, c2), fma2(q.z, s2, c2), fma2(q.w, s2, c2));
    }
    static DEVICE_METHOD uint4 eight(const unsigned char* unit, const unsigned char*, u32, u32 i, u32 h, u32 b, u32 row, u32 g, u32 t) {
        const u32 at = (i * 2 + h) * 32 + g * 4 + t, word = load32(unit + at * 16 + (b * 2 + row) * 4);
        const uint2 s = scales(load32(unit + VALUES + ((i * 2 + h) * 8 + g) * 8 + row * 4)), lower = low(unit, at);
        return widen(word, rotate_right(row ? lower.y : lower.x, 4 * LOW * b), b ? both_high(s.x) : both_low(s.x), b ? both_high(s.y) : both_low(s.y));
    }
    static DEVICE_METHOD u32 scales_at(u32 lane) { return (lane >> 2) * 8; }
    static DEVICE_METHOD void fragments(LaneAt at, u32, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        const u32 lane = threadIdx.x & 31;
        const uint4 q = load16(at.values + (i * 2 + h) * 512);
        const uint2 words = load64(at.scales + (i * 2 + h) * 64), s = scales(words.x), z = scales(words.y), lower = low(at.values - lane * 16, (i * 2 + h) * 32 + lane);
        const u32 x = LOW ? rotate_right(lower.x, 4 * LOW) : 0, y = LOW ? rotate_right(lower.y, 4 * LOW) : 0;
        a0 = widen(q.x, lower.x, both_low(s.x), both_low(s.y)), a1 = widen(q.y, lower.y, both_low(z.x), both_low(z.y));
        c0 = widen(q.z, x, both_high(s.x), both_high(s.y)), c1 = widen(q.w, y, both_high(z.x), both_high(z.y));
    }
};

// 4 bits; products read 2^-32 times the values. Each value is (16 + q)·s − bf16((16 + z)·s), rounded once.
struct Int4 : Planes<4> {
    static constexpr float GAIN = 4294967296.f;
    struct Scales {
        u32 lower, upper, offset;  // pairs of both blocks
    };
    static DEVICE_METHOD uint4 eight(const unsigned char* unit, const unsigned char*, u32, u32 i, u32 h, u32 b, u32 row, u32 g, u32 t) {
        const u32 word = load32(unit + ((i * 2 + h) * 32 + g * 4 + t) * 16 + (b * 2 + row) * 4);
        const uint2 s = scales(load32(unit + VALUES + ((i * 2 + h) * 8 + g) * 8 + row * 4));
        return widen(rotate_right(word, 29), 0, b ? both_high(s.x) : both_low(s.x), b ? both_high(s.y) : both_low(s.y));
    }
    // The byte of a zero point is 8·(16 + z); in the lower half of a negative bf16 it is −8·(16 + z)·2^-133. The offset is
    // 16·s − bf16((16 + z)·s), which is a bf16 again.
    static DEVICE_METHOD Scales small(u32 word) {
        const u32 lower = times_plus(word & 0x00ff00ffu, 8, FIRST + 0x32803280u);  // s·2^101
        const u32 from = times2(permute(word, 0x80808080u, 0x4341), times2(lower, 0x3e003e00u));
        return {lower, times2(lower, 0x3d803d80u), fma2(lower, 0x00100010u, from)};
    }
    static DEVICE_METHOD void fragments(LaneAt at, u32, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        const uint4 q = load16(at.values + (i * 2 + h) * 512);
        const uint2 words = load64(at.scales + (i * 2 + h) * 64);
        const Scales s = small(words.x), z = small(words.y);
        a0 = scaled_nibbles(q.x, both_low(s.lower), both_low(s.upper), both_low(s.offset));
        a1 = scaled_nibbles(q.y, both_low(z.lower), both_low(z.upper), both_low(z.offset));
        c0 = scaled_nibbles(q.z, both_high(s.lower), both_high(s.upper), both_high(s.offset));
        c1 = scaled_nibbles(q.w, both_high(z.lower), both_high(z.upper), both_high(z.offset));
    }
};
using Int5 = Planes<5>;
using Int6 = Planes<6>;

// `detail`: log2 of the blocks of 32 columns that share a scale, 0..2. WIDE (detail 2): products read q − z, which is exact, and
// multiply their sums over a unit by the scale, with half of the instructions for a pair of values. Both read 2^-6 times the values.
template <bool WIDE> struct Groups {
    static constexpr u32 VALUES = 2048, PAIR = 0, WARPS = 16, STAGES = 2, AHEAD = 1;
    static constexpr bool BY_STEP = WIDE;
    static constexpr float GAIN = 64.f;
    static DEVICE_METHOD u32 scale_bytes(u32 detail) { return 512 >> detail; }
    static DEVICE_METHOD uint4 eight(const unsigned char* unit, const unsigned char*, u32 detail, u32 i, u32 h, u32 b, u32 row, u32 g, u32 t) {
        static_assert(!WIDE, "values have their scale");
        const u32 word = load32(unit + ((i * 2 + h) * 32 + g * 4 + t) * 16 + (b * 2 + row) * 4);
        const u32 scale = load32(unit + VALUES + (((i << 2 >> detail) + ((h * 2 + b) >> detail)) * 8 + g) * 8 + row * 4);
        const uint4 q = nibbles_plus_16(rotate_right(word, 29));
        auto pair = [&](u32 x) { return times2(fma2(x, ONE2, both_high(scale)), both_low(scale)); };
        return make_uint4(pair(q.x), pair(q.y), pair(q.z), pair(q.w));
    }
    static DEVICE_METHOD uint4 widen(u32 word, u32 scale) {
        // 2^-6·(16 − (16 + z)) in the upper half; the lower half is not used.
        const u32 less = fma2(scale, 0x3c803c80u, 0x3e803e80u), s2 = both_low(scale);
        const uint4 x = scaled_nibbles(word, 0x7f007f00u, 0x7d007d00u, both_high(less));
        return WIDE ? x : make_uint4(times2(x.x, s2), times2(x.y, s2), times2(x.z, s2), times2(x.w, s2));
    }
    static DEVICE_METHOD u32 scales_at(u32 lane) { return (lane >> 2) * 8; }
    static DEVICE_METHOD void fragments(LaneAt at, u32 any, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        const u32 detail = WIDE ? 2 : any;
        const uint4 q = load16(at.values + (i * 2 + h) * 512);
        const unsigned char* scales = at.scales + (i << 2 >> detail) * 64;
        const uint2 a = load64(scales + ((h * 2) >> detail) * 64), c = load64(scales + ((h * 2 + 1) >> detail) * 64);
        a0 = widen(q.x, a.x), a1 = widen(q.y, a.y), c0 = widen(q.z, c.x), c1 = widen(q.w, c.y);
    }
    // Factor of the sums over a unit: rows g (0) or g + 8 (1) of tile i.
    static DEVICE_METHOD float step_gain(LaneAt at, u32 i, u32 up) {
        return widen_lo(load32(at.scales + i * 64 + up * 4));
    }
};
using Group4 = Groups<false>;

// e2m1 is exact in bf16, and so is e2m1·e4m3 (at most 6 bits). A value with its sign at bit 15 and its exponent and mantissa at
// bits 8..6 is the bf16 number times 2^-126, subnormals included. So one mask yields a pair of values, and one product with a
// scale (times 2^119) a pair of weights.
struct Nvfp4 {
    static constexpr u32 VALUES = 2048, PAIR = 256, WARPS = 16, STAGES = 2, AHEAD = 1;
    static constexpr bool BY_STEP = false;
    static DEVICE_METHOD u32 scale_bytes(u32) { return 256; }
    static constexpr u32 VALUE = 0x81c081c0u;
    // The words a and c of a row hold four pairs each. The bits of three do not overlap; `rest` gathers those of the fourth from
    // the bits that the three leave free in both words. A shift replaces a rotation where no bit wraps: shifts do not use the
    // pipe of logic instructions.
    static DEVICE_METHOD u32 rest(u32 a, u32 c) { return (a & 0x60306030u) | (rotate_right(c, 30) & ~0x60306030u); }
    static DEVICE_METHOD u32 shifted(u32 x, u32 by) { return times_plus(x, 1u << by, 0); }
    static DEVICE_METHOD uint4 first(u32 a, u32 rest) {
        return make_uint4(a & VALUE, rotate_right(a, 4) & VALUE, shifted(a, 6) & VALUE, rotate_right(rest, 8) & VALUE);
    }
    static DEVICE_METHOD uint4 second(u32 c, u32 rest) {
        return make_uint4(c & VALUE, rotate_right(c, 4) & VALUE, shifted(c, 6) & VALUE, shifted(rest, 2) & VALUE);
    }
    static DEVICE_METHOD uint4 times(uint4 v, u32 s2) { return make_uint4(times2(v.x, s2), times2(v.y, s2), times2(v.z, s2), times2(v.w, s2)); }
    static DEVICE_METHOD u32 scales_at(u32 lane) { return (lane >> 2) * 8 + (lane >> 1 & 1) * 4; }
    static DEVICE_METHOD void fragments(LaneAt at, u32, u32 i, u32 h, uint4& a0, uint4& a1, uint4& c0, uint4& c1) {
        const uint4 q = load16(at.values + (i * 2 + h) * 512);
        const u32 bytes = load32(at.scales + (i * 2 + h) * 64);
        const u32 s = and_or(bytes, 0x0ff00ff0u, 0x70007000u), z = and_or(permute(bytes, bytes, 0x2301), 0x0ff00ff0u, 0x70007000u);
        const u32 low = rest(q.x, q.z), high = rest(q.y, q.w);
        a0 = times(first(q.x, low), both_low(s)), c0 = times(second(q.z, low), both_low(z));
        a1 = times(first(q.y, high), both_high(s)), c1 = times(second(q.w, high), both_high(z));
    }
    static DEVICE_METHOD uint4 eight(const unsigned char* unit, const unsigned char* factors, u32, u32 i, u32 h, u32 b, u32 row, u32 g, u32 t) {
        const unsigned char* words = unit + ((i * 2 + h) * 32 + g * 4 + t) * 16 + row * 4;
        const u32 a = load32(words), c = load32(words + 8);
        const u32 bytes = load32(unit + VALUES + ((i * 2 + h) * 8 + g) * 8 + (t >> 1) * 4) >> row * 16 & 0xffffu;
        const u32 byte = (b ? bytes << 4 | bytes >> 12 : bytes >> 4) & 0xffu;
        const float scale = byte ? __uint_as_float((byte + (105u << 3)) << 20) : 0.f;
        const float factor = reinterpret_cast<const float*>(factors)[32 + i * 16 + row * 8 + g];
        const float step = factor < 0.f ? div_rn(scale, -factor) : mul_rn(scale, factor);
        const uint4 v = b ? second(c, rest(a, c)) : first(a, rest(a, c));
        // The publishing library also multiplies by the scale first.
        auto value = [&](float x) { return mul_rn(mul_rn(x, __uint_as_float(0x7e800000u)), step); };
        auto pair = [&](u32 x) { return pack(value(widen_lo(x)), value(widen_hi(x))); };
        return make_uint4(pair(v.x), pair(v.y), pair(v.z), pair(v.w));
    }
};
