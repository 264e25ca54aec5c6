// Products of 1..16 rows for decode and verify: y[r][o] = factor[r] · Σ_k x[r][k] · w[o][k], with weights of any form.
//
// Input: x [rows, inner] bf16, prepared by the kernel that produced it (`Next` in common.cuh); factor[r] is mul, or mul / rms
// from the sums of squares. Output by epilogue: bf16; SwiGLU in bf16; h += scale·y in f32, which also prepares h for the
// product after the next norm; f32 logits.
//
// Work: a block has W::WARPS warps in teams<E, W> teams. A tile is 16 weight rows. A team works on pairs of neighbouring tiles
// (R = 2), so that each activation is read from shared memory once for 32 weight rows. Step s of a pair, W::COLUMNS columns,
// belongs to warp s mod SPLIT of the team: a team reads neighbouring steps at the same time, and the split of the inner axis
// does not depend on the grid, so neither do the bits.
// Tensor cores: weights are the 16-row operand and activations the 8-column operand, so the bits of a column do not depend on
// the other columns. A dot product may permute k in both operands alike: a lane holds 8 neighbouring columns of a weight row
// (k = 8t..8t+7 of a block of 32) and uses them as the fragments of two products.
//
// Copies: the weight moves once. Each warp streams it through a ring of `stages` stages that continues across tiles. A warp
// reads only weights that it copied itself, so the ring needs no barrier of the block (rows that teams share need one).
// W::AHEAD stages are issued before the previous launch has ended, the others after the copies of the activations, which would
// queue up after them otherwise. The next launch may start when the last copies are issued, or (W::EARLY) at once.
// Sums: warps write their partial sums of `deep` pairs of tiles (one pair with more than 8 rows) before the block adds them up,
// so that warps need not run in step. With two teams a pair has half as many partial sums, with eight an eighth. With ADD a
// block has one or two pairs, and all warps share each.
//
// A form W of a weight has
//   WARPS                          warps of a block: 8, or 16 if conversion takes longer than reading
//   EARLY                          whether the next launch may start at once
//   COLUMNS                        columns of a step, a multiple of 64
//   STAGES, AHEAD                  usual stages of the ring; stages issued before the wait
//   stage_bytes()                  bytes of one warp and step, both tiles
//   enter(tile, part)              copies continue at step `part` of this pair of tiles; the first call precedes the wait
//   begin(tile, again)             fragments are those of this pair of tiles from now on; `again`: not the warp's first pair
//   values_at(lane), scales_at(lane)  where a lane reads in a stage
//   issue(to, every)               copies the next step to the stage where the lane reads values at `to`, and advances `every` steps
//   fragments(at, i, h, a0, a1, c0, c1)  bf16 values of tile i, columns 64h..64h+63 of a step: rows g (0) and g + 8 (1), blocks
//                                  of 32 columns a and c
//   gain(i, up)                    factor of the sums of rows g (0) or g + 8 (1) of tile i
//   BY_STEP, step_gain(at, i, up)  whether the sums over a step have a factor of their own, and that factor
#pragma once
#include "common.cuh"

enum Epilogue { STORE, SWIGLU, ADD, LOGITS };

constexpr u32 TILE = 16;                // weight rows
constexpr u32 R = 2;                    // tiles of a pair

// Inputs and outputs of a product other than its weight.
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
// Teams of the warps of a block: one with 8 warps or with ADD; eight for gate and up, where in the 9B model each team has one pair
// of tiles and the block adds up once; else two, because with more, pairs in a second form could all fall to one team.
template <Epilogue E, class W> constexpr u32 teams = W::WARPS <= 8 || E == ADD ? 1 : E == SWIGLU ? 8 : 2;

// The copies of one warp: a ring of stages of weights and, after the rings of all warps, places for the activations of a step.
// All tiles need the same activations. With a place for each step of a tile they are copied once, a share by each team, and stay
// (if STAY, which ADD is not: a block of one or two pairs gains nothing). Otherwise each warp copies the activations of a step
// with its weights.
template <u32 NT, u32 TEAMS, bool STAY, class W> struct Copies {
    static constexpr u32 SPLIT = W::WARPS / TEAMS;  // warps that share a pair of tiles
    W weight;
    const Operands& of;
    unsigned char *ring, *x_ring;
    u32 stage_bytes, x_bytes, steps, tiles;
    u32 step, tile;  // next to copy of the weight
    bool x_stay;

    // Avoids divisions: this code runs between two launches, and no other work hides it.
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
        if (tile < pairs) this->weight.enter(tile, part);  // also without a step: loads the factors of the sums
    }
    // The team's first pair of tiles, and the distance to its next one.
    DEVICE_METHOD static u32 first() { return blockIdx.x + (TEAMS > 1 ? (threadIdx.x >> 5) / SPLIT * gridDim.x : 0); }
    DEVICE_METHOD static u32 stride() { return TEAMS * gridDim.x; }
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
    // Copies the activations of a step that this lane will read, to `at` bytes after the first place.
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
    // Issues the first stages of weights, before the activations exist.
    DEVICE_METHOD void fill(u32 stages) {
#pragma unroll 1
        for (u32 slot = 0; slot < stages; slot++) {
            if (more()) weights(values_of(slot));
            copy_commit();
        }
    }
    // Issues all activations, which stay, and the other stages of weights; waits for the activations.
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
        if (TEAMS > 1) __syncthreads();  // activations of all teams arrived
    }
    // Issues the activations of the first stages and the other stages of weights.
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

