//! What the terminal shows outside its cells: its title, and a notification when something long is done.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::core::sanitize::Clean;

#[derive(Debug, Default)]
pub struct Announcer {
    /// The terminal shows the text of OSC 9. Others may print it as text, so they ring.
    shows_text: bool,
    title: String,
}

impl Announcer {
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Announcer {
        let word = |name: &str| variable(name).map_or(String::new(), |v| v.to_string_lossy().into_owned());
        let (program, term) = (word("TERM_PROGRAM"), word("TERM"));
        let knows = ["iTerm.app", "WezTerm", "ghostty"].contains(&program.as_str())
            || ["kitty", "ghostty"].iter().any(|name| term.contains(name));
        // Inside tmux the sequence would have to be wrapped, and the window it belongs to may not be shown.
        Announcer { shows_text: knows && word("TMUX").is_empty(), ..Announcer::default() }
    }

    pub fn notify(&self, out: &mut impl Write, text: &str) -> io::Result<()> {
        match self.shows_text {
            true => write!(out, "\x1b]9;{}\x07", plain(text))?,
            false => out.write_all(b"\x07")?,
        }
        out.flush()
    }

    pub fn show(&mut self, out: &mut impl Write, title: &str) -> io::Result<()> {
        if self.title != title {
            title.clone_into(&mut self.title);
            write!(out, "\x1b]2;{}\x07", plain(title))?;
        }
        out.flush()
    }

    /// A multiplexer that saves and restores the title needs it again after the terminal was given back.
    pub fn forget(&mut self) {
        self.title.clear();
    }
}

fn plain(text: &str) -> String {
    Clean::line(text).as_str().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn terminals_are_notified_in_the_way_they_know() {
        let sequence = |set: &'static [(&'static str, &'static str)]| {
            let a = Announcer::new(move |name| set.iter().find(|s| s.0 == name).map(|s| OsString::from(s.1)));
            written(|out| a.notify(out, "done\x1b]0;x\x07"))
        };
        assert_eq!(sequence(&[("TERM_PROGRAM", "WezTerm")]), "\x1b]9;done\\x1b]0;x\\x07\x07");
        assert_eq!(sequence(&[("TERM", "xterm-kitty")]), "\x1b]9;done\\x1b]0;x\\x07\x07");
        assert_eq!(sequence(&[("TERM", "xterm-256color")]), "\x07");
        assert_eq!(sequence(&[("TERM_PROGRAM", "WezTerm"), ("TMUX", "/tmp/x")]), "\x07");
    }

    #[test]
    fn a_title_is_written_when_it_changes() {
        let mut a = Announcer::default();
        let mut show = |title: &str| written(|out| a.show(out, title));
        assert_eq!([show("notes"), show("notes"), show("more")], ["\x1b]2;notes\x07", "", "\x1b]2;more\x07"]);
    }
}
