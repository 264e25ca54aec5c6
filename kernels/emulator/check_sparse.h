// Checks of the sparse layers: cache, selection and attention, verify and prefill.
#pragma once

struct Sparse {
    u32 heads, kv, group, length, width, ldx, blocks, score_blocks, cap, init = 1, local = 2, topk = 7;
    float scale = 0.088388f;
    Buf<bf16> x, k, v, k1, k2;
    Sparse(u32 heads, u32 kv, u32 length)
        : heads(heads), kv(kv), group(heads / kv), length(length), width(kv * HEAD), ldx((heads + 2 * kv) * HEAD), blocks(up(length, 64)), score_blocks(up(blocks, 64) * 64),
          cap(10), x(size_t(length) * ldx), k(size_t(length) * width), v(k.n), k1(std::max(1u, length / 16) * width), k2(std::max(1u, length / 64) * width) {
        x.normal(1);
        for (u32 t = 0; t < length; t++)  // sharper scores than chance would give
            for (u32 i = 0; i < heads * HEAD; i++) x.set(size_t(t) * ldx + i, 2 * x.at(size_t(t) * ldx + i));
    }
    void append(u32 start, u32 rows) {
        Step step{start, 0, 0, 0};
        const bf16* from = x.p + size_t(start) * ldx;
        launch("append_kv", {rows, kv, 1}, 128, 0, k.p, v.p, k1.p, k2.p, from + heads * HEAD, from + (heads + kv) * HEAD, ldx, (const Step*)&step, kv, rows);
    }
    double dot(u32 p, u32 h, const Buf<bf16>& keys, u32 j) const {
        double s = 0;
        for (u32 i = 0; i < HEAD; i++) s += x.at(size_t(p) * ldx + h * HEAD + i) * keys.at(size_t(j) * width + h / group * HEAD + i);
        return s * scale;
    }
    // Pooled scores of a row and KV head, before rounding.
    std::vector<double> scores(u32 p, u32 g) const {
        u32 n1 = p < 31 ? 0 : (p - 31) / 16 + 1, n2 = p < 127 ? 0 : (p - 127) / 64 + 1;
        std::vector<double> a(n1, 0.0), b(p / 64 + 1, 0.0);
        for (u32 h = g * group; h < (g + 1) * group && n2; h++) {
            double z = 0;
            for (u32 j = 0; j < n2; j++) z += exp(dot(p, h, k2, j));
            for (u32 j = 0; j < n1; j++) a[j] += exp(dot(p, h, k1, j)) / z;
        }
        for (u32 c = 0; c < b.size(); c++)
            for (int j = int(4 * c) - 1; j <= int(4 * c) + 3; j++)
                if (j >= 0 && j < int(n1)) b[c] = std::max(b[c], a[j]);
        return b;
    }
    // What must be chosen given the device's own scores.
    std::vector<u32> choose(u32 p, const bf16* s, u32 dense_until) const {
        u32 beta = p / 64;
        std::vector<u32> all;
        for (u32 b = 0; b <= beta; b++) all.push_back(b);
        if (all.size() <= topk || p + 1 < dense_until) return all.resize(std::min<size_t>(all.size(), cap)), all;
        auto forced = [&](u32 b) { return b < init || b + local >= beta; };
        std::stable_sort(all.begin(), all.end(), [&](u32 a, u32 b) { return forced(a) != forced(b) ? forced(a) : !forced(a) && widen(s[a]) > widen(s[b]); });
        all.resize(topk);
        std::sort(all.begin(), all.end());
        return all;
    }
    void attend(u32 p, u32 h, const u32* list, u32 n, double* o) const {
        std::vector<double> s;
        std::vector<u32> at;
        double m = -1e30, l = 0;
        for (u32 i = 0; i < n; i++)
            for (u32 t = list[i] * 64; t < list[i] * 64 + 64 && t <= p; t++) at.push_back(t), s.push_back(dot(p, h, k, t)), m = std::max(m, s.back());
        for (u32 i = 0; i < HEAD; i++) o[i] = 0;
        for (u32 j = 0; j < s.size(); j++) {
            double e = exp(s[j] - m);
            l += e;
            for (u32 i = 0; i < HEAD; i++) o[i] += e * v.at(size_t(at[j]) * width + h / group * HEAD + i);
        }
        for (u32 i = 0; i < HEAD; i++) o[i] /= l;
    }
    // Compares one pass's results with the equations.
    void compare(const std::string& what, u32 start, u32 rows, const Buf<bf16>& sc, const Buf<u32>& list, const Buf<u32>& count, const Buf<float>& o, u32 dense_until) {
        Error es, eo;
        bool chosen = true;
        for (u32 r = 0; r < rows; r++)
            for (u32 g = 0; g < kv; g++) {
                u32 p = start + r, n = count[r * kv + g];
                const bf16* device = sc.p + size_t(r * kv + g) * score_blocks;
                if (p / 64 + 1 > topk) {
                    auto ref = scores(p, g);
                    for (u32 b = 0; b < ref.size(); b++) es.add(widen(device[b]), ref[b]);
                }
                auto ref = choose(p, device, dense_until);
                chosen &= ref.size() == n && std::equal(ref.begin(), ref.end(), list.p + size_t(r * kv + g) * cap);
                for (u32 h = g * group; h < (g + 1) * group; h++) {
                    double y[128];
                    attend(p, h, list.p + size_t(r * kv + g) * cap, std::min(n, cap), y);
                    for (u32 i = 0; i < HEAD; i++) eo.add(o[(r * heads + h) * HEAD + i], y[i]);
                }
            }
        check(what + " scores", es, 6e-3);
        check(what + " selection", chosen);
        check(what + " attention", eo, 6e-3);
    }
    struct Out { Buf<bf16> scores; Buf<u32> list, count; Buf<float> o; };
    Out verify(u32 start, u32 rows, u32 dense_until) {
        Step step{start, 0, 0, 0};
        u32 splits = up(std::max(1u, length / 64), 256), parts = up(cap, 2);
        Buf<float> lse(rows * heads * splits * 2), part_o(size_t(rows) * heads * parts * HEAD), part_ml(rows * heads * parts * 2);
        Out out{Buf<bf16>(rows * kv * score_blocks), Buf<u32>(rows * kv * cap), Buf<u32>(rows * kv), Buf<float>(rows * heads * HEAD)};
        const bf16* q = x.p + size_t(start) * ldx;
        launch("select_lse", {splits, kv, rows}, 128, 65536, lse.p, q, ldx, (const bf16*)k2.p, 128u, 64u, (const Step*)&step, heads, kv, scale, rows, splits, topk);
        launch("select_scores", {up(score_blocks, 64), kv, rows}, 128, 67584, out.scores.p, (const float*)lse.p, q, ldx, (const bf16*)k1.p, 128u, 64u, (const Step*)&step,
               heads, kv, scale, rows, splits, score_blocks, topk);
        launch("select_top", {kv, rows, 1}, 512, 0, out.list.p, out.count.p, (const bf16*)out.scores.p, (const Step*)&step, kv, score_blocks, cap, init, local, topk, dense_until, 0u, rows);
        launch("attend_verify", {parts, kv, rows}, 128, 34816, part_o.p, part_ml.p, q, ldx, (const bf16*)k.p, (const bf16*)v.p, (const u32*)out.list.p,
               (const u32*)out.count.p, cap, (const Step*)&step, heads, kv, scale, rows, parts);
        launch("attend_combine", {heads, rows, 1}, 128, 0, out.o.p, heads * HEAD, (const float*)part_o.p, (const float*)part_ml.p, (const u32*)out.count.p, heads, kv, rows, parts);
        return out;
    }
    Out prefill(u32 start, u32 rows, u32 dense_until, u32 at_once, u32 slots) {
        Step step{start, 0, 0, 0};
        Out out{Buf<bf16>(rows * kv * score_blocks), Buf<u32>(rows * kv * cap), Buf<u32>(rows * kv), Buf<float>(rows * heads * HEAD)};
        const bf16* q = x.p + size_t(start) * ldx;
        for (u32 row0 = 0; row0 < rows; row0 += at_once) {
            u32 n = std::min(at_once, rows - row0);
            Buf<float> z(n * heads);
            bf16* sc = out.scores.p + size_t(row0) * kv * score_blocks;
            launch("prefill_lse", {up(n, 8), kv, 1}, 256, 32768, z.p, q, ldx, (const bf16*)k2.p, 128u, 64u, (const Step*)&step, heads, kv, scale, row0, n);
            launch("prefill_scores", {up(score_blocks, 256), up(n, 16), kv}, 256, 37376, sc, (const float*)z.p, q, ldx, (const bf16*)k1.p, 128u, 64u, (const Step*)&step, heads,
                   kv, scale, row0, n, score_blocks);
            launch("select_top", {kv, n, 1}, 512, 0, out.list.p, out.count.p, (const bf16*)sc, (const Step*)&step, kv, score_blocks, cap, init, local, topk, dense_until, row0, n);
        }
        launch("attend_prefill", {up(rows, 8), kv, 1}, 288, 35968 + slots * 16384, out.o.p, heads * HEAD, q, ldx, (const bf16*)k.p, (const bf16*)v.p, (const u32*)out.list.p,
               (const u32*)out.count.p, cap, (const Step*)&step, heads, kv, scale, rows, slots);
        return out;
    }
};

