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
fn the_struct_has_exactly_the_keys_of_the_table() {
    fn names(table: &toml::Table, prefix: &str, out: &mut Vec<String>) {
        for (name, value) in table {
            let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                toml::Value::Table(inner) => names(inner, &full, out),
                _ => out.push(full),
            }
        }
    }
    let mut built = Vec::new();
    names(&toml::Table::try_from(Config::default()).unwrap(), "", &mut built);
    let mut listed: Vec<String> = keys::KEYS.iter().map(|k| k.name.to_owned()).collect();
    built.sort();
    listed.sort();
    assert_eq!(built, listed);
}

#[test]
fn the_example_file_is_the_table_and_parses_to_the_built_in_values() {
    let example = include_str!("../../config.example.toml");
    if example != keys::example() && std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml"), keys::example()).unwrap();
    }
    assert!(example == keys::example(), "run this test once with UPDATE_EXAMPLE=1, then commit config.example.toml");
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
    let found: Vec<String> = problems(&path, &env).iter().map(|p| p.to_string()).collect();
    assert_eq!(found.len(), 3);
    assert!(found[0].ends_with("unknown key nothing"), "{}", found[0]);
    assert!(found[1].ends_with("unknown key ui.tehme: did you mean ui.theme?"), "{}", found[1]);
    assert_eq!(found[2], "SALA_CHAT_UI_MOSE: unknown key UI_MOSE: did you mean SALA_CHAT_UI_MOUSE?");
    assert_eq!(load(&path, &env, &[]).unwrap().warnings.len(), 3);
}

#[test]
fn wrong_values_and_broken_files_are_refused_in_one_line() {
    for (text, expected) in [
        ("[sampling]\ntemperature = 7", "sampling.temperature must be 0 to 2 (got 7)"),
        ("[ui]\nmouse = \"yes\"", "ui.mouse must be true or false (got \"yes\")"),
        ("[ui]\ntheme = \"pink\"", "ui.theme must be one of auto, dark, light, plain (got \"pink\")"),
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
}

#[test]
fn words_become_types() {
    let mut config = Config::default();
    assert_eq!((config.model_source(), config.draft_source()), (ModelSource::Auto, DraftSource::Auto));
    config.model.source = "synthetic:9b".into();
    config.speculation = SpeculationConfig { mode: Switch::On, depth: 4, draft: "off".into() };
    assert_eq!(config.model_source(), ModelSource::Synthetic("9b".into()));
    assert_eq!((config.draft_source(), config.spec_mode()), (DraftSource::Off, SpecMode::Depth(4)));
    assert_eq!(config.sampling(5).seed, 5);
    config.sampling.seed = 9;
    assert_eq!(config.sampling(5).seed, 9);
}
