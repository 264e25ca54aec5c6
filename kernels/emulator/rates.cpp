// Rates of the kernels on a real GPU at the 9B model's shapes, and of a whole decode step as one graph of overlapping launches.
// Fake weights; the arithmetic is checked elsewhere (check.cpp). Prints microseconds and GB/s or TFLOP/s.
#include <cuda.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;
extern "C" void* sala_gpu_device_alloc(size_t);
CUfunction find_kernel(const char*, unsigned);

static CUstream stream;
static u32 sms;
static void must(CUresult r, const char* what) {
    if (r != CUDA_SUCCESS) {
        const char* words = "unknown";
        cuGetErrorString(r, &words);
        printf("FAIL %s: %s\n", what, words), fflush(stdout), exit(1);
    }
}
static bool overlap = true;
static std::string only;  // launch nothing else
template <class... A> void go(const std::string& name, u32 gx, u32 gy, u32 gz, u32 threads, u32 shared, A... args) {
    if (!only.empty() && only != name) return;
    CUfunction f = find_kernel(name.c_str(), shared);
    if (!f) printf("FAIL no kernel %s\n", name.c_str()), exit(1);
    void* list[] = {static_cast<void*>(&args)...};
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {gx, gy, gz, threads, 1, 1, shared, stream, overlap ? &attribute : nullptr, overlap ? 1u : 0u};
    must(cuLaunchKernelEx(&config, f, list, nullptr), name.c_str());
}
template <class T> T* device(size_t n) { return static_cast<T*>(sala_gpu_device_alloc(n * sizeof(T))); }
static u32 up(u32 a, u32 b) { return (a + b - 1) / b; }

// Best of a few runs of `body`, as a graph where `graph`; microseconds.
static double timed(const std::function<void()>& body, bool graph, int repeat = 1) {
    CUgraphExec exec = nullptr;
    if (graph) {
        CUgraph g;
        must(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capture");
        body();
        must(cuStreamEndCapture(stream, &g), "capture");
        must(cuGraphInstantiate(&exec, g, 0), "instantiate");
    }
    CUevent a, b;
    cuEventCreate(&a, 0), cuEventCreate(&b, 0);
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        cuEventRecord(a, stream);
        for (int j = 0; j < repeat; j++) graph ? must(cuGraphLaunch(exec, stream), "graph") : body();
        cuEventRecord(b, stream);
        must(cuEventSynchronize(b), "timing");
        float ms;
        cuEventElapsedTime(&ms, a, b);
        if (i) best = std::min(best, ms * 1000.0 / repeat);
    }
    return best;
}

struct Skinny { void* dst; u32 ldd; const bf16* w; u32 out, inner; const void* src; u32 lds, mode; const float* norm; const bf16* gate; u32 ldg; float scale; };
// What may be tried: stages of the ring.
static u32 force_stages = 0;
static void skinny(const char* to, const Skinny& s, u32 rows) {
    u32 tile = 32, parts = rows <= 8 ? 8192 : 16384, room = 232448;
    u32 fixed = parts + (s.mode ? rows * (s.inner + 32) * 2 : 0), stage = tile * 1024 + (s.mode ? 0 : parts), stages = std::min(6u, std::max(2u, (room - std::min(room, fixed)) / stage));
    if (force_stages) stages = force_stages;
    u32 tiles = up(s.out, tile), even = up(tiles, up(tiles, sms)), blocks = even * 10 >= sms * 9 ? even : std::min(tiles, sms);
    go(std::string("skinny_") + to + (rows <= 8 ? "_8" : "_16"), blocks, 1, 1, 256, stages * stage + fixed, s.dst, s.ldd, s.w, s.out, s.inner, s.src, s.lds,
       s.mode, s.norm, 1e-6f, 1.f, s.gate, s.ldg, s.scale, rows, stages);
}