static void sparse_case(u32 heads, u32 kv, u32 length, std::vector<u32> starts) {
    Sparse m(heads, kv, length);
    const std::string name = std::to_string(heads) + "/" + std::to_string(kv) + " heads";
    // The cache, filled in uneven passes.
    for (u32 at = 0, i = 0; at < length; i++) {
        u32 rows = std::min(length - at, i % 3 == 0 ? 64u : i % 3 == 1 ? 1u : 13u);
        m.append(at, rows);
        at += rows;
    }
    bool exact = true;
    auto compressed = [&](const Buf<bf16>& keys, u32 window, u32 stride) {
        for (u32 j = 0; j * stride + window <= length; j++)
            for (u32 i = 0; i < m.width; i++) {
                float s = 0;
                for (u32 t = 0; t < window; t++) s += float(m.x.at(size_t(j * stride + t) * m.ldx + heads * HEAD + i));
                exact &= keys[size_t(j) * m.width + i] == narrow(s / window);
            }
    };
    compressed(m.k1, 32, 16);
    compressed(m.k2, 128, 64);
    for (u32 t = 0; t < length; t++)
        for (u32 i = 0; i < m.width; i++)
            exact &= m.k[size_t(t) * m.width + i] == m.x[size_t(t) * m.ldx + heads * HEAD + i] && m.v[size_t(t) * m.width + i] == m.x[size_t(t) * m.ldx + (heads + kv) * HEAD + i];
    check("append_kv " + name, exact);
    for (u32 start : starts)
        for (u32 rows : {1u, 5u, 16u}) {
            if (start + rows > length) continue;
            auto out = m.verify(start, rows, 0);
            m.compare("verify " + name + " at " + std::to_string(start) + " rows " + std::to_string(rows), start, rows, out.scores, out.list, out.count, out.o, 0);
            bool same = true;
            for (u32 r = 0; r < rows && rows == 16; r += 5) {
                auto one = m.verify(start + r, 1, 0);
                same &= memcmp(one.o.p, out.o.p + r * heads * HEAD, heads * HEAD * 4) == 0 && memcmp(one.list.p, out.list.p + r * kv * m.cap, one.count[0] * 4) == 0;
            }
            if (rows == 16) check("  rows have the bits of single rows", same);
        }
    for (auto [start, rows] : {std::pair<u32, u32>{0, 65}, {448, 63}, {length - 200, 200}}) {
        if (start + rows > length || length < 200) continue;
        auto out = m.prefill(start, rows, 0, 128, 11);
        m.compare("prefill " + name + " at " + std::to_string(start) + " rows " + std::to_string(rows), start, rows, out.scores, out.list, out.count, out.o, 0);
        auto tail = m.prefill(start + 64 < length ? start + rows / 64 * 64 : start, rows % 64 ? rows % 64 : 64, 0, 24, 2);
        if (rows % 64)
            check("  the same bits when cut", memcmp(tail.o.p, out.o.p + size_t(rows / 64 * 64) * heads * HEAD, tail.o.n * 4) == 0);
    }
    auto dense = m.verify(length - 70, 1, length);
    check("dense rows take every block", dense.count[0] == std::min(m.cap, (length - 70) / 64 + 1));
}