// Stride of the partial sums of an activation row in a pair of tiles: one float for each weight row, padded so that lanes use all
// banks.
constexpr u32 LD_PART = R * TILE + 4;
// Activation rows with partial sums in shared memory at a time. Of more rows the second half waits in registers: the ring makes
// better use of the memory.
constexpr u32 PART_ROWS = 8;

// Adds up the partial sums of activation rows low..low+rows-1 in `pairs` pairs of tiles from `first` on, in warp order, and runs
// the epilogue. A warp handles one activation row of a pair, a lane each value. ADD: `before` is the old value of h, `weight` the
// weight of the next norm.
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
            if (live && (lane & 15) < 8) {  // rows 0..7 of a tile are gate rows, 8..15 their up rows
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
        __syncwarp();  // lanes reconverge
    }
}

// NT: groups of 8 activation rows. Code size matters: a layer calls four of these kernels in turn, and each finds the instruction
// cache cold.
template <u32 NT, Epilogue E, class W> DEVICE void skinny(W weight, const Operands& of) {
    SHARED_BYTES(shared);
    __shared__ float factors[8 * NT];
    constexpr u32 WARPS = W::WARPS, TEAMS = teams<E, W>, SPLIT = WARPS / TEAMS, HALVES = W::COLUMNS / 64;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u32 rows = of.rows, stages = of.stages, part = (NT > 1 ? PART_ROWS : rows) * LD_PART;  // values of a warp's part of a pair of tiles

    // Weights do not depend on the previous launch: their first stages are copied while it drains.
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

    // Addresses of the lane's columns of a step, in halves of 32. Rows that do not exist read row 0; their results are not stored.
    const u32 x_half = rows * 64;
    SharedAt x_at[NT];
#pragma unroll
    for (u32 j = 0; j < NT; j++) x_at[j] = shared_at(copies.x_ring + (g + 8 * j < rows ? g + 8 * j : 0) * 64 + t * 16);
    const SharedAt values_at = shared_at(copies.ring + W::values_at(lane)), scales_at = shared_at(copies.ring + W::scales_at(lane));
    const u32 ring_bytes = kept(stages * copies.stage_bytes), x_bytes = kept(copies.x_bytes);
    u32 stage = 0, x_stage = 0;  // byte offsets of the stage that is read
    const u32 tiles = pairs_of_tiles(of.out);
    u32 pairs = 0;  // of a team with partial sums in shared memory
#pragma unroll 1
    for (u32 base = blockIdx.x; base < tiles; base += copies.stride()) {  // the first team's pair
        const u32 tile = TEAMS > 1 ? base + copies.first() - blockIdx.x : base;
        if (TEAMS == 1 || tile < tiles) copies.weight.begin(tile, base != blockIdx.x);
        if (copies.x_stay) x_stage = 0;
        float acc[R][NT][4] = {};
        // Loads the old values and the weights of the next norm during the product.
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
            __syncwarp();  // the copies of all lanes arrived
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
            __syncwarp();  // the stage is read
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

        if (pairs == 0 && base != blockIdx.x) __syncthreads();  // partial sums of the tiles before read
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
        __syncthreads();  // partial sums and factors written
        const u32 first = base - (pairs - 1) * copies.stride();
        settle<E, WARPS, SPLIT>(partial, first, pairs * TEAMS, 0, NT > 1 ? PART_ROWS : rows, before[0], weights[0], factors, of);
        if constexpr (NT > 1) {
            __syncthreads();  // partial sums of the first rows read
            leave(1);
            __syncthreads();  // partial sums of the others written
            settle<E, WARPS, SPLIT>(partial, first, TEAMS, PART_ROWS, rows - PART_ROWS, before[1], weights[1], factors, of);
        }
        pairs = 0;
    }
    copy_wait<0>();
}

// Parameters of all product kernels: result, weight (`detail` and `w2` by its form), activations, next norm, shared memory.
#define SKINNY_ARGS                                                                                                                             \
    void *dst, u32 ldd, const unsigned char *w, u32 out, u32 inner, u32 detail, const unsigned char *w2, const bf16 *x, u32 ldx, const float *sums, \
        float eps, float mul, float scale, const float *next_norm, bf16 *next_x, float *next_sums, u32 next_n, u32 rows, u32 stages, u32 places, u32 deep
#define SKINNY_CALL Operands{dst, ldd, out, inner, x, ldx, sums, eps, mul, scale, NEXT(next_n), rows, stages, places, deep}
