//! The real binary, as a shell sees it: arguments, settings, exit codes, output. No model is loaded here.

#[path = "support/command.rs"]
mod command;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sala_chat::protocol::engine::Cancel;
use sala_chat::session::{Limits, RealDisk, SessionFilter, Store};
use sala_chat::text::sources::{Gathered, SourceError, SourceOptions, gather};

/// A folder that holds everything the program reads and writes.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        command::command(self.0.path(), arguments)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn help_and_version_go_to_standard_output() {
    let home = Home::new();
    let help = home.run(&["--help"]);
    assert!(help.status.success() && out(&help).contains("--max-tokens") && err(&help).is_empty());
    let version = home.run(&["--version"]);
    assert_eq!(out(&version).trim(), format!("sala-chat {}", env!("CARGO_PKG_VERSION")));
    assert!(!home.path("data").exists(), "asking for help writes nothing");
}

#[test]
fn a_wrong_command_line_is_one_line_and_code_2() {
    let home = Home::new();
    for arguments in [&["--nonsense"][..], &["bench", "--context", "x"], &["-c", "-r", "a"], &["--plain", "ls"]] {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert_eq!(err(&output).trim_end().lines().count(), 1, "{}", err(&output));
        assert!(out(&output).is_empty());
    }
    let output = home.run(&["--json", "--nonsense"]);
    let object: serde_json::Value = serde_json::from_str(out(&output)).unwrap();
    assert_eq!((object["code"].as_str(), output.status.code()), (Some("usage"), Some(2)));
    assert!(object["message"].as_str().unwrap().contains("--nonsense") && object["hint"].is_string());
    assert!(err(&output).is_empty());
}

