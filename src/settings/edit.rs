//! One key of a configuration file changed, the rest kept as it is.

use std::path::PathBuf;

use toml::Value;

use super::layers::syntax;
use super::table::{self, ROWS};
use super::{ConfigError, Origin};
use crate::text::near::nearest;

/// The text of a config file with one key set and everything else, comments included, as it was.
///
/// # Errors
/// The text is no TOML, the key is unknown, or the value not allowed.
pub fn edit(text: &str, name: &str, value: &str) -> Result<String, ConfigError> {
    let origin = || Origin::File(PathBuf::from("config.toml"));
    let row = table::find_short(name).ok_or_else(|| ConfigError::Unknown {
        origin: origin(),
        key: name.to_owned(),
        nearest: nearest(name, ROWS.iter().map(|row| row.name)).map(str::to_owned),
    })?;
    let value = row.kind.parse(value).map_err(|expected| ConfigError::Value {
        origin: origin(),
        key: row.name.to_owned(),
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
    let (section, name) = (row.section(), row.key());
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
