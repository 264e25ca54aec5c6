// Lightning attention: per head a state S [128 (k), 128 (v)] f32, S_t = λ S_{t−1} + k_t v_tᵀ, o_t = scale · S_tᵀ q_t.
//
// q and k are RMS-normed per head and rotated (half-split pairs i, i + 64) first and rounded to bf16; λ = exp(−slope).
// Verify (1..16 rows; decode is one): grid (4 tiles of 32 v columns, heads), 256 threads, a thread holds 8 k × 2 v of S in registers.
// Each element of S sees the same fma per row whether rows come one at a time or together, and the sum over k has one
// order, so T rows are bit for bit T single steps. Accepted rows of the pass before are absorbed first ("pending"); the
// rows of this pass are only remembered. Bytes moved: S read once, written once if anything was pending.
#include "common.cuh"
#include "sequences.cuh"

constexpr u32 TILE_V = 32;
static_assert(HEAD == 4 * TILE_V, "grid.x is 4");

// One head of one row by one warp: a lane holds elements 2·lane, 2·lane + 1 of each half. rope [64] (cos, sin) or null.
struct HeadPart {
    u32 lo, hi;
    float4 turn;  // cos, sin of pair 2·lane; cos, sin of the next one

    DEVICE_METHOD HeadPart(const bf16* src, const float2* rope) {
        const u32 i = 2 * (threadIdx.x & 31);
        lo = *reinterpret_cast<const u32*>(src + i), hi = *reinterpret_cast<const u32*>(src + i + 64);
        if (rope) turn = *reinterpret_cast<const float4*>(rope + i);
    }
    // A norm's weights for the lane's elements.
    static DEVICE_METHOD float4 weights(const float* norm) {
        const u32 i = 2 * (threadIdx.x & 31);
        return norm ? make_float4(norm[i], norm[i + 1], norm[i + 64], norm[i + 65]) : make_float4(1.f, 1.f, 1.f, 1.f);
    }
    DEVICE_METHOD void norm_rotate(bf16* dst, bool norm, float4 w, bool rotate, float eps) const {
        const u32 i = 2 * (threadIdx.x & 31);
        float a0 = widen_lo(lo), a1 = widen_hi(lo), b0 = widen_lo(hi), b1 = widen_hi(hi);
        if (norm) {
            float s = warp_sum(fmaf(a0, a0, fmaf(a1, a1, fmaf(b0, b0, b1 * b1))));
            float rstd = rsqrt_fast(s * (1.f / HEAD) + eps);
            a0 *= rstd * w.x, a1 *= rstd * w.y;
            b0 *= rstd * w.z, b1 *= rstd * w.w;
        }
        if (rotate) {
            float x0 = a0, x1 = a1;
            a0 = fmaf(x0, turn.x, -b0 * turn.y), b0 = fmaf(b0, turn.x, x0 * turn.y);
            a1 = fmaf(x1, turn.z, -b1 * turn.w), b1 = fmaf(b1, turn.z, x1 * turn.w);
        }
        *reinterpret_cast<u32*>(dst + i) = pack(a0, a1);
        *reinterpret_cast<u32*>(dst + i + 64) = pack(b0, b1);
    }
};

