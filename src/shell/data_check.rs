//! `doctor --check`: the data directory, looked at whole and put right where that is possible.

use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, open};
use crate::text::sanitize::sanitize_line;

/// Runs it. Exit code 7 when something stays damaged.
///
/// # Errors
/// The data directory cannot be opened or read.
pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let store = open::store(context)?;
    let checked = store.check()?;
    let json = || {
        json!({
            "ok": checked.damaged.is_empty(), "sessions": checked.sessions, "messages": checked.messages,
            "states": checked.states, "repaired": checked.repaired, "damaged": checked.damaged, "notes": store.notes()
        })
    };
    let text = || {
        let mut lines = vec![format!(
            "{}: {} sessions, {} messages and {} state files looked at.",
            store.root().display(),
            checked.sessions,
            checked.messages,
            checked.states
        )];
        lines.extend(checked.repaired.iter().map(|line| format!("repaired  {}", sanitize_line(line))));
        lines.extend(checked.damaged.iter().map(|line| format!("damaged   {}", sanitize_line(line))));
        if checked.repaired.is_empty() && checked.damaged.is_empty() {
            lines.push("All is as it was saved.".into());
        }
        lines.join("\n")
    };
    context.result(json, text)?;
    Ok(if checked.damaged.is_empty() { Exit::Ok } else { Exit::Unreadable })
}
