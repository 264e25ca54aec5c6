// Products of 1..16 rows: y[r][o] = factor[r] · Σ_k x[r][k] · w[o][k], the decode and verify path, for weights of any form.
//
// x [rows, inner] is bf16 and lies ready: whoever made the values behind it left them so, with `sums` of squares where they are still to be normed
// (common.cuh), of which factors are made. Result by epilogue: bf16, SwiGLU in bf16, h += scale·y and, with it, rows for the product after the next norm, f32.
// Threads: W::WARPS warps, in teams<E, W> teams. A tile is 16 weight rows, R = 2 neighbouring tiles are worked on together, so that activations are
// read half as often. Of a team's pair of tiles step s of W::COLUMNS columns belongs to its warp s mod SPLIT, so a team reads neighbouring steps at a
// time and the inner axis is always split in the same ways: R and the grid change no bit.
// Weights are the 16-row operand, activations the 8-column operand: a column's bits do not depend on the other columns.
// A dot product may permute k alike in both operands, so a lane holds 8 neighbouring columns of a weight row (k = 8t..8t+7 of a block
// of 32) and uses them as the fragments of two products.
// Bytes moved: the weight once. Each warp streams through a ring of `stages` of asynchronous copies that runs on over
// tile borders; a warp reads back only weights that it copied itself, so the ring needs no barrier of the block (rows that two teams share need one). W::AHEAD stages are on their way
// before the previous launch has ended, the others once the activations are: these would wait behind them. The next launch may
// start once the last copies are issued, so that its first copies queue up behind them, or (W::EARLY) as soon as this one works.
// Warps leave their parts of `deep` pairs of tiles (one, of more than 8 rows) before they meet to add them up, and keep their own pace for so long. Two teams leave half as many
// parts of a pair, eight an eighth; where results are added to what is there blocks have one pair or two, and all warps share it.
//
// A form W of a weight has
//   WARPS                          of a block: 8, or 16 where widening takes longer than reading
//   EARLY                          whether the next launch may start at once
//   COLUMNS                        columns of a step, a multiple of 64
//   STAGES, AHEAD                  usual stages of the ring; how many of them do not wait
//   stage_bytes()                  of one warp and step, both tiles
//   enter(tile, part)              copies go on at this pair of tiles, at step `part`; the first time while the launch before may be under way
//   begin(tile, again)             fragments are those of this pair of tiles from now on, which is not the warp's first
//   values_at(lane), scales_at(lane)  where a lane reads in a stage
//   issue(to, every)               copies of the next step to a stage, of which `to` is where the lane reads values; `every` steps before the one after
//   fragments(at, i, h, a0, a1, c0, c1)  bf16 values of tile i, columns 64h..64h+63 of a step: rows g (0) and g + 8 (1), blocks of 32
//                                  columns a and c
//   gain(i, up)                    what rows g (0) or g + 8 (1) of tile i are to be multiplied by
//   BY_STEP, step_gain(at, i, up)  whether sums over a step are to be multiplied by something of their own, and by what
#pragma once
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };

constexpr u32 TILE = 16;                // weight rows
constexpr u32 R = 2;                    // tiles worked on together

// What a product reads and writes beside its weight.
struct Operands {
    void* dst;
    u32 ldd, out, inner;
    const bf16* x;
    u32 ldx;
    const float* sums;  // [rows][inner / SUMMED], or null: factors are `mul`
    float eps, mul, scale;
    Next next;
    u32 rows, stages, places, deep;
};

DEVICE u32 pairs_of_tiles(u32 out) { return (out + R * TILE - 1) / (R * TILE); }
// Teams of the warps of a block, where widening takes 16. A gate-and-up weight has enough tiles for eight: of the 9B model's each team then takes one
// pair, and blocks meet once. Fewer where a launch has few pairs, or some in another form, which one team would get.
template <Epilogue E, class W> constexpr u32 teams = W::WARPS <= 8 || E == ADD ? 1 : E == SWIGLU ? 8 : 2;

