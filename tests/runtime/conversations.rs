//! The runtime with a scripted engine: jobs sent to the engine, saves and notices.

mod answers;
mod background_tasks;
mod damage;
mod documents;
mod drafts;
mod followed;
#[allow(dead_code)]
use crate::fault;
mod forks;
mod plans;
mod presets;
mod sessions;
mod settings;
mod stopped_loads;
mod stops;
use crate::support;
mod titles;
mod trash;
mod views;

use sala_chat::config::commands::{BranchTarget, Sibling};
use sala_chat::config::settings::LoadConfig;
use sala_chat::core::Exit;
use sala_chat::core::transcript::{Finish, MessageId, Role, Sources};
use sala_chat::runtime::protocol::{
    Activity, GotoTarget, Level, LibraryAction, LoadOptions, LoadPlan, Notice, OpenSession, Place, PresetAction,
    Request, SaveState,
};
use sala_chat::runtime::{Attendance, Input, Opening};
use sala_chat::text::Before;
use support::{Chat, Setup, always, text_model, titles, titling, with_both_tokenizers};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn resume(name: &str) -> Setup {
    Setup { opening: Opening::Resume(name.into()), ..Setup::default() }
}

fn plan(t: &mut Chat) -> (u64, String, LoadPlan) {
    t.wait("a plan", |n| match n {
        Notice::Question { id, text, plan: Some(plan), .. } => Some((*id, text.clone(), plan.clone())),
        _ => None,
    })
}

fn three_files(dir: &std::path::Path) -> Request {
    for (name, lines) in [("a.txt", 30), ("b.txt", 60), ("c.txt", 90)] {
        std::fs::write(dir.join(name), format!("A line of {name}.\n").repeat(lines)).unwrap();
    }
    Request::Load { paths: vec!["*.txt".into()], options: Default::default() }
}

fn question(t: &mut Chat) -> (u64, String) {
    t.wait("a question", |n| match n {
        Notice::Question { id, text, .. } => Some((*id, text.clone())),
        _ => None,
    })
}

/// What `notes.txt` says, over and over.
const FACTS: &str = "Some facts about the garden club and its members.\n";

/// A document that is long, `notes.txt`.
fn write_notes(dir: &std::path::Path) {
    std::fs::write(dir.join("notes.txt"), FACTS.repeat(250)).unwrap();
}

/// A session that read it and had one question about it.
fn with_notes(dir: &std::path::Path, question: &str) -> Chat {
    write_notes(dir);
    let mut t = Chat::new(dir, Setup::default());
    t.load("notes.txt");
    t.ask(question);
    t
}

/// Another terminal, with a session that is open elsewhere: to view only.
fn viewing(dir: &std::path::Path, name: &str) -> Chat {
    let mut t = Chat::new(dir, resume(name));
    let (id, _) = question(&mut t);
    t.send(Request::Choose { question: id, key: 'v' });
    t.note_with("Resumed");
    t
}
