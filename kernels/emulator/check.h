// Helpers of check.cpp: fenced buffers, random values, launches, comparisons.
#pragma once
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

extern "C" int sala_emulator_launch(const char*, const u32*, const u32*, u32, void**);
extern "C" const char* sala_emulator_error();
extern "C" void* sala_gpu_alloc(size_t);  // gpu.cpp

inline std::mt19937 rng(7);
inline int failures = 0;

inline float widen(bf16 x) { u32 b = u32(x) << 16; float f; memcpy(&f, &b, 4); return f; }
inline bf16 narrow(float x) {
    u32 b;
    memcpy(&b, &x, 4);
    return (b & 0x7fffffff) > 0x7f800000 ? 0x7fff : bf16((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline float round16(double x) { return widen(narrow(float(x))); }

// Device memory: starts as NaN, ends where the next page faults.
template <class T> struct Buf {
    T* p;
    size_t n;
    explicit Buf(size_t n) : n(n) {
#ifdef SALA_GPU
        p = static_cast<T*>(sala_gpu_alloc(n * sizeof(T) + 16));
        poison();
        return;
#endif
        size_t bytes = (n * sizeof(T) + 15) / 16 * 16, room = (bytes + 4095) / 4096 * 4096;
        char* at = static_cast<char*>(mmap(nullptr, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(at + room, 4096, PROT_NONE);
        p = reinterpret_cast<T*>(at + room - bytes);
        memset(p, 0xff, bytes);
    }
    T& operator[](size_t i) { return p[i]; }
    const T& operator[](size_t i) const { return p[i]; }
    Buf& normal(float std) {
        std::normal_distribution<float> d(0, std);
        for (size_t i = 0; i < n; i++) set(i, d(rng));
        return *this;
    }
    void set(size_t i, float x) { if constexpr (sizeof(T) == 2) p[i] = narrow(x); else p[i] = T(x); }
    double at(size_t i) const { if constexpr (sizeof(T) == 2) return widen(p[i]); else return double(p[i]); }
    void poison() { memset(p, 0xff, n * sizeof(T)); }
    std::vector<T> copy() const { return std::vector<T>(p, p + n); }
};
template <class T> bool same_bits(const std::vector<T>& a, const T* b) { return memcmp(a.data(), b, a.size() * sizeof(T)) == 0; }

// Arguments as a kernel takes them. Structures on the stack are for the emulator alone: a GPU gets a copy it can reach.
struct Step { u32 position, pending, slot, reserved; };
struct DraftStep { u32 position, first, reserved[2]; };
template <class A> A reach(A a) {
#ifdef SALA_GPU
    if constexpr (std::is_same_v<A, const Step*> || std::is_same_v<A, const DraftStep*>) {
        static void* copy = sala_gpu_alloc(sizeof *a);
        return static_cast<A>(memcpy(copy, a, sizeof *a));
    }
#endif
    return a;
}

template <class... A> void launch(const std::string& name, std::array<u32, 3> grid, u32 threads, u32 shared, A... args) {
    ((args = reach(args)), ...);
    void* list[] = {static_cast<void*>(&args)...};
    u32 block[3] = {threads, 1, 1};
    if (sala_emulator_launch(name.c_str(), grid.data(), block, shared, list)) {
        printf("FAIL %s: %s\n", name.c_str(), sala_emulator_error());
        exit(1);
    }
}

// Largest difference relative to the largest value; NaN counts as infinite.
struct Error {
    double worst = 0, size = 0;
    void add(double got, double want) {
        double d = std::fabs(got - want);
        if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
        size = std::max(size, std::fabs(want));
    }
    double relative() const { return worst / (size > 0 ? size : 1); }
};
inline void check(const std::string& what, bool good, const std::string& detail = "") {
    printf("%s %s %s\n", good ? "ok  " : "FAIL", what.c_str(), detail.c_str());
    failures += !good;
}
inline void check(const std::string& what, const Error& e, double limit) {
    char text[80];
    snprintf(text, sizeof text, "relative error %.2e (limit %.0e)", e.relative(), limit);
    check(what, e.relative() <= limit, text);
}
