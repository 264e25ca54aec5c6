use std::path::Path;

use super::*;

fn with_file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
}

fn edit(text: &str, name: &str, value: &str) -> Result<String, ConfigError> {
    super::edit(Path::new("own.toml"), text, name, value)
}

#[test]
fn a_preset_lies_under_what_is_set_in_its_own_layer_and_over_lower_ones() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[sampling]\npreset = \"careful\"\ntop_p = 0.5\n").unwrap();
    let careful = preset::builtin("careful").unwrap();
    let mut loaded = load(&file, &[], &[]).unwrap();
    loaded.take_preset(&careful).unwrap();
    let s = &loaded.config.sampling;
    assert_eq!((s.temperature, s.top_p), (0.3, 0.5));
    // On the command line it is meant to win over the file.
    let options = [("sampling.preset", toml::Value::String("careful".into()))];
    let mut loaded = load(&file, &[], &options).unwrap();
    loaded.take_preset(&careful).unwrap();
    let s = &loaded.config.sampling;
    assert_eq!((s.temperature, s.top_p), (0.3, 0.9));
    assert_eq!(loaded.origins["sampling.top_p"], Origin::CommandLine);
}

#[test]
fn what_is_given_on_the_command_line_is_no_part_of_what_is_kept() {
    let (_dir, path) = with_file("[sampling]\ntemperature = 0.5\n");
    let options = [
        ("sampling.temperature", toml::Value::Float(0.0)),
        ("sampling.max_tokens", toml::Value::Integer(12)),
        ("sampling.preset", toml::Value::String("careful".into())),
    ];
    let mut loaded = load(&path, &[], &options).unwrap();
    loaded.take_preset(&preset::builtin("careful").unwrap()).unwrap();
    let kept = &loaded.kept().sampling;
    assert_eq!((kept.temperature, kept.max_tokens, kept.top_p, kept.preset.as_str()), (0.3, 8192, 0.9, "careful"));
    let used = &loaded.config.sampling;
    assert_eq!((used.temperature, used.max_tokens, used.top_p), (0.0, 12, 0.9));
    // A measurement's own values reach the sessions it makes, whatever else is set.
    loaded.keep_all();
    loaded.config.sampling.max_tokens = 64;
    assert_eq!(loaded.kept().sampling.max_tokens, 64);
    let loaded = load(&path, &[], &[]).unwrap();
    assert_eq!(loaded.kept(), &loaded.config);
}

/// The contents of `config.example.toml`.
fn example_file() -> String {
    let mut out = String::from(
        "# Settings of sala-chat with their built-in values. Copy what you change to the file that\n\
         # `sala-chat config path` names. A variable (SALA_CHAT_SAMPLING_TEMPERATURE=0) wins over the file, the\n\
         # command line over both. `sala-chat config check` finds mistakes, `config show --origin` says what came from where.\n",
    );
    let mut section = "";
    for row in table::ROWS {
        if row.section() != section {
            if !section.is_empty() {
                out.push_str(&open_tables(section));
            }
            section = row.section();
            out.push_str(&format!("\n[{section}]\n"));
        }
        out.push_str(&format!("{:<34} # {}\n", format!("{} = {}", row.key(), row.kind.default()), row.help));
    }
    out.push_str(&open_tables(section));
    out.push_str(&open_tables(""));
    out
}

/// The open tables that belong to a section; those of no section for `""`.
fn open_tables(section: &str) -> String {
    let mut out = String::new();
    for table in table::OPEN_TABLES {
        let parent = table.name.split_once('.').map_or("", |(parent, _)| parent);
        if parent == section {
            out.push_str(&format!("\n[{}]  # {}\n# {}\n", table.name, table.help, table.example));
        }
    }
    out
}

#[test]
fn the_example_file_is_the_table_and_parses_to_the_built_in_values() {
    let example = include_str!("../../../config.example.toml");
    if example != example_file() && std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml"), example_file()).unwrap();
    }
    assert!(example == example_file(), "run this test once with UPDATE_EXAMPLE=1, then commit config.example.toml");
    let (_dir, path) = with_file(example);
    let loaded = load(&path, &[], &[]).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.warnings.is_empty());
}

