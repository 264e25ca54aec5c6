//! What may have been meant by a name that is no setting.

use super::table::{OPEN_TABLES, ROWS, Row, find_short};
use crate::text::near::nearest;

/// Shorter words are near to anything.
const LEAST: usize = 3;

/// The intended setting: same table with this prefix, same key in another table, or the nearest name.
pub(super) fn setting(name: &str) -> Option<&'static str> {
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
    let near = setting(name).map_or(String::new(), |near| format!(" Did you mean {near}?"));
    format!("no setting is called {name}.{near} /settings lists them")
}

/// A table of the file; or a setting, which is none.
pub(super) fn table(name: &str) -> Option<&'static str> {
    let tables = ROWS.iter().map(Row::section).chain(OPEN_TABLES.iter().map(|open| open.name));
    nearest(name, tables).or_else(|| setting(name))
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
            assert_eq!(setting(name), Some(meant), "{name}");
        }
        assert_eq!((setting("nothing"), setting("x"), setting("sampling.")), (None, None, None));
        assert_eq!(
            (table("samplin"), table("load.converter"), table("nothing")),
            (Some("sampling"), Some("load.converters"), None)
        );
    }
}
