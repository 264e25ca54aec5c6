//! One table of actions with names and default keys, rebindable by `[keys]`.
//!
//! Ctrl-C is not in the table: it always stops, clears or quits. Lists and pages have fixed keys.

use std::collections::HashMap;
use std::fmt;

/// A character is in lower case with Ctrl or Alt.
pub use crossterm::event::KeyCode as Code;

/// Returns to a question or page while the user types.
pub const TAKE_UP: Key = Key::plain(Code::BackTab);

/// Defines [`Action`] and [`ACTIONS`] from one row an action: its name in `[keys]`, default keys, and what it does.
macro_rules! actions {
    ($( $Action:ident $name:literal [$($key:literal),+] $does:literal; )+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action {
            $($Action,)+
            None,
        }

        /// `(action, name, default keys, description)`, for the table, `/keys` and the documentation.
        pub const ACTIONS: &[(Action, &str, &[&str], &str)] = &[$((Action::$Action, $name, &[$($key),+], $does)),+];
    };
}

actions! {
    Send "send" ["enter"] "send; queue while reading or answering";
    Newline "newline" ["alt-enter", "ctrl-j", "shift-enter"] "new line (also \\ then Enter)";
    Escape "escape" ["esc"] "stop; twice: clear the input, or the timeline";
    Eof "eof" ["ctrl-d"] "quit on empty input, else delete right";
    Up "up" ["up"] "line up, then earlier prompts";
    Down "down" ["down"] "line down, then later prompts";
    Left "left" ["left", "ctrl-b"] "left";
    Right "right" ["right"] "right";
    LineStart "line_start" ["home", "ctrl-a"] "start of the line";
    LineEnd "line_end" ["end", "ctrl-e"] "end of the line; on empty input follow the answer";
    WordLeft "word_left" ["alt-b", "ctrl-left", "alt-left"] "word left";
    WordRight "word_right" ["alt-f", "ctrl-right", "alt-right"] "word right";
    Backspace "backspace" ["backspace"] "delete left";
    Delete "delete" ["delete"] "delete right";
    KillWord "kill_word" ["ctrl-w", "alt-backspace"] "cut the word to the left";
    KillToEnd "kill_to_end" ["ctrl-k"] "cut to the end of the line";
    KillToStart "kill_to_start" ["ctrl-u"] "cut to the start of the line";
    Yank "yank" ["ctrl-y"] "paste what was cut or cleared";
    UndoEdit "undo_edit" ["alt-z", "ctrl-_"] "undo an edit of the input";
    HistorySearch "history_search" ["ctrl-r"] "search earlier prompts";
    Complete "complete" ["tab"] "complete a command or path";
    PageUp "page_up" ["pgup"] "scroll up (stops following)";
    PageDown "page_down" ["pgdn"] "scroll down";
    Top "top" ["ctrl-home"] "first message";
    Follow "follow" ["ctrl-end"] "follow the end again";
    PrevMessage "prev_message" ["ctrl-p"] "select a message: y copy, i what it looked at, e edit, r again, f fork";
    NextMessage "next_message" ["ctrl-n"] "next message";
    Palette "palette" ["alt-p"] "all commands, with a filter";
    Find "find" ["ctrl-f"] "search in the conversation";
    Thinking "thinking" ["ctrl-t"] "fold or open thoughts";
    Panel "panel" ["ctrl-o"] "side panel (from 120 columns)";
    Session "session" ["alt-1", "alt-2", "alt-3", "alt-4", "alt-5", "alt-6", "alt-7", "alt-8", "alt-9"]
        "go to a session opened before, in the order of opening";
    Split "split" ["alt-s"] "two sessions side by side, from 160 columns";
    OtherSide "other_side" ["alt-o"] "to the other session of the split screen";
    Editor "editor" ["ctrl-g"] "write in $VISUAL or $EDITOR";
    Unqueue "unqueue" ["ctrl-x"] "edit the first queued message";
    Redraw "redraw" ["ctrl-l"] "draw the screen again";
    Suspend "suspend" ["ctrl-z"] "suspend";
    Help "help" ["f1"] "help (also ? on empty input)";
}

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
    /// How far a key moves in a list or page of so many rows.
    pub(super) fn steps(self, page: isize) -> Option<isize> {
        match self.code {
            Code::Up => Some(-1),
            Code::Down => Some(1),
            Code::PageUp => Some(-page),
            Code::PageDown => Some(page),
            Code::Home => Some(isize::MIN / 2),
            Code::End => Some(isize::MAX / 2),
            _ => None,
        }
    }

    /// Edits a line that is typed outside the input; false for a key that does not.
    pub(super) fn edit(self, line: &mut String) -> bool {
        match self.code {
            Code::Backspace => drop(line.pop()),
            Code::Char('u') if self.ctrl => line.clear(),
            Code::Char(c) if !self.ctrl && !self.alt => line.push(c),
            _ => return false,
        }
        true
    }

    pub(super) fn as_arrow(self) -> Key {
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
        while let Some((modifier, tail)) = rest.split_once('-').filter(|(_, tail)| !tail.is_empty()) {
            match modifier.to_ascii_lowercase().as_str() {
                "ctrl" => key.ctrl = true,
                "alt" => key.alt = true,
                "shift" => key.shift = true,
                _ => return None,
            }
            rest = tail;
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("keys: no key is called \"{0}\"; write for example \"ctrl-o\", \"alt-enter\", \"f2\"")]
    Key(String),
    /// Fixed, or identical to another key in classic terminals.
    #[error("keys: \"{0}\" cannot be bound; choose another key")]
    Fixed(String),
    #[error(
        "keys: \"{key}\" is needed for typing and cannot be \"{action}\"; choose another key, for example with ctrl or alt"
    )]
    Typing { key: String, action: String },
    #[error("keys: no action is called \"{0}\"; /keys lists them, \"none\" unbinds")]
    Action(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTable(HashMap<Key, Action>);

impl Default for KeyTable {
    fn default() -> Self {
        let defaults = ACTIONS.iter().flat_map(|(action, _, keys, _)| keys.iter().map(move |k| (*k, *action)));
        KeyTable(defaults.filter_map(|(k, action)| Key::parse(k).map(|k| (k, action))).collect())
    }
}

impl KeyTable {
    /// Binds a key by name, as in `"ctrl-o" = "panel"`.
    ///
    /// # Errors
    /// An unknown key or action, or a key with a fixed meaning.
    pub fn bind(&mut self, key: &str, action: &str) -> Result<(), KeyError> {
        let parsed = Key::parse(key).ok_or_else(|| KeyError::Key(key.into()))?;
        // In classic encoding Ctrl-I, -M, -H and -[ are Tab, Enter, Backspace and Esc.
        let fixed = ['c', 'i', 'm', 'h', '['];
        if parsed.ctrl && matches!(parsed.code, Code::Char(c) if fixed.contains(&c)) {
            return Err(KeyError::Fixed(key.into()));
        }
        let name = action;
        let action = match action {
            "none" => Action::None,
            name => ACTIONS.iter().find(|a| a.1 == name).map(|a| a.0).ok_or_else(|| KeyError::Action(name.into()))?,
        };
        if !leaves_typing(parsed, action) {
            return Err(KeyError::Typing { key: key.into(), action: name.into() });
        }
        self.0.insert(parsed, action);
        Ok(())
    }

    pub fn action(&self, key: Key) -> Option<Action> {
        self.0.get(&key).copied().filter(|a| *a != Action::None)
    }

    fn bound(&self, action: Action) -> Vec<(String, Key)> {
        let bound = self.0.iter().filter(|(_, a)| **a == action);
        let mut bound: Vec<(String, Key)> = bound.map(|(key, _)| (key.to_string(), *key)).collect();
        bound.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
        bound
    }

    pub fn keys(&self, action: Action) -> Vec<String> {
        self.bound(action).into_iter().map(|(name, _)| name).collect()
    }

    pub fn shortest(&self, action: Action) -> Option<Key> {
        self.bound(action).first().map(|(_, key)| *key)
    }

    /// For example `Ctrl-Y brings it back`; `None` if no key is bound.
    pub fn does(&self, action: Action, what: &str) -> Option<String> {
        self.shortest(action).map(|key| format!("{key} {what}"))
    }

    /// `Cleared; Ctrl-Y brings it back`; only the text if no key is bound.
    pub fn offer(&self, text: &str, action: Action, what: &str) -> String {
        self.does(action, what).map_or_else(|| text.to_owned(), |does| format!("{text}; {does}"))
    }
}

fn leaves_typing(key: Key, action: Action) -> bool {
    if key.ctrl || key.alt {
        return true;
    }
    match key.code {
        Code::Char(_) => false,
        Code::Enter if !key.shift => matches!(action, Action::Send | Action::Newline),
        Code::Backspace if !key.shift => matches!(action, Action::Backspace | Action::KillWord),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_key_parses_and_is_bound_once() {
        let names: Vec<&str> = ACTIONS.iter().flat_map(|a| a.2.iter().copied()).collect();
        assert!(names.iter().all(|n| Key::parse(n).is_some()));
        assert_eq!(KeyTable::default().0.len(), names.len());
    }

    #[test]
    fn rebinding_replaces_and_none_unbinds() {
        let mut t = KeyTable::default();
        t.bind("f2", "panel").unwrap();
        t.bind("ctrl-o", "none").unwrap();
        assert_eq!(t.action(Key::plain(Code::F(2))), Some(Action::Panel));
        assert_eq!(t.action(Key::ctrl('o')), None);
        assert_eq!(t.keys(Action::Panel), ["F2"]);
        let mut more = t.clone();
        more.bind("alt-p", "panel").unwrap();
        more.bind("alt-a", "panel").unwrap();
        assert_eq!(more.keys(Action::Panel), ["F2", "Alt-A", "Alt-P"], "the shortest first");
        assert_eq!(more.shortest(Action::Panel), Key::parse("f2"));
        assert_eq!(t.offer("Hidden", Action::Panel, "shows it"), "Hidden; F2 shows it");
        t.bind("f2", "none").unwrap();
        assert_eq!(t.offer("Hidden", Action::Panel, "shows it"), "Hidden");
        assert_eq!(t.bind("ctrl-c", "panel"), Err(KeyError::Fixed("ctrl-c".into())));
        assert_eq!(t.bind("ctrl-h", "panel"), Err(KeyError::Fixed("ctrl-h".into())));
        for key in ["a", "?", "space", "shift-a", "enter", "backspace"] {
            let refused = t.bind(key, "panel");
            assert_eq!(refused, Err(KeyError::Typing { key: key.into(), action: "panel".into() }));
            assert!(t.bind(key, "none").is_err(), "{key}");
        }
        t.bind("enter", "newline").unwrap();
        t.bind("alt-enter", "send").unwrap();
        t.bind("shift-enter", "panel").unwrap();
        t.bind("alt-a", "panel").unwrap();
        assert!(matches!(t.bind("hyper-x", "panel"), Err(KeyError::Key(_))));
        assert!(matches!(t.bind("f3", "fly"), Err(KeyError::Action(_))));
        assert_eq!(Key::parse("-"), Some(Key::plain(Code::Char('-'))));
        assert!(Key::parse("ctrl-shift-o").is_none() && Key::parse("shift-f2").is_some());
    }
}
