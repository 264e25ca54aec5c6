//! Settings: shown, checked, changed; presets.

use super::{Home, err, out};

#[test]
fn settings_can_be_shown_checked_and_changed() {
    let home = Home::new();
    let file = home.path(".config/sala-chat/config.toml");
    assert_eq!(out(&home.run(&["config", "path"])).trim(), file.to_str().unwrap());
    assert!(out(&home.run(&["config", "check"])).contains("does not exist"));

    let set = home.run(&["config", "set", "temperature", "0.3"]);
    assert_eq!(set.status.code(), Some(0), "{}", err(&set));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[sampling]\ntemperature = 0.3\n");
    let shown = home.command(&["config", "show", "--origin"]).env("SALA_CHAT_UI_MOUSE", "true").output().unwrap();
    let line = |key: &str| out(&shown).lines().find(|l| l.starts_with(key)).unwrap().to_owned();
    assert!(line("sampling.temperature").contains("0.3") && line("sampling.temperature").ends_with("config.toml"));
    assert!(line("ui.mouse").contains("true") && line("ui.mouse").ends_with("SALA_CHAT_UI_MOUSE"));
    assert!(line("ui.theme").ends_with("built in"));
    let json: serde_json::Value = serde_json::from_str(out(&home.run(&["config", "show", "--json"]))).unwrap();
    assert_eq!(json["sampling.temperature"], 0.3);
    // As a chat would have them that is started so.
    let given = home.run(&["config", "show", "--origin", "--temp", "0.25", "--preset", "creative"]);
    let line = |key: &str| out(&given).lines().find(|l| l.starts_with(key)).unwrap().to_owned();
    assert!(line("sampling.temperature = 0.25").ends_with("# command line"), "{}", out(&given));
    assert!(line("sampling.min_p = 0.05").ends_with("# command line"), "{}", out(&given));

    home.write(".config/sala-chat/config.toml", "[ui]\ntheme = \"sea\"\ncode_theme = \"nrod\"\n");
    home.write(".config/sala-chat/themes/sea.toml", "[colours]\n\nyou = \"bleu\"\n");
    let check = home.run(&["config", "check"]);
    assert_eq!(check.status.code(), Some(2));
    assert!(out(&check).contains("themes/sea.toml, line 3: you: bleu is not a colour"), "{}", out(&check));
    assert!(out(&check).contains("ui.code_theme: no code theme nrod: did you mean nord?"), "{}", out(&check));

    home.write(".config/sala-chat/config.toml", "[ui]\ntehme = \"dark\"\n[sampling]\ntemperature = 9\n");
    let check = home.run(&["config", "check"]);
    assert_eq!(check.status.code(), Some(2));
    assert!(out(&check).contains("ui.tehme: did you mean ui.theme?"), "{}", out(&check));
    assert!(out(&check).contains("sampling.temperature must be 0 to 2 (got 9)"));
    let used = home.run(&["model", "path"]);
    assert_eq!(used.status.code(), Some(2));
    assert!(err(&used).contains("sampling.temperature must be 0 to 2"), "{}", err(&used));
    let temp =
        home.command(&["--temp", "7", "model", "path"]).env("SALA_CHAT_CONFIG", home.write("c.toml", "")).output();
    assert!(err(&temp.unwrap()).contains("--temp must be 0 to 2"));
}

#[test]
fn setting_a_value_creates_a_named_settings_file() {
    let home = Home::new();
    for name in ["new.toml", "below/new.toml"] {
        let named = |rest: &[&str]| home.run(&[&["--config", name][..], rest].concat());
        let shown = named(&["config", "show"]);
        assert!(shown.status.code() == Some(2) && err(&shown).contains("no such settings file"), "{}", err(&shown));
        let refused = named(&["config", "set", "ui.mouse", "perhaps"]);
        assert!(refused.status.code() == Some(2) && !home.path(name).exists(), "{}", err(&refused));
        let set = named(&["config", "set", "ui.mouse", "true"]);
        assert_eq!(set.status.code(), Some(0), "{}", err(&set));
        assert_eq!(std::fs::read_to_string(home.path(name)).unwrap(), "[ui]\nmouse = true\n");
    }
}