// The copies of a product by one warp: a ring of stages of weights, and places for what a step takes of the rows behind all rings. Every tile
// walks over the same columns: with a place for each step of a tile rows are copied once, a share by each team, and stay (where STAY: not if blocks
// have a tile or two, as teams then wait for each other for nothing); otherwise each warp's go round with its stages.
template <u32 NT, u32 TEAMS, bool STAY, class W> struct Copies {
    static constexpr u32 SPLIT = W::WARPS / TEAMS;  // warps that share a pair of tiles
    W weight;
    const Operands& of;
    unsigned char *ring, *x_ring;
    u32 stage_bytes, x_bytes, steps, tiles;
    u32 step, tile;  // where the weights' copies stand
    bool x_stay;

    // Without a division: this is part of what no kernel hides.
    DEVICE_METHOD Copies(W weight, unsigned char* shared, const Operands& of) : weight(weight), of(of) {
        const u32 warp = threadIdx.x >> 5, part = warp % SPLIT, all = of.inner / W::COLUMNS + SPLIT - 1;
        stage_bytes = this->weight.stage_bytes(), x_bytes = W::COLUMNS * 2 * of.rows;
        steps = kept((all - part) / SPLIT);  // of this warp in a tile
        const u32 pairs = pairs_of_tiles(of.out);
        tiles = steps ? pairs : 0;
        x_stay = STAY && of.places * TEAMS >= all / SPLIT;
        ring = shared + warp * of.stages * stage_bytes;
        x_ring = shared + W::WARPS * of.stages * stage_bytes + (x_stay ? part * (all / SPLIT) : warp * of.stages) * x_bytes;
        step = 0, tile = first();
        if (tile < pairs) this->weight.enter(tile, part);  // also without a step: sums are multiplied by what is behind it
    }
    // The team's first pair of tiles, and from one of its pairs to the next.
    DEVICE_METHOD static u32 first() { return blockIdx.x + (TEAMS > 1 ? (threadIdx.x >> 5) / SPLIT * gridDim.x : 0); }
    DEVICE_METHOD static u32 stride() { return TEAMS * gridDim.x; }
    // Whether there is anything left to copy of the weight.
    DEVICE_METHOD bool more() const { return tile < tiles; }
    DEVICE_METHOD unsigned char* values_of(u32 slot) const { return ring + slot * stage_bytes + W::values_at(threadIdx.x & 31); }
    DEVICE_METHOD void weights(unsigned char* to) {
        weight.issue(to, SPLIT);
        if (++step == steps) {
            step = 0;
            tile += stride();
            weight.enter(tile, (threadIdx.x >> 5) % SPLIT);
        }
    }
    // A lane copies the pieces of rows that it will multiply, to `at` bytes behind the first.
    DEVICE_METHOD void activations(u32 step, u32 at) {
        const u32 g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3, rows = of.rows, column = ((threadIdx.x >> 5) % SPLIT + step * SPLIT) * W::COLUMNS + t * 8;
#pragma unroll
        for (u32 j = 0; j < NT; j++) {
            if (g + 8 * j >= rows) continue;
            const bf16* from = of.x + u64(g + 8 * j) * of.ldx + column;
            unsigned char* to = x_ring + at + (g + 8 * j) * 64 + t * 16;
#pragma unroll
            for (u32 h = 0; h < W::COLUMNS / 64; h++) {
                copy_async(to + 2 * h * rows * 64, from + h * 64);
                copy_async(to + (2 * h + 1) * rows * 64, from + h * 64 + 32);
            }
        }
    }
    // Copies of the first stages of weights, before there are rows.
    DEVICE_METHOD void fill(u32 stages) {
#pragma unroll 1
        for (u32 slot = 0; slot < stages; slot++) {
            if (more()) weights(values_of(slot));
            copy_commit();
        }
    }
    // All rows that stay, then the other stages of weights. Waits for the rows.
    DEVICE_METHOD void fill_staying(u32 from) {
#pragma unroll 1
        for (u32 s = (threadIdx.x >> 5) / SPLIT; s < steps; s += TEAMS) activations(s, s * x_bytes);
        copy_commit();
#pragma unroll 1
        for (u32 slot = from; slot < of.stages; slot++) {
            if (more()) weights(values_of(slot));
            copy_commit();
        }
        copy_wait_upto<W::STAGES>(of.stages - from);
        if (TEAMS > 1) __syncthreads();  // rows of all teams
    }
    // Rows of the first stages, then both.
    DEVICE_METHOD void fill_going_round(u32 from) {
#pragma unroll 1
        for (u32 slot = 0, s = 0; slot < of.stages; slot++) {
            if (tiles) activations(s, slot * x_bytes);
            if (slot >= from && more()) weights(values_of(slot));
            copy_commit();
            if (++s >= steps) s = 0;
        }
    }
};

// Parts of a row of activations in a pair of tiles: a float of each weight row, and some between so that lanes hit all banks.
constexpr u32 LD_PART = R * TILE + 4;
// Rows whose parts are kept at a time: with more, the second half waits in registers, and the memory is better left to the ring.
constexpr u32 PART_ROWS = 8;

