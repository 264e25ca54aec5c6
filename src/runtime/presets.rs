//! `/preset`: built-in presets and the user's presets, one file each in the configuration folder.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{Done, Notice, RuntimeError, Settings, State};
use crate::config::settings::preset::{BUILT_IN, Preset, builtin, check_name};
use crate::config::settings::table;
use crate::core::files;
use crate::core::transcript::Role;
use crate::runtime::protocol::{Display, PresetAction};
use crate::text::near::meant;

fn file_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.toml"))
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut names = files::stems(dir, "toml");
    names.retain(|name| check_name(name).is_ok());
    names
}

fn read(file: &Path) -> Result<Preset, String> {
    let shown = file.display();
    let text =
        files::read_text(file, files::SETTINGS_BYTES).map_err(|e| format!("{shown}: {e}. Fix or remove the file."))?;
    Preset::parse(&text).map_err(|e| format!("{shown}: {e}"))
}

/// Writes a preset atomically. Returns whether it replaced one, which is kept as `NAME.toml~`.
fn write(dir: &Path, name: &str, preset: &Preset) -> std::io::Result<bool> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = file_of(dir, name);
    let replaced = file.exists();
    if replaced {
        std::fs::copy(&file, dir.join(format!("{name}.toml~")))?;
    }
    files::replace(&file, preset.text().as_bytes())?;
    Ok(replaced)
}

/// The values of a preset that differ: from the configuration, or for display settings from the built-in defaults.
fn summary(preset: &Preset, configured: &Settings) -> String {
    let other = |(key, value): &(&'static str, String)| {
        let row = table::find(key)?;
        let usual = configured.value(row).unwrap_or_else(|| row.kind.show(&row.kind.default()));
        (usual != *value).then(|| format!("{} {value}", row.session.map_or(row.name, |way| way.name)))
    };
    let mut parts: Vec<String> = preset.values.iter().filter_map(other).collect();
    if preset.system.is_some() {
        parts.push("a system text".into());
    }
    if parts.is_empty() { "the configured values".to_owned() } else { parts.join(", ") }
}

/// A built-in preset or one of the user's.
///
/// # Errors
/// One line: the preset does not exist, or its file is invalid.
pub fn find(dir: Option<&Path>, name: &str) -> Result<Preset, String> {
    if let Some(preset) = builtin(name) {
        return Ok(preset);
    }
    let own = dir.map(names).unwrap_or_default();
    if let Some(dir) = dir.filter(|_| own.iter().any(|n| n == name)) {
        return read(&file_of(dir, name));
    }
    let all: Vec<&str> = BUILT_IN.iter().map(|p| p.name).chain(own.iter().map(String::as_str)).collect();
    let near = meant(name, all.iter().copied());
    Err(format!("No preset {name}.{near} There are: {}", all.join(", ")))
}

impl State {
    pub fn preset(&mut self, action: PresetAction) -> Done {
        match action {
            PresetAction::List => self.list_presets(),
            PresetAction::Take(name) => self.take_preset(&name),
            PresetAction::Save { name, display } => self.save_preset(&name, display),
        }
    }

    fn list_presets(&mut self) -> Done {
        let mut rows: String = BUILT_IN.iter().map(|p| format!("| {} | {} |\n", p.name, p.help)).collect();
        let mut own = String::new();
        if let Some(dir) = &self.options.presets {
            for name in names(dir) {
                let what = read(&file_of(dir, &name)).map_or_else(|e| e, |p| summary(&p, &self.options.settings));
                rows.push_str(&format!("| {name} | {} |\n", what.replace('|', "\\|")));
            }
            own = format!(" `/preset save NAME` saves the current settings in {}.", dir.display());
        }
        let text = format!(
            "| preset | |\n|---|---|\n{rows}\nNow: {}. `/preset NAME` takes one.{own}\n",
            self.here.settings.preset
        );
        self.page("Presets", text)
    }

    fn take_preset(&mut self, name: &str) -> Done {
        let refused = RuntimeError::Refused;
        let preset = find(self.options.presets.as_deref(), name).map_err(refused)?;
        let (mut settings, base) = (self.here.settings.clone(), &self.options.settings);
        let display = settings.take_preset(name, &preset, base).map_err(|e| {
            let dir = self.options.presets.as_deref().filter(|_| builtin(name).is_none());
            refused(format!(
                "{}: {e}",
                dir.map_or(format!("preset {name}"), |dir| file_of(dir, name).display().to_string())
            ))
        })?;
        let mut message = format!("Preset {name}: {}", summary(&preset, base));
        if let (Err(why), Some(row)) = (self.may_think(settings.think), table::session_row("think")) {
            settings.take(row, &self.here.settings);
            message.push_str(&format!(". Its thinking settings were ignored: {why}"));
        }
        let path = self.here.tree.path();
        let read_here = path.first().filter(|m| m.role == Role::System).map(|m| m.text.clone());
        if let Some(text) = preset.system.filter(|t| read_here.as_ref() != Some(t)) {
            if self.here.tree.is_empty() && self.here.may_write().is_ok() {
                self.move_head(None)?;
                self.here.system = Some(text);
                self.show_session();
            } else {
                message.push_str(&format!(". Its system text is for new sessions: /new, then /preset {name}"));
            }
        }
        self.here.settings = settings;
        if !display.is_empty() {
            self.report(Notice::Display(display));
        }
        self.settings_changed(message)
    }

    fn save_preset(&mut self, name: &str, display: Display) -> Done {
        let refused = |e: String| RuntimeError::Refused(format!("{e}. Nothing was saved."));
        check_name(name).map_err(refused)?;
        if builtin(name).is_some() || matches!(name, "list" | "save" | "custom") {
            return Err(refused(format!("\"{name}\" is reserved; choose another name")));
        }
        let Some(dir) = &self.options.presets else {
            return Err(refused("There is no configuration folder".into()));
        };
        let settings = &self.here.settings;
        // Without a seed in the preset each answer has its own, so none is written.
        let mut values: Display = table::preset_rows()
            .filter(|row| row.name != "sampling.seed" || settings.seed.is_some())
            .filter_map(|row| Some((row.name, settings.value(row)?)))
            .collect();
        values.extend(display);
        let system = match self.here.tree.path().first() {
            Some(m) => Some(m.text.clone()).filter(|_| m.role == Role::System),
            None => self.here.system.clone(),
        };
        let preset = Preset { system: system.filter(|t| !t.trim().is_empty()), values };
        // Detects at once a value that a configuration accepts and a session does not.
        Preset::parse(&preset.text())
            .map_err(|e| e.to_string())
            .and_then(|p| settings.clone().take_preset(name, &p, &self.options.settings))
            .map_err(refused)?;
        let file = file_of(dir, name);
        let replaced = write(dir, name, &preset).map_err(|e| refused(format!("{}: {e}", file.display())))?;
        let before = match replaced {
            true => format!(" The previous one is {name}.toml~."),
            false => String::new(),
        };
        self.here.settings.preset = name.to_owned();
        self.here.settings.keep_preset();
        self.save_settings()?;
        self.say(format!("Preset {name} saved: {}.{before}", file.display()))
    }
}
