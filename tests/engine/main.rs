//! The inference thread: sequences, speculation, golden data.

mod capture;
mod golden;
mod sequences;
mod speculation;
mod thread;
