// Runs a launch on the CPU, one thread block after another, each CUDA thread a fiber; see emulator.h.
typedef unsigned short bf16;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#include "emulator.h"
#include <map>
#include <string>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator's fiber switch is written for x86-64"
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;
extern "C" unsigned char __start_emushared[] __attribute__((weak)), __stop_emushared[] __attribute__((weak));

// Saves the callee-saved registers and the stack pointer of one fiber and resumes another where it called this
// function. It resumes with a jump: the lanes of a warp resume at the same address one after another, which the branch
// predictor learns, while a `ret` would be predicted to return to the last call.
void emu_switch(void** from, void* to) asm("emu_switch");
asm(".globl emu_switch\n"
    ".hidden emu_switch\n"
    "emu_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "pop %rcx\n"
    "jmp *%rcx\n");

namespace emu {
namespace {
// Bytes of a fiber's stack. Not a power of two, so that the tops of a warp's stacks are in different sets of a cache.
constexpr size_t STACK = (64 << 10) + 9 * 64;
constexpr u32 MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 227 << 10, GUARD = 4096;

struct Copy { void* dst; const void* src; bool valid; };
// Asynchronous copies of a thread that have not been executed.
struct Copies {
    std::vector<Copy> list;    // oldest first
    std::vector<size_t> ends;  // end in `list` of each committed group
};
// Lanes of a warp as bit masks: runnable (`ready`), waiting at the barrier of the thread block (`block`), polling
// (`spin`), finished (`done`). All others wait for a warp-wide operation.
struct Warp {
    void* slots[32];
    void (*op)(void**);
    u32 arrived, lanes, all, ready, block, spin, done;
};

std::map<std::string, void (*)(void**)>& kernels() {
    static std::map<std::string, void (*)(void**)> all;
    return all;
}
void* stack_pointers[MAX_THREADS];
dim3 indices[MAX_THREADS];
Copies copies[MAX_THREADS];
Warp warps[MAX_THREADS / 32];
unsigned char* stacks;
unsigned char* shared;
void* scheduler;
u32 current, threads;
void (*body)(void**);
void** body_args;
const char* body_name = "";
char message[512];
bool failed, in_fiber;

inline void take(u32 thread) {
    current = thread;
    threadIdx = indices[thread];
}
// Resumes the next runnable lane of the warp, or the scheduler if there is none.
inline void pass_on(const Warp& w) {
    void** mine = &stack_pointers[current];
    if (!w.ready) return emu_switch(mine, scheduler);
    const u32 later = w.ready & ~0u << current % 32;  // the lane itself is not ready
    take(current / 32 * 32 + u32(__builtin_ctz(later ? later : w.ready)));
    emu_switch(mine, stack_pointers[current]);
}
// Moves the current lane from `ready` to another mask and switches to the next lane.
void leave(u32 Warp::*why) {
    Warp& w = warps[current / 32];
    const u32 bit = 1u << current % 32;
    w.ready &= ~bit;
    w.*why |= bit;
    pass_on(w);
}
void entry() {
    body(body_args);
    const Copies& c = copies[current];
    if (c.list.size() > (c.ends.empty() ? 0 : c.ends.back())) fail("a copy was never committed");
    leave(&Warp::done);
    abort();
}
void run_block(size_t shared_bytes) {
    memset(shared, 0xff, shared_bytes + GUARD);
    if (__start_emushared) memset(__start_emushared, 0xff, size_t(__stop_emushared - __start_emushared));
    for (u32 i = 0; i < threads; i++) {
        auto* top = reinterpret_cast<void**>(stacks + (i + 1) * STACK);
        top[-2] = reinterpret_cast<void*>(entry);  // the stack is aligned as after a call
        stack_pointers[i] = top - 8;
        indices[i] = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        copies[i].list.clear();
        copies[i].ends.clear();
    }
    const u32 n = (threads + 31) / 32;
    for (u32 w = 0; w < n; w++) {
        const u32 lanes = min(32u, threads - w * 32), all = ~0u >> (32 - lanes);
        warps[w] = {{}, nullptr, 0, lanes, all, all, 0, 0, 0};
    }
    for (u32 looks = 0;;) {
        bool any = false, spinning = false, all_wait = true, all_done = true;
        for (u32 w = 0; w < n; w++)
            if (warps[w].ready) {
                any = true;
                take(w * 32 + u32(__builtin_ctz(warps[w].ready)));
                in_fiber = true;
                emu_switch(&scheduler, stack_pointers[current]);  // returns when no lane of the warp is runnable
                in_fiber = false;
                if (failed) return;
            }
        for (u32 i = 0; i < n; i++) {
            Warp& w = warps[i];
            all_done &= w.done == w.all;
            all_wait &= (w.done | w.block) == w.all;
            // Polling lanes run again after all others.
            spinning |= w.spin != 0;
            w.ready |= w.spin;
            w.spin = 0;
        }
        if (all_done) return;
        if (spinning && ++looks < 1'000'000) continue;
        if (spinning) {
            fail("a warp waits for a signal that no warp sends");
            return;
        }
        if (all_wait) {
            for (u32 w = 0; w < n; w++) warps[w].ready = warps[w].block, warps[w].block = 0;
        } else if (!any) {
            fail("some lanes wait for others that never come");
            return;
        }
    }
}
}  // namespace

void fail(const char* what) {
    snprintf(message, sizeof message, "%s, block (%u, %u, %u) thread %u: %s", body_name, blockIdx.x, blockIdx.y, blockIdx.z, current, what);
    failed = true;
    if (in_fiber) emu_switch(&stack_pointers[current], scheduler);  // abandons the thread block
}
unsigned char* dynamic_shared() { return shared; }
void barrier() { leave(&Warp::block); }
void spin() { leave(&Warp::spin); }
void together(void (*op)(void**), void* payload) {
    Warp& w = warps[current / 32];
    if (w.arrived && w.op != op) fail("lanes of a warp are in different warp-wide operations");
    w.op = op;
    w.slots[current % 32] = payload;
    if (++w.arrived == w.lanes) {
        op(w.slots);
        w.arrived = 0;
        w.ready = w.all;
        return;
    }
    w.ready &= ~(1u << current % 32);
    pass_on(w);
}
void copy_queue(void* dst, const void* src, bool valid) {
    auto* d = static_cast<unsigned char*>(dst);
    if ((uintptr_t(dst) | uintptr_t(src)) & 15) fail("a copy is not aligned");
    if (d < shared || d + 16 > shared + MAX_SHARED) fail("a copy does not go to shared memory");
    copies[current].list.push_back({dst, src, valid});
}
void copy_commit() { copies[current].ends.push_back(copies[current].list.size()); }
void copy_wait(int upto) {
    Copies& c = copies[current];
    if (c.ends.size() <= size_t(upto)) return;
    const size_t groups = c.ends.size() - size_t(upto), n = c.ends[groups - 1];
    for (size_t i = 0; i < n; i++) c.list[i].valid ? memcpy(c.list[i].dst, c.list[i].src, 16) : memset(c.list[i].dst, 0, 16);
    c.list.erase(c.list.begin(), c.list.begin() + n);
    c.ends.erase(c.ends.begin(), c.ends.begin() + groups);
    for (size_t& end : c.ends) end -= n;
}
void add_kernel(const char* name, void (*run)(void**)) { kernels()[name] = run; }
}  // namespace emu

