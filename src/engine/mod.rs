//! The thread that owns model and state: prefill, decode, speculation, sampling.

mod jobs;
mod look;
pub mod ngram;
pub mod policy;
pub mod sampler;
pub mod schedule;
pub mod speculate;
pub mod worker;

pub mod fit;
mod keep;
mod open;
mod speed;