#[test]
fn what_a_measurement_has_no_room_for_is_refused_before_anything_is_made() {
    let home = Home::new();
    for (line, says) in [
        ("bench --context 0", "a whole number from 1 to 1048576"),
        ("bench --context 512,1e30", "'1e30' for '--context"),
        ("bench --decode -1", "a whole number from 2 to 32768"),
        ("bench sessions --sessions 0", "a whole number from 1 to 1000000"),
        ("bench --prefill-rows -1", "a whole number from 0 to 65536"),
        ("bench --prefill-rows 18446744073709551615", "a whole number from 0 to 65536"),
        ("bench sessions --context 512,1024", "--context takes one length here, the session's (got 2)"),
        ("bench library --context 512,1024,2048", "--context takes two lengths here at most"),
        ("bench sessions --context 1048576", "--context must be 1 to 924784 here (got 1048576)"),
        ("--ctx 4096 bench sessions --context 9000", "--context must be 1 to 4096 here (got 9000)"),
        ("bench beside --sample 0", "--sample must be at least 1 here"),
        ("bench beside --context 1048576", "here, with this --sample (got 1048576)"),
        ("bench beside --context 16384,512", "--context must be 16384 to 1028072 here, with this --sample (got 512)"),
        ("bench beside --sequences 1,8", "--sequences cannot be chosen here"),
        ("bench library --context 512,1048576", "--context must be 512 to 1040384 here (got 1048576)"),
        ("bench serve --sequences 1,9", "--sequences must be 1 to serve.side_by_side, 8 (got 9)"),
        ("bench serve --context 924784", "--context and 3 answers of --decode must be 924784 together at most"),
        ("eval --lengths 1048576", "a whole number from 512 to 1047552"),
    ] {
        let output = home.run(&format!("--demo --device cpu {line}").split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}: {}", err(&output));
        assert!(err(&output).contains(says) && err(&output).trim_end().lines().count() == 1, "{}", err(&output));
    }
    let begun = std::fs::read_dir(home.path("data")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(begun.into_iter().all(|name| !name.to_string_lossy().starts_with("bench-")));
}

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
    assert!(out(&check).contains("themes/sea.toml, line 3: you: bleu is no colour"), "{}", out(&check));
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
fn a_check_finds_what_would_keep_the_program_from_its_work() {
    let home = Home::new();
    let file = "[sampling]\npreset = \"nix\"\n[serve]\nlisten = \"nowhere\"\n[load.converters]\ndocx = \"pandoc\"\n";
    home.write(".config/sala-chat/config.toml", file);
    let check = home.run(&["config", "check"]);
    assert_eq!(check.status.code(), Some(2));
    let found =
        ["sampling.preset: No preset nix.", "serve.listen nowhere: ADDR:PORT", "load.converters.docx: it has no {in}"];
    assert!(found.iter().all(|problem| out(&check).contains(problem)), "{}", out(&check));
    // Whoever typed none is told where it stands.
    let asked = home.run(&["--demo", "-p", "hi"]);
    assert_eq!(asked.status.code(), Some(2));
    assert!(err(&asked).contains("config.toml: sampling.preset: No preset nix."), "{}", err(&asked));
    home.write(".config/sala-chat/config.toml", "[serve]\nlisten = \"nowhere\"\n");
    assert!(err(&home.run(&["--demo", "serve"])).contains("serve.listen nowhere: ADDR:PORT is needed"));
    assert!(err(&home.run(&["--demo", "serve", "--listen", "::1:x"])).contains("--listen ::1:x: a port is"));
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
    let said = "\"ctrl-O\" and \"ctrl-o\" are the same key; keep one of them";
    assert!(err(&set("keys.ctrl-O", "help")).contains(&format!("{said}. Nothing was changed")));
    // What a check would find in a value is not set.
    let before = std::fs::read_to_string(&file).unwrap();
    for (key, value, says) in [
        ("sampling.preset", "nosuch", "sampling.preset: No preset nosuch."),
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
    home.write(".config/sala-chat/config.toml", "[keys]\n\"ctrl-o\" = \"panel\"\n\"ctrl-O\" = \"help\"\n");
    let check = home.run(&["config", "check"]);
    assert_eq!((check.status.code(), out(&check).contains(said)), (Some(2), true), "{}", out(&check));
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
fn settings_that_the_models_template_cannot_do_are_told_with_what_works() {
    let home = Home::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = home.path("model");
    std::fs::create_dir_all(&folder).unwrap();
    for (from, to) in [
        ("assets/demo/config.json", "config.json"),
        ("assets/demo/tokenizer.json", "tokenizer.json"),
        ("assets/demo/tokenizer_config.json", "tokenizer_config.json"),
        ("tests/templates/released.jinja", "chat_template.jinja"),
    ] {
        std::fs::copy(root.join(from), folder.join(to)).unwrap();
    }
    let check = |mode: &str| {
        let text = format!("model.source = {:?}\nthinking.mode = {mode:?}\n", folder.display().to_string());
        home.write(".config/sala-chat/config.toml", text);
        let said = home.run(&["config", "check"]);
        assert!(said.status.success(), "{}", err(&said));
        out(&said).to_owned()
    };
    for mode in ["on", "off"] {
        let said = check(mode);
        assert!(said.contains("no switch for thinking") && said.contains("thinking.budget"), "{said}");
    }
    assert_eq!(check("auto").lines().count(), 1);
    // The built-in model can.
    home.write(".config/sala-chat/config.toml", "model.source = \"demo\"\nthinking.mode = \"off\"\n");
    assert_eq!(out(&home.run(&["config", "check"])).lines().count(), 1);
}

#[test]
fn a_model_that_is_not_there_is_code_3_and_says_how_to_get_it() {
    let home = Home::new();
    for arguments in [&["model", "path"][..], &["model", "verify"]] {
        let output = home.command(arguments).env("HF_HOME", home.path("hf")).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert!(err(&output).contains("sala-chat model download"), "{}", err(&output));
        // The built-in model has no folder.
        assert!(!err(&output).contains("--demo") && err(&output).contains("--model FOLDER"), "{}", err(&output));
    }
    std::fs::create_dir(home.path("empty")).unwrap();
    let empty = home.run(&["--model", home.path("empty").to_str().unwrap(), "-p", "hi"]);
    assert_eq!(empty.status.code(), Some(3));
    assert!(
        err(&empty).contains("empty is not a checkpoint: config.json is not in it. --model demo"),
        "{}",
        err(&empty)
    );
    let offline = home.command(&["model", "download"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert_eq!(offline.status.code(), Some(3));
    assert!(err(&offline).contains("HF_HUB_OFFLINE") && err(&offline).contains("by hand"), "{}", err(&offline));
}

#[test]
fn what_has_no_folder_and_what_is_no_id_of_the_hub_is_said() {
    let home = Home::new();
    for action in ["path", "verify"] {
        let output = home.run(&["--demo", "model", action]);
        assert_eq!(output.status.code(), Some(1), "{action}");
        assert!(err(&output).contains("the built-in model has no folder"), "{}", err(&output));
    }
    for id in ["foo", "../etc/x", "a/.b"] {
        let output = home.run(&["model", "download", id]);
        assert_eq!(output.status.code(), Some(2), "{id}");
        assert!(err(&output).ends_with(&format!("{id} is no hub id. Write OWNER/NAME\n")), "{}", err(&output));
    }
}

#[test]
fn an_installed_model_is_found_and_verified() {
    let home = Home::new();
    let repo = "hf/hub/models--openbmb--MiniCPM-SALA";
    let commit = "0123456789abcdef0123456789abcdef01234567";
    home.write(&format!("{repo}/refs/main"), commit);
    // Weights of no tensors: the length of the header, and the header.
    let weights = "\u{2}\0\0\0\0\0\0\0{}";
    let settings = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(|name| (name, "{}"));
    for (name, content) in settings.into_iter().chain([("model.safetensors", weights)]) {
        home.write(&format!("{repo}/snapshots/{commit}/{name}"), content);
    }
    let run = |arguments: &[&str]| home.command(arguments).env("HF_HOME", home.path("hf")).output().unwrap();
    let path = run(&["model", "path"]);
    assert!(out(&path).trim().ends_with(&format!("snapshots/{commit}")), "{}", err(&path));
    assert!(run(&["model", "verify"]).status.success());
    home.write(&format!("{repo}/snapshots/{commit}/config.json"), "{");
    let damaged = run(&["model", "verify"]);
    assert!(out(&damaged).contains("config.json: EOF") && damaged.status.code() == Some(3), "{}", err(&damaged));
}

#[test]
fn a_question_to_a_gpu_that_is_not_there_is_code_4() {
    let home = Home::new();
    let mut command = home.command(&["-p", "hi", "--demo", "--device", "cuda", "--no-save"]);
    // Also on a machine that has one.
    let output = command.env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("No usable NVIDIA GPU"), "{}", err(&output));
}

#[test]
fn a_preset_that_cannot_be_taken_is_told_before_anything_is_loaded() {
    let home = Home::new();
    let wrong = home.run(&["-p", "hi", "--preset", "carefull"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(
        err(&wrong),
        "sala-chat: No preset carefull. Did you mean careful? There are: default, careful, creative, greedy\n"
    );
    home.write(".config/sala-chat/presets/mine.toml", "[sampling]\ntemperature = 9");
    let wrong = home.run(&["-p", "hi", "--preset", "mine"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).ends_with("mine.toml: sampling.temperature must be 0 to 2 (got 9)\n"), "{}", err(&wrong));
}

#[test]
fn nothing_to_ask_and_nothing_to_load_is_told_at_once() {
    let home = Home::new();
    for prompt in ["", "   ", "\n\t"] {
        let output = home.run(&["-p", prompt, "--demo"]);
        assert_eq!(output.status.code(), Some(2), "{prompt:?}: {}", err(&output));
        assert!(err(&output).starts_with("sala-chat: there is no question: -p needs a text"), "{}", err(&output));
    }
    let output = home.run(&["--demo", "ask-all", " "]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).starts_with("sala-chat: there is no question: ask-all needs a text"), "{}", err(&output));
    for arguments in [&["-p", "hi", "-f", ""][..], &["-p", "hi", "-f", " "], &["", "--plain"]] {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains("a file name is empty"), "{}", err(&output));
    }
    let nothing = home.run(&["-p", "hi", "-f", "-"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(err(&nothing).contains("-f - means standard input, and there is nothing in it"), "{}", err(&nothing));
    assert!(!home.path("data/sala.db").exists(), "nothing was opened for it");
}

#[test]
fn standard_input_without_an_end_stops_at_the_limit() {
    let home = Home::new();
    let endless = std::fs::File::open("/dev/zero").unwrap();
    let mut command = home.command(&["-p", "hi", "--demo"]);
    let output = command.env("SALA_CHAT_LOAD_MAX_FILE_MIB", "3").stdin(endless).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(err(&output), "sala-chat: standard input: more than 3 MiB. Raise load.max_file_mib or split it\n");
}

#[test]
fn variables_of_any_bytes_are_told_or_left_alone() {
    use std::os::unix::ffi::OsStringExt;
    let home = Home::new();
    let bad = || OsString::from_vec(vec![b'x', 0xff, 0x1b]);
    let run = |name: OsString| home.command(&["ls"]).env(name, bad()).output().unwrap();
    for name in ["LANG", "TERM", "HF_HOME", "SALA_CHAT_LOG", "EDITOR", "TMUX", "TZ", "RUST_LOG", "NO_COLOR"] {
        assert_eq!(run(name.into()).status.code(), Some(0), "{name}: {}", err(&run(name.into())));
    }
    assert_eq!(run(bad()).status.code(), Some(0));
    let ours = run("SALA_CHAT_UI_THEME".into());
    assert_eq!(ours.status.code(), Some(2));
    assert!(err(&ours).contains("the variable SALA_CHAT_UI_THEME is not UTF-8 text"), "{}", err(&ours));
    let dir = home
        .command(&["ls"])
        .env(
            "SALA_CHAT_DATA_DIR",
            OsString::from_vec(home.path("d\u{e9}").into_os_string().into_vec().into_iter().chain([0xff]).collect()),
        )
        .output();
    assert_eq!(dir.unwrap().status.code(), Some(0), "a folder may be called anything");
}

/// A conversation as `export` writes it.
fn exported(name: &str, title: &str) -> String {
    let message = |id: i64, parent: Option<i64>, role: &str, text: &str| {
        serde_json::json!({
            "id": id, "parent": parent, "role": role, "text": text, "thinking": "", "created_ms": 1, "meta": {}
        })
    };
    let messages = [message(1, None, "user", title), message(2, Some(1), "assistant", "An answer.")];
    serde_json::json!({
        "format": "sala-chat session", "version": 1, "name": name, "messages": messages, "head": 2, "marks": [], "settings": {}
    })
    .to_string()
}

#[test]
fn an_import_says_what_is_not_there_and_numbers_a_name_that_ends_in_a_huge_number() {
    let home = Home::new();
    let missing = home.run(&["import", "/missing"]);
    assert_eq!(missing.status.code(), Some(66));
    assert!(err(&missing).starts_with("sala-chat: /missing: No such file"), "{}", err(&missing));
    let folder = home.run(&["import", "."]);
    assert!(matches!(folder.status.code(), Some(1 | 7 | 74)), "{}", err(&folder));
    for name in ["hello", "hello-18446744073709551615", "hello", "hello"] {
        let file = home.write("in.json", exported(name, "hi"));
        let output = home.run(&["import", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", err(&output));
    }
    let listed: serde_json::Value = serde_json::from_str(out(&home.run(&["ls", "--json"]))).unwrap();
    let sessions = listed.as_array().or(listed["sessions"].as_array()).unwrap();
    let mut names: Vec<&str> = sessions.iter().filter_map(|s| s["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["hello", "hello-18446744073709551615", "hello-2", "hello-3"]);
}

#[test]
fn an_import_that_is_interrupted_ends_with_130_and_leaves_nothing() {
    use rustix::process::{Pid, Signal, kill_process};
    let home = Home::new();
    let one = r#"{"chat":{"title":"New Chat","messages":[{"role":"user","content":"Hi"}]}}"#;
    let file = home.write("in.json", format!("[{}]", vec![one; 100_000].join(",")));
    let mut child = home.command(&["import", file.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    // Some of it is in the log already, and nothing is committed.
    let log = home.path("data/sala.db-wal");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&log).map_or(0, |log| log.len()) < 1 << 20 {
        assert!(child.try_wait().unwrap().is_none() && std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(err(&output).contains("stopped: nothing was imported"), "{}", err(&output));
    assert_eq!(out(&home.run(&["ls", "--json"])).trim(), "[]");
}

#[test]
fn an_export_to_standard_output_is_json_where_json_is_asked_for() {
    let home = Home::new();
    let file = home.write("in.json", exported("talk", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_str(out(&home.run(&["export", "talk", "-", "--json"]))).unwrap();
    assert_eq!(json["messages"][0]["text"], "hi");
    let text = home.run(&["export", "talk", "-", "--json", "--format", "md"]);
    assert!(out(&text).starts_with("# "), "{}", out(&text));
}

#[test]
fn a_session_open_elsewhere_is_not_removed_and_what_to_do_is_said() {
    let home = Home::new();
    let file = home.write("in.json", exported("held", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let store = Store::open(&home.path("data"), Arc::new(RealDisk), Limits::default()).unwrap();
    let record = store.sessions(SessionFilter::Live, 9).unwrap().remove(0);
    let _held = store.lock_session(record.id, &record.name).unwrap();
    let output = home.run(&["rm", "held", "--yes"]);
    assert_eq!(output.status.code(), Some(6), "{}", err(&output));
    assert!(err(&output).starts_with("sala-chat: \"held\" is in use by PID "), "{}", err(&output));
    assert!(err(&output).trim_end().ends_with(". Close it there first"), "{}", err(&output));
    // Nobody can say what to do instead, in line mode no more than with -p.
    let asked = home.run(&["--demo", "--device", "cpu", "-p", "hi", "-r", "held"]);
    let lines = home.run(&["--demo", "--device", "cpu", "--plain", "-r", "held"]);
    assert_eq!((asked.status.code(), lines.status.code()), (Some(6), Some(6)), "{}", out(&lines));
    let why = err(&asked).trim().strip_prefix("sala-chat: ").unwrap();
    assert_eq!(out(&lines).lines().last(), Some(why));
}

#[test]
fn one_of_a_thing_is_not_called_several() {
    let home = Home::new();
    let file = home.write("in.json", exported("one", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let checked = home.run(&["doctor", "--check"]);
    assert!(out(&checked).contains(": 1 session, 2 messages and 0 state files looked at."), "{}", out(&checked));
    // Nobody is asked without a terminal, and nothing goes.
    let unasked = home.run(&["rm", "one", "--json"]);
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    assert_eq!(home.run(&["rm", "one", "--yes", "--json"]).status.code(), Some(0));
    let pruned = home.run(&["prune", "--all"]);
    assert!(out(&pruned).contains("0 files; 1 session of the trash deleted for good."), "{}", out(&pruned));
}

#[test]
fn a_dry_run_names_what_would_go() {
    let home = Home::new();
    for name in ["stays", "goes"] {
        let file = home.write("in.json", exported(name, "hi"));
        assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    }
    assert_eq!(home.run(&["rm", "goes", "--yes"]).status.code(), Some(0));
    let young = home.run(&["prune", "--dry-run"]);
    assert!(out(&young).starts_with("Nothing would go.\n"), "{}", out(&young));
    // Text is promised to stay with that exception only.
    let help = home.run(&["prune", "--help"]);
    let (about, all) =
        (out(&help).lines().next().unwrap(), out(&help).split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(about.ends_with("text stays, but for the trash"), "{about}");
    assert!(all.contains("delete all sessions in the trash for good"), "{all}");
    let all = home.run(&["prune", "--dry-run", "--all"]);
    assert!(out(&all).starts_with("This would go:\nsession   goes, 2 messages, in the trash since "), "{}", out(&all));
    let json: serde_json::Value =
        serde_json::from_str(out(&home.run(&["prune", "--dry-run", "--all", "--json"]))).unwrap();
    assert_eq!((&json["sessions"], &json["trashed_sessions"]), (&serde_json::json!(["goes"]), &serde_json::json!(1)));
    assert_eq!(home.run(&["prune", "--all"]).status.code(), Some(0));
    let after = home.run(&["prune", "--dry-run", "--all"]);
    assert!(out(&after).starts_with("Nothing would go.\n"), "{}", out(&after));
}

#[test]
fn a_missing_path_is_told_before_anything_is_loaded() {
    let home = Home::new();
    home.write("books/war.txt", "text");
    let output = home.run(&["-p", "hi", "-f", "war.txt"]);
    assert_eq!(err(&output).trim(), "sala-chat: No such file: war.txt. Similar: ./books/war.txt");
    assert_eq!(output.status.code(), Some(66));
    for missing in [["-p", "hi", "-f", "none.txt"], ["-p", "hi", "-f", "*.none"], ["library", "add", "none.txt", "x"]] {
        let output = home.run(&missing);
        assert_eq!(output.status.code(), Some(66), "{missing:?}: {}", err(&output));
    }
    // What is advised is there to be done.
    for command in [["-c", "--no-save", "-p", "hi"].as_slice(), &["-r", "war", "--no-save", "-p", "hi"]] {
        let output = home.run(command);
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains("--no-save begins with nothing kept"), "{}", err(&output));
    }
    assert_eq!(home.run(&["search", " "]).status.code(), Some(2));
    for (words, command) in [
        (&["serach"][..], "search"),
        (&["quantize"], "model quantize"),
        (&["quantize", "model"], "model quantize"),
        (&["quantise", "model", "--to", "8bit"], "model quantize"),
        (&["modle", "quantize", "model"], "model quantize"),
    ] {
        let said = home.run(words);
        assert!(err(&said).trim().ends_with(&format!("id you mean: sala-chat {command}")), "{words:?}: {}", err(&said));
    }
    home.write("quantized", "text");
    let both = home.run(&["quantize"]);
    assert!(err(&both).contains("Similar: ./quantized. Or did you mean: sala-chat model quantize"), "{}", err(&both));
}

#[test]
fn completions_know_the_commands_and_a_closed_pipe_is_quiet() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(out(&home.run(&["completions", shell])).contains("completions"), "{shell}");
    }
    let mut child =
        home.command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", err(&output));
    assert_eq!(output.status.code(), Some(0));
}

/// A PDF with one line of text per page.
fn pdf(pages: &[&str]) -> Vec<u8> {
    let kids: Vec<String> = (0..pages.len()).map(|i| format!("{} 0 R", 4 + 2 * i)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    for (i, text) in pages.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
            5 + 2 * i
        ));
        let stream = format!("BT /F1 24 Tf 72 720 Td ({text}) Tj ET");
        objects.push(format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()));
    }
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", i + 1).into_bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).into_bytes());
    for offset in offsets {
        file.extend(format!("{offset:010} 00000 n \n").into_bytes());
    }
    file.extend(
        format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1).into_bytes(),
    );
    file
}

fn read_pdf(path: &Path, pages: Option<(u32, u32)>) -> Result<Gathered, SourceError> {
    let options = SourceOptions {
        base: path.parent().unwrap().to_owned(),
        max_file_bytes: 1 << 30,
        follow_symlinks: false,
        converters: BTreeMap::new(),
        force: false,
        not_text: "",
        pages,
        pdf_reader: vec![OsString::from(command::PROGRAM)],
        convert_time: Duration::from_secs(60),
    };
    gather(&[path.to_str().unwrap().to_owned()], &options, &Cancel::default())
}

#[test]
fn pdf_files_are_read_in_a_child_process() {
    let home = Home::new();
    let file = home.write("two.pdf", pdf(&["The first page", "The code is 4711"]));
    let text = |pages| read_pdf(&file, pages).unwrap().documents[0].text.clone();
    assert!(text(None).contains("The first page") && text(None).contains("The code is 4711"), "{}", text(None));
    assert!(!text(Some((2, 2))).contains("first") && text(Some((2, 2))).contains("4711"));
    let file = home.write("scan.pdf", pdf(&["", "", ""]));
    let scan = read_pdf(&file, None).unwrap_err().to_string();
    assert_eq!(scan, format!("{}: 3 pages, no text layer (probably scanned). Nothing loaded.", file.display()));
    for broken in [&b"%PDF-1.4 and nothing else"[..], &pdf(&["x"])[..200]] {
        let file = home.write("broken.pdf", broken);
        let error = read_pdf(&file, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.display())) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_folder_is_packed_with_what_lies_beside_its_weights_and_goes_on_where_it_was() {
    let home = Home::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-mixed");
    for name in ["config.json", "model.safetensors"] {
        home.write(&format!("model/{name}"), std::fs::read(fixture.join(name)).unwrap());
    }
    home.write("model/tokenizer.json", "{}");
    home.write("model/eagle3/config.json", "a head");
    home.write("model/eagle3/model.safetensors", "its weights");
    let pack = |to: &str, into: &str| home.run(&["model", "quantize", "model", "--to", to, "-o", into, "--json"]);
    let made = pack("8bit", "packed");
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let said: serde_json::Value = serde_json::from_str(out(&made)).unwrap();
    assert_eq!(said["weights"], "8-bit");
    let parts = said["parts"].as_array().unwrap();
    assert!(parts.iter().any(|p| p["part"] == "embedding") && parts.iter().any(|p| p["part"] == "layer 0"));
    let worst = parts.iter().map(|p| p["squared_error"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(worst > 1e-6 && worst < 1e-3, "{worst}");
    let read = |name: &str| std::fs::read(home.path(name)).unwrap();
    assert_eq!(read("packed/tokenizer.json"), b"{}");
    assert_eq!(read("packed/eagle3/config.json"), b"a head");
    assert_eq!(read("packed/eagle3/model.safetensors"), b"its weights");
    let config: serde_json::Value = serde_json::from_slice(&read("packed/config.json")).unwrap();
    assert_eq!(config["quantization_config"]["format"], "8-bit");
    assert!(!home.path("packed/model.safetensors").exists());

    // A run that was killed: the index is written last, a part is missing.
    let part = read("packed/part-001.safetensors");
    for name in ["part-001.safetensors", "model.safetensors.index.json"] {
        std::fs::remove_file(home.path(&format!("packed/{name}"))).unwrap();
    }
    let again = home.run(&["model", "quantize", "model", "--to", "8bit", "-o", "packed"]);
    assert_eq!(again.status.code(), Some(0), "{}", err(&again));
    assert!(out(&again).contains("Use it: sala-chat --model packed"), "{}", out(&again));
    assert_eq!(read("packed/part-001.safetensors"), part);

    let packed_otherwise = "packed holds this model as 8-bit weights";
    let file = "model/config.json is a file; the packed weights go to a folder";
    let refused = [
        ("4bit", "packed", packed_otherwise),
        ("8bit", "model", "-o is the folder itself"),
        ("8bit", "model/config.json", file),
    ];
    for (to, into, why) in refused {
        let refused = pack(to, into);
        assert_eq!(refused.status.code(), Some(2), "{}", err(&refused));
        assert!(out(&refused).contains(why), "{}", out(&refused));
    }
    // One of a version that did not say what it packed, and somebody else's.
    let mut config = config;
    config["quantization_config"].as_object_mut().unwrap().remove("weights");
    for (content, why) in [(config.to_string(), "or this one packed otherwise"), ("{}".into(), "holds another model")] {
        home.write("packed/config.json", content);
        let refused = pack("4bit", "packed");
        assert!(refused.status.code() == Some(2) && out(&refused).contains(why), "{}", out(&refused));
    }
    // Somebody's own files stay what they are.
    home.write("mine/tokenizer.json", "my own notes");
    let refused = pack("4bit", "mine");
    assert!(refused.status.code() == Some(2) && out(&refused).contains("mine holds other files"), "{}", out(&refused));
    assert_eq!(read("mine/tokenizer.json"), b"my own notes");
    let random = home.run(&["model", "quantize", "synthetic:tiny", "--to", "8bit", "-o", "x"]);
    assert!(err(&random).contains("random weights are made anew at each start"), "{}", err(&random));
    let missing = home.run(&["model", "quantize", "nowhere", "--to", "8bit", "-o", "x"]);
    assert_eq!(missing.status.code(), Some(3), "{}", err(&missing));
}

#[test]
fn the_built_in_model_in_a_folder_answers_as_the_built_in_model() {
    let home = Home::new();
    let made = home.run(&["model", "quantize", "demo", "--to", "8bit", "-o", "packed"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let question = "What is sala-chat?";
    let answer = |model: &str| {
        let asked = home.run(&["--device", "cpu", "--model", model, "-p", question, "--no-save"]);
        assert_eq!(asked.status.code(), Some(0), "{}", err(&asked));
        out(&asked).to_owned()
    };
    assert_eq!(answer("packed"), answer("demo"));
    let looked_at = home.run(&["--model", "packed", "doctor"]);
    let (begin, end) = ("every tensor as config.json asks. sala-chat (8-bit): ", " matrices kept as published (int8)");
    assert!(out(&looked_at).contains(begin) && out(&looked_at).contains(end), "{}", out(&looked_at));
    // It drafts, too.
    let told = home.run(&["--device", "cpu", "--model", "packed", "-p", question, "--no-save", "--json"]);
    let told: serde_json::Value = serde_json::from_str(out(&told)).unwrap();
    assert!(told["speculation"]["eagle_rounds"].as_u64() > Some(0), "{told}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(home.path("packed/config.json")).unwrap());
    assert_eq!(mode & 0o400, 0o400);
    let others = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(home.path("packed/tokenizer.json")).unwrap());
    assert_eq!(mode & 0o044, others & 0o044, "read by whoever may read the other files");
}

#[test]
fn weights_are_packed_by_text_that_is_one() {
    let home = Home::new();
    home.write("empty.txt", "");
    home.write("short.txt", "Anna has the keys.");
    home.write("picture.txt", [0x89, b'P', b'N', b'G', 0, 0, 0xff, 0xfe, 0, 1, 2, 3].repeat(2_000));
    let pack = |text: &str, into: &str| {
        let calibrate = format!("--calibrate={text}");
        home.run(&["--device", "cpu", "model", "quantize", "demo", "--to", "4bit", &calibrate, "-o", into, "--json"])
    };
    for (text, why) in [
        ("empty.txt", "empty"),
        ("short.txt", "too short to calibrate with"),
        ("picture.txt", "picture.txt"),
        ("no", "no"),
    ] {
        let refused = pack(text, "packed");
        assert!(refused.status.code().is_some_and(|code| code != 0 && code != 101), "{text}: {}", err(&refused));
        let said = format!("{}{}", out(&refused), err(&refused));
        assert!(said.contains(why) && said.trim_end().lines().count() == 1, "{text}: {said}");
        assert!(!home.path("packed").exists(), "{text}");
    }
    let line = |i: usize| {
        format!("On day {i} Anna counted {} boats in the harbour and wrote {} letters.\n", i * 7 % 31, i * 5 % 13)
    };
    home.write("log.txt", (0..100).map(line).collect::<String>());
    let made = pack("log.txt", "packed");
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let said: serde_json::Value = serde_json::from_str(out(&made)).unwrap();
    let parts = said["parts"].as_array().unwrap();
    for part in &parts[1..] {
        let error = |key: &str| part[key].as_f64().unwrap();
        assert!(error("output_error") <= error("output_error_uncalibrated"), "{part}");
    }
    assert!(parts[0]["output_error"].is_null(), "a table is only looked up: {}", parts[0]);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(home.path("packed/config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["calibrated"], true);
    assert!(!home.path("packed/calibration.safetensors").exists());

    // Everything is there: nothing is read again. Another text would make another folder.
    let again = pack("log.txt", "packed");
    assert_eq!((again.status.code(), out(&again)), (Some(0), out(&made)), "{}", err(&again));
    // A part that was changed since is packed again, for which the text is.
    let part = home.path("packed/part-002.safetensors");
    let mut bytes = std::fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 2].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(&part, bytes).unwrap();
    let mended = pack("log.txt", "packed");
    assert_eq!(mended.status.code(), Some(0), "{}{}", out(&mended), err(&mended));
    assert_eq!(home.run(&["model", "verify", "--model", "packed"]).status.code(), Some(0));
    home.write("log.txt", (1..101).map(line).collect::<String>());
    let other = pack("log.txt", "packed");
    let why = "packed holds this model packed with another calibration";
    assert!(other.status.code() == Some(2) && out(&other).contains(why), "{}", out(&other));
    assert!(out(&other).contains("-o FOLDER"), "{}", out(&other));
    let asked = home.run(&["--device", "cpu", "--model", "packed", "-p", "Hello"]);
    assert_eq!(asked.status.code(), Some(0), "{}", err(&asked));
}

#[test]
fn a_key_file_that_is_none_is_not_to_be_made_private() {
    let home = Home::new();
    std::fs::create_dir(home.path("keys")).unwrap();
    for file in ["keys", "/dev/null"] {
        let refused = home.run(&["--demo", "serve", "--listen", "127.0.0.1:0", "--key-file", file]);
        let said = err(&refused);
        assert!(refused.status.code() == Some(2) && said.contains("not a regular file"), "{said}");
        assert!(!said.contains("chmod"), "{said}");
    }
}
