// Lightning attention of a verify pass (docs/model.md §4). Each head has a state S [128 (k)][128 (v)] f32,
//   S_t = λ S_{t−1} + k_t v_tᵀ,  o_t = scale · S_tᵀ q_t,  λ = exp(−slope).
// First, q and k are RMS-normed per head, rotated (half-split pairs i, i + 64) and rounded to bf16. x is bf16
// [rows][ldx] with q, k and v from columns q_col, k_col and v_col on; o is f32 [rows][ldo].
//
// Rows enter the state only when they are accepted. The pass first absorbs the accepted rows of the previous pass, the
// pending rows, into the state in memory; the rows of this pass advance a copy in registers and are stored as pending
// in the other half of the pending ring.
//
// Each element of S sees the same fma per row whether rows arrive one at a time or together, and the sum over k has one
// order, so T rows give bit for bit the results of T single steps.
// Bytes moved: S read once, 2.1 MB a layer of the 9B model, and written once if rows were pending.
#include "lightning.cuh"
#include "sequences.cuh"

// Shared memory of lightning_verify for each of the rows that it handles at a time. It is small so that a thread block fits on a
// multiprocessor next to the previous GEMM, which takes most of it for its rows.
constexpr u32 VERIFY_ROWS = 8;
struct VerifyRow {
    bf16 q[HEAD], k[HEAD], v[TILE_V], gate[TILE_V];
    float parts[4][TILE_V];  // first the row's (cos, sin) [64], later sums over 32 k each
};
static_assert(sizeof(VerifyRow) == 1152, "bytes a row in src/backend/cuda/launch/lightning.rs");

