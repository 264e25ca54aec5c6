//! Putting the layers on top of each other, and saying where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::file::{Setting, check, collect, syntax};
use super::preset::Preset;
use super::table::{self, ROWS, Row};
use super::{Config, ConfigError, Problem};
use crate::core::files;
use crate::text::Recommended;
use crate::text::near::nearest;

pub const ENV_PREFIX: &str = "SALA_CHAT_";
pub const ENV_OTHER: &[&str] = &["SALA_CHAT_DATA_DIR", "SALA_CHAT_CONFIG", "SALA_CHAT_LOG"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    BuiltIn,
    /// By the model: in this file of its, or on its card.
    Model(&'static str),
    File(PathBuf),
    Variable(String),
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::Model(source) => f.write_str(source),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub config: Config,
    /// Where each key that is not built in was set.
    pub origins: BTreeMap<String, Origin>,
    /// Unknown keys: one line each, to be shown once.
    pub warnings: Vec<String>,
    pub system: Option<String>,
    /// What there is without the command line, where something was given there.
    beneath: Option<Box<Loaded>>,
}

fn rank(origin: Option<&Origin>) -> u8 {
    match origin {
        None | Some(Origin::BuiltIn | Origin::Model(_)) => 0,
        Some(Origin::File(_)) => 1,
        Some(Origin::Variable(_)) => 2,
        Some(Origin::CommandLine) => 3,
    }
}

impl Loaded {
    /// The settings that new sessions are given to keep: those of the command line count for one run.
    pub fn kept(&self) -> &Config {
        self.beneath.as_ref().map_or(&self.config, |beneath| &beneath.config)
    }

    /// Treats command-line values like all others, for measurements.
    pub fn keep_all(&mut self) {
        self.beneath = None;
    }

    /// Applies the preset below other settings of the same or a higher layer.
    pub fn take_preset(&mut self, preset: &Preset) -> Result<(), ConfigError> {
        let origin = self.origins.get("sampling.preset").cloned().unwrap_or(Origin::BuiltIn);
        if let Some(beneath) = &mut self.beneath {
            // A new session keeps the name of its preset.
            beneath.config.sampling.preset.clone_from(&self.config.sampling.preset);
            beneath.take(preset, &origin)?;
        }
        self.take(preset, &origin)
    }

    fn take(&mut self, preset: &Preset, origin: &Origin) -> Result<(), ConfigError> {
        for (key, word) in &preset.values {
            let Some(row) = table::find(key).filter(|_| rank(self.origins.get(*key)) < rank(Some(origin))) else {
                continue;
            };
            let wrong = |expected| Problem::value(row.name, expected, format!("{word:?}")).of(origin);
            let value = row.kind.parse(word).map_err(wrong)?;
            put(&mut self.config, row.name, &value);
            self.origins.insert((*key).to_owned(), origin.clone());
        }
        self.system.clone_from(&preset.system);
        Ok(())
    }

    fn lay(&mut self, settings: Vec<Setting>) {
        for setting in settings {
            put(&mut self.config, &setting.key, &setting.value);
            self.origins.insert(setting.key, setting.origin);
        }
    }

    /// Puts what the model's authors recommend under everything that was set.
    pub fn recommend(&mut self, recommended: &Recommended) {
        if let Some(beneath) = &mut self.beneath {
            beneath.recommend(recommended);
        }
        for (name, value, source) in &recommended.values {
            let key = format!("sampling.{name}");
            if self.origins.contains_key(&key) {
                continue;
            }
            // What the row does not accept is not recommended.
            if let Some(Ok(value)) = table::find(&key).map(|row| row.kind.parse(&value.to_string())) {
                put(&mut self.config, &key, &value);
                self.origins.insert(key, Origin::Model(source));
            }
        }
    }
}

pub fn load(file: &Path, variables: &[(String, String)], options: &[(&str, Value)]) -> Result<Loaded, ConfigError> {
    let (settings, found) = gather(file, variables, options);
    let mut warnings = Vec::new();
    for problem in found {
        match problem {
            ConfigError::Setting { problem: Problem::Unknown { .. }, .. } => warnings.push(problem.to_string()),
            other => return Err(other),
        }
    }
    let (given, set): (Vec<Setting>, Vec<Setting>) =
        settings.into_iter().partition(|setting| setting.origin == Origin::CommandLine);
    let mut loaded = Loaded { warnings, ..Loaded::default() };
    loaded.lay(set);
    if !given.is_empty() {
        loaded.beneath = Some(Box::new(loaded.clone()));
        loaded.lay(given);
    }
    Ok(loaded)
}

fn put(config: &mut Config, name: &str, value: &Value) {
    if let Some(row) = table::find(name) {
        // A test takes every row's limits through its field.
        let held = (row.set)(config, value);
        debug_assert!(held, "{name} accepts what its field cannot hold: {value}");
    } else if let (Some((open, key)), Value::String(text)) = (table::find_open(name), value) {
        (open.entries)(config).insert(key.to_owned(), text.clone());
    }
}

/// Everything that is wrong, for `config check`, and what the rest sets.
pub fn examine(file: &Path, variables: &[(String, String)]) -> (Config, Vec<ConfigError>) {
    let (settings, problems) = gather(file, variables, &[]);
    let mut config = Config::default();
    settings.iter().for_each(|setting| put(&mut config, &setting.key, &setting.value));
    (config, problems)
}

fn gather(file: &Path, variables: &[(String, String)], options: &[(&str, Value)]) -> (Vec<Setting>, Vec<ConfigError>) {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    match read_table(file) {
        Ok(table) => {
            let origin = Origin::File(file.to_owned());
            let found = collect(&table, &origin, &mut settings);
            problems.extend(found.into_iter().map(|problem| problem.of(&origin)));
        }
        Err(problem) => problems.push(problem),
    }
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(ENV_PREFIX).filter(|_| !ENV_OTHER.contains(&name.as_str())) else {
            continue;
        };
        // `SALA_CHAT_MODEL` is what people try first.
        let wanted = if rest == "MODEL" { "SALA_CHAT_MODEL_SOURCE" } else { name.as_str() };
        let origin = Origin::Variable(name.clone());
        match ROWS.iter().find(|row| variable(row) == wanted) {
            Some(row) => match row.kind.parse(text) {
                Ok(value) => settings.push(Setting { key: row.name.to_owned(), value, origin }),
                Err(expected) => problems.push(Problem::value(row.name, expected, format!("{text:?}")).of(&origin)),
            },
            None => {
                let names: Vec<String> = ROWS.iter().map(variable).collect();
                let near = nearest(name, names.iter().map(String::as_str));
                problems.push(Problem::unknown(rest, near).of(&origin));
            }
        }
    }
    for (key, value) in options {
        match check(key, value) {
            Ok(value) => settings.push(Setting { key: (*key).to_owned(), value, origin: Origin::CommandLine }),
            Err(problem) => problems.push(problem.of(&Origin::CommandLine)),
        }
    }
    (settings, problems)
}

pub(super) fn variable(row: &Row) -> String {
    format!("{ENV_PREFIX}{}", row.name.replace('.', "_").to_uppercase())
}

fn read_table(file: &Path) -> Result<Table, ConfigError> {
    let text = match files::read_text(file, files::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Table::new()),
        // The usual way to say "none".
        Err(_) if file == Path::new("/dev/null") => return Ok(Table::new()),
        Err(e) => return Err(ConfigError::Read { path: file.display().to_string(), reason: e.to_string() }),
    };
    text.parse::<Table>().map_err(|e| syntax(file, &text, e.span(), e.message()))
}