// The cut among 16384 blocks of few distinct scores, at the last position.
static void far_selection() {
    const u32 blocks = 16384, cap = 96;
    Buf<bf16> scores(2 * blocks);
    Buf<u32> list(2 * cap), count(2);
    Step step{blocks * 64 - 1, 0, 0, 0};
    for (u32 levels : {3u, 400u}) {
        for (u32 i = 0; i < scores.n; i++) scores.set(i, float(rng() % levels) / 64);
        launch("select_top", {2, 1, 1}, 512, 0, list.p, count.p, (const bf16*)scores.p, (const Step*)&step, 2u, blocks, cap, 1u, 32u, 96u, 0u, 0u, 1u);
        bool exact = true;
        for (u32 g = 0; g < 2; g++) {
            std::vector<u32> order;
            for (u32 b = 1; b < blocks - 33; b++) order.push_back(b);
            std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return scores.at(g * blocks + a) > scores.at(g * blocks + b); });
            order.resize(62);
            order.push_back(0);
            for (u32 b = blocks - 33; b < blocks; b++) order.push_back(b);
            std::sort(order.begin(), order.end());
            exact &= count[g] == 96 && std::equal(order.begin(), order.end(), list.p + g * cap);
        }
        check("selection among 16384 blocks", exact);
    }
}