int main() {
    sala_gpu_device_alloc(1);
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    int n;
    cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    sms = u32(n);
    const u32 H = 4096, I = 16384, V = 73448, heads = 32, kv = 2, layers = 32, limit = 1 << 20;
    const size_t per_layer = size_t(16384) * H + size_t(H) * H + size_t(2 * I) * H + size_t(H) * I;
    auto* w = device<bf16>(per_layer * layers + size_t(V) * H);
    go("random_bf16", u32((per_layer * layers + size_t(V) * H + 1023) / 1024), 1, 1, 256, 0, w, u64(per_layer * layers + size_t(V) * H), 0.02f, u64(1));
    auto *x = device<bf16>(16 * 16384), *act = device<bf16>(16 * I), *scratch = device<bf16>(16 * I);
    auto *h = device<float>(16 * H), *o = device<float>(16 * H), *norm = device<float>(16384), *logits = device<float>(16 * size_t(V));
    cuMemsetD8(CUdeviceptr(x), 0, 16 * 16384 * 2), cuMemsetD8(CUdeviceptr(act), 0, 16 * I * 2);
    std::vector<float> noise(16 * H);
    for (auto& f : noise) f = float(std::sin(double(&f - noise.data()) * 1.7) * 3);
    must(cuMemcpyHtoD(CUdeviceptr(h), noise.data(), noise.size() * 4), "h"), must(cuMemcpyHtoD(CUdeviceptr(o), noise.data(), noise.size() * 4), "o");
    go("fill_f32", 16, 1, 1, 256, 0, norm, u64(16384), 1.f);
    auto* step = device<u32>(4);
    auto *k = device<bf16>(size_t(limit) * 256), *v = device<bf16>(size_t(limit) * 256), *k1 = device<bf16>(size_t(limit / 16) * 256), *k2 = device<bf16>(size_t(limit / 64) * 256);
    for (auto [p, m] : {std::pair<bf16*, size_t>{k, size_t(limit) * 256}, {v, size_t(limit) * 256}, {k1, size_t(limit / 16) * 256}, {k2, size_t(limit / 64) * 256}})
        go("random_bf16", u32((m + 1023) / 1024), 1, 1, 256, 0, p, u64(m), 1.f, u64(2));
    const u32 cap = 96, splits = up(cap, 2), lse_splits = limit / 64 / 256, score_blocks = limit / 64;
    auto *lse = device<float>(16 * heads * lse_splits * 2), *part_o = device<float>(size_t(16) * heads * splits * 128), *part_ml = device<float>(16 * heads * splits * 2);
    auto *scores = device<bf16>(16 * kv * score_blocks);
    auto *list = device<u32>(16 * kv * cap), *count = device<u32>(16 * kv);
    auto *state = device<float>(size_t(24) * heads * 128 * 128), *slopes = device<float>(heads), *rope = device<float>(16 * 128), *qn = device<float>(128);
    auto *pk = device<bf16>(size_t(24) * 2 * 16 * heads * 128), *pv = device<bf16>(size_t(24) * 2 * 16 * heads * 128);
    for (auto* p : {slopes, rope, qn}) cuMemsetD8(CUdeviceptr(p), 0, 128);
    cuMemsetD8(CUdeviceptr(state), 0, size_t(24) * heads * 128 * 128 * 4);
    const u32 cand = up(V, 2048);
    auto *cl = device<float>(16 * cand * 2), *found = device<float>(16 * 516);
    auto* tops = device<u32>(16 * up(V, 32));
    auto at = [&](u32 position, u32 pending) {
        u32 s[4] = {position, pending, 0, 0};
        must(cuMemcpyHtoD(CUdeviceptr(step), s, 16), "step");
        must(cuCtxSynchronize(), "step");
    };
    std::vector<float> some(size_t(16) * V);
    for (size_t i = 0; i < some.size(); i++) some[i] = float(std::sqrt(-2 * std::log((double(i * 7919 % 100003) + 1) / 100004)) * std::sin(double(i) * 1.7) * 3);
    must(cuMemcpyHtoD(CUdeviceptr(logits), some.data(), some.size() * 4), "logits");
    at(4096, 1);
    const float scale = 0.088388f;
    auto* sums = device<float>(8 * sms);
    {
        const u64 words = per_layer * 8 * 2 / 16;
        double us = timed([&] { go("measure_read", 8 * sms, 1, 1, 512, 0, sums, (const void*)w, words); }, false);
        printf("read ceiling            %8.1f us %7.0f GB/s\n", us, words * 16 / us / 1e3);
    }
    auto mixer = [&](u32 layer, bool sparse, u32 rows) {  // everything between the first product and the output product
        if (sparse) {
            const u32 ldx = 8704;
            go("append_kv", rows, kv, 1, 128, 0, k, v, k1, k2, (const bf16*)x + 4096, (const bf16*)x + 4352, ldx, (const void*)step, kv, rows);
            go("select_lse", lse_splits, kv, rows, 128, 65536, lse, (const bf16*)x, ldx, (const bf16*)k2, 128u, 64u, (const void*)step, heads, kv, scale, rows, lse_splits, 96u);
            go("select_scores", up(score_blocks, 64), kv, rows, 128, 67584, scores, (const float*)lse, (const bf16*)x, ldx, (const bf16*)k1, 128u, 64u, (const void*)step, heads, kv,
               scale, rows, lse_splits, score_blocks, 96u);
            go("select_top", kv, rows, 1, 512, 0, list, count, (const bf16*)scores, (const void*)step, kv, score_blocks, cap, 1u, 32u, 96u, 0u, 0u, rows);
            go("attend_verify", splits, kv, rows, 128, 34816, part_o, part_ml, (const bf16*)x, ldx, (const bf16*)k, (const bf16*)v, (const u32*)list, (const u32*)count, cap,
               (const void*)step, heads, kv, scale, rows, splits);
            go("attend_combine", heads, rows, 1, 128, 0, o, H, (const float*)part_o, (const float*)part_ml, (const u32*)count, heads, kv, rows, splits);
        } else {
            const size_t s = size_t(layer % 24);
            go("lightning_verify", 4, heads, 1, 128, 0, o, H, (const bf16*)x, 16384u, 0u, 4096u, 8192u, (const float*)qn, (const float*)qn, (const float*)rope,
               state + s * heads * 16384, pk + s * 2 * 16 * heads * 128, pv + s * 2 * 16 * heads * 128, (const float*)slopes, (const void*)step, heads, heads, scale, 1e-6f, rows);
        }
    };
    auto is_sparse = [](u32 i) { return i == 0 || i == 9 || i == 16 || i == 17 || i == 22 || i == 29 || i == 30 || i == 31; };
    auto product = [&](const char* to, Skinny s, u32 rows) {
        if (s.mode && rows > 2) {
            if (s.mode == 1) go("norm_rows", rows, 1, 1, 256, 0, scratch, s.inner, s.src, s.lds, s.norm, s.inner, 1e-6f, 1.f, rows);
            else go("gate_rows", rows, 1, 1, 256, 0, scratch, s.inner, s.src, s.lds, s.norm, 1e-6f, s.gate, s.ldg, s.inner, rows);
            s.src = scratch, s.lds = s.inner, s.mode = 0, s.norm = nullptr;
        }
        skinny(to, s, rows);
    };
    auto decode = [&](u32 rows) {
        for (u32 i = 0; i < layers; i++) {
            const bf16* m = w + per_layer * i;
            const bool sparse = is_sparse(i);
            const u32 out = sparse ? 8704 : 16384;
            product("store", {x, out, m, out, H, h, H, 1, norm, nullptr, 0, 1.f}, rows);
            mixer(i, sparse, rows);
            product("add", {h, H, m + size_t(16384) * H, H, H, o, H, 2, sparse ? nullptr : norm, x + out - H, out, 0.25f}, rows);
            product("swiglu", {act, I, m + size_t(16384 + 4096) * H, 2 * I, H, h, H, 1, norm, nullptr, 0, 1.f}, rows);
            product("add", {h, H, m + size_t(16384 + 4096 + 2 * I) * H, H, I, act, I, 0, nullptr, nullptr, 0, 0.25f}, rows);
        }
        product("logits", {logits, V, w + per_layer * layers, V, H, h, H, 1, norm, nullptr, 0, 1.f}, rows);
        go("candidates_tops", cand, rows, 1, 256, 0, tops, cl, (const float*)logits, V, V, 32u, rows, cand);
        go("candidates_pick", rows, 1, 1, 1024, (V + 31) / 32 * 8, found, (const u32*)tops, (const float*)cl, (const float*)logits, V, V, 32u, rows, cand);
    };
    // Each product alone, a different layer's weight every time so that nothing stays in level 2.
    struct Shape { const char *name, *to; u32 out, inner, mode; size_t offset; };
    for (u32 rows : {1u, 8u, 16u})
        for (Shape s : {Shape{"qkvz 16384x4096", "store", 16384, H, 1, 0}, {"qkvg 8704x4096", "store", 8704, H, 1, 0}, {"out 4096x4096", "add", H, H, 2, size_t(16384) * H},
                        {"gate_up 32768x4096", "swiglu", 2 * I, H, 1, size_t(20480) * H}, {"down 4096x16384", "add", H, I, 0, size_t(20480 + 2 * I) * H}}) {
            double us = timed([&] {
                for (u32 i = 0; i < layers; i++)
                    product(s.to, {s.to[0] == 'a' ? (void*)h : s.to[1] == 'w' ? (void*)act : x, s.to[0] == 'a' ? H : s.to[1] == 'w' ? I : s.out, w + per_layer * i + s.offset, s.out,
                                   s.inner, s.mode == 2 ? (void*)o : s.mode == 1 ? (void*)h : act, s.inner, s.mode, norm, s.mode == 2 ? x : nullptr, 16384, 0.25f}, rows);
            }, true) / layers;
            printf("%-20s x%-2u  %8.1f us %7.0f GB/s\n", s.name, rows, us, 2.0 * s.out * s.inner / us / 1e3);
        }
    for (u32 position : {4095u, 131071u, 1048000u}) {
        at(position, 1);
        double us = timed([&] { for (u32 i = 0; i < 8; i++) mixer(i, true, 1); }, true) / 8;
        printf("sparse mixer at %-8u %7.1f us\n", position, us);
    }
    for (u32 rows : {1u, 8u}) printf("lightning mixer x%u      %8.1f us\n", rows, timed([&] { for (u32 i = 0; i < 24; i++) mixer(i, false, rows); }, true) / 24);
    at(4095, 1);
    printf("sparse mixer x8 at 4095  %8.1f us\n", timed([&] { for (u32 i = 0; i < 8; i++) mixer(i, true, 8); }, true) / 8);
    at(131071, 1);
    printf("sparse mixer x8 at 128K  %8.1f us\n", timed([&] { for (u32 i = 0; i < 8; i++) mixer(i, true, 8); }, true) / 8);
    for (u32 rows : {1u, 8u}) {
        auto top = [&] {
            go("candidates_tops", cand, rows, 1, 256, 0, tops, cl, (const float*)logits, V, V, 32u, rows, cand);
            go("candidates_pick", rows, 1, 1, 1024, (V + 31) / 32 * 8, found, (const u32*)tops, (const float*)cl, (const float*)logits, V, V, 32u, rows, cand);
        };
        printf("candidates x%u           %8.1f us", rows, timed(top, true));
        only = "candidates_tops", printf(", tops %.1f", timed(top, true));
        only = "candidates_pick", printf(", pick %.1f\n", timed(top, true)), only = "";
    }
    for (const char* one : {"append_kv", "select_lse", "select_scores", "select_top", "attend_verify", "attend_combine"}) {
        only = one;
        at(131071, 1);
        printf("  %-16s at 128K %6.1f us", one, timed([&] { for (u32 i = 0; i < 8; i++) mixer(i, true, 1); }, true) / 8);
        printf("  x8 %6.1f us\n", timed([&] { for (u32 i = 0; i < 8; i++) mixer(i, true, 8); }, true) / 8);
    }
    only = "";
    for (u32 position : {4095u, 131071u, 1048000u})
        for (u32 rows : {1u, 8u, 16u}) {
            if (position != 4095 && rows > 8) continue;
            at(position, rows);
            double us = timed([&] { decode(rows); }, true);
            printf("step at %-8u rows %-2u %8.1f us = %6.1f steps/s, weights at %5.0f GB/s\n", position, rows, us, 1e6 / us, 18.352e9 / us / 1e3);
        }
    at(4095, 1);
    for (u32 stages : {2u, 3u, 4u, 5u}) {
        force_stages = stages;
        printf("one row, %u stages: step %8.1f us", stages, timed([&] { decode(1); }, true));
        printf("; 8 rows %8.1f us\n", timed([&] { decode(8); }, true));
    }
    force_stages = 0;
    overlap = false;
    printf("without overlap: step   %8.1f us\n", timed([&] { decode(1); }, true));
    overlap = true;
    // Prefill.
    const u32 rows = 4096;
    at(131072 - rows, 0);
    auto *px = device<bf16>(size_t(rows) * 16384), *qk = device<bf16>(size_t(rows) * 8192), *wide = device<bf16>(size_t(rows) * 2 * I);
    auto *po = device<float>(size_t(rows) * H), *z = device<float>(rows * heads), *prope = device<float>(rows * 128);
    auto *psc = device<bf16>(size_t(rows) * kv * 2048);
    auto *plist = device<u32>(rows * kv * cap), *pcount = device<u32>(rows * kv);
    go("random_bf16", rows * 16, 1, 1, 256, 0, px, u64(rows) * 16384, 1.f, u64(5));
    cuMemsetD8(CUdeviceptr(prope), 0, rows * 512);
    double us = timed([&] { go("lightning_qk", 8, rows, 1, 256, 0, qk, 8192u, (const bf16*)px, 16384u, 0u, 4096u, (const float*)qn, (const float*)qn, (const float*)prope, heads, heads, 1e-6f, rows); }, false);
    printf("lightning_qk 4096       %8.1f us\n", us);
    us = timed([&] { go("lightning_prefill", 4, heads, 1, 128, 95504, po, H, (const bf16*)qk, 8192u, (const bf16*)px + 8192, 16384u, state, (const bf16*)pk, (const bf16*)pv, (const float*)slopes, (const void*)step, heads, heads, scale, rows); }, false);
    printf("lightning_prefill 4096  %8.1f us\n", us);
    const u32 sb = 2048;
    us = timed([&] { go("prefill_lse", rows / 8, kv, 1, 256, 32768, z, (const bf16*)px, 8704u, (const bf16*)k2, 128u, 64u, (const void*)step, heads, kv, scale, 0u, rows); }, false);
    printf("prefill_lse at 128K     %8.1f us %7.0f TFLOP/s\n", us, 2.0 * rows * heads * 128 * 2048 / us / 1e6);
    us = timed([&] { go("prefill_scores", up(sb, 256), rows / 16, kv, 256, 37376, psc, (const float*)z, (const bf16*)px, 8704u, (const bf16*)k1, 128u, 64u, (const void*)step, heads, kv, scale, 0u, rows, sb); }, false);
    printf("prefill_scores at 128K  %8.1f us %7.0f TFLOP/s\n", us, 2.0 * rows * heads * 128 * 8192 / us / 1e6);
    us = timed([&] { go("select_top", kv, rows, 1, 512, 0, plist, pcount, (const bf16*)psc, (const void*)step, kv, sb, cap, 1u, 32u, 96u, 0u, 0u, rows); }, false);
    printf("select_top 4096 rows    %8.1f us\n", us);
    auto attend = [&] {
        go("attend_prefill", up(rows, 8), kv, 1, 288, 35968 + 11 * 16384, po, H, (const bf16*)px, 8704u, (const bf16*)k, (const bf16*)v, (const u32*)plist, (const u32*)pcount, cap,
           (const void*)step, heads, kv, scale, rows, 11u);
    };
    us = timed(attend, false);
    printf("attend_prefill 4096     %8.1f us %7.0f TFLOP/s (random keys: hardly any shared blocks)\n", us, 4.0 * rows * heads * 128 * 6144 / us / 1e6);
    at(1000, 0);
    go("select_top", kv, rows, 1, 512, 0, plist, pcount, (const bf16*)psc, (const void*)step, kv, sb, cap, 1u, 32u, 96u, 0u, 0u, rows);
    us = timed(attend, false);
    printf("attend_prefill at 1000  %8.1f us %7.0f TFLOP/s (dense)\n", us, 4.0 * heads * 128 * (1000.0 * rows + rows / 2.0 * rows) / us / 1e6);
    us = timed([&] { go("gemm_store", rows / 128, 2 * I / 128, 1, 256, 81920, wide, 2 * I, (const bf16*)px, H, (const bf16*)w, rows, 2 * I, H, 1.f); }, false);
    printf("gemm 4096x32768x4096    %8.1f us %7.0f TFLOP/s\n", us, 2.0 * rows * 2 * I * H / us / 1e6);
    return 0;
}
