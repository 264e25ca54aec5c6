//! Imports point downwards: every `use crate::…` of the sources is checked against the layer table of `src/lib.rs`, which has the
//! rooms of both crates.

use crate::sources;

/// Narrower than the layer alone: these rooms may import only these.
const ONLY: &[(&str, &[&str])] = &[
    ("client", &["core", "config", "engine::protocol", "model", "text"]),
    ("store", &["core", "config", "engine::protocol", "runtime::protocol", "text"]),
    ("tui", &["core", "config", "engine::protocol", "runtime::protocol", "text"]),
];

/// Layer of each module by the table of `src/lib.rs`, of which a row is `//! | 0 vocabulary | [`base`], [`spec`] | … |`; a module may
/// import modules of lower layers. The program is above all of them.
fn layers() -> Vec<(String, u8)> {
    let mut layers = vec![("main".to_owned(), u8::MAX)];
    for row in include_str!("../../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let mut cells = row.split(" | ");
        let layer = cells.next().and_then(|cell| cell.split(' ').next()?.parse().ok());
        let (Some(layer), Some(modules)) = (layer, cells.next()) else { continue };
        layers.extend(modules.split(", ").map(|name| (name.trim_matches(['[', ']', '`']).to_owned(), layer)));
    }
    layers
}

/// The module that a source belongs to.
fn first(inside: &str) -> String {
    inside.split('/').next().unwrap().replace(".rs", "")
}

/// The room that a path names: its first part, or `room::protocol`, which is a room of its own here.
fn room(path: &str) -> String {
    let mut parts =
        path.split("::").map(|part| part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>());
    let first = parts.next().unwrap_or_default();
    match parts.next().as_deref() {
        Some("protocol") => format!("{first}::protocol"),
        _ => first,
    }
}