static void sparse() {
    sparse_case(6, 2, 1400, {0, 5, 62, 63, 127, 447, 448, 500, 1023, 1380});
    sparse_case(32, 2, 640, {610, 624});
    sparse_case(2, 1, 17600, {4090, 17570});  // more coarse keys than one split has
    far_selection();
}

// ---- candidates, own products, draft head ------------------------------------------------------------------------------------

static void candidates() {
    for (u32 vocab : {73u, 3072u, 5000u, 20000u}) {
        const u32 rows = 3, splits = up(vocab, 2048), group = vocab < 16384 ? 8 : 32, groups = up(vocab, group);
        Buf<float> logits(rows * vocab), lse(rows * splits * 2), found(rows * 516);
        Buf<u32> tops(rows * groups);
        logits.normal(4);
        for (u32 i = 0; i < rows * vocab; i++) logits[i] = std::round(logits[i] * 8) / 8;  // ties everywhere
        for (u32 i = 0; i < vocab; i++) logits[2 * vocab + i] = i % 97 == 5 ? 2.f : i % 8 == 0 ? -1.f : 1.f;  // nothing but ties
        launch("candidates_tops", {splits, rows, 1}, 256, 0, tops.p, lse.p, (const float*)logits.p, vocab, vocab, group, rows, splits);
        launch("candidates_pick", {rows, 1, 1}, 1024, groups * 8, found.p, (const u32*)tops.p, (const float*)lse.p, (const float*)logits.p, vocab, vocab, group, rows, splits);
        bool exact = true;
        Error e;
        for (u32 r = 0; r < rows; r++) {
            const float* out_val = &found[r * 516];
            const u32* out_id = reinterpret_cast<const u32*>(out_val + 256);
            std::vector<u32> order(vocab);
            double s = 0;
            for (u32 i = 0; i < vocab; i++) order[i] = i, s += exp(double(logits[r * vocab + i]));
            std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return logits[r * vocab + a] > logits[r * vocab + b]; });
            for (u32 i = 0; i < 256; i++)
                exact &= i < vocab ? out_id[i] == order[i] && out_val[i] == logits[r * vocab + order[i]] : out_id[i] == 0xffffffffu;
            e.add(out_val[512], log(s));
        }
        check("candidates of " + std::to_string(vocab), exact);
        check("  log-sum-exp", e, 1e-6);
    }
}

static void gemm() {
    for (u32 rows : {1u, 64u, 200u}) {
        const u32 out = 136, inner = 160;
        Buf<bf16> x(rows * inner), w(out * inner), y16(rows * out);
        Buf<float> y(rows * out), h(rows * out);
        x.normal(1), w.normal(0.1f);
        for (u32 i = 0; i < h.n; i++) h[i] = float(i % 5);
        launch("gemm_f32", {up(rows, 128), up(out, 128), 1}, 256, 81920, (void*)y.p, out, (const bf16*)x.p, inner, (const bf16*)w.p, rows, out, inner, 1.f);
        launch("gemm_store", {up(rows, 128), up(out, 128), 1}, 256, 81920, (void*)y16.p, out, (const bf16*)x.p, inner, (const bf16*)w.p, rows, out, inner, 1.f);
        launch("gemm_add", {up(rows, 128), up(out, 128), 1}, 256, 81920, (void*)h.p, out, (const bf16*)x.p, inner, (const bf16*)w.p, rows, out, inner, 0.5f);
        Error e, e16, ea;
        for (u32 r = 0; r < rows; r++)
            for (u32 o = 0; o < out; o++) {
                double s = 0;
                for (u32 i = 0; i < inner; i++) s += x.at(r * inner + i) * w.at(o * inner + i);
                e.add(y[r * out + o], s), e16.add(y16.at(r * out + o), s), ea.add(h[r * out + o], (r * out + o) % 5 + 0.5 * s);
            }
        check("gemm of " + std::to_string(rows), e, 1e-6);
        check("  bf16", e16, 4e-3);
        check("  add", ea, 1e-6);
    }
}

