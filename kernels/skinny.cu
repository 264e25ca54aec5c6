// Products of 1..16 rows with a bf16 weight: y[r][o] = Σ_k x[r][k] · w[o][k], the decode and verify path.
//
// Shapes: w [out, inner], inner a multiple of 64; x [rows, inner], ready, or made on the way where rows are few. Result by epilogue: bf16, SwiGLU in bf16, h += scale·y, f32.
// Threads: 8 warps. A tile is 16 weight rows, R = 2 neighbouring tiles are worked on together, so that activations are read half as often. Step s of 64 columns belongs to warp s mod 8, so a
// block reads 1 KiB of each row at a time and the inner axis is always split in the same 8 ways: R and the grid change no bit.
// Weights are the 16-row operand, activations the 8-column operand: a column's bits do not depend on the other columns.
// A dot product may permute k alike in both operands, so a lane reads 16 contiguous bytes of a weight row (k = 8t..8t+7
// of a block of 32) and uses them as the fragments of two products, straight from row-major memory.
// Bytes moved: the weight once. Each warp streams through a ring of `stages` × R · 2 KiB of asynchronous copies that runs on over
// tile borders; a warp reads back only what it copied itself, so the ring needs no barrier of the block. The first copies are issued
// before the previous launch has ended; the next launch may start once the last copies are issued, so that its first
// copies queue up behind them. The ring takes all the shared memory there is: measured, a deep ring is worth more than two
// launches side by side.
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };
enum Source { READY = 0, NORM = 1, GATE = 2 };

constexpr u32 WARPS = 8;
constexpr u32 TILE = 16;                  // weight rows
constexpr u32 STEP = 64;                  // columns of a stage
constexpr u32 STAGE = TILE * STEP * 2;    // bytes of weights a warp copies per stage and tile
constexpr u32 ROWS_STAGE = 8 * STEP * 2;  // bytes of ready activations per stage and 8 rows
constexpr u32 PAD = 32;                   // elements between staged rows: the 8 lanes of a 16-byte access hit all banks
static_assert(STAGE == 4 * 32 * 16, "four 16-byte copies a lane");

