//! Settings: built-in values, `config.toml`, `SALA_CHAT_*` variables, command line, in rising precedence.
//!
//! Every setting is one row of [`keys::KEYS`]; types, ranges, help text, `config.example.toml` and messages come from that
//! table, so an unknown key or a wrong value is always named. The program never rewrites the file; [`edit`] changes one
//! key and keeps comments.

pub mod keys;
pub mod layers;
pub mod preset;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::desk::ThinkMode;
use crate::protocol::engine::{Sampling, SpecMode};

pub use layers::{Loaded, Origin, edit, load, problems};

/// What is wrong with a setting. One line, naming the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {reason}. Fix or remove the file, or name another one with --config")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Not TOML.
    #[error("{path}, line {line}: {reason}. sala-chat config check shows all problems")]
    Syntax {
        /// Which file.
        path: String,
        /// From 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// No such key.
    #[error("{origin}: unknown key {key}{}", .nearest.as_ref().map(|n| format!(": did you mean {n}?")).unwrap_or_default())]
    Unknown {
        /// Where it was set.
        origin: Origin,
        /// The key.
        key: String,
        /// The nearest existing one.
        nearest: Option<String>,
    },
    /// A value of the wrong kind or out of range.
    #[error("{origin}: {key} must be {expected} (got {got})")]
    Value {
        /// Where it was set.
        origin: Origin,
        /// The key.
        key: String,
        /// What is allowed.
        expected: String,
        /// What was given.
        got: String,
    },
}

/// Where the model comes from: `model.source`, `--model`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ModelSource {
    /// The downloaded weights if they are there and a GPU can be used, else the built-in model.
    #[default]
    Auto,
    /// The built-in model.
    Demo,
    /// Random weights in a given shape, for measurements: the part after `synthetic:`.
    Synthetic(String),
    /// A model folder.
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

/// Which draft head: `speculation.draft`, `--draft`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// The one that came with the model.
    #[default]
    Auto,
    /// None; n-gram drafts remain.
    Off,
    /// A folder or a hub id.
    Named(String),
}

impl From<&str> for DraftSource {
    fn from(text: &str) -> Self {
        match text {
            "" | "auto" => DraftSource::Auto,
            "off" => DraftSource::Off,
            other => DraftSource::Named(other.to_owned()),
        }
    }
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A GPU if the model needs one and there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// How thoughts are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThoughtView {
    /// Always open.
    Open,
    /// Open while they run, one line afterwards.
    #[default]
    Fold,
    /// Not shown.
    Hide,
}

/// When model state is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveStates {
    /// After every turn and document.
    #[default]
    Turn,
    /// When the program ends.
    Exit,
    /// Text only.
    Never,
}

/// `auto`, or a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// The program decides.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Which characters are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Glyphs {
    /// By the locale.
    #[default]
    Auto,
    /// Box drawing.
    Unicode,
    /// ASCII only.
    Ascii,
}

/// How copied text leaves the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClipboardMethod {
    /// OSC 52, and the file in any case.
    #[default]
    Auto,
    /// The terminal's clipboard escape.
    Osc52,
    /// Only `copy.txt` in the state directory.
    File,
}

/// `[model]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// See [`ModelSource`].
    pub source: String,
    /// Hub id that `model download` fetches.
    pub repo: String,
    /// Commit, tag or branch of it.
    pub revision: String,
    /// Where to compute.
    pub device: Device,
    /// Index of the GPU.
    pub gpu: u32,
    /// Tokens; 0 is as much as fits.
    pub max_context: u64,
    /// Tokens kept free for the answer.
    pub reserve_answer: u64,
}

/// `[speculation]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeculationConfig {
    /// `on`, `off`, `auto`.
    pub mode: Switch,
    /// Fixed depth; 0 lets the policy choose.
    pub depth: u8,
    /// See [`DraftSource`].
    pub draft: String,
}

/// `[sampling]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingConfig {
    /// What new sessions begin with; see [`preset`].
    pub preset: String,
    /// 0 is greedy.
    pub temperature: f64,
    /// 1 keeps all.
    pub top_p: f64,
    /// 0 keeps all.
    pub top_k: u32,
    /// 0 keeps all.
    pub min_p: f64,
    /// 1 is off.
    pub repeat_penalty: f64,
    /// 0 is off.
    pub presence_penalty: f64,
    /// 0 is off.
    pub frequency_penalty: f64,
    /// -1: a new one for each answer.
    pub seed: i64,
    /// Longest answer in tokens.
    pub max_tokens: u64,
}

