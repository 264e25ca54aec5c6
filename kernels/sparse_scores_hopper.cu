// InfLLM-V2 sparse attention in prefill on Hopper (sm_90a): z and scores of sparse_scores.cu with asynchronous products.
//
// A thread block handles 24 neighbouring rows of one KV head, a warpgroup eight of them; one more warp copies tiles of compressed
// keys into a ring. While the tensor cores multiply for one warpgroup, others add up weights.
//
// A row's sums run over its own keys in ascending order, so its bits do not depend on the other rows.
#include "attention.cuh"
#include "wgmma.cuh"

constexpr u32 ROWS = 24;                         // of a thread block
constexpr u32 GROUPS = 3, EACH = ROWS / GROUPS;  // warpgroups that multiply, rows of each
constexpr u32 HEADS = EACH * GROUP;              // queries of a warpgroup
constexpr u32 LSE_TILE = 128, SCORE_TILE = 64;   // keys of a tile

// Operands in panels of 64 columns (wgmma.cuh).
template <u32 TILE, u32 N> struct Ring {
    static constexpr u32 STAGES = N;
    bf16 query[GROUPS][2][HEADS * 64];
    bf16 keys[STAGES][2][TILE * 64];
    u64 arrived[STAGES], read[STAGES];
};
struct LseShared : Ring<LSE_TILE, 3> {
    DEVICE_METHOD static u32 place(u32 row, u32 head) { return row * GROUP + head; }  // of a query
};
struct ScoresShared : Ring<SCORE_TILE, 4> {
    DEVICE_METHOD static u32 place(u32 row, u32 head) { return head * EACH + row; }
    static constexpr u32 LD = SCORE_TILE + 12;  // without bank conflicts
    float sums[GROUPS][4][EACH * LD];           // A of a tile and of the three before
};
static_assert(sizeof(LseShared) == 196'656 && sizeof(ScoresShared) == 193'088, "bytes in src/backend/cuda/launch/select.rs");

// Other targets have these kernels without a body; the host launches them on Hopper only.
#if !defined(SALA_EMULATOR) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
constexpr u32 THREADS = GROUPS * 128 + 128;

DEVICE void group_sync(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Query heads of the block's rows; heads from `group` on are zero. Initialises the barriers.
template <class Shared> DEVICE void begin(Shared& sh, const bf16* q, u32 ldq, u32 group, u32 r0, u32 rows) {
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < Shared::STAGES; s++) barrier_init(sh.arrived + s, 1), barrier_init(sh.read + s, GROUPS * 4);
    }
    for (u32 i = threadIdx.x; i < ROWS * GROUP * 16; i += THREADS) {
        const u32 chunk = i & 15, head = i >> 4 & 15, row = i >> 8, at = Shared::place(row % EACH, head);
        const bf16* from = q + u64(min(r0 + row, rows - 1)) * ldq + head * HEAD + chunk * 8;
        store16(sh.query[row / EACH][chunk >> 3] + at * 64 + ((chunk ^ at) & 7) * 8, head < group ? load16(from) : make_uint4(0, 0, 0, 0));
    }
    barriers_made();  // queries as well become visible to the tensor cores
    __syncthreads();
}

// The copying warp: `tiles` tiles of keys from `key` on. An array tile holds `per` keys.
template <class Shared> DEVICE void fill_ring(Shared& sh, const TensorMap& map, u32 kv_head, u32 per, u32 key, u32 tiles) {
    constexpr u32 TILE = sizeof(sh.keys[0]) / (HEAD * 2), BOX_ROWS = 32;
    fewer_registers<24>();
    if (threadIdx.x != GROUPS * 128) return;
    for (u32 n = 0, s = 0, phase = 1; n < tiles; n++, key += TILE) {
        barrier_wait(sh.read + s, phase);
        barrier_expect(sh.arrived + s, sizeof(sh.keys[0]));
        for (u32 i = 0; i < TILE; i += BOX_ROWS)
            for (u32 p = 0; p < 2; p++) bring_box(sh.keys[s][p] + i * 64, map, kv_head * HEAD + p * 64, (key + i) % per, (key + i) / per, 0, sh.arrived + s);
        if (++s == Shared::STAGES) s = 0, phase ^= 1;
    }
}