// Message of the last launch that did not return 0.
extern "C" __attribute__((visibility("default"))) const char* sala_emulator_error() { return emu::message; }

// Runs a launch to its end. Returns 0, or else 1 for an unknown kernel, 2 for a configuration that no device accepts, 3
// for a fault in the kernel. args: pointers to the kernel's parameters. Not thread-safe.
extern "C" __attribute__((visibility("default"))) int sala_emulator_launch(const char* name, const u32* grid, const u32* block, u32 shared_bytes, void** args) {
    using namespace emu;
    auto found = kernels().find(name);
    failed = false;
    if (found == kernels().end()) {
        snprintf(message, sizeof message, "no kernel %s", name);
        return 1;
    }
    threads = block[0] * block[1] * block[2];
    if (threads == 0 || threads > MAX_THREADS || shared_bytes > MAX_SHARED || !grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) {
        snprintf(message, sizeof message, "%s: no device takes grid (%u, %u, %u), %u threads, %u shared bytes", name, grid[0], grid[1], grid[2], threads, shared_bytes);
        return 2;
    }
    if (!stacks) {
        stacks = static_cast<unsigned char*>(aligned_alloc(4096, STACK * MAX_THREADS));
        shared = static_cast<unsigned char*>(aligned_alloc(4096, MAX_SHARED + GUARD));
    }
    body = found->second;
    body_args = args;
    body_name = found->first.c_str();
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    // The bytes after the launch's shared memory must stay untouched.
    unsigned char* end = shared + shared_bytes;
    memset(end, 0xff, MAX_SHARED + GUARD - shared_bytes);
    for (u32 z = 0; z < grid[2]; z++)
        for (u32 y = 0; y < grid[1]; y++)
            for (u32 x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                run_block(shared_bytes);
                if (failed) return 3;
                for (size_t i = 0; i < GUARD; i++)
                    if (end[i] != 0xff) {
                        fail("wrote past the end of its shared memory");
                        return 3;
                    }
            }
    return 0;
}
