//! The table of settings as text: the page of `/settings`.

use std::fmt::Write;

use super::row::Owner;
use super::table::{OPEN_TABLES, ROWS, Row};
use super::{Config, Loaded, Origin, Value};

pub fn values(config: &Config) -> Vec<(String, Value)> {
    let rows = ROWS.iter().map(|row| (row.name.to_owned(), (row.get)(config)));
    let open = OPEN_TABLES.iter().flat_map(|table| {
        let entries = (table.get)(config).iter();
        entries.map(|(key, value)| (format!("{}.{key}", table.name), Value::String(value.clone())))
    });
    rows.chain(open).collect()
}

/// The page of `/settings`: rows with a word in name or help. `now` is the value that the session or the screen has.
pub fn page(loaded: &Loaded, word: Option<&str>, now: impl Fn(&Row) -> Option<String>) -> String {
    let wanted = word.map(str::to_lowercase);
    let matches = |row: &&Row| {
        let has = |text: &str| wanted.as_ref().is_none_or(|w| text.to_lowercase().contains(w.as_str()));
        has(row.name) || has(row.help) || row.session.is_some_and(|way| has(way.name))
    };
    let rows: Vec<&Row> = ROWS.iter().filter(matches).collect();
    let mut out = String::new();
    let mut section = "";
    for row in &rows {
        if row.section() != section {
            section = row.section();
            let _ = writeln!(out, "\n**{section}**\n");
        }
        let configured = row.kind.show(&(row.get)(&loaded.config));
        let value = now(row).unwrap_or_else(|| configured.clone());
        let origin = loaded.origins.get(row.name).unwrap_or(&Origin::BuiltIn);
        // Nothing cannot be set in bold.
        let shown = if value.is_empty() { "(empty)".to_owned() } else { format!("**{value}**") };
        let from = match (row.session.map(|way| way.owner), value == configured) {
            (Some(Owner::Session(..) | Owner::Screen), false) if row.preset => "/set or /preset".to_owned(),
            (Some(Owner::Session(..) | Owner::Screen), false) => "/set".to_owned(),
            _ => origin.to_string(),
        };
        let way = row.session.map_or("config set".to_owned(), |way| format!("/set {}", way.name));
        let _ = writeln!(out, "- `{}` {shown}: {} (by {from}; `{way}`)", row.name, row.help);
    }
    match (&rows.is_empty(), word) {
        (true, Some(word)) => format!("No setting has \"{word}\" in its name or help. `/settings` shows all.\n"),
        _ => format!(
            "Value, meaning, who set it. `/set KEY VALUE` changes what belongs to a session; \
             `sala-chat config set KEY VALUE` changes the file, for the next start.\n{out}"
        ),
    }
}
