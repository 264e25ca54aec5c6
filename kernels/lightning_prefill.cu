// Lightning attention in prefill, in chunks on tensor cores (docs/model.md §4). For chunks of C = 64 rows, i and j
// local to the chunk, S [128 (k)][128 (v)] f32 a head:
//   O = scale · ( ((Q Kᵀ) ∘ λ^{i−j}[j ≤ i]) V + λ^{i+1} (Q S) ),
//   S ← λ^C S + Kᵀ (λ^{C−1−i} V).
// lightning_qk norms and rotates q and k first; lightning_prefill then absorbs the pending rows and runs the chunks.
#include "lightning.cuh"

// q and k of all heads, RMS-normed, rotated and rounded to bf16: dst [rows][ldd], heads of q and then KV heads of k.
// dst may be x + q_col with ldd = ldx where the columns of q and k are adjacent.
// Grid (8 heads, row), 256 threads, one warp a head.
// Bytes moved: q and k read and written once.
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

constexpr u32 CHUNK = 64;  // rows of a chunk
constexpr u32 LD_QK = HEAD + 8;
constexpr u32 LD_V = TILE_V + 8;

struct Chunk {
    bf16 q[CHUNK * LD_QK];
    bf16 k[CHUNK * LD_QK];
    bf16 v[CHUNK * LD_V];
};
struct PrefillShared {
    Chunk chunk[2];
    bf16 state[HEAD * LD_V];   // S before the chunk, as an operand
    bf16 faded[CHUNK * LD_V];  // λ^{C−1−i} V
    float power[CHUNK + 4];    // λ^n, n = 0..C
};
static_assert(sizeof(PrefillShared) == 95504, "bytes in src/backend/cuda/launch/lightning.rs");

// d += a · b over K steps of 16, where b has two tiles of 16 columns. `load(k, a, b)` loads the operands of step k, one
// step ahead of the products.
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
// Loads the two 16×16 tiles of b from row k on of a matrix [k][32].
DEVICE void load_two(u32 (&b)[2][4], const bf16* s, u32 k) {
    load_b_trans(b[0], s, LD_V, 0, k);
    load_b_trans(b[1], s, LD_V, 16, k);
}

// Grid (tile of 32 v columns, head), 256 threads. Four warps keep S in their accumulators, 32 rows of k each: once a
// chunk they store it to shared memory as a bf16 operand and add the chunk to it. The other four warps compute the
// outputs, 16 rows each. A warp's instructions issue in order and hardly any other warp shares its tensor core, so the
// operands of the next product load while one is multiplied.
//
// bf16 operands, f32 sums in one fixed order. Chunks are counted from the first row, so a pass that is cut at multiples
// of 64 gives the same bits as an uncut one.
// Bytes moved: q and k once a v tile, four times (mostly from L2); v and o once; S is read and written once, and stays
// on chip meanwhile.
KERNEL(256, 1)
lightning_prefill(float* o, u32 ldo, const bf16* qk, u32 ldqk, const bf16* v, u32 ldv, float* state, const bf16* pend_k, const bf16* pend_v,
                  const float* slopes, const Step* step, u32 heads, u32 kv_heads, float scale, u32 rows) {
    SHARED_BYTES(bytes);
    PrefillShared& sh = *reinterpret_cast<PrefillShared*>(bytes);
    const u32 warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bool keeps_state = threadIdx.x < 128;  // warps 0..3 keep the state, warps 4..7 compute outputs
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
    if (keeps_state) absorb_pending(state, pend_k, pend_v, slopes, step, heads, kv_heads);
    __syncthreads();  // the absorbed state is in memory; it is read back in another layout

    float s[2][4][4] = {};  // [m][n]: S[32 · warp + 16 · m + g (+ 8)][8 · n + 2t (+ 1)] of the tile
    float* home = state + (u64(head) * HEAD + warp * 32 + g) * HEAD + tile + 2 * t;
    auto each = [&](auto what) {
#pragma unroll
        for (u32 m = 0; m < 2; m++)
#pragma unroll
            for (u32 n = 0; n < 4; n++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) what(m * 16 + half * 8, n * 8, s[m][n][2 * half], s[m][n][2 * half + 1]);
    };
    if (keeps_state)
        each([&](u32 row, u32 col, float& x, float& y) {
            const float2 two = *reinterpret_cast<const float2*>(home + row * HEAD + col);
            x = two.x, y = two.y;
        });

    // λ^{i−j} for the lane's elements of Q Kᵀ, 0 right of the diagonal; the same for every chunk.
    const u32 row = warp * 16;  // first of the warp's 16 output rows
    float fade[8][4];
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const u32 i = row + g + (e >> 1) * 8, j = n * 8 + 2 * t + (e & 1);
            fade[n][e] = j <= i ? sh.power[i - j] : 0.f;
        }
    const float decay0 = sh.power[row + g + 1], decay1 = sh.power[row + g + 9];  // λ^{i+1} of rows g and g + 8

    for (u32 c = 0; c < chunks; c++) {
        const Chunk& in = sh.chunk[c & 1];
        const u32 live = min(CHUNK, rows - c * CHUNK);
        copy_wait<0>();
        __syncthreads();  // the chunk has arrived; all reads of the other buffer, `state` and `faded` are done
        if (c + 1 < chunks) fetch(c + 1);
        float p[8][4] = {};
        if (keeps_state) {
            each([&](u32 r, u32 col, float& x, float& y) { *reinterpret_cast<u32*>(sh.state + (warp * 32 + r + g) * LD_V + col + 2 * t) = pack(x, y); });
            for (u32 i = threadIdx.x; i < CHUNK * TILE_V / 2; i += 128) {
                const u32 r = i / (TILE_V / 2), col = i % (TILE_V / 2) * 2;
                const u32 x = *reinterpret_cast<const u32*>(in.v + r * LD_V + col);
                const float factor = r < live ? sh.power[live - 1 - r] : 0.f;
                *reinterpret_cast<u32*>(sh.faded + r * LD_V + col) = pack(factor * widen_lo(x), factor * widen_hi(x));
            }
        } else {  // Q Kᵀ, without the tiles right of the diagonal
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
        if (keeps_state) {  // S ← λ^C S + Kᵀ faded, rows 32 · warp .. 32 · warp + 31 of k
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
        for (u32 n = 0; n < 4; n++) y[n][0] *= decay0, y[n][1] *= decay0, y[n][2] *= decay1, y[n][3] *= decay1;
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
    if (keeps_state)
        each([&](u32 row, u32 col, float& x, float& y) { *reinterpret_cast<float2*>(home + row * HEAD + col) = make_float2(x, y); });
}
