//! Patterns of paths (`*.md`, `a/**/b?`) to the paths there are, sorted.
//!
//! Names are taken as the system gives them, UTF-8 or not. Hidden names are matched only by a part that begins with a
//! dot; links to folders are followed in front of the first wildcard only.

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
    let parts: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let (named, rest) = parts.split_at(parts.iter().take_while(|part| !is_pattern(part)).count());
    let Ok(rule) = Pattern::new(&rest.join("/")) else { return Ok(None) };
    let folder = named.iter().fold(start.to_owned(), |folder, name| folder.join(name));
    let folders_alone = rest.last() == Some(&"**");
    let entries = ignore::WalkBuilder::new(&folder)
        .standard_filters(false)
        .hidden(!rest.iter().any(|part| part.starts_with('.')))
        .max_depth((!rest.contains(&"**")).then_some(rest.len()))
        .sort_by_file_path(|a, b| a.cmp(b))
        .build();
    let mut found = Vec::new();
    // An unreadable folder is an empty one, as everywhere below a folder.
    for entry in entries.flatten() {
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled);
        }
        let below = entry.path().strip_prefix(&folder).unwrap_or(entry.path());
        let is_meant = match folders_alone {
            true => entry.file_type().is_some_and(|kind| kind.is_dir()),
            false => entry.depth() > 0,
        };
        if is_meant && rule.matches_with(&below.to_string_lossy(), RULES) {
            found.push(entry.into_path());
        }
        if found.len() > limit {
            return Err(SourceError::TooMany { limit });
        }
    }
    Ok(Some(found))
}
