//! Putting the layers on top of each other, and saying where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{self, KEYS, OPEN_TABLES};
use super::preset::Preset;
use super::{Config, ConfigError};
use crate::text::files;
use crate::text::near::nearest;

/// Prefix of variables: `SALA_CHAT_SAMPLING_TEMPERATURE` is `sampling.temperature`.
pub const ENV_PREFIX: &str = "SALA_CHAT_";
/// Variables with that prefix which are no settings.
pub const ENV_OTHER: &[&str] = &["SALA_CHAT_DATA_DIR", "SALA_CHAT_CONFIG", "SALA_CHAT_LOG"];

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: built in.
    BuiltIn,
    /// In this file.
    File(PathBuf),
    /// By this variable.
    Variable(String),
    /// By an option.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

/// The settings, and how they came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Where each key that is not built in was set.
    pub origins: BTreeMap<String, Origin>,
    /// Unknown keys: one line each, to be shown once.
    pub warnings: Vec<String>,
    /// System text of new sessions, from a preset.
    pub system: Option<String>,
}

impl Loaded {
    /// Puts the preset that was asked for under what was set beside it: a key set in the same layer or a higher one stays.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub fn take_preset(&mut self, preset: &Preset) -> Result<(), ConfigError> {
        let rank = |origins: &BTreeMap<String, Origin>, key: &str| match origins.get(key) {
            None | Some(Origin::BuiltIn) => 0,
            Some(Origin::File(_)) => 1,
            Some(Origin::Variable(_)) => 2,
            Some(Origin::CommandLine) => 3,
        };
        let asked = self.origins.get("sampling.preset").cloned();
        let origin = asked.unwrap_or(Origin::BuiltIn);
        let mine = rank(&self.origins, "sampling.preset");
        let unusable =
            |reason: String| ConfigError::Read { path: format!("preset {}", self.config.sampling.preset), reason };
        let mut table = Table::try_from(&self.config).map_err(|e| unusable(e.to_string()))?;
        for (key, word) in &preset.values {
            let Some(setting) = keys::find(key).filter(|_| rank(&self.origins, key) < mine) else {
                continue;
            };
            let value = setting.parse(word).map_err(&unusable)?;
            keys::insert(&mut table, key, value);
            self.origins.insert((*key).to_owned(), origin.clone());
        }
        self.config = table.try_into().map_err(|e: toml::de::Error| unusable(e.message().to_owned()))?;
        self.system.clone_from(&preset.system);
        Ok(())
    }
}

/// One value of one layer.
struct Setting {
    key: String,
    value: Value,
    origin: Origin,
}

/// Reads a file and puts the layers together. A missing file is an empty one.
///
/// # Errors
/// The first problem of the list of [`problems`], unless it is only an unknown key, which becomes a warning.
pub fn load(file: &Path, variables: &[(String, String)], options: &[(&str, Value)]) -> Result<Loaded, ConfigError> {
    let (settings, found) = gather(file, variables, options);
    let mut warnings = Vec::new();
    for problem in found {
        match problem {
            ConfigError::Unknown { .. } => warnings.push(problem.to_string()),
            other => return Err(other),
        }
    }
    let mut table = keys::defaults();
    let mut origins = BTreeMap::new();
    for setting in settings {
        keys::insert(&mut table, &setting.key, setting.value);
        origins.insert(setting.key, setting.origin);
    }
    let config = table.try_into().map_err(|e: toml::de::Error| ConfigError::Read {
        path: file.display().to_string(),
        reason: e.message().to_owned(),
    })?;
    Ok(Loaded { config, origins, warnings, system: None })
}

/// Everything that is wrong, for `config check`.
pub fn problems(file: &Path, variables: &[(String, String)]) -> Vec<ConfigError> {
    gather(file, variables, &[]).1
}

fn gather(file: &Path, variables: &[(String, String)], options: &[(&str, Value)]) -> (Vec<Setting>, Vec<ConfigError>) {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    match read_table(file) {
        Ok(table) => {
            let origin = Origin::File(file.to_owned());
            collect(&table, "", &origin, &mut settings, &mut problems);
        }
        Err(problem) => problems.push(problem),
    }
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        if ENV_OTHER.contains(&name.as_str()) {
            continue;
        }
        let spelled = |k: &str| k.replace('.', "_").to_uppercase();
        // `SALA_CHAT_MODEL` is what people try first.
        let wanted = if rest == "MODEL" { "MODEL_SOURCE" } else { rest };
        let origin = Origin::Variable(name.clone());
        match KEYS.iter().find(|k| spelled(k.name) == wanted) {
            Some(key) => match key.parse(text) {
                Ok(value) => settings.push(Setting { key: key.name.to_owned(), value, origin }),
                Err(expected) => problems.push(ConfigError::Value {
                    origin,
                    key: key.name.to_owned(),
                    expected,
                    got: format!("{text:?}"),
                }),
            },
            None => {
                let names: Vec<String> = KEYS.iter().map(|k| spelled(k.name)).collect();
                problems.push(ConfigError::Unknown {
                    origin,
                    key: rest.to_owned(),
                    nearest: nearest(rest, names.iter().map(String::as_str)).map(|n| format!("{ENV_PREFIX}{n}")),
                });
            }
        }
    }
    for (key, value) in options {
        check(key, value, &Origin::CommandLine, &mut settings, &mut problems);
    }
    (settings, problems)
}

