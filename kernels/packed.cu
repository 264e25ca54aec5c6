// Unpacks rows of a table by token, unpacks a whole matrix to bf16 for a prefill product, and packs bf16 rows (packed.cuh).
#include "packed.cuh"

// dst [rows, inner] bf16 = rows tokens[0..rows] of the weight; zeros for a token outside the table. Block: one row.
template <class F> DEVICE void gather(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) {
    wait_for_previous();
    allow_next();
    if (blockIdx.x >= rows) return;
    const u32 token = tokens[blockIdx.x], units = inner / UNIT_COLUMNS, bytes = F::VALUES + F::scale_bytes(detail);
    const unsigned char *pair = w + u64(token < out ? token / 32 : 0) * (u64(units) * bytes + F::PAIR), *factors = pair + u64(units) * bytes;
    for (u32 e = threadIdx.x; e < inner / 8; e += blockDim.x) {
        const u32 t = e & 3, b = e >> 2 & 1, h = e >> 3 & 1;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (token < out) v = F::eight(pair + u64(e >> 4) * bytes, factors, detail, token >> 4 & 1, h, b, token >> 3 & 1, token & 7, t);
        store16(dst + u64(blockIdx.x) * inner + e * 8, v);
    }
}
// dst [out, inner] bf16 = the weight. A warp converts a unit; grid (ceil(units of a pair / 8), pairs).
template <class F> DEVICE void unpack(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) {
    wait_for_previous();
    allow_next();
    const u32 units = inner / UNIT_COLUMNS, u = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if (u >= units) return;
    const u64 bytes = F::VALUES + F::scale_bytes(detail);
    const unsigned char *first = w + u64(blockIdx.y) * (units * bytes + F::PAIR), *unit = first + u * bytes, *factors = first + units * bytes;
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint4 a0, a1, c0, c1;
            if constexpr (F::PAIR > 0) {
                auto eight = [&](u32 b, u32 row) { return F::eight(unit, factors, detail, i, h, b, row, g, t); };
                a0 = eight(0, 0), a1 = eight(0, 1), c0 = eight(1, 0), c1 = eight(1, 1);
            } else {
                F::fragments(lane_at<F>(unit), detail, i, h, a0, a1, c0, c1);
                if (F::GAIN != 1.f) {
                    const u32 gain = pack(F::GAIN, F::GAIN);
                    for (uint4* v : {&a0, &a1, &c0, &c1}) *v = make_uint4(times2(v->x, gain), times2(v->y, gain), times2(v->z, gain), times2(v->w, gain));
                }
            }
            const u32 row = blockIdx.y * 32 + i * 16 + g;
            bf16* to = dst + u64(row) * inner + u * UNIT_COLUMNS + h * 64 + t * 8;
            if (row < out) store16(to, a0), store16(to + 32, c0);
            if (row + 8 < out) store16(to + 8 * u64(inner), a1), store16(to + 8 * u64(inner) + 32, c1);
        }
}
KERNEL(256, 2) gather_int8(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Int8>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) gather_int4(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Int4>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) gather_int5(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Int5>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) gather_int6(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Int6>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) gather_group4(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Group4>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) gather_nvfp4(bf16* dst, const unsigned char* w, const u32* tokens, u32 out, u32 inner, u32 detail, u32 rows) { gather<Nvfp4>(dst, w, tokens, out, inner, detail, rows); }
KERNEL(256, 2) unpack_int8(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Int8>(dst, w, out, inner, detail); }
KERNEL(256, 2) unpack_int4(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Int4>(dst, w, out, inner, detail); }
KERNEL(256, 2) unpack_int5(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Int5>(dst, w, out, inner, detail); }
KERNEL(256, 2) unpack_int6(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Int6>(dst, w, out, inner, detail); }
KERNEL(256, 2) unpack_group4(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Group4>(dst, w, out, inner, detail); }
KERNEL(256, 2) unpack_nvfp4(bf16* dst, const unsigned char* w, u32 out, u32 inner, u32 detail) { unpack<Nvfp4>(dst, w, out, inner, detail); }

// ---- gate and up as one weight (src/backend/forms/interleave.rs) ----------------------------------------------------------------