// The part of S a thread holds: rows k0..k0+7, columns v0..v0+V-1 of the head. Whatever V is, an element sees the same.
template <u32 V> struct StatePart {
    float s[8][V];
    float decay;
    float* at;  // element (k0, v0)

    DEVICE_METHOD void load() {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float2* from = reinterpret_cast<const float2*>(at + i * HEAD);
#pragma unroll
            for (u32 j = 0; j < V / 2; j++) s[i][2 * j] = from[j].x, s[i][2 * j + 1] = from[j].y;
        }
    }
    DEVICE_METHOD void store() {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            float2* to = reinterpret_cast<float2*>(at + i * HEAD);
#pragma unroll
            for (u32 j = 0; j < V / 2; j++) to[j] = make_float2(s[i][2 * j], s[i][2 * j + 1]);
        }
    }
    // S ← λ S + k vᵀ; k: the thread's 8 elements, v: its V, two in a word.
    DEVICE_METHOD void absorb(uint4 k, const u32* v) {
        const float kk[8] = {widen_lo(k.x), widen_hi(k.x), widen_lo(k.y), widen_hi(k.y), widen_lo(k.z), widen_hi(k.z), widen_lo(k.w), widen_hi(k.w)};
#pragma unroll
        for (u32 j = 0; j < V / 2; j++) {
            const float v0 = widen_lo(v[j]), v1 = widen_hi(v[j]);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                s[i][2 * j] = fmaf(kk[i], v0, decay * s[i][2 * j]);
                s[i][2 * j + 1] = fmaf(kk[i], v1, decay * s[i][2 * j + 1]);
            }
        }
    }
    // qᵀ S over the thread's 8 rows.
    DEVICE_METHOD void read(float (&y)[V], uint4 q) const {
        const float qq[8] = {widen_lo(q.x), widen_hi(q.x), widen_lo(q.y), widen_hi(q.y), widen_lo(q.z), widen_hi(q.z), widen_lo(q.w), widen_hi(q.w)};
#pragma unroll
        for (u32 j = 0; j < V; j++) {
            y[j] = 0.f;
#pragma unroll
            for (u32 i = 0; i < 8; i++) y[j] = fmaf(qq[i], s[i][j], y[j]);
        }
    }
};

// The part of S from k0 and v0 on, and the pending rows absorbed into it.
template <u32 V>
DEVICE StatePart<V> absorb_pending(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, u32 accepted, u32 slot, u32 head, u32 heads, u32 kv_heads,
                                   u32 k0, u32 v0) {
    StatePart<V> part;
    part.decay = expf(-slopes[head]);
    part.at = state + (u64(head) * HEAD + k0) * HEAD + v0;
    part.load();
    const u32 pending = min(accepted, MAX_VERIFY);
    const u64 half = u64(slot & 1) * MAX_VERIFY * kv_heads * HEAD + u64(head / (heads / kv_heads)) * HEAD;
    for (u32 r = 0; r < pending; r++) {
        const u64 row = half + u64(r) * kv_heads * HEAD;
        part.absorb(load16(pend_k + row + k0), reinterpret_cast<const u32*>(pend_v + row + v0));
    }
    if (pending) part.store();
    return part;
}
// For all of S: block (4 tiles, heads), 128 threads.
DEVICE void absorb_pending(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, const Step* step, u32 heads, u32 kv_heads) {
    const u32 k0 = (threadIdx.x >> 3) * 8, v0 = blockIdx.x * TILE_V + (threadIdx.x & 7) * 4;
    absorb_pending<4>(state, pend_k, pend_v, slopes, step->pending, step->slot, blockIdx.y, heads, kv_heads, k0, v0);
}

// What a block of lightning_verify keeps of each row: little, so that it starts beside the product before it, whose rows take most of a multiprocessor.
struct VerifyRow {
    bf16 q[HEAD], k[HEAD], v[TILE_V], gate[TILE_V];
    float parts[4][TILE_V];  // of 32 k each; angles first
};
static_assert(sizeof(VerifyRow) == 1152, "src/backend/cuda/launch/lightning.rs asks for this much a row");

