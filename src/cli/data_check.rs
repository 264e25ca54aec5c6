//! `doctor --check`: checks the data directory, and repairs what it can.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::about::without_home;
use super::{Context, Exit, Failure, open};
use crate::core::counted;
use crate::core::sanitize::sanitize_line;
use crate::store::{Checked, RealDisk, Rescued, Store, StoreError};

#[derive(Serialize)]
struct Report {
    ok: bool,
    #[serde(skip)]
    root: String,
    #[serde(flatten)]
    checked: Checked,
    notes: Vec<String>,
}

/// Runs it. Exit code 7 when something stays damaged.
pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let report = look(&context.dirs.data, || open::store(context))?;
    // The server's requests have a store of their own; its damage does not keep the conversations from being checked.
    let requests = open::folder_of_requests(context).map(|folder| {
        look(&folder, || open::store_of_requests(context)).unwrap_or_else(|e| {
            let checked = Checked { damaged: vec![e.to_string()], ..Checked::default() };
            Report::new(&folder, checked, &[])
        })
    });
    let whole = report.ok && requests.as_ref().is_none_or(|requests| requests.ok);
    let json = || {
        let mut all = json!(report);
        all["ok"] = whole.into();
        all["requests"] = json!(requests);
        all
    };
    let text = || [&report].into_iter().chain(&requests).flat_map(Report::lines).collect::<Vec<_>>().join("\n");
    context.result(json, text)?;
    Ok(if whole { Exit::Ok } else { Exit::Unreadable })
}

/// Makes a new database first where the old one cannot be opened.
fn look(root: &Path, open: impl FnOnce() -> Result<Arc<Store>, Failure>) -> Result<Report, Failure> {
    let (rescued, in_use) = match Store::rescue(root, &RealDisk) {
        Err(e @ StoreError::DamagedInUse { .. }) => (None, Some(e.to_string())),
        rescued => (rescued?, None),
    };
    let store = open().map_err(|e| in_use.clone().map_or(e, |message| Failure::new(Exit::InUse, message)))?;
    let mut checked = store.check()?;
    checked.repaired.splice(0..0, rescued.iter().map(Rescued::summary));
    checked.damaged.extend(rescued.iter().flat_map(Rescued::losses));
    checked.damaged.extend(in_use);
    Ok(Report::new(store.root(), checked, store.notes()))
}

impl Report {
    fn new(root: &Path, checked: Checked, notes: &[String]) -> Report {
        let short = |lines: &[String]| lines.iter().map(|line| without_home(line)).collect();
        let (repaired, damaged) = (short(&checked.repaired), short(&checked.damaged));
        let checked = Checked { repaired, damaged, ..checked };
        Report {
            ok: checked.damaged.is_empty(),
            root: without_home(&root.to_string_lossy()),
            checked,
            notes: short(notes),
        }
    }

    fn lines(&self) -> Vec<String> {
        let checked = &self.checked;
        let mut lines = vec![format!(
            "{}: {}, {} and {} looked at.",
            self.root,
            counted(checked.sessions, "session"),
            counted(checked.messages, "message"),
            counted(checked.states, "state file")
        )];
        lines.extend(checked.repaired.iter().map(|line| format!("repaired  {}", sanitize_line(line))));
        lines.extend(checked.damaged.iter().map(|line| format!("damaged   {}", sanitize_line(line))));
        if checked.repaired.is_empty() && checked.damaged.is_empty() {
            lines.push("Everything is as it was saved.".into());
        }
        lines
    }
}
