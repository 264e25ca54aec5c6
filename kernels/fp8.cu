// Rows in 8 bits with a scale each, for products of prefill in fp8: activations and weights alike, whatever form a weight came from.
#include "common.cuh"

constexpr float LARGEST = 448.f;     // of e4m3
constexpr float NOTHING = 1e-30f;    // rows whose largest value is not above it are zeros: the inverse of their scale is no f32
constexpr u32 HELD = 8;              // pieces of a row that a thread keeps between the two looks at it: rows up to 16,384 are read once
constexpr u32 PIECE = 8;             // values of a piece
constexpr u32 THREADS = 256;

// Nearest e4m3, ties to even, beyond the largest the largest; NaN stays NaN. Two of them, `lo` the lower byte.
#if !defined(SALA_EMULATOR) && __CUDA_ARCH__ >= 890
DEVICE u32 e4m3_pair(float lo, float hi) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
}
#else
// What the instruction does, bit for bit.
DEVICE u32 e4m3(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fu;
    if (size >= 0x43e00000u) return sign | 0x7eu;
    // Below 2^-6 steps are 2^-9: the sum with 2^14 has no finer ones, and its last bits count them.
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

// dst [rows, n] e4m3 and scales [rows]: src = dst · scale, the largest value of a row 448. One block a row; n a multiple of 8.
KERNEL(256, 4) narrow_rows(unsigned char* dst, float* scales, const bf16* src, u32 n, u32 rows) {
    __shared__ float found[THREADS / 32];
    wait_for_previous();
    allow_next();
    const u64 row = blockIdx.x;
    if (row >= rows) return;
    const bf16* from = src + row * n;
    unsigned char* to = dst + row * n;
    uint4 held[HELD];
    float most = 0.f;
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        const u32 i = (threadIdx.x + j * THREADS) * PIECE;
        if (i < n) {
            held[j] = load16(from + i);
            most = larger(most, held[j]);
        }
    }
    for (u32 i = (threadIdx.x + HELD * THREADS) * PIECE; i < n; i += THREADS * PIECE) most = larger(most, load16(from + i));
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = most;
    __syncthreads();  // the largest value of each warp
    for (u32 w = 0; w < THREADS / 32; w++) most = fmaxf(most, found[w]);
    const float inverse = most > NOTHING ? LARGEST / most : 0.f;
    if (threadIdx.x == 0) scales[row] = most > NOTHING ? most / LARGEST : 0.f;
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        const u32 i = (threadIdx.x + j * THREADS) * PIECE;
        if (i < n) store_narrow(to + i, held[j], inverse);
    }
    for (u32 i = (threadIdx.x + HELD * THREADS) * PIECE; i < n; i += THREADS * PIECE) store_narrow(to + i, load16(from + i), inverse);
}