// With one sequence gridDim.z is 1; with several, block z works for the sequence whose rows begin with row z, if there is one.
// Eight warps: two take 32 k each, a lane 8 of them and two columns, so that a warp's sums over k stay in it.
// The first blocks, those of heads that there are not, only wait: multiprocessors that the product before left alone take four blocks each as soon as they may start,
// and these would have to share what one block has elsewhere. Those of the first row are as many as that takes; the others end at once.
KERNEL(256, 4)
lightning_verify(float* o, u32 ldo, const bf16* x, u32 ldx, u32 q_col, u32 k_col, u32 v_col, const float* q_norm, const float* k_norm, const float2* rope,
                 const Row* at, const RowState* of, const float* next_norm, bf16* next_x, float* next_sums, const bf16* gate, u32 heads, u32 kv_heads, float scale, float eps, u32 all, u32 sequences) {
    SHARED_BYTES(bytes);
    VerifyRow* sh = reinterpret_cast<VerifyRow*>(bytes);
    const u32 aside = gridDim.y - heads;
    if (blockIdx.y < aside) {
        allow_next();
        if (blockIdx.z == 0) wait_for_previous();
        return;
    }
    const u32 warp = threadIdx.x >> 5, head = blockIdx.y - aside, kv_head = head / (heads / kv_heads);
    const u32 lane = threadIdx.x & 31, quarter = warp >> 1, tile = blockIdx.x * TILE_V;
    const u32 k0 = quarter * 32 + (lane >> 3) * 8, v0 = (warp & 1) * 16 + (lane & 7) * 2;

    // State, pending rows and norms are older than the launches under way.
    const Row row = at[blockIdx.z];
    const auto [state, pend_k, pend_v, slopes] = of[blockIdx.z];
    if (row.first != blockIdx.z) return;
    const u32 rows = sequences > 1 ? row.rows : all;
    x += u64(row.first) * ldx, o += u64(row.first) * ldo;
    if (rope) rope += row.first * 64;
    const u32 column = head * HEAD + tile + lane;  // of the result, a lane each
    const Next next = NEXT(heads * HEAD);
    const float next_weight = next.x ? next.weight(column) : 0.f;
    const float* norm = warp & 1 ? k_norm : q_norm;  // even warps take queries, odd ones keys
    const float4 weights = HeadPart::weights(norm);
    StatePart<2> part = absorb_pending<2>(state, pend_k, pend_v, slopes, row.pending, row.slot, head, heads, kv_heads, k0, tile + v0);
    allow_next();
    wait_for_previous();

    // All rows are asked for before any is worked on. Code is short: of one row nearly all of it runs once.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rows * 64; i += 256) {
        const u32 r = i >> 6, c = i & 63, col = (c & 15) * 8;
        const bf16* from = x + u64(r) * ldx;
        if (c < 32) copy_async(c < 16 ? sh[r].q + col : sh[r].k + col, from + (c < 16 ? q_col + head * HEAD : k_col + kv_head * HEAD) + col);
        else if (rope) copy_async(&sh[r].parts[0][0] + (c - 32) * 4, rope + r * 64 + (c - 32) * 2);
        if (gate && c >= 4 && c < 8) copy_async(sh[r].gate + (col - 32), gate + u64(row.first + r) * ldx + head * HEAD + tile + (col - 32));
        if (c < 4) copy_async(sh[r].v + col, from + v_col + kv_head * HEAD + tile + col);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();  // every row has arrived
#pragma unroll 1
    for (u32 task = warp; task < 2 * rows; task += 8) {
        bf16* at = task & 1 ? sh[task >> 1].k : sh[task >> 1].q;
        HeadPart(at, rope ? reinterpret_cast<const float2*>(sh[task >> 1].parts) : nullptr).norm_rotate(at, norm, weights, rope, eps);
    }
    __syncthreads();  // q, k and v of every row
#pragma unroll 1
    for (u32 r = 0; r < rows; r++) {
        part.absorb(load16(&sh[r].k[k0]), reinterpret_cast<const u32*>(&sh[r].v[v0]));
        float y[2];
        part.read(y, load16(&sh[r].q[k0]));
        // Lanes that share two columns give one of them away; ((k 0..7 + k 8..15) + (k 16..23 + k 24..31)) in every lane.
        const bool second = lane & 8;
        float sum = second ? y[1] : y[0];
        sum += shuffle_xor(second ? y[0] : y[1], 8);
        sum += shuffle_xor(sum, 16);
        if (lane < 16) sh[r].parts[quarter][v0 + (lane >> 3)] = sum;
    }
    __syncthreads();  // parts of every row
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rows * TILE_V; i += 256) {
        const u32 r = i / TILE_V, c = i % TILE_V;
        const float value = ((sh[r].parts[0][c] + sh[r].parts[1][c]) + (sh[r].parts[2][c] + sh[r].parts[3][c])) * scale;
        o[u64(r) * ldo + column] = value;
        if (next.x) next.put(row.first + r, column, value, gate ? next_weight * sigmoid(widen(sh[r].gate[c])) : next_weight, true);
    }
    if (head % (heads / kv_heads)) return;
    // Remembered until it is known how many are accepted.
    const u64 half = u64((row.slot & 1) ^ 1) * MAX_VERIFY * kv_heads * HEAD + u64(kv_head) * HEAD;
    const u32 piece = (threadIdx.x & 3) * 8;
    if (threadIdx.x < rows * 4) store16(pend_v + half + u64(threadIdx.x >> 2) * kv_heads * HEAD + tile + piece, load16(sh[threadIdx.x >> 2].v + piece));
    if (blockIdx.x == 0)
