// Products of 1..16 rows: y[r][o] = Σ_k x[r][k] · w[o][k], the decode and verify path, for weights of any form.
//
// x [rows, inner] is ready, or made on the way where rows are few. Result by epilogue: bf16, SwiGLU in bf16, h += scale·y, f32.
// Threads: W::WARPS warps. A tile is 16 weight rows, R = 2 neighbouring tiles are worked on together, so that activations are read half as
// often. Step s of W::COLUMNS columns belongs to warp s mod WARPS, so a block reads neighbouring steps at a time and the inner axis is
// always split in the same ways: R and the grid change no bit.
// Weights are the 16-row operand, activations the 8-column operand: a column's bits do not depend on the other columns.
// A dot product may permute k alike in both operands, so a lane holds 8 neighbouring columns of a weight row (k = 8t..8t+7 of a block
// of 32) and uses them as the fragments of two products.
// Bytes moved: the weight once. Each warp streams through a ring of `stages` of asynchronous copies that runs on over
// tile borders; a warp reads back only what it copied itself, so the ring needs no barrier of the block. The first copies are issued
// before the previous launch has ended; the next launch may start once the last copies are issued, so that its first
// copies queue up behind them, or (W::EARLY) as soon as this one works, where its blocks find room beside these.
//
// A form W of a weight has
//   WARPS                          of a block: 8, or 16 where widening takes longer than reading
//   EARLY                          whether the next launch may start at once
//   COLUMNS                        columns of a step, a multiple of 64
//   stage_bytes()                  of one warp and step, both tiles
//   enter(tile)                    copies go on at this pair of tiles, at this warp's first step
//   begin(tile)                    fragments are those of this pair of tiles from now on
//   issue(to)                      copies of the next step
//   fragments(from, i, h, a0, a1, c0, c1)  bf16 values of tile i, columns 64h..64h+63 of a step: rows g (0) and g + 8 (1), blocks of 32
//                                  columns a and c
#pragma once
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };
enum Source { READY = 0, NORM = 1, GATE = 2 };

constexpr u32 TILE = 16;                // weight rows
constexpr u32 R = 2;                    // tiles worked on together
constexpr u32 ROWS_HALF = 8 * 64 * 2;   // bytes of ready activations per 64 columns and 8 rows
constexpr u32 PAD = 32;                 // elements between staged rows: the 8 lanes of a 16-byte access hit all banks