#[test]
fn later_layers_win_and_say_who_set_what() {
    let (_dir, path) =
        with_file("[sampling]\ntemperature = 1\ntop_k = 7\nmin_p = 0.1\n[load.converters]\ndocx = \"x {in}\"\n");
    let env = variables(&[
        ("SALA_CHAT_SAMPLING_TOP_K", "8"),
        ("SALA_CHAT_SAMPLING_MIN_P", "0.2"),
        ("SALA_CHAT_DATA_DIR", "/x"),
        ("HOME", "/"),
    ]);
    let loaded = load(&path, &env, &[("sampling.min_p", toml::Value::Float(0.3))]).unwrap();
    let s = &loaded.config.sampling;
    assert_eq!((s.temperature, s.top_k, s.min_p), (1.0, 8, 0.3));
    assert_eq!(loaded.config.load.converters["docx"], "x {in}");
    assert_eq!(loaded.origins["sampling.temperature"], Origin::File(path));
    assert_eq!(loaded.origins["sampling.top_k"], Origin::Variable("SALA_CHAT_SAMPLING_TOP_K".into()));
    assert_eq!(loaded.origins["sampling.min_p"], Origin::CommandLine);
    assert!(!loaded.origins.contains_key("sampling.top_p"));
}

#[test]
fn unknown_keys_are_named_with_their_nearest() {
    let (_dir, path) = with_file("[ui]\ntehme = \"dark\"\n[nothing]\nx = 1\n");
    let env = variables(&[("SALA_CHAT_UI_MOSE", "true")]);
    let found: Vec<String> = examine(&path, &env).1.iter().map(|p| p.to_string()).collect();
    assert_eq!(found.len(), 3);
    assert!(found[0].ends_with("unknown key nothing"), "{}", found[0]);
    assert!(found[1].ends_with("unknown key ui.tehme: did you mean ui.theme?"), "{}", found[1]);
    assert_eq!(found[2], "SALA_CHAT_UI_MOSE: unknown key UI_MOSE: did you mean SALA_CHAT_UI_MOUSE?");
    assert_eq!(load(&path, &env, &[]).unwrap().warnings.len(), 3);
}

#[test]
fn a_table_and_a_key_outside_of_its_table_are_recognised() {
    let (_dir, path) = with_file("temperature = 0.5\n[samplin]\ntop_p = 1\n");
    let mut found: Vec<String> = examine(&path, &[]).1.iter().map(|p| p.to_string()).collect();
    found.sort();
    assert_eq!(found.len(), 2);
    assert!(found[0].ends_with("unknown key samplin: did you mean sampling?"), "{}", found[0]);
    assert!(found[1].ends_with("unknown key temperature: did you mean sampling.temperature?"), "{}", found[1]);
    let error = edit("", "sampling.temp", "0.5").unwrap_err().to_string();
    assert!(error.ends_with("unknown key sampling.temp: did you mean sampling.temperature?"), "{error}");
}

