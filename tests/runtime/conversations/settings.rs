//! What a session keeps of its settings.

use super::*;
use sala_chat::runtime::Settings;

fn shown(t: &mut Chat) -> String {
    t.send(Request::Set(None));
    t.wait("settings", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    })
}

#[test]
fn a_setting_equal_to_the_run_option_is_kept_in_the_session() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.set_for_run("think", "off").unwrap();
    settings.set_for_run("spec", "off").unwrap();
    let mut t = Chat::new(dir.path(), Setup { settings, ..Setup::default() });
    t.ask("One?");
    let name = t.name();
    for (key, value) in [("think", "auto"), ("think", "off"), ("spec", "off")] {
        t.send(Request::Set(Some((key.into(), value.into()))));
    }
    t.sync();
    t.quit();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    let table = shown(&mut t);
    assert!(table.contains("| think | off |") && table.contains("| spec | off |"), "{table}");
    t.quit();
}

#[test]
fn options_of_the_first_run_are_not_kept_in_the_session() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.set_for_run("max_tokens", "99").unwrap();
    let mut t = Chat::new(dir.path(), Setup { settings, ..Setup::default() });
    t.ask("One?");
    let (name, table) = (t.name(), shown(&mut t));
    assert!(table.contains("| max_tokens | 99 |"), "{table}");
    t.quit();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    let table = shown(&mut t);
    assert!(table.contains("| max_tokens | 8192 |"), "{table}");
    t.quit();
}

#[test]
fn a_system_text_is_removed_before_and_after_the_first_question() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    let (set, off) = (|| Request::System(Some("Be brief.".into())), || Request::System(Some(String::new())));
    assert_eq!(t.note(off()), "There is no system text. /system TEXT sets one.");
    assert!(t.note(set()).starts_with("The system text is set"));
    assert_eq!(t.note(off()), "The system text is removed.");
    t.ask("One?");
    assert!(t.given().iter().all(|prompt| !prompt.contains("Be brief.")));
    for (request, roles) in
        [(set(), &[Role::System, Role::User, Role::Assistant][..]), (off(), &[Role::User, Role::Assistant])]
    {
        t.send(request);
        let id = question(&mut t).0;
        t.send(Request::Choose { question: id, key: '\n' });
        t.note_with("System text changed, now at");
        t.sync();
        assert_eq!(t.view().messages.iter().map(|m| m.role).collect::<Vec<_>>(), roles);
    }
    assert_eq!(t.note(off()), "There is no system text. /system TEXT sets one.");
    t.quit();
}
