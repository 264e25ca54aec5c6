//! A preset of the user: one small TOML file with sampling, thinking, display and a system text. Pure: text in and out.
//!
//! Its keys are rows of the table, so ranges and words are those of `config.toml`.

use toml::{Table, Value};

use super::row::Kind;
use super::table::{Row, preset_rows};
use crate::text::near::nearest;

/// Display settings by their names in `config.toml`, as words: `("thinking.show", "fold")`.
pub type Display = Vec<(&'static str, String)>;

/// The system text of new sessions: no setting of `config.toml`.
const SYSTEM: &str = "system";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    #[error("line {line}: {reason}")]
    Syntax {
        /// From 1.
        line: usize,
        reason: String,
    },
    #[error("unknown key {key}{}", .nearest.as_ref().map(|n| format!(": did you mean {n}?")).unwrap_or_default())]
    Unknown { key: String, nearest: Option<String> },
    #[error("{key} must be {expected} (got {got})")]
    Value { key: String, expected: String, got: String },
    #[error("\"{0}\" is not a preset name: use at most 40 letters, digits, - and _")]
    Name(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    pub system: Option<String>,
    /// Full names of settings that presets hold, with values as words.
    pub values: Vec<(&'static str, String)>,
}

pub struct BuiltIn {
    pub name: &'static str,
    pub help: &'static str,
    pub values: &'static [(&'static str, &'static str)],
}

pub const BUILT_IN: &[BuiltIn] = &[
    BuiltIn { name: "default", help: "the configured sampling", values: &[] },
    BuiltIn {
        name: "careful",
        help: "temperature 0.3, top-p 0.9: questions about documents",
        values: &[("sampling.temperature", "0.3"), ("sampling.top_p", "0.9")],
    },
    BuiltIn {
        name: "creative",
        help: "temperature 1.0, min-p 0.05: stories and ideas",
        values: &[("sampling.temperature", "1"), ("sampling.top_p", "1"), ("sampling.min_p", "0.05")],
    },
    BuiltIn {
        name: "greedy",
        help: "temperature 0: always the most likely token",
        values: &[("sampling.temperature", "0")],
    },
];

pub fn builtin(name: &str) -> Option<Preset> {
    let preset = BUILT_IN.iter().find(|p| p.name == name)?;
    Some(Preset { system: None, values: preset.values.iter().map(|(k, v)| (*k, (*v).to_owned())).collect() })
}

fn find(key: &str) -> Option<&'static Row> {
    preset_rows().find(|row| row.name == key)
}

/// Whether a name can be a file's on any system.
pub fn check_name(name: &str) -> Result<(), PresetError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 40 || !name.chars().all(good) {
        return Err(PresetError::Name(name.to_owned()));
    }
    Ok(())
}

impl Preset {
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
        let place = |key: &str| preset_rows().position(|row| row.name == key);
        preset.values.sort_by_key(|(key, _)| place(key));
        Ok(preset)
    }

    fn collect(&mut self, section: &str, table: &Table) -> Result<(), PresetError> {
        for (name, value) in table {
            let key = match section {
                "" => name.clone(),
                section => format!("{section}.{name}"),
            };
            match (find(&key), value) {
                (Some(row), value) => {
                    let value = row.kind.accept(value).map_err(|expected| wrong(&key, expected, value))?;
                    self.values.push((row.name, row.kind.show(&value)));
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

    pub fn text(&self) -> String {
        let mut out = String::from("# A preset of sala-chat: /preset NAME takes it. Keys as in config.toml.\n");
        if let Some(system) = &self.system {
            let system = Value::String(system.clone());
            out.push_str(&format!("{SYSTEM} = {system}  # for new sessions\n"));
        }
        let mut section = "";
        for row in preset_rows() {
            let Some((_, value)) = self.values.iter().find(|(k, _)| *k == row.name) else {
                continue;
            };
            if row.section() != section {
                section = row.section();
                out.push_str(&format!("\n[{section}]\n"));
            }
            let value = match row.kind {
                Kind::Int(..) | Kind::Float(..) if value.parse::<f64>().is_ok() => value.clone(),
                Kind::Bool(_) if value.parse::<bool>().is_ok() => value.clone(),
                _ => Value::String(value.clone()).to_string(),
            };
            out.push_str(&format!("{} = {value}\n", row.key()));
        }
        out
    }
}

fn is_section(name: &str) -> bool {
    preset_rows().any(|row| row.section() == name)
}

fn wrong(key: &str, expected: String, got: &Value) -> PresetError {
    PresetError::Value { key: key.to_owned(), expected, got: got.to_string() }
}

/// A key without its section gets the section in the error.
fn unknown(key: String) -> PresetError {
    let near = preset_rows().map(|row| row.name).find(|k| k.rsplit('.').next() == Some(key.as_str()));
    let near = near.or_else(|| nearest(&key, preset_rows().map(|row| row.name).chain([SYSTEM])));
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
