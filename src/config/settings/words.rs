//! Settings with words as values, as types.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::value::{Field, plain};

/// An enum with a word for each variant in the configuration: `WORDS`, [`word`](Theme::word), [`from_word`](Theme::from_word).
macro_rules! words {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$inner:meta])* $variant:ident = $word:literal ),+ $(,)? } )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub enum $name {
            $( $(#[$inner])* #[serde(rename = $word)] $variant ),+
        }

        plain!($name);

        impl $name {
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            pub const fn word(self) -> &'static str {
                match self {
                    $( $name::$variant => $word ),+
                }
            }

            pub fn from_word(word: &str) -> Option<Self> {
                Self::from_value(&Value::from(word))
            }
        }
    )+};
}

words! {
    UnknownFields {
        #[default]
        Ignore = "ignore",
        Refuse = "refuse",
    }

    ThoughtView {
        Open = "open",
        /// Open while they run, one line once the answer starts.
        #[default]
        Fold = "fold",
        Hide = "hide",
    }

    NewFiles {
        #[default]
        Ask = "ask",
        Take = "take",
        Ignore = "ignore",
    }

    SaveStates {
        #[default]
        Turn = "turn",
        Exit = "exit",
        Never = "never",
    }

    Switch {
        #[default]
        Auto = "auto",
        On = "on",
        Off = "off",
    }

    /// The built-in colours: all of them use the terminal's own 16 colours and attributes.
    Theme {
        #[default]
        Auto = "auto",
        Dark = "dark",
        Light = "light",
        /// Attributes only, no colour. Also chosen by `NO_COLOR`.
        Plain = "plain",
    }

    Glyphs {
        #[default]
        Auto = "auto",
        Unicode = "unicode",
        Ascii = "ascii",
    }

    /// How copied text leaves the program. Also written to the copy file.
    ClipboardMethod {
        #[default]
        Auto = "auto",
        Osc52 = "osc52",
        File = "file",
    }
}

pub use Switch as ThinkMode;

/// Code colours: the terminal's 16 (`auto`), or a theme of the highlighter; its test compares the lists.
pub const CODE_THEMES: &[&str] = &[
    "auto",
    "1337",
    "ansi",
    "base16",
    "base16-256",
    "base16-eighties-dark",
    "base16-mocha-dark",
    "base16-ocean-dark",
    "base16-ocean-light",
    "catppuccin-frappe",
    "catppuccin-latte",
    "catppuccin-macchiato",
    "catppuccin-mocha",
    "coldark-cold",
    "coldark-dark",
    "darkneon",
    "dracula",
    "github",
    "gruvbox-dark",
    "gruvbox-light",
    "inspiredgithub",
    "monokai-extended",
    "monokai-extended-bright",
    "monokai-extended-light",
    "monokai-extended-origin",
    "nord",
    "onehalfdark",
    "onehalflight",
    "solarized-dark",
    "solarized-light",
    "sublime-snazzy",
    "twodark",
    "zenburn",
];

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ModelSource {
    /// The downloaded weights if they are there and a GPU can be used, else the built-in model.
    #[default]
    Auto,
    Demo,
    /// Random weights in a given shape, for measurements: the part after `synthetic:`.
    Synthetic(String),
    Path(String),
}

impl From<&str> for ModelSource {
    fn from(text: &str) -> Self {
        match text {
            "" | "auto" => ModelSource::Auto,
            "demo" => ModelSource::Demo,
            _ => match text.strip_prefix("synthetic:") {
                Some(shape) => ModelSource::Synthetic(shape.to_owned()),
                None => ModelSource::Path(text.to_owned()),
            },
        }
    }
}

/// The server that `engine.url` names; none for nothing, and for `here`, an engine of this process.
pub fn server(url: &str) -> Option<&str> {
    Some(url.trim()).filter(|url| !matches!(*url, "" | "here"))
}
