//! Ids, messages, the shape of the model, exit codes, and numbers for people: small things that every room uses.

pub mod caught;
mod exit;
pub mod files;
mod numbers;
pub mod places;
mod random;
pub mod sanitize;
pub mod spec;
mod time;
mod tool;
pub mod transcript;

pub use exit::Exit;
pub use files::plain_words;
pub use numbers::{about, bytes, counted, grouped, percent};
pub use random::{GOLDEN, SplitMix64, mix};
pub use time::now_ms;
pub use tool::printed;