#[test]
fn wrong_values_and_broken_files_are_refused_in_one_line() {
    for (text, expected) in [
        ("[sampling]\ntemperature = 7", "sampling.temperature must be 0 to 2 (got 7)"),
        ("[ui]\nmouse = \"yes\"", "ui.mouse must be true or false (got \"yes\")"),
        ("[ui]\ntheme = 3", "ui.theme must be one of auto, dark, light, plain, or a file (got 3)"),
        ("[ui]\npanel = \"pink\"", "ui.panel must be one of auto, on, off (got \"pink\")"),
        ("ui = 3", "ui must be a table: [ui] (got 3)"),
        ("[keys]\nf2 = 3", "keys.f2 must be text in quotes (got 3)"),
        ("a = 1\nb = = 2", "line 2"),
    ] {
        let (_dir, path) = with_file(text);
        let error = load(&path, &[], &[]).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
    let env = variables(&[("SALA_CHAT_MODEL_GPU", "first")]);
    let error = load(Path::new("/nonexistent/config.toml"), &env, &[]).unwrap_err().to_string();
    assert!(error.contains("SALA_CHAT_MODEL_GPU: model.gpu must be a whole number"), "{error}");
    let (_dir, path) = with_file("[ui]\nmax_width = 999999999999999999999\n");
    let error = load(&path, &[], &[]).unwrap_err().to_string();
    assert!(
        error.ends_with("config.toml, line 2: a number that is too large. Fix it, or name another file with --config"),
        "{error}"
    );
}

#[test]
fn editing_one_key_keeps_comments() {
    let text = "# mine\n[sampling]\ntemperature = 0.5   # warm\n\n[ui] # screen\n";
    let edited = edit(text, "temperature", "0.9").unwrap();
    assert_eq!(edited, "# mine\n[sampling]\ntemperature = 0.9   # warm\n\n[ui] # screen\n");
    let edited = edit(&edited, "ui.theme", "dark").unwrap();
    assert!(edited.contains("[ui] # screen\ntheme = \"dark\"\n"), "{edited}");
    assert!(edit("", "model.gpu", "2").unwrap().contains("[model]\ngpu = 2"));
    assert!(edit(text, "temprature", "1").is_err() && edit(text, "temperature", "hot").is_err());
    // An error names the file that was read, or the option that was typed.
    for (file, value, of) in
        [("x = [[[", "true", "own.toml"), ("ui = 3\n", "true", "own.toml"), ("", "maybe", "command line")]
    {
        let refused = edit(file, "ui.mouse", value).unwrap_err().to_string();
        assert!(refused.starts_with(of), "{refused}");
    }
    // Keys that the user chooses, wherever their table is.
    let converter = edit("", "load.converters.docx", "pandoc {in}").unwrap();
    assert_eq!(converter, "[load.converters]\ndocx = \"pandoc {in}\"\n");
    assert_eq!(edit(&converter, "load.converters.docx", "other {in}").unwrap(), converter.replace("pandoc", "other"));
    assert!(
        edit("[load]\nmax_file_mib = 9\n", "load.converters.docx", "x {in}").unwrap().parse::<toml::Table>().is_ok()
    );
    assert_eq!(
        edit("[keys]\nf2 = \"none\"\n", "keys.ctrl-o", "panel").unwrap(),
        "[keys]\nf2 = \"none\"\nctrl-o = \"panel\"\n"
    );
    assert!(edit("", "load.converters", "x").is_err() && edit("", "keys.", "x").is_err());
    assert!(edit("load = 3\n", "load.converters.docx", "x {in}").is_err());
}

#[test]
fn words_become_types() {
    let mut config = Config::default();
    assert_eq!((config.model_source(), config.speculation.draft.as_str()), (ModelSource::Auto, "auto"));
    config.model.source = "synthetic:9b".into();
    config.speculation = SpeculationConfig { mode: SpecMode::On, depth: 4, draft: "off".into() };
    assert_eq!(config.model_source(), ModelSource::Synthetic("9b".into()));
    assert_eq!(config.spec_mode(), SpecMode::Depth(4));
    assert_eq!(Settings::of(&config).for_answer(|| 5).seed, 5);
    config.sampling.seed = 9;
    assert_eq!(Settings::of(&config).for_answer(|| 5).seed, 9);
}

/// A text for each way a value can be wrong, and values at the edges that must be taken.
fn probes(kind: &Kind) -> (Vec<String>, Vec<String>) {
    let good = |values: &[String]| values.to_vec();
    let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    match *kind {
        Kind::Bool(_) => (own(&["true", "false"]), own(&["maybe", "2", ""])),
        Kind::Int(_, least, most, also) => {
            let mut bad = vec!["many".to_owned(), "1.5".to_owned(), String::new(), (i128::from(least) - 1).to_string()];
            bad.push((i128::from(most) + 1).to_string());
            let words = also.iter().map(|(word, _)| (*word).to_owned());
            ([least.to_string(), most.to_string()].into_iter().chain(words).collect(), bad)
        }
        Kind::Float(_, least, most) => {
            let bad =
                vec!["hot".into(), "NaN".into(), "inf".into(), (least - 0.25).to_string(), (most + 0.25).to_string()];
            (good(&[least.to_string(), most.to_string(), ((least + most) / 2.0).to_string()]), bad)
        }
        Kind::Text(_) | Kind::List(_) => (own(&["a b", "auto"]), Vec::new()),
        Kind::Word(_, words) => (own(words), own(&["nonsense", "", "3"])),
        Kind::Named(_, words) => (own(words).into_iter().chain(["a file.x".into()]).collect(), own(&[""])),
        Kind::Size => (own(&["all", "8GiB", "7680MiB"]), own(&["8", "", "-1GiB", "lots", "0GiB"])),
        Kind::Time => {
            (own(&["off", "90s", "20m", "2h"]), own(&["20", "", "-1m", "0s", "+1m", "20 m", "9999999h", "m"]))
        }
        Kind::WordOrInt(words, least, most) => {
            let numbers = [least.to_string(), most.to_string()];
            (
                own(words).into_iter().chain(numbers).collect(),
                vec!["16x".into(), (least - 1).to_string(), (most + 1).to_string()],
            )
        }
    }
}

/// As it is written in a file.
fn toml_of(row: &Row, text: &str) -> String {
    match row.kind.parse(text) {
        Ok(value) => value.to_string(),
        Err(_) if text.parse::<i128>().is_ok() || text.parse::<f64>().is_ok_and(f64::is_finite) => text.to_owned(),
        Err(_) => format!("{text:?}"),
    }
}

#[test]
fn every_setting_has_its_built_in_value_in_its_field() {
    let config = Config::default();
    for row in table::ROWS {
        assert_eq!((row.get)(&config), row.kind.default(), "{}", row.name);
        assert_eq!(row.kind.accept(&row.kind.default()), Ok(row.kind.default()), "{}", row.name);
        assert!(!row.help.is_empty() && row.help.len() < 90 && !row.help.ends_with('.'), "{}", row.name);
        assert!(row.help.starts_with(|c: char| c.is_lowercase() || c == '-'), "{}: {}", row.name, row.help);
    }
}

#[test]
fn every_setting_is_set_and_shown_by_every_way() {
    for row in table::ROWS {
        let (good, bad) = probes(&row.kind);
        let refused = |error: &str, got: &str| {
            assert!(error.contains(&row.kind.range()) && !error.contains('\n'), "{} = {got}: {error}", row.name);
        };
        for text in good {
            let value = row.kind.parse(&text).unwrap_or_else(|e| panic!("{} = {text}: {e}", row.name));
            let (_dir, path) = with_file(&format!("[{}]\n{} = {}\n", row.section(), row.key(), toml_of(row, &text)));
            let of_file = load(&path, &[], &[]).unwrap();
            let none = Path::new("/nonexistent/config.toml");
            let of_variable = load(none, &[(layers::variable(row), text.clone())], &[]).unwrap();
            let of_option = load(none, &[], &[(row.name, value.clone())]).unwrap();
            for loaded in [&of_file, &of_variable, &of_option] {
                assert_eq!((row.get)(&loaded.config), value, "{} = {text}", row.name);
                assert!(loaded.origins.contains_key(row.name) && loaded.warnings.is_empty());
            }
            let edited = edit("", row.name, &text).unwrap();
            let (_dir, path) = with_file(&edited);
            assert_eq!((row.get)(&load(&path, &[], &[]).unwrap().config), value, "{edited}");
            assert_eq!(row.kind.parse(&row.kind.show(&value)), Ok(value.clone()), "{} = {text}", row.name);
            if let Some(way) = row.session {
                let mut settings = Settings::of(&Config::default());
                match way.owner {
                    row::Owner::Session(get, _) => {
                        settings.set(way.name, &text).unwrap();
                        assert_eq!(get(&settings), value, "/set {} {text}", way.name);
                        assert_eq!(settings.value(row), Some(row.kind.show(&value)));
                        let mut config = Config::default();
                        assert!((row.set)(&mut config, &value));
                        assert_eq!(get(&Settings::of(&config)), value, "{} reaches new sessions", row.name);
                        let json = serde_json::to_string(&settings).unwrap();
                        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
                    }
                    row::Owner::Screen => assert_eq!(session::parse(way.name, &text), Ok((row, value.clone()))),
                }
            }
            if row.preset {
                let preset = preset::Preset { system: None, values: vec![(row.name, row.kind.show(&value))] };
                assert_eq!(preset::Preset::parse(&preset.text()), Ok(preset.clone()), "{}", preset.text());
                let mut loaded = load(none, &[], &[("sampling.preset", Value::String("x".into()))]).unwrap();
                loaded.take_preset(&preset).unwrap();
                assert_eq!((row.get)(&loaded.config), value, "{} = {text}", row.name);
            }
        }
        for text in bad {
            // A number that TOML itself cannot hold is a matter of its syntax.
            let in_toml = text.parse::<i128>().map_or(true, |n| i64::try_from(n).is_ok());
            let (_dir, path) = with_file(&format!("[{}]\n{} = {}\n", row.section(), row.key(), toml_of(row, &text)));
            let of_file = load(&path, &[], &[]).expect_err(&text).to_string();
            assert!(!of_file.contains('\n'), "{of_file}");
            if in_toml {
                refused(&of_file, &text);
            }
            refused(
                &load(Path::new("/x"), &[(layers::variable(row), text.clone())], &[]).expect_err(&text).to_string(),
                &text,
            );
            refused(&edit("", row.name, &text).expect_err(&text).to_string(), &text);
            if let Some(way) = row.session {
                let mut settings = Settings::default();
                refused(&settings.set(way.name, &text).expect_err(&text), &text);
                assert_eq!(settings, Settings::default());
            }
            if row.preset && in_toml {
                let text = format!("[{}]\n{} = {}\n", row.section(), row.key(), toml_of(row, &text));
                refused(&preset::Preset::parse(&text).expect_err(&text).to_string(), &text);
            }
        }
    }
}

#[test]
fn names_of_set_are_unique_and_not_ambiguous() {
    let mut names: Vec<&str> = table::session_rows()
        .flat_map(|(_, way)| std::iter::once(way.name).chain(way.aliases.iter().copied()))
        .collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    for (row, way) in table::session_rows() {
        assert_eq!(table::find_short(way.name), Some(row), "config set and /set mean the same by {}", way.name);
    }
}

#[test]
fn the_page_of_settings_finds_by_name_and_by_meaning() {
    let (_dir, path) = with_file("[sampling]\ntop_k = 7\n");
    let loaded = load(&path, &[], &[]).unwrap();
    let all = page::page(&loaded, None, |_| None);
    assert!(table::ROWS.iter().all(|row| all.contains(row.name)));
    let some = page::page(&loaded, Some("keeps all"), |_| None);
    assert!(
        some.contains("`sampling.top_k` **7**") && some.contains("config.toml") && !some.contains("model.source"),
        "{some}"
    );
    let now = |row: &Row| (row.name == "ui.theme").then(|| "light".to_owned());
    assert!(
        page::page(&loaded, Some("theme"), now).contains("**light**: colours: auto, dark, light, plain, a name from")
    );
    assert!(page::page(&loaded, Some("zzz"), |_| None).starts_with("No setting has \"zzz\""));
    let empty = page::page(&loaded, Some("serve.key_file"), |_| None);
    assert!(empty.contains("- `serve.key_file` (empty): ") && !empty.contains("****"), "{empty}");
}
