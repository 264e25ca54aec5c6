//! Small work off the drawing thread: listing paths for Tab, colouring code. And the user's editor.

use std::io;
use std::path::{Path, PathBuf};

use crossbeam_channel::{Sender, unbounded};

use crate::app::Event;
use crate::ui::highlight::Highlighter;

/// Completions offered at most.
const PATHS: usize = 200;

/// Something to do.
pub enum Job {
    /// Complete a path.
    Paths {
        /// As typed.
        prefix: String,
        /// For `~`.
        home: Option<PathBuf>,
    },
    /// Colour a block.
    Highlight {
        /// Language.
        lang: String,
        /// Code.
        code: String,
    },
}

/// Starts the thread. The channel is unbounded: a job is asked for once per visible block or per Tab.
///
/// # Errors
/// When the thread cannot be started.
pub fn start_jobs(to: Sender<Event>) -> io::Result<Sender<Job>> {
    let (jobs_to, jobs) = unbounded::<Job>();
    std::thread::Builder::new().name("jobs".into()).spawn(move || {
        let mut highlighter = None;
        for job in jobs {
            let event = match job {
                Job::Paths { prefix, home } => {
                    let found = list_paths(&prefix, home.as_deref());
                    Some(Event::Paths { prefix, found })
                }
                Job::Highlight { lang, code } => {
                    let lines = highlighter.get_or_insert_with(Highlighter::default).lines(&lang, &code);
                    lines.map(|lines| Event::Highlighted { lang, code, lines })
                }
            };
            if let Some(event) = event
                && to.send(event).is_err()
            {
                return;
            }
        }
    })?;
    Ok(jobs_to)
}

/// Paths that begin with `prefix`, folders with a slash, hidden ones only when asked for.
pub fn list_paths(prefix: &str, home: Option<&Path>) -> Vec<String> {
    let (folder, name) = match prefix.rfind('/') {
        Some(at) => prefix.split_at(at + 1),
        None => ("", prefix),
    };
    let real = match (folder.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ if folder.is_empty() => PathBuf::from("."),
        _ => PathBuf::from(folder),
    };
    let Ok(entries) = std::fs::read_dir(real) else {
        return Vec::new();
    };
    let mut found: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|e| {
            let entry = e.file_name().into_string().ok()?;
            if !entry.starts_with(name) || (entry.starts_with('.') && !name.starts_with('.')) {
                return None;
            }
            let slash = if e.path().is_dir() { "/" } else { "" };
            Some(format!("{folder}{entry}{slash}"))
        })
        .collect();
    found.sort();
    found.truncate(PATHS);
    found
}

/// Opens the user's editor on `text` and returns what was saved. The terminal must be free.
pub fn edit(text: &str) -> Result<String, String> {
    let editor = ["VISUAL", "EDITOR"].iter().filter_map(std::env::var_os).find(|e| !e.is_empty());
    let editor = editor.ok_or("No editor: set VISUAL or EDITOR, for example VISUAL=nano")?;
    let fail = |e: io::Error| format!("The editor could not be used: {e}");
    let mut file = tempfile::Builder::new().prefix("sala-chat-").suffix(".md").tempfile().map_err(fail)?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(fail)?;
    // Through a shell, because VISUAL may hold arguments.
    let status = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{} \"$1\"", editor.to_string_lossy()))
        .arg("sh")
        .arg(file.path())
        .status()
        .map_err(fail)?;
    if !status.success() {
        return Err(format!("The editor {} ended with {status}; the input is unchanged", editor.to_string_lossy()));
    }
    std::fs::read_to_string(file.path()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_completed_with_folders_marked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("books")).unwrap();
        std::fs::write(dir.path().join("book.txt"), "x").unwrap();
        std::fs::write(dir.path().join(".hidden"), "x").unwrap();
        let home = Some(dir.path());
        assert_eq!(list_paths("~/boo", home), ["~/book.txt", "~/books/"]);
        assert_eq!(list_paths("~/", home).len(), 2);
        assert_eq!(list_paths("~/.h", home), ["~/.hidden"]);
        assert!(list_paths("/no/such/folder/x", home).is_empty());
    }
}
