//! Measurements of the store, by hand: `cargo test --release --test store_measure -- --ignored --nocapture`.
//!
//! State is shaped like the 9B model's: 8 KiB of KV rows per token in 16 tensors, 48 MiB of recurrent state in 24. Reads
//! are served by the page cache unless it is dropped in between, so compare with the figure of the raw read.

use crate::store_support;

use std::time::Instant;

use sala_chat::core::transcript::Role;
use sala_chat::engine::protocol::{CheckpointImage, Dtype, ImageTensor, RowsImage, StateImage};
use sala_chat::store::{Change, RealDisk, Save, Watch};
use store_support::*;

fn tensor(name: String, shape: Vec<usize>, dtype: Dtype) -> ImageTensor {
    let bytes = shape.iter().product::<usize>() * dtype.size();
    let data: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
    ImageTensor { name, dtype, shape, data: data.into() }
}

#[test]
#[ignore = "a measurement"]
fn figures() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "big");
    bench.save(save);
    let ms = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;

    let mut times: Vec<f64> = (0..50)
        .map(|n| {
            let mut save = chat.turn(&bench.store, &format!("question {n}"), "answer");
            save.images.clear();
            save.changes.retain(|c| !matches!(c, Change::AddSegment(_) | Change::Link { .. }));
            let begun = Instant::now();
            bench.save(save);
            ms(begun)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("text of a turn: median {:.2} ms, longest {:.2} ms", times[25], times[49]);

    (chat.tip, chat.position) = (None, 0);
    let tokens = 32_768;
    let mut bytes = 0;
    let mut writing = 0.0;
    for part in 0..4 {
        let mut save = chat.document(&bench.store, &format!("{part} {}", "x".repeat(tokens - 2)), 1);
        let rows =
            (0..8).flat_map(|l| ["k", "v"].map(|n| tensor(format!("{n}.{l}"), vec![tokens, 2, 128], Dtype::Bf16)));
        let end = (0..24).map(|l| tensor(format!("state.{l}"), vec![32, 128, 128], Dtype::F32));
        let start = chat.segments.last().unwrap().start;
        let image = StateImage {
            rows: RowsImage { start, rows: tokens as u64, tensors: rows.collect(), segment: None },
            end: Some(CheckpointImage { position: start + tokens as u64, tensors: end.collect() }),
        };
        let all = image.rows.tensors.iter().chain(&image.end.as_ref().unwrap().tensors);
        bytes += all.map(|t| t.data.len()).sum::<usize>();
        save.images[0].1 = image;
        let begun = Instant::now();
        assert!(is_saved(&bench.save(save)));
        writing += ms(begun);
    }
    println!("saved {} MiB of state in {writing:.0} ms: {:.0} MB/s", bytes >> 20, bytes as f64 / 1e3 / writing);

    let begun = Instant::now();
    let mut raw = 0;
    for entry in std::fs::read_dir(dir.path().join("segments")).unwrap() {
        raw += std::fs::read(entry.unwrap().path()).unwrap().len();
    }
    println!("raw read {} MiB: {:.0} ms", raw >> 20, ms(begun));
    let begun = Instant::now();
    let saved = restore(&bench.store, &chat.tip.unwrap(), 0).unwrap();
    let took = ms(begun);
    let mib = saved.plan.bytes() >> 20;
    println!("restored {} tokens, {mib} MiB, all of it checked: {took:.0} ms", saved.plan.kept_tokens());
    let begun = Instant::now();
    bench.store.plan_restore(&chat.tip.unwrap()).unwrap();
    println!("planned in {:.2} ms", ms(begun));

    let words: Vec<String> = (0..600_000u32).map(|i| format!("w{:x}", i.wrapping_mul(0x9e37_79b1) >> 12)).collect();
    let text = words.join(" ");
    let m = message(&bench.store, chat.head, Role::Document, &text);
    let begun = Instant::now();
    let put = Change::PutMessage { session: chat.session, message: Box::new(m) };
    assert!(is_saved(&bench.save(Save { changes: vec![put], images: vec![] })));
    println!("text of {} KB saved in {:.0} ms", text.len() / 1000, ms(begun));
    let begun = Instant::now();
    bench.store.index_texts(&Watch::NONE).unwrap();
    assert!(bench.writer.flush(soon()));
    println!("and indexed within {:.0} ms", ms(begun));
    let begun = Instant::now();
    assert_eq!(bench.store.search(&words[300_000], 1, &Watch::NONE).unwrap().len(), 1);
    println!("found in {:.1} ms", ms(begun));
    println!("database {} MB", bench.store.sizes(None).unwrap().database_bytes / 1_000_000);
}
