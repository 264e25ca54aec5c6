//! Small things that every layer uses and none owns.

pub mod caught;
mod exit;
mod numbers;
pub mod places;
mod random;
mod time;

pub use exit::Exit;
pub use numbers::{about, bytes, counted, grouped, percent};
pub use random::{GOLDEN, SplitMix64, mix};
pub use time::now_ms;
