// GEMMs of a prefill pass on Hopper (sm_90a) for the first rows of a segment: y [rows, out] = x [rows, inner] · wᵀ, with weights
// in bf16, or packed and converted to bf16 in registers.
//
// A block computes OUTS weight rows × 128 rows of x. One warp copies both in stages into a ring in shared memory; two warpgroups
// multiply, each M times 64 weight rows as the 64-row operand. Each output is one sum over ascending k in steps of 16, for any
// tile and number of rows, so all tiles yield the same bits.
// Packed weights: a lane holds 8 neighbouring columns of a weight row (packed.cuh) and uses them as the fragments of two products,
// so the columns of x must have that order (`turn_rows`). The tensor cores read fragments from one half of the registers while
// the warps convert the next ones into the other half.
// Limits: inner a multiple of 128 (64 in bf16); out and ldd even; for SWIGLU gate and up rows interleaved in eights and out a
// multiple of 16.
// Bytes moved: x ceil(out / OUTS) times, from L2, and w ceil(rows / 128) times. With OUTS = 128, x through L2 is the bottleneck.
#include "packed.cuh"
#include "wgmma.cuh"

// Reorders rows of x for packed weights: of every 32 columns, words 4t..4t+3 move to words t, t + 4, t + 8 and t + 12. A thread
// handles 32 columns.
KERNEL(256, 4) turn_rows(bf16* dst, const bf16* src, u32 blocks) {
    wait_for_previous();
    allow_next();
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= blocks) return;
    const bf16* from = src + u64(i) * 32;
    const uint4 a = load16(from), b = load16(from + 8), c = load16(from + 16), d = load16(from + 24);
    bf16* to = dst + u64(i) * 32;
    store16(to, make_uint4(a.x, b.x, c.x, d.x)), store16(to + 8, make_uint4(a.y, b.y, c.y, d.y));
    store16(to + 16, make_uint4(a.z, b.z, c.z, d.z)), store16(to + 24, make_uint4(a.w, b.w, c.w, d.w));
}

// The first three as in src/backend/cuda/driver.rs, `GemmOut`.
enum Result { STORE, F32, ADD, SWIGLU };

// `x` and `plain` (a bf16 weight) are read in boxes of 64 columns × 32 rows; `w` is a packed weight.
#define GEMM_ARGS                                                                                                                                        \
    u32 result, void *dst, u32 ldd, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap plain, const unsigned char *w, u32 detail, u32 rows, \
        u32 out, u32 inner, float scale, u32 stages
#define GEMM_CALL result, dst, ldd, x, plain, w, detail, rows, out, inner, scale, stages

struct Plain {
    static constexpr u32 PAIR = 0;
    static constexpr float GAIN = 1.f;
};

#if !defined(SALA_EMULATOR) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr u32 ROWS = 128, GROUPS = 2;  // rows of x; warpgroups that multiply, in addition to the one that copies
constexpr u32 BOX_ROWS = 32;
template <class F> constexpr bool PACKED = true;
template <> constexpr bool PACKED<Plain> = false;

// Keeps fragments alive until here. Otherwise the compiler reuses their registers while the products in flight still read them.
DEVICE void held(uint4 (&a)[2]) {
#pragma unroll
    for (uint4& x : a) asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
}

