//! Copying: to the desktop's clipboard through its tool, which serves the text after this program ends; else to the
//! terminal's (OSC 52, also through tmux). Always into a file too, because no terminal confirms a copy.

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::dirs::make_private;
use crate::core::{counted, plain_words};
use crate::tui::options::ClipboardMethod;

/// Terminals cut longer sequences; the file holds everything.
const OSC52_LIMIT: usize = 74_994;
const TOOL: Duration = Duration::from_millis(800);

#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub method: ClipboardMethod,
    pub tmux: bool,
    pub tools: &'a [&'static [&'static str]],
    pub dir: Option<&'a Path>,
}

/// The tools of the desktop this terminal is on: none over SSH, where the desktop is not the user's.
pub fn tools(variable: impl Fn(&str) -> Option<OsString>) -> Vec<&'static [&'static str]> {
    let set = |name: &str| variable(name).is_some_and(|v| !v.is_empty());
    let mut tools: Vec<&'static [&'static str]> = Vec::new();
    if set("SSH_TTY") || set("SSH_CONNECTION") {
        return tools;
    }
    if cfg!(target_os = "macos") {
        tools.push(&["pbcopy"]);
    }
    if set("WAYLAND_DISPLAY") {
        tools.push(&["wl-copy"]);
    }
    if set("DISPLAY") {
        tools.push(&["xclip", "-selection", "clipboard"]);
        tools.push(&["xsel", "--input", "--clipboard"]);
    }
    tools
}

fn by_tool(tool: &[&str], text: &str) -> bool {
    let Some((name, arguments)) = tool.split_first() else { return false };
    // A file, because a hanging tool would block a pipe.
    let input = tempfile::tempfile().and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok((file.try_clone()?, file))
    });
    let Ok((input, mut read)) = input else { return false };
    let quiet = Command::new(name).args(arguments).stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = quiet else { return false };
    let until = Instant::now() + TOOL;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return false,
        }
    }
    // Some tools serve the text themselves instead of leaving that to a child.
    let has_all = read.stream_position().is_ok_and(|at| at == text.len() as u64);
    if !has_all {
        let _ = child.kill();
    }
    // Reaps the tool when it ends.
    std::thread::spawn(move || drop(child.wait()));
    has_all
}

