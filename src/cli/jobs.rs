//! Small work off the drawing thread: listing paths for Tab, colouring code. And the user's editor.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_current_process_group, waitpid};

use super::signals::suspend;
use super::themes::Themes;
use crate::core::files::below_home;
use crate::core::plain_words;
use crate::core::sanitize::sanitize;
use crate::tui::lists::fuzzy;
use crate::tui::view::highlight::Highlighter;
use crate::tui::{Effect, Event};

const PATHS: usize = 200;

const OFFERED: usize = 40;
/// Files looked at, folders followed, and how long that may take.
const LISTED: usize = 50_000;
const DEPTH: usize = 12;
const WALK: Duration = Duration::from_millis(400);
const FRESH: Duration = Duration::from_secs(5);

/// A thread for the effects that take a while; each gives an event.
pub fn start_jobs(to: Sender<Event>, themes: Themes) -> io::Result<Sender<Effect>> {
    let (jobs_to, jobs) = unbounded();
    std::thread::Builder::new().name("jobs".into()).spawn(move || {
        let (mut highlighter, mut files) = (None, Files::default());
        for job in jobs {
            let event = match job {
                Effect::ListFiles(query) => Some(Event::Files { found: files.matching(&query), query }),
                Effect::ListPaths(prefix) => {
                    Some(Event::Paths { found: list_paths(&prefix, themes.home.as_deref()), prefix })
                }
                Effect::CodeTheme(name) => Some(Event::CodeTheme(themes.code(&name).map(|theme| {
                    highlighter.get_or_insert_with(Highlighter::default).set_theme(theme);
                    name
                }))),
                Effect::Highlight { lang, code } => {
                    let lines = highlighter.get_or_insert_with(Highlighter::default).lines(&lang, &code);
                    lines.map(|lines| Event::Highlighted { lang, code, lines })
                }
                _ => None,
            };
            if event.is_some_and(|event| to.send(event).is_err()) {
                return;
            }
        }
    })?;
    Ok(jobs_to)
}

/// Paths that begin with `prefix`, folders with a slash, hidden ones only if the prefix names them.
pub fn list_paths(prefix: &str, home: Option<&Path>) -> Vec<String> {
    let (folder, begun) = prefix.split_at(prefix.rfind('/').map_or(0, |at| at + 1));
    let path = if folder.is_empty() { PathBuf::from(".") } else { below_home(folder, home) };
    let wanted = |name: &str| name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
    let name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| wanted(name) && can_be_typed(name))?;
        let slash = if std::fs::metadata(entry.path()).ok()?.is_dir() { "/" } else { "" };
        Some(format!("{folder}{name}{slash}"))
    };
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let mut found: Vec<String> = entries.filter_map(Result::ok).filter_map(name).collect();
    found.sort();
    found.truncate(PATHS);
    found
}

/// An input cannot hold a name that a terminal would obey; such a file is loaded with its folder, or by a pattern.
fn can_be_typed(name: &str) -> bool {
    sanitize(name) == name && !name.contains(['\n', '\t'])
}

pub fn existing(paths: Vec<String>, home: Option<&Path>) -> Vec<String> {
    paths.into_iter().filter(|path| below_home(path, home).exists()).collect()
}

#[derive(Default)]
struct Files {
    paths: Vec<String>,
    listed: Option<Instant>,
}

impl Files {
    fn matching(&mut self, query: &str) -> Vec<String> {
        // Outside the working folder names are completed folder by folder.
        if ["/", "~/", "../"].iter().any(|start| query.starts_with(start)) {
            return list_paths(query, std::env::home_dir().as_deref()).into_iter().take(OFFERED).collect();
        }
        if self.listed.is_none_or(|at| at.elapsed() > FRESH) {
            self.paths = walk(Path::new("."));
            self.listed = Some(Instant::now());
        }
        let best = fuzzy(query.strip_prefix("./").unwrap_or(query), &self.paths);
        best.into_iter().take(OFFERED).filter_map(|i| self.paths.get(i).cloned()).collect()
    }
}

/// Files and folders below a folder, near ones first; what git ignores and hidden ones are left out.
fn walk(root: &Path) -> Vec<String> {
    let start = Instant::now();
    let mut paths: Vec<String> = ignore::WalkBuilder::new(root)
        .max_depth(Some(DEPTH))
        .require_git(false)
        .build()
        .take_while(|_| start.elapsed() < WALK)
        .filter_map(Result::ok)
        .filter(|e| e.depth() > 0)
        .filter_map(|e| {
            let slash = if e.file_type().is_some_and(|t| t.is_dir()) { "/" } else { "" };
            let path = e.path().strip_prefix(root).ok()?.to_str().filter(|path| can_be_typed(path))?;
            Some(format!("{path}{slash}"))
        })
        .take(LISTED)
        .collect();
    paths.sort_by_key(|p| (p.matches('/').count(), p.clone()));
    paths
}

