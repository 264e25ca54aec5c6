// Products of 1..16 rows: y[r][o] = Σ_k x[r][k] · w[o][k], the decode and verify path, for weights of any form.
//
// x [rows, inner] is ready, or made on the way where it is a single row. Result by epilogue: bf16, SwiGLU in bf16, h += scale·y, f32.
// Threads: W::WARPS warps. A tile is 16 weight rows, R = 2 neighbouring tiles are worked on together, so that activations are read half as
// often. Step s of W::COLUMNS columns belongs to warp s mod WARPS, so a block reads neighbouring steps at a time and the inner axis is
// always split in the same ways: R and the grid change no bit.
// Weights are the 16-row operand, activations the 8-column operand: a column's bits do not depend on the other columns.
// A dot product may permute k alike in both operands, so a lane holds 8 neighbouring columns of a weight row (k = 8t..8t+7 of a block
// of 32) and uses them as the fragments of two products.
// Bytes moved: the weight once. Each warp streams through a ring of `stages` of asynchronous copies that runs on over
// tile borders; a warp reads back only what it copied itself, so the ring needs no barrier of the block. W::AHEAD stages are on their way
// before the previous launch has ended, the others once the activations are: these would wait behind them. The next launch may
// start once the last copies are issued, so that its first copies queue up behind them, or (W::EARLY) as soon as this one works.
// Warps leave their parts of `deep` pairs of tiles before they meet to add them up, and keep their own pace for so long.
//
// A form W of a weight has
//   WARPS                          of a block: 8, or 16 where widening takes longer than reading
//   EARLY                          whether the next launch may start at once
//   COLUMNS                        columns of a step, a multiple of 64
//   STAGES, AHEAD                  usual stages of the ring; how many of them do not wait
//   stage_bytes()                  of one warp and step, both tiles
//   enter(tile)                    copies go on at this pair of tiles, at this warp's first step
//   begin(tile)                    fragments are those of this pair of tiles from now on
//   issue(to)                      copies of the next step
//   fragments(from, i, h, a0, a1, c0, c1)  bf16 values of tile i, columns 64h..64h+63 of a step: rows g (0) and g + 8 (1), blocks of 32
//                                  columns a and c
//   gain(i, up)                    what rows g (0) or g + 8 (1) of tile i are to be multiplied by
#pragma once
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };
enum Source { READY = 0, NORM = 1, GATE = 2 };

constexpr u32 TILE = 16;                // weight rows
constexpr u32 R = 2;                    // tiles worked on together

// What a product reads and writes beside its weight.
struct Operands {
    void* dst;
    u32 ldd, out, inner;
    const void* src;
    u32 lds, mode;
    const float* norm;
    float eps, mul;
    const bf16* gate;
    u32 ldg;
    float scale;
    u32 rows, stages, places, deep;
};

DEVICE u32 pairs_of_tiles(u32 out) { return (out + R * TILE - 1) / (R * TILE); }

// The copies of a product by one warp: a ring of stages of weights and, if X, places for what a step takes of ready rows behind it. Every tile
// walks over the same columns: with a place for each step of a tile rows are copied once and stay, otherwise they go round with the stages.
template <u32 NT, bool X, class W> struct Copies {
    W weight;
    unsigned char *ring, *x_ring;
    u32 stage_bytes, steps, tiles, rows, lds;
    u32 step, tile;  // where the weights' copies stand
    // Ready rows: bytes of a step, where the copies of rows stand, where they are copied from.
    u32 x_bytes, x_step, x_tile;
    bool x_stay;
    const bf16* x_from;

    // Without a division: this is part of what no kernel hides.
    DEVICE_METHOD Copies(W weight, unsigned char* shared, const Operands& of) : weight(weight), rows(of.rows), lds(of.lds) {
        const u32 warp = threadIdx.x >> 5, g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
        stage_bytes = this->weight.stage_bytes(), x_bytes = X ? W::COLUMNS * 2 * rows : 0;
        ring = shared + warp * (of.stages * stage_bytes + of.places * x_bytes), x_ring = ring + of.stages * stage_bytes;
        steps = kept((of.inner / W::COLUMNS + W::WARPS - 1 - warp) / W::WARPS);  // of this warp in a tile
        tiles = steps ? pairs_of_tiles(of.out) : 0;
        step = 0, tile = blockIdx.x;
        this->weight.enter(tile);
        x_stay = of.places >= steps, x_step = 0, x_tile = tile;
        x_from = static_cast<const bf16*>(of.src) + u64(g) * lds + warp * W::COLUMNS + t * 8;
    }
    // Whether there is anything left to copy of the weight.
    DEVICE_METHOD bool more() const { return tile < tiles; }
    DEVICE_METHOD void weights(u32 slot) {
        weight.issue(ring + slot * stage_bytes);
        if (++step == steps) {
            step = 0;
            tile += gridDim.x;
            weight.enter(tile);
        }
    }
    // A lane copies the pieces of ready rows that it will multiply.
    DEVICE_METHOD void ready_rows(u32 slot) {
        if (!X || x_tile >= tiles || (x_stay && x_tile != blockIdx.x)) return;
        const u32 g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
#pragma unroll
        for (u32 j = 0; j < NT; j++) {
            if (g + 8 * j >= rows) continue;
            const bf16* from = x_from + u64(8 * j) * lds;
            unsigned char* to = x_ring + (x_stay ? x_step : slot) * x_bytes + (g + 8 * j) * 64 + t * 16;
#pragma unroll
            for (u32 h = 0; h < W::COLUMNS / 64; h++) {
                copy_async(to + 2 * h * rows * 64, from + h * 64);
                copy_async(to + (2 * h + 1) * rows * 64, from + h * 64 + 32);
            }
        }
        x_from += W::WARPS * W::COLUMNS;
        if (++x_step == steps) x_from -= steps * W::WARPS * W::COLUMNS, x_step = 0, x_tile += gridDim.x;
    }
    // Copies of the first stages: of weights, of rows, of both.
    template <bool WEIGHTS, bool ROWS> DEVICE_METHOD void fill(u32 from, u32 to) {
#pragma unroll 1
        for (u32 slot = from; slot < to; slot++) {
            if (ROWS) ready_rows(slot);
            if (WEIGHTS && more()) weights(slot);
            copy_commit();
        }
    }
};

