// Converts rows to e4m3 with one scale a row for prefill products in fp8: weights of any form, and activations from bf16, SwiGLU,
// or a norm and a gate.
#include "common.cuh"

constexpr float LARGEST = 448.f;     // of e4m3
constexpr float NOTHING = 1e-30f;    // rows with no value above it count as zeros: the inverse of their scale is no f32
constexpr u32 PIECE = 8;             // values of a piece
constexpr u32 THREADS = 256;

// Rounds two values to e4m3: nearest, ties to even, saturating; NaN stays NaN. `lo` is the lower byte.
#if !defined(SALA_EMULATOR) && __CUDA_ARCH__ >= 890
DEVICE u32 e4m3_pair(float lo, float hi) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
}
#else
// The same as the instruction, bit for bit.
DEVICE u32 e4m3(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fu;
    if (size >= 0x43e00000u) return sign | 0x7eu;
    // Below 2^-6 steps are 2^-9. Adding 2^14 rounds to such steps, and the last bits of the sum count them.
    if (size < 0x3c800000u) return sign | (__float_as_uint(__uint_as_float(size) + 16384.f) & 15u);
    return sign | (((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3));
}
DEVICE u32 e4m3_pair(float lo, float hi) { return e4m3(lo) | e4m3(hi) << 8; }
#endif

DEVICE float larger(float most, u32 pair) { return fmaxf(most, fmaxf(fabsf(widen_lo(pair)), fabsf(widen_hi(pair)))); }
DEVICE float larger(float most, uint4 v) { return larger(larger(larger(larger(most, v.x), v.y), v.z), v.w); }
DEVICE u32 narrowed(u32 pair, float inverse) { return e4m3_pair(widen_lo(pair) * inverse, widen_hi(pair) * inverse); }
DEVICE void store_narrow(unsigned char* dst, uint4 v, float inverse) {
    *reinterpret_cast<uint2*>(dst) = make_uint2(narrowed(v.x, inverse) | narrowed(v.y, inverse) << 16, narrowed(v.z, inverse) | narrowed(v.w, inverse) << 16);
}

// Converts a row of n values (a multiple of 8) with 256 threads: to = value / scale, scale = largest |value| / 448. The row is read
// twice, except for the first HELD pieces of each thread, which stay in registers. `piece(j, i)` returns bf16 values i..i+7, the
// thread's piece j, where j = HELD is any later piece.
template <u32 HELD, class Piece> DEVICE void narrow_row(unsigned char* to, float* scale, u32 n, Piece piece) {
    __shared__ float found[THREADS / 32];
    uint4 held[HELD];
    float most = 0.f;
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        const u32 i = (threadIdx.x + j * THREADS) * PIECE;
        if (i < n) {
            held[j] = piece(j, i);
            most = larger(most, held[j]);
        }
    }
    for (u32 i = (threadIdx.x + HELD * THREADS) * PIECE; i < n; i += THREADS * PIECE) most = larger(most, piece(HELD, i));
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = most;
    __syncthreads();  // the largest value of each warp written
    for (u32 w = 0; w < THREADS / 32; w++) most = fmaxf(most, found[w]);
    const float inverse = most > NOTHING ? LARGEST / most : 0.f;
    if (threadIdx.x == 0) *scale = most > NOTHING ? most / LARGEST : 0.f;
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        const u32 i = (threadIdx.x + j * THREADS) * PIECE;
        if (i < n) store_narrow(to + i, held[j], inverse);
    }
    for (u32 i = (threadIdx.x + HELD * THREADS) * PIECE; i < n; i += THREADS * PIECE) store_narrow(to + i, piece(HELD, i), inverse);
}

// dst [rows, n] e4m3, scales [rows]: src ≈ dst · scale. Rows of up to 16,384 values are read once.
KERNEL(256, 4) narrow_rows(unsigned char* dst, float* scales, const bf16* src, u32 n, u32 rows) {
    wait_for_previous();
    allow_next();
    const u64 row = blockIdx.x;
    if (row >= rows) return;
    narrow_row<8>(dst + row * n, scales + row, n, [&](u32, u32 i) { return load16(src + row * n + i); });
}

// The same for silu(gate) · up of gu [rows, 2·inter].
KERNEL(256, 4) narrow_swiglu(unsigned char* dst, float* scales, const bf16* gu, u32 inter, u32 rows) {
    wait_for_previous();
    allow_next();
    const u64 row = blockIdx.x;
    if (row >= rows) return;
    narrow_row<8>(dst + row * inter, scales + row, inter, [&](u32, u32 i) { return swiglu8(gu + (row * inter + i) * 2); });
}

// gate_rows (rows.cu) and narrow_rows in one kernel, with the same bits: norm and gate, each if given, then conversion. Rows of up
// to 4096 values are read once.
KERNEL(256, 6)
narrow_gated(unsigned char* dst, float* scales, const float* o, u32 ldo, const float* norm, float eps, const bf16* gate, u32 ldg, u32 n, u32 rows) {
    constexpr u32 KEPT = 2;
    __shared__ float scratch[8];
    allow_next();
    wait_for_previous();
    const u64 row = blockIdx.x;
    if (row >= rows) return;
    auto eight = [](float (&x)[8], float4 a, float4 b) { x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w; };
    auto values = [&](float (&x)[8], u32 i) { eight(x, load_fresh(o + row * ldo + i), load_fresh(o + row * ldo + i + 4)); };
    float kept[KEPT][8] = {}, factor = 1.f;
#pragma unroll
    for (u32 j = 0; j < KEPT; j++)
        if ((threadIdx.x + j * THREADS) * PIECE < n) values(kept[j], (threadIdx.x + j * THREADS) * PIECE);
    if (norm) {
        float sum = 0.f;  // same order as gate_rows
        auto add = [&](const float (&x)[8]) {
#pragma unroll
            for (u32 e = 0; e < 8; e++) sum = fmaf(x[e], x[e], sum);
        };
#pragma unroll
        for (u32 j = 0; j < KEPT; j++) add(kept[j]);
        for (u32 i = (threadIdx.x + KEPT * THREADS) * PIECE; i < n; i += THREADS * PIECE) {
            float x[8];
            values(x, i);
            add(x);
        }
        factor = rsqrt_fast(fmaf(block_sum(sum, scratch), rcp_fast(float(n)), eps));
    }
    narrow_row<KEPT>(dst + row * n, scales + row, n, [&](u32 j, u32 i) {
        float x[8], w[8];
        if (j < KEPT) {
#pragma unroll
            for (u32 e = 0; e < 8; e++) x[e] = kept[j][e];
        } else values(x, i);
        const float4 one = make_float4(1.f, 1.f, 1.f, 1.f);
        eight(w, norm ? load4(norm + i) : one, norm ? load4(norm + i + 4) : one);
        if (gate) {
            const uint4 g = load16(gate + row * ldg + i);
            const u32 words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (u32 e = 0; e < 4; e++) w[2 * e] *= sigmoid(widen_lo(words[e])), w[2 * e + 1] *= sigmoid(widen_hi(words[e]));
        }
#pragma unroll
        for (u32 e = 0; e < 8; e++) x[e] *= w[e] * factor;
        return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    });
}
