//! What the arguments of single commands mean: one function for each command whose arguments are more than a word.

use super::args::{Args, tokens};
use super::{CopyWhat, Local, Outcome};
use crate::app::options::{ThemeName, ThinkShow};
use crate::protocol::desk::{BranchTarget, ExportFormat, LibraryAction, LoadOptions, PresetAction, Request, ThinkMode};

pub(super) fn desk(request: Request) -> Result<Outcome, String> {
    Ok(Outcome::Desk(request))
}

pub(super) fn local(what: Local) -> Result<Outcome, String> {
    Ok(Outcome::Local(what))
}

pub(super) fn load(a: &Args<'_>) -> Result<Outcome, String> {
    let mut options = LoadOptions::default();
    let mut paths = Vec::new();
    let mut words = a.words()?.iter();
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().cloned().ok_or(format!("{word} needs {what}"));
        match word.as_str() {
            "--as" => options.name = Some(value("a name")?),
            "--head" => options.head = Some(tokens(&value("a number of tokens")?)?),
            "--tail" => options.tail = Some(tokens(&value("a number of tokens")?)?),
            "--pages" => {
                let range = value("pages, for example 3-9")?;
                let (first, last) = range.split_once('-').unwrap_or((&range, &range));
                let page = |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0);
                match (page(first), page(last)) {
                    (Some(first), Some(last)) if first <= last => options.pages = Some((first, last)),
                    _ => {
                        return Err(format!("--pages {range} are no pages; write for example 3-9"));
                    }
                }
            }
            "--once" => options.once = true,
            "--force" => options.force = true,
            flag if flag.starts_with("--") => return Err(format!("there is no option {flag}")),
            path => paths.push(path.to_string()),
        }
    }
    if paths.is_empty() {
        return Err("needs a file, folder or glob".into());
    }
    if options.head.is_some() && options.tail.is_some() {
        return Err("takes --head or --tail, not both".into());
    }
    desk(Request::Load { paths, options })
}

pub(super) fn library(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    desk(Request::Library(match words.as_slice() {
        [] | ["list"] => LibraryAction::List,
        ["add", path] => LibraryAction::Add((*path).into()),
        ["rm", name] => LibraryAction::Remove((*name).into()),
        ["prune"] => LibraryAction::Prune,
        _ => return Err("takes list, add PATH, rm NAME or prune".into()),
    }))
}

pub(super) fn export(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut path, mut format, mut tree, mut with_state, mut force) = (None, None, false, false, false);
    for word in a.words()? {
        match word.as_str() {
            "--md" => format = Some(ExportFormat::Markdown),
            "--json" => format = Some(ExportFormat::Json),
            "--txt" => format = Some(ExportFormat::Text),
            "--tree" => tree = true,
            "--with-state" => with_state = true,
            "--force" => force = true,
            flag if flag.starts_with("--") => return Err(format!("there is no option {flag}")),
            _ if path.is_some() => return Err("takes one file".into()),
            file => path = Some(file.to_string()),
        }
    }
    let path = path.ok_or("needs a file name")?;
    desk(Request::Export { path, format, tree, with_state, force })
}

pub(super) fn regen(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut count, mut temperature, mut seed) = (None, 1, None, None);
    for word in a.words()? {
        if let Some(n) = word.strip_prefix('#') {
            at = Some(n.parse().map_err(|_| format!("{word} is no message number"))?);
        } else if let Some(t) = word.strip_prefix("temp=") {
            let t: f32 =
                t.parse().ok().filter(|t| (0.0..=2.0).contains(t)).ok_or(format!("temp must be 0 to 2 (got {t})"))?;
            temperature = Some(t);
        } else if let Some(s) = word.strip_prefix("seed=") {
            seed = Some(s.parse().map_err(|_| format!("seed must be a whole number (got {s})"))?);
        } else {
            count = word
                .parse()
                .ok()
                .filter(|n| (1..=16).contains(n))
                .ok_or(format!("COUNT must be 1 to 16 (got {word})"))?;
        }
    }
    desk(Request::Regen { at, count, temperature, seed })
}

pub(super) fn fork(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut name) = (None, None);
    for word in a.words()? {
        match word.strip_prefix('#') {
            Some(n) => at = Some(n.parse().map_err(|_| format!("{word} is no message number"))?),
            None if name.is_some() => return Err("takes one name".into()),
            None => name = Some(word.clone()),
        }
    }
    desk(Request::Fork { at, name })
}

pub(super) fn branch(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    desk(Request::Branch(match word.as_deref() {
        None => BranchTarget::List,
        Some("next") => BranchTarget::Next,
        Some("prev") => BranchTarget::Prev,
        Some(w) => w.parse().map_or_else(|_| BranchTarget::Name(w.into()), BranchTarget::Number),
    }))
}

pub(super) fn preset(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["list"] => desk(Request::Preset(PresetAction::List)),
        ["save"] => Err("needs a name to save under".into()),
        // How things are shown is known to the interface, which adds it.
        ["save", name] => desk(Request::Preset(PresetAction::Save { name: (*name).into(), display: Vec::new() })),
        [name] => desk(Request::Preset(PresetAction::Take((*name).into()))),
        _ => Err("takes NAME, save NAME or list".into()),
    }
}

pub(super) fn think(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    match word.as_deref() {
        Some("on") => desk(Request::Think(ThinkMode::On)),
        Some("off") => desk(Request::Think(ThinkMode::Off)),
        Some("auto") => desk(Request::Think(ThinkMode::Auto)),
        Some("show") => local(Local::ThinkShow(ThinkShow::Open)),
        Some("fold") => local(Local::ThinkShow(ThinkShow::Fold)),
        Some("hide") => local(Local::ThinkShow(ThinkShow::Hide)),
        _ => Err("takes on, off, auto (the model) or show, fold, hide (the screen)".into()),
    }
}

pub(super) fn copy(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    let what = match word.as_deref() {
        None | Some("last") => CopyWhat::Last,
        Some("all") => CopyWhat::All,
        Some(w) => match (w.strip_prefix('#').map(str::parse), w.strip_prefix('b').map(str::parse)) {
            (Some(Ok(n)), _) => CopyWhat::Message(n),
            (_, Some(Ok(n))) if n > 0 => CopyWhat::Block(n),
            _ => return Err("takes last, #N (a message), bN (a code block) or all".into()),
        },
    };
    local(Local::Copy(what))
}

pub(super) fn theme(a: &Args<'_>) -> Result<Outcome, String> {
    let name = a.one("auto, dark, light or plain")?;
    let theme =
        ThemeName::parse(&name).ok_or(format!("there is no theme {name}; auto, dark, light and plain exist"))?;
    local(Local::Theme(theme))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn load_takes_paths_and_options() {
        let home = std::path::Path::new("/home/u");
        let p = parse(r#"/load "my file.txt" ~/b\ c.md --head 4k --pages 2-9 --once"#, Some(home)).unwrap();
        let options = LoadOptions { head: Some(4000), pages: Some((2, 9)), once: true, ..LoadOptions::default() };
        assert_eq!(
            p.outcome,
            Outcome::Desk(Request::Load { paths: vec!["my file.txt".into(), "/home/u/b c.md".into()], options })
        );
        assert!(parse("/load 'open", None).err().unwrap().contains("quote"));
        assert!(parse("/load a --head x", None).is_err());
    }
}