template <class F, u32 M>
DEVICE void gemm(u32 result, void* dst, u32 ldd, const TensorMap& x, const TensorMap& plain, const unsigned char* w, u32 detail, u32 rows, u32 out, u32 inner,
                 float scale, u32 stages) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr u32 OUTS = GROUPS * M * 64, PANELS = PACKED<F> ? 2 : 1, PANEL = ROWS * 128, X_BYTES = PANELS * PANEL;
    u32 unit = 0;
    if constexpr (PACKED<F>) unit = F::VALUES + F::scale_bytes(detail);
    const u32 w_bytes = PACKED<F> ? OUTS / 32 * unit : OUTS * 128, steps = inner / (PANELS * 64), units = inner / UNIT_COLUMNS, r0 = blockIdx.x * ROWS, o0 = blockIdx.y * OUTS;
    const u64 pair_bytes = u64(units) * unit + F::PAIR;
    unsigned char* const w_ring = shared + stages * X_BYTES;
    u64 *const arrived = reinterpret_cast<u64*>(w_ring + stages * w_bytes), *const read = arrived + stages;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < stages; s++) barrier_init(arrived + s, 1), barrier_init(read + s, GROUPS * 4);
        barriers_made();
    }
    __syncthreads();  // barriers initialised
    wait_for_previous();
    allow_next();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if (warp >= GROUPS * 4) {
        fewer_registers<24>();
        if (threadIdx.x != GROUPS * 128) return;
        const u32 pairs = min(OUTS / 32, (out + 31) / 32 - o0 / 32);
        const unsigned char* from = w + u64(o0 / 32) * pair_bytes;
        for (u32 n = 0, s = 0, phase = 1; n < steps; n++) {
            barrier_wait(read + s, phase);
            barrier_expect(arrived + s, X_BYTES + (PACKED<F> ? pairs * unit : w_bytes));
            for (u32 p = 0; p < PANELS; p++)
                for (u32 i = 0; i < ROWS; i += BOX_ROWS) bring_box(shared + s * X_BYTES + p * PANEL + i * 128, x, (n * PANELS + p) * 64, r0 + i, 0, 0, arrived + s);
            unsigned char* to = w_ring + s * w_bytes;
            if constexpr (PACKED<F>) {
                for (u32 i = 0; i < pairs; i++) bring_bytes(to + i * unit, from + i * pair_bytes, unit, arrived + s);
                from += unit;
            } else {
                for (u32 i = 0; i < OUTS; i += BOX_ROWS) bring_box(to + i * 128, plain, n * 64, o0 + i, 0, 0, arrived + s);
            }
            if (++s == stages) s = 0, phase ^= 1;
        }
    } else {
        more_registers<240>();
        const u32 first = (warp >> 2) * M * 4 + (warp & 3);  // of the warp's tiles of 16 weight rows, four apart
        float acc[M][ROWS / 2];
        uint4 a[2][2][2] = {};
        u32 before = 0;  // the stage before
        for (u32 n = 0, s = 0, phase = 0; n < steps; n++) {
            barrier_wait(arrived + s, phase);
            const unsigned char* from = w_ring + s * w_bytes;
            const u32 panel = shared_address(shared + s * X_BYTES);
            auto leave = [&]() {
                if (n && lane == 0) barrier_arrive(read + before);
            };
            if constexpr (PACKED<F>) {
#pragma unroll
                for (u32 step = 0; step < 2 * M; step++) {
                    uint4(&now)[2][2] = a[step & 1];
                    // Two pieces of 16 weight rows × 32 columns a step: of two tiles the same columns, or of one tile a whole panel.
                    auto tile_of = [](u32 i) { return M > 1 ? i : 0; };
                    auto block_of = [&](u32 i) { return M > 1 ? step : step * 2 + i; };
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        const u32 tile = first + tile_of(i) * 4, block = block_of(i);
                        const LaneAt at = lane_at<F>(from + tile / 2 * unit);
                        uint4 other[2];  // fragments of the panel's other block, not used
                        if (block & 1) F::fragments(at, detail, tile & 1, block >> 1, other[0], other[1], now[i][0], now[i][1]);
                        else F::fragments(at, detail, tile & 1, block >> 1, now[i][0], now[i][1], other[0], other[1]);
                    }
                    products_begin();
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        const uint4 &lo = now[i][0], &hi = now[i][1];
                        const u64 b = panel_at(panel + (block_of(i) >> 1) * PANEL) + (block_of(i) & 1) * 4;
                        product(acc[tile_of(i)], lo.x, hi.x, lo.y, hi.y, b, n | block_of(i));
                        product(acc[tile_of(i)], lo.z, hi.z, lo.w, hi.w, b + 2, 1);
                    }
                    products_commit();
                    products_wait<1>();
#pragma unroll
                    for (u32 i = 0; i < 2; i++) held(a[step & 1 ^ 1][i]);
                    if (step == 0) leave();
                }
            } else {
                products_begin();
#pragma unroll
                for (u32 k = 0; k < 4; k++)
#pragma unroll
                    for (u32 m = 0; m < M; m++) product(acc[m], panel_at(shared_address(from) + (first / 4 + m) * 64 * 128) + 2 * k, panel_at(panel) + 2 * k, n | k);
                products_commit();
                products_wait<1>();
                leave();
            }
            before = s;
            if (++s == stages) s = 0, phase ^= 1;
        }
        products_wait<0>();
