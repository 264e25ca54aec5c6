//! Ids, messages, the shape of the model, exit codes, and numbers for people: small things that every room uses.

pub mod caught;
mod exit;
pub mod files;
mod machine;
mod numbers;
pub mod places;
mod random;
pub mod sanitize;
pub mod spec;
pub mod transcript;

pub use exit::Exit;
pub use files::plain_words;
pub use machine::{now_ms, printed};
pub use numbers::{about, bytes, counted, grouped, percent};
pub use random::{GOLDEN, SplitMix64, mix};
