// The part of CUDA that the kernels use, for a CPU. Thread blocks run one at a time, and every thread is a fiber. A
// warp-wide operation is executed when its last lane arrives. Asynchronous copies are executed as late as allowed, so
// that a missing wait shows. Shared memory is poisoned before every thread block. Fragment layouts are those of the PTX
// ISA.
//
// Detects: lanes of a warp in different warp-wide operations; barriers that can never open; reads of shared memory that
// was never written (as NaN); unaligned copies, copies that are never committed, and copies outside of shared memory;
// writes past the launch's shared memory.
//
// Does not detect races: thread blocks and warps take turns, so an order that is right by chance stays unnoticed. Does
// not detect a wrong order of launches: a launch ends before the next begins, and wait_for_previous and allow_next do
// nothing. Both show only on a GPU, where `doctor --kernels` runs every operation several times and compares bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __restrict__ __restrict
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emushared")))
#define DEVICE static inline
#define DEVICE_METHOD inline
#define SHARED_BYTES(name) unsigned char* name = emu::dynamic_shared()
#define KERNEL(threads, blocks) extern "C" void

struct dim3 { u32 x, y, z; };
struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {
unsigned char* dynamic_shared();
void barrier();
void spin();
void fail(const char* what);
// Runs `op(slots)` once, when all lanes of the warp have arrived; slots[lane] is the lane's `payload`.
void together(void (*op)(void**), void* payload);
// Queues a copy of 16 bytes to shared memory, zeros if not `valid`.
void copy_queue(void* dst, const void* src, bool valid);
void copy_commit();
void copy_wait(int upto);
void add_kernel(const char* name, void (*run)(void**));

template <class T, class... A, size_t... I> void call(void (*f)(A...), void** args, std::index_sequence<I...>) {
    f(*static_cast<std::remove_reference_t<A>*>(args[I])...);
}
template <class... A> void call(void (*f)(A...), void** args) { call<void>(f, args, std::index_sequence_for<A...>{}); }
struct Registrar {
    Registrar(const char* name, void (*run)(void**)) { add_kernel(name, run); }
};
}  // namespace emu
// Registers a kernel by its name. build.sh appends a line for each kernel of a source.
#define EMU_REGISTER(name) static emu::Registrar registrar_##name(#name, [](void** args) { emu::call(name, args); })

