// Every kernel against plain equations in double, on the emulator: emulator/check [FILTER].
#include "check.h"

static u32 up(u32 a, u32 b) { return (a + b - 1) / b; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static const u32 HEAD = 128;

// ---- skinny products -----------------------------------------------------------------------------------------------------

static void run_skinny(const char* to, void* dst, u32 ldd, Buf<bf16>& w, u32 out, u32 inner, const void* src, u32 lds, u32 mode, const float* norm, float mul,
                       const bf16* gate, u32 ldg, float scale, u32 rows, u32 blocks, u32 stages) {
    stages = std::max(2u, stages / 2);
    const u32 shared = stages * (32768 + (mode ? 0 : rows > 8 ? 16384 : 8192)) + (rows > 8 ? 16384 : 8192) + (mode ? rows * (inner + 32) * 2 : 0);
    launch(std::string("skinny_") + to + (rows > 8 ? "_16" : "_8"), {blocks, 1, 1}, 256, shared, dst, ldd, (const unsigned char*)w.p, out, inner, 0u, (const float*)nullptr, src, lds, mode, norm, 1e-6f, mul,
           gate, ldg, scale, rows, stages);
}

static void skinny(u32 out, u32 inner, u32 blocks, u32 stages) {
    std::string shape = std::to_string(out) + "x" + std::to_string(inner);
    Buf<bf16> w(size_t(out) * inner), x(16 * (inner + 8)), gate(16 * inner);
    Buf<float> h(16 * inner), norm(inner);
    w.normal(0.05f), x.normal(1), gate.normal(1), h.normal(3), norm.normal(1);
    for (u32 mode = 0; mode < 3; mode++) {
        std::vector<float> xs(16 * inner);  // what enters the product
        for (u32 r = 0; r < 16; r++) {
            double s = 0;
            for (u32 i = 0; i < inner; i++) s += h.at(r * inner + i) * h.at(r * inner + i);
            double rstd = 1 / sqrt(s / inner + 1e-6);
            for (u32 i = 0; i < inner; i++)
                xs[r * inner + i] = mode == 0   ? x.at(r * (inner + 8) + i)
                                    : mode == 1 ? round16(h.at(r * inner + i) * rstd * norm.at(i) * 0.0625)
                                                : round16(h.at(r * inner + i) * rstd * norm.at(i) * sigmoid(gate.at(r * inner + i)));
        }
        std::vector<double> want(16 * out);
        for (u32 r = 0; r < 16; r++)
            for (u32 o = 0; o < out; o++) {
                double y = 0;
                for (u32 i = 0; i < inner; i++) y += double(xs[r * inner + i]) * w.at(size_t(o) * inner + i);
                want[r * out + o] = y;
            }
        const void* src = mode ? (const void*)h.p : x.p;
        u32 lds = mode ? inner : inner + 8;
        std::vector<float> first;
        for (u32 rows : {1u, 2u, 5u, 8u, 9u, 16u}) {
            if (mode && (rows > 8 || rows * inner > 33000)) continue;
            Buf<float> y(rows * out);
            // Rows are gated on the way to an addition only, and normed on the way to anything else.
            for (u32 i = 0; i < rows * out; i++) y[i] = 0;
            run_skinny(mode == 2 ? "add" : "logits", y.p, out, w, out, inner, src, lds, mode, norm.p, 0.0625f, gate.p, inner, 1.f, rows, blocks, stages);
            Error e;
            for (u32 i = 0; i < rows * out; i++) e.add(y[i], want[i]);
            check("skinny " + shape + " mode " + std::to_string(mode) + " rows " + std::to_string(rows), e, mode ? 3e-3 : 2e-6);
            if (rows == 1) first = y.copy();
            check("  row 0 has the bits of one row", same_bits(first, y.p));
            if (mode) {  // made by a kernel before: same bits
                Buf<bf16> ready(rows * inner);
                if (mode == 1) launch("norm_rows", {rows, 1, 1}, 256, 0, ready.p, inner, (const float*)h.p, inner, (const float*)norm.p, inner, 1e-6f, 0.0625f, rows);
                else launch("gate_rows", {rows, 1, 1}, 256, 0, ready.p, inner, (const float*)h.p, inner, (const float*)norm.p, 1e-6f, (const bf16*)gate.p, inner, inner, rows);
                Buf<float> z(rows * out);
                run_skinny("logits", z.p, out, w, out, inner, ready.p, inner, 0, nullptr, 1, nullptr, 0, 1.f, rows, blocks, stages);
                check("  staged rows have the bits of rows made before", same_bits(y.copy(), z.p));
            }
        }
        if (mode) continue;
        const u32 rows = 5;
        Buf<bf16> store(rows * (out + 8));
        run_skinny("store", store.p, out + 8, w, out, inner, src, lds, 0, nullptr, 1, nullptr, 0, 1.f, rows, blocks, stages);
        Buf<float> add(rows * out);
        for (u32 i = 0; i < rows * out; i++) add[i] = float(i % 17);
        run_skinny("add", add.p, out, w, out, inner, src, lds, 0, nullptr, 1, nullptr, 0, 0.25f, rows, blocks, stages);
        Error es, ea, eg;
        for (u32 r = 0; r < rows; r++)
            for (u32 o = 0; o < out; o++) {
                es.add(store.at(r * (out + 8) + o), want[r * out + o]);
                ea.add(add[r * out + o], (r * out + o) % 17 + 0.25 * want[r * out + o]);
            }
        check("skinny store " + shape, es, 4e-3);
        check("skinny add " + shape, ea, 1e-6);
        if (out % 16 == 0) {
            Buf<bf16> act(rows * out / 2), act2(rows * out / 2);
            run_skinny("swiglu", act.p, out / 2, w, out, inner, src, lds, 0, nullptr, 1, nullptr, 0, 1.f, rows, blocks, stages);
            for (u32 r = 0; r < rows; r++)
                for (u32 j = 0; j < out / 2; j++) {
                    double g = want[r * out + j / 8 * 16 + j % 8], u = want[r * out + j / 8 * 16 + 8 + j % 8];
                    eg.add(act.at(r * (out / 2) + j), g * sigmoid(g) * u);
                }
            check("skinny swiglu " + shape, eg, 4e-3);
            Buf<bf16> gu(rows * out);
            for (u32 i = 0; i < rows * out; i++) gu.set(i, want[i]);
            launch("swiglu_rows", {up(out / 2, 2048), rows, 1}, 256, 0, act2.p, (const bf16*)gu.p, out / 2, rows);
            Error e2;
            for (u32 i = 0; i < rows * out / 2; i++) e2.add(act2.at(i), act.at(i));
            check("swiglu_rows " + shape, e2, 2e-2);
        }
    }
}

// ---- lightning -----------------------------------------------------------------------------------------------------------

struct Lightning {
    static constexpr u32 heads = 3, kv_heads = 3, width = (heads + 2 * kv_heads) * HEAD;
    u32 total;
    Buf<bf16> x;
    Buf<float> q_norm, k_norm, inv_freq, slopes, s0;
    std::vector<double> q, k, v, o, s;  // normed and rotated (rounded), then outputs and final state of the recurrence
    u32 start;
    float scale = 0.088388f;
    Lightning(u32 total, u32 start) : total(total), x(total * width), q_norm(HEAD), k_norm(HEAD), inv_freq(64), slopes(heads), s0(heads * HEAD * HEAD), start(start) {
        x.normal(1), q_norm.normal(1), k_norm.normal(1), s0.normal(1);
        for (u32 i = 0; i < 64; i++) inv_freq[i] = float(pow(10000.0, -2.0 * i / 128));
        const float m[3] = {0.8409f, 0.0625f, 0.00390625f};
        for (u32 h = 0; h < heads; h++) slopes[h] = m[h];
        q.resize(total * heads * HEAD), k = q, v = q, o = q;
        for (u32 r = 0; r < total; r++)
            for (u32 h = 0; h < 2 * heads; h++) {
                double a[128], ss = 0;
                for (u32 i = 0; i < HEAD; i++) a[i] = x.at(r * width + h * HEAD + i), ss += a[i] * a[i];
                for (u32 i = 0; i < HEAD; i++) a[i] *= (h < heads ? q_norm : k_norm).at(i) / sqrt(ss / HEAD + 1e-6);
                auto& to = h < heads ? q : k;
                for (u32 i = 0; i < 64; i++) {
                    double angle = float(start + r) * inv_freq[i], c = cos(angle), sn = sin(angle);
                    size_t at = (r * heads + h % heads) * HEAD + i;
                    to[at] = round16(a[i] * c - a[i + 64] * sn), to[at + 64] = round16(a[i + 64] * c + a[i] * sn);
                }
            }
        for (u32 r = 0; r < total; r++)
            for (u32 i = 0; i < heads * HEAD; i++) v[r * heads * HEAD + i] = x.at(r * width + 2 * heads * HEAD + i);
        s.resize(heads * HEAD * HEAD);
        for (size_t i = 0; i < s.size(); i++) s[i] = s0[i];
        for (u32 h = 0; h < heads; h++)
            for (u32 r = 0; r < total; r++) {
                double lambda = exp(-double(slopes[h]));
                const double *kr = &k[(r * heads + h) * HEAD], *vr = &v[(r * heads + h) * HEAD], *qr = &q[(r * heads + h) * HEAD];
                double* to = &o[(r * heads + h) * HEAD];
                for (u32 j = 0; j < HEAD; j++) to[j] = 0;
                for (u32 i = 0; i < HEAD; i++)
                    for (u32 j = 0; j < HEAD; j++) {
                        double& e = s[(h * HEAD + i) * HEAD + j];
                        e = lambda * e + kr[i] * vr[j];
                        to[j] += scale * qr[i] * e;
                    }
            }
    }
};

static void lightning() {
    for (u32 start : {0u, 777u, 1999990u}) {
        Lightning m(24, start);
        const u32 H = m.heads, W = m.width;
        // The same 24 rows cut differently must give the same bits: all accepted, pending folded by the next pass.
        std::vector<float> o_first, s_first;
        for (std::vector<u32> cut : {std::vector<u32>(24, 1u), {16, 8}, {5, 11, 7, 1}, {3, 16, 5}}) {
            Buf<float> s(m.s0.n), o(24 * H * HEAD);
            memcpy(s.p, m.s0.p, s.n * 4);
            Buf<bf16> pk(2 * 16 * H * HEAD), pv(2 * 16 * H * HEAD);
            Buf<float> rope(24 * 128);
            Step step{start, 0, 0, 0};
            u32 at = 0;
            for (u32 rows : cut) {
                launch("rope_table", {up(rows * 64, 256), 1, 1}, 256, 0, rope.p, (const float*)m.inv_freq.p, (const Step*)&step, rows);
                // One row more than is accepted, so that refused rows are there to be ignored.
                u32 run = rows < 16 && at + rows < 24 ? rows + 1 : rows;
                Buf<float> wide(run * H * HEAD), rope2(run * 128);
                launch("rope_table", {up(run * 64, 256), 1, 1}, 256, 0, rope2.p, (const float*)m.inv_freq.p, (const Step*)&step, run);
                launch("lightning_verify", {4, H, 1}, 128, 0, wide.p, H * HEAD, (const bf16*)m.x.p + at * W, W, 0u, H * HEAD, 2 * H * HEAD, (const float*)m.q_norm.p,
                       (const float*)m.k_norm.p, (const float*)rope2.p, s.p, pk.p, pv.p, (const float*)m.slopes.p, (const Step*)&step, H, H, m.scale, 1e-6f, run);
                memcpy(o.p + at * H * HEAD, wide.p, rows * H * HEAD * 4);
                at += rows;
                step = {start + at, rows, step.slot ^ 1, 0};
            }
            launch("lightning_fold", {4, H, 1}, 128, 0, s.p, (const bf16*)pk.p, (const bf16*)pv.p, (const float*)m.slopes.p, (const Step*)&step, H, H);
            if (o_first.empty()) {
                o_first = o.copy(), s_first = s.copy();
                Error eo, es;
                for (size_t i = 0; i < o.n; i++) eo.add(o[i], m.o[i]);
                for (size_t i = 0; i < s.n; i++) es.add(s[i], m.s[i]);
                check("lightning verify from " + std::to_string(start), eo, 2e-3);
                check("  state", es, 2e-3);
            }
            check("  cut into " + std::to_string(cut.size()) + " passes: outputs and state have the same bits", same_bits(o_first, o.p) && same_bits(s_first, s.p));
        }
    }
    for (u32 rows : {63u, 64u, 65u, 200u}) {
        Lightning m(rows, 100);
        const u32 H = m.heads, W = m.width;
        std::vector<float> o_first, s_first;
        for (u32 chunk : {1024u, 64u, 128u}) {
            Buf<float> s(m.s0.n), o(rows * H * HEAD);
            memcpy(s.p, m.s0.p, s.n * 4);
            Buf<bf16> pk(2 * 16 * H * HEAD), pv(2 * 16 * H * HEAD);
            for (u32 at = 0; at < rows; at += chunk) {
                u32 n = std::min(chunk, rows - at);
                Step step{100 + at, 0, 0, 0};
                Buf<float> rope(n * 128);
                Buf<bf16> qk(n * 2 * H * HEAD);
                launch("rope_table", {up(n * 64, 256), 1, 1}, 256, 0, rope.p, (const float*)m.inv_freq.p, (const Step*)&step, n);
                launch("lightning_qk", {up(2 * H, 8), n, 1}, 256, 0, qk.p, 2 * H * HEAD, (const bf16*)m.x.p + at * W, W, 0u, H * HEAD, (const float*)m.q_norm.p,
                       (const float*)m.k_norm.p, (const float*)rope.p, H, H, 1e-6f, n);
                launch("lightning_prefill", {4, H, 1}, 128, 95504, o.p + at * H * HEAD, H * HEAD, (const bf16*)qk.p, 2 * H * HEAD,
                       (const bf16*)m.x.p + at * W + 2 * H * HEAD, W, s.p, (const bf16*)pk.p, (const bf16*)pv.p, (const float*)m.slopes.p, (const Step*)&step, H, H, m.scale, n);
            }
            if (o_first.empty()) {
                o_first = o.copy(), s_first = s.copy();
                Error eo, es;
                for (size_t i = 0; i < o.n; i++) eo.add(o[i], m.o[i]);
                for (size_t i = 0; i < s.n; i++) es.add(s[i], m.s[i]);
                check("lightning prefill of " + std::to_string(rows), eo, 8e-3);
                check("  state", es, 8e-3);
            } else {
                check("  chunks of " + std::to_string(chunk) + ": the same bits", same_bits(o_first, o.p) && same_bits(s_first, s.p));
            }
        }
    }
}

#include "check_sparse.h"

int main(int argc, char** argv) {
    const std::string filter = argc > 1 ? argv[1] : "";
    auto want = [&](const char* name) { return filter.empty() || filter == name; };
    if (want("skinny")) {
        skinny(208, 256, 3, 6);
        skinny(72, 768, 8, 2);
        skinny(64, 4096, 2, 6);
        skinny(40, 1088, 1, 4);
    }
    if (want("lightning")) lightning();
    if (want("sparse")) sparse();
    if (want("candidates")) candidates();
    if (want("gemm")) gemm();
    if (want("draft")) draft();
    if (want("rows")) rows();
    printf("%d failures\n", failures);
    return failures != 0;
}
