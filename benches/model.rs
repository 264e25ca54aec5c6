//! Speed of the built-in model on the CPU.
//!
//! Method: prefill of N tokens in the backend's own chunks, averaged over all of them; then 64 decode steps of one row.
//! Read it as tokens per second of wall time on an idle machine. `cargo bench --bench model [-- N…]`; under `cargo test` it
//! runs once over a few tokens, to see that it works.

use std::time::Instant;

use sala_chat::backend::cpu::Cpu;
use sala_chat::backend::prelude::*;
use sala_chat::engine::protocol::Token;
use sala_chat::model::{Checkpoint, Live, Model};

fn measure(context: usize, steps: usize) -> Result<(), sala_chat::model::ModelError> {
    let mut b = Cpu::new();
    let model = Model::load(&mut b, &Checkpoint::open("demo")?, |_| ())?;
    let mut live = Live::new(&mut b, &model, context + steps, &[])?;
    let tokens: Vec<Token> = (0..context as u64).map(|i| ((i * i * 31 + i * 7) % 3000) as Token).collect();
    let started = Instant::now();
    for chunk in tokens.chunks(b.prefill_rows()) {
        live.prefill_state(&mut b, &model, chunk)?;
        live.advance(&mut b, chunk.len())?;
    }
    let prefill = context as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    for i in 0..steps {
        live.verify(&mut b, &model, &[(i % 3000) as Token])?;
        live.advance(&mut b, 1)?;
    }
    let decode = steps as f64 / started.elapsed().as_secs_f64();
    println!("{:8} tokens: prefill {prefill:8.0} tok/s, decode {decode:6.0} tok/s, {:?}", context, b.memory());
    Ok(())
}

fn main() -> Result<(), sala_chat::model::ModelError> {
    let bench = std::env::args().any(|a| a == "--bench");
    let mut contexts: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    if contexts.is_empty() {
        contexts = if bench { vec![512, 8192, 32_768] } else { vec![64] };
    }
    contexts.into_iter().try_for_each(|n| measure(n, if bench { 64 } else { 2 }))
}
