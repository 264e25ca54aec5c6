//! Cost of the n-gram index: rebuild of a million tokens, a million appends, lookup. Run with `cargo bench --bench ngram`.
//! Text is made of repeated passages so that chains are long, the worst case for lookups.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use sala_chat::engine::ngram::NgramIndex;

fn text(n: usize) -> Vec<u32> {
    let mut state = 1u64;
    (0..n)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A passage of 700 tokens comes back every 5,000.
            if i % 5_000 < 700 { (i % 5_000) as u32 } else { (state >> 45) as u32 % 70_000 }
        })
        .collect()
}

fn bench(c: &mut Criterion) {
    let million = text(1_000_000);
    let mut index = NgramIndex::default();
    index.extend(&million);
    let mut group = c.benchmark_group("ngram");
    group.sample_size(10);
    group.bench_function("rebuild 1M tokens", |b| {
        b.iter(|| {
            let mut index = NgramIndex::default();
            index.extend(black_box(&million));
            index
        });
    });
    // As while decoding: a token at a time, from the first to the millionth, growth of the tables included.
    group.bench_function("push of 1M tokens one by one", |b| {
        b.iter(|| {
            let mut index = NgramIndex::default();
            million.iter().for_each(|&t| index.push(black_box(t)));
            index
        });
    });
    group.bench_function("lookup of 15 behind 1M", |b| b.iter(|| index.lookup(black_box(15), 3)));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