static void draft() {
    const u32 heads = 6, kv = 2, window = 200, capacity = 280, splits = up(capacity, 128), ldkv = 2 * kv * HEAD, total = 700;
    Buf<bf16> kvs(total * ldkv), wk(capacity * kv * HEAD), wv(wk.n), q(heads * HEAD);
    Buf<double> inv(64);
    kvs.normal(1), q.normal(1);
    for (u32 i = 0; i < 64; i++) inv[i] = pow(10000.0, -2.0 * i / 128);
    const u32 base = 1000000;
    DraftStep step{0, base + 3, {}};
    auto turn = [&](const bf16* x, u32 p, double* y) {
        for (u32 i = 0; i < 64; i++) {
            double a = widen(x[i]), b = widen(x[i + 64]), c = cos(p * inv[i]), s = sin(p * inv[i]);
            y[i] = round16(a * c - b * s), y[i + 64] = round16(b * c + a * s);
        }
    };
    Error e;
    for (u32 at = 0; at < total; at += 7) {
        step.position = base + at;
        launch("draft_append", {7, kv, 1}, 64, 0, wk.p, wv.p, (const bf16*)kvs.p + at * ldkv, ldkv, (const double*)inv.p, (const DraftStep*)&step, capacity, kv, 7u);
        if (at % 140 && at > 14) continue;
        Buf<float> part_o(heads * splits * HEAD), part_ml(heads * splits * 2);
        Buf<bf16> o(heads * HEAD);
        const u32 row = 4, p = at + row;  // rows 5 and 6 are ahead of the query
        launch("draft_attend", {splits, kv, 1}, 128, 34816, part_o.p, part_ml.p, (const bf16*)q.p, (const bf16*)wk.p, (const bf16*)wv.p, (const double*)inv.p, (const DraftStep*)&step,
               capacity, window, heads, kv, 0.088388f, row, splits);
        launch("draft_combine", {heads, 1, 1}, 128, 0, o.p, (const float*)part_o.p, (const float*)part_ml.p, heads, splits);
        for (u32 h = 0; h < heads; h++) {
            double qr[128], kr[128], y[128] = {}, l = 0;
            turn(q.p + h * HEAD, base + p, qr);
            for (u32 t = std::max<int>(3, int(p) - int(window) + 1); t <= p; t++) {
                turn(kvs.p + t * ldkv + h / 3 * HEAD, base + t, kr);
                double s = 0;
                for (u32 i = 0; i < HEAD; i++) s += qr[i] * kr[i];
                s = exp(s * 0.088388);
                l += s;
                for (u32 i = 0; i < HEAD; i++) y[i] += s * kvs.at(t * ldkv + (kv + h / 3) * HEAD + i);
            }
            for (u32 i = 0; i < HEAD; i++) e.add(o.at(h * HEAD + i), y[i] / l);
        }
    }
    check("draft window", e, 6e-3);

    const u32 hidden = 320, vocab = 40, rows = 3;
    Buf<bf16> table(vocab * hidden), x(rows * 2 * hidden);
    Buf<float> g(rows * hidden), n1(hidden), n2(hidden);
    Buf<u32> tokens(rows);
    table.normal(1), g.normal(2), n1.normal(1), n2.normal(1);
    tokens[0] = 7, tokens[1] = 39, tokens[2] = 0;
    auto before = g.copy();
    launch("draft_input", {rows, 1, 1}, 256, 0, x.p, g.p, (const bf16*)table.p, (const u32*)tokens.p, (const float*)n1.p, (const float*)n2.p, 3.f, 1e-6f, 1u, hidden, vocab, rows);
    Error ex;
    for (u32 r = 0; r < rows; r++) {
        double se = 0, sg = 0;
        for (u32 i = 0; i < hidden; i++) se += pow(3 * table.at(tokens[r] * hidden + i), 2), sg += pow(double(before[r * hidden + i]), 2);
        for (u32 i = 0; i < hidden; i++) {
            double a = 3 * table.at(tokens[r] * hidden + i) / sqrt(se / hidden + 1e-6) * n1[i], b = before[r * hidden + i] / sqrt(sg / hidden + 1e-6) * n2[i];
            ex.add(x.at(r * 2 * hidden + i), a), ex.add(x.at(r * 2 * hidden + hidden + i), b), ex.add(g[r * hidden + i], b);
        }
    }
    check("draft_input", ex, 4e-3);
}

