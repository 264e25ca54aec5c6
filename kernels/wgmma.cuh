// Asynchronous tensor-core products of a warpgroup (four warps) on Hopper with operands in shared memory, and barriers for the
// copy engine in addition to bulk.cuh. Compute capability 9.0 only (sm_90a).
//
// D [64, N] f32 += A [64, 16] · B [16, N]. Warp w of the warpgroup has rows 16w..16w+15 of A and D, in the layout of `mma`
// (common.cuh). B is stored [N][k] in panels of 64 values of k: a row of a panel is 128 bytes, swizzled by the copy engine, and a
// panel begins at a multiple of 1024 bytes.
#pragma once
#include "bulk.cuh"

#if !defined(SALA_EMULATOR) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEVICE void barrier_init(u64* barrier, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory"); }
DEVICE void barrier_arrive(u64* barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory"); }
// Requests a copy of `bytes` bytes; addresses and size are multiples of 16.
DEVICE void bring_bytes(void* shared, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)), "l"(from), "r"(bytes),
                 "r"(shared_address(barrier))
                 : "memory");
}

// Sets the registers of each thread of a warpgroup. The sum over the block may not exceed the number at launch.
template <u32 N> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <u32 N> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// Descriptor of a panel at an address in shared memory; columns from k on begin 2·k bytes later (k / 8 in the descriptor).
DEVICE u64 panel_at(u32 shared) { return u64(shared >> 4 & 0x3fff) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62; }
// Write the registers that products read or add to before this call, and not again before `products_wait`.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D64 D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// With `add` 0 the product overwrites D, for the first product of a sum: writing zeros to D between products in flight would make
// the compiler run them one by one. A in registers.
DEVICE void product(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, u32 add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" D32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0; }"
                 : D8(0), D8(8), D8(16), D8(24) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}
DEVICE void product(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, u32 add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" D64 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 0; }"
                 : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}
// A in shared memory, in panels as B.
DEVICE void product(float (&d)[32], u64 a, u64 b, u32 add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" D32 "}, %32, %33, add, 1, 1, 0, 0; }" : D8(0), D8(8), D8(16), D8(24) : "l"(a), "l"(b), "r"(add));
}
DEVICE void product(float (&d)[64], u64 a, u64 b, u32 add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" D64 "}, %64, %65, add, 1, 1, 0, 0; }"
                 : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56) : "l"(a), "l"(b), "r"(add));
}
#undef D8
#undef D32
#undef D64
#endif
