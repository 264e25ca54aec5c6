//! The version of each file that was read: a function of the messages on a branch. An update document continues or
//! replaces the text of an earlier document of the same path.

use std::borrow::Cow;

use super::super::grouped;
use crate::core::transcript::{DocumentInfo, Message, Update};
use crate::text::diff;

/// Follows the new name of a file in the name of the document that reports its move.
pub(super) const MOVED: &str = " (moved)";

pub(in crate::runtime) struct Version<'a> {
    pub(in crate::runtime) name: &'a str,
    pub(super) path: &'a str,
    /// The messages that it began with, and that led to it.
    pub(in crate::runtime) first: &'a Message,
    pub(in crate::runtime) last: &'a Message,
    pub(in crate::runtime) text: Cow<'a, str>,
    /// The hash of a text that is in one message.
    pub(in crate::runtime) hash: Option<&'a str>,
}

pub(in crate::runtime) fn versions<'a>(path: &[&'a Message]) -> Vec<Version<'a>> {
    let mut versions: Vec<Version<'a>> = Vec::new();
    for (message, info) in path.iter().filter_map(|m| Some((m, m.meta.document.as_ref()?))) {
        let (text, file) = (message.known_text(), info.path.as_deref().unwrap_or_default());
        let of = match &info.update {
            None => None,
            Some(Update::Moved { from }) => versions.iter_mut().rfind(|v| v.path == from),
            Some(_) => versions.iter_mut().rfind(|v| v.path == file),
        };
        let whole = Version {
            name: &info.name,
            path: file,
            text: text.into(),
            hash: Some(&info.hash),
            first: message,
            last: message,
        };
        let updated = of.and_then(|of| Some((after(info, &of.text, text)?, of)));
        match updated {
            Some((text, of)) => {
                if let Some(Update::Moved { .. }) = &info.update {
                    of.name = info.name.strip_suffix(MOVED).unwrap_or(&info.name);
                }
                (of.text, of.hash, of.path, of.last) = (text, None, file, message);
            }
            None => versions.push(whole),
        }
    }
    versions
}

/// The text after an update; `None` if the update does not start from this text.
fn after<'a>(info: &DocumentInfo, old: &Cow<'a, str>, text: &'a str) -> Option<Cow<'a, str>> {
    Some(match info.update.as_ref()? {
        Update::Diff => diff::apply(old, text)?.into(),
        Update::Grown => format!("{old}{text}").into(),
        Update::Whole => text.into(),
        Update::Gone => "".into(),
        Update::Moved { .. } => old.clone(),
    })
}

/// Name, text and kind of the shortest document that leads from one version of a file to another.
pub(super) fn update(name: &str, old: &str, new: &str) -> (String, String, Update) {
    if new.trim().is_empty() {
        return (format!("{name} (no text)"), format!("{name} has no text any more."), Update::Gone);
    }
    let added = new.strip_prefix(old).filter(|added| old.ends_with('\n') && !added.trim().is_empty());
    if let Some(added) = added {
        let first = old.lines().count() as u64 + 1;
        let last = new.lines().count() as u64;
        let lines = match first == last {
            true => format!("line {}", grouped(first)),
            false => format!("lines {}-{}", grouped(first), grouped(last)),
        };
        return (format!("{name} ({lines})"), added.to_owned(), Update::Grown);
    }
    let diff = diff::unified(name, old, new);
    match new.len() <= diff.len() {
        true => (format!("{name} (new version)"), new.to_owned(), Update::Whole),
        false => (format!("{name} (changed)"), diff, Update::Diff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::{MessageId, MessageMeta, Role};

    fn document(name: &str, path: &str, text: &str, update: Option<Update>) -> Message {
        let info = DocumentInfo { update, complete: true, ..DocumentInfo::new(name, Some(path.into()), text) };
        Message {
            id: MessageId(1),
            parent: None,
            role: Role::Document,
            text: text.into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { document: Some(info), ..MessageMeta::default() },
        }
    }

    #[test]
    fn updates_lead_from_version_to_version() {
        let lines = |n: usize| (1..=n).map(|n| format!("line {n} of a longer text\n")).collect::<String>();
        let edited = lines(40).replace("line 7 of", "line seven of");
        let mut texts = vec![lines(30), lines(40), edited, "short\n".into(), String::new(), "back\n".into()];
        let mut messages = vec![document("a.txt", "/a.txt", &texts.remove(0), None)];
        let mut kinds = Vec::new();
        for text in texts {
            let path: Vec<&Message> = messages.iter().collect();
            let (name, update, kind) = update("a.txt", &versions(&path)[0].text, &text);
            kinds.push(kind.clone());
            messages.push(document(&name, "/a.txt", &update, Some(kind)));
            let path: Vec<&Message> = messages.iter().collect();
            let [now] = versions(&path).try_into().ok().unwrap();
            assert_eq!((now.name, &*now.text), ("a.txt", text.as_str()));
        }
        assert_eq!(kinds, [Update::Grown, Update::Diff, Update::Whole, Update::Gone, Update::Whole]);
        messages.push(document("b.txt (moved)", "/b.txt", ".", Some(Update::Moved { from: "/a.txt".into() })));
        let path: Vec<&Message> = messages.iter().collect();
        let [now] = versions(&path).try_into().ok().unwrap();
        assert_eq!((now.name, now.path, &*now.text), ("b.txt", "/b.txt", "back\n"));
        // Without the document that it starts from, an update is a document of its own.
        let alone = document("a.txt (changed)", "/a.txt", "--- a", Some(Update::Diff));
        assert_eq!(versions(&[&alone])[0].name, "a.txt (changed)");
    }
}
