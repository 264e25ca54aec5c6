//! A key press, and how it is spelled.

use std::fmt;

/// A key without its modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A printable character, lower case when Ctrl or Alt is held.
    Char(char),
    /// Function key.
    F(u8),
    /// Return.
    Enter,
    /// Escape.
    Esc,
    /// Tabulator.
    Tab,
    /// Shift-Tab.
    BackTab,
    /// Backspace.
    Backspace,
    /// Delete.
    Delete,
    /// Insert.
    Insert,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow left.
    Left,
    /// Arrow right.
    Right,
    /// Home.
    Home,
    /// End.
    End,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
}

/// A key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Which key.
    pub code: Code,
    /// Control held.
    pub ctrl: bool,
    /// Alt held.
    pub alt: bool,
    /// Shift held; never set for characters, whose case says it.
    pub shift: bool,
}

/// The character of a key that is held with Ctrl. Classic terminals send one byte for Ctrl-4 to Ctrl-7 and for Ctrl with these signs,
/// and some libraries call it by the digit.
pub fn controlled(c: char) -> char {
    match c {
        '4' => '\\',
        '5' => ']',
        '6' => '^',
        '7' => '_',
        c => c.to_ascii_lowercase(),
    }
}

impl Key {
    /// The key that a letter stands for with `ui.vim_keys`.
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
    /// Without modifiers.
    pub const fn plain(code: Code) -> Key {
        Key { code, ctrl: false, alt: false, shift: false }
    }
    /// With Ctrl.
    pub const fn ctrl(c: char) -> Key {
        Key { code: Code::Char(c), ctrl: true, alt: false, shift: false }
    }
    /// With Alt.
    pub const fn alt(c: char) -> Key {
        Key { code: Code::Char(c), ctrl: false, alt: true, shift: false }
    }

    /// Reads `ctrl-o`, `alt-enter`, `f2`, `pgup`, `?`.
    pub fn parse(text: &str) -> Option<Key> {
        let mut key = Key::plain(Code::Enter);
        let mut rest = text;
        loop {
            // A lone `-` is a key, not a separator.
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
        key.code = match lower.as_str() {
            "enter" => Code::Enter,
            "esc" => Code::Esc,
            "tab" if key.shift => {
                key.shift = false;
                Code::BackTab
            }
            "tab" => Code::Tab,
            "backspace" => Code::Backspace,
            "delete" | "del" => Code::Delete,
            "insert" => Code::Insert,
            "up" => Code::Up,
            "down" => Code::Down,
            "left" => Code::Left,
            "right" => Code::Right,
            "home" => Code::Home,
            "end" => Code::End,
            "pgup" | "pageup" => Code::PageUp,
            "pgdn" | "pagedown" => Code::PageDown,
            "space" => Code::Char(' '),
            _ => match lower.strip_prefix('f').and_then(|n| n.parse::<u8>().ok()) {
                Some(n) if (1..=24).contains(&n) => Code::F(n),
                _ => {
                    let mut chars = rest.chars();
                    match (chars.next(), chars.next()) {
                        (Some(c), None) if key.ctrl => Code::Char(controlled(c)),
                        (Some(c), None) if key.alt => Code::Char(c.to_ascii_lowercase()),
                        (Some(c), None) => Code::Char(c),
                        _ => return None,
                    }
                }
            },
        };
        // Of a character terminals tell no Shift beside it.
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
            Code::Char(' ') => f.write_str("Space"),
            Code::Char(c) if self.ctrl || self.alt => write!(f, "{}", c.to_ascii_uppercase()),
            Code::Char(c) => write!(f, "{c}"),
            Code::F(n) => write!(f, "F{n}"),
            Code::Enter => f.write_str("Enter"),
            Code::Esc => f.write_str("Esc"),
            Code::Tab => f.write_str("Tab"),
            Code::BackTab => f.write_str("Shift-Tab"),
            Code::Backspace => f.write_str("Backspace"),
            Code::Delete => f.write_str("Delete"),
            Code::Insert => f.write_str("Insert"),
            Code::Up => f.write_str("Up"),
            Code::Down => f.write_str("Down"),
            Code::Left => f.write_str("Left"),
            Code::Right => f.write_str("Right"),
            Code::Home => f.write_str("Home"),
            Code::End => f.write_str("End"),
            Code::PageUp => f.write_str("PgUp"),
            Code::PageDown => f.write_str("PgDn"),
        }
    }
}