// NT: 8-column groups of activations, R: tiles worked on together. Kept short: layers call four of these in turn, each longer than
// the instruction cache would like.
template <u32 NT, u32 R, Epilogue E>
DEVICE void skinny(void* dst, u32 ldd, const bf16* w, u32 out, u32 inner, const void* src, u32 lds, u32 mode, const float* norm,
                   float eps, float mul, const bf16* gate, u32 ldg, float scale, u32 rows, u32 stages) {
    SHARED_BYTES(shared);
    __shared__ float scratch[WARPS];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bool ready = NT > 1 || mode == READY;
    const u32 stage_bytes = R * STAGE + (ready ? NT * ROWS_STAGE : 0);
    unsigned char* ring = shared + warp * stages * stage_bytes;
    float* partial = reinterpret_cast<float*>(shared + WARPS * stages * stage_bytes);  // [WARPS][R][NT][16 rows][8 columns]
    bf16* staged = reinterpret_cast<bf16*>(partial + WARPS * R * NT * 128);

    const u32 tiles = (out + R * TILE - 1) / (R * TILE);  // groups of R
    const u32 all_steps = inner / STEP;
    const u32 steps = all_steps > warp ? (all_steps - warp + WARPS - 1) / WARPS : 0;  // of this warp in a tile
    const u32 mine = blockIdx.x < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;

    // Where the copies stand: the lane's piece of the tile's rows, the step, the tile. A copy takes whole 128-byte lines of
    // four rows; in shared memory the two halves of every other row are swapped, so that eight rows hit all banks.
    const bf16* base;
    u32 rows_left, ahead_step = 0, ahead_tile = blockIdx.x, left = mine * steps;
    const u32 to_lane = (lane >> 3) * 128 + ((lane & 7) ^ (lane >> 3 & 1) * 4) * 16;
    auto enter = [&]() {
        const u32 first = min(ahead_tile * R * TILE, out - 1);
        base = w + u64(first) * inner + warp * STEP + (lane & 7) * 8;
        rows_left = out - first - 1;
    };
    enter();
    auto issue_weights = [&](u32 slot) {
        unsigned char* to = ring + slot * stage_bytes + to_lane;
#pragma unroll
        for (u32 i = 0; i < 4 * R; i++)  // rows past the end are read again and not stored
            copy_async(to + i * 512, base + u64(min(i * 4 + (lane >> 3), rows_left)) * inner);
        base += WARPS * STEP;
        if (++ahead_step == steps) {
            ahead_step = 0;
            ahead_tile += gridDim.x;
            enter();
        }
        left--;
    };
    // Ready rows travel beside the weights: a lane copies the pieces that it will multiply. Every tile walks over the same columns.
    const bf16* column = static_cast<const bf16*>(src) + u64(g) * lds + warp * STEP + t * 8;
    u32 x_step = 0;
    auto issue_rows = [&](u32 slot) {
#pragma unroll
        for (u32 j = 0; j < NT; j++) {
            unsigned char* to = ring + slot * stage_bytes + R * STAGE + j * ROWS_STAGE + lane * 16;
            const bf16* from = column + u64(8 * j) * lds + x_step * WARPS * STEP;
            if (g + 8 * j < rows) copy_async(to, from), copy_async(to + 512, from + 32);
        }
        if (++x_step == steps) x_step = 0;
    };

    // Weights do not come from the launch before: their first stages travel while it drains, and so does the norm.
    if (norm && threadIdx.x * 32 < inner) prefetch_line(norm + threadIdx.x * 32);
    const bool works = mine * steps != 0;
#pragma unroll 1
    for (u32 slot = 0; slot < stages; slot++) {
        if (left) issue_weights(slot);
        copy_commit();
    }
    wait_for_previous();
    if (left == 0) allow_next();
    if (ready) {
#pragma unroll 1
        for (u32 slot = 0; slot < stages; slot++) {
            if (works) issue_rows(slot);
            copy_commit();
        }
    } else {
        const float* wide = static_cast<const float*>(src);
#pragma unroll 1
        for (u32 r = 0; r < rows; r++) {
            bf16* to = staged + r * (inner + PAD);
            if (E == ADD) row_gate(to, wide + u64(r) * lds, norm, eps, gate ? gate + u64(r) * ldg : nullptr, inner, scratch);
            else row_norm(to, wide + u64(r) * lds, norm, inner, eps, mul, scratch);
        }
        __syncthreads();  // all rows staged
    }

    const u32 from_lane = g * 128 + (t ^ (g & 1) * 4) * 16;
    const bf16* staged_column = staged + g * (inner + PAD) + warp * STEP + t * 8;
    u32 read = 0;
#pragma unroll 1
    for (u32 n = 0, tile = blockIdx.x; n < mine; n++, tile += gridDim.x) {
        float acc[R][NT][4] = {};
#pragma unroll 1
        for (u32 s = 0; s < steps; s++) {
            copy_wait_upto(stages - 1);
            __syncwarp();  // the stage's copies of all lanes have landed
            const unsigned char* from = ring + read * stage_bytes;
            uint4 b[NT][2];
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
                const unsigned char* own = from + R * STAGE + j * ROWS_STAGE + lane * 16;
                const void *lo = ready ? (const void*)own : staged_column + s * WARPS * STEP, *hi = ready ? (const void*)(own + 512) : staged_column + s * WARPS * STEP + 32;
                const bool live = g + 8 * j < rows;
                b[j][0] = live ? load16(lo) : make_uint4(0, 0, 0, 0);
                b[j][1] = live ? load16(hi) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (u32 i = 0; i < R; i++) {
                const unsigned char *lo = from + i * STAGE + from_lane, *hi = from + i * STAGE + (from_lane ^ 64);
                const uint4 a0 = load16(lo), c0 = load16(hi), a1 = load16(lo + 1024), c1 = load16(hi + 1024);
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    mma(acc[i][j], a0.x, a1.x, a0.y, a1.y, b[j][0].x, b[j][0].y);
                    mma(acc[i][j], a0.z, a1.z, a0.w, a1.w, b[j][0].z, b[j][0].w);
                    mma(acc[i][j], c0.x, c1.x, c0.y, c1.y, b[j][1].x, b[j][1].y);
                    mma(acc[i][j], c0.z, c1.z, c0.w, c1.w, b[j][1].z, b[j][1].w);
                }
            }
            __syncwarp();  // the stage has been read
            if (left) {
                issue_weights(read);
                if (ready) issue_rows(read);
                if (left == 0) allow_next();
            }
            copy_commit();
            read = read + 1 == stages ? 0 : read + 1;
        }

        // The warps' parts of the tiles, summed in warp order.
        if (n) __syncthreads();  // parts of the tiles before read
#pragma unroll
        for (u32 i = 0; i < R; i++)
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
                float* p = partial + ((warp * R + i) * NT + j) * 128 + g * 8 + 2 * t;
                *reinterpret_cast<float2*>(p) = make_float2(acc[i][j][0], acc[i][j][1]);
                *reinterpret_cast<float2*>(p + 64) = make_float2(acc[i][j][2], acc[i][j][3]);
            }
        __syncthreads();  // parts written
