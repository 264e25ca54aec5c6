//! Nothing from outside reaches a terminal unchecked.
//!
//! Two fences. The sources: only `cli/out.rs` has standard output and standard error, and what it writes is
//! [`sala_chat::core::sanitize::Clean`]. The program: every command is run in a terminal of its own on data full of
//! escape sequences, and what the terminal was sent is looked through byte by byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pty;
use crate::sources;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use pty::Terminal;
use sala_chat::model::{DEMO_CONFIG, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use serde_json::json;

/// What gives a way to the two streams, and how often it may stand in which file besides `cli/out.rs`.
const WAYS: [&str; 9] =
    ["print!(", "println!(", "dbg!(", "stdout()", "stderr()", "Stdout", "Stderr", "/dev/tty", "out::screen("];
/// The full screen writes its own sequences; its cells pass `ui/paint.rs`, its sequences hold no foreign text.
const SCREEN: [&str; 2] = ["cli/term.rs", "cli/run.rs"];

/// Lines of a source that could write past the check: comments and the module of tests at its foot left out.
fn ways(file: &str, source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("//") {
            continue;
        }
        // Asking what a stream is connected to writes nothing.
        let harmless = ["stdout().is_terminal()", "stderr().is_terminal()", "use_stderr()"];
        let rest = harmless.iter().fold(line.to_owned(), |line, what| line.replace(what, ""));
        for way in WAYS {
            let its_own = match way {
                "out::screen(" => SCREEN.contains(&file),
                // The terminal's modes are set through a handle that was handed over; nothing of its own is opened.
                "Stdout" => file == "cli/run.rs",
                // Standard input is followed; the terminal takes its place.
                "/dev/tty" => file == "cli/follow_stdin.rs",
                _ => false,
            };
            if rest.contains(way) && !its_own {
                found.push(format!("src/{file}:{}: {line}", i + 1));
            }
        }
    }
    found
}

#[test]
fn only_one_module_has_standard_output_and_standard_error() {
    let mut wrong = Vec::new();
    for (file, source) in sources::below("src") {
        // Modules of tests in files of their own write what they like.
        if file == "cli/out.rs" || file.ends_with("tests.rs") || file.contains("/tests/") {
            continue;
        }
        wrong.extend(ways(&file, &source));
    }
    assert!(wrong.is_empty(), "print through cli/out.rs (Context::print, Context::note):\n{}", wrong.join("\n"));
}

#[test]
fn the_fence_sees_every_way_out() {
    for line in [
        "    println!(\"{name}\");",
        "eprint!(\"x\");",
        "let mut out = std::io::stdout().lock();",
        "writeln!(io::stderr(), \"{e}\")?;",
        "use std::io::Stdout;",
        "OpenOptions::new().write(true).open(\"/dev/tty\")",
        "super::out::screen().write_all(name)",
    ] {
        assert_eq!(ways("cli/x.rs", line).len(), 1, "{line}");
    }
    assert!(ways("cli/x.rs", "// println!(\"\")\nif io::stdout().is_terminal() {}").is_empty());
    assert!(ways("cli/x.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    println!();").is_empty());
}
/// A title, a colour, a bell, a command in C1, a turned direction, a line of its own: what a terminal would obey, around
/// a word to search for.
const NASTY: &str = "nasty\x1b]0;PWNED\x07\x1b[31m\u{9b}5m\u{202e}\u{2066}\x7f\r\u{2028}\u{e0041}word";

/// What must not be in the bytes that a terminal was sent. The program's own are the end of a line of progress and, in
/// the full screen, its modes and colours.
fn hostile(bytes: &[u8], screen: bool) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let own = |rest: &str| {
        rest.starts_with("\x1b[K") || (screen && !rest.starts_with("\x1b]0;") && !rest.starts_with("\x1b[5m"))
    };
    for (at, c) in text.char_indices() {
        let bad = match c {
            '\n' | '\t' => false,
            // The terminal's own line ends, and progress that is written over.
            '\r' => false,
            '\x1b' => !own(&text[at..]),
            '\x07' => !screen,
            c => {
                c.is_control()
                    || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{e0000}'..='\u{e007f}')
            }
        };
        if bad {
            let end = text[at..].char_indices().nth(60).map_or(text.len(), |(n, _)| at + n);
            return Some(format!("{:?} before {:?}", c, &text[at..end]));
        }
    }
    // A carriage return of its own would let one line hide another.
    text.contains("\x7f\r").then(|| "the raw text".to_owned())
}