// The warps' parts of `pairs` pairs of tiles, the last of them `tile`, summed in warp order. `before` is what a result is added to.
template <Epilogue E, u32 WARPS, u32 EACH> DEVICE void settle(const float* partial, u32 tile, u32 pairs, const float (&before)[EACH], const Operands& of) {
    const u32 rows = of.rows, part = R * TILE * rows, first = tile - (pairs - 1) * gridDim.x;
#pragma unroll 1
    for (u32 v = threadIdx.x, k = 0; v < pairs * part; v += 32 * WARPS, k++) {
        u32 pair = v / (R * TILE), row = v % (R * TILE), r = 0;
        if (rows > 1) {  // a division takes as long as the sum
            const u32 all = v / rows;
            r = v - all * rows, pair = all / (R * TILE), row = all % (R * TILE);
        }
        const u32 o = (first + pair * gridDim.x) * R * TILE + row;
        const float* from = partial + pair * WARPS * part + row * rows + r;
        auto total = [&](const float* from) {
            float y = 0.f;
#pragma unroll
            for (u32 i = 0; i < WARPS; i++) y += from[i * part];
            return y;
        };
        if (o >= of.out) continue;
        if (E == SWIGLU) {
            if ((row & 15) < 8) {  // rows 0..7 of a tile are gate rows, 8..15 the up rows of the same lanes
                const float gated = total(from), up = total(from + 8 * rows);
                static_cast<bf16*>(of.dst)[u64(r) * of.ldd + o / TILE * 8 + (row & 7)] = narrow(gated * sigmoid(gated) * up);
            }
        } else {
            const float y = total(from);
            if (E == STORE) static_cast<bf16*>(of.dst)[u64(r) * of.ldd + o] = narrow(y * of.scale);
            if (E == LOGITS) static_cast<float*>(of.dst)[u64(r) * of.ldd + o] = y * of.scale;
            if (E == ADD) static_cast<float*>(of.dst)[u64(r) * of.ldd + o] = fmaf(of.scale, y, k == 0 ? before[0] : before[EACH - 1]);
        }
    }
}