inline void __syncthreads() { emu::barrier(); }
inline void __syncwarp() { emu::together([](void**) {}, nullptr); }
inline void __threadfence() {}
inline float __uint_as_float(u32 x) { float r; memcpy(&r, &x, 4); return r; }
inline u32 __float_as_uint(float x) { u32 r; memcpy(&r, &x, 4); return r; }
inline u32 __popc(u32 x) { return u32(__builtin_popcount(x)); }
inline u32 __umulhi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
inline int __ffs(u32 x) { return __builtin_ffs(int(x)); }
inline u32 atomicAdd(u32* p, u32 x) { u32 old = *p; *p += x; return old; }
inline u32 atomicOr(u32* p, u32 x) { u32 old = *p; *p |= x; return old; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
using std::isnan;

inline u32 emu_round(float x) {
    u32 b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (b + 0x7fffu + ((b >> 16) & 1)) >> 16;
}
inline u32 pack(float lo, float hi) { return emu_round(lo) | emu_round(hi) << 16; }
inline bf16 narrow(float x) { return bf16(emu_round(x)); }
inline float exp2_fast(float x) { return exp2f(x); }
inline float rcp_fast(float x) { return 1.f / x; }
inline float rsqrt_fast(float x) { return 1.f / sqrtf(x); }
inline void sincos_exact(float x, float* s, float* c) { *s = float(sin(double(x))); *c = float(cos(double(x))); }
inline float4 load_fresh(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline float load_fresh1(const float* p) { return *p; }
inline u32 load_host(const u32* p) { return *p; }
inline u32 kept(u32 x) { return x; }
inline u32 all_ones() { return 0xffffffffu; }
typedef unsigned char* SharedAt;
inline SharedAt shared_at(void* p) { return static_cast<SharedAt>(p); }
inline unsigned char* place(SharedAt at) { return at; }
inline void store_shared(u32* p, u32 x) { *p = x; }
inline u32 load_shared(const u32* p) { return *p; }
inline void spin() { emu::spin(); }
inline void wait_for_previous() {}
inline void allow_next() {}
inline void copy_async(void* dst, const void* src, bool valid = true) { emu::copy_queue(dst, src, valid); }
inline void copy_commit() { emu::copy_commit(); }
template <int N> inline void copy_wait() { emu::copy_wait(N); }

typedef float EmuColumn __attribute__((vector_size(64)));
struct EmuMma { float* d; u32 a[4], b[2]; };
inline void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    EmuMma mine{d, {a0, a1, a2, a3}, {b0, b1}};
    emu::together([](void** slots) {
        EmuColumn a[16], sums[8];
        float b[16][8];
        for (int lane = 0; lane < 32; lane++) {
            auto* m = static_cast<EmuMma*>(slots[lane]);
            int g = lane / 4, t = lane % 4;
            for (int r = 0; r < 4; r++) {
                int row = g + (r & 1) * 8, col = 2 * t + (r & 2) * 4;
                a[col][row] = __uint_as_float(m->a[r] << 16);
                a[col + 1][row] = __uint_as_float(m->a[r] & 0xffff0000u);
            }
            for (int r = 0; r < 2; r++) {
                b[2 * t + 8 * r][g] = __uint_as_float(m->b[r] << 16);
                b[2 * t + 8 * r + 1][g] = __uint_as_float(m->b[r] & 0xffff0000u);
            }
        }
        for (int col = 0; col < 8; col++) {
            EmuColumn p[8] = {};
            for (int k = 0; k < 16; k += 8) for (int j = 0; j < 8; j++) p[j] += a[k + j] * b[k + j][col];
            sums[col] = ((p[0] + p[4]) + (p[1] + p[5])) + ((p[2] + p[6]) + (p[3] + p[7]));
        }
        for (int lane = 0; lane < 32; lane++) {
            auto* m = static_cast<EmuMma*>(slots[lane]);
            for (int r = 0; r < 4; r++) m->d[r] += sums[2 * (lane % 4) + (r & 1)][lane / 4 + (r & 2) * 4];
        }
    }, &mine);
}
struct EmuMatrix { u32* r; const void* row; };
inline void load_matrix(u32 (&r)[4], const void* row) {
    EmuMatrix mine{r, row};
    emu::together([](void** slots) {
        for (int lane = 0; lane < 32; lane++) for (int i = 0; i < 4; i++) {
            auto* from = static_cast<const char*>(static_cast<EmuMatrix*>(slots[8 * i + lane / 4])->row);
            memcpy(static_cast<EmuMatrix*>(slots[lane])->r + i, from + 4 * (lane % 4), 4);
        }
    }, &mine);
}
inline void load_matrix_trans(u32 (&r)[4], const void* row) {
    EmuMatrix mine{r, row};
    emu::together([](void** slots) {
        for (int lane = 0; lane < 32; lane++) for (int i = 0; i < 4; i++) {
            auto half = [&](int k) { return u32(static_cast<const bf16*>(static_cast<EmuMatrix*>(slots[8 * i + k])->row)[lane / 4]); };
            static_cast<EmuMatrix*>(slots[lane])->r[i] = half(2 * (lane % 4)) | half(2 * (lane % 4) + 1) << 16;
        }
    }, &mine);
}
struct EmuShuffle { u32 in, out, arg; };
inline u32 emu_shuffle(u32 x, u32 arg, void (*op)(void**)) {
    EmuShuffle mine{x, x, arg};
    emu::together(op, &mine);
    return mine.out;
}
#define EMU_SHUFFLE(x, arg, from)                                                                         \
    emu_shuffle(x, arg, [](void** slots) {                                                                \
        for (u32 lane = 0; lane < 32; lane++) {                                                           \
            auto* s = static_cast<EmuShuffle*>(slots[lane]);                                              \
            s->out = static_cast<EmuShuffle*>(slots[from])->in;                                           \
        }                                                                                                 \
    })
inline float shuffle_xor(float x, u32 mask) { return __uint_as_float(EMU_SHUFFLE(__float_as_uint(x), mask, lane ^ s->arg)); }
inline u32 shuffle_up(u32 x, u32 delta) { return EMU_SHUFFLE(x, delta, lane < s->arg ? lane : lane - s->arg); }
inline u32 shuffle(u32 x, u32 lane_) { return EMU_SHUFFLE(x, lane_, s->arg & 31); }
inline u32 vote(bool x) {
    return emu_shuffle(x, 0, [](void** slots) {
        u32 bits = 0;
        for (u32 lane = 0; lane < 32; lane++) bits |= static_cast<EmuShuffle*>(slots[lane])->in << lane;
        for (u32 lane = 0; lane < 32; lane++) static_cast<EmuShuffle*>(slots[lane])->out = bits;
    });
}
#define EMU_REDUCE(name, expression)                                                                       \
    inline u32 name(u32 x) {                                                                              \
        return emu_shuffle(x, 0, [](void** slots) {                                                       \
            u32 all = static_cast<EmuShuffle*>(slots[0])->in;                                             \
            for (u32 lane = 1; lane < 32; lane++) {                                                       \
                const u32 in = static_cast<EmuShuffle*>(slots[lane])->in;                                 \
                all = expression;                                                                         \
            }                                                                                             \
            for (u32 lane = 0; lane < 32; lane++) static_cast<EmuShuffle*>(slots[lane])->out = all;       \
        });                                                                                               \
    }
EMU_REDUCE(warp_add, all + in)
EMU_REDUCE(warp_least, min(all, in))
EMU_REDUCE(warp_most, max(all, in))