const EDITORS: [&str; 6] = ["sensible-editor", "nano", "micro", "vim", "vi", "emacs"];

/// The editor the variables name, else the first of the usual ones that is installed.
fn editor(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let named = ["VISUAL", "EDITOR"].iter().filter_map(|name| variable(name)).find(|e| !e.is_empty());
    named.or_else(|| {
        let path = variable("PATH")?;
        let installed = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
        EDITORS.iter().find(|name| installed(name)).map(OsString::from)
    })
}

/// Opens the user's editor on `text` and returns what was saved. The terminal must be free.
pub fn edit(text: &str) -> Result<String, String> {
    let editor = editor(|name| std::env::var_os(name))
        .ok_or("No editor: set VISUAL or EDITOR, for example VISUAL=nano, or install nano or vi")?;
    edit_with(&editor, text)
}

fn edit_with(editor: &OsStr, text: &str) -> Result<String, String> {
    let fail = |e: io::Error| format!("The editor could not be used: {}", plain_words(&e));
    let mut file = tempfile::Builder::new().prefix("sala-chat-").suffix(".md").tempfile().map_err(fail)?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(fail)?;
    // Through a shell, because VISUAL may hold arguments.
    let editing = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{} \"$1\"", editor.to_string_lossy()))
        .arg("sh")
        .arg(file.path())
        .spawn()
        .map_err(fail)?;
    let status = ended(&editing).map_err(fail)?;
    let name = editor.to_string_lossy();
    match status.code() {
        Some(0) => std::fs::read_to_string(file.path()).map_err(fail),
        // Exit codes of a shell that cannot start the command.
        Some(126 | 127) => {
            Err(format!("The editor {name} cannot be started: set VISUAL or EDITOR to another; the input is unchanged"))
        }
        _ => Err(format!("The editor {name} ended with {status}; the input is unchanged")),
    }
}

/// Waits for a program on the terminal. When it stops (Ctrl-Z in it), so do we: the shell waits for us.
fn ended(program: &Child) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(program);
    loop {
        match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => {
                // Without a shell that could continue the program, it resumes at once.
                let _ = suspend();
                // Continues the group where no shell has done so.
                let _ = kill_current_process_group(Signal::CONT);
            }
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) => return Err(io::Error::other("internal error: nothing was waited for")),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_after_a_mark_leave_out_what_git_ignores() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| std::fs::write(dir.path().join(name), "x").unwrap();
        std::fs::create_dir_all(dir.path().join("docs/old")).unwrap();
        std::fs::create_dir(dir.path().join("target")).unwrap();
        std::fs::write(dir.path().join(".gitignore"), "target/\n*.log\n").unwrap();
        for name in ["notes.txt", "docs/guide.md", "docs/old/notes.md", "target/notes.o", "run.log", ".hidden"] {
            put(name);
        }
        assert_eq!(walk(dir.path()), ["notes.txt", "docs/", "docs/guide.md", "docs/old/", "docs/old/notes.md"]);
        let there = dir.path().join("notes.txt").to_string_lossy().into_owned();
        assert_eq!(existing(vec![there.clone(), "/no/such/file".into()], None), [there]);
        assert_eq!(existing(vec!["~/notes.txt".into()], Some(dir.path())), ["~/notes.txt"]);
    }

    #[test]
    fn an_editor_is_found_where_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().as_os_str().to_owned();
        let look = |named: Option<&str>| {
            let named = named.map(OsString::from);
            editor(|name| match name {
                "PATH" => Some(path.clone()),
                "EDITOR" => named.clone(),
                _ => None,
            })
        };
        assert_eq!(look(None), None);
        std::fs::write(dir.path().join("vi"), "").unwrap();
        assert_eq!(look(None), Some("vi".into()));
        assert_eq!(look(Some("code --wait")), Some("code --wait".into()));
        assert_eq!(look(Some("")), Some("vi".into()));
    }

    #[test]
    fn a_missing_editor_is_reported_with_the_variable_to_set() {
        let edit = |editor: &str| edit_with(OsStr::new(editor), "text");
        let message = edit("/no/such/editor").unwrap_err();
        assert!(message.contains("/no/such/editor cannot be started: set VISUAL or EDITOR"), "{message}");
        let message = edit("false").unwrap_err();
        assert!(message.contains("false ended with exit status: 1; the input is unchanged"), "{message}");
        assert_eq!(edit("true").unwrap(), "text");
    }

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
        // No input can hold these names, and what is shown of them is the name of no file.
        for name in ["boo\x1b[2J.txt", "boo\u{202e}txt.exe", "boo\nk", "boo\tk"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        assert_eq!(list_paths("~/boo", home), ["~/book.txt", "~/books/"]);
        assert_eq!(walk(dir.path()), ["book.txt", "books/"]);
    }
}
