// Shared by all kernels: number types, ordering of overlapping launches, copies into shared memory, tensor-core products,
// reductions in one fixed order. SALA_EMULATOR implements the same names on a CPU (emulator/emulator.h).
//
// Limits: heads are 128 wide; compute capability 8.0 and newer.
#pragma once

typedef unsigned short bf16;  // the bits of a bfloat16
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef SALA_EMULATOR
#include "emulator/emulator.h"
#else
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#endif

constexpr u32 HEAD = 128;          // width of a head
constexpr u32 BLOCK = 64;          // tokens of a KV block
constexpr u32 MAX_VERIFY = 16;     // rows of a verify pass
constexpr u32 GROUP = 16;          // most query heads that share a KV head: the 16 rows of one tensor-core tile
constexpr float LOG2E = 1.4426950408889634f;

// Position of a pass. The host writes it between passes.
struct Step {
    u32 position;  // of row 0
    u32 pending;   // accepted rows not yet in the recurrent state
    u32 slot;      // half of the pending ring that holds them
    u32 reserved;
};

struct DraftStep {
    u32 position;  // of row 0
    u32 first;     // position of the first key of the window
    u32 reserved[2];
};

// ---- number types ----------------------------------------------------------------------------------------------------

#ifdef SALA_EMULATOR
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
inline float div_rn(float a, float b) { return a / b; }
#else
// Never contracted to an fma, so that the CPU oracle computes the same bits.
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
#endif