// The warps' parts of rows `low`..`low + rows - 1` of `pairs` pairs of tiles from `first` on, summed in warp order. A warp takes the values of one row of
// activations, a lane each. `before` is what a result is added to, `weight` is that of the norm after it.
template <Epilogue E, u32 WARPS, u32 SPLIT>
DEVICE void settle(const float* partial, u32 first, u32 pairs, u32 low, u32 rows, float before, float weight, const float* factors, const Operands& of) {
    const u32 part = min(of.rows, PART_ROWS) * LD_PART, lane = threadIdx.x & 31;
#pragma unroll 1
    for (u32 q = threadIdx.x >> 5; q < pairs * rows; q += WARPS) {
        const u32 pair = rows > 1 ? q / rows : q, r = low + q - pair * rows, o = (first + pair * gridDim.x) * R * TILE + lane;
        const float* from = partial + pair * SPLIT * part + (r - low) * LD_PART + lane;
        auto total = [&](const float* from) {
            float y = 0.f;
#pragma unroll
            for (u32 i = 0; i < SPLIT; i++) y += from[i * part];
            return y * factors[r];
        };
        const bool live = o < of.out;
        if (E == SWIGLU) {
            if (live && (lane & 15) < 8) {  // rows 0..7 of a tile are gate rows, 8..15 the up rows of the same lanes
                const float gated = total(from), up = total(from + 8);
                static_cast<bf16*>(of.dst)[u64(r) * of.ldd + o / TILE * 8 + (lane & 7)] = narrow(gated * sigmoid(gated) * up);
            }
        } else {
            const float y = total(from);
            if (E == STORE && live) static_cast<bf16*>(of.dst)[u64(r) * of.ldd + o] = narrow(y * of.scale);
            if (E == LOGITS && live) static_cast<float*>(of.dst)[u64(r) * of.ldd + o] = y * of.scale;
            if (E == ADD) {
                const float h = fmaf(of.scale, y, before);
                if (live) static_cast<float*>(of.dst)[u64(r) * of.ldd + o] = h;
                if (of.next.x) of.next.put(r, o, h, weight, live);
            }
        }
        __syncwarp();  // lanes meet again
    }
}

