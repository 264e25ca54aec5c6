//! What a session keeps of its settings.

use super::*;
use sala_chat::desk::Settings;

#[test]
fn what_was_given_for_the_run_that_begins_a_session_is_not_kept() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.set_for_run("max_tokens", "99").unwrap();
    let shown = |t: &mut Talk| {
        t.send(Request::Set(None));
        t.wait("settings", |n| match n {
            Notice::Page { text, .. } => Some(text.clone()),
            _ => None,
        })
    };
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
