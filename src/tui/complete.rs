//! Tab completion: commands and their arguments, sessions, documents, and paths. The program outside lists paths.

use super::list::fuzzy;
use crate::config::commands::{COMMANDS, Command, Completes, escaped, find, unescaped};
use crate::config::settings::Theme;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub text: String,
    pub help: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popup {
    pub candidates: Vec<Candidate>,
    pub selected: usize,
    /// The user moved to it or typed its first letters, so Enter takes it.
    pub meant: bool,
    pub from: usize,
    /// The text up to the caret when the popup opened; a change closes the popup.
    pub line: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Known(usize, Vec<Candidate>),
    Paths(usize, String),
    Nothing,
}

pub struct Names<'a> {
    pub sessions: Vec<&'a str>,
    pub documents: Vec<&'a str>,
    pub library: Vec<&'a str>,
    pub themes: Vec<&'a str>,
}

pub fn wanted(line: &str, names: &Names<'_>) -> Wanted {
    if !line.starts_with('/') || line.starts_with("//") || line.contains('\n') {
        return Wanted::Nothing;
    }
    let Some(space) = line.find(char::is_whitespace) else {
        return Wanted::Known(0, commands(&line[1..], "/"));
    };
    let Some(command) = find(&line[1..space].to_lowercase()) else {
        return Wanted::Nothing;
    };
    let from = word_start(line);
    let word = &line[from..];
    let pick = |texts: Vec<&str>| {
        let found = fuzzy(word, &texts);
        let candidate = |t: &&str| Candidate { text: (*t).into(), help: String::new() };
        Wanted::Known(from, found.into_iter().filter_map(|i| texts.get(i)).map(candidate).collect())
    };
    if word.starts_with("--") && !command.options.is_empty() {
        return Wanted::Known(from, options(command, word));
    }
    match command.completes {
        Completes::Nothing => Wanted::Nothing,
        Completes::Paths if word.starts_with("--") => Wanted::Nothing,
        Completes::Paths if word.starts_with('@') && command.name == "load" => shelved(from, &word[1..], names),
        Completes::Paths => Wanted::Paths(from, word.to_string()),
        Completes::Sessions => pick(names.sessions.clone()),
        Completes::Documents => pick(names.documents.clone()),
        Completes::Themes => pick(Theme::WORDS.iter().copied().chain(names.themes.iter().copied()).collect()),
        Completes::Commands => Wanted::Known(from, commands(word, "")),
        Completes::Words(words) => pick(words.to_vec()),
        Completes::After(words) => {
            let before: Vec<&str> = line[space..from].split_whitespace().collect();
            pick(words(&before))
        }
    }
}

fn shelved(from: usize, typed: &str, names: &Names<'_>) -> Wanted {
    let found = fuzzy(&unescaped(typed), &names.library);
    let candidate = |name: &&str| Candidate { text: format!("@{}", escaped(name)), help: String::new() };
    Wanted::Known(from, found.into_iter().filter_map(|i| names.library.get(i)).map(candidate).collect())
}

fn options(command: &Command, typed: &str) -> Vec<Candidate> {
    let flags = command.options.iter().filter(|(option, _)| option.starts_with(typed));
    flags
        .map(|(option, help)| Candidate {
            text: option.split(' ').next().unwrap_or(option).into(),
            help: (*help).into(),
        })
        .collect()
}

/// Names that begin with `typed`, then aliases; fuzzy matches only if there are none.
fn commands(typed: &str, slash: &str) -> Vec<Candidate> {
    let candidate = |name: &str, help: &str| Candidate { text: format!("{slash}{name}"), help: help.into() };
    let typed = typed.to_lowercase();
    let begins: Vec<Candidate> =
        COMMANDS.iter().filter(|c| c.name.starts_with(&typed)).map(|c| candidate(c.name, c.help)).collect();
    let called = COMMANDS.iter().filter(|c| !c.name.starts_with(&typed)).filter_map(|c| {
        let alias = c.aliases.iter().find(|a| a.starts_with(&typed))?;
        Some(candidate(alias, &format!("/{}: {}", c.name, c.help)))
    });
    let found: Vec<Candidate> = match typed.is_empty() {
        true => begins,
        false => begins.into_iter().chain(called).collect(),
    };
    if !found.is_empty() {
        return found;
    }
    let names: Vec<&str> = COMMANDS.iter().map(|c| c.name).collect();
    fuzzy(&typed, &names).into_iter().filter_map(|i| COMMANDS.get(i)).map(|c| candidate(c.name, c.help)).collect()
}

fn word_start(line: &str) -> usize {
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in line.char_indices() {
        if c.is_whitespace() && !escaped {
            start = i + c.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    start
}

pub fn common(candidates: &[Candidate]) -> &str {
    let Some(first) = candidates.first() else {
        return "";
    };
    let mut end = first.text.len();
    for c in candidates {
        let same = first
            .text
            .char_indices()
            .zip(c.text.chars())
            .find(|((_, a), b)| a != b)
            .map_or(first.text.len().min(c.text.len()), |((i, _), _)| i);
        end = end.min(same);
    }
    &first.text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(w: Wanted) -> Vec<String> {
        match w {
            Wanted::Known(_, c) => c.into_iter().map(|c| c.text).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn commands_words_and_paths() {
        let names = Names {
            sessions: vec!["war-and-peace", "contract"],
            documents: vec!["notes.md"],
            library: vec!["old contract.pdf", "war.txt"],
            themes: vec!["solar"],
        };
        assert_eq!(texts(wanted("/load @con", &names)), ["@old\\ contract.pdf"]);
        assert_eq!(texts(wanted("/theme ", &names)), ["auto", "dark", "light", "plain", "solar"]);
        assert_eq!(texts(wanted("/re", &names)), ["/refresh", "/resume", "/rename", "/redo", "/regen", "/read"]);
        assert_eq!(texts(wanted("/clea", &names)), ["/clear"]);
        assert_eq!(texts(wanted("/load a.txt --", &names))[..2], ["--as", "--head"]);
        assert_eq!(texts(wanted("/set the", &names)), ["theme", "code_theme", "thinking_budget"]);
        assert_eq!(texts(wanted("/set theme li", &names)).first().map(String::as_str), Some("light"));
        assert_eq!(texts(wanted("/tml", &names)).first().map(String::as_str), Some("/timeline"));
        assert_eq!(texts(wanted("/resume con", &names)), ["contract"]);
        assert_eq!(texts(wanted("/open ", &names)), ["notes.md"]);
        assert_eq!(wanted("/load my\\ fi", &names), Wanted::Paths(6, "my\\ fi".into()));
        assert_eq!(wanted("hello", &names), Wanted::Nothing);
        let c = |t: &str| Candidate { text: t.into(), help: String::new() };
        assert_eq!(common(&[c("books/war.txt"), c("books/wall.txt")]), "books/wa");
    }
}
