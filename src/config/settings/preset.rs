//! A preset of the user: one small TOML file with sampling, thinking, display and a system text. Pure: text in and out.
//!
//! Its keys are rows of the table, so ranges and words are those of `config.toml`.

use std::path::Path;

use toml::{Table, Value};

use super::file::{collect, edit, place};
use super::table::{Row, preset_rows};
use super::{Origin, Problem};

/// Display settings by their names in `config.toml`, as words: `("thinking.show", "fold")`.
pub type Display = Vec<(&'static str, String)>;

/// The system text of new sessions: no setting of `config.toml`.
const SYSTEM: &str = "system";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    pub system: Option<String>,
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

/// Whether a name can be a file's on any system.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !name.is_empty() && name.len() <= 40 && name.chars().all(good) {
        true => Ok(()),
        false => Err(format!("\"{name}\" is not a preset name: use at most 40 letters, digits, - and _")),
    }
}

impl Preset {
    pub fn parse(text: &str) -> Result<Preset, String> {
        let mut table: Table = text.parse().map_err(|e: toml::de::Error| {
            let (line, reason) = place(text, e.span(), e.message());
            format!("line {line}: {reason}")
        })?;
        let system = match table.remove(SYSTEM) {
            Some(Value::String(text)) => Some(text),
            Some(other) => return Err(Problem::value(SYSTEM, "text in quotes", other.to_string()).to_string()),
            None => None,
        };
        let is_section = |name: &str| preset_rows().any(|row| row.section() == name);
        if let Some((name, _)) = table.iter().find(|(name, value)| value.is_table() && !is_section(name)) {
            return Err(Problem::unknown(name, None).to_string());
        }
        let mut settings = Vec::new();
        let problems = collect(&table, &Origin::BuiltIn, &mut settings);
        let other = settings.iter().find(|s| !preset_rows().any(|row| row.name == s.key));
        let other = other.map(|s| Problem::unknown(&s.key, None));
        if let Some(problem) = problems.into_iter().next().or(other) {
            return Err(problem.to_string());
        }
        let value = |row: &'static Row| {
            let setting = settings.iter().find(|s| s.key == row.name)?;
            Some((row.name, row.kind.show(&setting.value)))
        };
        Ok(Preset { system, values: preset_rows().filter_map(value).collect() })
    }

    pub fn text(&self) -> String {
        let system =
            self.system.iter().map(|text| format!("{SYSTEM} = {}  # for new sessions\n", Value::from(text.as_str())));
        let mut keys: String = system.collect();
        for row in preset_rows() {
            let value = self.values.iter().find(|(name, _)| *name == row.name);
            // What no preset can hold is left out.
            keys = value.and_then(|(name, value)| edit(Path::new(""), &keys, name, value).ok()).unwrap_or(keys);
        }
        format!("# A preset of sala-chat: /preset NAME takes it. Keys as in config.toml.\n{keys}")
    }
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
        let says = |text: &str| Preset::parse(text).unwrap_err();
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
