//! Events and effects: the interface between the state and the program around it.

use super::keys::Key;
use super::palette::{Palette, ThemeRow};
use super::rows::Span;
use crate::core::Exit;
use crate::runtime::protocol::{Notice, Request};

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A key was pressed.
    Key(Key),
    Paste(String),
    /// The wheel: rows, negative is up.
    Wheel(isize),
    Click {
        /// Column of the screen, from 0.
        x: u16,
        /// Row of the screen, from 0.
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
    /// Answer to [`Effect::ListPaths`].
    Paths {
        prefix: String,
        /// Completions of the whole prefix; folders end in `/`.
        found: Vec<String>,
    },
    /// Answer to [`Effect::ListFiles`].
    Files {
        query: String,
        /// Paths below the working folder, best first.
        found: Vec<String>,
    },
    /// Answer to [`Effect::FindPaths`]: those that exist.
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
    /// Bring a text to the clipboard; answered by [`Event::Copied`].
    Copy(String),
    /// Complete a path; answered by [`Event::Paths`].
    ListPaths(String),
    /// Find files below the working folder that match; answered by [`Event::Files`].
    ListFiles(String),
    /// Say which of these paths exist; answered by [`Event::FoundPaths`] before anything else.
    FindPaths(Vec<String>),
    /// Open the user's editor on a text; answered by [`Event::Edited`].
    Editor(String),
    /// Write a setting into the settings file; answered by [`Event::Kept`].
    Keep {
        key: &'static str,
        value: String,
    },
    /// Read a theme, built in or from a file; answered by [`Event::Theme`].
    Theme(String),
    ListThemes,
    CodeTheme(String),
    /// Colour a code block; answered by [`Event::Highlighted`].
    Highlight {
        lang: String,
        code: String,
    },
    /// Suspend the process; answered by [`Event::Resumed`] or [`Event::NotSuspended`].
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
    /// Text arrived: at most 30 times a second.
    Stream,
    /// The user did something: at once.
    Now,
}
