//! Keys and what they do: one table of actions with names and default keys, rebindable by `[keys]`.
//!
//! Keys are plain data; the shell turns terminal events into them. Ctrl-C is not in the table: it always stops, clears
//! or quits. Lists and pages have fixed keys (arrows, Enter, Esc), which the table does not touch.

mod key;

use std::collections::HashMap;

pub use key::{Code, Key, controlled};

/// Takes up a question or a page beside which something is written.
pub const TAKE_UP: Key = Key::plain(Code::BackTab);

/// What a key can do while the input has the focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send, or queue while the model is busy.
    Send,
    /// New line in the input.
    Newline,
    /// Stop; twice: clear or timeline.
    Escape,
    /// Quit on empty input, else delete right.
    Eof,
    /// Cursor up, at the edge the previous prompt.
    Up,
    /// Cursor down, at the edge the next prompt.
    Down,
    /// Cursor left.
    Left,
    /// Cursor right.
    Right,
    /// Start of the line.
    LineStart,
    /// End of the line.
    LineEnd,
    /// Back one word.
    WordLeft,
    /// Forward one word.
    WordRight,
    /// Delete left.
    Backspace,
    /// Delete right.
    Delete,
    /// Delete the word to the left, into the kill ring.
    KillWord,
    /// Delete to the end of the line, into the kill ring.
    KillToEnd,
    /// Delete to the start of the line, into the kill ring.
    KillToStart,
    /// Bring back what was deleted.
    Yank,
    /// Undo an edit of the input.
    UndoEdit,
    /// Search earlier prompts.
    HistorySearch,
    /// Complete.
    Complete,
    /// Transcript up.
    PageUp,
    /// Transcript down.
    PageDown,
    /// First line of the transcript.
    Top,
    /// Follow the end again.
    Follow,
    /// Select the message above.
    PrevMessage,
    /// Select the message below.
    NextMessage,
    /// Search in the transcript.
    Find,
    /// Fold or open thinking.
    Thinking,
    /// Side panel.
    Panel,
    /// Another session of this run: the one of the key's number, else the next.
    Session,
    /// A second session beside this one.
    Split,
    /// To the session beside this one.
    OtherSide,
    /// Compose in the editor.
    Editor,
    /// Take back the first queued message.
    Unqueue,
    /// Full redraw.
    Redraw,
    /// Suspend.
    Suspend,
    /// Help.
    Help,
    /// Bound to nothing.
    None,
}

/// `(action, name in [keys], default keys, what it does)`. Feeds the table, `/keys` and the documentation.
pub const ACTIONS: &[(Action, &str, &[&str], &str)] = &[
    (Action::Send, "send", &["enter"], "send; queue while reading or answering"),
    (Action::Newline, "newline", &["alt-enter", "ctrl-j", "shift-enter"], "new line (also \\ then Enter)"),
    (Action::Escape, "escape", &["esc"], "stop; twice: clear the input, or the timeline"),
    (Action::Eof, "eof", &["ctrl-d"], "quit on empty input, else delete right"),
    (Action::Up, "up", &["up"], "line up, then earlier prompts"),
    (Action::Down, "down", &["down"], "line down, then later prompts"),
    (Action::Left, "left", &["left", "ctrl-b"], "left"),
    (Action::Right, "right", &["right"], "right"),
    (Action::LineStart, "line_start", &["home", "ctrl-a"], "start of the line"),
    (Action::LineEnd, "line_end", &["end", "ctrl-e"], "end of the line; on empty input follow the answer"),
    (Action::WordLeft, "word_left", &["alt-b", "ctrl-left", "alt-left"], "word left"),
    (Action::WordRight, "word_right", &["alt-f", "ctrl-right", "alt-right"], "word right"),
    (Action::Backspace, "backspace", &["backspace"], "delete left"),
    (Action::Delete, "delete", &["delete"], "delete right"),
    (Action::KillWord, "kill_word", &["ctrl-w", "alt-backspace"], "cut the word to the left"),
    (Action::KillToEnd, "kill_to_end", &["ctrl-k"], "cut to the end of the line"),
    (Action::KillToStart, "kill_to_start", &["ctrl-u"], "cut to the start of the line"),
    (Action::Yank, "yank", &["ctrl-y"], "paste what was cut or cleared"),
    (Action::UndoEdit, "undo_edit", &["alt-z", "ctrl-_"], "undo an edit of the input"),
    (Action::HistorySearch, "history_search", &["ctrl-r"], "search earlier prompts"),
    (Action::Complete, "complete", &["tab"], "complete a command or path"),
    (Action::PageUp, "page_up", &["pgup"], "scroll up (stops following)"),
    (Action::PageDown, "page_down", &["pgdn"], "scroll down"),
    (Action::Top, "top", &["ctrl-home"], "first message"),
    (Action::Follow, "follow", &["ctrl-end"], "follow the end again"),
    (
        Action::PrevMessage,
        "prev_message",
        &["ctrl-p"],
        "select a message: y copy, i what it looked at, e edit, r again, f fork",
    ),
    (Action::NextMessage, "next_message", &["ctrl-n"], "next message"),
    (Action::Find, "find", &["ctrl-f"], "search in what was said"),
    (Action::Thinking, "thinking", &["ctrl-t"], "fold or open thoughts"),
    (Action::Panel, "panel", &["ctrl-o"], "side panel (from 120 columns)"),
    (
        Action::Session,
        "session",
        &["alt-1", "alt-2", "alt-3", "alt-4", "alt-5", "alt-6", "alt-7", "alt-8", "alt-9"],
        "go to a session opened before, in the order of opening",
    ),
    (Action::Split, "split", &["alt-s"], "two sessions side by side, from 160 columns"),
    (Action::OtherSide, "other_side", &["alt-o"], "to the session beside this one"),
    (Action::Editor, "editor", &["ctrl-g"], "write in $VISUAL or $EDITOR"),
    (Action::Unqueue, "unqueue", &["ctrl-x"], "edit the first queued message"),
    (Action::Redraw, "redraw", &["ctrl-l"], "draw the screen again"),
    (Action::Suspend, "suspend", &["ctrl-z"], "suspend"),
    (Action::Help, "help", &["f1"], "help (also ? on empty input)"),
];

