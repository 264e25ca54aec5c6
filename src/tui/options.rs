//! Options of the interface, set by the configuration and by commands.

use std::path::PathBuf;

use super::keys::KeyTable;
use super::palette::Palette;
pub use crate::config::settings::{ClipboardMethod, Switch as Panel, Theme as ThemeName, ThoughtView as ThinkShow};
use crate::runtime::protocol::{Display, SessionRow};

pub const PANEL_FROM: u16 = 120;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Glyphs {
    #[default]
    Unicode,
    /// `|`, `-`, `#`, `.` only.
    Ascii,
}

impl Glyphs {
    pub fn pick<T>(self, unicode: T, ascii: T) -> T {
        match self {
            Glyphs::Unicode => unicode,
            Glyphs::Ascii => ascii,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// `NO_COLOR` and `CLICOLOR=0`: attributes only, in every theme.
    None,
    Sixteen,
    /// The 16 colours and a fixed cube.
    Fixed,
    /// 8 bits each of red, green and blue.
    #[default]
    Rgb,
}

#[derive(Clone, Debug, Default)]
pub struct UiConfig {
    /// Requests sent before the interface started, in the runtime's numbering.
    pub sent_before: u64,
    pub ui: crate::config::settings::UiConfig,
    pub theme: Palette,
    /// The terminal has a light background; the theme `auto` follows it.
    pub light: bool,
    pub themes_dir: Option<PathBuf>,
    pub presets_dir: Option<PathBuf>,
    pub themes: Vec<String>,
    pub depth: Depth,
    pub glyphs: Glyphs,
    /// Else the glyphs are ASCII if the terminal draws lines two cells wide.
    pub fixed_glyphs: bool,
    /// Without the alternate screen.
    pub inline: bool,
    pub think_show: ThinkShow,
    pub clipboard: ClipboardMethod,
    pub keys: KeyTable,
    pub settings: crate::config::settings::Loaded,
    pub settings_file: Option<PathBuf>,
    pub home: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub utc_offset_min: i32,
    /// The session of this folder that Enter continues at the start.
    pub offer: Option<SessionRow>,
}

impl UiConfig {
    pub fn display(&self) -> Display {
        vec![
            ("thinking.show", self.think_show.word().to_owned()),
            ("ui.look", self.ui.look.to_string()),
            ("ui.theme", self.theme.name.clone()),
            ("ui.code_theme", self.ui.code_theme.clone()),
        ]
    }

    pub fn set_display(&mut self, display: &Display) {
        for (key, value) in display {
            match *key {
                "thinking.show" => self.think_show = ThinkShow::from_word(value).unwrap_or(self.think_show),
                "ui.look" => self.ui.look = value.parse().unwrap_or(self.ui.look),
                _ => {}
            }
        }
    }
}
