//! The sample document, loaded by a name that no file has. A test asks the built-in model its questions.

pub const PATH: &str = "sample:lighthouse.md";
pub const NAME: &str = "lighthouse.md";
/// Questions about it that a new user is offered.
pub const QUESTIONS: [&str; 2] = ["Who built the lighthouse?", "How much is a ticket?"];

pub(super) const TEXT: &str = include_str!("../../assets/sample/lighthouse.md");
