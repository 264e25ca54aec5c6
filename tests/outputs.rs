//! Nothing from outside reaches a terminal unchecked.
//!
//! Two fences. The sources: only `shell/out.rs` has standard output and standard error, and what it writes is
//! [`sala_chat::text::sanitize::Clean`]. The program: every command is run in a terminal of its own on data full of
//! escape sequences, and what the terminal was sent is looked through byte by byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// What gives a way to the two streams, and how often it may stand in which file besides `shell/out.rs`.
const WAYS: [&str; 9] =
    ["print!(", "println!(", "dbg!(", "stdout()", "stderr()", "Stdout", "Stderr", "/dev/tty", "out::screen("];
/// The full screen writes its own sequences; its cells pass `ui/paint.rs`, its sequences hold no foreign text.
const SCREEN: [&str; 2] = ["shell/term.rs", "shell/run.rs"];

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
        let rest = line.replace("stdout().is_terminal()", "").replace("stderr().is_terminal()", "");
        for way in WAYS {
            let its_own = match way {
                "out::screen(" => SCREEN.contains(&file),
                // The terminal's modes are set through a handle that was handed over; nothing of its own is opened.
                "Stdout" => file == "shell/run.rs",
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for path in files {
        let file = path.strip_prefix(&root).unwrap().to_str().unwrap();
        // Modules of tests in files of their own write what they like.
        if file == "shell/out.rs" || file.ends_with("tests.rs") || file.contains("/tests/") {
            continue;
        }
        wrong.extend(ways(file, &std::fs::read_to_string(&path).unwrap()));
    }
    assert!(wrong.is_empty(), "print through shell/out.rs (Context::print, Context::note):\n{}", wrong.join("\n"));
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
        assert_eq!(ways("shell/x.rs", line).len(), 1, "{line}");
    }
    assert!(ways("shell/x.rs", "// println!(\"\")\nif io::stdout().is_terminal() {}").is_empty());
    assert!(ways("shell/x.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    println!();").is_empty());
}
