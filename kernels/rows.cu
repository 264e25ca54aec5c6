// Operations on rows beside the products: embedding, norms and gates of prefill, SwiGLU, taps, rotation angles, synthetic weights.
//
// One block of 256 threads a row (or 1024 values of a plain array). Bytes moved: each input and output once.
// norm_rows and gate_rows share their arithmetic with the products that norm or gate on the way (common.cuh), so a row
// has the same bits whichever made it. Widths are multiples of 8.
#include "common.cuh"

KERNEL(256, 4) fill_f32(float* dst, u64 n, float value) {
    wait_for_previous();
    allow_next();
    for (u32 j = 0; j < 4; j++) {
        u64 i = u64(blockIdx.x) * 1024 + j * 256 + threadIdx.x;
        if (i < n) dst[i] = value;
    }
}

// A 64-bit mixing function with full avalanche (splitmix64's finaliser).
DEVICE u64 mix(u64 x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// The sum of four uniform values is close enough to normal for weights; variance 4/12.
KERNEL(256, 4) random_bf16(bf16* dst, u64 n, float std, u64 seed) {
    wait_for_previous();
    allow_next();
    for (u32 j = 0; j < 4; j++) {
        u64 i = u64(blockIdx.x) * 1024 + j * 256 + threadIdx.x;
        if (i >= n) continue;
        u64 bits = mix(mix(seed + 0x9e3779b97f4a7c15ull) + i * 0x9e3779b97f4a7c15ull);
        float sum = float(u32(bits & 0xffff)) + float(u32(bits >> 16 & 0xffff)) + float(u32(bits >> 32 & 0xffff)) + float(u32(bits >> 48));
        dst[i] = narrow((sum * (1.f / 65536.f) + (2.f / 65536.f) - 2.f) * 1.7320508f * std);
    }
}

KERNEL(256, 4) embed_rows(float* h, const bf16* table, const u32* tokens, u32 hidden, u32 vocab, float scale, u32 rows) {
    wait_for_previous();
    allow_next();
    const u32 r = blockIdx.x, token = tokens[r];
    for (u32 i = threadIdx.x * 8; i < hidden; i += 2048) {
        uint4 e = token < vocab ? load16(table + u64(token) * hidden + i) : make_uint4(0, 0, 0, 0);
        float* to = h + u64(r) * hidden + i;
        *reinterpret_cast<float4*>(to) = make_float4(scale * widen_lo(e.x), scale * widen_hi(e.x), scale * widen_lo(e.y), scale * widen_hi(e.y));
        *reinterpret_cast<float4*>(to + 4) = make_float4(scale * widen_lo(e.z), scale * widen_hi(e.z), scale * widen_lo(e.w), scale * widen_hi(e.w));
    }
}

// The angle is a float32 product (spec/model.md §4), its sine and cosine are those of that float32 value.
KERNEL(256, 4) rope_table(float2* table, const float* inv_freq, const Step* step, u32 rows) {
    wait_for_previous();
    allow_next();
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * 64) return;
    float angle = float(step->position + i / 64) * inv_freq[i % 64], s, c;
    sincos_exact(angle, &s, &c);
    table[i] = make_float2(c, s);
}

KERNEL(256, 4) norm_rows(bf16* dst, u32 ldd, const float* src, u32 lds, const float* norm, u32 n, float eps, float mul, u32 rows) {
    __shared__ float scratch[8];
    wait_for_previous();
    allow_next();
    row_norm(dst + u64(blockIdx.x) * ldd, src + u64(blockIdx.x) * lds, norm, n, eps, mul, scratch);
}

KERNEL(256, 4) gate_rows(bf16* dst, u32 ldd, const float* o, u32 ldo, const float* norm, float eps, const bf16* gate, u32 ldg, u32 n, u32 rows) {
    __shared__ float scratch[8];
    wait_for_previous();
    allow_next();
    const u64 r = blockIdx.x;
    row_gate(dst + r * ldd, o + r * ldo, norm, eps, gate ? gate + r * ldg : nullptr, n, scratch);
}

DEVICE u32 swiglu2(u32 gate, u32 up) {
    float g0 = widen_lo(gate), g1 = widen_hi(gate);
    return pack(g0 * sigmoid(g0) * widen_lo(up), g1 * sigmoid(g1) * widen_hi(up));
}
// gu [rows, 2·inter]: eight gate columns, their eight up columns, and so on.
KERNEL(256, 4) swiglu_rows(bf16* dst, const bf16* gu, u32 inter, u32 rows) {
    wait_for_previous();
    allow_next();
    const u32 i = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (i >= inter) return;
    const bf16* from = gu + (u64(blockIdx.y) * inter + i) * 2;
    uint4 g = load16(from), u = load16(from + 8);
    store16(dst + u64(blockIdx.y) * inter + i, make_uint4(swiglu2(g.x, u.x), swiglu2(g.y, u.y), swiglu2(g.z, u.z), swiglu2(g.w, u.w)));
}

KERNEL(256, 4) tap_rows(float* taps, u32 ldt, const float* h, u32 hidden, u32 rows) {
    wait_for_previous();
    allow_next();
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024)
        *reinterpret_cast<float4*>(taps + u64(blockIdx.x) * ldt + i) = load_fresh(h + u64(blockIdx.x) * hidden + i);
}

KERNEL(256, 4) tap_rows_bf16(bf16* taps, u32 ldt, const float* h, u32 hidden, u32 rows) {
    wait_for_previous();
    allow_next();
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) store_row4(taps + u64(blockIdx.x) * ldt + i, load_fresh(h + u64(blockIdx.x) * hidden + i));
}