/// Rooms named after `crate::` in a source, comments left out. `use crate::{a::…, b}` counts for a and b.
fn imports(source: &str) -> Vec<String> {
    let code: String = source.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => modules.push(room(rest)),
            Some(group) => {
                let mut depth = 1;
                let mut start = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 1 => start = true,
                        c if start && !c.is_whitespace() => {
                            modules.push(room(&group[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
        }
    }
    modules
}

#[test]
fn imports_point_downwards() {
    let layers = layers();
    let layer = |module: &str| layers.iter().find(|(name, _)| name == module).map(|(_, layer)| *layer);
    assert!(layers.len() > 12 && layer("tui") == Some(4) && layer("engine::protocol") == Some(0), "{layers:?}");
    let mut wrong = Vec::new();
    for (inside, source) in sources::below("src") {
        let module = match first(&inside) {
            lib if lib == "lib" => continue,
            module if inside.starts_with(&format!("{module}/protocol")) => format!("{module}::protocol"),
            module => module,
        };
        let own = layer(&module).unwrap_or_else(|| panic!("src/{module} is in no row of the table of src/lib.rs"));
        for import in imports(&source) {
            let Some(other) = layer(&import) else {
                continue;
            };
            let listed =
                ONLY.iter().find(|(name, _)| *name == module).is_none_or(|(_, only)| only.contains(&import.as_str()));
            // The vocabulary's rooms may name each other; elsewhere a layer's rooms do not know their neighbours.
            let downwards = other < own || (other == 0 && own == 0);
            let own_protocol = import == format!("{module}::protocol");
            if !own_protocol && import != module && !(downwards && listed) {
                wrong.push(format!("{inside}: {module} (layer {own}) imports {import} (layer {other})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Modules with texts that reach a shell and a log as well as the chat: they do not mention its commands.
const WITHOUT_A_CHAT: &[&str] = &["text", "client", "store", "engine"];

#[test]
fn texts_below_the_runtime_name_no_command_of_the_chat() {
    let mut named = Vec::new();
    for (inside, source) in sources::below("src") {
        let tests = inside.ends_with("tests.rs");
        if tests || !WITHOUT_A_CHAT.contains(&first(&inside).as_str()) {
            continue;
        }
        let code = source.lines().take_while(|l| *l != "#[cfg(test)]").filter(|l| !l.trim_start().starts_with("//"));
        named.extend(code.filter(|l| command_in(l).is_some()).map(|l| format!("{inside}: {}", l.trim())));
    }
    assert!(named.is_empty(), "{}", named.join("\n"));
    assert_eq!(command_in("is kept; /regen asks again"), Some("regen"));
    assert_eq!(command_in("/dev/null, a /newer one, </think>"), None);
}

/// A command of the chat that a line names.
fn command_in(line: &str) -> Option<&'static str> {
    let is_whole_name = |at: usize, name: &str| {
        let before = line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"</.".contains(c));
        let after = line[at + 1 + name.len()..].chars().next();
        before && after.is_none_or(|c| !c.is_alphanumeric() && !"/-_>".contains(c))
    };
    let names = sala_chat::config::commands::table::COMMANDS.iter().map(|c| c.name);
    names.into_iter().find(|name| line.match_indices(&format!("/{name}")).any(|(at, _)| is_whole_name(at, name)))
}

#[test]
fn grouped_and_nested_imports_are_seen() {
    let source =
        "// use crate::cli::x;\nuse crate::{\n  model::{Live, Model},\n  spec,\n};\nlet a = crate::engine::b();";
    assert_eq!(imports(source), ["model", "spec", "engine"]);
}

/// Siblings that a file of a folder names by `super::…` or by their whole path, in an import or where it uses them (files below a
/// module count as that module).
fn siblings(source: &str, folder: &str, depth: usize) -> Vec<String> {
    let from_crate = format!("{}::", folder.replacen("src", "crate", 1).replace('/', "::"));
    let prefixes = ["super::".repeat(depth), from_crate];
    let name = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let code: Vec<&str> = source
        .lines()
        .take_while(|l| *l != "#[cfg(test)]")
        .filter(|l| !l.trim_start().starts_with("//"))
        .map(|l| l.split(" // ").next().unwrap_or_default())
        .collect();
    let code = code.join(" ");
    let after = |prefix: &String| {
        let named = code.match_indices(prefix.as_str()).filter(|(at, _)| !code[..*at].ends_with("super::"));
        named.map(|(at, _)| &code[at + prefix.len()..]).collect::<Vec<_>>()
    };
    let named = prefixes.iter().flat_map(after);
    named
        .flat_map(|rest| rest.strip_prefix('{').map_or_else(|| vec![name(rest)], |group| members(group, &name)))
        .filter(|n| n.starts_with(char::is_lowercase) && n != "super" && n != "self")
        .collect()
}

/// First names of what a group of imports lists, up to its closing brace.
fn members(group: &str, name: &impl Fn(&str) -> String) -> Vec<String> {
    let (mut depth, mut from, mut all) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                all.push(name(group[from..at].trim()));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    all
}

#[test]
fn siblings_are_seen_wherever_they_are_named() {
    let source = "use super::super::{\n  wrap::{a, b},\n  rows,\n};\nuse super::near;\nlet a = super::super::tabs::go(); // super::super::x";
    assert_eq!(siblings(source, "src/ui", 2), ["wrap", "rows", "tabs"]);
    assert_eq!(siblings(source, "src/ui", 1), ["near"]);
    let source = "use crate::ui::{Palette, tables::{Row, rows}};\nlet a = crate::ui::tabs::go(); // crate::ui::page\nuse crate::uis::x;";
    assert_eq!(siblings(source, "src/ui", 1), ["tables", "tabs"]);
}

/// Folders with modules that import each other in one direction only.
const WITHOUT_CIRCLES: &[&str] = &[
    "src/tui",
    "src/tui/input",
    "src/client/attach",
    "src/backend",
    "src/backend/cpu",
    "src/backend/cuda",
    "src/backend/cuda/launch",
    "src/backend/cuda/ops",
    "src/backend/forms",
    "src/config/commands",
    "src/config/commands/table",
    "src/runtime",
    "src/runtime/ask",
    "src/engine",
    "src/lab",
    "src/lab/eval",
    "src/lab/kernels",
    "src/lab/kernels/cases",
    "src/model",
    "src/model/draft",
    "src/model/published",
    "src/model/quantize",
    "src/client/remote",
    "src/server",
    "src/store",
    "src/store/import",
    "src/config/settings",
    "src/cli",
    "src/cli/args",
    "src/cli/plain",
    "src/text",
    "src/text/sources",
    "src/text/template",
];

#[test]
fn sibling_modules_have_no_cycles() {
    for folder in WITHOUT_CIRCLES {
        let mut edges: Vec<(String, String)> = Vec::new();
        for (inside, source) in sources::below(folder) {
            let own = first(&inside);
            if own == "mod" || inside.contains("tests") {
                continue;
            }
            // A `mod.rs` is its folder's module.
            let depth = inside.split('/').count() - usize::from(inside.ends_with("/mod.rs"));
            let used = siblings(&source, folder, depth);
            edges.extend(used.into_iter().filter(|u| *u != own).map(|u| (own.clone(), u)));
        }
        assert!(!edges.is_empty(), "the scan of {folder} sees imports");
        // Modules without importers are removed one by one; the rest is a cycle.
        loop {
            let before = edges.len();
            let imported: Vec<String> = edges.iter().map(|e| e.1.clone()).collect();
            edges.retain(|(from, _)| imported.contains(from));
            if edges.len() == before {
                break;
            }
        }
        assert!(edges.is_empty(), "circles in {folder} among {edges:?}");
    }
}

/// Modules with a map of their files at the head.
const MAPPED: &[&str] = &["backend/cuda", "runtime", "engine", "lab", "server", "store"];

#[test]
fn maps_of_modules_are_whole() {
    let sources: Vec<(String, String)> = sources::below("src");
    for module in MAPPED {
        let (_, source) = sources.iter().find(|(inside, _)| *inside == format!("{module}/mod.rs")).unwrap();
        let rows = source.lines().filter_map(|line| line.strip_prefix("//! | ")).filter(|row| row.starts_with('`'));
        let files = rows.filter_map(|row| row.split(" | ").next());
        let named: Vec<&str> = files.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let there: Vec<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod ").or(line.strip_prefix("mod "))?.strip_suffix(';'))
            .filter(|name| *name != "tests")
            .collect();
        let missing: Vec<_> = there.iter().filter(|name| !named.contains(name)).collect();
        let gone: Vec<_> = named.iter().filter(|name| !there.contains(name)).collect();
        assert!(
            missing.is_empty() && gone.is_empty(),
            "src/{module}/mod.rs: {missing:?} not in its map, {gone:?} not there"
        );
    }
}