// NT: 8-column groups of activations. Kept short: layers call four of these in turn, each longer than the instruction cache would like.
template <u32 NT, Epilogue E, class W> DEVICE void skinny(W weight, const Operands& of) {
    SHARED_BYTES(shared);
    __shared__ float factors[8 * NT];
    constexpr u32 WARPS = W::WARPS, TEAMS = teams<E, W>, SPLIT = WARPS / TEAMS, HALVES = W::COLUMNS / 64;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u32 rows = of.rows, stages = of.stages, part = (NT > 1 ? PART_ROWS : rows) * LD_PART;  // values of a warp's part of a pair of tiles

    // Weights do not come from the launch before: their first stages travel while it drains.
    Copies<NT, TEAMS, E != ADD, W> copies(weight, shared, of);
    float* partial = reinterpret_cast<float*>(shared + WARPS * (stages * copies.stage_bytes + of.places * copies.x_bytes));  // [deep][team][SPLIT][part]
    const u32 ahead = min(stages, W::AHEAD);
    copies.fill(ahead);
    wait_for_previous();
    if (W::EARLY || !copies.more()) allow_next();
    if (copies.x_stay) copies.fill_staying(ahead);
    else copies.fill_going_round(ahead);
#pragma unroll 1
    for (u32 r = warp; r < rows; r += WARPS) {
        const float factor = of.sums ? row_factor(of.sums + r * (of.inner / SUMMED), of.inner, of.eps, of.mul) : of.mul;
        if (lane == 0) factors[r] = factor;
    }

    // Where this lane finds its columns of a step, in halves of 32; rows there are none of read as the first: nobody looks at their results.
    const u32 x_half = rows * 64;
    SharedAt x_at[NT];
#pragma unroll
    for (u32 j = 0; j < NT; j++) x_at[j] = shared_at(copies.x_ring + (g + 8 * j < rows ? g + 8 * j : 0) * 64 + t * 16);
    const SharedAt values_at = shared_at(copies.ring + W::values_at(lane)), scales_at = shared_at(copies.ring + W::scales_at(lane));
    const u32 ring_bytes = kept(stages * copies.stage_bytes), x_bytes = kept(copies.x_bytes);
    u32 stage = 0, x_stage = 0;  // bytes from the first of each to the one that is read
    const u32 tiles = pairs_of_tiles(of.out);
    u32 pairs = 0;  // of tiles of a team whose parts are kept
#pragma unroll 1
    for (u32 base = blockIdx.x; base < tiles; base += copies.stride()) {  // the first team's pair
        const u32 tile = TEAMS > 1 ? base + copies.first() - blockIdx.x : base;
        if (TEAMS == 1 || tile < tiles) copies.weight.begin(tile, base != blockIdx.x);
        if (copies.x_stay) x_stage = 0;
        float acc[R][NT][4] = {};
        // What the result is added to travels meanwhile, and the weights of the norm after it.
        float before[NT] = {}, weights[NT] = {};
        if (E == ADD) {
            const u32 o = tile * R * TILE + lane;
#pragma unroll
            for (u32 k = 0; k < NT; k++) {
                const u32 r = warp + k * PART_ROWS;
                if (warp < PART_ROWS && r < rows && o < of.out) {
                    before[k] = load_fresh1(static_cast<float*>(of.dst) + u64(r) * of.ldd + o);
                    if (of.next.x) weights[k] = of.next.weight(o);
                }
            }
        }
#pragma unroll 1
        for (u32 s = 0; s < (TEAMS == 1 || tile < tiles ? copies.steps : 0); s++) {
            copy_wait_upto<W::STAGES - 1>(stages - 1);
            __syncwarp();  // the stage's copies of all lanes have landed
            const LaneAt at = {place(values_at + stage), place(scales_at + stage)};
            float apart[R][NT][4] = {};
            float(&to)[R][NT][4] = W::BY_STEP ? apart : acc;
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                uint4 b[NT][2];
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    b[j][0] = load16(place(x_at[j] + x_stage + 2 * h * x_half));
                    b[j][1] = load16(place(x_at[j] + x_stage + (2 * h + 1) * x_half));
                }
#pragma unroll
                for (u32 i = 0; i < R; i++) {
                    uint4 a0, a1, c0, c1;
                    copies.weight.fragments(at, i, h, a0, a1, c0, c1);
#pragma unroll
                    for (u32 j = 0; j < NT; j++) {
                        mma(to[i][j], a0.x, a1.x, a0.y, a1.y, b[j][0].x, b[j][0].y);
                        mma(to[i][j], a0.z, a1.z, a0.w, a1.w, b[j][0].z, b[j][0].w);
                        mma(to[i][j], c0.x, c1.x, c0.y, c1.y, b[j][1].x, b[j][1].y);
                        mma(to[i][j], c0.z, c1.z, c0.w, c1.w, b[j][1].z, b[j][1].w);
                    }
                }
            }
            if constexpr (W::BY_STEP) {
#pragma unroll
                for (u32 i = 0; i < R; i++)
#pragma unroll
                    for (u32 j = 0; j < NT; j++)
#pragma unroll
                        for (u32 k = 0; k < 4; k++) acc[i][j][k] = fmaf(to[i][j][k], W::step_gain(at, i, k >> 1), acc[i][j][k]);
            }
            __syncwarp();  // the stage has been read
            if (copies.more()) {
                if (!copies.x_stay) copies.activations(copies.step, x_stage);
                copies.weights(place(values_at + stage));
                if (!W::EARLY && !copies.more()) allow_next();
            }
            copy_commit();
            stage += copies.stage_bytes, x_stage += x_bytes;
            if (stage == ring_bytes) {
                stage = 0;
                if (!copies.x_stay) x_stage = 0;
            }
        }

        if (pairs == 0 && base != blockIdx.x) __syncthreads();  // parts of the tiles before read
        float* own = partial + (pairs * WARPS + warp) * part;
        auto leave = [&](u32 j) {
#pragma unroll
            for (u32 i = 0; i < R; i++)
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    const u32 r = 2 * t + (k & 1);
                    if (j * PART_ROWS + r < rows) own[r * LD_PART + i * TILE + g + (k >> 1) * 8] = acc[i][j][k] * copies.weight.gain(i, k >> 1);
                }
        };
        leave(0);
        if (++pairs < of.deep && base + copies.stride() < tiles) continue;
        __syncthreads();  // parts and factors written
        const u32 first = base - (pairs - 1) * copies.stride();
        settle<E, WARPS, SPLIT>(partial, first, pairs * TEAMS, 0, NT > 1 ? PART_ROWS : rows, before[0], weights[0], factors, of);
        if constexpr (NT > 1) {
            __syncthreads();  // parts of the first rows read
            leave(1);
            __syncthreads();  // parts of the others written
            settle<E, WARPS, SPLIT>(partial, first, TEAMS, PART_ROWS, rows - PART_ROWS, before[1], weights[1], factors, of);
        }
        pairs = 0;
    }
    copy_wait<0>();
}

// Arguments of every product kernel: result, weight (and what its form needs beside it: a number, a second weight), activations.
#define SKINNY_ARGS                                                                                                                             \
    void *dst, u32 ldd, const unsigned char *w, u32 out, u32 inner, u32 detail, const unsigned char *w2, const bf16 *x, u32 ldx, const float *sums, \
        float eps, float mul, float scale, const float *next_norm, bf16 *next_x, float *next_sums, u32 next_n, u32 rows, u32 stages, u32 places, u32 deep
#define SKINNY_CALL Operands{dst, ldd, out, inner, x, ldx, sums, eps, mul, scale, NEXT(next_n), rows, stages, places, deep}
