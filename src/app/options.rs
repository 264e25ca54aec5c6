//! What the user can set about the interface. Filled by the configuration, changed by `/theme` and `/think`.

use super::keys::KeyTable;
use crate::protocol::desk::Display;

/// Colours: all themes use the terminal's own 16 colours and attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThemeName {
    /// Dark unless the terminal says otherwise.
    #[default]
    Auto,
    /// For dark backgrounds.
    Dark,
    /// For light backgrounds.
    Light,
    /// Attributes only, no colour. Also chosen by `NO_COLOR`.
    Plain,
}

impl ThemeName {
    /// All of them with their names, for `/theme` and the configuration.
    pub const ALL: [(&'static str, ThemeName); 4] = [
        ("auto", ThemeName::Auto),
        ("dark", ThemeName::Dark),
        ("light", ThemeName::Light),
        ("plain", ThemeName::Plain),
    ];

    /// By name.
    pub fn parse(name: &str) -> Option<ThemeName> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }
}

/// Characters for frames and meters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Glyphs {
    /// Box drawing.
    #[default]
    Unicode,
    /// `|`, `-`, `#`, `.` only.
    Ascii,
}

/// Whether the side panel is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    /// From 120 columns.
    #[default]
    Auto,
    /// Wherever 120 columns are there; the same as `Auto`, until Ctrl-O hides it.
    On,
    /// Only after Ctrl-O.
    Off,
}

/// How thoughts are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThinkShow {
    /// Always open.
    Open,
    /// Open while they run, one line once the answer starts.
    #[default]
    Fold,
    /// Never.
    Hide,
}

/// When the terminal is asked to notify that an answer is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// Never.
    Never,
    /// When the window has not got the focus.
    #[default]
    Unfocused,
    /// After every long answer.
    Always,
}

/// Where copied text goes. It always goes into the copy file as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClipboardMethod {
    /// OSC 52.
    #[default]
    Auto,
    /// OSC 52.
    Osc52,
    /// The file only.
    File,
}

/// Options of the interface (`[ui]`, `[keys]`, `[clipboard]`, `thinking.show`).
#[derive(Clone, Debug)]
pub struct UiConfig {
    /// Colours.
    pub theme: ThemeName,
    /// False for `NO_COLOR` and `CLICOLOR=0`: attributes only, whatever the theme.
    pub colour: bool,
    /// Frame characters.
    pub glyphs: Glyphs,
    /// Glyphs were `auto`: use ASCII after all when the terminal draws lines two cells wide.
    pub probe_glyphs: bool,
    /// Side panel.
    pub panel: Panel,
    /// Widest text column, in cells.
    pub max_width: u16,
    /// A paste of more characters is folded to one line in the input.
    pub paste_fold_chars: usize,
    /// A paste of more lines is folded.
    pub paste_fold_lines: usize,
    /// The wheel scrolls.
    pub mouse: bool,
    /// Alternate screen; false leaves the last frame in the scrollback.
    pub alternate_screen: bool,
    /// Thoughts.
    pub think_show: ThinkShow,
    /// Notifications.
    pub notify: Notify,
    /// Answers shorter than this never notify, in milliseconds.
    pub notify_after_ms: u64,
    /// Notify by OSC 9 instead of the bell.
    pub notify_osc9: bool,
    /// Clipboard.
    pub clipboard: ClipboardMethod,
    /// Key bindings.
    pub keys: KeyTable,
    /// For `~` in paths.
    pub home: Option<std::path::PathBuf>,
    /// Directory for `copy.txt` and crash reports.
    pub state_dir: Option<std::path::PathBuf>,
    /// Minutes east of UTC, for times of day.
    pub utc_offset_min: i32,
}

/// Names of [`ThinkShow`] in the configuration.
const THINK_SHOW: [(&str, ThinkShow); 3] =
    [("open", ThinkShow::Open), ("fold", ThinkShow::Fold), ("hide", ThinkShow::Hide)];

impl UiConfig {
    /// What a preset keeps of it.
    pub fn display(&self) -> Display {
        let show = THINK_SHOW.iter().find(|s| s.1 == self.think_show);
        let theme = ThemeName::ALL.iter().find(|t| t.1 == self.theme);
        let word = |key, found: Option<&'static str>| found.map(|w| (key, w.to_string()));
        [word("thinking.show", show.map(|s| s.0)), word("ui.theme", theme.map(|t| t.0))].into_iter().flatten().collect()
    }

    /// Takes what a preset kept.
    pub fn set_display(&mut self, display: &Display) {
        for (key, value) in display {
            match *key {
                "thinking.show" => {
                    let show = THINK_SHOW.iter().find(|s| s.0 == value);
                    self.think_show = show.map_or(self.think_show, |s| s.1);
                }
                "ui.theme" => self.theme = ThemeName::parse(value).unwrap_or(self.theme),
                _ => {}
            }
        }
    }
}

impl Default for UiConfig {
    fn default() -> Self {
        UiConfig {
            theme: ThemeName::Auto,
            colour: true,
            glyphs: Glyphs::Unicode,
            probe_glyphs: true,
            panel: Panel::Auto,
            max_width: 110,
            paste_fold_chars: 800,
            paste_fold_lines: 10,
            mouse: false,
            alternate_screen: true,
            think_show: ThinkShow::Fold,
            notify: Notify::Unfocused,
            notify_after_ms: 10_000,
            notify_osc9: false,
            clipboard: ClipboardMethod::Auto,
            keys: KeyTable::default(),
            home: None,
            state_dir: None,
            utc_offset_min: 0,
        }
    }
}
