//! One key of a configuration file changed, the rest kept as it is.

use std::path::Path;

use toml::Value;

use super::file::syntax;
use super::table;
use super::{ConfigError, Origin, Problem, meant};

/// The text of the config file at `path` with one key set and everything else, comments included, as it was.
pub fn edit(path: &Path, text: &str, name: &str, value: &str) -> Result<String, ConfigError> {
    let (sections, name, value) = match (table::find_short(name), table::find_open(name)) {
        (Some(row), _) => {
            let wrong = |expected| Problem::value(row.name, expected, value).of(&Origin::CommandLine);
            (vec![row.section()], row.key(), row.kind.parse(value).map_err(wrong)?)
        }
        (None, Some((open, key))) => (open.name.split('.').collect(), key, Value::String(value.to_owned())),
        (None, None) => return Err(Problem::unknown(name, meant::setting(name)).of(&Origin::CommandLine)),
    };
    let mut document: toml_edit::DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| syntax(path, text, e.span(), e.message()))?;
    let new: toml_edit::Value = match value {
        Value::Boolean(b) => b.into(),
        Value::Integer(i) => i.into(),
        Value::Float(f) => f.into(),
        Value::String(s) => s.into(),
        other => other.to_string().into(),
    };
    let mut table: &mut dyn toml_edit::TableLike = document.as_table_mut();
    for (i, section) in (1..).zip(&sections) {
        let new = || {
            let mut table = toml_edit::Table::new();
            // One that holds nothing but the next has no line of its own.
            table.set_implicit(i < sections.len());
            toml_edit::Item::Table(table)
        };
        table = table.entry(section).or_insert_with(new).as_table_like_mut().ok_or_else(|| {
            let section = sections.iter().take(i).copied().collect::<Vec<_>>().join(".");
            Problem::value(&section, format!("a table: [{section}]"), "a value").of(&Origin::File(path.to_owned()))
        })?;
    }
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