#pragma unroll 1
        for (u32 i = threadIdx.x; i < rows * 16; i += 256) store16(pend_k + half + u64(i >> 4) * kv_heads * HEAD + (i & 15) * 8, load16(&sh[i >> 4].k[(i & 15) * 8]));
}

KERNEL(128, 4) lightning_fold(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, const Step* step, u32 heads, u32 kv_heads) {
    wait_for_previous();
    allow_next();
    absorb_pending(state, pend_k, pend_v, slopes, step, heads, kv_heads);
}

// Prefill: q and k of all heads, one warp a head.
KERNEL(256, 4)
lightning_qk(bf16* dst, u32 ldd, const bf16* x, u32 ldx, u32 q_col, u32 k_col, const float* q_norm, const float* k_norm, const float2* rope, u32 heads,
             u32 kv_heads, float eps, u32 rows) {
    wait_for_previous();
    allow_next();
    const u32 head = blockIdx.x * 8 + (threadIdx.x >> 5), r = blockIdx.y;
    if (head >= heads + kv_heads) return;
    const bool is_q = head < heads;
    const bf16* from = x + u64(r) * ldx + (is_q ? q_col + head * HEAD : k_col + (head - heads) * HEAD);
    const float* norm = is_q ? q_norm : k_norm;
    HeadPart(from, rope ? rope + u64(r) * 64 : nullptr).norm_rotate(dst + u64(r) * ldd + head * HEAD, norm, HeadPart::weights(norm), rope, eps);
}

// ---- prefill -----------------------------------------------------------------------------------------------------------
// Chunks of C = 64 rows, i, j local: O = scale · ( ((Q Kᵀ) ∘ λ^{i−j}[j ≤ i]) V + λ^{i+1} (Q S) ),  S ← λ^C S + Kᵀ (λ^{C−1−i} V).
// Block (tile of 32 v columns, head), 8 warps. Four keep S in their accumulators (rows 32·warp..+31 of k), put it into shared memory as bf16 once per
// chunk to be an operand, and add the chunk to it, while the other four make the outputs of 16 rows each. bf16 operands, f32 sums, one fixed order; chunks
// are counted from the first row, so a pass cut at multiples of 64 gives the same bits as one that is not. A warp is alone with its
// tensor core, so operands of the next product are on their way while one is multiplied: instructions leave in order.
// Bytes moved: q and k four times (mostly from level 2), v and o once.

constexpr u32 CHUNK = 64;
constexpr u32 LD_QK = HEAD + 8;
constexpr u32 LD_V = TILE_V + 8;

struct Chunk {
    bf16 q[CHUNK * LD_QK];
    bf16 k[CHUNK * LD_QK];
    bf16 v[CHUNK * LD_V];
};
struct PrefillShared {
    Chunk chunk[2];
    bf16 state[HEAD * LD_V];   // S before the chunk
    bf16 faded[CHUNK * LD_V];  // λ^{C−1−i} V
    float power[CHUNK + 4];    // λ^n
};
static_assert(sizeof(PrefillShared) == 95504, "src/backend/cuda/launch.rs asks for this much");

// d += a · b over K steps of 16, b two tiles of 16 columns: `load(k, a, b)` brings the operands of step k.
template <u32 K, class Load> DEVICE void multiply(float (&d)[4][4], Load load) {
    u32 a[2][4], b[2][2][4];
    load(0, a[0], b[0]);
#pragma unroll
    for (u32 k = 0; k < K; k++) {
        if (k + 1 < K) load(k + 1, a[(k + 1) & 1], b[(k + 1) & 1]);
        const u32(&x)[4] = a[k & 1];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            mma(d[2 * n], x[0], x[1], x[2], x[3], b[k & 1][n][0], b[k & 1][n][1]);
            mma(d[2 * n + 1], x[0], x[1], x[2], x[3], b[k & 1][n][2], b[k & 1][n][3]);
        }
    }
}
// The two tiles that begin at row k of [k][32].
DEVICE void load_two(u32 (&b)[2][4], const bf16* s, u32 k) {
    load_b_trans(b[0], s, LD_V, 0, k);
    load_b_trans(b[1], s, LD_V, 16, k);
}