DEVICE float widen(bf16 x) { return __uint_as_float(u32(x) << 16); }
DEVICE float widen_lo(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float widen_hi(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

#ifndef SALA_EMULATOR

// Two values rounded to nearest even; `lo` is the lower half.
DEVICE u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
DEVICE bf16 narrow(float x) { return bf16(pack(x, 0.f)); }

// 2^x to about 2 units in the last place; −inf gives 0.
DEVICE float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// 1/x and 1/sqrt(x) to about a unit in the last place.
DEVICE float rcp_fast(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE float rsqrt_fast(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// ---- order between overlapping launches --------------------------------------------------------------------------------

// Waits until the previous kernel has ended and its writes are visible. Does nothing on devices without overlapping launches.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start; that kernel still waits for the end of this one in `wait_for_previous`. Short kernels call
// it first, so that a chain of them is launched while the first one runs. Before `wait_for_previous` a kernel may read
// only data that is older than the pass.
DEVICE void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- copies into shared memory -----------------------------------------------------------------------------------------

DEVICE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
// Copies 16 bytes around L1, or writes zeros if not `valid` (`global` must lie inside the buffer all the same).
DEVICE void copy_async(void* shared, const void* global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups of this thread are in flight.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- signals between the warps of a block, in shared memory ---------------------------------------------------------------

// Volatile is enough: shared memory serves the accesses of a warp in order, and copies that were waited for have arrived. A
// fence would also wait for the copies in flight.
DEVICE void store_shared(u32* p, u32 x) { asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(x) : "memory"); }
DEVICE u32 load_shared(const u32* p) {
    u32 x;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared_address(p)) : "memory");
    return x;
}
// Pause between two reads of a signal.
DEVICE void spin() { __nanosleep(20); }

// ---- tensor cores ------------------------------------------------------------------------------------------------------
// mma.m16n8k16, lane = 4·g + t: a0 = A[g][2t..], a1 = A[g+8][2t..], a2 = A[g][2t+8..], a3 = A[g+8][2t+8..];
// b0 = B[2t..][g], b1 = B[2t+8..][g]; d0, d1 = D[g][2t], D[g][2t+1]; d2, d3 = D[g+8][..].

DEVICE void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four 8×8 matrices; lanes 8i..8i+7 give the rows of matrix i; r[i] of lane 4g + t is row g, columns 2t, 2t + 1.
DEVICE void load_matrix(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// Transposed: r[i] of lane 4g + t is rows 2t, 2t + 1 of column g.
DEVICE void load_matrix_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// Keeps `x` in a register instead of recomputing it at each use.
DEVICE u32 kept(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}
// All bits, which the compiler does not know. Words that a loop uses side by side as an operand, and that were loaded in another
// order, are put side by side once if an instruction lies between: x & all_ones(). Else the compiler moves them for every use.
DEVICE u32 all_ones() {
    u32 bytes;
    asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(bytes));
    return bytes ? 0xffffffffu : 0;
}
// An address in shared memory that stays in one register instead of being recomputed at each use.
typedef u32 SharedAt;
DEVICE SharedAt shared_at(const void* p) { return kept(shared_address(p)); }
DEVICE unsigned char* place(SharedAt at) { return static_cast<unsigned char*>(__cvta_shared_to_generic(at)); }
// Around L1: data that the previous launch wrote.
DEVICE float4 load_fresh(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }
DEVICE float load_fresh1(const float* p) { return __ldcg(p); }
// From host memory, around all caches.
DEVICE u32 load_host(const u32* p) {
    u32 x;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
// sin and cos of the f32 angle with exact range reduction.
DEVICE void sincos_exact(float x, float* s, float* c) { sincosf(x, s, c); }

DEVICE float shuffle_xor(float x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u32 shuffle_up(u32 x, u32 delta) { return __shfl_up_sync(0xffffffffu, x, delta); }
DEVICE u32 shuffle(u32 x, u32 lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE u32 vote(bool x) { return __ballot_sync(0xffffffffu, x); }
DEVICE u32 warp_add(u32 x) { return __reduce_add_sync(0xffffffffu, x); }
DEVICE u32 warp_least(u32 x) { return __reduce_min_sync(0xffffffffu, x); }
DEVICE u32 warp_most(u32 x) { return __reduce_max_sync(0xffffffffu, x); }

#endif  // SALA_EMULATOR

// Addresses from which a lane reads the values and the scales of one stage of a weight.
struct LaneAt {
    const unsigned char *values, *scales;
};

DEVICE uint4 load16(const void* p) { return *reinterpret_cast<const uint4*>(p); }
DEVICE void store16(void* p, uint4 x) { *reinterpret_cast<uint4*>(p) = x; }

// Fragments of tensor-core products from bf16 matrices in shared memory. `ld` is the row stride in elements; 2·ld bytes are
// a multiple of 16 but not of 128, so that eight rows use all banks.
// A, 16×16 at (m, k), stored [m][k].
DEVICE void load_a(u32 (&r)[4], const bf16* s, u32 ld, u32 m, u32 k) {
    const u32 l = threadIdx.x & 31;
    load_matrix(r, s + (m + (l & 15)) * ld + k + (l >> 4) * 8);
}
// A, 16×16 at (m, k), stored [k][m].
DEVICE void load_a_trans(u32 (&r)[4], const bf16* s, u32 ld, u32 m, u32 k) {
    const u32 l = threadIdx.x & 31;
    load_matrix_trans(r, s + (k + (l >> 4) * 8 + (l & 7)) * ld + m + (l >> 3 & 1) * 8);
}
// B, 16 k × 16 n at (n, k), stored [n][k]: r[0], r[1] are columns n..n+7 and r[2], r[3] are columns n+8..n+15.
DEVICE void load_b(u32 (&r)[4], const bf16* s, u32 ld, u32 n, u32 k) {
    const u32 l = threadIdx.x & 31;
    load_matrix(r, s + (n + (l >> 4) * 8 + (l & 7)) * ld + k + (l >> 3 & 1) * 8);
}
// B, 16 k × 16 n at (n, k), stored [k][n].
DEVICE void load_b_trans(u32 (&r)[4], const bf16* s, u32 ld, u32 n, u32 k) {
    const u32 l = threadIdx.x & 31;
    load_matrix_trans(r, s + (k + (l & 15)) * ld + n + (l >> 4) * 8);
}

// `copy_wait` for a number known at run time; larger numbers count as MOST, which is tested first.
template <u32 MOST> DEVICE void copy_wait_upto(u32 n) {
    if constexpr (MOST > 0)
        if (n < MOST) return copy_wait_upto<MOST - 1>(n);
    copy_wait<MOST>();
}

// ---- reductions: a butterfly has one order and leaves the result in every lane -------------------------------------------

DEVICE float warp_sum(float x) {
    for (u32 m = 16; m; m >>= 1) x += shuffle_xor(x, m);
    return x;
}
DEVICE float warp_max(float x) {
    for (u32 m = 16; m; m >>= 1) x = fmaxf(x, shuffle_xor(x, m));
    return x;
}
// Over the first 256 threads of a block. `scratch`: 8 floats of shared memory, free again on return.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0 && threadIdx.x < 256) scratch[threadIdx.x >> 5] = x;
    __syncthreads();  // scratch written
    float s = 0.f;
    for (int i = 0; i < 8; i++) s += scratch[i];
    __syncthreads();  // scratch read
    return s;
}

DEVICE float sigmoid(float x) { return rcp_fast(1.f + exp2_fast(-LOG2E * x)); }
DEVICE u32 swiglu2(u32 gate, u32 up) {
    const float g0 = widen_lo(gate), g1 = widen_hi(gate);
    return pack(g0 * sigmoid(g0) * widen_lo(up), g1 * sigmoid(g1) * widen_hi(up));
}
// SwiGLU of eight gate columns, which the eight up columns follow in memory; a row [2·inter] is a row of such groups.
DEVICE uint4 swiglu8(const bf16* from) {
    const uint4 g = load16(from), u = load16(from + 8);
    return make_uint4(swiglu2(g.x, u.x), swiglu2(g.y, u.y), swiglu2(g.z, u.z), swiglu2(g.w, u.w));
}

// ---- rows that enter a GEMM --------------------------------------------------------------------------------------------
//
// A GEMM of a verify pass reads bf16(x · norm). 1 / rms(x) is the same for all columns, so the GEMM multiplies its result by
// it instead. The kernel that produces x can therefore prepare the input of the next GEMM: it writes bf16(x · norm) and the
// sum of squares of each SUMMED columns. The order of these sums is the same in every kernel.

DEVICE float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
DEVICE void store_row4(bf16* dst, float4 v) { *reinterpret_cast<uint2*>(dst) = make_uint2(pack(v.x, v.y), pack(v.z, v.w)); }

constexpr u32 SUMMED = 32;  // columns per sum of squares
// The sum of SUMMED squares, one from each lane.
DEVICE float sum_squares(float x) {
    x = mul_rn(x, x);
#pragma unroll
    for (u32 m = 1; m < SUMMED; m *= 2) x += shuffle_xor(x, m);
    return x;
}
// The same with 8 neighbouring columns in each lane.
DEVICE float sum_squares(const float (&x)[8]) {
    float s[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) s[i] = mul_rn(x[i], x[i]);
    float sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
#pragma unroll
    for (u32 m = 1; m < SUMMED / 8; m *= 2) sum += shuffle_xor(sum, m);
    return sum;
}
// Input of the next GEMM: bf16 rows of n values and, if they are normed, sums [rows][n / SUMMED]. `x` is null if the host did
// not name the next operation.
struct Next {
    const float* norm;  // null: not normed
    bf16* x;
    float* sums;
    u32 n;

    DEVICE_METHOD float weight(u32 c) const { return norm ? norm[c] : 1.f; }
    // Writes column c of row r. A warp holds SUMMED neighbouring columns, one a lane; lanes past the row are not `live`.
    DEVICE_METHOD void put(u32 r, u32 c, float value, float factor, bool live) const {
        if (live) x[u64(r) * n + c] = narrow(value * factor);
        if (!norm) return;
        const float sum = sum_squares(live ? value : 0.f);
        if (live && c % SUMMED == 0) sums[r * (n / SUMMED) + c / SUMMED] = sum;
    }
    // Writes columns c..c+7 of row r; a lane holds 8 columns.
    DEVICE_METHOD void put8(u32 r, u32 c, const float (&value)[8], const float (&factor)[8], bool live) const {
        if (live)
            store16(x + u64(r) * n + c, make_uint4(pack(value[0] * factor[0], value[1] * factor[1]), pack(value[2] * factor[2], value[3] * factor[3]),
                                                   pack(value[4] * factor[4], value[5] * factor[5]), pack(value[6] * factor[6], value[7] * factor[7])));
        if (!norm) return;
        const float sum = sum_squares(value);
        if (live && c % SUMMED == 0) sums[r * (n / SUMMED) + c / SUMMED] = sum;
    }
};
// From the parameters of a kernel that may prepare rows.
#define NEXT(n) Next{next_norm, next_x, next_sums, n}
// mul / rms of a row of n values from its sums of squares. Whole warps call it.
DEVICE float row_factor(const float* sums, u32 n, float eps, float mul) {
    float sum = 0.f;
#pragma unroll 4
    for (u32 i = threadIdx.x & 31; i < n / SUMMED; i += 32) sum += load_fresh1(sums + i);
    return rsqrt_fast(fmaf(warp_sum(sum), rcp_fast(float(n)), eps)) * mul;
}