// NT: 8-column groups of activations. Kept short: layers call four of these in turn, each longer than the instruction cache would like.
template <u32 NT, Epilogue E, class W>
DEVICE void skinny(W weight, void* dst, u32 ldd, u32 out, u32 inner, const void* src, u32 lds, u32 mode, const float* norm,
                   float eps, float mul, const bf16* gate, u32 ldg, float scale, u32 rows, u32 stages) {
    SHARED_BYTES(shared);
    __shared__ float scratch[8];
    constexpr u32 WARPS = W::WARPS, THREADS = 32 * WARPS, VALUES = R * NT * 128, EACH = (VALUES + THREADS - 1) / THREADS;
    constexpr u32 HALVES = W::COLUMNS / 64;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bool ready = NT > 1 || mode == READY;
    const u32 weight_bytes = weight.stage_bytes();
    const u32 stage_bytes = weight_bytes + (ready ? HALVES * NT * ROWS_HALF : 0);
    unsigned char* ring = shared + warp * stages * stage_bytes;
    float* partial = reinterpret_cast<float*>(shared + WARPS * stages * stage_bytes);  // [WARPS][R][NT][16 rows][8 columns]
    bf16* staged = reinterpret_cast<bf16*>(partial + WARPS * R * NT * 128);

    const u32 tiles = (out + R * TILE - 1) / (R * TILE);  // groups of R
    const u32 all_steps = inner / W::COLUMNS;
    const u32 steps = all_steps > warp ? (all_steps - warp + WARPS - 1) / WARPS : 0;  // of this warp in a tile
    const u32 mine = blockIdx.x < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;

    // Where the copies stand: the step, the tile.
    u32 ahead_step = 0, ahead_tile = blockIdx.x, left = mine * steps;
    weight.enter(ahead_tile);
    auto issue_weights = [&](u32 slot) {
        weight.issue(ring + slot * stage_bytes);
        if (++ahead_step == steps) {
            ahead_step = 0;
            ahead_tile += gridDim.x;
            weight.enter(ahead_tile);
        }
        left--;
    };
    // Ready rows travel beside the weights: a lane copies the pieces that it will multiply. Every tile walks over the same columns.
    const bf16* column = static_cast<const bf16*>(src) + u64(g) * lds + warp * W::COLUMNS + t * 8;
    u32 x_step = 0;
    auto issue_rows = [&](u32 slot) {
#pragma unroll
        for (u32 j = 0; j < NT; j++) {
            const bf16* from = column + u64(8 * j) * lds + x_step * WARPS * W::COLUMNS;
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                unsigned char* to = ring + slot * stage_bytes + weight_bytes + (h * NT + j) * ROWS_HALF + lane * 16;
                if (g + 8 * j < rows) copy_async(to, from + h * 64), copy_async(to + 512, from + h * 64 + 32);
            }
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
    if (W::EARLY || left == 0) allow_next();
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

    const bf16* staged_column = staged + g * (inner + PAD) + warp * W::COLUMNS + t * 8;
    u32 read = 0;
#pragma unroll 1
    for (u32 n = 0, tile = blockIdx.x; n < mine; n++, tile += gridDim.x) {
        weight.begin(tile);
        float acc[R][NT][4] = {};
        // What the result is added to travels meanwhile.
        float before[EACH] = {};
        if (E == ADD) {
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                const u32 v = threadIdx.x + k * THREADS;
                const u32 o = (tile * R + v / (NT * 128)) * TILE + ((v & 127) >> 3), r = (v / 128 % NT) * 8 + (v & 7);
                if (v < VALUES && r < rows && o < out) before[k] = load_fresh1(static_cast<float*>(dst) + u64(r) * ldd + o);
            }
        }
#pragma unroll 1
        for (u32 s = 0; s < steps; s++) {
            copy_wait_upto(stages - 1);
            __syncwarp();  // the stage's copies of all lanes have landed
            const unsigned char* from = ring + read * stage_bytes;
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                uint4 b[NT][2];
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    const unsigned char* own = from + weight_bytes + (h * NT + j) * ROWS_HALF + lane * 16;
                    const bf16* normed = staged_column + s * WARPS * W::COLUMNS + h * 64;
                    const void *lo = ready ? (const void*)own : normed, *hi = ready ? (const void*)(own + 512) : normed + 32;
                    const bool live = g + 8 * j < rows;
                    b[j][0] = live ? load16(lo) : make_uint4(0, 0, 0, 0);
                    b[j][1] = live ? load16(hi) : make_uint4(0, 0, 0, 0);
                }
#pragma unroll
                for (u32 i = 0; i < R; i++) {
                    uint4 a0, a1, c0, c1;
                    weight.fragments(from, i, h, a0, a1, c0, c1);
#pragma unroll
                    for (u32 j = 0; j < NT; j++) {
                        mma(acc[i][j], a0.x, a1.x, a0.y, a1.y, b[j][0].x, b[j][0].y);
                        mma(acc[i][j], a0.z, a1.z, a0.w, a1.w, b[j][0].z, b[j][0].w);
                        mma(acc[i][j], c0.x, c1.x, c0.y, c1.y, b[j][1].x, b[j][1].y);
                        mma(acc[i][j], c0.z, c1.z, c0.w, c1.w, b[j][1].z, b[j][1].w);
                    }
                }
            }
            __syncwarp();  // the stage has been read
            if (left) {
                issue_weights(read);
                if (ready) issue_rows(read);
                if (!W::EARLY && left == 0) allow_next();
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
        for (u32 k = 0; k < EACH; k++) {
            const u32 v = threadIdx.x + k * THREADS;
            const u32 at = v & 127, o = (tile * R + v / (NT * 128)) * TILE + (at >> 3), r = (v / 128 % NT) * 8 + (v & 7);
            auto total = [&](u32 from) {
                float y = 0.f;
#pragma unroll
                for (u32 i = 0; i < WARPS; i++) y += partial[i * VALUES + from];
                return y;
            };
            if (v >= VALUES || r >= rows || o >= out) continue;
            if (E == SWIGLU) {
                if (at < 64) {  // rows 0..7 of a tile are gate rows, 8..15 the up rows of the same lanes
                    const float gated = total(v), up = total(v + 64);
                    static_cast<bf16*>(dst)[u64(r) * ldd + o / TILE * 8 + (at >> 3)] = narrow(gated * sigmoid(gated) * up);
                }
            } else {
                const float y = total(v);
                if (E == STORE) static_cast<bf16*>(dst)[u64(r) * ldd + o] = narrow(y * scale);
                if (E == LOGITS) static_cast<float*>(dst)[u64(r) * ldd + o] = y * scale;
                if (E == ADD) static_cast<float*>(dst)[u64(r) * ldd + o] = fmaf(scale, y, before[k]);
            }
        }
        __syncwarp();  // lanes meet again before the next tensor-core product
    }
    copy_wait<0>();
}

// Arguments of every product kernel: result, weight (and what its form needs beside it: a number, a second weight), activations.
#define SKINNY_ARGS                                                                                                                     \
    void *dst, u32 ldd, const unsigned char *w, u32 out, u32 inner, u32 detail, const unsigned char *w2, const void *src, u32 lds, u32 mode, \
        const float *norm, float eps, float mul, const bf16 *gate, u32 ldg, float scale, u32 rows, u32 stages
#define SKINNY_CALL dst, ldd, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages
