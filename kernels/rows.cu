// Operations on rows other than GEMMs: embedding, norms and gates (prefill, and rows that the producing kernel did not
// prepare), SwiGLU, auxiliary hidden states, rotation angles, synthetic weights.
//
// Grid: one block of 256 threads a row, or for each 1024 values of an array, unless a kernel says otherwise. Bytes moved: each
// input and output once.
// Prepared rows have the same bits in every kernel that prepares them (`Next` in common.cuh). Widths are multiples of 32.
#include "common.cuh"
#include "sequences.cuh"

KERNEL(256, 4) fill_f32(float* dst, u64 n, float value) {
    wait_for_previous();
    for (u32 j = 0; j < 4; j++) {
        u64 i = u64(blockIdx.x) * 1024 + j * 256 + threadIdx.x;
        if (i < n) dst[i] = value;
    }
    allow_next();  // after the stores: the kernels of a pass read set-up data before their wait
}

// The program's formula for synthetic weights (`backend::synthetic_value`): splitmix64 of (seed, index), uniform.
KERNEL(256, 4) random_bf16(bf16* dst, u64 n, float std, u64 seed) {
    wait_for_previous();
    for (u32 j = 0; j < 4; j++) {
        const u64 i = u64(blockIdx.x) * 1024 + j * 256 + threadIdx.x;
        if (i >= n) continue;
        u64 z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        dst[i] = narrow((2.f * (float(u32(z >> 40)) / 16777216.f) - 1.f) * std * 1.7320508f);
    }
    allow_next();
}

// Reads n16 words of 16 bytes, four in flight a thread, to measure bandwidth. Any grid of 512 threads; out[block] is a checksum, so that no load is
// optimised away.
KERNEL(512, 2) measure_read(float* out, const uint4* src, u64 n16) {
    wait_for_previous();
    allow_next();
    u32 sum = 0;
    const u64 width = u64(gridDim.x) * 512;
    u64 i = u64(blockIdx.x) * 512 + threadIdx.x;
    for (; i + 3 * width < n16; i += 4 * width) {
        const uint4 a = load16(src + i), b = load16(src + i + width), c = load16(src + i + 2 * width), d = load16(src + i + 3 * width);
        sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
    }
    for (; i < n16; i += width) {
        const uint4 a = load16(src + i);
        sum += a.x ^ a.y ^ a.z ^ a.w;
    }
    const u32 lane = threadIdx.x & 31;
    for (u32 m = 16; m; m >>= 1) sum += shuffle(sum, lane ^ m);
    __shared__ u32 sums[16];
    if (lane == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();  // sums of the warps
    if (threadIdx.x == 0) {
        u32 all = 0;
        for (u32 w = 0; w < 16; w++) all += sums[w];
        out[blockIdx.x] = float(all);
    }
}

// Copies n words from page-locked host memory, around all caches because the host rewrites them. Later kernels read them
// before their wait, so this kernel never calls `allow_next`. Grid (256 words).
KERNEL(256, 4) take_words(u32* dst, const u32* from, u32 n) {
    wait_for_previous();
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) dst[i] = load_host(from + i);
    __threadfence();
}

KERNEL(256, 4)
embed_rows(float* h, const bf16* table, const u32* tokens, u32 hidden, u32 vocab, float scale, const float* next_norm, bf16* next_x, float* next_sums, u32 rows) {
    constexpr u32 KEPT = 2, ROUND = 2048 * KEPT;
    const Next next = NEXT(hidden);
    allow_next();
    float w[KEPT][8];
    auto weights = [&](u32 first) {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++)
#pragma unroll
            for (u32 i = 0; i < 8; i += 4) {
                const u32 c = first + k * 2048 + threadIdx.x * 8;
                const float4 four = next.norm && c < hidden ? load4(next.norm + c + i) : make_float4(1.f, 1.f, 1.f, 1.f);
                w[k][i] = four.x, w[k][i + 1] = four.y, w[k][i + 2] = four.z, w[k][i + 3] = four.w;
            }
    };
    weights(0);  // from memory, not L2: last read one pass ago
    wait_for_previous();
    const u32 r = blockIdx.x, token = tokens[r];
#pragma unroll 1
    for (u32 first = 0; first < hidden; first += ROUND) {
        if (first) weights(first);
        uint4 e[KEPT];
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 c = first + k * 2048 + threadIdx.x * 8;
            e[k] = c < hidden && token < vocab ? load16(table + u64(token) * hidden + c) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 c = first + k * 2048 + threadIdx.x * 8;
            const bool live = c < hidden;
            const float x[8] = {scale * widen_lo(e[k].x), scale * widen_hi(e[k].x), scale * widen_lo(e[k].y), scale * widen_hi(e[k].y),
                                scale * widen_lo(e[k].z), scale * widen_hi(e[k].z), scale * widen_lo(e[k].w), scale * widen_hi(e[k].w)};
            float* to = h + u64(r) * hidden + c;
            if (live) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]), *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
            if (next.x) next.put8(r, c, x, w[k], live);
        }
    }
}

// table[row][i] = (cos, sin) of the f32 product position · inv_freq[i] (docs/model.md §4). Grid (256 values).
KERNEL(256, 4) rope_table(float2* table, const float* inv_freq, const Step* step, const Row* at, u32 rows) {
    allow_next();
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    const bool live = i < rows * 64;
    float angle = live ? float(at ? at[i / 64].position : step->position + i / 64) * inv_freq[i % 64] : 0.f, s, c;
    sincos_exact(angle, &s, &c);
    wait_for_previous();
    if (live) table[i] = make_float2(c, s);
}

// dst = src · norm · sigmoid(gate), each factor only if given. With `sums` the GEMM multiplies its result by 1 / rms (see
// `Next`); without (prefill) dst contains it. Norm weights were last read one pass ago: they are loaded from memory while
// the previous kernel still runs.
// Block: one row, 256 threads that keep 4096 columns in registers.
DEVICE void prepare_row(bf16* dst, float* sums, const float* src, const float* norm, const bf16* gate, u32 n, float eps, float mul) {
    constexpr u32 KEPT = 2, ROUND = 2048 * KEPT;
    __shared__ float scratch[8];
    allow_next();
    float x[KEPT][8], w[KEPT][8];
    auto four = [](float* to, float4 v) { to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; };
    auto weights = [&](u32 first) {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 c = first + k * 2048 + threadIdx.x * 8;
            const bool normed = norm && c < n;
            four(w[k], normed ? load4(norm + c) : make_float4(1.f, 1.f, 1.f, 1.f)), four(w[k] + 4, normed ? load4(norm + c + 4) : make_float4(1.f, 1.f, 1.f, 1.f));
        }
    };
    auto values = [&](u32 first) {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 c = first + k * 2048 + threadIdx.x * 8;
            const float4 none = make_float4(0.f, 0.f, 0.f, 0.f);
            four(x[k], c < n ? load_fresh(src + c) : none), four(x[k] + 4, c < n ? load_fresh(src + c + 4) : none);
        }
    };
    weights(0);
    wait_for_previous();
    values(0);
    const Next next = {sums ? norm : nullptr, dst, sums, n};
    float factor = mul;
    if (!sums && norm) {
        float sum = 0.f;
#pragma unroll 1
        for (u32 first = 0; first < n; first += ROUND) {
            if (first) values(first);
#pragma unroll
            for (u32 k = 0; k < KEPT; k++)
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum = fmaf(x[k][i], x[k][i], sum);
        }
        factor = rsqrt_fast(fmaf(block_sum(sum, scratch), rcp_fast(float(n)), eps)) * mul;
        if (n > ROUND) values(0);
    }
