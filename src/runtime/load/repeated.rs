//! Documents of a load that the conversation holds already.

use super::super::verb::Verb;
use super::super::{Attendance, State, grouped};
use crate::core::transcript::{DocumentInfo, Message};
use crate::runtime::protocol::{Choice, Level};
use crate::text::sources::Document;

impl Verb {
    /// Asks about documents that the conversation holds already: load all again, only the others, or nothing. Without
    /// a user they are left out.
    pub(super) async fn without_repeated(&mut self, documents: Vec<Document>) -> Vec<Document> {
        let repeated = |d: &Document| {
            let path = d.path.as_ref().map(|p| p.display().to_string());
            let info = DocumentInfo::new(&d.name, path, &d.text);
            self.here.session.documents_with(&info.hash).any(|old| is_same(old, &info))
        };
        let mut documents: Vec<(bool, Document)> = documents.into_iter().map(|d| (repeated(&d), d)).collect();
        let mut again = documents.iter().filter(|(repeated, _)| *repeated).map(|(_, d)| d.name.as_str());
        let what = match (again.next(), again.count()) {
            (None, _) => return documents.into_iter().map(|(_, d)| d).collect(),
            (Some(one), 0) => format!("{one} is in this conversation already, unchanged"),
            (Some(_), more) => format!("{} of these files are in this conversation already, unchanged", more + 1),
        };
        let others = documents.iter().any(|(repeated, _)| !repeated);
        if self.attendance == Attendance::Absent {
            self.note(Level::Warn, format!("{what}: not loaded again."));
            documents.retain(|(repeated, _)| !repeated);
            return documents.into_iter().map(|(_, d)| d).collect();
        }
        let choice = |key, label: &str| Choice { key, label: label.into() };
        let mut choices = vec![choice('\n', "load again")];
        choices.extend(others.then(|| choice('o', "only the others")));
        choices.push(choice('\x1b', "cancel"));
        let text = format!("{what}. Loading it again costs its tokens again.");
        match self.ask_user(text, choices).await {
            '\n' => {}
            'o' => documents.retain(|(repeated, _)| !repeated),
            _ => documents.clear(),
        }
        documents.into_iter().map(|(_, d)| d).collect()
    }
}

impl State {
    pub(super) fn say_in_part(&self, messages: &[Message]) {
        let parts: Vec<&DocumentInfo> = self.here.session.documents_in_part().collect();
        for info in messages.iter().filter_map(|m| m.meta.document.as_ref()) {
            if let Some(part) = parts.iter().find(|part| part.hash == info.hash && is_same(part, info)) {
                let (name, lines) = (&info.name, grouped(part.lines));
                self.note(
                    Level::Info,
                    format!("{name} is already here in part (lines 1-{lines}); this reads it again."),
                );
            }
        }
    }
}

/// Whether two documents with the same text are the same one: the same file, whatever the spelling of its path, or the
/// same name if there is no file.
fn is_same(old: &DocumentInfo, new: &DocumentInfo) -> bool {
    let file = |path: &str| std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    match (&old.path, &new.path) {
        (Some(old), Some(new)) => old == new || file(old) == file(new),
        (None, None) => old.name == new.name,
        (Some(_), None) | (None, Some(_)) => false,
    }
}
