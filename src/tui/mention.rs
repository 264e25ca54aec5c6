//! `@file` in a question: completed during typing, read before the question is sent. Names of library documents work
//! too, and pasted paths are offered for loading.
//!
//! The program outside looks up paths ([`Effect::FindPaths`]); a path has priority over a library name, and an `@word`
//! that is neither stays text. Line mode and `-p` share these functions ([`names`], [`meant`]).

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use percent_encoding::percent_decode_str;

use super::acts::{LONG_HINT_MS, hint, remember, send};
use super::keys::Action;
use super::{App, Effect, Queued};
use crate::config::commands;
use crate::core::files::below_home;
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{LoadOptions, Request};
use crate::text::with_newlines;

const PASTED: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lookup {
    Question(String, Option<MessageId>),
    Pasted(String, Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    pub range: Range<usize>,
    pub name: String,
}

pub fn mentions(text: &str) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut before = ' ';
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let begins = c == '@' && (before.is_whitespace() || matches!(before, '(' | '"' | '\''));
        before = c;
        if !begins {
            continue;
        }
        let (mut name, mut end) = (String::new(), at + 1);
        while let Some((i, c)) = chars.peek().copied().filter(|(_, c)| !c.is_whitespace()) {
            chars.next();
            end = i + c.len_utf8();
            let escaped = (c == '\\').then(|| chars.next_if(|(_, n)| commands::is_escapable(*n))).flatten();
            name.push(escaped.map_or(c, |(_, n)| n));
            end += escaped.map_or(0, |(_, n)| n.len_utf8());
            before = c;
        }
        if !name.is_empty() {
            found.push(Mention { range: at..end, name });
        }
    }
    found
}

pub fn typed(line: &str) -> Option<(usize, String)> {
    if let Some(before) = line.strip_suffix('@') {
        let before = before.chars().next_back();
        return before.is_none_or(|c| c.is_whitespace() || c == '(').then(|| (line.len() - 1, String::new()));
    }
    mentions(line).pop().filter(|m| m.range.end == line.len()).map(|m| (m.range.start, m.name))
}

fn bare(name: &str) -> &str {
    name.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\''])
}

fn resolved(text: &str, known: &[&str]) -> (String, Vec<String>) {
    let mut out = String::new();
    let mut names: Vec<String> = Vec::new();
    let mut at = 0;
    for m in mentions(text) {
        let is = |name: &str| known.contains(&name);
        let name = if is(&m.name) { m.name.as_str() } else { bare(&m.name) };
        if name.is_empty() || !is(name) {
            continue;
        }
        out.push_str(&text[at..m.range.start]);
        out.push_str(&m.name);
        at = m.range.end;
        if !names.iter().any(|n| n == name) {
            names.push(name.to_string());
        }
    }
    out.push_str(&text[at..]);
    (out, names)
}

pub fn names(text: &str) -> Vec<String> {
    let mut known = HashSet::new();
    let names = mentions(text).into_iter().flat_map(|m| [m.name.clone(), bare(&m.name).to_owned()]);
    names.filter(|name| !name.is_empty() && known.insert(name.clone())).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    pub text: String,
    pub paths: Vec<String>,
    pub library: Vec<String>,
}

impl Meant {
    fn unread(&self) -> impl Iterator<Item = &String> {
        self.paths.iter().chain(&self.library)
    }

    pub fn is_ready(&self) -> bool {
        self.unread().next().is_none()
    }

    /// An edit cannot read documents, because other messages follow it.
    pub fn not_for_an_edit(&self) -> String {
        let marked = self.unread().map(|n| format!("@{}", sanitize_line(n))).collect::<Vec<_>>().join(" ");
        format!(
            "Not sent: an edit reads no document, and {marked} is one. Without its @ it is text; /undo goes back, to ask anew with it."
        )
    }
}

/// Resolves mentions, given existing paths, documents already read, and library names.
pub fn meant(text: &str, found: &[String], read: &[&str], library: &[&str]) -> Meant {
    let known: Vec<&str> = found.iter().map(String::as_str).chain(read.iter().chain(library).copied()).collect();
    let (text, mut names) = resolved(text, &known);
    names.retain(|name| !read.contains(&name.as_str()));
    let (paths, library) = names.into_iter().partition(|name| found.contains(name));
    Meant { text, paths, library }
}

pub fn load_request(paths: Vec<String>, library: Vec<String>, home: Option<&Path>) -> Request {
    let options = LoadOptions { library, ..LoadOptions::default() };
    Request::Load {
        paths: paths.iter().map(|path| below_home(path, home).to_string_lossy().into_owned()).collect(),
        options,
    }
}

/// The paths of a pasted text that contains nothing else: absolute, below `~` or `.`, or `file://`; quoted or escaped
/// as terminals insert dropped files.
pub fn pasted_paths(text: &str) -> Option<Vec<String>> {
    // Terminals send line ends as carriage returns.
    let text = with_newlines(text.trim());
    // A shell's comment is text.
    let words = shlex::split(&text).filter(|_| !text.split_whitespace().any(|word| word.starts_with('#')));
    let words = words.and_then(|words| words.into_iter().map(pasted_path).collect::<Option<Vec<_>>>());
    // File managers copy one path a line, without quotes around spaces.
    let lines = || text.lines().map(|line| pasted_path(line.trim().to_owned())).collect::<Option<Vec<_>>>();
    let paths = words.or_else(|| lines().filter(|lines| lines.len() > 1))?;
    (1..=PASTED).contains(&paths.len()).then_some(paths)
}

