//! Copying out: OSC 52 to the terminal (also through tmux), and always a file, because no terminal confirms it.

use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::app::options::ClipboardMethod;

/// Terminals cut longer sequences; the file holds everything.
const OSC52_LIMIT: usize = 74_994;

/// The sequence that hands `text` to the terminal's clipboard.
pub fn osc52(text: &str, tmux: bool) -> String {
    let sequence = format!("\x1b]52;c;{}\x07", STANDARD.encode(text));
    // tmux passes on what is wrapped, with escapes doubled.
    if tmux { format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b")) } else { sequence }
}

/// Writes `text` to `copy.txt`, readable by the user only.
fn to_file(dir: &Path, text: &str) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::create_dir_all(dir)?;
    let path = dir.join("copy.txt");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

/// Copies; the answer says exactly what is known to have happened.
pub fn copy(
    out: &mut impl Write,
    text: &str,
    method: ClipboardMethod,
    tmux: bool,
    dir: Option<&Path>,
) -> Result<String, String> {
    let count = crate::app::entry::grouped(text.chars().count() as u64);
    let file = dir.map(|d| to_file(d, text).map_err(|e| format!("{}: {e}", d.display())));
    let wants_terminal = match method {
        ClipboardMethod::Auto | ClipboardMethod::Osc52 => true,
        ClipboardMethod::File => false,
    };
    let sequence = if wants_terminal { osc52(text, tmux) } else { String::new() };
    let too_long = sequence.len() > OSC52_LIMIT;
    let sent = wants_terminal && !too_long && out.write_all(sequence.as_bytes()).and_then(|()| out.flush()).is_ok();
    let place = |p: &Path| p.display().to_string();
    match (sent, file) {
        (true, Some(Ok(p))) => Ok(format!(
            "Sent {count} characters to the terminal clipboard (OSC 52; not every terminal accepts it). Also in {}",
            place(&p)
        )),
        (true, _) => {
            Ok(format!("Sent {count} characters to the terminal clipboard (OSC 52; not every terminal accepts it)"))
        }
        (false, Some(Ok(p))) if too_long => {
            Ok(format!("{count} characters are too many for a terminal clipboard. They are in {}", place(&p)))
        }
        (false, Some(Ok(p))) => Ok(format!("Wrote {count} characters to {}", place(&p))),
        (false, Some(Err(why))) => Err(format!("Nothing was copied: {why}")),
        (false, None) => {
            Err("Nothing was copied: the terminal does not take it and there is no state directory".into())
        }
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
        let mut out = Vec::new();
        let said = copy(&mut out, "hello", ClipboardMethod::Auto, false, Some(dir.path())).unwrap();
        assert!(said.starts_with("Sent 5 characters") && said.contains("copy.txt"), "{said}");
        assert_eq!(std::fs::read_to_string(dir.path().join("copy.txt")).unwrap(), "hello");
        let said = copy(&mut out, &"x".repeat(80_000), ClipboardMethod::Auto, false, Some(dir.path())).unwrap();
        assert!(said.starts_with("80,000 characters are too many"), "{said}");
        out.clear();
        let said = copy(&mut out, "a", ClipboardMethod::File, false, Some(dir.path())).unwrap();
        assert!(out.is_empty() && said.starts_with("Wrote 1"), "{said}");
        assert!(copy(&mut out, "a", ClipboardMethod::File, false, None).is_err());
        assert!(copy(&mut out, "a", ClipboardMethod::File, false, Some(Path::new("/dev/null/x"))).is_err());
    }
}