/// Why a line of `[keys]` was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is no key.
    #[error("keys: no key is called \"{0}\"; write for example \"ctrl-o\", \"alt-enter\", \"f2\"")]
    Key(String),
    /// It cannot be bound: it is the same as another key in classic terminals, or has a fixed meaning.
    #[error("keys: \"{0}\" cannot be bound; choose another key")]
    Fixed(String),
    /// Typing needs it.
    #[error(
        "keys: \"{key}\" is needed for typing and cannot be \"{action}\"; choose another key, for example with ctrl or alt"
    )]
    Typing {
        /// The key.
        key: String,
        /// What it was to do.
        action: String,
    },
    /// Another line is about the same key.
    #[error("keys: \"{0}\" and \"{1}\" are the same key; keep one of them")]
    Twice(String, String),
    /// The action is no action.
    #[error("keys: no action is called \"{0}\"; /keys lists them, \"none\" unbinds")]
    Action(String),
}

/// Which key does what.
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
        // Ctrl-I, -M, -H and -[ are Tab, Enter, Backspace and Esc in classic encoding.
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

    /// Keys that are spelled in two ways among these names of keys.
    pub fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Vec<KeyError> {
        let mut known: HashMap<Key, &str> = HashMap::new();
        let mut found = Vec::new();
        for name in names {
            // What is no key is told of each line alone.
            let Some(key) = Key::parse(name) else { continue };
            match known.get(&key) {
                Some(first) => found.push(KeyError::Twice((*first).to_owned(), name.to_owned())),
                None => drop(known.insert(key, name)),
            }
        }
        found
    }

    /// What a key does; `None` for keys that are not in the table.
    pub fn action(&self, key: Key) -> Option<Action> {
        self.0.get(&key).copied().filter(|a| *a != Action::None)
    }

    /// Names of the keys bound to an action, and the keys: the shortest first.
    fn bound(&self, action: Action) -> Vec<(String, Key)> {
        let bound = self.0.iter().filter(|(_, a)| **a == action);
        let mut bound: Vec<(String, Key)> = bound.map(|(key, _)| (key.to_string(), *key)).collect();
        bound.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
        bound
    }

    /// Keys bound to an action, the shortest first, for help.
    pub fn keys(&self, action: Action) -> Vec<String> {
        self.bound(action).into_iter().map(|(name, _)| name).collect()
    }

    /// The shortest key bound to an action, for hints.
    pub fn shortest(&self, action: Action) -> Option<Key> {
        self.bound(action).first().map(|(_, key)| *key)
    }

    /// What a key does, as a hint says it: `Ctrl-Y brings it back`; `None` where no key does it.
    pub fn does(&self, action: Action, what: &str) -> Option<String> {
        self.shortest(action).map(|key| format!("{key} {what}"))
    }

    /// Something that is said, and what a key can do about it: `Cleared; Ctrl-Y brings it back`. Alone where no key does it.
    pub fn offer(&self, said: &str, action: Action, what: &str) -> String {
        self.does(action, what).map_or_else(|| said.to_owned(), |does| format!("{said}; {does}"))
    }
}

/// Whether a question can still be typed when a key does this.
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
