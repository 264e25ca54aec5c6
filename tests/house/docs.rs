//! References to the specification resolve: every `docs/FILE.md §N` named in sources, kernels, tests and documents leads to a
//! file of this repository and to a heading of that number. Files, events and settings that documents name are there.

use std::path::{Path, PathBuf};

use sala_chat::config::settings::table::{OPEN_TABLES, ROWS};

use crate::sources;

const ROOTS: [&str; 7] = ["src", "sala/src", "kernels", "tests", "benches", "docs", "README.md"];
const TEXTS: [&str; 8] = ["rs", "cu", "cuh", "md", "h", "cpp", "py", "sh"];

/// The specification.
const DOCUMENTS: [&str; 5] = ["model.md", "speculative.md", "architecture.md", "terminal.md", "weights.md"];

fn texts(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| texts(&entry.unwrap().path(), found));
    } else if path.extension().is_some_and(|e| TEXTS.iter().any(|t| e == *t)) {
        found.push(path.to_owned());
    }
}

/// Names of specification files in `text`, each with the section that follows it, if any.
fn references(text: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(".md") {
        let before = &text[..at];
        let start = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || "-_/.".contains(c))).map_or(0, |i| i + 1);
        let name = &text[start..at + 3];
        let section = text[at + 3..].strip_prefix(" §").map(|rest| {
            let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            number.trim_end_matches('.').to_owned()
        });
        // Two halves of a line break in a comment are not looked for: a reference is written on one line.
        found.push((name.to_owned(), section.filter(|s| !s.is_empty())));
    }
    found
}

/// Whether a document has a heading `## 5. …` or `### 5.3 …` of this number.
fn has_section(document: &str, number: &str) -> bool {
    document.lines().filter_map(|l| l.strip_prefix("##")).any(|l| {
        let title = l.trim_start_matches('#').trim_start();
        title.strip_prefix(number).is_some_and(|rest| rest.starts_with(". ") || rest.starts_with(' '))
    })
}

