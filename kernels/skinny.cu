// Products of 1..16 rows with a bf16 weight: y[r][o] = Σ_k x[r][k] · w[o][k], the decode and verify path.
//
// Shapes: w [out, inner], inner a multiple of 64; x [rows, inner]. Result by epilogue: bf16, SwiGLU in bf16, h += scale·y, f32.
// Threads: 8 warps. A tile is 16 weight rows; tile t belongs to block t mod gridDim. Step s of 64 columns belongs to warp
// s mod 8, so a block reads 1 KiB of each row at a time and the inner axis is always split in the same 8 ways.
// Weights are the 16-row operand, activations the 8-column operand: a column's bits do not depend on the other columns.
// A dot product may permute k alike in both operands, so a lane reads 16 contiguous bytes of a weight row (k = 8t..8t+7
// of a block of 32) and uses them as the fragments of two products, straight from row-major memory.
// Bytes moved: the weight once. Each warp streams through a ring of `stages` × 2 KiB of asynchronous copies that runs on over
// tile borders; a lane reads back only what it copied itself, so the ring needs no barrier. The first copies are issued
// before the previous launch has ended; the next launch may start once the last copies are issued.
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };
enum Source { READY = 0, NORM = 1, GATE = 2 };

constexpr u32 WARPS = 8;
constexpr u32 TILE = 16;                  // weight rows
constexpr u32 STEP = 64;                  // columns of a stage
constexpr u32 STAGE = TILE * STEP * 2;    // bytes a warp copies per stage
constexpr u32 PAD = 32;                   // elements between staged rows: the 8 lanes of a 16-byte access hit all banks
static_assert(STAGE == 4 * 32 * 16, "four 16-byte copies a lane");

// The steps of this warp over all tiles of its block, in order.
struct Walk {
    const bf16 *row0, *row1;  // the lane's two weight rows of the tile, at its first column
    u32 step, tile;
};

