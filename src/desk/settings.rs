//! What `/set`, `/preset`, `/think` and `/spec` change: the answer settings of one session. Pure data and its checks;
//! kept with the session as JSON.

use serde::{Deserialize, Serialize};

use crate::config::preset::builtin;
use crate::protocol::desk::ThinkMode;
use crate::protocol::engine::{Sampling, SpecMode};

/// How answers of one session are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How tokens are chosen. Its `seed` is not used: see [`Settings::seed`].
    pub sampling: Sampling,
    /// `None`: a new one for each answer, shown with it.
    pub seed: Option<u64>,
    /// Longest answer in tokens.
    pub max_tokens: u64,
    /// Thinking.
    pub think: ThinkMode,
    /// Speculation.
    pub spec: SpecMode,
    /// The preset these came from, until one is changed.
    pub preset: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sampling: Sampling::default(),
            seed: None,
            max_tokens: 8192,
            think: ThinkMode::Auto,
            spec: SpecMode::Auto,
            preset: "default".into(),
        }
    }
}

/// Names of the built-in presets with what they are for.
pub const PRESETS: [(&str, &str); 4] = [
    ("default", "the configured sampling"),
    ("careful", "temperature 0.3, top-p 0.9: questions about documents"),
    ("creative", "temperature 1.0, min-p 0.05: stories and ideas"),
    ("greedy", "temperature 0: always the most likely token"),
];

/// The keys `/set` knows.
const KEYS: [&str; 11] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "think",
    "spec",
];

/// Reads a number inside a range, or says in one line what it must be.
fn number(key: &str, value: &str, low: f32, high: f32) -> Result<f32, String> {
    let wrong = || format!("{key} must be {low} to {high} (got {value})");
    let v: f32 = value.parse().map_err(|_| wrong())?;
    if v.is_finite() && (low..=high).contains(&v) { Ok(v) } else { Err(wrong()) }
}

/// Reads `on`, `off`, `auto` or a depth.
pub fn parse_spec(value: &str) -> Result<SpecMode, String> {
    match value {
        "on" => Ok(SpecMode::On),
        "off" => Ok(SpecMode::Off),
        "auto" => Ok(SpecMode::Auto),
        n => match n.parse::<u8>() {
            Ok(d @ 1..=15) => Ok(SpecMode::Depth(d)),
            Ok(_) | Err(_) => Err(format!("spec must be on, off, auto or a depth from 1 to 15 (got {value})")),
        },
    }
}

/// The word for a speculation mode, as `/spec` takes it.
pub fn spec_word(mode: SpecMode) -> String {
    match mode {
        SpecMode::Off => "off".into(),
        SpecMode::Auto => "auto".into(),
        SpecMode::On => "on".into(),
        SpecMode::Depth(d) => d.to_string(),
    }
}

/// The word for a thinking mode, as `/think` takes it.
pub fn think_word(mode: ThinkMode) -> &'static str {
    match mode {
        ThinkMode::On => "on",
        ThinkMode::Off => "off",
        ThinkMode::Auto => "auto",
    }
}

impl Settings {
    /// Changes one key. Returns the line to show.
    pub fn set(&mut self, key: &str, value: &str) -> Result<String, String> {
        let key = key.trim().replace('-', "_");
        let key = match key.as_str() {
            "temp" => "temperature",
            k => k,
        };
        let value = value.trim();
        let s = &mut self.sampling;
        match key {
            "temperature" => s.temperature = number(key, value, 0.0, 2.0)?,
            "top_p" => s.top_p = number(key, value, 0.0, 1.0)?,
            "min_p" => s.min_p = number(key, value, 0.0, 1.0)?,
            "repeat_penalty" => s.repeat_penalty = number(key, value, 0.5, 2.0)?,
            "presence_penalty" => s.presence_penalty = number(key, value, -2.0, 2.0)?,
            "frequency_penalty" => s.frequency_penalty = number(key, value, -2.0, 2.0)?,
            "top_k" => {
                s.top_k = value
                    .parse()
                    .ok()
                    .filter(|k| *k <= 256)
                    .ok_or_else(|| format!("top_k must be 0 (off) to 256 (got {value})"))?;
            }
            "seed" => {
                self.seed = match value {
                    "-1" | "auto" | "random" => None,
                    v => Some(v.parse().map_err(|_| {
                        format!("seed must be a whole number, or -1 for a new one each time (got {value})")
                    })?),
                };
            }
            "max_tokens" => {
                self.max_tokens = value
                    .parse()
                    .ok()
                    .filter(|n| *n >= 1)
                    .ok_or_else(|| format!("max_tokens must be a whole number from 1 (got {value})"))?;
            }
            "think" => {
                self.think = match value {
                    "on" => ThinkMode::On,
                    "off" => ThinkMode::Off,
                    "auto" => ThinkMode::Auto,
                    v => return Err(format!("think must be on, off or auto (got {v})")),
                }
            }
            "spec" => self.spec = parse_spec(value)?,
            _ => return Err(format!("No setting {key}. There are: {}", KEYS.join(", "))),
        }
        if !matches!(key, "seed" | "max_tokens" | "think" | "spec") {
            self.preset = "custom".into();
        }
        Ok(format!("{key} is {} from the next answer on", self.get(key)))
    }

