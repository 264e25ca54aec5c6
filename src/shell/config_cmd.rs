//! `sala-chat config show|path|check|set`. Works on a broken settings file, so it reads the layers itself.

use std::io::Write;
use std::path::Path;

use super::cli::ConfigCommand;
use super::dirs::make_private;
use super::failure::{Exit, Failure};
use super::out;
use crate::app::keys::KeyTable;
use crate::config::{self, Origin, keys};
use crate::text::sanitize::Clean;

/// Runs one of the actions.
pub(super) fn run(
    action: &ConfigCommand,
    file: &Path,
    variables: &[(String, String)],
    json: bool,
) -> Result<Exit, Failure> {
    let say = |line: String| out::line(&Clean::text(&line));
    match action {
        ConfigCommand::Path => say(format!("{}", file.display()))?,
        ConfigCommand::Check => {
            let mut problems: Vec<String> = config::problems(file, variables).iter().map(ToString::to_string).collect();
            if let Ok(loaded) = config::load(file, variables, &[]) {
                let mut keys = KeyTable::default();
                let bad = loaded.config.keys.iter().filter_map(|(key, action)| keys.bind(key, action).err());
                problems.extend(bad.map(|e| format!("{}: {e}", file.display())));
            }
            if json {
                out::line(&Clean::json(&serde_json::json!({ "file": file, "problems": problems })))?;
            } else if problems.is_empty() {
                let what = if file.exists() { "no mistakes" } else { "does not exist, built-in values are used" };
                say(format!("{}: {what}", file.display()))?;
            } else {
                for problem in &problems {
                    say(problem.clone())?;
                }
            }
            if !problems.is_empty() {
                return Ok(Exit::Usage);
            }
        }
        ConfigCommand::Show { origin } => {
            let loaded = config::load(file, variables, &[])?;
            let table =
                toml::Table::try_from(&loaded.config).map_err(|e| Failure::new(Exit::Failure, e.to_string()))?;
            let mut rows: Vec<(String, toml::Value)> = Vec::new();
            for key in keys::KEYS {
                rows.extend(value(&table, key.name).map(|v| (key.name.to_owned(), v.clone())));
            }
            for (open, ..) in keys::OPEN_TABLES {
                for (name, value) in value(&table, open).and_then(|t| t.as_table()).into_iter().flatten() {
                    rows.push((format!("{open}.{name}"), value.clone()));
                }
            }
            let from = |key: &str| loaded.origins.get(key).unwrap_or(&Origin::BuiltIn).to_string();
            if json {
                let rows: serde_json::Map<String, serde_json::Value> = rows
                    .into_iter()
                    .map(|(key, value)| {
                        let value = serde_json::to_value(value).unwrap_or_default();
                        let shown =
                            if *origin { serde_json::json!({ "value": value, "origin": from(&key) }) } else { value };
                        (key, shown)
                    })
                    .collect();
                out::line(&Clean::json(&serde_json::Value::Object(rows)))?;
            } else {
                for (key, value) in rows {
                    let line = format!("{key} = {value}");
                    say(if *origin { format!("{line:<50} # {}", from(&key)) } else { line })?;
                }
            }
        }
        ConfigCommand::Set { key, value } => {
            let key = set(file, key, value)?;
            say(format!("{key} set in {}", file.display()))?;
        }
    }
    Ok(Exit::Ok)
}

/// Sets one key in the settings file and keeps everything else; also `/set --save`. The full name of the key.
///
/// # Errors
/// Unknown key, value not allowed, file not readable or writable.
pub fn set(file: &Path, key: &str, value: &str) -> Result<String, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => {
            return Err(Failure::new(Exit::Failure, format!("{}: {e}", file.display())));
        }
    };
    let edited = config::edit(&text, key, value)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        make_private(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(edited.as_bytes())?;
        new.as_file().sync_all()?;
        new.persist(file).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", file.display())).hint("Nothing was changed"))?;
    Ok(keys::find_short(key).map_or(key, |k| k.name).to_owned())
}

fn value<'a>(table: &'a toml::Table, name: &str) -> Option<&'a toml::Value> {
    match name.split_once('.') {
        None => table.get(name),
        Some((section, rest)) => value(table.get(section)?.as_table()?, rest),
    }
}
