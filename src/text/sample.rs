//! The sample document that comes with the program, for whoever has nothing at hand to ask about.
//!
//! It is loaded by a name that no file has. Its questions are answered by the built-in model; a test holds it to that.

use super::sources::Document;

/// What `/load` calls it.
pub const PATH: &str = "sample:lighthouse.md";
/// The name the model sees.
pub const NAME: &str = "lighthouse.md";
/// Questions about it that are offered to a newcomer.
pub const QUESTIONS: [&str; 2] = ["Who built the lighthouse?", "How much is a ticket?"];

const TEXT: &str = include_str!("../../assets/sample/lighthouse.md");

/// The document, if that is what a path means.
pub fn document(path: &str) -> Option<Document> {
    (path == PATH).then(|| Document {
        name: NAME.to_owned(),
        path: None,
        text: TEXT.to_owned(),
        note: None,
        guessed: None,
    })
}
