//! Events and effects: the interface between the state and the program around it.

use super::files::FileRow;
use super::keys::Key;
use super::palette::{Palette, ThemeRow};
use super::rows::Span;
use crate::core::Exit;
use crate::runtime::protocol::{Notice, Request};

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Key(Key),
    Paste(String),
    /// The wheel: rows, negative is up.
    Wheel(isize),
    Click {
        x: u16,
        y: u16,
    },
    Drag {
        x: u16,
        y: u16,
    },
    Release,
    Resize {
        width: u16,
        height: u16,
    },
    Focus(bool),
    Notice(Notice),
    /// Result of [`Effect::ListPaths`].
    Paths {
        prefix: String,
        /// Completions of the whole prefix; folders end in `/`.
        found: Vec<String>,
    },
    /// Result of [`Effect::ListFiles`].
    Files {
        query: String,
        /// Paths below the working folder, best first.
        found: Vec<String>,
    },
    /// Result of [`Effect::ListFolder`].
    Folder {
        folder: String,
        found: Result<Vec<FileRow>, String>,
    },
    /// Result of [`Effect::FindPaths`]: the existing paths.
    FoundPaths(Vec<String>),
    Edited(Result<String, String>),
    Copied(Result<String, String>),
    Kept(Result<String, String>),
    Theme(Result<Palette, String>),
    Themes(Vec<ThemeRow>),
    CodeTheme(Result<String, String>),
    Highlighted {
        lang: String,
        code: String,
        lines: Vec<Vec<Span>>,
    },
    Tick,
    Frame,
    Terminate,
    /// SIGINT: like Ctrl-C twice.
    Interrupt,
    Resumed,
    NotSuspended(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Send(Request),
    /// Copies a text to the clipboard; [`Event::Copied`] follows.
    Copy(String),
    /// Completes a path; [`Event::Paths`] follows.
    ListPaths(String),
    /// Finds matching files below the working folder; [`Event::Files`] follows.
    ListFiles(String),
    /// Lists a folder, folders first; [`Event::Folder`] follows.
    ListFolder(String),
    /// Checks which of these paths exist; [`Event::FoundPaths`] follows before any other event.
    FindPaths(Vec<String>),
    /// Opens the user's editor; [`Event::Edited`] follows.
    Editor(String),
    /// Writes a setting to the settings file; [`Event::Kept`] follows.
    Keep {
        key: &'static str,
        value: String,
    },
    /// Reads a theme, built in or from a file; [`Event::Theme`] follows.
    Theme(String),
    ListThemes,
    CodeTheme(String),
    /// Colours a code block; [`Event::Highlighted`] follows.
    Highlight {
        lang: String,
        code: String,
    },
    /// Suspends the process; [`Event::Resumed`] or [`Event::NotSuspended`] follows.
    Suspend,
    Repaint,
    Notify(String),
    Exit {
        exit: Exit,
        farewell: Option<String>,
    },
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