KERNEL(256, 1)
lightning_prefill(float* o, u32 ldo, const bf16* qk, u32 ldqk, const bf16* v, u32 ldv, float* state, const bf16* pend_k, const bf16* pend_v,
                  const float* slopes, const Step* step, u32 heads, u32 kv_heads, float scale, u32 rows) {
    SHARED_BYTES(bytes);
    PrefillShared& sh = *reinterpret_cast<PrefillShared*>(bytes);
    const u32 warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bool keeps = threadIdx.x < 128;  // the state; the other four warps make outputs
    const u32 head = blockIdx.y, kv_head = head / (heads / kv_heads), tile = blockIdx.x * TILE_V;
    const u32 chunks = (rows + CHUNK - 1) / CHUNK;
    wait_for_previous();
    allow_next();

    auto fetch = [&](u32 c) {
        Chunk& to = sh.chunk[c & 1];
        for (u32 i = threadIdx.x; i < CHUNK * 16; i += 256) {
            const u32 r = i >> 4, col = (i & 15) * 8, row = c * CHUNK + r;
            const bf16* from = qk + u64(min(row, rows - 1)) * ldqk + col;
            copy_async(to.q + r * LD_QK + col, from + head * HEAD, row < rows);
            copy_async(to.k + r * LD_QK + col, from + (heads + kv_head) * HEAD, row < rows);
        }
        for (u32 i = threadIdx.x; i < CHUNK * 4; i += 256) {
            const u32 r = i >> 2, col = (i & 3) * 8, row = c * CHUNK + r;
            copy_async(to.v + r * LD_V + col, v + u64(min(row, rows - 1)) * ldv + kv_head * HEAD + tile + col, row < rows);
        }
        copy_commit();
    };
    fetch(0);
    const float slope = slopes[head];
    if (threadIdx.x <= CHUNK) sh.power[threadIdx.x] = expf(-slope * float(threadIdx.x));
    if (keeps) absorb_pending(state, pend_k, pend_v, slopes, step, heads, kv_heads);
    __syncthreads();  // the absorbed state is read back in another layout

    float s[2][4][4] = {};  // S[32·warp + 16·m + g (+8)][8·n + 2t (+1)] of the tile
    float* home = state + (u64(head) * HEAD + warp * 32 + g) * HEAD + tile + 2 * t;
    auto each = [&](auto what) {
#pragma unroll
        for (u32 m = 0; m < 2; m++)
#pragma unroll
            for (u32 n = 0; n < 4; n++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) what(m * 16 + half * 8, n * 8, s[m][n][2 * half], s[m][n][2 * half + 1]);
    };
    if (keeps)
        each([&](u32 row, u32 col, float& x, float& y) {
            const float2 two = *reinterpret_cast<const float2*>(home + row * HEAD + col);
            x = two.x, y = two.y;
        });

    // λ^{i−j} of what the lane has of a warp's 16 rows, 0 right of the diagonal; the same for every chunk.
    const u32 row = warp * 16;  // of the 16 rows whose outputs the warp makes
    float fade[8][4];
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const u32 i = row + g + (e >> 1) * 8, j = n * 8 + 2 * t + (e & 1);
            fade[n][e] = j <= i ? sh.power[i - j] : 0.f;
        }
    const float grown0 = sh.power[row + g + 1], grown1 = sh.power[row + g + 9];

    for (u32 c = 0; c < chunks; c++) {
        const Chunk& in = sh.chunk[c & 1];
        const u32 live = min(CHUNK, rows - c * CHUNK);
        copy_wait<0>();
        __syncthreads();  // the chunk has arrived for all; nobody reads the other buffer, `state` or `faded` any more
        if (c + 1 < chunks) fetch(c + 1);
        float p[8][4] = {};
        if (keeps) {
            each([&](u32 r, u32 col, float& x, float& y) { *reinterpret_cast<u32*>(sh.state + (warp * 32 + r + g) * LD_V + col + 2 * t) = pack(x, y); });
            for (u32 i = threadIdx.x; i < CHUNK * TILE_V / 2; i += 128) {
                const u32 r = i / (TILE_V / 2), col = i % (TILE_V / 2) * 2;
                const u32 x = *reinterpret_cast<const u32*>(in.v + r * LD_V + col);
                const float factor = r < live ? sh.power[live - 1 - r] : 0.f;
                *reinterpret_cast<u32*>(sh.faded + r * LD_V + col) = pack(factor * widen_lo(x), factor * widen_hi(x));
            }
        } else {  // Q Kᵀ. Columns right of the diagonal's tile are not needed.
            u32 a[2][4], b[2][4][4];
            auto load = [&](u32 k) {
                load_a(a[k & 1], in.q, LD_QK, row, k * 16);
#pragma unroll
                for (u32 n = 0; n < 4; n++)
                    if (n <= warp) load_b(b[k & 1][n], in.k, LD_QK, n * 16, k * 16);
            };
            load(0);
#pragma unroll
            for (u32 k = 0; k < HEAD / 16; k++) {
                if (k + 1 < HEAD / 16) load(k + 1);
                const u32 i = k & 1;
#pragma unroll
                for (u32 n = 0; n < 4; n++)
                    if (n <= warp) {
                        mma(p[2 * n], a[i][0], a[i][1], a[i][2], a[i][3], b[i][n][0], b[i][n][1]);
                        mma(p[2 * n + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[i][n][2], b[i][n][3]);
                    }
            }
        }
        __syncthreads();  // `state` and `faded` written
        if (keeps) {  // S ← λ^C S + Kᵀ faded, rows 32·warp..+31 of k
            const float decay = sh.power[live];
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
#pragma unroll
                for (u32 n = 0; n < 4; n++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++) s[m][n][e] *= decay;
                multiply<CHUNK / 16>(s[m], [&](u32 k, u32(&a)[4], u32(&b)[2][4]) {
                    load_a_trans(a, in.k, LD_QK, warp * 32 + m * 16, k * 16);
                    load_two(b, sh.faded, k * 16);
                });
            }
            continue;
        }
        float y[4][4] = {};
        multiply<HEAD / 16>(y, [&](u32 k, u32(&a)[4], u32(&b)[2][4]) {
            load_a(a, in.q, LD_QK, row, k * 16);
            load_two(b, sh.state, k * 16);
        });
#pragma unroll
        for (u32 n = 0; n < 4; n++) y[n][0] *= grown0, y[n][1] *= grown0, y[n][2] *= grown1, y[n][3] *= grown1;
        u32 b[2][2][4];
        load_two(b[0], in.v, 0);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (k > warp) continue;
            if (k < 3) load_two(b[(k + 1) & 1], in.v, k * 16 + 16);
            u32 a[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 n = 2 * k + i / 2, e = i % 2 * 2;
                const float f0 = fade[n][e], f1 = fade[n][e + 1];
                a[i] = pack(f0 > 0.f ? p[n][e] * f0 : 0.f, f1 > 0.f ? p[n][e + 1] * f1 : 0.f);
            }
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                mma(y[2 * n], a[0], a[1], a[2], a[3], b[k & 1][n][0], b[k & 1][n][1]);
                mma(y[2 * n + 1], a[0], a[1], a[2], a[3], b[k & 1][n][2], b[k & 1][n][3]);
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 i = row + g + 8 * half;
            if (i < live) {
                float* to = o + u64(c * CHUNK + i) * ldo + head * HEAD + tile + 2 * t;
#pragma unroll
                for (u32 n = 0; n < 4; n++) *reinterpret_cast<float2*>(to + n * 8) = make_float2(y[n][2 * half] * scale, y[n][2 * half + 1] * scale);
            }
        }
    }
    if (keeps)
        each([&](u32 row, u32 col, float& x, float& y) { *reinterpret_cast<float2*>(home + row * HEAD + col) = make_float2(x, y); });
}
