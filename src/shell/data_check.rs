//! `doctor --check`: the data directory, looked at whole and put right where that is possible.

use serde_json::{Value, json};

use super::failure::Failure;
use super::{Context, open};
use crate::base::Exit;
use crate::base::counted;
use crate::session::{Checked, RealDisk, Store};
use crate::text::sanitize::sanitize_line;

/// Runs it. Exit code 7 when something stays damaged.
///
/// # Errors
/// The data directory cannot be opened or read.
pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let rescued = Store::rescue(&context.dirs.data, &RealDisk)?;
    let store = open::store(context)?;
    let mut checked = store.check()?;
    if let Some(rescued) = rescued {
        checked.repaired.insert(0, rescued.said());
        checked.damaged.extend(rescued.said_lost());
    }
    // What serve kept, if it ever did, lies in a store of its own.
    let requests = match open::store_of_requests_if_any(context)? {
        Some(store) => Some((store.check()?, store)),
        None => None,
    };
    let whole = checked.damaged.is_empty() && requests.as_ref().is_none_or(|(c, _)| c.damaged.is_empty());
    let json = || {
        let mut all = facts(&checked, &store);
        all["ok"] = whole.into();
        all["requests"] = requests.as_ref().map(|(checked, store)| facts(checked, store)).into();
        all
    };
    let text = || {
        let mut lines = lines(&checked, &store);
        lines.extend(requests.iter().flat_map(|(checked, store)| self::lines(checked, store)));
        lines.join("\n")
    };
    context.result(json, text)?;
    Ok(if whole { Exit::Ok } else { Exit::Unreadable })
}

fn facts(checked: &Checked, store: &Store) -> Value {
    json!({
        "ok": checked.damaged.is_empty(), "sessions": checked.sessions, "messages": checked.messages,
        "states": checked.states, "repaired": checked.repaired, "damaged": checked.damaged, "notes": store.notes()
    })
}

fn lines(checked: &Checked, store: &Store) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {}, {} and {} looked at.",
        store.root().display(),
        counted(checked.sessions, "session"),
        counted(checked.messages, "message"),
        counted(checked.states, "state file")
    )];
    lines.extend(checked.repaired.iter().map(|line| format!("repaired  {}", sanitize_line(line))));
    lines.extend(checked.damaged.iter().map(|line| format!("damaged   {}", sanitize_line(line))));
    if checked.repaired.is_empty() && checked.damaged.is_empty() {
        lines.push("All is as it was saved.".into());
    }
    lines
}