#[test]
fn a_check_finds_what_would_keep_the_program_from_its_work() {
    let home = Home::new();
    let file = "[sampling]\npreset = \"nix\"\n[serve]\nlisten = \"nowhere\"\n[load.converters]\ndocx = \"pandoc\"\n";
    home.write(".config/sala-chat/config.toml", file);
    let check = home.run(&["config", "check"]);
    assert_eq!(check.status.code(), Some(2));
    let found =
        ["sampling.preset: no preset nix.", "serve.listen nowhere: ADDR:PORT", "load.converters.docx: it has no {in}"];
    assert!(found.iter().all(|problem| out(&check).contains(problem)), "{}", out(&check));
    // No preset was typed, so the error names the setting's file.
    let output = home.run(&["--demo", "-p", "hi"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("config.toml: sampling.preset: no preset nix."), "{}", err(&output));
    home.write(".config/sala-chat/config.toml", "[serve]\nlisten = \"nowhere\"\n");
    assert!(err(&home.run(&["--demo", "serve"])).contains("serve.listen nowhere: ADDR:PORT is needed"));
    assert!(err(&home.run(&["--demo", "serve", "--listen", "::1:x"])).contains("--listen ::1:x: a port is"));
    let port = home.run(&["--demo", "serve", "--port", "80850"]);
    assert!(err(&port).contains("--listen 80850: ADDR:PORT is needed, as 127.0.0.1:8080"), "{}", err(&port));
    // What messages advise to set can be set, if it can be used.
    let set = |key: &str, value: &str| home.run(&["config", "set", key, value]);
    assert_eq!(set("load.converters.docx", "pandoc --to plain {in}").status.code(), Some(0));
    assert_eq!(set("keys.ctrl-o", "panel").status.code(), Some(0));
    let file = home.path(".config/sala-chat/config.toml");
    for (command, object) in [
        (&["config", "path", "--json"][..], serde_json::json!({ "file": file })),
        (
            &["config", "set", "mouse", "true", "--json"],
            serde_json::json!({ "file": file, "key": "ui.mouse", "value": "true" }),
        ),
    ] {
        assert_eq!(serde_json::from_str::<serde_json::Value>(out(&home.run(command))).unwrap(), object);
    }
    assert!(err(&set("load.converters.docx", "pandoc")).contains("it has no {in} for the path. Nothing was changed"));
    assert!(err(&set("keys.ctrl-o", "nix")).contains("no action is called"));
    assert!(err(&set("keys.", "nix")).contains("no key is called"));
    // What a check would find in a value is not set.
    let before = std::fs::read_to_string(&file).unwrap();
    for (key, value, says) in [
        ("sampling.preset", "nosuch", "sampling.preset: no preset nosuch."),
        ("theme", "nosuch", "ui.theme: no theme nosuch: there are"),
        ("ui.code_theme", "nrod", "ui.code_theme: no code theme nrod: did you mean nord?"),
        ("serve.listen", "0.0.0.0:99999", "serve.listen 0.0.0.0:99999: a port is"),
        ("serve.listen", "abc", "serve.listen abc: ADDR:PORT is needed"),
        ("engine.url", "ftp://x", "engine.url is not one of http or https."),
        // What was typed is wrong, not the file.
        ("sampling.temperature", "abc", "sala-chat: command line: sampling.temperature must be 0 to 2"),
        ("temprature", "1", "sala-chat: command line: unknown key temprature"),
    ] {
        let refused = set(key, value);
        assert_eq!(refused.status.code(), Some(2), "{key} {value}");
        assert!(err(&refused).contains(says) && err(&refused).contains("Nothing was changed"), "{}", err(&refused));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    for (key, value) in [("preset", "careful"), ("theme", "dark"), ("serve.listen", "[::1]:0"), ("engine.url", "here")]
    {
        assert_eq!(set(key, value).status.code(), Some(0), "{key} {value}");
    }
    home.write(".config/sala-chat/config.toml", "[engine]\nurl = \"ftp://x\"\n");
    let check = home.run(&["config", "check"]);
    assert_eq!((check.status.code(), out(&check).lines().count()), (Some(2), 1), "{}", out(&check));
    assert!(out(&check).contains("engine.url is not one of http or https"), "{}", out(&check));
    home.write(".config/sala-chat/config.toml", "");
    // A variable that is set to nothing is not set.
    let empty =
        home.command(&["model", "path"]).env("SALA_CHAT_CONFIG", "").env("SALA_CHAT_DATA_DIR", "").output().unwrap();
    assert!(!err(&empty).contains("a value is required"), "{}", err(&empty));
}

#[test]
fn an_invalid_preset_is_reported_before_anything_is_loaded() {
    let home = Home::new();
    let wrong = home.run(&["-p", "hi", "--preset", "carefull"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(
        err(&wrong),
        "sala-chat: no preset carefull. Did you mean careful? There are: default, careful, creative, greedy\n"
    );
    home.write(".config/sala-chat/presets/mine.toml", "[sampling]\ntemperature = 9");
    let wrong = home.run(&["-p", "hi", "--preset", "mine"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).ends_with("mine.toml: sampling.temperature must be 0 to 2 (got 9)\n"), "{}", err(&wrong));
}
