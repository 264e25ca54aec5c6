//! Removes control sequences from text of the runtime.

use crate::core::sanitize::{sanitize, sanitize_line};
use crate::runtime::protocol::{Activity, DocumentRow, OpenSession, SessionRow, SessionView, TimelineRow, TreeView};

pub(super) fn clean(text: &str) -> String {
    sanitize(text).into_owned()
}

pub(super) fn line(text: &str) -> String {
    sanitize_line(text).into_owned()
}

pub(super) fn session(view: SessionView) -> SessionView {
    SessionView { name: line(&view.name), title: line(&view.title), tree: tree(view.tree), ..view }
}

pub(super) fn tree(tree: TreeView) -> TreeView {
    TreeView {
        timeline: tree.timeline.into_iter().map(timeline_row).collect(),
        documents: tree.documents.into_iter().map(document_row).collect(),
        ..tree
    }
}

pub(super) fn opened(list: Vec<OpenSession>) -> Vec<OpenSession> {
    list.into_iter().map(|o| OpenSession { name: line(&o.name), ..o }).collect()
}

pub(super) fn activity(activity: Activity) -> Activity {
    match activity {
        Activity::Starting { what } => Activity::Starting { what: line(&what) },
        Activity::Busy { what } => Activity::Busy { what: line(&what) },
        Activity::Background { what } => Activity::Background { what: line(&what) },
        Activity::Reading(mut r) => {
            for f in &mut r.files {
                f.name = line(&f.name);
            }
            Activity::Reading(r)
        }
        other => other,
    }
}

pub(super) fn session_row(r: SessionRow) -> SessionRow {
    SessionRow { name: line(&r.name), title: line(&r.title), ..r }
}

pub(super) fn timeline_row(r: TimelineRow) -> TimelineRow {
    TimelineRow { title: line(&r.title), label: r.label.map(|l| line(&l)), ..r }
}

pub(super) fn document_row(r: DocumentRow) -> DocumentRow {
    DocumentRow { name: line(&r.name), ..r }
}