#pragma unroll 1
    for (u32 first = 0; first < n; first += ROUND) {
        if (first) weights(first), values(first);
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 c = first + k * 2048 + threadIdx.x * 8;
            if (gate && c < n) {
                const uint4 g = load16(gate + c);
                const u32 words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
                for (u32 i = 0; i < 4; i++) w[k][2 * i] *= sigmoid(widen_lo(words[i])), w[k][2 * i + 1] *= sigmoid(widen_hi(words[i]));
            }
            if (!sums) {
#pragma unroll
                for (u32 i = 0; i < 8; i++) w[k][i] *= factor;
            }
            next.put8(0, c, x[k], w[k], c < n);
        }
    }
}
KERNEL(256, 2) norm_rows(bf16* dst, u32 ldd, float* sums, const float* src, u32 lds, const float* norm, u32 n, float eps, float mul, u32 rows) {
    const u32 r = blockIdx.x;
    prepare_row(dst + u64(r) * ldd, sums ? sums + r * (n / SUMMED) : nullptr, src + u64(r) * lds, norm, nullptr, n, eps, mul);
}
KERNEL(256, 2)
gate_rows(bf16* dst, u32 ldd, float* sums, const float* o, u32 ldo, const float* norm, float eps, const bf16* gate, u32 ldg, u32 n, u32 rows) {
    const u32 r = blockIdx.x;
    prepare_row(dst + u64(r) * ldd, sums ? sums + r * (n / SUMMED) : nullptr, o + u64(r) * ldo, norm, gate ? gate + u64(r) * ldg : nullptr, n, eps, 1.f);
}

// RMS norm of bf16 rows (auxiliary hidden states of a draft head).
KERNEL(256, 4) norm_rows_bf16(bf16* dst, u32 ldd, const bf16* src, u32 lds, const float* norm, u32 n, float eps, u32 rows) {
    __shared__ float scratch[8];
    wait_for_previous();
    allow_next();
    const bf16* from = src + u64(blockIdx.x) * lds;
    bf16* to = dst + u64(blockIdx.x) * ldd;
    float s = 0.f;
    for (u32 i = threadIdx.x * 4; i < n; i += 1024) {
        const uint2 v = *reinterpret_cast<const uint2*>(from + i);
        s = fmaf(widen_lo(v.x), widen_lo(v.x), s);
        s = fmaf(widen_hi(v.x), widen_hi(v.x), s);
        s = fmaf(widen_lo(v.y), widen_lo(v.y), s);
        s = fmaf(widen_hi(v.y), widen_hi(v.y), s);
    }
    const float rstd = 1.f / sqrtf(block_sum(s, scratch) / float(n) + eps);
    for (u32 i = threadIdx.x * 4; i < n; i += 1024) {
        const uint2 v = *reinterpret_cast<const uint2*>(from + i);
        const float4 w = *reinterpret_cast<const float4*>(norm + i);
        store_row4(to + i, make_float4(widen_lo(v.x) * rstd * w.x, widen_hi(v.x) * rstd * w.y, widen_lo(v.y) * rstd * w.z, widen_hi(v.y) * rstd * w.w));
    }
}

// Grid (2048 columns, row).
KERNEL(256, 4) swiglu_rows(bf16* dst, u32 ldd, const bf16* gu, u32 inter, u32 rows) {
    wait_for_previous();
    allow_next();
    const u32 i = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (i >= inter) return;
    store16(dst + u64(blockIdx.y) * ldd + i, swiglu8(gu + (u64(blockIdx.y) * inter + i) * 2));
}

KERNEL(256, 4) aux_rows(float* aux, u32 lda, const float* h, u32 hidden, u32 rows) {
    wait_for_previous();
    allow_next();
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024)
        *reinterpret_cast<float4*>(aux + u64(blockIdx.x) * lda + i) = load_fresh(h + u64(blockIdx.x) * hidden + i);
}

KERNEL(256, 4) aux_rows_bf16(bf16* aux, u32 lda, const float* h, u32 hidden, u32 rows) {
    wait_for_previous();
    allow_next();
    for (u32 i = threadIdx.x * 4; i < hidden; i += 1024) store_row4(aux + u64(blockIdx.x) * lda + i, load_fresh(h + u64(blockIdx.x) * hidden + i));
}
