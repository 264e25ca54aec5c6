//! Settings: built-in values, `config.toml`, `SALA_CHAT_*` variables, command line, in rising precedence; `/set` and
//! presets change those of a session. Every setting is one row of [`table`]; structs, files, variables, options, pages
//! and messages derive from the rows. The program never rewrites the file; [`edit`] changes one key and keeps comments.

mod answers;
mod file;
pub mod layers;
pub mod page;
pub mod preset;
pub mod row;
pub mod session;
pub mod table;
mod value;
mod words;

pub use answers::Settings;
pub use file::{edit, no_setting};
pub use layers::{Loaded, Origin, examine, load};
pub use row::{Flag, Kind, Way};
pub use table::{
    ClipboardConfig, Config, EngineConfig, LoadConfig, LogConfig, ModelConfig, Row, SamplingConfig, ServeConfig,
    SessionsConfig, SpeculationConfig, ThinkingConfig, UiConfig,
};
pub use toml::Value;
pub use value::{Field, Size};
pub use words::{
    CODE_THEMES, ClipboardMethod, Glyphs, ModelSource, NewFiles, SaveStates, Switch, Theme, ThinkMode, ThoughtView,
    UnknownFields, server,
};

pub use crate::engine::protocol::DeviceChoice as Device;
use crate::engine::protocol::SpecMode;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: {reason}. Fix or remove the file, or name another one with --config")]
    Read { path: String, reason: String },
    #[error("{path}, line {line}: {reason}. Fix it, or name another file with --config")]
    Syntax { path: String, line: usize, reason: String },
    #[error("{origin}: {problem}")]
    Setting { origin: Origin, problem: Problem },
}

/// What is wrong with one setting, in a settings file or in a preset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("unknown key {key}{}", .nearest.as_ref().map(|n| format!(": did you mean {n}?")).unwrap_or_default())]
    Unknown { key: String, nearest: Option<String> },
    #[error("{key} must be {expected} (got {got})")]
    Value { key: String, expected: String, got: String },
}

impl Problem {
    fn unknown(key: &str, nearest: Option<&str>) -> Problem {
        Problem::Unknown { key: key.to_owned(), nearest: nearest.map(str::to_owned) }
    }

    fn value(key: &str, expected: impl Into<String>, got: impl Into<String>) -> Problem {
        Problem::Value { key: key.to_owned(), expected: expected.into(), got: got.into() }
    }

    fn of(self, origin: &Origin) -> ConfigError {
        ConfigError::Setting { origin: origin.clone(), problem: self }
    }
}

impl Config {
    pub fn model_source(&self) -> ModelSource {
        ModelSource::from(self.model.source.as_str())
    }

    pub fn spec_mode(&self) -> SpecMode {
        match (self.speculation.mode, self.speculation.depth) {
            (SpecMode::On, depth @ 1..) => SpecMode::Depth(depth),
            (mode, _) => mode,
        }
    }
}

#[cfg(test)]
mod tests;
