//! Background tasks during other work: imports, searches and exports on a slow disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::store::Watch;

use super::fault::FaultDisk;
use super::*;

/// A conversation of another program.
fn chat_file(dir: &Path) -> PathBuf {
    let file = dir.join("in.json");
    let json = r#"{"chat":{"title":"Lamps","messages":[{"role":"user","content":"Is kerosene dear?"}]}}"#;
    std::fs::write(&file, json).unwrap();
    file
}

fn import(file: &Path) -> Request {
    Request::Import(file.display().to_string())
}

fn busy(t: &mut Chat, part: &str) {
    t.wait(part, |n| matches!(n, Notice::Activity(Activity::Busy { what }) if what.starts_with(part)).then_some(()));
}

fn stopping(t: &mut Chat) {
    t.wait("stopping", |n| matches!(n, Notice::Activity(Activity::Stopping)).then_some(()));
}

fn page(t: &mut Chat) {
    t.send(Request::Context);
    t.wait("a page", |n| matches!(n, Notice::Page { .. }).then_some(()));
}

fn found(t: &mut Chat) -> usize {
    t.wait("what was found", |n| if let Notice::Found { rows, .. } = n { Some(rows.len()) } else { None })
}

fn sessions(dir: &Path) -> usize {
    let store = support::store(&dir.join("data"));
    store.sessions(sala_chat::store::SessionFilter::Live, 10).unwrap().len()
}

fn an_import_is_shown_and_can_be_stopped_while_others_work() {
    let (dir, disk) = (dir(), FaultDisk::new());
    let file = chat_file(dir.path());
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::new(disk.clone()), ..Setup::default() });
    t.sync();
    let release = disk.hold("background");
    t.send(import(&file));
    busy(&mut t, "importing in.json");
    page(&mut t);
    t.send(Request::Stop);
    stopping(&mut t);
    drop(release);
    t.note_with("Stopped: nothing was imported.");
    t.idle();
    assert_eq!(sessions(dir.path()), 0);
    t.send(import(&file));
    t.note_with("1 message imported as \"Lamps\"");
    t.sync();
    assert_eq!(t.name(), "Lamps");
}

fn the_end_waits_for_no_import() {
    let (dir, disk) = (dir(), FaultDisk::new());
    let file = chat_file(dir.path());
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::new(disk.clone()), ..Setup::default() });
    t.sync();
    let release = disk.hold("background");
    t.send(import(&file));
    busy(&mut t, "importing");
    let begun = Instant::now();
    t.quit();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(release);
    assert_eq!(sessions(dir.path()), 0);
}

fn a_search_waits_for_the_answer_and_can_be_stopped() {
    let (dir, disk) = (dir(), FaultDisk::new());
    let file = chat_file(dir.path());
    let (permit, gate) = crossbeam_channel::unbounded();
    let setup = Setup { disk: Arc::new(disk.clone()), gate: Some(gate), ..Setup::default() };
    let mut t = Chat::new(dir.path(), setup);
    t.send(Request::Ask("One?".into()));
    (0..4).for_each(|_| permit.send(()).unwrap());
    t.wait("some of the answer", |n| matches!(n, Notice::Delta { .. }).then_some(()));
    // Another process has brought what is in no index yet.
    support::store(&dir.path().join("data")).import(&file, &Watch::NONE).unwrap();
    let release = disk.hold("background");
    t.send(Request::Search("kerosene".into()));
    page(&mut t);
    drop(permit);
    t.finished();
    busy(&mut t, "searching");
    t.send(Request::Stop);
    stopping(&mut t);
    drop(release);
    t.idle();
    assert!(!t.seen.iter().any(|n| matches!(n, Notice::Found { .. })));
    t.send(Request::Search("kerosene".into()));
    assert_eq!(found(&mut t), 1);
}

fn an_export_ends_with_a_stop_and_leaves_no_file() {
    let (dir, disk) = (dir(), FaultDisk::new());
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::new(disk.clone()), ..Setup::default() });
    t.ask("One?");
    t.on_disk();
    let release = disk.hold("background");
    let path = dir.path().join("out.sala");
    let name = path.display().to_string();
    t.send(Request::Export { path: name, format: None, tree: false, with_state: true, force: false });
    busy(&mut t, "exporting out.sala");
    t.send(Request::Stop);
    stopping(&mut t);
    drop(release);
    t.idle();
    let left = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("out.sala")).collect();
    assert!(left.is_empty(), "{left:?}");
}

with_both_tokenizers!(
    an_import_is_shown_and_can_be_stopped_while_others_work,
    the_end_waits_for_no_import,
    a_search_waits_for_the_answer_and_can_be_stopped,
    an_export_ends_with_a_stop_and_leaves_no_file,
);
