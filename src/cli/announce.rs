//! What the terminal shows outside its cells: its title, progress on its tab, and a word when something long is done.
//!
//! Sequences are written only to terminals known to understand them: others show them as text, or as a notification.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::core::sanitize::Clean;
use crate::tui::status::Progress;

#[derive(Debug, Default)]
pub struct Announcer {
    /// The sequence that begins a notification. Without one the terminal rings.
    notification: Option<&'static str>,
    shows_progress: bool,
    title: String,
    progress: Option<Progress>,
}

impl Announcer {
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Announcer {
        let word = |name: &str| variable(name).map_or(String::new(), |v| v.to_string_lossy().into_owned());
        let (program, term) = (word("TERM_PROGRAM"), word("TERM"));
        let is = |names: &[&str]| names.contains(&program.as_str());
        // Inside tmux the sequences would have to be wrapped, and the window they belong to may not be shown.
        if !word("TMUX").is_empty() || term.starts_with("screen") || term.starts_with("tmux") {
            return Announcer::default();
        }
        let notification =
            if is(&["iTerm.app", "WezTerm", "ghostty"]) || ["kitty", "ghostty"].iter().any(|t| term.contains(t)) {
                Some("\x1b]9;")
            } else if term.starts_with("foot") || term.starts_with("rxvt") {
                Some("\x1b]777;notify;sala-chat;")
            } else {
                None
            };
        let shows_progress = is(&["ghostty", "WezTerm"])
            || term.contains("ghostty")
            || !word("WT_SESSION").is_empty()
            || word("ConEmuANSI") == "ON";
        Announcer { notification, shows_progress, ..Announcer::default() }
    }

    pub fn notify(&self, out: &mut impl Write, text: &str) -> io::Result<()> {
        match self.notification {
            Some(sequence) => write!(out, "{sequence}{}\x07", plain(text))?,
            None => out.write_all(b"\x07")?,
        }
        out.flush()
    }

    pub fn show(&mut self, out: &mut impl Write, title: &str, progress: Option<Progress>) -> io::Result<()> {
        if self.title != title {
            title.clone_into(&mut self.title);
            write!(out, "\x1b]2;{}\x07", plain(title))?;
        }
        if std::mem::replace(&mut self.progress, progress) != progress && self.shows_progress {
            match progress {
                None => out.write_all(b"\x1b]9;4;0\x07")?,
                Some(Progress::Share(percent)) => write!(out, "\x1b]9;4;1;{percent}\x07")?,
                Some(Progress::Running) => out.write_all(b"\x1b]9;4;3\x07")?,
            }
        }
        out.flush()
    }

    /// Takes the progress away, before the terminal is given back.
    pub fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.shows_progress && self.progress.take().is_some() {
            out.write_all(b"\x1b]9;4;0\x07")?;
        }
        // A multiplexer that saves and restores the title needs it again.
        self.title.clear();
        out.flush()
    }
}

fn plain(text: &str) -> String {
    Clean::line(text).as_str().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(set: &'static [(&'static str, &'static str)]) -> Announcer {
        Announcer::new(move |name| set.iter().find(|s| s.0 == name).map(|s| OsString::from(s.1)))
    }

    fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn terminals_are_notified_in_the_way_they_know() {
        let sequence = |a: Announcer| written(|out| a.notify(out, "done\x1b]0;x\x07"));
        assert_eq!(sequence(on(&[("TERM_PROGRAM", "WezTerm")])), "\x1b]9;done\\x1b]0;x\\x07\x07");
        assert_eq!(sequence(on(&[("TERM", "foot")])), "\x1b]777;notify;sala-chat;done\\x1b]0;x\\x07\x07");
        assert_eq!(sequence(on(&[("TERM", "xterm-256color")])), "\x07");
        assert_eq!(sequence(on(&[("TERM_PROGRAM", "WezTerm"), ("TMUX", "/tmp/x")])), "\x07");
    }

    #[test]
    fn title_and_progress_are_written_when_they_change() {
        let mut a = on(&[("WT_SESSION", "1")]);
        let mut show = |title: &str, progress| written(|out| a.show(out, title, progress));
        assert_eq!(show("notes", None), "\x1b]2;notes\x07");
        assert_eq!(show("notes", None), "");
        assert_eq!(show("notes: reading 3%", Some(Progress::Share(3))), "\x1b]2;notes: reading 3%\x07\x1b]9;4;1;3\x07");
        assert_eq!(show("notes", None), "\x1b]2;notes\x07\x1b]9;4;0\x07");
        let mut unknown = on(&[("TERM", "xterm")]);
        assert_eq!(written(|out| unknown.show(out, "n", Some(Progress::Running))), "\x1b]2;n\x07");
    }
}
