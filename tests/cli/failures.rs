//! Failures as a shell sees them: the same damage has the same exit code everywhere, and one line names the cause and the remedy.

use crate::command;

use std::path::{Path, PathBuf};
use std::process::Output;

/// A folder that holds everything the program reads and writes.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn run(&self, arguments: &[&str]) -> Output {
        command::command(self.0.path(), arguments).output().unwrap()
    }
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The built-in model as a folder, `edit`ed.
fn model(home: &Home, edit: impl FnOnce(&Path)) {
    let (from, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo"), home.0.path().join("model"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let files = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"];
    for file in files.into_iter().chain(["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]) {
        std::fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    edit(&folder);
}

/// Writes a JSON file of a folder again.
fn edited(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    edit(&mut json);
    std::fs::write(path, json.to_string()).unwrap();
}

#[test]
fn whatever_is_wrong_with_a_model_folder_has_one_code() {
    let home = Home::new();
    let ask: &[&str] = &["-p", "hi", "--no-save", "--device", "cpu", "--model", "model"];
    let pack: &[&str] = &["model", "quantize", "model", "--to", "8bit", "-o", "packed"];
    let judge: &[&str] = &["eval", "--skip", "needles,consistency", "--device", "cpu", "--model", "model"];
    let verify: &[&str] = &["model", "verify", "--model", "model"];
    let check = |what: &str, commands: &[&[&str]], says: &str| {
        for command in commands {
            let output = home.run(command);
            assert_eq!(output.status.code(), Some(3), "{what}, {command:?}: {} {}", out(&output), err(&output));
            assert!(err(&output).contains(says), "{what}, {command:?}: {}", err(&output));
        }
    };
    let shard = "model-00002-of-00002.safetensors";
    model(&home, |folder| std::fs::write(folder.join(shard), "no tensors").unwrap());
    check("damaged weights", &[ask, pack, judge, verify], "damaged");
    let config = |edit: fn(&mut serde_json::Value)| model(&home, |folder| edited(&folder.join("config.json"), edit));
    config(|c| c["num_hidden_layers"] = (-1).into());
    check("a value out of range", &[ask, pack, judge], "num_hidden_layers");
    config(|c| drop(c.as_object_mut().unwrap().remove("hidden_size")));
    check("a value that is missing", &[ask, pack, judge], "hidden_size");
    model(&home, |folder| std::fs::write(folder.join("config.json"), "{").unwrap());
    check("no JSON", &[ask, pack, judge, verify], "");
    let template =
        |text: &'static str| model(&home, |folder| std::fs::write(folder.join("chat_template.jinja"), text).unwrap());
    template("{% if %}");
    check("a template that does not compile", &[ask], "template");
    template(
        "{{ messages[-1].content }}{% if messages[-1].content == 'hi' %}{{ raise_exception('not with me') }}{% endif %}",
    );
    check("a template that fails", &[ask], "not with me");
    model(&home, |folder| {
        std::fs::write(folder.join("model.safetensors.index.json"), r#"{"weight_map": {}}"#).unwrap()
    });
    check("an empty index", &[ask, pack, judge], "its model.safetensors.index.json names no tensors");
}

#[test]
fn a_file_that_is_to_be_read_and_is_not_there_has_one_code() {
    let home = Home::new();
    home.write("book.txt", "It was the best of times, it was the worst of times.".repeat(20));
    let judge = |more: &[&str]| {
        home.run(&[&["eval", "--demo", "--skip", "needles,consistency", "--device", "cpu"], more].concat())
    };
    let nothing = judge(&[]);
    assert_eq!(nothing.status.code(), Some(2), "{}", out(&nothing));
    assert!(err(&nothing).starts_with("sala-chat: nothing is left to judge: name --against"), "{}", err(&nothing));
    let missing = judge(&["nosuch"]);
    assert_eq!(missing.status.code(), Some(66), "{}", err(&missing));
    assert!(err(&missing).starts_with("sala-chat: nosuch: not found"), "{}", err(&missing));
    assert_eq!(home.run(&["doctor", "--fixtures", "nosuch", "--device", "cpu"]).status.code(), Some(66));
    // A text in the place of reference logits.
    let text = judge(&["book.txt"]);
    let stderr = err(&text);
    assert!(
        stderr.starts_with("sala-chat: book.txt: not a file of reference logits (") && stderr.contains("--script"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("book.txt").count(), 1, "{stderr}");
    assert!(!stderr.contains("download"), "{stderr}");
    let folder = judge(&["."]);
    assert!(err(&folder).starts_with("sala-chat: .: not a regular file"), "{}", err(&folder));
}

#[test]
fn an_export_with_state_writes_a_file_of_its_own_form_or_nothing() {
    let home = Home::new();
    for (more, says) in [
        (&["-"][..], "--with-state writes a file: name one in place of -"),
        (&["out.sala", "--tree"], "--tree"),
        (&["out.sala", "--format", "md"], "--format"),
    ] {
        let output = home.run(&[&["export", "last", "--with-state"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", err(&output));
        assert!(err(&output).contains(says), "{more:?}: {}", err(&output));
    }
    assert!(!home.0.path().join("-").exists() && !home.0.path().join("out.sala").exists());
}

#[test]
fn samples_go_to_a_folder() {
    let home = Home::new();
    home.write("book.txt", "It was the best of times, it was the worst of times.");
    let capture = home.run(&["draft", "capture", "--demo", "--docs", "book.txt", "--out", "book.txt"]);
    assert_eq!(capture.status.code(), Some(2), "{}", err(&capture));
    assert!(
        err(&capture).contains("book.txt is a file; samples go to a folder. Name another one: --out DIR"),
        "{}",
        err(&capture)
    );
}

#[test]
fn looking_at_a_data_folder_that_is_not_there_does_not_make_it() {
    let home = Home::new();
    for command in [
        &["ls"][..],
        &["show", "x"],
        &["search", "x"],
        &["export", "x", "x.md"],
        &["library", "ls"],
        &["prune", "--dry-run"],
        &["prune", "--yes"],
        &["rm", "x", "--yes"],
        &["library", "rm", "x"],
        &["library", "prune"],
        &["doctor", "--check"],
        &["-r", "x"],
        &["-r", "x", "-p", "hi"],
        &["-c", "-p", "hi"],
    ] {
        let output = home.run(&[&["--data-dir", "a/b"], command].concat());
        assert!(matches!(output.status.code(), Some(0 | 1)), "{command:?}: {}", err(&output));
        assert!(err(&output).contains("a/b does not exist: nothing is kept there."), "{command:?}: {}", err(&output));
        // That line alone.
        assert_eq!((out(&output), err(&output).lines().count()), ("", 1), "{command:?}: {}", err(&output));
        assert!(!home.0.path().join("a").exists(), "{command:?}");
    }
    // The usual folder is made when something is to be kept.
    let fresh = home.run(&["ls"]);
    assert_eq!((out(&fresh), err(&fresh)), ("No sessions yet. sala-chat starts one.\n", ""));
    assert_eq!(out(&home.run(&["--data-dir", "a/b", "ls", "--json"])), "[]\n");
    for command in [&["rm", "x", "--yes", "--json"][..], &["prune", "--json"]] {
        let output = home.run(&[&["--data-dir", "a/b"], command].concat());
        assert!(out(&output).contains("a/b does not exist") && !home.0.path().join("a").exists(), "{}", out(&output));
    }
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["-p", "hi"]] {
        let output = home.run(&[&["--demo", "--data-dir", "/proc/none"], command].concat());
        assert_eq!(output.status.code(), Some(74));
        assert!(err(&output).contains("; choose another with --data-dir"), "{command:?}: {}", err(&output));
    }
}

#[test]
fn a_session_in_the_trash_is_reported_as_such() {
    let home = Home::new();
    let nothing = out(&home.run(&["prune", "--dry-run"])).to_owned();
    assert!(nothing.contains("Left in the trash: 0 sessions.\nNothing was removed."), "{nothing}");
    let message = |id: i64, parent: Option<i64>, text: &str| {
        serde_json::json!({
            "id": id, "parent": parent, "role": "user", "text": text, "thinking": "", "created_ms": 1, "meta": {}
        })
    };
    let session = serde_json::json!({
        "format": "sala-chat session", "version": 1, "name": "old talk", "head": 999,
        "messages": [message(1, None, "one"), message(2, Some(1), "two"), message(3, Some(1), "three")],
    });
    let file = home.write("in.json", session.to_string());
    // Its head message is not in the file.
    let imported = home.run(&["import", file.to_str().unwrap()]);
    assert!(out(&imported).contains("is missing from it; the last one is used."), "{}", out(&imported));
    let shown = home.run(&["show", "old talk"]);
    assert!(out(&shown).contains("one") && out(&shown).contains("three"), "{}", out(&shown));
    assert_eq!(home.run(&["rm", "old talk", "--yes"]).status.code(), Some(0));
    for command in [&["show", "old talk"][..], &["export", "old talk", "x.md"]] {
        let gone = home.run(command);
        assert_eq!(gone.status.code(), Some(1));
        let expected = "sala-chat: \"old talk\" is in the trash. Back with: sala-chat -r 'old talk'";
        assert_eq!(err(&gone).trim(), expected);
    }
    assert!(err(&home.run(&["show", "nothing"])).contains("no session called \"nothing\""));
    // Where another one has its name, it is there by its number.
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let listed = home.run(&["ls", "--trash", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(out(&listed)).unwrap();
    let [row] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    let (name, trashed, expires) = (row["name"].as_str(), row["trashed_ms"].as_i64(), row["goes_ms"].as_i64());
    assert_eq!((name, expires.unwrap() - trashed.unwrap()), (Some("old talk"), 7 * 24 * 3600 * 1000));
    let text = home.run(&["ls", "--trash"]);
    assert!(out(&text).contains("old talk") && out(&text).contains("-r ID"), "{}", out(&text));
    let id = row["id"].to_string();
    let back = home.run(&["--demo", "--device", "cpu", "--max-tokens", "4", "--json", "-p", "hi", "-r", &id]);
    let back: serde_json::Value = serde_json::from_str(out(&back)).unwrap();
    assert_eq!(back["session"], "old talk-2");
    assert_eq!(out(&home.run(&["ls", "--trash"])).trim(), "Nothing is in the trash.");
}

#[test]
fn a_changed_packed_folder_is_named_and_a_busy_one_is_kept() {
    let home = Home::new();
    let pack: &[&str] = &["model", "quantize", "demo", "--to", "8bit", "-o", "packed"];
    let packed = home.0.path().join("packed");
    let claim = sala_chat::model::quantize::Claim::take(&packed).unwrap();
    let refused = home.run(pack);
    assert_eq!(refused.status.code(), Some(6), "{}", err(&refused));
    let process = std::process::id();
    let stderr = format!("sala-chat: packed is being packed into by process {process}; wait for it, or");
    assert!(err(&refused).starts_with(&stderr) && err(&refused).trim_end().lines().count() == 1, "{}", err(&refused));
    drop(claim);
    let verify = || home.run(&["model", "verify", "--model", "packed"]);
    let made = home.run(pack);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let whole = verify();
    assert_eq!(whole.status.code(), Some(0), "{}", err(&whole));
    assert!(out(&whole).contains("part-003.safetensors: as it was written\n"), "{}", out(&whole));
    assert!(!out(&whole).contains("--hub") && !out(&whole).contains(".lock"), "{}", out(&whole));

    let part = packed.join("part-003.safetensors");
    let whole_part = std::fs::read(&part).unwrap();
    let mut bytes = whole_part.clone();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 2].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(&part, bytes).unwrap();
    let damaged = verify();
    assert_eq!(damaged.status.code(), Some(3), "{}", out(&damaged));
    assert!(out(&damaged).contains("part-003.safetensors: it is not as it was written\n"), "{}", out(&damaged));
    let stderr = err(&damaged);
    assert!(
        stderr.contains(
            "sala-chat: part-003.safetensors in packed: it is not as it was written. Run its sala-chat model quantize into a new folder"
        ),
        "{stderr}"
    );
    let already = home.run(pack);
    assert_eq!(already.status.code(), Some(0), "{}", err(&already));
    let line = "demo is packed as 8-bit weights in packed already. Check it: sala-chat model verify --model packed\n";
    assert_eq!(out(&already), line);
    assert_eq!(verify().status.code(), Some(3), "nothing is packed");
    std::fs::write(&part, whole_part).unwrap();
    assert_eq!(verify().status.code(), Some(0));

    // A link to itself: what cannot be read may be whole, and stays.
    let aside = home.0.path().join("aside");
    std::fs::rename(&part, &aside).unwrap();
    std::os::unix::fs::symlink(&part, &part).unwrap();
    let unread = verify();
    assert_eq!(unread.status.code(), Some(3), "{}", out(&unread));
    assert!(out(&unread).contains("part-003.safetensors: cannot be read: "), "{}", out(&unread));
    let stderr = err(&unread);
    assert!(
        stderr.contains("part-003.safetensors in packed: cannot be read: ") && !stderr.contains("damaged"),
        "{stderr}"
    );
    std::fs::rename(&aside, &part).unwrap();

    // As an earlier version finished it, without hashes.
    edited(&packed.join("model.safetensors.index.json"), |index| {
        index["metadata"].as_object_mut().unwrap().remove("hashes");
    });
    let unknown = verify();
    assert_eq!(unknown.status.code(), Some(0), "{}", err(&unknown));
    assert!(out(&unknown).contains("part-003.safetensors: not verified: "), "{}", out(&unknown));
    assert!(!format!("{}{}", out(&unknown), err(&unknown)).contains("--hub"), "{}", err(&unknown));
}

#[test]
fn weights_left_by_a_killed_start_are_counted_when_removed() {
    let home = Home::new();
    assert_eq!(home.run(&["prune"]).status.code(), Some(0));
    let folder = format!("data/weights/{:032x}", 7);
    home.write(&format!("{folder}/.part-a1B2c3"), "torn");
    home.write(&format!("{folder}/.tmpA1b2C3"), "torn, too");
    let doctor = home.run(&["doctor"]);
    assert!(out(&doctor).contains(" of packed weights in "), "{}", out(&doctor));
    let pruned = home.run(&["prune"]);
    assert!(out(&pruned).contains("freed in 2 files."), "{}{}", out(&pruned), err(&pruned));
    assert!(!home.0.path().join(folder).exists());
}

#[test]
fn a_settings_check_reports_everything_at_once() {
    let home = Home::new();
    let file = "[sampling]\ntemperature = 99\n[serve]\nlisten = \"nowhere\"\n[load.converters]\ndocx = \"pandoc\"\n\
        [keys]\n\"ctrl-o\" = \"fly\"\n\"a\" = \"panel\"\n";
    home.write(".config/sala-chat/config.toml", file);
    let check = home.run(&["config", "check"]);
    assert_eq!((check.status.code(), out(&check).lines().count()), (Some(2), 5), "{}", out(&check));
    for says in [
        "sampling.temperature",
        "serve.listen nowhere: ADDR:PORT",
        "load.converters.docx: it has no {in}",
        "no action is called \"fly\"",
        "\"a\" is needed for typing",
    ] {
        assert!(out(&check).contains(says), "{says}: {}", out(&check));
    }
}

#[test]
fn a_file_that_may_not_grow_is_a_reported_failure() {
    let home = Home::new();
    let to = std::fs::File::create(home.0.path().join("manual.1")).unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$0\" manual", command::PROGRAM]).env_clear().env("HOME", home.0.path());
    let output = shell.stdin(std::process::Stdio::null()).stdout(to).output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(err(&output).starts_with("sala-chat: standard output: File too large"), "{}", err(&output));
}

#[cfg(feature = "cuda")]
#[test]
fn without_a_gpu_the_saved_texts_are_checked_all_the_same() {
    let home = Home::new();
    let mut command = command::command(home.0.path(), &["doctor", "--check", "--kernels"]);
    let output = command.env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap();
    assert!(out(&output).contains("Everything is as it was saved."), "{}{}", out(&output), err(&output));
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
}

#[test]
fn a_list_for_programs_is_complete_or_marked_as_partial() {
    let home = Home::new();
    let name = "a-name-that-is-rather-longer-than-its-column";
    let message = |id: u64| {
        serde_json::json!({
            "id": id, "parent": (id > 1).then(|| id - 1), "role": "user", "text": format!("needle {id}"),
            "thinking": "", "created_ms": 1, "meta": {}
        })
    };
    let session = serde_json::json!({
        "format": "sala-chat session", "version": 1, "name": name, "head": 201,
        "messages": (1..=201).map(message).collect::<Vec<_>>(),
    });
    let file = home.write("in.json", session.to_string());
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let listed = home.run(&["ls"]);
    assert!(out(&listed).contains(&format!("{name} ")), "{}", out(&listed));
    let found = home.run(&["search", "needle"]);
    assert_eq!(out(&found).lines().count(), 200);
    assert!(err(&found).contains("more than 200 hits: the first 200 are shown"), "{}", err(&found));
    let json = home.run(&["search", "needle", "--json"]);
    let hits: Vec<serde_json::Value> = serde_json::from_str(out(&json)).unwrap();
    assert!(hits.len() == 200 && err(&json) == err(&found), "{}", err(&json));
    let one = home.run(&["search", "needle 201"]);
    assert_eq!((out(&one).lines().count(), err(&one)), (1, ""));
    let gone = home.run(&["rm", "-y", name, name]);
    assert_eq!(out(&gone).matches(name).count(), 1, "{}", out(&gone));
}

#[test]
fn standard_input_has_two_names_and_devices_get_advice() {
    let home = Home::new();
    for name in ["-", "/dev/stdin"] {
        let output = home.run(&["-p", "hi", "-f", name]);
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains("reads standard input, which is empty"), "{}", err(&output));
    }
    let device = home.run(&["-p", "hi", "-f", "/dev/zero"]);
    assert!(err(&device).contains("or pipe it in: COMMAND | sala-chat -p TEXT"), "{}", err(&device));
}
