//! Patterns of paths (`*.md`, `a/**/b?`) to the paths there are, sorted.
//!
//! Names are taken as the system gives them, UTF-8 or not. Hidden names are matched only by a part that begins with a
//! dot; links to folders are followed where they are named, never below `**`.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::SourceError;
use crate::engine::protocol::Cancel;

const RULES: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Whether a path is meant as a pattern.
pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The paths below `start` that a pattern means, at most `limit`; `None` if it is no pattern.
pub(super) fn expand(
    start: &Path,
    pattern: &str,
    limit: usize,
    cancel: &Cancel,
) -> Result<Option<Vec<PathBuf>>, SourceError> {
    let mut found = vec![start.to_owned()];
    for part in pattern.split('/').filter(|p| !matches!(*p, "" | ".")) {
        let mut next = Vec::new();
        if part == "**" {
            let mut todo = std::mem::take(&mut found);
            while let Some(folder) = todo.pop() {
                todo.extend(
                    entries(&folder).filter(|(name, is_folder, _)| *is_folder && !name.starts_with('.')).map(|e| e.2),
                );
                next.push(folder);
                within(next.len() + todo.len(), limit, cancel)?;
            }
        } else if is_pattern(part) {
            let Ok(rule) = Pattern::new(part) else { return Ok(None) };
            for folder in &found {
                next.extend(entries(folder).filter(|(name, ..)| rule.matches_with(name, RULES)).map(|e| e.2));
                within(next.len(), limit, cancel)?;
            }
        } else {
            next.extend(found.iter().map(|folder| folder.join(part)).filter(|path| path.symlink_metadata().is_ok()));
        }
        found = next;
    }
    found.sort();
    found.dedup();
    Ok(Some(found))
}

fn within(count: usize, limit: usize, cancel: &Cancel) -> Result<(), SourceError> {
    if cancel.is_cancelled() {
        return Err(SourceError::Cancelled);
    }
    if count > limit { Err(SourceError::TooMany { limit }) } else { Ok(()) }
}

/// What is in a folder: name as far as it can be read, whether it is a folder itself (and no link), path. An unreadable
/// folder is an empty one, as everywhere below a folder.
fn entries(folder: &Path) -> impl Iterator<Item = (String, bool, PathBuf)> {
    let read = std::fs::read_dir(folder).into_iter().flatten().flatten();
    read.map(|e| {
        let is_folder = e.file_type().is_ok_and(|t| t.is_dir());
        (e.file_name().to_string_lossy().into_owned(), is_folder, e.path())
    })
}