    /// The value of a key as text; empty for an unknown key.
    pub fn get(&self, key: &str) -> String {
        let s = &self.sampling;
        match key {
            "temperature" => s.temperature.to_string(),
            "top_k" => s.top_k.to_string(),
            "top_p" => s.top_p.to_string(),
            "min_p" => s.min_p.to_string(),
            "repeat_penalty" => s.repeat_penalty.to_string(),
            "presence_penalty" => s.presence_penalty.to_string(),
            "frequency_penalty" => s.frequency_penalty.to_string(),
            "seed" => self.seed.map_or_else(|| "new each answer".into(), |s| s.to_string()),
            "max_tokens" => self.max_tokens.to_string(),
            "think" => think_word(self.think).into(),
            "spec" => spec_word(self.spec),
            _ => String::new(),
        }
    }

    /// All keys as a Markdown table.
    pub fn table(&self) -> String {
        let mut out = String::from("| key | value |\n|---|---|\n");
        for key in KEYS {
            out.push_str(&format!("| {key} | {} |\n", self.get(key)));
        }
        out.push_str(&format!(
            "\nPreset: {}. Change one with `/set KEY VALUE`; it takes effect at the next answer.\n",
            self.preset
        ));
        out
    }

    /// Takes a preset. `base` is the configured sampling, which `default` returns to.
    pub fn preset(&mut self, name: &str, base: &Sampling) -> Result<String, String> {
        let Some(preset) = builtin(name) else {
            let names: Vec<&str> = PRESETS.iter().map(|p| p.0).collect();
            return Err(format!("No preset {name}. There are: {}", names.join(", ")));
        };
        self.sampling = *base;
        for (key, value) in &preset.values {
            self.set(key.rsplit('.').next().unwrap_or(key), value)?;
        }
        let s = self.sampling;
        self.preset = name.into();
        Ok(format!("Preset {name}: temperature {}, top-p {}, min-p {}", s.temperature, s.top_p, s.min_p))
    }

    /// Sampling of the next answer; draws a seed from `fresh` where none is set.
    pub fn for_answer(&self, fresh: impl FnOnce() -> u64) -> Sampling {
        Sampling { seed: self.seed.unwrap_or_else(fresh), ..self.sampling }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_changes_nothing_and_says_the_range() {
        let mut s = Settings::default();
        let before = s.clone();
        assert_eq!(s.set("temperature", "7").unwrap_err(), "temperature must be 0 to 2 (got 7)");
        assert_eq!(s.set("top_p", "NaN").unwrap_err(), "top_p must be 0 to 1 (got NaN)");
        assert!(s.set("max_tokens", "0").is_err());
        assert!(s.set("spec", "16").is_err());
        assert!(s.set("colour", "red").unwrap_err().contains("temperature"));
        assert_eq!(s, before);
    }

    #[test]
    fn settings_survive_json_and_unknown_fields_of_a_later_version() {
        let mut s = Settings::default();
        s.set("temp", "0.2").unwrap();
        s.set("seed", "7").unwrap();
        s.set("spec", "5").unwrap();
        let mut json: serde_json::Value = serde_json::to_value(&s).unwrap();
        json["from_the_future"] = 1.into();
        let back: Settings = serde_json::from_value(json).unwrap();
        assert_eq!(back, s);
        assert_eq!(back.preset, "custom");
    }

    #[test]
    fn a_preset_starts_from_the_configured_sampling() {
        let base = Sampling { repeat_penalty: 1.1, ..Sampling::default() };
        let mut s = Settings::default();
        s.preset("greedy", &base).unwrap();
        assert_eq!((s.sampling.temperature, s.sampling.repeat_penalty), (0.0, 1.1));
        assert!(s.preset("nope", &base).unwrap_err().contains("careful"));
        assert_eq!(s.for_answer(|| 99).seed, 99);
        s.set("seed", "5").unwrap();
        assert_eq!(s.for_answer(|| 99).seed, 5);
    }
}
