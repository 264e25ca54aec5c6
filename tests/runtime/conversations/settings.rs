//! What a session keeps of its settings.

use super::*;
use sala_chat::engine::protocol::SpecMode;
use sala_chat::runtime::Settings;
use sala_chat::runtime::protocol::ThinkMode;

fn shown(t: &mut Talk) -> String {
    t.send(Request::Set(None));
    t.wait("settings", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    })
}

#[test]
fn what_is_set_as_it_was_given_for_the_run_is_the_sessions_own() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.set_for_run("think", "off").unwrap();
    settings.set_for_run("spec", "off").unwrap();
    let mut t = Talk::new(dir.path(), Setup { settings, ..Setup::default() });
    t.ask("One?");
    let name = t.name();
    for mode in [ThinkMode::Auto, ThinkMode::Off] {
        t.send(Request::Think(mode));
    }
    t.send(Request::Spec(Some(SpecMode::Off)));
    t.sync();
    t.quit();
    let mut t = Talk::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    let table = shown(&mut t);
    assert!(table.contains("| think | off |") && table.contains("| spec | off |"), "{table}");
    t.quit();
}

#[test]
fn what_was_given_for_the_run_that_begins_a_session_is_not_kept() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.set_for_run("max_tokens", "99").unwrap();
    let mut t = Talk::new(dir.path(), Setup { settings, ..Setup::default() });
    t.ask("One?");
    let (name, table) = (t.name(), shown(&mut t));
    assert!(table.contains("| max_tokens | 99 |"), "{table}");
    t.quit();
    let mut t = Talk::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    let table = shown(&mut t);
    assert!(table.contains("| max_tokens | 8192 |"), "{table}");
    t.quit();
}