pub fn osc52(text: &str, tmux: bool) -> String {
    let sequence = format!("\x1b]52;c;{}\x07", STANDARD.encode(text));
    // tmux passes on what is wrapped, with escapes doubled.
    if tmux { format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b")) } else { sequence }
}

fn to_file(dir: &Path, text: &str) -> std::io::Result<PathBuf> {
    make_private(dir)?;
    let path = dir.join("copy.txt");
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(text.as_bytes())?;
    // Replaces a link instead of writing through it.
    new.persist(&path).map_err(|e| e.error)?;
    Ok(path)
}

/// Copies. The report's part before the first semicolon is the most important one.
pub fn copy(out: &mut impl Write, text: &str, place: Place<'_>) -> Result<String, String> {
    let count = counted(text.chars().count() as u64, "character");
    let file = place.dir.map(|d| to_file(d, text).map_err(|e| format!("{}: {}", d.display(), plain_words(&e))));
    let path = match &file {
        Some(Ok(p)) => format!("; also in {}", p.display()),
        Some(Err(_)) | None => String::new(),
    };
    let tools = if place.method == ClipboardMethod::Auto { place.tools } else { &[] };
    if let Some(tool) = tools.iter().find(|tool| by_tool(tool, text)).and_then(|tool| tool.first()) {
        return Ok(format!("Copied {count} ({tool}){path}"));
    }
    let sequence = (place.method != ClipboardMethod::File).then(|| osc52(text, place.tmux));
    let too_long = sequence.as_ref().is_some_and(|sequence| sequence.len() > OSC52_LIMIT);
    if let Some(sequence) = sequence.filter(|_| !too_long)
        && out.write_all(sequence.as_bytes()).and_then(|()| out.flush()).is_ok()
    {
        return Ok(format!("Copied {count} through the terminal (OSC 52); not every terminal takes them{path}"));
    }
    match file {
        Some(Ok(p)) if too_long => Ok(format!("Too long for a terminal's clipboard: {count} in {}", p.display())),
        Some(Ok(p)) => Ok(format!("Wrote {count} to {}", p.display())),
        Some(Err(why)) => Err(format!("Nothing was copied: {why}")),
        None => Err("Nothing was copied: the terminal does not support it and there is no state directory".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_wrapped_for_tmux() {
        assert_eq!(osc52("hi", false), "\x1b]52;c;aGk=\x07");
        assert_eq!(osc52("hi", true), "\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\");
    }

    #[test]
    fn the_sentence_says_what_happened() {
        let dir = tempfile::tempdir().unwrap();
        let place = |method, dir| Place { method, tmux: false, tools: &[], dir };
        let mut out = Vec::new();
        let report = copy(&mut out, "hello", place(ClipboardMethod::Auto, Some(dir.path()))).unwrap();
        assert!(
            report.starts_with("Copied 5 characters through the terminal (OSC 52);") && report.contains("copy.txt"),
            "{report}"
        );
        assert_eq!(std::fs::read_to_string(dir.path().join("copy.txt")).unwrap(), "hello");
        let report = copy(&mut out, &"x".repeat(80_000), place(ClipboardMethod::Auto, Some(dir.path()))).unwrap();
        assert!(report.starts_with("Too long for a terminal's clipboard: 80,000 characters in "), "{report}");
        out.clear();
        let report = copy(&mut out, "a", place(ClipboardMethod::File, Some(dir.path()))).unwrap();
        assert!(out.is_empty() && report.starts_with("Wrote 1"), "{report}");
        assert!(copy(&mut out, "a", place(ClipboardMethod::File, None)).is_err());
        assert!(copy(&mut out, "a", place(ClipboardMethod::File, Some(Path::new("/dev/null/x")))).is_err());
    }

    #[test]
    fn the_file_is_the_users_alone_whatever_was_there() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/state");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let file = to_file(&state, "one").unwrap();
        assert_eq!((mode(&state), mode(&file)), (0o700, 0o600));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        to_file(&state, "two").unwrap();
        assert_eq!((mode(&file), std::fs::read_to_string(&file).unwrap().as_str()), (0o600, "two"));
        let other = dir.path().join("other");
        std::fs::write(&other, "theirs").unwrap();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        to_file(&state, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "theirs");
        assert_eq!((file.is_symlink(), std::fs::read_to_string(&file).unwrap().as_str()), (false, "three"));
    }

    #[test]
    fn a_working_tool_is_preferred_and_a_failing_one_skipped() {
        let mut out = Vec::new();
        let tools: &[&[&str]] = &[&["/no/such/tool"], &["false"], &["sh", "-c", "test \"$(cat)\" = hello"]];
        let place = Place { method: ClipboardMethod::Auto, tmux: false, tools, dir: None };
        assert_eq!(copy(&mut out, "hello", place).unwrap(), "Copied 5 characters (sh)");
        assert!(out.is_empty(), "the terminal is not asked as well");
        let report = copy(&mut out, "other", place).unwrap();
        assert!(report.contains("OSC 52") && !out.is_empty(), "{report}");
    }

    #[test]
    fn a_tool_that_hangs_is_ended_and_one_that_serves_the_text_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let tool = |then: &str| format!("echo $$ > '{}'; {then}", pid.display());
        // Also one that has ended and was not waited for is there.
        let there = || {
            let pid = std::fs::read_to_string(&pid).ok()?.trim().parse().ok()?;
            Some(rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid)?).is_ok())
        };
        let until = |done: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !done() {
                assert!(begun.elapsed() < Duration::from_secs(60), "the tool is still there");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let begun = Instant::now();
        assert!(!by_tool(&["sh", "-c", &tool("exec sleep 60")], &"x".repeat(1 << 20)));
        assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for");
        // On a busy machine the process may end before it has written its id.
        until(&|| there() != Some(true));
        let _ = std::fs::remove_file(&pid);
        // It may take a while to be given its text there.
        assert!((0..20).any(|_| by_tool(&["sh", "-c", &tool("cat > /dev/null; exec sleep 2")], "hello")));
        until(&|| there() == Some(false));
    }

    #[test]
    fn over_ssh_the_desktop_is_not_the_users() {
        let set = |names: &'static [&'static str]| move |name: &str| names.contains(&name).then(|| OsString::from("x"));
        let first = |names| tools(set(names)).iter().filter_map(|t| t.first().copied()).collect::<Vec<_>>();
        assert!(first(&["WAYLAND_DISPLAY", "DISPLAY"]).ends_with(&["wl-copy", "xclip", "xsel"]));
        assert!(first(&["DISPLAY", "SSH_TTY"]).is_empty());
    }
}
