// GEMMs of a prefill pass without the GEMM library, and of the first rows of a segment: y [rows, out] = x [rows, inner] · wᵀ, bf16.
//
// A block computes a tile of rows × outputs; the inner axis passes in stages through a ring of buffers in shared memory. Each
// output is one sum over ascending k in steps of 16, for any tile and number of rows, so all tiles yield the same bits.
// Larger tiles do more products for each byte, smaller ones occupy more multiprocessors: src/backend/cuda/launch/gemm.rs chooses.
// Limits: inner a multiple of 32 (wide) or 64 (the others); out and the strides even.
// Bytes moved: x ceil(out / tile) times and w ceil(rows / tile) times, mostly from L2 (neighbouring blocks share w).
#include "common.cuh"

enum Result { BF16, F32, ADD_F32 };

template <u32 ROWS_, u32 OUTS_, u32 STAGE_K_, u32 STAGES_, u32 WARP_ROWS_, u32 WARP_OUTS_, u32 AHEAD_> struct Tile {
    static constexpr u32 ROWS = ROWS_, OUTS = OUTS_, STAGE_K = STAGE_K_, STAGES = STAGES_, WARP_ROWS = WARP_ROWS_, WARP_OUTS = WARP_OUTS_;
    // Steps of 16 values of k to load before their products.
    static constexpr u32 AHEAD = AHEAD_;
    static constexpr u32 LD = STAGE_K + 8, STAGE_ELEMENTS = (ROWS + OUTS) * LD, BYTES = STAGES * STAGE_ELEMENTS * 2;
    static constexpr u32 THREADS = ROWS / WARP_ROWS * (OUTS / WARP_OUTS) * 32;
    // 16-byte pieces of a row in a stage; pieces of x and of w for each thread to copy.
    static constexpr u32 PIECES = STAGE_K / 8, OF_X = ROWS * PIECES / THREADS, OF_W = OUTS * PIECES / THREADS;
    static_assert(OF_X * THREADS == ROWS * PIECES && OF_W * THREADS == OUTS * PIECES && STAGE_K % (16 * AHEAD) == 0);
};
using Wide = Tile<128, 128, 32, 4, 64, 32, 1>;
using Tall = Tile<128, 64, 64, 3, 32, 32, 2>;
using Square = Tile<64, 64, 64, 5, 32, 32, 2>;
using Few = Tile<64, 32, 64, 7, 16, 16, 4>;
static_assert(Wide::BYTES == 81'920 && Tall::BYTES == 82'944 && Square::BYTES == 92'160 && Few::BYTES == 96'768, "must equal src/backend/cuda/launch/gemm.rs");
static_assert(Wide::THREADS == 256 && Tall::THREADS == 256 && Square::THREADS == 128 && Few::THREADS == 256, "must equal src/backend/cuda/launch/gemm.rs");

