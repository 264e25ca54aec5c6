//! The answer settings of one session, which `/set`, `/preset`, `/think` and `/spec` change. Kept with it as JSON.

use super::answers::Settings;
use super::preset::{Display, Preset};
use super::row::Owner;
use super::table::{self, Row, preset_rows, session_row, session_rows};
use super::{Config, Value};
use crate::core::sanitize::shell_word;
use crate::engine::protocol::Sampling;
use crate::text::near;

#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// What there is to be read of them; for the rest what is used instead.
    pub settings: Settings,
    /// What could not be read: name and value, for each setting. One without a name is all of them.
    pub wrong: Vec<(String, String)>,
}

impl Settings {
    /// As a session keeps them. What counts for this run only is left out.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.own())
    }

    pub fn own(&self) -> Settings {
        let mut own = self.clone();
        for (name, value) in std::mem::take(&mut own.for_run) {
            if let Some((row, Ok(value))) = table::find(name).map(|row| (row, row.kind.parse(&value))) {
                own.put(row, &value);
            }
        }
        own
    }

    /// What a session kept. A setting that cannot be read, or that is out of its range, is as in `base`.
    pub fn from_json(text: &str, base: &Settings) -> Kept {
        let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_str(text) else {
            let wrong = vec![(String::new(), text.to_owned())];
            return Kept { settings: base.clone(), wrong };
        };
        let mut wrong = Vec::new();
        let based = serde_json::to_value(base).unwrap_or_default();
        let is_read = |key: &str, value: &serde_json::Value| {
            serde_json::from_value::<Settings>(serde_json::json!({ key: value })).is_ok()
        };
        for (key, value) in &mut fields {
            if let (Some(inner), Some(based)) = (value.as_object_mut(), based[key.as_str()].as_object()) {
                for (name, value) in inner.iter_mut() {
                    if !is_read(key, &serde_json::json!({ name.as_str(): value })) {
                        wrong.push((name.clone(), value.to_string()));
                        *value = based.get(name).cloned().unwrap_or_default();
                    }
                }
            }
            if !is_read(key, value) {
                wrong.push((key.clone(), value.to_string()));
                *value = based[key.as_str()].clone();
            }
        }
        let read = serde_json::from_value(serde_json::Value::Object(fields));
        let mut settings: Settings = read.unwrap_or_else(|_| base.clone());
        for (row, way) in session_rows() {
            let Some(value) = settings.value(row).filter(|value| row.kind.parse(value).is_err()) else { continue };
            wrong.push((way.name.to_owned(), value));
            if let Some(Ok(usual)) = base.value(row).map(|value| row.kind.parse(&value)) {
                settings.put(row, &usual);
            }
        }
        Kept { settings, wrong }
    }

    pub fn of(config: &Config) -> Settings {
        let mut settings = Settings { preset: config.sampling.preset.clone(), ..Settings::default() };
        for (row, _) in session_rows() {
            settings.put(row, &(row.get)(config));
        }
        settings.spec = config.spec_mode();
        settings
    }

    /// Puts a value that the row accepted where the session keeps it; nothing for what the screen keeps.
    fn put(&mut self, row: &Row, value: &Value) {
        if let Some(Owner::Session(_, set)) = row.session.map(|way| way.owner) {
            // A test takes every row's limits through its field.
            let held = set(self, value);
            debug_assert!(held, "{} accepts what a session cannot hold: {value}", row.name);
        }
    }

    /// The value of a row as `/set` takes it; `None` for what a session does not keep.
    pub fn value(&self, row: &Row) -> Option<String> {
        match row.session?.owner {
            Owner::Session(get, _) => Some(row.kind.show(&get(self))),
            Owner::Screen => None,
        }
    }

    pub fn values(&self) -> Vec<(&'static str, String)> {
        session_rows().filter_map(|(row, way)| Some((way.name, self.value(row)?))).collect()
    }

    /// The value of a setting by its name in `/set`; empty for one that is not the session's.
    pub fn get(&self, name: &str) -> String {
        session_row(name).and_then(|row| self.value(row)).unwrap_or_default()
    }

    pub fn set(&mut self, key: &str, value: &str) -> Result<String, String> {
        let (row, value) = parse(key, value)?;
        self.put(row, &value);
        self.for_run.remove(row.name);
        // A preset contains the sampling values, without seed and answer length.
        if row.section() == "sampling" && !matches!(row.key(), "seed" | "max_tokens" | "stop_loops") {
            self.preset = "custom".into();
        }
        let name = row.session.map_or(row.name, |way| way.name);
        Ok(format!("From the next answer on: {name} = {}.", self.value(row).unwrap_or_default()))
    }

    /// Takes one setting from others, with what counts there for this run only.
    pub fn take(&mut self, row: &Row, from: &Settings) {
        if let Some(Owner::Session(get, _)) = row.session.map(|way| way.owner) {
            self.put(row, &get(from));
            self.for_run.remove(row.name);
            self.for_run.extend(from.for_run.get_key_value(row.name).map(|(name, own)| (*name, own.clone())));
        }
    }

    /// Changes one key for this run: what the session has of its own is kept.
    pub fn set_for_run(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (row, value) = parse(key, value)?;
        let own = self.value(row).ok_or_else(|| no_setting(key, ""))?;
        self.for_run.entry(row.name).or_insert(own);
        self.put(row, &value);
        Ok(())
    }

    pub fn table(&self) -> String {
        let mut out = String::from("| key | value | range |\n|---|---|---|\n");
        for (row, way) in session_rows() {
            if let Some(value) = self.value(row) {
                out.push_str(&format!("| {} | {value} | {} |\n", way.name, row.kind.range()));
            }
        }
        out.push_str(&format!(
            "\nPreset: {}. Change one with `/set KEY VALUE`; it takes effect at the next answer. `/settings` shows all \
             there are.\n",
            self.preset
        ));
        out
    }

    /// Takes a preset. Sampling values that it does not set become the configured ones (`base`), so that nothing of the
    /// preset before stays. Nothing changes unless all values are valid. Returns the values that the screen keeps.
    pub fn take_preset(&mut self, name: &str, preset: &Preset, base: &Settings) -> Result<Display, String> {
        let (mut taken, mut display) = (self.clone(), Display::new());
        for row in preset_rows().filter(|row| row.section() == "sampling") {
            taken.take(row, base);
        }
        for (key, value) in &preset.values {
            match table::find(key).and_then(|row| taken.value(row)) {
                Some(_) => drop(taken.set(key, value)?),
                None => display.push((key, value.clone())),
            }
        }
        *self = Settings { preset: name.to_owned(), ..taken };
        Ok(display)
    }

    /// A preset was made of the settings: what it holds is the session's own from now on.
    pub fn keep_preset(&mut self) {
        self.for_run.retain(|name, _| !preset_rows().any(|row| row.name == *name));
    }

    /// Sampling of the next answer; draws a seed from `fresh` where none is set.
    pub fn for_answer(&self, fresh: impl FnOnce() -> u64) -> Sampling {
        Sampling { seed: self.seed.unwrap_or_else(fresh), ..self.sampling }
    }
}

