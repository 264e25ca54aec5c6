//! Rules of the sources, documents and outputs.

mod docs;
mod layering;
mod outputs;
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../support/sources.rs"]
mod sources;
mod words;