/// A home full of hostile names.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        home.write(&format!("{NASTY}.txt"), "text");
        home.write(&format!("{NASTY}.bin"), "a\0b");
        home.write(&format!("{NASTY}.docx"), "PK\0");
        home.write(&format!("{NASTY}.pdf"), "%PDF-1.4 nothing");
        home.write(&format!("folder/{NASTY}"), "\0");
        home.write("broken.json", format!("{{\"{NASTY}\": "));
        home.write("odd.toml", format!("[\"{}\"]\n\"{}\" = 1\n", toml(NASTY), toml(NASTY)));
        home.write("syntax.toml", format!("[ui]\ntheme = \"{NASTY}\n"));
        home.write(
            "value.toml",
            format!("[ui]\ntheme = \"{}\"\n[load.converters]\nx = \"{}\"\n", toml(NASTY), toml(NASTY)),
        );
        home.write(".config/sala-chat/presets/mine.toml", format!("[sampling]\n\"{}\" = 1\n", toml(NASTY)));
        let model = |dir: &str, index: serde_json::Value, config: &str, template: &str| {
            home.write(&format!("{dir}/config.json"), config);
            home.write(&format!("{dir}/tokenizer.json"), DEMO_TOKENIZER);
            home.write(&format!("{dir}/tokenizer_config.json"), DEMO_TOKENIZER_CONFIG);
            home.write(&format!("{dir}/chat_template.jinja"), template);
            home.write(&format!("{dir}/model.safetensors.index.json"), index.to_string());
        };
        let shard = json!({ "weight_map": { "a": format!("{}.safetensors", NASTY.replace('/', "")) } });
        let heard = "{{ messages[0].content }}";
        model("shard", shard.clone(), DEMO_CONFIG, heard);
        model("spec", shard.clone(), &json!({ "model_type": NASTY }).to_string(), heard);
        model("template", shard, DEMO_CONFIG, &format!("{{% {NASTY} %}}"));
        home
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The program in a terminal. `typed` answers a question that ends with what is before it.
    fn start(&self, arguments: &[&str], variables: &[(&str, OsString)]) -> Terminal {
        let mut command = pty::program(self.0.path(), arguments);
        for (name, value) in variables {
            command.env(name, value);
        }
        Terminal::spawn(command, 100, 30)
    }

    fn shown(&self, arguments: &[&str], variables: &[(&str, OsString)]) -> Vec<u8> {
        let mut terminal = self.start(arguments, variables);
        if arguments == ["rm", "last"] {
            terminal.wait_for("y/N");
            terminal.send(b"n\n");
        }
        terminal.exit();
        terminal.raw()
    }
}

fn toml(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { format!("\\u{:04X}", c as u32) } else { c.to_string() }).collect()
}

/// A session as `export` writes it, every field of it hostile.
fn session() -> String {
    let message = |id: i64, parent: Option<i64>, role: &str, meta: serde_json::Value| json!({ "id": id, "parent": parent, "role": role, "text": format!("{NASTY}\n{NASTY}"), "thinking": NASTY, "created_ms": 1, "meta": meta });
    let document = json!({ "name": NASTY, "path": NASTY, "hash": "0123", "tokens": 3, "lines": 2, "complete": true });
    json!({
        "format": "sala-chat session", "version": 1, "name": NASTY, "settings": {}, "head": 3,
        "messages": [
            message(1, None, "document", json!({ "document": document })),
            message(2, Some(1), "user", json!({})),
            message(3, Some(2), "assistant", json!({ "model": NASTY })),
        ],
        "marks": [{ "name": NASTY, "message": 2 }],
    })
    .to_string()
}

