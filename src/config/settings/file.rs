//! What a settings file or a preset says: its settings, checked by the rows of the table, and what is wrong.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use toml::{Table, Value};

use super::table::{self, OPEN_TABLES, ROWS};
use super::{ConfigError, Origin, Problem, meant};

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
        false => message.lines().collect::<Vec<_>>().join(", "),
    };
    (line, reason)
}

/// Adds the settings of a file's table to `out`; returns what is wrong.
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
        (None, Value::Table(_)) => Err(Problem::unknown(name, meant::table(name))),
        (None, _) => Err(Problem::unknown(name, meant::setting(name))),
    }
}
