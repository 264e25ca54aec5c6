//! The inference thread: sequences, speculation, golden data.

mod golden;
mod sequences;
mod speculation;
mod thread;