// Position in the ring, and products with the tile there.
template <class Shared> struct Reader {
    Shared& sh;
    u32 slot = 0, phase = 0;
    DEVICE_METHOD u32 arrived() const {
        barrier_wait(sh.arrived + slot, phase);
        return shared_address(sh.keys[slot]);
    }
    DEVICE_METHOD void leave() {
        if ((threadIdx.x & 31) == 0) barrier_arrive(sh.read + slot);
        if (++slot == Shared::STAGES) slot = 0, phase ^= 1;
    }
};
// acc = a · bᵀ, begun; panels of `a_rows` and `b_rows` rows at addresses in shared memory.
DEVICE void multiply(float (&acc)[64], u32 a, u32 a_rows, u32 b, u32 b_rows) {
    products_begin();
#pragma unroll
    for (u32 k = 0; k < HEAD / 16; k++) product(acc, panel_at(a + k / 4 * a_rows * 128) + k % 4 * 2, panel_at(b + k / 4 * b_rows * 128) + k % 4 * 2, k);
    products_commit();
}

#endif

// z, as prefill_lse. Grid (24 rows, KV head). The query heads of four rows are the rows of a product: a warp has the heads of one
// row, and a lane those of g and g + 8 with the keys 2t, 2t + 1 of every eight.
KERNEL(512, 1)
hopper_lse(float* z, const bf16* q, u32 ldq, const __grid_constant__ TensorMap map, u32 window, u32 stride, const Step* step, u32 heads, u32 kv_heads, float scale,
           u32 rows) {
#ifdef HOPPER
    SHARED_BYTES(bytes);  // begins at a multiple of 1024
    LseShared& sh = *reinterpret_cast<LseShared*>(bytes);
    allow_next();
    wait_for_previous();
    const u32 group = heads / kv_heads, kv_head = blockIdx.y, position = step->position, r0 = blockIdx.x * ROWS, own = threadIdx.x >> 7;
    const u32 tiles = (visible_keys(position + min(r0 + ROWS, rows) - 1, window, stride) + LSE_TILE - 1) / LSE_TILE;
    begin(sh, q + kv_head * group * HEAD, ldq, group, r0, rows);
    if (own == GROUPS) return fill_ring(sh, map, kv_head, KEY_TILE / stride, 0, tiles);
    more_registers<160>();
    const u32 warp = threadIdx.x >> 5 & 3, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const float unit = scale * LOG2E;
    float m[2][2], l[2][2] = {};  // of rows warp and warp + 4 of the warpgroup, heads g and g + 8: max and Σ
    u32 count[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        count[i] = visible_keys(position + min(r0 + own * EACH + i * 4 + warp, rows - 1), window, stride);
        m[i][0] = m[i][1] = LOWEST;
    }
    Reader<LseShared> ring{sh};
    for (u32 n = 0; n < tiles; n++) {
        const u32 tile = ring.arrived();
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float acc[64];
            multiply(acc, shared_address(sh.query[own]) + i * 64 * 128, HEADS, tile, LSE_TILE);
            products_wait<0>();
            if (i == 1) ring.leave();
            if (n * LSE_TILE + LSE_TILE > count[i]) {
#pragma unroll
                for (u32 e = 0; e < 64; e++)
                    if (n * LSE_TILE + e / 4 * 8 + 2 * t + (e & 1) >= count[i]) acc[e] = NEVER;
            }
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                float top = acc[2 * h], sum[2] = {};
#pragma unroll
                for (u32 e = 0; e < 32; e++) top = fmaxf(top, acc[e / 2 * 4 + 2 * h + (e & 1)]);
                top = fmaxf(m[i][h], top * unit);
#pragma unroll
                for (u32 e = 0; e < 32; e++) sum[e & 1] += exp2_fast(fmaf(acc[e / 2 * 4 + 2 * h + (e & 1)], unit, -top));
                l[i][h] = fmaf(l[i][h], exp2_fast(m[i][h] - top), sum[0] + sum[1]);
                m[i][h] = top;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float top = m[i][h], sum = l[i][h];
            top = fmaxf(top, shuffle_xor(top, 1)), top = fmaxf(top, shuffle_xor(top, 2));
            sum *= exp2_fast(m[i][h] - top);
            sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2);
            const u32 head = g + 8 * h, r = r0 + own * EACH + i * 4 + warp;
            if (t == 0 && head < group && r < rows) z[u64(r) * heads + kv_head * group + head] = top == LOWEST ? NEVER : top + log2f(sum);
        }
#endif
}

