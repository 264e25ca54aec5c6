// Lightning attention: per head a state S [128 (k), 128 (v)] f32, S_t = λ S_{t−1} + k_t v_tᵀ, o_t = scale · S_tᵀ q_t.
//
// q and k are RMS-normed per head and rotated (half-split pairs i, i + 64) first and rounded to bf16; λ = exp(−slope).
// Verify (1..16 rows; decode is one): grid (4 tiles of 32 v columns, heads), 256 threads, a thread holds 8 k × 2 v of S in registers.
// Each element of S sees the same fma per row whether rows come one at a time or together, and the sum over k has one
// order, so T rows are bit for bit T single steps. Accepted rows of the pass before are absorbed first ("pending"); the
// rows of this pass are only remembered. Bytes moved: S read once, written once if anything was pending.
#include "lightning.cuh"
#include "sequences.cuh"

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