#[test]
fn every_reference_to_the_specification_resolves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ROOTS.iter().for_each(|r| texts(&root.join(r), &mut files));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files.iter().filter(|f| !f.ends_with("tests/docs.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let shown = file.strip_prefix(root).unwrap().display();
        for (name, section) in references(&text) {
            let bare = DOCUMENTS.contains(&name.as_str());
            // Other names are examples in tests, or files of other people's repositories.
            let ours = name.strip_prefix("docs/").is_some_and(|n| DOCUMENTS.contains(&n) || section.is_some());
            let cited = ours || name.starts_with("spec/") || (bare && section.is_some());
            // Documents in the same folder refer to each other without it.
            let path = match file.parent().unwrap().ends_with("docs") {
                true if bare => root.join("docs").join(&name),
                _ => root.join(&name),
            };
            if !cited {
                continue;
            }
            seen += 1;
            match (std::fs::read_to_string(&path), section) {
                (Err(_), _) => wrong.push(format!("{shown}: there is no {name}")),
                (Ok(document), Some(n)) if !has_section(&document, &n) => {
                    wrong.push(format!("{shown}: {name} has no section {n}"));
                }
                (Ok(_), _) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 40, "only {seen} references were found: does the search still work?");
}

#[test]
fn references_and_headings_are_distinguished() {
    let found = references("see docs/model.md §5.4-5.6 and docs/architecture.md, or (docs/speculative.md §1.2, §1.3).");
    let found: Vec<_> = found.iter().map(|(n, s)| (n.as_str(), s.as_deref())).collect();
    let expected =
        [("docs/model.md", Some("5.4")), ("docs/architecture.md", None), ("docs/speculative.md", Some("1.2"))];
    assert_eq!(found, expected);
    assert!(has_section("## 5. Layers\n### 5.4 Scores\n", "5.4") && has_section("## 5. Layers", "5"));
    assert!(!has_section("### 5.41 Other", "5.4"));
}

#[test]
fn every_file_of_the_sources_that_a_document_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The specification of model and drafts names files of other people's repositories.
    let documents = [
        "README.md",
        "kernels/README.md",
        "assets/demo/MODEL_CARD.md",
        "docs/architecture.md",
        "docs/terminal.md",
        "docs/serve.md",
    ];
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2).filter(|name| !name.contains(char::is_whitespace));
        let ends = |name: &&str| [".rs", ".cu", ".cuh"].iter().any(|end| name.len() > end.len() && name.ends_with(end));
        for name in quoted.filter(ends) {
            seen += 1;
            let places = ["", "src", "sala/src", "kernels"].map(|folder| root.join(folder).join(name));
            if !places.iter().any(|path| path.exists()) {
                wrong.push(format!("{document}: there is no {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 10, "only {seen} files were named: does the search still work?");
}

#[test]
fn every_event_of_json_lines_is_described() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let described = read("docs/terminal.md");
    let table = described.split_once("| event |").expect("the table of events").1.split_once("\n\n").unwrap().0;
    let rows: Vec<&str> = table.lines().filter_map(|l| l.strip_prefix("| `")?.split(" |").next()).collect();
    let sources = read("src/cli/oneshot.rs") + &read("src/cli/oneshot/printer.rs");
    let names: Vec<&str> = sources
        .match_indices(".event(")
        .filter_map(|(at, call)| sources[at + call.len()..].trim_start().strip_prefix('"')?.split('"').next())
        .collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(rows.iter().any(|row| row.split(", ").any(|n| n.trim_matches('`') == name)), "{name}: {rows:?}");
    }
}

/// Names of the form of a setting that are none: files, tensors of a checkpoint, parts of a tokenizer's file.
const NO_SETTINGS: [&str; 11] = [
    "model.embed",
    "model.embed_tokens",
    "model.layers",
    "model.md",
    "model.merges",
    "model.norm",
    "model.safetensors",
    "serve.json",
    "serve.key",
    "serve.lock",
    "serve.sock",
];

/// The string literals of a source, without comments and character literals.
fn quoted(source: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (before, from) = rest.split_at(at);
        if from.starts_with("//") {
            rest = from.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(after) = from.strip_prefix('\'') {
            // A character, or a lifetime.
            let mut chars = after.chars();
            rest = match chars.next() {
                Some('\\') => after.get(2..).and_then(|b| b.split_once('\'')).map_or("", |(_, after)| after),
                Some(_) => chars.as_str().strip_prefix('\'').unwrap_or(after),
                None => "",
            };
        } else if let Some(after) = from.strip_prefix('"') {
            let bare = before.trim_end_matches('#');
            let end = match bare.ends_with('r') {
                true => after.find(&format!("\"{}", &before[bare.len()..])),
                false => {
                    let mut escaped = false;
                    after.find(|c| {
                        let ends = c == '"' && !escaped;
                        escaped = c == '\\' && !escaped;
                        ends
                    })
                }
            };
            let (text, after) = after.split_at(end.expect("a text ends"));
            found.push(text);
            rest = &after[1..];
        } else {
            rest = &from[1..];
        }
    }
    found
}

/// Names of the form `section.key` in a text.
fn settings_in(text: &str) -> Vec<&str> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices('.') {
        let begin =
            text[..at].rfind(|c| !word(c)).map_or(0, |i| i + text[i..].chars().next().map_or(1, char::len_utf8));
        let key = text[at + 1..].find(|c| !word(c)).map_or(&text[at + 1..], |end| &text[at + 1..][..end]);
        let (section, end) = (&text[begin..at], at + 1 + key.len());
        let before = text[..begin].chars().next_back();
        let mut after = text[end..].chars();
        let continues = match after.next() {
            Some('.') => after.next().is_some_and(|c| c.is_alphanumeric() || c == '{'),
            Some(c) => c.is_alphanumeric() || "({".contains(c),
            None => false,
        };
        let within = before.is_some_and(|c| c.is_alphanumeric() || "./-{:".contains(c));
        if !key.is_empty() && !continues && !within && ROWS.iter().any(|row| row.section() == section) {
            found.push(&text[begin..end]);
        }
    }
    found
}

#[test]
fn every_setting_that_is_named_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts: Vec<(String, String)> = Vec::new();
    for (inside, source) in sources::below("src") {
        let lasts = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if !inside.contains("tests") {
            texts.push((inside, quoted(lasts).join("\n")));
        }
    }
    let mut files = vec![root.join("README.md"), root.join("config.example.toml")];
    self::texts(&root.join("docs"), &mut files);
    texts.extend(files.iter().map(|file| (file.display().to_string(), std::fs::read_to_string(file).unwrap())));
    let known = |name: &str| {
        ROWS.iter().any(|row| row.name == name)
            || OPEN_TABLES.iter().any(|t| t.name == name)
            || NO_SETTINGS.contains(&name)
    };
    let named: Vec<(&str, &str)> =
        texts.iter().flat_map(|(file, text)| settings_in(text).into_iter().map(|name| (file.as_str(), name))).collect();
    let wrong: Vec<_> = named.iter().filter(|(_, name)| !known(name)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(named.len() > 60, "only {} names were found: does the search still work?", named.len());
}

#[test]
fn setting_names_are_found_in_shown_texts() {
    let source = "let a = 'x'; // \"serve.none\"\nsay(\"raise serve.queue. \\\"ui.look\\\"\", '\"', r#\"load.max\"x\"#, f::<'a>(\"x\"))";
    assert_eq!(quoted(source), ["raise serve.queue. \\\"ui.look\\\"", "load.max\"x", "x"]);
    assert_eq!(
        settings_in("serve.queue. ui.look, model.layers.3 app.model.source self.model.run()"),
        ["serve.queue", "ui.look"]
    );
}

/// Words of a shell line up to a comment; double quotes keep words together.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '#' if !quoted && word.is_none() => break,
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_command_of_the_readme_is_understood() {
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    let mut seen = 0;
    for line in blocks.flat_map(str::lines) {
        // The last program of a pipe; `cargo run … --` is the program.
        let program = line.rsplit(" | ").next().unwrap_or(line).replace("cargo run --release --", "sala-chat");
        if program.starts_with("sala-chat") {
            let parsed = sala_chat::cli::args::command().try_get_matches_from(shell_words(&program));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen >= 9, "only {seen} commands were found: does the search still work?");
    assert_eq!(shell_words("a \"b c\" --d  # e"), ["a", "b c", "--d"]);
}

#[test]
fn the_picture_of_the_readme_is_the_screen_of_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let picture = std::fs::read_to_string(root.join("docs/screen.svg")).unwrap();
    let screen = std::fs::read_to_string(root.join("tests/snapshots/looked_120x40.snap")).unwrap();
    let lines = screen.split("---\n").nth(2).unwrap().lines().filter(|line| !line.starts_with("caret "));
    for run in lines.flat_map(|line| line.split("  ")).map(str::trim).filter(|run| !run.is_empty()) {
        let escaped = run.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(picture.contains(&escaped), "{run} is not in docs/screen.svg: run docs/screen.py");
    }
    let texts = picture.split("<text").skip(1).filter_map(|text| text.split_once('>')?.1.split_once("</text>"));
    for (text, _) in texts {
        let plain = text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#x27;", "'")
            .replace("&amp;", "&");
        assert!(screen.contains(plain.trim()), "{plain} is not on the screen: run docs/screen.py");
    }
}