// Interleaves gate and up rows in eights, in place. A couple is a pair of gate tiles followed by its pair of up tiles. Block
// (u, c): of couple c, the `bytes` bytes that begin `first` + u · `bytes` bytes into both pairs. New half-word i of these
// 2 · bytes, gate's first, is old half-word from[i].
KERNEL(256, 4) take_turns(unsigned char* w, const u16* from, u32 first, u32 bytes, u32 pair_bytes, u32 units, u32 couples) {
    SHARED_BYTES(shared);
    wait_for_previous();
    if (blockIdx.x < units && blockIdx.y < couples) {
        const u32 words = bytes / 4;
        unsigned char* gate = w + u64(blockIdx.y) * 2 * pair_bytes + first + u64(blockIdx.x) * bytes;
        auto word = [&](u32 e) { return reinterpret_cast<u32*>(gate + (e < words ? 0 : pair_bytes - bytes)) + e; };
        for (u32 e = threadIdx.x; e < 2 * words; e += blockDim.x) reinterpret_cast<u32*>(shared)[e] = *word(e);
        __syncthreads();  // all read before any is overwritten
        const u16* held = reinterpret_cast<const u16*>(shared);
        for (u32 e = threadIdx.x; e < 2 * words; e += blockDim.x) *word(e) = u32(held[from[2 * e]]) | u32(held[from[2 * e + 1]]) << 16;
    }
    allow_next();
}

// ---- packing: the same arithmetic as src/backend/forms/, bit for bit -----------------------------------------------------------

DEVICE float nearest(float x) { return add_rn(add_rn(x, 12582912.f), -12582912.f); }  // |x| < 2^22, ties to even
DEVICE float clamp(float x, float lo, float hi) { return fminf(fmaxf(x, lo), hi); }
DEVICE bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// One thread: 128 columns of a row. src [rows, inner] bf16; zero rows pad `rows` to a multiple of 32. Sets *bad if a value is
// not finite.
KERNEL(128, 4) pack_int8(unsigned char* dst, const bf16* src, u32 rows, u32 inner, u32* bad) {
    wait_for_previous();
    allow_next();
    const u32 units = inner / UNIT_COLUMNS, at = blockIdx.x * 128 + threadIdx.x, row = at / units, u = at % units;
    if (row >= (rows + 31) / 32 * 32) return;
    const bf16* from = src + u64(row) * inner + u * UNIT_COLUMNS;
    const bool real = row < rows;
    float most = 0.f;
    for (u32 k = 0; real && k < UNIT_COLUMNS; k++) {
        const float x = widen(from[k]);
        if (!finite(x)) *bad = 1;
        most = fmaxf(most, fabsf(x));
    }
    const bf16 scale = narrow(div_rn(most, 127.f));
    const float inverse = most > 1e-30f ? div_rn(1.f, widen(scale)) : 0.f;
    const u32 i = row >> 4 & 1, hi = row >> 3 & 1, g = row & 7;
    unsigned char* unit = dst + (u64(row / 32) * units + u) * (Int8::VALUES + Int8::scale_bytes(0));
    for (u32 w = 0; w < 32; w++) {  // words of four columns
        u32 word = 0;
        for (u32 j = 0; real && j < 4; j++) {
            const float q = clamp(nearest(mul_rn(widen(from[w * 4 + j]), inverse)), -127.f, 127.f);
            word |= (u32(int(q)) & 255u) << (j == 1 ? 16 : j == 2 ? 8 : j * 8);
        }
        const u32 h = w >> 4, b = w >> 3 & 1, t = w >> 1 & 3;
        *reinterpret_cast<u32*>(unit + (((i * 2 + h) * 2 + b) * 32 + g * 4 + t) * 16 + hi * 8 + (w & 1) * 4) = word;
    }
    reinterpret_cast<bf16*>(unit + Int8::VALUES)[(i * 8 + g) * 2 + hi] = real ? scale : bf16(0);
}

// Quantises a group of 32 values, N = 2^BITS: tries scales around range / (N − 1), each with its best offset.
template <u32 BITS> struct Choice {
    static constexpr float N = float(1u << BITS), MOST = N - 1.f;
    u32 code, zero;
    float scale, offset, error;
    static DEVICE_METHOD float scale_of(u32 code) { return __uint_as_float((code * 8 + (Planes<BITS>::FIRST & 0xffffu)) << 16); }
    static DEVICE_METHOD float offset_of(u32 zero, float scale) { return widen(narrow(mul_rn(N + float(zero) * (N / 128.f), scale))); }
    static DEVICE_METHOD u32 zero_of(float z) { return u32(int(clamp(nearest(mul_rn(z, 128.f / N)), 0.f, 127.f))); }
    // N + q
    static DEVICE_METHOD float value(float x, float offset, float inverse) { return clamp(nearest(mul_rn(add_rn(x, offset), inverse)), N, N + MOST); }
};