// NT: 8-column groups of activations. X: they are ready; if not, they are normed or gated into shared memory first. Kept short: layers call
// four of these in turn, each longer than the instruction cache would like.
template <u32 NT, Epilogue E, bool X, class W> DEVICE void product(W weight, const Operands& of) {
    SHARED_BYTES(shared);
    using Own = Pieces<W::WARPS, W::COLUMNS>;
    constexpr u32 WARPS = W::WARPS, THREADS = 32 * WARPS, EACH = (R * NT * 128 + THREADS - 1) / THREADS, HALVES = W::COLUMNS / 64;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u32 rows = of.rows, inner = of.inner, stages = of.stages;
    const u32 part = R * TILE * rows;  // values of a warp's part of a pair of tiles

    // Weights do not come from the launch before: their first stages travel while it drains, and so does the norm.
    const NormPart<Own> norm(X ? nullptr : of.norm, inner);
    Copies<NT, X, W> copies(weight, shared, of);
    float* partial = reinterpret_cast<float*>(shared + WARPS * (stages * copies.stage_bytes + of.places * copies.x_bytes));  // [deep][WARPS][part]
    bf16* staged = reinterpret_cast<bf16*>(partial + of.deep * WARPS * part);
    const u32 ahead = min(stages, W::AHEAD);
    copies.template fill<true, false>(0, ahead);
    wait_for_previous();
    if (W::EARLY || !copies.more()) allow_next();
    if (X) {
        copies.template fill<false, true>(0, ahead);
        copies.template fill<true, true>(ahead, stages);
    } else {
        float* sums = reinterpret_cast<float*>(staged + inner);  // [inner / SUMMED]
        const WideRow row = {static_cast<const float*>(of.src), of.norm, E == ADD ? of.gate : nullptr, of.eps, E == ADD ? 1.f : of.mul};
        make_row<Own>([&](u32 c, uint4 v) { store16(staged + c, v); }, row, inner, sums, norm, [&] { copies.template fill<true, false>(ahead, stages); });
        __syncwarp();  // this warp's columns staged
    }

    // Where this lane finds its columns of a step, in halves of 32; rows there are none of read as the first: nobody looks at their results.
    const unsigned char* x_first = X ? copies.x_ring : reinterpret_cast<const unsigned char*>(staged + warp * W::COLUMNS);
    const u32 x_half = (X ? rows : 1) * 64, x_step = X ? copies.x_bytes : WARPS * W::COLUMNS * 2;
    const bool by_step = !X || copies.x_stay;
    u32 x_row[NT];
#pragma unroll
    for (u32 j = 0; j < NT; j++) x_row[j] = (X && g + 8 * j < rows ? g + 8 * j : 0) * 64 + t * 16;
    const u32 tiles = pairs_of_tiles(of.out);
    u32 read = 0, pairs = 0;  // stage to read, pairs of tiles whose parts are kept
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        copies.weight.begin(tile);
        float acc[R][NT][4] = {};
        // What the result is added to travels meanwhile.
        float before[EACH] = {};
        if (E == ADD) {
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                const u32 v = threadIdx.x + k * THREADS, row = rows > 1 ? v / rows : v, o = tile * R * TILE + row;
                if (v < part && o < of.out) before[k] = load_fresh1(static_cast<float*>(of.dst) + u64(v - row * rows) * of.ldd + o);
            }
        }
#pragma unroll 1
        for (u32 s = 0; s < copies.steps; s++) {
            copy_wait_upto<W::STAGES - 1>(stages - 1);
            __syncwarp();  // the stage's copies of all lanes have landed
            const unsigned char* from = copies.ring + read * copies.stage_bytes;
            const unsigned char* x = x_first + (by_step ? s : read) * x_step;
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                uint4 b[NT][2];
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    b[j][0] = load16(x + x_row[j] + 2 * h * x_half);
                    b[j][1] = load16(x + x_row[j] + (2 * h + 1) * x_half);
                }
#pragma unroll
                for (u32 i = 0; i < R; i++) {
                    uint4 a0, a1, c0, c1;
                    copies.weight.fragments(from, i, h, a0, a1, c0, c1);
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
            copies.ready_rows(read);
            if (copies.more()) {
                copies.weights(read);
                if (!W::EARLY && !copies.more()) allow_next();
            }
            copy_commit();
            read = read + 1 == stages ? 0 : read + 1;
        }

        if (pairs == 0 && tile != blockIdx.x) __syncthreads();  // parts of the tiles before read
        float* own = partial + (pairs * WARPS + warp) * part;
#pragma unroll
        for (u32 i = 0; i < R; i++)
#pragma unroll
            for (u32 j = 0; j < NT; j++)
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    const u32 r = 8 * j + 2 * t + (k & 1);
                    if (r < rows) own[(i * TILE + g + (k >> 1) * 8) * rows + r] = acc[i][j][k] * copies.weight.gain(i, k >> 1);
                }
        if (++pairs < of.deep && tile + gridDim.x < tiles) continue;
        __syncthreads();  // parts written
        settle<E, WARPS>(partial, tile, pairs, before, of);
        pairs = 0;
        __syncwarp();  // lanes meet again before the next tensor-core product
    }
    copy_wait<0>();
}

template <u32 NT, Epilogue E, class W> DEVICE void skinny(W weight, const Operands& of) {
    if (NT > 1 || of.mode == READY) product<NT, E, true>(weight, of);
    else product<NT, E, false>(weight, of);
}

// Arguments of every product kernel: result, weight (and what its form needs beside it: a number, a second weight), activations.
#define SKINNY_ARGS                                                                                                                     \
    void *dst, u32 ldd, const unsigned char *w, u32 out, u32 inner, u32 detail, const unsigned char *w2, const void *src, u32 lds, u32 mode, \
        const float *norm, float eps, float mul, const bf16 *gate, u32 ldg, float scale, u32 rows, u32 stages, u32 places, u32 deep
#define SKINNY_CALL Operands{dst, ldd, out, inner, src, lds, mode, norm, eps, mul, gate, ldg, scale, rows, stages, places, deep}
