//! Settings files and presets: their settings, checked by the rows of the table, and one key changed in a file.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use toml::{Table, Value};

use super::table::{self, OPEN_TABLES, ROWS, Row, find_short};
use super::{ConfigError, Origin, Problem};
use crate::text::near::nearest;

pub(super) struct Setting {
    pub key: String,
    pub value: Value,
    pub origin: Origin,
}

pub(super) fn syntax(path: &Path, text: &str, span: Option<Range<usize>>, message: &str) -> ConfigError {
    let (line, reason) = place(text, span, message);
    ConfigError::Syntax { path: path.display().to_string(), line, reason }
}

/// The line of a mistake, from 1, and what the parser says about it on one line.
pub(super) fn place(text: &str, span: Option<Range<usize>>, message: &str) -> (usize, String) {
    let at = span.map_or(0, |s| s.start);
    let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
    // In the parser's words this is a matter of its types.
    let too_large = message.starts_with("invalid type: integer") && message.ends_with("expected any valid TOML value");
    let reason = match too_large {
        true => "a number that is too large".to_owned(),
        false if message.starts_with("string values must be quoted") => {
            "a text that is not in quotes; write it as \"text\"".to_owned()
        }
        false => message.lines().collect::<Vec<_>>().join(", "),
    };
    (line, reason)
}

pub(super) fn collect(table: &Table, origin: &Origin, out: &mut Vec<Setting>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut rest = VecDeque::from([(String::new(), table)]);
    while let Some((prefix, table)) = rest.pop_front() {
        for (name, value) in table {
            let full = format!("{prefix}{name}");
            let is_section = ROWS.iter().any(|row| row.section() == full) || OPEN_TABLES.iter().any(|t| t.name == full);
            match value {
                Value::Table(inner) if is_section => rest.push_back((format!("{full}."), inner)),
                value if is_section => {
                    problems.push(Problem::value(&full, format!("a table: [{full}]"), value.to_string()));
                }
                value => match check(&full, value) {
                    Ok(value) => out.push(Setting { key: full, value, origin: origin.clone() }),
                    Err(problem) => problems.push(problem),
                },
            }
        }
    }
    problems
}

pub(super) fn check(name: &str, value: &Value) -> Result<Value, Problem> {
    if let Some(row) = table::find(name) {
        return row.kind.accept(value).map_err(|expected| Problem::value(name, expected, value.to_string()));
    }
    match (table::find_open(name), value) {
        (Some(_), Value::String(_)) => Ok(value.clone()),
        (Some(_), _) => Err(Problem::value(name, "text in quotes", value.to_string())),
        (None, Value::Table(_)) => Err(Problem::unknown(name, table_near(name))),
        (None, _) => Err(Problem::unknown(name, setting_near(name))),
    }
}

/// The text of the config file at `path` with one key set and everything else, comments included, as it was.
pub fn edit(path: &Path, text: &str, name: &str, value: &str) -> Result<String, ConfigError> {
    let (sections, name, value) = match (table::find_short(name), table::find_open(name)) {
        (Some(row), _) => {
            let wrong = |expected| Problem::value(row.name, expected, value).of(&Origin::CommandLine);
            (vec![row.section()], row.key(), row.kind.parse(value).map_err(wrong)?)
        }
        (None, Some((open, key))) if !key.is_empty() => {
            (open.name.split('.').collect(), key, Value::String(value.to_owned()))
        }
        (None, _) => return Err(Problem::unknown(name, setting_near(name)).of(&Origin::CommandLine)),
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

/// Shorter words are near to anything.
const LEAST: usize = 3;

/// The intended setting: same table with this prefix, same key in another table, or the nearest name.
fn setting_near(name: &str) -> Option<&'static str> {
    let (section, key) = name.rsplit_once('.').unwrap_or(("", name));
    let begun = || ROWS.iter().find(|row| !key.is_empty() && row.section() == section && row.key().starts_with(key));
    let near = || nearest(name, ROWS.iter().map(|row| row.name));
    let near_key = || {
        let key = Some(key).filter(|key| section.is_empty() && key.len() >= LEAST)?;
        let key = nearest(key, ROWS.iter().map(Row::key))?;
        ROWS.iter().find(|row| row.key() == key)
    };
    let row = begun().or_else(|| find_short(key)).map(|row| row.name);
    row.or_else(near).or_else(|| near_key().map(|row| row.name))
}

pub fn no_setting(name: &str) -> String {
    let near = setting_near(name).map_or(String::new(), |near| format!(" Did you mean {near}?"));
    format!("no setting is called {name}.{near} /settings lists them")
}

/// A table of the file; or a setting, which is none.
fn table_near(name: &str) -> Option<&'static str> {
    let tables = ROWS.iter().map(Row::section).chain(OPEN_TABLES.iter().map(|open| open.name));
    nearest(name, tables).or_else(|| setting_near(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_table_wins_over_a_near_name() {
        for (name, meant) in [
            ("sampling.temp", "sampling.temperature"),
            ("sampling.temprature", "sampling.temperature"),
            ("samplin.top_k", "sampling.top_k"),
            ("temperature", "sampling.temperature"),
            ("temprature", "sampling.temperature"),
            ("ui.tehme", "ui.theme"),
        ] {
            assert_eq!(setting_near(name), Some(meant), "{name}");
        }
        assert_eq!((setting_near("nothing"), setting_near("x"), setting_near("sampling.")), (None, None, None));
        assert_eq!(
            (table_near("samplin"), table_near("load.converter"), table_near("nothing")),
            (Some("sampling"), Some("load.converters"), None)
        );
    }
}