fn read_table(file: &Path) -> Result<Table, ConfigError> {
    let path = file.display().to_string();
    let text = match files::read_text(file, files::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Table::new()),
        Err(e) => {
            return Err(ConfigError::Read { path, reason: e.to_string() });
        }
    };
    text.parse::<Table>().map_err(|e| syntax(path, &text, e.span(), e.message()))
}

fn syntax(path: String, text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> ConfigError {
    let at = span.map_or(0, |s| s.start);
    let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
    ConfigError::Syntax { path, line, reason: message.lines().collect::<Vec<_>>().join(", ") }
}

fn collect(table: &Table, prefix: &str, origin: &Origin, out: &mut Vec<Setting>, problems: &mut Vec<ConfigError>) {
    for (name, value) in table {
        let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_section = KEYS.iter().any(|k| k.name.starts_with(&format!("{full}.")))
            || OPEN_TABLES.iter().any(|(t, ..)| *t == full);
        match value {
            Value::Table(inner) if is_section => collect(inner, &full, origin, out, problems),
            value if is_section => problems.push(ConfigError::Value {
                origin: origin.clone(),
                expected: format!("a table: [{full}]"),
                key: full,
                got: value.to_string(),
            }),
            value => check(&full, value, origin, out, problems),
        }
    }
}

fn check(name: &str, value: &Value, origin: &Origin, out: &mut Vec<Setting>, problems: &mut Vec<ConfigError>) {
    let wrong = |expected: String| ConfigError::Value {
        origin: origin.clone(),
        key: name.to_owned(),
        expected,
        got: value.to_string(),
    };
    let accepted = match keys::find(name) {
        Some(key) => key.accept(value).map_err(wrong),
        None => {
            let open = OPEN_TABLES.iter().any(|(t, ..)| name.strip_prefix(t).is_some_and(|r| r.starts_with('.')));
            match (open, value) {
                (true, Value::String(_)) => Ok(value.clone()),
                (true, _) => Err(wrong("text in quotes".to_owned())),
                (false, _) => Err(ConfigError::Unknown {
                    origin: origin.clone(),
                    key: name.to_owned(),
                    nearest: nearest(name, KEYS.iter().map(|k| k.name)).map(str::to_owned),
                }),
            }
        }
    };
    match accepted {
        Ok(value) => out.push(Setting { key: name.to_owned(), value, origin: origin.clone() }),
        Err(problem) => problems.push(problem),
    }
}

/// The text of a config file with one key set and everything else, comments included, as it was.
///
/// # Errors
/// The text is no TOML, the key is unknown, or the value not allowed.
pub fn edit(text: &str, name: &str, value: &str) -> Result<String, ConfigError> {
    let origin = || Origin::File(PathBuf::from("config.toml"));
    let key = keys::find_short(name).ok_or_else(|| ConfigError::Unknown {
        origin: origin(),
        key: name.to_owned(),
        nearest: nearest(name, KEYS.iter().map(|k| k.name)).map(str::to_owned),
    })?;
    let value = key.parse(value).map_err(|expected| ConfigError::Value {
        origin: origin(),
        key: key.name.to_owned(),
        expected,
        got: value.to_owned(),
    })?;
    let mut document: toml_edit::DocumentMut = text
        .parse()
        .map_err(|e: toml_edit::TomlError| syntax("config.toml".to_owned(), text, e.span(), e.message()))?;
    let new: toml_edit::Value = match value {
        Value::Boolean(b) => b.into(),
        Value::Integer(i) => i.into(),
        Value::Float(f) => f.into(),
        Value::String(s) => s.into(),
        other => other.to_string().into(),
    };
    let (section, name) = key.name.split_once('.').unwrap_or(("", key.name));
    let table = document.entry(section).or_insert_with(toml_edit::table).as_table_like_mut().ok_or_else(|| {
        ConfigError::Value {
            origin: origin(),
            key: section.to_owned(),
            expected: format!("a table: [{section}]"),
            got: "a value".to_owned(),
        }
    })?;
    match table.get_mut(name).and_then(|item| item.as_value_mut()) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = new;
            *old.decor_mut() = decor;
        }
        None => {
            table.insert(name, toml_edit::value(new));
        }
    }
    Ok(document.to_string())
}