fn pasted_path(word: String) -> Option<String> {
    let path = match word.strip_prefix("file://") {
        Some(address) => {
            let path = address.find('/').map_or(address, |at| &address[at..]);
            percent_decode_str(path).decode_utf8().ok()?.into_owned()
        }
        None => word,
    };
    let begins = ["/", "~/", "./", "../"].iter().any(|start| path.starts_with(start));
    (begins && path.len() > 1).then_some(path)
}

pub(super) fn look_up(app: &mut App, text: &str, edits: Option<MessageId>) -> bool {
    let names = names(text);
    if names.is_empty() {
        return false;
    }
    app.waiting = true;
    app.lookup = Some(Lookup::Question(text.to_string(), edits));
    app.effects.push(Effect::FindPaths(names));
    true
}

pub(super) fn look_up_pasted(app: &mut App, text: &str) -> bool {
    if app.open.composer.text().starts_with('/') || app.open.editing.is_some() || app.lookup.is_some() {
        return false;
    }
    let Some(paths) = pasted_paths(text) else { return false };
    app.lookup = Some(Lookup::Pasted(text.to_string(), paths.clone()));
    app.effects.push(Effect::FindPaths(paths));
    true
}

pub(super) fn load_for_question(app: &mut App, text: String, paths: Vec<String>, library: Vec<String>) {
    let line = commands::line_of(&text);
    remember(app, &line);
    app.open.queue.lines.push_front(Queued { line, edits: None });
    app.open.reading = true;
    load(app, paths, library);
}

pub(super) fn load(app: &mut App, paths: Vec<String>, library: Vec<String>) {
    let request = load_request(paths, library, app.config.home.as_deref());
    app.waiting = true;
    send(app, request);
}

pub(super) fn not_read(app: &mut App) {
    if std::mem::take(&mut app.open.reading) && !app.open.queue.lines.is_empty() {
        app.open.queue.held = true;
        let keys = &app.config.keys;
        let asks = keys.offer("Not asked: not all was read", Action::Send, "asks it anyway");
        let text = keys.offer(&asks, Action::Unqueue, "edits it");
        hint(app, text, LONG_HINT_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_at_the_beginning_of_a_word_is_a_mention() {
        let names = |text| mentions(text).into_iter().map(|m| m.name).collect::<Vec<_>>();
        assert_eq!(names("compare @a.txt with (@b/c.md) and x@y.org"), ["a.txt", "b/c.md)"]);
        assert_eq!(names("@my\\ notes.txt @ @"), ["my notes.txt"]);
        for name in ["a b", "'a'.txt", "c\\d", "g\u{a0}h", "it's"] {
            let typed = format!("see @{} now", commands::escaped(name));
            assert_eq!(mentions(&typed).first().map(|m| m.name.as_str()), Some(name), "{typed}");
        }
        assert_eq!(typed("see @src/ma"), Some((4, "src/ma".into())));
        assert_eq!(typed("see @"), Some((4, String::new())));
        assert_eq!((typed("see @a b"), typed("x@")), (None, None));
    }

    #[test]
    fn found_paths_lose_their_mark_and_others_keep_it() {
        let (text, paths) = resolved("What do @a.txt and @b.md, @a.txt? And @anna?", &["a.txt", "b.md"]);
        assert_eq!(text, "What do a.txt and b.md, a.txt? And @anna?");
        assert_eq!(paths, ["a.txt", "b.md"]);
    }

    #[test]
    fn dropped_paths_are_distinguished_from_text() {
        let paths = |text: &str| pasted_paths(text);
        assert_eq!(paths("'/home/a b.txt' "), Some(vec!["/home/a b.txt".into()]));
        assert_eq!(paths("/a\\ b.txt ~/c.md\n"), Some(vec!["/a b.txt".into(), "~/c.md".into()]));
        for text in ["/a.txt\n/b.txt", "/a.txt\r/b.txt\r", "'/a.txt'\r\n/b.txt"] {
            assert_eq!(paths(text), Some(vec!["/a.txt".into(), "/b.txt".into()]), "{text:?}");
        }
        assert_eq!(paths("/my notes.txt\r~/it's.md"), Some(vec!["/my notes.txt".into(), "~/it's.md".into()]));
        assert_eq!(paths("file:///tmp/x%20y.txt"), Some(vec!["/tmp/x y.txt".into()]));
        assert_eq!(paths("file:///a%zz"), Some(vec!["/a%zz".into()]), "no character: it stands for itself");
        assert_eq!(paths("file://host/tmp/x"), Some(vec!["/tmp/x".into()]));
        for text in [
            "/etc is a folder",
            "hello",
            "/",
            "'/open quote",
            "https://x.example",
            "file:///a%ff",
            "",
            "/etc/hosts # line 3",
        ] {
            assert_eq!(paths(text), None, "{text}");
        }
    }
}
