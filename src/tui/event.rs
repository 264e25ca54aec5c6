//! What reaches the interface and what it asks for: the whole of its contract with the shell.

use super::keys::Key;
use super::palette::{Palette, ThemeRow};
use super::rows::Span;
use crate::core::Exit;
use crate::runtime::protocol::{Notice, Request};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A key was pressed.
    Key(Key),
    /// Text was pasted.
    Paste(String),
    /// The wheel: rows, negative is up.
    Wheel(isize),
    /// The left button went down on a cell.
    Click {
        /// Column of the screen, from 0.
        x: u16,
        /// Row of the screen, from 0.
        y: u16,
    },
    /// The mouse moved with the left button down.
    Drag {
        /// Column of the screen, from 0.
        x: u16,
        /// Row of the screen, from 0.
        y: u16,
    },
    /// The left button went up.
    Release,
    /// The terminal has a new size.
    Resize {
        /// In columns.
        width: u16,
        /// In rows.
        height: u16,
    },
    /// The window got or lost the focus.
    Focus(bool),
    /// The runtime says something.
    Notice(Notice),
    /// Answer to [`Effect::ListPaths`].
    Paths {
        /// What was asked.
        prefix: String,
        /// Completions of the whole prefix; folders end in `/`.
        found: Vec<String>,
    },
    /// Answer to [`Effect::ListFiles`].
    Files {
        /// What was asked.
        query: String,
        /// Files and folders below the working folder, best first.
        found: Vec<String>,
    },
    /// Answer to [`Effect::FindPaths`]: those that exist.
    FoundPaths(Vec<String>),
    /// Answer to [`Effect::Editor`]: the text as left in the editor, or why there is none.
    Edited(Result<String, String>),
    /// Answer to [`Effect::Copy`]: the sentence to show.
    Copied(Result<String, String>),
    /// Answer to [`Effect::Keep`]: the sentence to show.
    Kept(Result<String, String>),
    /// Answer to [`Effect::Theme`]: its colours, or what is wrong with it.
    Theme(Result<Palette, String>),
    /// Answer to [`Effect::ListThemes`].
    Themes(Vec<ThemeRow>),
    /// Answer to [`Effect::CodeTheme`]: its name, or what is wrong with it.
    CodeTheme(Result<String, String>),
    /// Answer to [`Effect::Highlight`].
    Highlighted {
        /// As written after the fence.
        lang: String,
        /// Without the fence.
        code: String,
        /// Coloured lines.
        lines: Vec<Vec<Span>>,
    },
    /// A moment asked for by [`App::deadline`](super::App::deadline) has come.
    Tick,
    /// A frame is about to be drawn: lay out what is on screen.
    Frame,
    /// Somebody outside wants the program to end.
    Terminate,
    /// SIGINT from outside: like Ctrl-C twice.
    Interrupt,
    /// The process is back after being suspended.
    Resumed,
    /// The process was to be suspended and was not: why.
    NotSuspended(String),
}

/// Something to be done outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Tell the runtime.
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
        /// Full name.
        key: &'static str,
        /// Value, as it is written there.
        value: String,
    },
    /// Read a theme, built in or from a file; answered by [`Event::Theme`].
    Theme(String),
    /// List the themes there are; answered by [`Event::Themes`].
    ListThemes,
    /// Colour code by another theme from now on; answered by [`Event::CodeTheme`].
    CodeTheme(String),
    /// Colour a code block; answered by [`Event::Highlighted`].
    Highlight {
        /// As written after the fence.
        lang: String,
        /// Without the fence.
        code: String,
    },
    /// Suspend the process; answered by [`Event::Resumed`] or [`Event::NotSuspended`].
    Suspend,
    /// Draw everything again.
    Repaint,
    /// Ask the terminal to notify the user.
    Notify(String),
    /// End the program.
    Exit {
        /// How.
        exit: Exit,
        /// Printed after the terminal is restored.
        farewell: Option<String>,
    },
}

/// How soon a frame is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Redraw {
    /// Nothing changed.
    #[default]
    No,
    /// Text arrived: at most 30 times a second.
    Stream,
    /// The user did something: at once.
    Now,
}
