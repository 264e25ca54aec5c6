//! The sample document that comes with the program, for whoever has nothing at hand to ask about.
//!
//! It is loaded by a name that no file has. Its questions are answered by the built-in model; a test holds it to that.

/// What `/load` calls it.
pub const PATH: &str = "sample:lighthouse.md";
/// The name the model sees.
pub const NAME: &str = "lighthouse.md";
/// Questions about it that are offered to a newcomer.
pub const QUESTIONS: [&str; 2] = ["Who built the lighthouse?", "How much is a ticket?"];

/// What it says.
pub(super) const TEXT: &str = include_str!("../../assets/sample/lighthouse.md");