template <int NT, Epilogue E>
DEVICE void skinny(void* dst, u32 ldd, const bf16* w, u32 out, u32 inner, const void* src, u32 lds, u32 mode, const float* norm,
                   float eps, float mul, const bf16* gate, u32 ldg, float scale, u32 rows, u32 stages) {
    SHARED_BYTES(shared);
    __shared__ float scratch[WARPS];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    unsigned char* ring = shared + warp * stages * STAGE + lane * 16;
    float* partial = reinterpret_cast<float*>(shared + WARPS * stages * STAGE);  // [2][WARPS][NT][16 rows][8 columns]
    bf16* staged = reinterpret_cast<bf16*>(partial + 2 * WARPS * NT * 128);

    const u32 tiles = (out + TILE - 1) / TILE;
    const u32 all_steps = inner / STEP;
    const u32 steps = all_steps > warp ? (all_steps - warp + WARPS - 1) / WARPS : 0;  // of this warp in a tile
    const u32 mine = blockIdx.x < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;

    auto enter = [&](Walk& at) {
        u32 r0 = min(at.tile * TILE + g, out - 1), r1 = min(at.tile * TILE + g + 8, out - 1);  // rows past the end are not stored
        at.row0 = w + u64(r0) * inner + warp * STEP + t * 8;
        at.row1 = w + u64(r1) * inner + warp * STEP + t * 8;
    };
    Walk ahead{nullptr, nullptr, 0, blockIdx.x};
    u32 left = mine * steps;  // stages not yet issued
    enter(ahead);
    auto issue = [&](u32 slot) {
        if (left) {
            unsigned char* to = ring + slot * STAGE;
            copy_async(to, ahead.row0);
            copy_async(to + 512, ahead.row0 + 32);
            copy_async(to + 1024, ahead.row1);
            copy_async(to + 1536, ahead.row1 + 32);
            ahead.row0 += WARPS * STEP;
            ahead.row1 += WARPS * STEP;
            if (++ahead.step == steps) {
                ahead.step = 0;
                ahead.tile += gridDim.x;
                enter(ahead);
            }
            if (--left == 0) allow_next();
        }
        copy_commit();
    };

    // Weights do not come from the launch before: their first stages travel while it drains.
    u32 slot = 0;
    {
        const u32 keep = left;
        for (; slot + 1 < stages && left > 1; slot++) issue(slot);  // the last one is left: allow_next comes after the wait
        wait_for_previous();
        for (; slot + 1 < stages; slot++) issue(slot);
        if (keep == 0) allow_next();
    }

    const bf16* x;
    u32 ldx;
    if (mode == READY) {
        x = static_cast<const bf16*>(src);
        ldx = lds;
    } else {
        const float* wide = static_cast<const float*>(src);
        ldx = inner + PAD;
        for (u32 r = 0; r < rows; r++) {
            if (mode == NORM) row_norm(staged + r * ldx, wide + u64(r) * lds, norm, inner, eps, mul, scratch);
            else row_gate(staged + r * ldx, wide + u64(r) * lds, norm, eps, gate ? gate + u64(r) * ldg : nullptr, inner, scratch);
        }
        __syncthreads();  // all rows staged
        x = staged;
    }

    u32 read = 0, write = stages - 1, buffer = 0;
    for (u32 n = 0, tile = blockIdx.x; n < mine; n++, tile += gridDim.x) {
        float acc[NT][4] = {};
        const bf16* column[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) column[j] = x + u64(g + 8 * j) * ldx + warp * STEP + t * 8;
        for (u32 s = 0; s < steps; s++) {
            copy_wait_upto(stages - 2);
            issue(write);
            uint4 b[NT][2];
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const bool live = g + 8 * j < rows;
                b[j][0] = live ? load16(column[j]) : make_uint4(0, 0, 0, 0);
                b[j][1] = live ? load16(column[j] + 32) : make_uint4(0, 0, 0, 0);
                column[j] += WARPS * STEP;
            }
            const unsigned char* from = ring + read * STAGE;
            uint4 a0 = load16(from), c0 = load16(from + 512), a1 = load16(from + 1024), c1 = load16(from + 1536);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                mma(acc[j], a0.x, a1.x, a0.y, a1.y, b[j][0].x, b[j][0].y);
                mma(acc[j], a0.z, a1.z, a0.w, a1.w, b[j][0].z, b[j][0].w);
                mma(acc[j], c0.x, c1.x, c0.y, c1.y, b[j][1].x, b[j][1].y);
                mma(acc[j], c0.z, c1.z, c0.w, c1.w, b[j][1].z, b[j][1].w);
            }
            read = read + 1 == stages ? 0 : read + 1;
            write = write + 1 == stages ? 0 : write + 1;
        }

        // The warps' parts of the tile, summed in warp order. Two buffers: one barrier a tile is enough.
        float* part = partial + buffer * WARPS * NT * 128;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float* p = part + (warp * NT + j) * 128 + g * 8 + 2 * t;
            *reinterpret_cast<float2*>(p) = make_float2(acc[j][0], acc[j][1]);
            *reinterpret_cast<float2*>(p + 64) = make_float2(acc[j][2], acc[j][3]);
        }
        buffer ^= 1;
        __syncthreads();  // parts written
        const u32 j = threadIdx.x >> 7, row = (threadIdx.x & 127) >> 3, r = j * 8 + (threadIdx.x & 7);
        const bool live = j < NT && r < rows;
        auto total = [&](u32 at) {
            float y = 0.f;
#pragma unroll
            for (u32 i = 0; i < WARPS; i++) y += part[(i * NT + j) * 128 + at];
            return y;
        };
        const u32 o = tile * TILE + row, at = threadIdx.x & 127;
        if (E == SWIGLU) {
            if (live && row < 8 && o < out) {  // rows 0..7 of a tile are gate rows, 8..15 the up rows of the same lanes
                float up = total(at + 64), gated = total(at);
                static_cast<bf16*>(dst)[u64(r) * ldd + tile * 8 + row] = narrow(gated * sigmoid(gated) * up);
            }
        } else if (live && o < out) {
            float y = total(at);
            if (E == STORE) static_cast<bf16*>(dst)[u64(r) * ldd + o] = narrow(y * scale);
            if (E == LOGITS) static_cast<float*>(dst)[u64(r) * ldd + o] = y * scale;
            if (E == ADD) {
                float* h = static_cast<float*>(dst) + u64(r) * ldd + o;
                *h = fmaf(scale, y, load_fresh1(h));
            }
        }
        __syncwarp();  // lanes meet again before the next tensor-core product
    }
    copy_wait<0>();
}

#define SKINNY_ARGS                                                                                                                   \
    void *dst, u32 ldd, const bf16 *w, u32 out, u32 inner, const void *src, u32 lds, u32 mode, const float *norm, float eps, float mul, \
        const bf16 *gate, u32 ldg, float scale, u32 rows, u32 stages
#define SKINNY_CALL dst, ldd, w, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages

KERNEL(256, 2) skinny_store_8(SKINNY_ARGS) { skinny<1, STORE>(SKINNY_CALL); }
KERNEL(256, 2) skinny_store_16(SKINNY_ARGS) { skinny<2, STORE>(SKINNY_CALL); }
KERNEL(256, 2) skinny_swiglu_8(SKINNY_ARGS) { skinny<1, SWIGLU>(SKINNY_CALL); }
KERNEL(256, 2) skinny_swiglu_16(SKINNY_ARGS) { skinny<2, SWIGLU>(SKINNY_CALL); }
KERNEL(256, 2) skinny_add_8(SKINNY_ARGS) { skinny<1, ADD>(SKINNY_CALL); }
KERNEL(256, 2) skinny_add_16(SKINNY_ARGS) { skinny<2, ADD>(SKINNY_CALL); }
KERNEL(256, 2) skinny_logits_8(SKINNY_ARGS) { skinny<1, LOGITS>(SKINNY_CALL); }
KERNEL(256, 2) skinny_logits_16(SKINNY_ARGS) { skinny<2, LOGITS>(SKINNY_CALL); }