template <class T, Result R>
DEVICE void gemm(void* dst, u32 ldd, const bf16* x, u32 ldx, const bf16* w, u32 rows, u32 out, u32 inner, float scale) {
    SHARED_BYTES(bytes);
    bf16* stages = reinterpret_cast<bf16*>(bytes);
    constexpr u32 M = T::WARP_ROWS / 16, N = T::WARP_OUTS / 8, ACROSS = T::ROWS / T::WARP_ROWS;
    const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const u32 r0 = blockIdx.x * T::ROWS, o0 = blockIdx.y * T::OUTS, wr = warp % ACROSS * T::WARP_ROWS, wo = warp / ACROSS * T::WARP_OUTS;
    const u32 steps = inner / T::STAGE_K;
    wait_for_previous();
    allow_next();
    // Source of each of the thread's pieces and its place in a stage. Computed once: a stage has too few products to hide this.
    constexpr u32 OF = T::OF_X + T::OF_W;
    const bf16* from[OF];
    u32 place[OF], there = 0;
#pragma unroll
    for (u32 j = 0; j < OF; j++) {
        const bool of_x = j < T::OF_X;
        const u32 i = (of_x ? j : j - T::OF_X) * T::THREADS + threadIdx.x, row = i / T::PIECES, col = i % T::PIECES * 8;
        from[j] = of_x ? x + u64(min(r0 + row, rows - 1)) * ldx + col : w + u64(min(o0 + row, out - 1)) * inner + col;
        place[j] = (of_x ? row : T::ROWS + row) * T::LD + col;
        there |= u32(of_x ? r0 + row < rows : o0 + row < out) << j;
    }
    u32 filled = 0, read = 0;  // buffers of the next stage to copy and of the next to multiply
    auto after = [](u32 buffer) { return buffer + 1 == T::STAGES ? 0 : buffer + 1; };
    auto fetch = [&](u32 n) {
        if (n < steps) {
            bf16* to = stages + filled * T::STAGE_ELEMENTS;
#pragma unroll
            for (u32 j = 0; j < OF; j++) copy_async(to + place[j], from[j], there >> j & 1), from[j] += T::STAGE_K;
        }
        filled = after(filled);
        copy_commit();
    };
    for (u32 n = 0; n < T::STAGES - 1; n++) fetch(n);
    float acc[M][N][4] = {};
    for (u32 n = 0; n < steps; n++) {
        copy_wait<T::STAGES - 2>();
        __syncthreads();  // stage n arrived; the buffer before it is free
        fetch(n + T::STAGES - 1);
        const bf16* a = stages + read * T::STAGE_ELEMENTS;
        read = after(read);
        const bf16* b = a + T::ROWS * T::LD;
#pragma unroll
        for (u32 k = 0; k < T::STAGE_K; k += 16 * T::AHEAD) {
            u32 fa[T::AHEAD][M][4], fb[T::AHEAD][N / 2][4];
#pragma unroll
            for (u32 s = 0; s < T::AHEAD; s++) {
#pragma unroll
                for (u32 m = 0; m < M; m++) load_a(fa[s][m], a, T::LD, wr + m * 16, k + s * 16);
#pragma unroll
                for (u32 i = 0; i < N / 2; i++) load_b(fb[s][i], b, T::LD, wo + i * 16, k + s * 16);
            }
#pragma unroll
            for (u32 s = 0; s < T::AHEAD; s++)
#pragma unroll
                for (u32 m = 0; m < M; m++)
#pragma unroll
                    for (u32 i = 0; i < N; i++) mma(acc[m][i], fa[s][m][0], fa[s][m][1], fa[s][m][2], fa[s][m][3], fb[s][i / 2][i % 2 * 2], fb[s][i / 2][i % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (u32 m = 0; m < M; m++)
#pragma unroll
        for (u32 i = 0; i < N; i++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 r = r0 + wr + m * 16 + half * 8 + g, o = o0 + wo + i * 8 + 2 * t;
                if (r >= rows || o >= out) continue;
                const float y0 = acc[m][i][2 * half], y1 = acc[m][i][2 * half + 1];
                const u64 at = u64(r) * ldd + o;
                if (R == BF16) *reinterpret_cast<u32*>(static_cast<bf16*>(dst) + at) = pack(y0, y1);
                if (R == F32) *reinterpret_cast<float2*>(static_cast<float*>(dst) + at) = make_float2(y0, y1);
                if (R == ADD_F32) {
                    float2* h = reinterpret_cast<float2*>(static_cast<float*>(dst) + at);
                    const float2 old = *h;
                    *h = make_float2(fmaf(scale, y0, old.x), fmaf(scale, y1, old.y));
                }
            }
}

#define GEMM_ARGS void *dst, u32 ldd, const bf16 *x, u32 ldx, const bf16 *w, u32 rows, u32 out, u32 inner, float scale
KERNEL(256, 2) gemm_store(GEMM_ARGS) { gemm<Wide, BF16>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_f32(GEMM_ARGS) { gemm<Wide, F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_add(GEMM_ARGS) { gemm<Wide, ADD_F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_tall_store(GEMM_ARGS) { gemm<Tall, BF16>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_tall_f32(GEMM_ARGS) { gemm<Tall, F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_tall_add(GEMM_ARGS) { gemm<Tall, ADD_F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(128, 2) gemm_square_store(GEMM_ARGS) { gemm<Square, BF16>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(128, 2) gemm_square_f32(GEMM_ARGS) { gemm<Square, F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(128, 2) gemm_square_add(GEMM_ARGS) { gemm<Square, ADD_F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_few_store(GEMM_ARGS) { gemm<Few, BF16>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_few_f32(GEMM_ARGS) { gemm<Few, F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_few_add(GEMM_ARGS) { gemm<Few, ADD_F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
