//! Events and effects: the interface between the state and the program around it.

use super::keys::Key;
use super::palette::Palette;
use super::rows::Span;
use crate::core::Exit;
use crate::runtime::protocol::{Notice, Request};

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Key(Key),
    Paste(String),
    // The wheel: rows, negative is up.
    Wheel(isize),
    Resize { width: u16, height: u16 },
    Focus(bool),
    Notice(Notice),
    // Completions of the whole prefix; folders end in `/`.
    Paths { prefix: String, found: Vec<String> },
    // Paths below the working folder, best first.
    Files { query: String, found: Vec<String> },
    FoundPaths(Vec<String>),
    Edited(Result<String, String>),
    Copied(Result<String, String>),
    Kept(Result<String, String>),
    Theme(Result<Palette, String>),
    CodeTheme(Result<String, String>),
    Highlighted { lang: String, code: String, lines: Vec<Vec<Span>> },
    Tick,
    Frame,
    Terminate,
    // SIGINT: like Ctrl-C twice.
    Interrupt,
    Resumed,
    NotSuspended(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Send(Request),
    Copy(String),
    ListPaths(String),
    ListFiles(String),
    // Checks which of these paths exist; [`Event::FoundPaths`] follows before any other event.
    FindPaths(Vec<String>),
    Editor(String),
    Keep { key: &'static str, value: String },
    Theme(String),
    CodeTheme(String),
    Highlight { lang: String, code: String },
    Suspend,
    Repaint,
    Notify(String),
    Exit { exit: Exit, farewell: Option<String> },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Redraw {
    #[default]
    No,
    /// New text arrived: drawn at most 30 times a second.
    Stream,
    /// The user did something: drawn at once.
    Now,
}
