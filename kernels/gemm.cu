// GEMMs of a prefill pass where no library is loaded: y[r][o] = Σ_k x[r][k] · w[o][k], bf16 operands, f32 sums.
//
// Block: 128 rows × 128 outputs, 8 warps of 64 × 32; the inner axis in stages of 32 through four buffers of shared memory.
// Each output is one sum over ascending k, whatever the number of rows. inner a multiple of 32; out and the strides even.
// Bytes moved: x ceil(out/128) times and w ceil(rows/128) times, mostly from level 2 (blocks side by side share w).
#include "common.cuh"

constexpr u32 TILE_R = 128;
constexpr u32 TILE_O = 128;
constexpr u32 STAGE_K = 32;
constexpr u32 STAGES = 4;
constexpr u32 LD = STAGE_K + 8;
constexpr u32 STAGE_ELEMENTS = (TILE_R + TILE_O) * LD;
static_assert(STAGES * STAGE_ELEMENTS * 2 == 81920, "src/backend/cuda/launch.rs asks for this much");

enum Result { BF16, F32, ADD_F32 };

template <Result R> DEVICE void gemm(void* dst, u32 ldd, const bf16* x, u32 ldx, const bf16* w, u32 rows, u32 out, u32 inner, float scale) {
    SHARED_BYTES(bytes);
    bf16* stages = reinterpret_cast<bf16*>(bytes);
    const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const u32 r0 = blockIdx.x * TILE_R, o0 = blockIdx.y * TILE_O, wr = (warp & 1) * 64, wo = (warp >> 1) * 32, steps = inner / STAGE_K;
    wait_for_previous();
    allow_next();
    auto fetch = [&](u32 n) {
        if (n < steps) {
            bf16* to = stages + n % STAGES * STAGE_ELEMENTS;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 i = j * 256 + threadIdx.x, row = i >> 2 & 127, col = (i & 3) * 8;
                if (j < 2) copy_async(to + row * LD + col, x + u64(min(r0 + row, rows - 1)) * ldx + n * STAGE_K + col, r0 + row < rows);
                else copy_async(to + (TILE_R + row) * LD + col, w + u64(min(o0 + row, out - 1)) * inner + n * STAGE_K + col, o0 + row < out);
            }
        }
        copy_commit();
    };
    for (u32 n = 0; n < STAGES - 1; n++) fetch(n);
    float acc[4][4][4] = {};
    for (u32 n = 0; n < steps; n++) {
        copy_wait<STAGES - 2>();
        __syncthreads();  // stage n arrived; the buffer before it is free
        fetch(n + STAGES - 1);
        const bf16* a = stages + n % STAGES * STAGE_ELEMENTS;
        const bf16* b = a + TILE_R * LD;
#pragma unroll
        for (u32 k = 0; k < STAGE_K; k += 16) {
            u32 fa[4][4], fb[2][4];
#pragma unroll
            for (u32 m = 0; m < 4; m++) load_a(fa[m], a, LD, wr + m * 16, k);
#pragma unroll
            for (u32 i = 0; i < 2; i++) load_b(fb[i], b, LD, wo + i * 16, k);
#pragma unroll
            for (u32 m = 0; m < 4; m++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) mma(acc[m][i], fa[m][0], fa[m][1], fa[m][2], fa[m][3], fb[i / 2][i % 2 * 2], fb[i / 2][i % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (u32 m = 0; m < 4; m++)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
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
KERNEL(256, 2) gemm_store(GEMM_ARGS) { gemm<BF16>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_f32(GEMM_ARGS) { gemm<F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
KERNEL(256, 2) gemm_add(GEMM_ARGS) { gemm<ADD_F32>(dst, ldd, x, ldx, w, rows, out, inner, scale); }