// 1..16 rows; decode is one row.
// Grid (4 tiles of 32 v columns, filler blocks + heads, sequences), 256 threads. A thread holds 8 k × 2 v of S in
// registers. Two warps share 32 k: a lane has 8 of them and two columns, so the sums over these k stay within a warp.
// With one sequence gridDim.z is 1 and it has `all` rows; with several, thread block z handles the sequence that begins
// at row z, if there is one.
//
// Filler blocks only wait. The previous GEMM leaves some multiprocessors idle, and each of those would take four thread
// blocks as soon as this kernel may start; they would share what a single thread block has to itself elsewhere. So
// there are four filler blocks with z = 0 for each idle multiprocessor. Filler blocks with z > 0 return at once.
//
// With `next_x` it also prepares the rows for the next GEMM (Next in common.cuh), times sigmoid(gate) unless `gate` is
// null.
KERNEL(256, 4)
lightning_verify(float* o, u32 ldo, const bf16* x, u32 ldx, u32 q_col, u32 k_col, u32 v_col, const float* q_norm, const float* k_norm, const float2* rope,
                 const Row* at, const RowState* of, const float* next_norm, bf16* next_x, float* next_sums, const bf16* gate, u32 heads, u32 kv_heads, float scale, float eps, u32 all, u32 sequences) {
    SHARED_BYTES(bytes);
    VerifyRow* sh = reinterpret_cast<VerifyRow*>(bytes);
    const u32 fillers = gridDim.y - heads;
    if (blockIdx.y < fillers) {
        allow_next();
        if (blockIdx.z == 0) wait_for_previous();
        return;
    }
    const u32 warp = threadIdx.x >> 5, head = blockIdx.y - fillers, kv_head = head / (heads / kv_heads);
    const u32 lane = threadIdx.x & 31, quarter = warp >> 1, tile = blockIdx.x * TILE_V;
    const u32 k0 = quarter * 32 + (lane >> 3) * 8, v0 = (warp & 1) * 16 + (lane & 7) * 2;

    // State, pending rows and norms are older than the overlapping launches, so they are read before the wait.
    const Row row = at[blockIdx.z];
    const auto [state, pend_k, pend_v, slopes] = of[blockIdx.z];
    if (row.first != blockIdx.z) return;
    const u32 rows = sequences > 1 ? row.rows : all;
    x += u64(row.first) * ldx, o += u64(row.first) * ldo;
    if (rope) rope += row.first * 64;
    const u32 column = head * HEAD + tile + lane;  // the lane's column of the result
    const Next next = NEXT(heads * HEAD);
    const float next_weight = next.x ? next.weight(column) : 0.f;
    const float* norm = warp & 1 ? k_norm : q_norm;  // even warps norm queries, odd ones keys
    const float4 weights = HeadPart::weights(norm);
    StatePart<2> part = absorb_pending<2>(state, pend_k, pend_v, slopes, row.pending, row.slot, head, heads, kv_heads, k0, tile + v0);
    allow_next();
    wait_for_previous();

    const u64 half = u64((row.slot & 1) ^ 1) * MAX_VERIFY * kv_heads * HEAD + u64(kv_head) * HEAD;
    // Loads of a pass over at most 8 rows are issued before the first row is used. Loops are not unrolled, to keep the code short:
    // with one row nearly every instruction runs once.
#pragma unroll 1
    for (u32 low = 0; low < rows; low += VERIFY_ROWS) {
        const u32 n = min(rows - low, VERIFY_ROWS);
        if (low) __syncthreads();  // the rows before are read
#pragma unroll 1
        for (u32 i = threadIdx.x; i < n * 64; i += 256) {
            const u32 r = i >> 6, c = i & 63, col = (c & 15) * 8;
            const bf16* from = x + u64(low + r) * ldx;
            if (c < 32) copy_async(c < 16 ? sh[r].q + col : sh[r].k + col, from + (c < 16 ? q_col + head * HEAD : k_col + kv_head * HEAD) + col);
            else if (rope) copy_async(&sh[r].parts[0][0] + (c - 32) * 4, rope + (low + r) * 64 + (c - 32) * 2);
            if (gate && c >= 4 && c < 8) copy_async(sh[r].gate + (col - 32), gate + u64(row.first + low + r) * ldx + head * HEAD + tile + (col - 32));
            if (c < 4) copy_async(sh[r].v + col, from + v_col + kv_head * HEAD + tile + col);
        }
        copy_commit();
        copy_wait<0>();
        __syncthreads();  // the rows have arrived
#pragma unroll 1
        for (u32 task = warp; task < 2 * n; task += 8) {
            bf16* at = task & 1 ? sh[task >> 1].k : sh[task >> 1].q;
            HeadPart(at, rope ? reinterpret_cast<const float2*>(sh[task >> 1].parts) : nullptr).norm_rotate(at, norm, weights, rope, eps);
        }
        __syncthreads();  // q, k and v of the rows
#pragma unroll 1
        for (u32 r = 0; r < n; r++) {
            part.absorb(load16(&sh[r].k[k0]), reinterpret_cast<const u32*>(&sh[r].v[v0]));
            float y[2];
            part.read(y, load16(&sh[r].q[k0]));
            // Lanes that differ only in bits 3 and 4 have the same two columns: each keeps one and hands over the other. In
            // every lane the order is ((k 0..7 + k 8..15) + (k 16..23 + k 24..31)).
            const bool second = lane & 8;
            float sum = second ? y[1] : y[0];
            sum += shuffle_xor(second ? y[0] : y[1], 8);
            sum += shuffle_xor(sum, 16);
            if (lane < 16) sh[r].parts[quarter][v0 + (lane >> 3)] = sum;
        }
        __syncthreads();  // parts of the rows
#pragma unroll 1
        for (u32 i = threadIdx.x; i < n * TILE_V; i += 256) {
            const u32 r = i / TILE_V, c = i % TILE_V;
            const float value = ((sh[r].parts[0][c] + sh[r].parts[1][c]) + (sh[r].parts[2][c] + sh[r].parts[3][c])) * scale;
            o[u64(low + r) * ldo + column] = value;
            if (next.x) next.put(row.first + low + r, column, value, gate ? next_weight * sigmoid(widen(sh[r].gate[c])) : next_weight, true);
        }
        if (head % (heads / kv_heads)) continue;
        // Stores the rows as pending, once a KV head, until the host knows how many are accepted.
        const u64 to = half + u64(low) * kv_heads * HEAD;
        const u32 piece = (threadIdx.x & 3) * 8;
        if (threadIdx.x < n * 4) store16(pend_v + to + u64(threadIdx.x >> 2) * kv_heads * HEAD + tile + piece, load16(sh[threadIdx.x >> 2].v + piece));
        if (blockIdx.x == 0)
#pragma unroll 1
            for (u32 i = threadIdx.x; i < n * 16; i += 256) store16(pend_k + to + u64(i >> 4) * kv_heads * HEAD + (i & 15) * 8, load16(&sh[i >> 4].k[(i & 15) * 8]));
    }
}

// Absorbs the pending rows of a sequence into its state.
// Grid (4 tiles of 32 v columns, heads), 128 threads.
// Bytes moved: S read once, and written once if rows were pending.
KERNEL(128, 4) lightning_fold(float* state, const bf16* pend_k, const bf16* pend_v, const float* slopes, const Step* step, u32 heads, u32 kv_heads) {
    wait_for_previous();
    allow_next();
    absorb_pending(state, pend_k, pend_v, slopes, step, heads, kv_heads);
}