static void rows() {
    const u32 hidden = 264, vocab = 30, n = 3;
    Buf<bf16> table(vocab * hidden), taps16(n * 2 * hidden);
    Buf<float> h(n * hidden), taps(n * 2 * hidden), norm(hidden);
    Buf<u32> tokens(n);
    table.normal(1), norm.normal(1);
    tokens[0] = 29, tokens[1] = 30, tokens[2] = 0;
    launch("embed_rows", {n, 1, 1}, 256, 0, h.p, (const bf16*)table.p, (const u32*)tokens.p, hidden, vocab, 12.f, n);
    bool exact = true;
    for (u32 r = 0; r < n; r++)
        for (u32 i = 0; i < hidden; i++) exact &= h[r * hidden + i] == (tokens[r] < vocab ? 12 * float(table.at(tokens[r] * hidden + i)) : 0);
    check("embed_rows", exact);
    launch("tap_rows", {n, 1, 1}, 256, 0, taps.p + hidden, 2 * hidden, (const float*)h.p, hidden, n);
    launch("tap_rows_bf16", {n, 1, 1}, 256, 0, taps16.p + hidden, 2 * hidden, (const float*)h.p, hidden, n);
    exact = true;
    for (u32 r = 0; r < n; r++)
        for (u32 i = 0; i < hidden; i++) exact &= taps[(2 * r + 1) * hidden + i] == h[r * hidden + i] && taps16[(2 * r + 1) * hidden + i] == narrow(h[r * hidden + i]);
    check("tap_rows", exact);
    Buf<bf16> w(100000), again(100000);
    launch("random_bf16", {98, 1, 1}, 256, 0, w.p, u64(100000), 0.5f, u64(3));
    double s = 0, ss = 0;
    for (u32 i = 0; i < w.n; i++) s += w.at(i), ss += w.at(i) * w.at(i);
    check("random_bf16", std::fabs(s / w.n) < 0.01 && std::fabs(sqrt(ss / w.n) - 0.5) < 0.01);
    // The same numbers as `backend::synthetic_value`.
    auto value = [](u64 seed, u64 index, float std) {
        u64 z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull, z = (z ^ (z >> 27)) * 0x94D049BB133111EBull, z ^= z >> 31;
        return (2.f * (float(z >> 40) / float(1u << 24)) - 1.f) * std * 1.7320508f;
    };
    exact = true;
    for (u32 i = 0; i < w.n; i++) exact &= w[i] == narrow(value(3, i, 0.5f));
    check("random_bf16 formula", exact);
    Buf<bf16> x16(2 * hidden), y16(2 * hidden), z16(2 * hidden);
    Buf<float> x32(2 * hidden);
    x16.normal(2);
    for (u32 i = 0; i < 2 * hidden; i++) x32[i] = float(x16.at(i));
    launch("norm_rows_bf16", {2, 1, 1}, 256, 0, y16.p, hidden, (const bf16*)x16.p, hidden, (const float*)norm.p, hidden, 1e-6f, 2u);
    launch("norm_rows", {2, 1, 1}, 256, 0, z16.p, hidden, (const float*)x32.p, hidden, (const float*)norm.p, hidden, 1e-6f, 1.f, 2u);
    check("norm_rows_bf16", same_bits(y16.copy(), z16.p));
    Buf<uint32_t> words(4 * 5000);
    Buf<float> sums(2);
    for (u32 i = 0; i < words.n; i++) words[i] = i % 4 ? 0 : i % 64;
    launch("measure_read", {2, 1, 1}, 512, 0, sums.p, (const void*)words.p, u64(5000));
    double total = 0;
    for (u32 i = 0; i < words.n; i++) total += words[i];
    check("measure_read", sums[0] + sums[1] == total);
    Buf<float> f(1500);
    launch("fill_f32", {2, 1, 1}, 256, 0, f.p, u64(1500), 2.5f);
    check("fill_f32", std::count(f.p, f.p + 1500, 2.5f) == 1500);
}