/// Reads what `/set` is given: the setting, and its value checked.
pub fn parse(key: &str, value: &str) -> Result<(&'static Row, Value), String> {
    let row = session_row(key).ok_or_else(|| no_setting(key, value))?;
    let name = row.session.map_or(row.name, |way| way.name);
    let wrong = |expected: String| format!("{name} must be {expected} (got {})", value.trim());
    row.kind.parse(value).map_err(wrong).map(|value| (row, value))
}

/// No session has the setting: where it is set, if it is one.
fn no_setting(key: &str, value: &str) -> String {
    if let Some(row) = table::find_short(key).filter(|row| row.session.is_none()) {
        let value = row.kind.parse(value).map(|value| row.kind.show(&value)).ok().filter(|value| !value.is_empty());
        let value = value.map_or_else(|| "VALUE".to_owned(), |value| shell_word(&value));
        let name = row.name;
        return format!("{name} belongs to the settings file: sala-chat config set {name} {value}, for the next start");
    }
    let names: Vec<&str> = session_rows().map(|(_, way)| way.name).collect();
    let near = near::meant(key, names.iter().copied());
    format!("There is no setting {key}.{near} There are: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::ThinkMode;
    use super::super::preset::{BUILT_IN, builtin};
    use super::*;

    fn take(s: &mut Settings, preset: &str, base: &Settings) {
        s.take_preset(preset, &builtin(preset).unwrap(), base).unwrap();
    }

    #[test]
    fn a_value_out_of_range_changes_nothing_and_says_the_range() {
        let mut s = Settings::default();
        let before = s.clone();
        assert_eq!(s.set("temperature", "7").unwrap_err(), "temperature must be 0 to 2 (got 7)");
        assert_eq!(s.set("top_p", "NaN").unwrap_err(), "top_p must be 0 to 1 (got NaN)");
        assert!(s.set("max_tokens", "0").is_err());
        assert_eq!(s.set("seed", "x").unwrap_err(), "seed must be auto, random or a whole number from 0 (got x)");
        assert!(s.set("spec", "16").is_err());
        assert!(s.set("colour", "red").unwrap_err().contains("temperature"));
        assert_eq!(s, before);
    }

    #[test]
    fn a_setting_outside_sessions_names_where_it_is_set() {
        let refused = |key: &str, value: &str| Settings::default().set(key, value).unwrap_err();
        let expected = "ui.mouse belongs to the settings file: sala-chat config set ui.mouse true, for the next start";
        assert_eq!((refused("ui.mouse", "true"), refused("mouse", "on")), (expected.to_owned(), expected.to_owned()));
        assert!(refused("ui.mouse", "perhaps").contains("config set ui.mouse VALUE,"));
        assert!(refused("model.source", "my model").contains("config set model.source 'my model',"));
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
    fn what_counts_for_a_run_is_not_kept_until_it_is_set() {
        let mut s = Settings { max_tokens: 77, ..Settings::default() };
        for (key, value) in [("max_tokens", "12"), ("temperature", "0"), ("think", "off")] {
            s.set_for_run(key, value).unwrap();
        }
        assert_eq!((s.max_tokens, s.sampling.temperature, s.get("think").as_str()), (12, 0.0, "off"));
        let own = Settings { max_tokens: 77, ..Settings::default() };
        let kept = |s: &Settings| Settings::from_json(&s.to_json().unwrap(), &Settings::default()).settings;
        assert_eq!(kept(&s), own);
        // As given, but meant for the session.
        s.set("max_tokens", "12").unwrap();
        assert_eq!(kept(&s), Settings { max_tokens: 12, ..own.clone() });
        assert!(s.set_for_run("colour", "red").is_err());
        // There and back again.
        s.set("think", "on").unwrap();
        s.set("think", "off").unwrap();
        assert_eq!(kept(&s), Settings { max_tokens: 12, think: ThinkMode::Off, ..own });
    }

    #[test]
    fn what_was_given_for_a_run_more_than_once_leaves_what_was_there_before() {
        let mut s = Settings { max_tokens: 77, ..Settings::default() };
        for value in ["12", "13"] {
            s.set_for_run("max_tokens", value).unwrap();
        }
        assert_eq!((s.max_tokens, s.own()), (13, Settings { max_tokens: 77, ..Settings::default() }));
    }

    #[test]
    fn a_preset_keeps_what_is_configured_and_not_what_counts_for_a_run() {
        let mut base = Settings::default();
        base.set_for_run("top_p", "0.5").unwrap();
        let mut s = Settings::default();
        take(&mut s, "careful", &Settings::default());
        s.set_for_run("top_p", "0.5").unwrap();
        take(&mut s, "default", &base);
        assert_eq!((s.get("top_p").as_str(), s.own()), ("0.5", Settings::default()));
        // What a preset says is meant for the session.
        take(&mut s, "careful", &base);
        assert_eq!((s.get("top_p").as_str(), s.own().get("top_p").as_str()), ("0.9", "0.9"));
        // So is what a preset was made of.
        s.set_for_run("top_p", "0.4").unwrap();
        s.set_for_run("spec", "off").unwrap();
        s.keep_preset();
        assert_eq!((s.own().get("top_p").as_str(), s.own().get("spec").as_str()), ("0.4", "auto"));
    }

    #[test]
    fn what_cannot_be_read_is_named_and_kept_and_the_rest_is_read() {
        let base = Settings { max_tokens: 77, ..Settings::default() };
        let text = r#"{"sampling":{"temperature":"hot","top_k":3},"max_tokens":-1,"thinking_budget":9}"#;
        let kept = Settings::from_json(text, &base);
        let mut wrong: Vec<(&str, &str)> = kept.wrong.iter().map(|(n, value)| (n.as_str(), value.as_str())).collect();
        wrong.sort_unstable();
        assert_eq!(wrong, [("max_tokens", "-1"), ("temperature", "\"hot\"")]);
        let s = &kept.settings;
        assert_eq!((s.sampling.temperature, s.sampling.top_k, s.max_tokens, s.thinking_budget), (0.7, 3, 77, 9));
        // Once saved, it is not complained of again.
        let again = Settings::from_json(&s.to_json().unwrap(), &base);
        assert_eq!((again.settings, again.wrong), (s.clone(), Vec::new()));

        let out = Settings::from_json(r#"{"sampling":{"temperature":99}}"#, &base);
        assert_eq!((out.wrong, out.settings.sampling.temperature), (vec![("temperature".into(), "99".into())], 0.7));
        let none = Settings::from_json("{not JSON", &base);
        assert_eq!((none.settings, none.wrong.len()), (base.clone(), 1));
    }

    #[test]
    fn all_that_a_session_can_be_set_to_is_read_again() {
        for preset in BUILT_IN.iter() {
            let mut s = Settings::of(&Config::default());
            take(&mut s, preset.name, &Settings::default());
            for (key, value) in [("seed", "7"), ("spec", "5"), ("think", "on"), ("max_tokens", "1")] {
                s.set(key, value).unwrap();
            }
            let kept = Settings::from_json(&s.to_json().unwrap(), &Settings::default());
            assert_eq!(kept, Kept { settings: s, wrong: Vec::new() });
        }
    }

    #[test]
    fn a_preset_starts_from_the_configured_sampling() {
        let sampling = Sampling { repeat_penalty: 1.1, ..Sampling::default() };
        let base = Settings { sampling, max_tokens: 900, ..Settings::default() };
        let mut s = Settings { max_tokens: 50, seed: Some(7), stop_loops: false, ..Settings::default() };
        take(&mut s, "greedy", &base);
        // Nothing of the preset before stays.
        assert_eq!((s.max_tokens, s.seed, s.stop_loops), (900, None, true));
        assert_eq!((s.sampling.temperature, s.sampling.repeat_penalty), (0.0, 1.1));
        assert_eq!(builtin("nope"), None);
        assert_eq!(s.for_answer(|| 99).seed, 99);
        s.set("seed", "5").unwrap();
        assert_eq!(s.for_answer(|| 99).seed, 5);
    }
}
