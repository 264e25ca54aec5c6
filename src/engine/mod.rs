//! The thread that owns model and state: prefill, decode, speculation, sampling.

mod jobs;
mod look;
pub mod ngram;
pub mod policy;
pub mod room;
pub mod sampler;
pub mod schedule;
mod score;
mod seats;
pub mod speculate;
mod tasks;
pub mod worker;

pub mod fit;
mod keep;
mod open;
mod speed;
