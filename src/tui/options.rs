//! Options of the interface, set by the configuration and by commands.

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    Sixteen,
    /// The 16 colours and a fixed cube.
    Fixed,
    /// 8 bits each of red, green and blue.
    #[default]
    Rgb,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    Never,
    #[default]
    Unfocused,
    Always,
}

#[derive(Clone, Debug)]
pub struct UiConfig {
    /// Requests sent before the interface started, in the runtime's numbering.
    pub sent_before: u64,
    pub theme: Palette,
    /// The terminal has a light background; the theme `auto` follows it.
    pub light: bool,
    pub themes_dir: Option<std::path::PathBuf>,
    pub presets_dir: Option<std::path::PathBuf>,
    pub themes: Vec<String>,
    pub code_theme: String,
    /// False for `NO_COLOR` and `CLICOLOR=0`: attributes only, in every theme.
    pub colour: bool,
    pub depth: Depth,
    pub glyphs: Glyphs,
    /// Glyphs are `auto`: ASCII if the terminal draws lines two cells wide.
    pub probe_glyphs: bool,
    pub panel: Panel,
    pub max_width: u16,
    /// A paste of more characters is folded to one line in the input.
    pub paste_fold_chars: usize,
    pub paste_fold_lines: usize,
    pub mouse: bool,
    /// `j`, `k`, `g` and `G` move in lists and among selected messages.
    pub vim_keys: bool,
    pub settings_file: Option<std::path::PathBuf>,
    pub alternate_screen: bool,
    pub think_show: ThinkShow,
    pub look: bool,
    pub notify: Notify,
    pub notify_after_ms: u64,
    pub clipboard: ClipboardMethod,
    pub keys: KeyTable,
    pub settings: crate::config::settings::Loaded,
    pub home: Option<std::path::PathBuf>,
    pub state_dir: Option<std::path::PathBuf>,
    pub utc_offset_min: i32,
    /// The session of this folder that Enter continues at the start.
    pub offer: Option<SessionRow>,
}

impl UiConfig {
    pub fn display(&self) -> Display {
        vec![
            ("thinking.show", self.think_show.word().to_owned()),
            ("ui.look", self.look.to_string()),
            ("ui.theme", self.theme.name.clone()),
            ("ui.code_theme", self.code_theme.clone()),
        ]
    }

    pub fn set_display(&mut self, display: &Display) {
        for (key, value) in display {
            match *key {
                "thinking.show" => self.think_show = ThinkShow::from_word(value).unwrap_or(self.think_show),
                "ui.look" => self.look = value.parse().unwrap_or(self.look),
                _ => {}
            }
        }
    }
}

impl Default for UiConfig {
    fn default() -> Self {
        UiConfig {
            sent_before: 0,
            theme: Palette::built_in(ThemeName::Auto, false),
            light: false,
            themes_dir: None,
            presets_dir: None,
            themes: Vec::new(),
            code_theme: "auto".into(),
            colour: true,
            depth: Depth::Rgb,
            glyphs: Glyphs::Unicode,
            probe_glyphs: true,
            panel: Panel::Auto,
            max_width: 110,
            paste_fold_chars: 800,
            paste_fold_lines: 10,
            vim_keys: false,
            settings_file: None,
            mouse: false,
            alternate_screen: true,
            think_show: ThinkShow::Fold,
            look: true,
            notify: Notify::Unfocused,
            notify_after_ms: 10_000,
            clipboard: ClipboardMethod::Auto,
            keys: KeyTable::default(),
            settings: crate::config::settings::Loaded::default(),
            home: None,
            state_dir: None,
            utc_offset_min: 0,
            offer: None,
        }
    }
}
