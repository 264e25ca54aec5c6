//! A preset of the user: one small TOML file with sampling, thinking, display and a system text. Pure: text in and out.
//!
//! Its keys are settings of [`keys`], so ranges and words are those of `config.toml`.

use toml::{Table, Value};

use super::keys;
use crate::text::near::nearest;

/// Settings a preset may hold, in the order they are written.
pub const KEYS: [&str; 12] = [
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
    "sampling.min_p",
    "sampling.repeat_penalty",
    "sampling.presence_penalty",
    "sampling.frequency_penalty",
    "sampling.seed",
    "sampling.max_tokens",
    "thinking.mode",
    "thinking.show",
    "ui.theme",
];

/// The system text of new sessions: no setting of `config.toml`.
const SYSTEM: &str = "system";

/// What is wrong with a preset's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    /// Not TOML.
    #[error("line {line}: {reason}")]
    Syntax {
        /// From 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// Not a key of presets.
    #[error("unknown key {key}{}", .nearest.as_ref().map(|n| format!(": did you mean {n}?")).unwrap_or_default())]
    Unknown {
        /// The key.
        key: String,
        /// The nearest one there is.
        nearest: Option<String>,
    },
    /// A value of the wrong kind or out of range.
    #[error("{key} must be {expected} (got {got})")]
    Value {
        /// The key.
        key: String,
        /// What is allowed.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A name that cannot be a file's.
    #[error("\"{0}\" is no name for a preset: letters, digits, - and _ only, 40 at most")]
    Name(String),
}

/// A preset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// System text of new sessions.
    pub system: Option<String>,
    /// Keys of [`KEYS`] with values as words.
    pub values: Vec<(&'static str, String)>,
}

/// The built-in presets: what they set beside the configured sampling.
pub fn builtin(name: &str) -> Option<Preset> {
    let values: &[(&'static str, &str)] = match name {
        "default" => &[],
        "careful" => &[("sampling.temperature", "0.3"), ("sampling.top_p", "0.9")],
        "creative" => &[("sampling.temperature", "1"), ("sampling.top_p", "1"), ("sampling.min_p", "0.05")],
        "greedy" => &[("sampling.temperature", "0")],
        _ => return None,
    };
    Some(Preset { system: None, values: values.iter().map(|(k, v)| (*k, (*v).to_owned())).collect() })
}

/// Whether a name can be a file's on any system.
///
/// # Errors
/// It cannot.
pub fn check_name(name: &str) -> Result<(), PresetError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 40 || !name.chars().all(good) {
        return Err(PresetError::Name(name.to_owned()));
    }
    Ok(())
}

impl Preset {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(text: &str) -> Result<Preset, PresetError> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            let at = e.span().map_or(0, |s| s.start);
            PresetError::Syntax {
                line: text.bytes().take(at).filter(|b| *b == b'\n').count() + 1,
                reason: e.message().lines().collect::<Vec<_>>().join(", "),
            }
        })?;
        let mut preset = Preset::default();
        preset.collect("", &table)?;
        // A table of TOML has its own order.
        let place = |key: &str| KEYS.iter().position(|k| *k == key);
        preset.values.sort_by_key(|(key, _)| place(key));
        Ok(preset)
    }

    fn collect(&mut self, section: &str, table: &Table) -> Result<(), PresetError> {
        for (name, value) in table {
            let key = match section {
                "" => name.clone(),
                section => format!("{section}.{name}"),
            };
            let known = KEYS.iter().find(|k| **k == key).copied();
            match (known.and_then(|k| Some((k, keys::find(k)?))), value) {
                (Some((known, setting)), value) => {
                    let value = setting.accept(value).map_err(|expected| wrong(&key, expected, value))?;
                    self.values.push((known, word(&value)));
                }
                (None, Value::String(text)) if key == SYSTEM => self.system = Some(text.clone()),
                (None, value) if key == SYSTEM => {
                    return Err(wrong(&key, "text in quotes".into(), value));
                }
                (None, Value::Table(inner)) if section.is_empty() && is_section(&key) => {
                    self.collect(&key, inner)?;
                }
                (None, _) => return Err(unknown(key)),
            }
        }
        Ok(())
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        let mut out = String::from("# A preset of sala-chat: /preset NAME takes it. Keys as in config.toml.\n");
        if let Some(system) = &self.system {
            let system = Value::String(system.clone());
            out.push_str(&format!("{SYSTEM} = {system}  # for new sessions\n"));
        }
        let mut section = "";
        for key in KEYS {
            let Some((_, value)) = self.values.iter().find(|(k, _)| *k == key) else {
                continue;
            };
            let (head, name) = key.split_once('.').unwrap_or(("", key));
            if head != section {
                out.push_str(&format!("\n[{head}]\n"));
                section = head;
            }
            let value = match keys::find(key).map(|k| k.kind) {
                Some(keys::Kind::Int(..) | keys::Kind::Float(..) | keys::Kind::Bool(_)) => value.clone(),
                Some(keys::Kind::Text(_) | keys::Kind::Word(_)) | None => Value::String(value.clone()).to_string(),
            };
            out.push_str(&format!("{name} = {value}\n"));
        }
        out
    }
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|k| k.split_once('.').is_some_and(|(head, _)| head == name))
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn wrong(key: &str, expected: String, got: &Value) -> PresetError {
    PresetError::Value { key: key.to_owned(), expected, got: got.to_string() }
}

/// Who writes `temperature` without its section is told the section.
fn unknown(key: String) -> PresetError {
    let near = KEYS.into_iter().find(|k| k.rsplit('.').next() == Some(key.as_str()));
    let near = near.or_else(|| nearest(&key, KEYS.into_iter().chain([SYSTEM])));
    PresetError::Unknown { nearest: near.map(str::to_owned), key }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let preset = Preset {
            system: Some("Be brief.\nQuote \"the\" line.".into()),
            values: vec![
                ("sampling.temperature", "0.3".into()),
                ("sampling.max_tokens", "900".into()),
                ("thinking.mode", "off".into()),
                ("ui.theme", "light".into()),
            ],
        };
        assert_eq!(Preset::parse(&preset.text()), Ok(preset));
    }

    #[test]
    fn a_mistake_is_named_in_one_line() {
        let says = |text: &str| Preset::parse(text).unwrap_err().to_string();
        assert_eq!(
            says("[sampling]\ntemprature = 0.3"),
            "unknown key sampling.temprature: did you mean sampling.temperature?"
        );
        assert_eq!(says("top_p = 0.9"), "unknown key top_p: did you mean sampling.top_p?");
        assert_eq!(says("[sampling]\ntemperature = 7"), "sampling.temperature must be 0 to 2 (got 7)");
        assert_eq!(says("[thinking]\nmode = \"hard\""), "thinking.mode must be one of auto, on, off (got \"hard\")");
        assert_eq!(says("system = 3"), "system must be text in quotes (got 3)");
        assert!(says("system = \"a\"\n[sampling\n").starts_with("line 2: "));
        assert_eq!(says("[model]\ngpu = 1"), "unknown key model");
        for name in ["", "a b", "../x", "dir/x", "é"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!(check_name("my-preset_2"), Ok(()));
    }
}