#[test]
fn no_command_sends_hostile_text_to_a_terminal() {
    let home = Home::new();
    let file = home.write(&format!("{NASTY}.json"), session());
    let missing = format!("missing-{NASTY}");
    let (text, model) = (format!("{NASTY}.txt"), ["--model", "shard"]);
    let rows: &[&[&str]] = &[
        &["import", &file],
        &["import", &file, "--json"],
        &["import", &missing],
        &["import", "broken.json"],
        &["ls"],
        &["ls", "--sizes"],
        &["ls", "--json"],
        &["show", "last"],
        &["show", "last", "--json"],
        &["show", NASTY],
        &["show", &missing],
        &["show", &missing, "--json"],
        &["search", "word"],
        &["search", "word", "--json"],
        &["search", &missing],
        &["export", "last", "-"],
        &["export", "last", "-", "--format", "json"],
        &["export", "last", "-", "--format", "txt"],
        &["export", "last", &text],
        &["export", "last", &format!("{NASTY}/x.md")],
        &["rm", "last"],
        &["rm", "last", "--yes"],
        &["prune", "--dry-run"],
        &["prune", "--dry-run", "--json"],
        &["prune", "--all", "--yes"],
        &["import", &file],
        &["library", "ls"],
        &["library", "rm", NASTY],
        &["library", "add", &missing],
        &["config", "show", "--config", "value.toml", "--origin"],
        &["config", "show", "--config", "odd.toml"],
        &["config", "check", "--config", "odd.toml"],
        &["config", "check", "--config", "odd.toml", "--json"],
        &["config", "check", "--config", "syntax.toml"],
        &["config", "check", "--config", "value.toml"],
        &["config", "set", NASTY, "1"],
        &["config", "set", "ui.theme", NASTY],
        &["config", "path", "--config", &text],
        &["ls", "--config", "odd.toml"],
        &["ls", "--config", &missing],
        &["ls", "--data-dir", &text],
        &["model", "path", "--model", NASTY],
        &["model", "verify", "--model", NASTY],
        &["model", "verify", model[0], model[1]],
        &["doctor", "--model", "spec"],
        &["bench", "--model", NASTY],
        &["-p", "hi", "--model", NASTY],
        &["-p", "hi", "--model", "shard", "--no-save"],
        &["-p", "hi", "--model", "spec", "--no-save"],
        &["-p", "hi", "--model", "template", "--no-save"],
        &["-p", "hi", "--demo", "--draft", NASTY, "--no-save"],
        &["-p", "hi", "--demo", "--preset", NASTY],
        &["-p", "hi", "--demo", "--preset", "mine"],
        &["-p", "hi", "--demo", "-r", &missing],
        &["-p", "hi", "--demo", "-f", &missing],
        &["-p", "hi", "--demo", "-f", "nasty"],
        &["-p", "hi", "--demo", "-f", "*.nothing\x1b[31m"],
        &["-p", "hi", "--demo", "-f", "[\x1b[31m*"],
        &["-p", "hi", "--demo", "--no-save", "-f", &format!("{NASTY}.bin")],
        &["-p", "hi", "--demo", "--no-save", "-f", &format!("{NASTY}.docx")],
        &["-p", "hi", "--demo", "--no-save", "-f", &format!("{NASTY}.pdf")],
        &["-p", "hi", "--demo", "--no-save", "-f", "folder"],
        &["-p", "hi", "--demo", "--no-save", "-f", &text, "--max-tokens", "4"],
        &["-p", "hi", "--demo", "--no-save", "-f", &text, "--max-tokens", "4", "--json"],
        &["-p", "hi", "--demo", "--no-save", "-f", &text, "--max-tokens", "4", "--jsonl"],
        &["-p", NASTY, "--demo", "--no-save", "--max-tokens", "8", "--raw"],
        &[NASTY],
        &["--nasty\x1b[31m"],
        &["--spec", NASTY, "ls"],
        &["completions", NASTY],
    ];
    let mut wrong = Vec::new();
    for row in rows {
        if *row == ["ls"] {
            let shown = home.shown(row, &[]);
            // The name was made one of a session when it came in, the title is what was written.
            assert!(String::from_utf8_lossy(&shown).contains("PWNED"), "{shown:?}");
        }
        if let Some(what) = hostile(&home.shown(row, &[]), false) {
            wrong.push(format!("{row:?}: {what}"));
        }
    }
    let bad = OsString::from_vec([NASTY.as_bytes(), b"\xff"].concat());
    for (name, value) in [
        ("SALA_CHAT_LOG", NASTY.into()),
        ("SALA_CHAT_UI_THEME", NASTY.into()),
        ("SALA_CHAT_UI_THEME", bad.clone()),
        ("SALA_CHAT_NASTY\x1b[31m", "1".into()),
        ("SALA_CHAT_CONFIG", bad.clone()),
        ("TERM", NASTY.into()),
        ("TZ", bad),
    ] {
        for row in [&["ls"][..], &["doctor", "--model", "spec"], &["config", "show", "--origin"]] {
            if let Some(what) = hostile(&home.shown(row, &[(name, value.clone())]), false) {
                wrong.push(format!("{name} and {row:?}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_chat_sends_hostile_text_to_a_terminal() {
    let home = Home::new();
    let file = home.write("in.json", session());
    let imported = home.shown(&["import", &file], &[]);
    assert!(String::from_utf8_lossy(&imported).contains("3 messages imported"), "{imported:?}");
    const LIST: &str = "Esc closes";
    // And what the full screen shows when it is done.
    let commands = [
        ("/sessions", LIST),
        ("/docs", LIST),
        ("/timeline", LIST),
        ("/search word", LIST),
        ("/load nasty", "No such file"),
        ("/open nasty", "No document nasty"),
        ("/resume nastyy", "No session is called"),
        ("/export folder", "folder is a folder"),
    ];
    for plain in [true, false] {
        let mode: &[&str] = if plain { &["--plain", "--demo", "-c"] } else { &["--demo", "-c"] };
        let mut terminal = home.start(mode, &[]);
        terminal.wait_for("word");
        for (command, shown) in commands {
            terminal.line(command);
            // A line of text mode waits for no key.
            if !plain {
                terminal.wait_for(shown);
            }
            if !plain && shown == LIST {
                terminal.send(b"\x1b");
                terminal.wait("the list to close", |text| !text.contains(LIST));
            } else if !plain {
                // A refused command stays in the input.
                terminal.send(b"\x05\x15");
            }
        }
        terminal.line("/quit");
        terminal.exit();
        assert_eq!(hostile(&terminal.raw(), !plain), None);
    }
}
