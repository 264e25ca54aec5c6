// Runs blocks of fibers; see emulator.h.
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

// Saves the callee-saved registers and the stack pointer of one fiber, takes those of another.
extern "C" void emu_switch(void** from, void* to);
asm(".globl emu_switch\n"
    "emu_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "ret\n");

namespace emu {
namespace {
constexpr size_t STACK = 64 << 10;
constexpr u32 MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 227 << 10;

enum class State { Ready, Warp, Block, Spin, Done };
struct Copy { void* dst; const void* src; bool valid; };
struct Fiber {
    void* sp;
    State state;
    dim3 index;
    u64 seen;                             // generation of the warp-wide operation it waits for
    std::vector<std::vector<Copy>> groups;  // committed, oldest first
    std::vector<Copy> open;
};
struct Warp {
    void* slots[32];
    u32 arrived, lanes;
    u64 generation;
    void (*op)(void**);
};

std::map<std::string, void (*)(void**)>& kernels() {
    static std::map<std::string, void (*)(void**)> all;
    return all;
}
Fiber fibers[MAX_THREADS];
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

void yield_as(State state) {
    fibers[current].state = state;
    emu_switch(&fibers[current].sp, scheduler);
}
void finish(Fiber& f, size_t keep) {
    while (f.groups.size() > keep) {
        for (auto& c : f.groups.front()) c.valid ? memcpy(c.dst, c.src, 16) : memset(c.dst, 0, 16);
        f.groups.erase(f.groups.begin());
    }
}
void entry() {
    body(body_args);
    if (!fibers[current].open.empty()) fail("a copy was never committed");
    yield_as(State::Done);
    abort();
}
bool resume(u32 i) {
    Fiber& f = fibers[i];
    if (f.state == State::Warp && warps[i / 32].generation != f.seen) f.state = State::Ready;
    if (f.state != State::Ready) return false;
    current = i;
    threadIdx = f.index;
    in_fiber = true;
    emu_switch(&scheduler, f.sp);
    in_fiber = false;
    return true;
}
void run_block() {
    memset(shared, 0xff, MAX_SHARED);
    if (__start_emushared) memset(__start_emushared, 0xff, size_t(__stop_emushared - __start_emushared));
    for (u32 i = 0; i < threads; i++) {
        Fiber& f = fibers[i];
        auto* top = reinterpret_cast<void**>(stacks + (i + 1) * STACK);
        top[-2] = reinterpret_cast<void*>(entry);  // leaves the stack as after a call
        f.sp = top - 8;
        f.state = State::Ready;
        f.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        f.groups.clear();
        f.open.clear();
    }
    for (u32 w = 0; w * 32 < threads; w++) warps[w] = {{}, 0, min(32u, threads - w * 32), warps[w].generation, nullptr};
    for (u32 looks = 0;;) {
        bool any = false;
        for (u32 w = 0; w * 32 < threads; w++)
            for (bool ran = true; ran;) {
                ran = false;
                for (u32 i = w * 32; i < min(threads, w * 32 + 32); i++) {
                    ran |= resume(i);
                    if (failed) return;
                }
                any |= ran;
            }
        u32 done = 0, waiting = 0;
        for (u32 i = 0; i < threads; i++) {
            done += fibers[i].state == State::Done;
            waiting += fibers[i].state == State::Block;
        }
        if (done == threads) return;
        // Who looks again and again lets everybody else go first.
        bool spinning = false;
        for (u32 i = 0; i < threads; i++)
            if (fibers[i].state == State::Spin) fibers[i].state = State::Ready, spinning = true;
        if (spinning && ++looks < 1'000'000) continue;
        if (spinning) {
            fail("a warp looks for what never comes");
            return;
        }
        if (done + waiting == threads) {
            for (u32 i = 0; i < threads; i++)
                if (fibers[i].state == State::Block) fibers[i].state = State::Ready;
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
    if (in_fiber) emu_switch(&fibers[current].sp, scheduler);  // abandons the block
}
unsigned char* dynamic_shared() { return shared; }
void barrier() { yield_as(State::Block); }
void spin() { yield_as(State::Spin); }
void together(void (*op)(void**), void* payload) {
    Warp& w = warps[current / 32];
    if (w.arrived && w.op != op) fail("lanes of a warp are in different warp-wide operations");
    w.op = op;
    w.slots[current % 32] = payload;
    if (++w.arrived == w.lanes) {
        op(w.slots);
        w.arrived = 0;
        w.generation++;
        return;
    }
    fibers[current].seen = w.generation;
    yield_as(State::Warp);
}
void copy_queue(void* dst, const void* src, bool valid) {
    auto* d = static_cast<unsigned char*>(dst);
    if ((uintptr_t(dst) | uintptr_t(src)) & 15) fail("a copy is not aligned");
    if (d < shared || d + 16 > shared + MAX_SHARED) fail("a copy does not go to shared memory");
    fibers[current].open.push_back({dst, src, valid});
}
void copy_commit() {
    Fiber& f = fibers[current];
    f.groups.push_back(std::move(f.open));
    f.open.clear();
}
void copy_wait(int upto) { finish(fibers[current], size_t(upto)); }
void add_kernel(const char* name, void (*run)(void**)) { kernels()[name] = run; }
}  // namespace emu

// What went wrong in the last launch that did not return 0.
extern "C" const char* sala_emulator_error() { return emu::message; }

// 0: done. Not to be called from two threads at a time.
extern "C" int sala_emulator_launch(const char* name, const u32* grid, const u32* block, u32 shared_bytes, void** args) {
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
        shared = static_cast<unsigned char*>(aligned_alloc(4096, MAX_SHARED + 4096)) ;
    }
    body = found->second;
    body_args = args;
    body_name = found->first.c_str();
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    // What lies behind the shared memory that was asked for must stay untouched.
    unsigned char* end = shared + shared_bytes;
    size_t guard = MAX_SHARED + 4096 - shared_bytes;
    for (u32 z = 0; z < grid[2]; z++)
        for (u32 y = 0; y < grid[1]; y++)
            for (u32 x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                memset(end, 0xff, min<size_t>(guard, 4096));
                run_block();
                if (failed) return 3;
                for (size_t i = 0; i < min<size_t>(guard, 4096); i++)
                    if (end[i] != 0xff) {
                        fail("wrote behind its shared memory");
                        return 3;
                    }
            }
    return 0;
}
