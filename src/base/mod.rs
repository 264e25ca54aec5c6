//! Small things that every layer uses and none owns.

mod numbers;

pub use numbers::{bytes, counted, grouped};