// Scores, as prefill_scores and with its bits. Grid (`span` KV blocks, a multiple of 16, 24 rows, KV head). The keys of a tile are the
// rows of a product; a lane has the heads of rows 2t, 2t + 1 with keys g and g + 8 of a warp's sixteen. Tile 0 precedes the first KV
// block: the last of its keys belongs to the first pool.
// Bytes moved: 64 KB of k1 from L2 for 24 rows and 64 KV blocks.
KERNEL(512, 1)
hopper_scores(bf16* scores, const float* z, const bf16* q, u32 ldq, const __grid_constant__ TensorMap map, const Step* step, u32 heads, u32 kv_heads, float scale,
              u32 row0, u32 rows, u32 score_blocks, u32 span) {
#ifdef HOPPER
    SHARED_BYTES(bytes);
    ScoresShared& sh = *reinterpret_cast<ScoresShared*>(bytes);
    allow_next();
    wait_for_previous();
    const u32 group = heads / kv_heads, kv_head = blockIdx.z, b0 = blockIdx.x * span, r0 = blockIdx.y * ROWS, own = threadIdx.x >> 7;
    const u32 position = step->position + row0;
    const u32 last_block = (position + min(r0 + ROWS, rows) - 1) / BLOCK;
    if (b0 > last_block) return;
    if (threadIdx.x < ROWS) sh.sums[threadIdx.x / EACH][0][threadIdx.x % EACH * sh.LD + SCORE_TILE - 1] = 0.f;
    begin(sh, q + u64(row0) * ldq + kv_head * group * HEAD, ldq, group, r0, rows);
    // Tiles skip <= n < until have the keys from 4 b0 + 64 n - 64 on.
    const u32 until = min(last_block - b0, span - 1) / 16 + 2, skip = b0 ? 0 : 1;
    if (own == GROUPS) return fill_ring(sh, map, kv_head, KEY_TILE / 16, b0 * 4 + skip * SCORE_TILE - SCORE_TILE, until - skip);
    more_registers<160>();
    const u32 warp = threadIdx.x >> 5 & 3, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float zs[2][GROUP];  // of rows 2t and 2t + 1
    u32 count[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 mine = min(r0 + own * EACH + 2 * t + i, rows - 1);
        count[i] = visible_keys(position + mine, 32, 16);
#pragma unroll
        for (u32 head = 0; head < GROUP; head++) {
            const float x = head < group ? z[u64(row0 + mine) * heads + kv_head * group + head] : INFINITY;
            zs[i][head] = x == NEVER ? INFINITY : x;  // without a visible key in z, A is 0
        }
    }
    const float unit = scale * LOG2E;
    Reader<ScoresShared> ring{sh};
    // Scores of the 16 KV blocks with pools that end in tile n.
    auto pool = [&](u32 n) {
        const u32 at = threadIdx.x & 15, row = threadIdx.x >> 4 & 7, r = r0 + own * EACH + row, block = b0 + n * 16 - 16 + at;
        if (n == 0 || n >= until || block >= score_blocks || r >= rows) return;
        const float* sums = sh.sums[own][n & 3] + row * sh.LD + at * 4;
        const float4 x = load4(sums);
        const float before = at ? sums[-1] : sh.sums[own][(n - 1) & 3][row * sh.LD + SCORE_TILE - 1];
        scores[(u64(r) * kv_heads + kv_head) * score_blocks + block] = narrow(fmaxf(fmaxf(fmaxf(before, x.x), fmaxf(x.y, x.z)), x.w));
    };
    for (u32 n = skip; n < until; n++) {
        float acc[64];
        multiply(acc, ring.arrived(), SCORE_TILE, shared_address(sh.query[own]), HEADS);
        pool(n - 1);
        products_wait<0>();
        ring.leave();
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 key = warp * 16 + half * 8 + g;
                auto weight = [&](u32 head) { return exp2_fast(fmaf(acc[head * 4 + half * 2 + i], unit, -zs[i][head])); };
                float a[4];  // in the order of prefill_scores
#pragma unroll
                for (u32 j = 0; j < 4; j++) a[j] = (weight(2 * j) + weight(2 * j + 1)) + (weight(2 * j + 8) + weight(2 * j + 9));
                const float sum = (a[0] + a[1]) + (a[2] + a[3]);
                sh.sums[own][n & 3][(2 * t + i) * sh.LD + key] = b0 * 4 + n * SCORE_TILE + key < count[i] + SCORE_TILE ? sum : 0.f;
            }
        group_sync(own);  // A of tile n is complete
    }
    pool(until - 1);
#endif
}
