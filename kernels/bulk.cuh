// Copies of array tiles into shared memory by the copy engine (compute capability 9.0 and newer): one thread requests a box, and
// a barrier counts its bytes as they arrive. On other devices BULK is false and no kernel calls these.
#pragma once
#include "common.cuh"

// The driver's descriptor of an array (src/backend/cuda/driver.rs, `TileMap`).
struct alignas(64) TensorMap {
    u64 words[16];
    // All zeros: the kernel does not use the copy engine.
    DEVICE_METHOD bool given() const {
        u64 any = 0;
        for (u32 i = 0; i < 16; i++) any |= words[i];
        return any != 0;
    }
};

#if !defined(SALA_EMULATOR) && __CUDA_ARCH__ >= 900
constexpr bool BULK = true;
DEVICE void barrier_init(u64* barrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory"); }
// Makes this thread's new barriers visible to the copy engine.
DEVICE void barriers_made() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The current phase ends when `bytes` more bytes have arrived; with 0 bytes, at once.
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of a phase that has begun. Phases of a barrier count from 0; `phase` is the lowest bit of the number.
DEVICE void barrier_wait(u64* barrier, u32 phase) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
// Requests one box of an array.
DEVICE void bring_box(void* shared, const TensorMap& map, u32 column, u32 row, u32 tile, u32 array, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
                 "l"(&map), "r"(column), "r"(row), "r"(tile), "r"(array), "r"(shared_address(barrier))
                 : "memory");
}
#else
constexpr bool BULK = false;
DEVICE void barrier_init(u64*) {}
DEVICE void barriers_made() {}
DEVICE void barrier_expect(u64*, u32) {}
DEVICE void barrier_wait(u64*, u32) {}
DEVICE void bring_box(void*, const TensorMap&, u32, u32, u32, u32, u64*) {}
#endif