#pragma unroll
        for (u32 v = threadIdx.x; v < R * NT * 128; v += 256) {
            const u32 at = v & 127, o = (tile * R + v / (NT * 128)) * TILE + (at >> 3), r = (v / 128 % NT) * 8 + (v & 7);
            auto total = [&](u32 from) {
                float y = 0.f;
#pragma unroll
                for (u32 i = 0; i < WARPS; i++) y += partial[i * R * NT * 128 + from];
                return y;
            };
            if (r >= rows || o >= out) continue;
            if (E == SWIGLU) {
                if (at < 64) {  // rows 0..7 of a tile are gate rows, 8..15 the up rows of the same lanes
                    const float gated = total(v), up = total(v + 64);
                    static_cast<bf16*>(dst)[u64(r) * ldd + o / TILE * 8 + (at >> 3)] = narrow(gated * sigmoid(gated) * up);
                }
            } else {
                const float y = total(v);
                if (E == STORE) static_cast<bf16*>(dst)[u64(r) * ldd + o] = narrow(y * scale);
                if (E == LOGITS) static_cast<float*>(dst)[u64(r) * ldd + o] = y * scale;
                if (E == ADD) {
                    float* h = static_cast<float*>(dst) + u64(r) * ldd + o;
                    *h = fmaf(scale, y, load_fresh1(h));
                }
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

// 1..8 and 9..16 rows.
KERNEL(256, 1) skinny_store_8(SKINNY_ARGS) { skinny<1, 2, STORE>(SKINNY_CALL); }
KERNEL(256, 1) skinny_store_16(SKINNY_ARGS) { skinny<2, 2, STORE>(SKINNY_CALL); }
KERNEL(256, 1) skinny_swiglu_8(SKINNY_ARGS) { skinny<1, 2, SWIGLU>(SKINNY_CALL); }
KERNEL(256, 1) skinny_swiglu_16(SKINNY_ARGS) { skinny<2, 2, SWIGLU>(SKINNY_CALL); }
KERNEL(256, 1) skinny_add_8(SKINNY_ARGS) { skinny<1, 2, ADD>(SKINNY_CALL); }
KERNEL(256, 1) skinny_add_16(SKINNY_ARGS) { skinny<2, 2, ADD>(SKINNY_CALL); }
KERNEL(256, 1) skinny_logits_8(SKINNY_ARGS) { skinny<1, 2, LOGITS>(SKINNY_CALL); }
KERNEL(256, 1) skinny_logits_16(SKINNY_ARGS) { skinny<2, 2, LOGITS>(SKINNY_CALL); }