// One thread: 32 columns of a row.
template <u32 BITS> DEVICE void pack_planes(unsigned char* dst, const bf16* src, u32 rows, u32 inner, u32* bad) {
    using F = Planes<BITS>;
    using C = Choice<BITS>;
    wait_for_previous();
    allow_next();
    const u32 groups = inner / 32, at = blockIdx.x * 128 + threadIdx.x, row = at / groups, group = at % groups;
    if (row >= (rows + 31) / 32 * 32) return;
    const bool real = row < rows;
    float x[32];
    float lo = 0.f, hi = 0.f;
#pragma unroll
    for (u32 k = 0; k < 32; k++) {
        x[k] = real ? widen(src[u64(row) * inner + group * 32 + k]) : 0.f;
        if (!finite(x[k])) *bad = 1;
        lo = fminf(lo, x[k]), hi = fmaxf(hi, x[k]);
    }
    const int base = (int(__float_as_uint(div_rn(add_rn(hi, -lo), C::MOST)) >> 16) - int(F::FIRST & 0xffffu)) >> 3;
    const float middle = mul_rn(add_rn(lo, hi), 0.5f);
    C best = {0, 0, 0.f, 0.f, __uint_as_float(0x7f7fffffu)};
#pragma unroll 1
    for (int code = base - 5; code <= base + 1; code++) {
        C c;
        c.code = u32(min(max(code, 0), 255));
        c.scale = C::scale_of(c.code);
        const float inverse = div_rn(1.f, c.scale);
        c.zero = C::zero_of(add_rn(C::MOST * 0.5f, -mul_rn(middle, inverse)));
        c.offset = C::offset_of(c.zero, c.scale);
        float sum = 0.f;
#pragma unroll
        for (u32 k = 0; k < 32; k++) sum = add_rn(sum, add_rn(C::value(x[k], c.offset, inverse), -mul_rn(x[k], inverse)));
        c.zero = C::zero_of(add_rn(mul_rn(sum, 0.03125f), -C::N));
        c.offset = C::offset_of(c.zero, c.scale);
        c.error = 0.f;
#pragma unroll
        for (u32 k = 0; k < 32; k++) {
            const float off = add_rn(add_rn(mul_rn(C::value(x[k], c.offset, inverse), c.scale), -c.offset), -x[k]);
            c.error = add_rn(c.error, mul_rn(off, off));
        }
        if (c.error < best.error) best = c;
    }
    const float inverse = best.scale > 0.f ? div_rn(1.f, best.scale) : 0.f;
    const u32 i = row >> 4 & 1, half = row >> 3 & 1, g = row & 7, h = group >> 1 & 1, b = group & 1;
    unsigned char* unit = dst + (u64(row / 32) * (inner / UNIT_COLUMNS) + group / 4) * (F::VALUES + F::scale_bytes(0));
#pragma unroll
    for (u32 t = 0; t < 4; t++) {
        u32 word = 0, low = 0;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            const u32 q = u32(int(C::value(x[t * 8 + j], best.offset, inverse)));
            word |= (q >> F::LOW & 15u) << (j / 2 * 4 + j % 2 * 16);
            low |= (q & ((1u << F::LOW) - 1)) << (j / 2 * F::LOW + j % 2 * 8 * F::LOW);
        }
        const u32 lane = (i * 2 + h) * 32 + g * 4 + t;
        *reinterpret_cast<u32*>(unit + lane * 16 + (b * 2 + half) * 4) = F::LOW ? rotate_right(word, 29) : word;
        if (F::LOW == 0) continue;
        // Joins the lower bits of both blocks of the row; the neighbouring thread has the other block.
        low <<= 4 * F::LOW * b;
        low |= shuffle(low, (threadIdx.x & 31) ^ 1);
        unsigned char* to = unit + F::NIBBLES + (lane * 2 + half) * 2 * F::LOW;
        if (b == 0 && F::LOW == 2) *reinterpret_cast<u32*>(to) = rotate_right(low, 31);
        if (b == 0 && F::LOW == 1) *reinterpret_cast<u16*>(to) = u16((low & 0x3f3fu) << 2 | (low >> 6 & 0x0303u));
    }
    unsigned char* scale = unit + F::VALUES + ((i * 2 + h) * 8 + g) * 8 + half * 4 + b * 2;
    scale[0] = static_cast<unsigned char>(best.code);
    scale[1] = static_cast<unsigned char>(best.zero | (F::BASE & 0x80u));
}
KERNEL(128, 4) pack_int4(unsigned char* dst, const bf16* src, u32 rows, u32 inner, u32* bad) { pack_planes<4>(dst, src, rows, inner, bad); }
KERNEL(128, 4) pack_int5(unsigned char* dst, const bf16* src, u32 rows, u32 inner, u32* bad) { pack_planes<5>(dst, src, rows, inner, bad); }
KERNEL(128, 4) pack_int6(unsigned char* dst, const bf16* src, u32 rows, u32 inner, u32* bad) { pack_planes<6>(dst, src, rows, inner, bad); }