#pragma unroll
        for (u32 i = 0; i < 4; i++) held(a[i / 2][i % 2]);

#pragma unroll
        for (u32 m = 0; m < M; m++) {
            const u32 o = o0 + (first + m * 4) * 16;
            float gain[2] = {1.f, 1.f};
            if constexpr (F::PAIR > 0) {  // a factor for each row, after the units of a pair
                const float* factors = reinterpret_cast<const float*>(w + u64(o / 32) * pair_bytes + units * unit) + (o & 16) + g;
                if (o < out) gain[0] = factors[0], gain[1] = factors[8];
            } else {
                gain[0] = gain[1] = F::GAIN;
            }
#pragma unroll
            for (u32 j = 0; j < ROWS / 8; j++) {
                const u32 r = r0 + j * 8 + 2 * t;
                const float y[4] = {acc[m][j * 4] * gain[0], acc[m][j * 4 + 1] * gain[0], acc[m][j * 4 + 2] * gain[1], acc[m][j * 4 + 3] * gain[1]};
                if (result == ADD || result == F32) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const u32 row = r + (i & 1), column = o + g + (i >> 1) * 8;
                        if (row >= rows || column >= out) continue;
                        float* to = static_cast<float*>(dst) + u64(row) * ldd + column;
                        *to = result == ADD ? fmaf(scale, y[i], *to) : y[i];
                    }
                    continue;
                }
                // Stores two neighbouring columns of a row together: lanes of even g keep the first row, those of odd g the second.
                const bool odd = g & 1;
                auto put = [&](float y0, float y1, u32 column, bool live) {
                    const float other = shuffle_xor(odd ? y0 : y1, 4);
                    if (live && r + odd < rows) *reinterpret_cast<u32*>(static_cast<bf16*>(dst) + u64(r + odd) * ldd + column) = odd ? pack(other, y1) : pack(y0, other);
                };
                const u32 column = g & ~1u;
                if (result == SWIGLU) {
                    put(y[0] * sigmoid(y[0]) * y[2], y[1] * sigmoid(y[1]) * y[3], o / 2 + column, o < out);
                } else {
                    put(y[0], y[1], o + column, o + column < out);
                    put(y[2], y[3], o + 8 + column, o + 8 + column < out);
                }
            }
        }
    }
}
#else
// The host launches these on Hopper only.
template <class F, u32 M>
DEVICE void gemm(u32, void*, u32, const TensorMap&, const TensorMap&, const unsigned char*, u32, u32, u32, u32, float, u32) {}
#endif

// Tiles of 256 weight rows; `narrow`: 128, for launches in which they occupy more multiprocessors.
KERNEL(384, 1) hopper_bf16(GEMM_ARGS) { gemm<Plain, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_bf16_narrow(GEMM_ARGS) { gemm<Plain, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_int8(GEMM_ARGS) { gemm<Int8, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_int8_narrow(GEMM_ARGS) { gemm<Int8, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_int4(GEMM_ARGS) { gemm<Int4, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_int4_narrow(GEMM_ARGS) { gemm<Int4, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_int5(GEMM_ARGS) { gemm<Int5, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_int5_narrow(GEMM_ARGS) { gemm<Int5, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_int6(GEMM_ARGS) { gemm<Int6, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_int6_narrow(GEMM_ARGS) { gemm<Int6, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_group4(GEMM_ARGS) { gemm<Group4, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_group4_narrow(GEMM_ARGS) { gemm<Group4, 1>(GEMM_CALL); }
KERNEL(384, 1) hopper_nvfp4(GEMM_ARGS) { gemm<Nvfp4, 2>(GEMM_CALL); }
KERNEL(384, 1) hopper_nvfp4_narrow(GEMM_ARGS) { gemm<Nvfp4, 1>(GEMM_CALL); }