/// `[thinking]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThinkingConfig {
    /// Whether the model thinks before it answers.
    pub mode: ThinkMode,
    /// How thoughts are shown.
    pub show: ThoughtView,
}

/// `[sessions]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionsConfig {
    /// When model state is written. Text is always written at once.
    pub save_state: SaveStates,
    /// Start in the session that was open last.
    pub resume_last: bool,
    /// Tokens between kept states inside a long document.
    pub checkpoint_every: u64,
    /// States kept of the last turns.
    pub keep_turns: u64,
    /// Disk for state, GiB. The oldest that nothing pins goes first.
    pub max_state_gib: f64,
    /// Space left free on the disk, GiB.
    pub min_free_gib: f64,
    /// Days until the trash is emptied.
    pub trash_days: u64,
}

/// `[load]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadConfig {
    /// Tokens from which `/load` shows its plan first.
    pub confirm_tokens: u64,
    /// Files from which it does.
    pub confirm_files: u64,
    /// Larger files are refused.
    pub max_file_mib: u64,
    /// Follow links inside a folder.
    pub follow_symlinks: bool,
    /// Extension to command; `{in}` is the path, standard output the text.
    #[serde(default)]
    pub converters: BTreeMap<String, String>,
}

/// `[ui]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UiConfig {
    /// `auto`, `dark`, `light`, `plain`.
    pub theme: String,
    /// Draw on the terminal's second screen.
    pub alternate_screen: Switch,
    /// Wheel scrolls, click selects.
    pub mouse: bool,
    /// Which characters are drawn.
    pub glyphs: Glyphs,
    /// Side panel.
    pub panel: Switch,
    /// Columns of text at most.
    pub max_width: u16,
    /// Pastes from this many characters are folded in the input.
    pub paste_fold_chars: usize,
    /// Or this many lines.
    pub paste_fold_lines: usize,
}

/// `[clipboard]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipboardConfig {
    /// How copied text leaves the program.
    pub method: ClipboardMethod,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogConfig {
    /// `off`, `error`, `warn`, `info`, `debug`, `trace`. Message text appears only at `trace`.
    pub level: String,
    /// Log files kept, one a day.
    pub keep_files: usize,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Which model, where.
    pub model: ModelConfig,
    /// Speculative decoding.
    pub speculation: SpeculationConfig,
    /// How tokens are chosen.
    pub sampling: SamplingConfig,
    /// Thoughts.
    pub thinking: ThinkingConfig,
    /// What is kept.
    pub sessions: SessionsConfig,
    /// Reading documents.
    pub load: LoadConfig,
    /// The screen.
    pub ui: UiConfig,
    /// Copying.
    pub clipboard: ClipboardConfig,
    /// The log file.
    pub log: LogConfig,
    /// Key to action, in the words of `/keys`.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        // The table is checked against this struct by a test, so the fallback is never taken.
        keys::defaults().try_into().unwrap_or_else(|_| unreachable!("KEYS and Config agree"))
    }
}

impl Config {
    /// Where the model comes from.
    pub fn model_source(&self) -> ModelSource {
        ModelSource::from(self.model.source.as_str())
    }

    /// Which draft head.
    pub fn draft_source(&self) -> DraftSource {
        DraftSource::from(self.speculation.draft.as_str())
    }

    /// How to choose tokens; `seed` is used where the settings ask for a new one each time.
    pub fn sampling(&self, seed: u64) -> Sampling {
        let s = &self.sampling;
        Sampling {
            temperature: s.temperature as f32,
            top_k: s.top_k,
            top_p: s.top_p as f32,
            min_p: s.min_p as f32,
            repeat_penalty: s.repeat_penalty as f32,
            presence_penalty: s.presence_penalty as f32,
            frequency_penalty: s.frequency_penalty as f32,
            seed: u64::try_from(s.seed).unwrap_or(seed),
        }
    }

    /// Whether and how far to draft.
    pub fn spec_mode(&self) -> SpecMode {
        match (self.speculation.mode, self.speculation.depth) {
            (Switch::Off, _) => SpecMode::Off,
            (Switch::Auto, _) => SpecMode::Auto,
            (Switch::On, 0) => SpecMode::On,
            (Switch::On, n) => SpecMode::Depth(n),
        }
    }
}

#[cfg(test)]
mod tests;
