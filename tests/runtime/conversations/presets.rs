//! Presets of one's own.

use super::*;

fn preset(t: &mut Chat, action: PresetAction) -> String {
    t.note(Request::Preset(action))
}

fn a_preset_of_ones_own_is_saved_listed_and_taken() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.send(Request::System(Some("Be brief.".into())));
    t.send(Request::Set(Some(("temperature".into(), "0.25".into()))));
    t.send(Request::Set(Some(("max_tokens".into(), "99".into()))));
    t.send(Request::Set(Some(("think".into(), "off".into()))));
    t.sync();
    let save = |name: &str| PresetAction::Save { name: name.into(), display: vec![("thinking.show", "hide".into())] };
    t.send(Request::Preset(save("brief")));
    let note = t.note_with("Preset brief saved: ");
    assert!(note.ends_with("presets/brief.toml."), "{note}");
    t.send(Request::Preset(save("brief")));
    t.note_with("The previous one is brief.toml~.");
    t.send(Request::Preset(PresetAction::List));
    let page = t.wait("the list", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    });
    let row = "| brief | temperature 0.25, max_tokens 99, think off, thoughts hide, a system text |";
    assert!(page.contains(row) && page.contains("Now: brief."), "{page}");
    t.quit();

    let mut t = Chat::new(dir.path(), Setup::default());
    t.send(Request::Preset(PresetAction::Take("brief".into())));
    t.wait("how to show things", |n| match n {
        Notice::Display(d) if *d == [("thinking.show", "hide".to_string())] => Some(()),
        _ => None,
    });
    t.ask("Who?");
    let given = t.given();
    assert!(given[0].contains("Be brief."), "{given:?}");
    let note = preset(&mut t, PresetAction::Take("brief".into()));
    assert!(note.ends_with("a system text"), "it was read here: {note}");
    // In a session with another beginning the settings change, the text is for the next one.
    t.send(Request::New(None));
    t.send(Request::System(Some("Be long.".into())));
    t.ask("Who?");
    let note = preset(&mut t, PresetAction::Take("brief".into()));
    assert!(note.contains("Its system text is for new sessions"), "{note}");
    t.send(Request::Set(None));
    let table = t.wait("settings", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    });
    for row in ["| temperature | 0.25 |", "| max_tokens | 99 |", "| think | off |"] {
        assert!(table.contains(row), "{table}");
    }
    // Another one leaves nothing of it.
    for name in ["default", "short"] {
        std::fs::write(dir.path().join("presets/short.toml"), "[sampling]\ntop_k = 3\n").unwrap();
        t.send(Request::Preset(PresetAction::Take("brief".into())));
        let note = preset(&mut t, PresetAction::Take(name.into()));
        t.send(Request::Set(None));
        let table = t.wait("settings", |n| if let Notice::Page { text, .. } = n { Some(text.clone()) } else { None });
        assert!(table.contains("| max_tokens | 8192 |"), "{name}: {note}: {table}");
    }
}

fn what_is_wrong_with_a_preset_is_one_line_and_changes_nothing() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    let save = |name: &str| PresetAction::Save { name: name.into(), display: Vec::new() };
    let note = preset(&mut t, save("../evil"));
    assert!(note.starts_with("\"../evil\" is not a preset name"), "{note}");
    assert!(preset(&mut t, save("careful")).contains("is reserved"));
    let presets = dir.path().join("presets");
    assert!(!presets.exists());
    std::fs::create_dir(&presets).unwrap();
    std::fs::write(presets.join("odd.toml"), "[sampling]\ntemperature = 0.1\ntop_q = 1").unwrap();
    let note = preset(&mut t, PresetAction::Take("odd".into()));
    assert!(note.ends_with("odd.toml: unknown key sampling.top_q: did you mean sampling.top_p?"), "{note}");
    // The file may say what /set would refuse.
    std::fs::write(presets.join("odd.toml"), "[sampling]\ntop_k = 9999").unwrap();
    let note = preset(&mut t, PresetAction::Take("odd".into()));
    assert!(note.ends_with("sampling.top_k must be a whole number from 0 to 256 (got 9999)"), "{note}");
    std::fs::create_dir(presets.join("folder.toml")).unwrap();
    let note = preset(&mut t, PresetAction::Take("folder".into()));
    assert!(note.ends_with("Fix or remove the file."), "{note}");
    let note = preset(&mut t, PresetAction::Take("od".into()));
    assert!(note.contains("No preset od. Did you mean odd? There are: default, "), "{note}");
    t.send(Request::Set(None));
    let table = t.wait("settings", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(table.contains("| temperature | 0.7 |"), "{table}");
}

with_both_tokenizers!(
    a_preset_of_ones_own_is_saved_listed_and_taken,
    what_is_wrong_with_a_preset_is_one_line_and_changes_nothing,
);
