//! The real binary, as a shell sees it: arguments, settings, exit codes, output. The built-in model is the largest that is loaded here.

use crate::command;
mod models;
mod pdfs;
mod sessions;
mod settings;
mod signals;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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
    let text = out(&version);
    assert!(text.starts_with(concat!("sala-chat ", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains("\nbuild: backends CPU") && text.contains("; data format 2\n"), "{text}");
    assert!(["\nsystem: linux ", "\ngpu: ", "\nmodel: "].iter().all(|line| text.contains(line)), "{text}");
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
fn a_measurement_without_room_is_refused_at_the_start() {
    let home = Home::new();
    for (line, says) in [
        ("bench --context 0", "a whole number from 1 to 1048576"),
        ("bench --context 512,1e30", "'1e30' for '--context"),
        ("bench --decode -1", "a whole number from 2 to 32768"),
        ("bench sessions --context 512,1024", "--context takes one length here, the session's (got 2)"),
        ("bench sessions --context 1048576", "--context must be 1 to 924784 here (got 1048576)"),
        ("--ctx 4096 bench sessions --context 9000", "--context must be 1 to 4096 here (got 9000)"),
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
fn a_question_to_a_gpu_that_is_not_there_is_code_4() {
    let home = Home::new();
    let mut command = home.command(&["-p", "hi", "--demo", "--device", "cuda", "--no-save"]);
    // Also on a machine that has one.
    let output = command.env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("no usable NVIDIA GPU"), "{}", err(&output));
}

#[test]
fn an_empty_question_or_file_name_fails_at_once() {
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
    assert!(err(&nothing).contains("-f - reads standard input, which is empty"), "{}", err(&nothing));
    assert!(!home.path("data/sala.db").exists(), "nothing was opened for it");
}

#[test]
fn asking_a_library_that_is_not_there_makes_none() {
    let home = Home::new();
    let output = home.run(&["--demo", "--device", "cpu", "ask-all", "What is due in May?"]);
    let expected = "sala-chat: there is no document in the library. sala-chat library add FILE puts one there\n";
    assert_eq!((output.status.code(), err(&output)), (Some(1), expected));
    assert!(!home.path("data").exists());
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
fn variables_of_any_bytes_are_reported_or_ignored() {
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

#[test]
fn a_missing_path_is_reported_before_anything_is_loaded() {
    let home = Home::new();
    home.write("books/war.txt", "text");
    let output = home.run(&["-p", "hi", "-f", "war.txt"]);
    assert_eq!(err(&output).trim(), "sala-chat: no such file: war.txt. Similar: ./books/war.txt");
    assert_eq!(output.status.code(), Some(66));
    for missing in [["-p", "hi", "-f", "none.txt"], ["-p", "hi", "-f", "*.none"], ["library", "add", "none.txt", "x"]] {
        let output = home.run(&missing);
        assert_eq!(output.status.code(), Some(66), "{missing:?}: {}", err(&output));
    }
    // What is advised is there to be done.
    for command in [["-c", "--no-save", "-p", "hi"].as_slice(), &["-r", "war", "--no-save", "-p", "hi"]] {
        let output = home.run(command);
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains("--no-save starts without a session"), "{}", err(&output));
    }
    assert_eq!(home.run(&["search", " "]).status.code(), Some(2));
    for (words, command) in [
        (&["serach"][..], "search"),
        (&["quantize"], "model quantize"),
        (&["quantize", "model"], "model quantize"),
        (&["quantise", "model", "--to", "8bit"], "model quantize"),
        (&["modle", "quantize", "model"], "model quantize"),
    ] {
        let refused = home.run(words);
        assert!(
            err(&refused).trim().ends_with(&format!("id you mean: sala-chat {command}")),
            "{words:?}: {}",
            err(&refused)
        );
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

#[test]
fn a_key_file_that_is_none_is_not_to_be_made_private() {
    let home = Home::new();
    std::fs::create_dir(home.path("keys")).unwrap();
    for file in ["keys", "/dev/null"] {
        let refused = home.run(&["--demo", "serve", "--listen", "127.0.0.1:0", "--key-file", file]);
        let stderr = err(&refused);
        assert!(refused.status.code() == Some(2) && stderr.contains("not a regular file"), "{stderr}");
        assert!(!stderr.contains("chmod"), "{stderr}");
    }
}
