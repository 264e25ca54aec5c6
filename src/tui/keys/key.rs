//! Keys and their names.

use std::fmt;

/// A character is in lower case with Ctrl or Alt.
pub use crossterm::event::KeyCode as Code;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub code: Code,
    pub ctrl: bool,
    pub alt: bool,
    /// Never set for characters: their case includes it.
    pub shift: bool,
}

/// The character of a key with Ctrl. Classic terminals send one byte for Ctrl-4 to Ctrl-7 and for Ctrl with these
/// signs, and some libraries report the digit.
pub fn controlled(c: char) -> char {
    match c {
        '4' => '\\',
        '5' => ']',
        '6' => '^',
        '7' => '_',
        c => c.to_ascii_lowercase(),
    }
}

/// Named keys: display name, and names in `[keys]`.
const NAMED: [(Code, &str, &[&str]); 15] = [
    (Code::Enter, "Enter", &["enter"]),
    (Code::Esc, "Esc", &["esc"]),
    (Code::Tab, "Tab", &["tab"]),
    (Code::Backspace, "Backspace", &["backspace"]),
    (Code::Delete, "Delete", &["delete", "del"]),
    (Code::Insert, "Insert", &["insert"]),
    (Code::Up, "Up", &["up"]),
    (Code::Down, "Down", &["down"]),
    (Code::Left, "Left", &["left"]),
    (Code::Right, "Right", &["right"]),
    (Code::Home, "Home", &["home"]),
    (Code::End, "End", &["end"]),
    (Code::PageUp, "PgUp", &["pgup", "pageup"]),
    (Code::PageDown, "PgDn", &["pgdn", "pagedown"]),
    (Code::Char(' '), "Space", &["space"]),
];

impl Key {
    pub(in crate::tui) fn as_arrow(self) -> Key {
        let code = match self.code {
            Code::Char('j') => Code::Down,
            Code::Char('k') => Code::Up,
            Code::Char('g') => Code::Home,
            Code::Char('G') => Code::End,
            other => other,
        };
        Key { code, ..self }
    }
    pub const fn plain(code: Code) -> Key {
        Key { code, ctrl: false, alt: false, shift: false }
    }
    pub const fn ctrl(c: char) -> Key {
        Key { code: Code::Char(c), ctrl: true, alt: false, shift: false }
    }
    pub const fn alt(c: char) -> Key {
        Key { code: Code::Char(c), ctrl: false, alt: true, shift: false }
    }

    pub fn parse(text: &str) -> Option<Key> {
        let mut key = Key::plain(Code::Enter);
        let mut rest = text;
        loop {
            match rest.split_once('-') {
                Some((modifier, tail)) if !tail.is_empty() => {
                    match modifier.to_ascii_lowercase().as_str() {
                        "ctrl" => key.ctrl = true,
                        "alt" => key.alt = true,
                        "shift" => key.shift = true,
                        _ => return None,
                    }
                    rest = tail;
                }
                _ => break,
            }
        }
        let lower = rest.to_ascii_lowercase();
        let mut chars = rest.chars();
        let named = NAMED.iter().find(|(_, _, names)| names.contains(&lower.as_str())).map(|(code, ..)| *code);
        let function = || {
            let number = lower.strip_prefix('f').and_then(|n| n.parse().ok());
            number.filter(|n| (1..=24).contains(n)).map(Code::F)
        };
        key.code = match (named.or_else(function), chars.next(), chars.next()) {
            (Some(Code::Tab), ..) if key.shift => {
                key.shift = false;
                Code::BackTab
            }
            (Some(code), ..) => code,
            (None, Some(c), None) if key.ctrl => Code::Char(controlled(c)),
            (None, Some(c), None) if key.alt => Code::Char(c.to_ascii_lowercase()),
            (None, Some(c), None) => Code::Char(c),
            (None, ..) => return None,
        };
        let shifted = key.shift && (key.ctrl || key.alt) && matches!(key.code, Code::Char(_));
        (!shifted).then_some(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (held, name) in [(self.ctrl, "Ctrl-"), (self.alt, "Alt-"), (self.shift, "Shift-")] {
            if held {
                f.write_str(name)?;
            }
        }
        match self.code {
            Code::Char(c) if c != ' ' && (self.ctrl || self.alt) => write!(f, "{}", c.to_ascii_uppercase()),
            Code::Char(c) if c != ' ' => write!(f, "{c}"),
            Code::F(n) => write!(f, "F{n}"),
            Code::BackTab => f.write_str("Shift-Tab"),
            code => f.write_str(NAMED.iter().find(|(named, ..)| *named == code).map_or("", |(_, name, _)| name)),
        }
    }
}
