use super::*;

fn parse(line: &str) -> Cli {
    Cli::read(format!("sala-chat {line}").split_whitespace().map(OsString::from)).unwrap()
}

fn checked(line: &str) -> Cli {
    let mut cli = parse(line);
    cli.check(false).unwrap();
    cli
}

fn command_of(line: &str) -> Command {
    checked(line).command.unwrap()
}

#[test]
fn the_help_names_every_exit_code() {
    let named: Vec<&str> =
        AFTER.split([',', ':', '\n', '.']).filter_map(|part| part.split_whitespace().next()).collect();
    for exit in crate::core::Exit::ALL {
        assert!(named.contains(&exit.code().to_string().as_str()), "{exit:?}: {named:?}");
    }
}

#[test]
fn the_definition_is_consistent() {
    definition().debug_assert();
    command().debug_assert();
}

#[test]
fn questions_and_chats_are_distinct() {
    let ask = checked("-p hello -f a.txt -f b.txt -r war --no-save --json");
    let (global, ask) = (ask.global, ask.chat);
    assert_eq!((ask.prompt.as_deref(), ask.paths.len(), ask.no_save), (Some("hello"), 2, true));
    assert_eq!((ask.format(global.json), ask.session()), (Format::Json, SessionChoice::Named("war".into())));
    let chat = checked("notes.txt -r").chat;
    assert_eq!((chat.paths.as_slice(), chat.session()), (&["notes.txt".to_owned()][..], SessionChoice::Pick));
    let resuming = |line: &str| {
        let mut cli = parse(line);
        cli.check(true).unwrap();
        cli.chat
    };
    assert_eq!(resuming("").session(), SessionChoice::Last);
    let chat = checked("-c --plain").chat;
    assert!(chat.session() == SessionChoice::Last && chat.plain && chat.prompt.is_none());
    let chat = resuming("--new");
    assert!(chat.session() == SessionChoice::New && !chat.offers());
    assert_eq!(["", "--plain", "notes.txt"].map(|line| checked(line).chat.offers()), [true, true, false]);
    assert!(parse("-p hi -r").check(false).is_err());
    let hint = |line: &str| parse(line).check(false).unwrap_err().hint.unwrap();
    assert!(hint("--json").contains("--help") && hint("notes.txt --json").contains("--help"));
    assert_eq!(hint("serach --json"), "Did you mean: sala-chat search");
    for line in ["sala-chat -c -r x", "sala-chat --jsonl"] {
        assert!(Cli::read(line.split(' ').map(OsString::from)).is_err(), "{line}");
    }
}

#[test]
fn options_before_and_after_a_command_are_the_same() {
    for line in
        ["--data-dir /d --json ls --sizes", "ls --sizes --json --data-dir /d", "list --sizes --json --data-dir /d"]
    {
        let cli = parse(line);
        assert!(cli.global.json && cli.global.data_dir == Some("/d".into()));
        assert!(matches!(command_of(line), Command::Ls(LsArgs { sizes: true, .. })));
    }
    let Command::Bench(bench) = command_of("bench --context 1,2 --decode 9") else { panic!() };
    assert_eq!((bench.what, bench.context, bench.decode), (BenchWhat::Model, vec![1, 2], 9));
    let Command::Bench(bench) = command_of("bench sessions") else { panic!() };
    assert_eq!(bench.what, BenchWhat::Sessions);
    assert!(matches!(command_of("doctor --fixtures x --device cpu"), Command::Doctor(_)));
}

#[test]
fn options_become_settings() {
    let cli = parse("--demo --spec 5 --temp 0 --seed 3 --think off --ctx 4096 --ascii");
    let names: Vec<&str> = cli.settings.into_iter().map(|(k, _)| k).collect();
    assert_eq!(
        names,
        [
            "model.source",
            "model.max_context",
            "speculation.mode",
            "sampling.temperature",
            "sampling.seed",
            "thinking.mode",
            "ui.glyphs"
        ]
    );
}

#[test]
fn every_option_of_a_setting_takes_what_the_table_allows_and_refuses_the_rest() {
    use crate::config::settings::{Flag, Kind, table::ROWS};
    let try_parse = |arguments: &[&str]| Cli::read(std::iter::once(&"sala-chat").chain(arguments).map(OsString::from));
    for row in ROWS {
        for flag in row.flags {
            match flag {
                Flag::Takes(long, _) => {
                    let default = row.kind.show(&row.kind.default());
                    let bad = match row.kind {
                        Kind::Int(_, least, ..) => (i128::from(least) - 1).to_string(),
                        Kind::Float(_, _, most) => (most + 1.0).to_string(),
                        Kind::WordOrInt(_, _, most) => (most + 1).to_string(),
                        Kind::Bool(_) | Kind::Word(..) | Kind::Size | Kind::Time => "nonsense".to_owned(),
                        Kind::Text(_) | Kind::List(_) | Kind::Named(..) => String::new(),
                    };
                    let option = format!("--{long}");
                    let given = try_parse(&[&option, &default]).unwrap().settings;
                    assert_eq!(given, [(row.name, row.kind.default())]);
                    if !matches!(row.kind, Kind::Text(_) | Kind::List(_)) {
                        let error = try_parse(&[&option, &bad]).unwrap_err();
                        let line = super::super::failure::Failure::command_line(&error).message;
                        assert!(line.contains(&option) && line.contains(&row.kind.range()), "{line}");
                    }
                }
                Flag::Means(long, value, _) => {
                    let given = try_parse(&[&format!("--{long}")]).unwrap().settings;
                    assert_eq!(given, [(row.name, row.kind.parse(value).unwrap())]);
                }
            }
        }
    }
}

#[test]
fn help_of_a_command_lists_its_own_options_and_names_the_others() {
    let help = |line: &str| Cli::read(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
    for line in ["sala-chat ls --help", "sala-chat library add --help", "sala-chat config show --help"] {
        let text = help(line);
        assert!(text.contains("Options of every command") && text.lines().count() < 25, "{text}");
        assert!(!text.contains("Speculative decoding"), "{text}");
    }
    assert!(help("sala-chat ls --help").contains("--sizes"));
    assert!(help("sala-chat --help").contains("Speculative decoding"));
}

#[test]
fn a_command_that_writes_no_json_neither_lists_nor_takes_the_option() {
    let read = |line: &str| Cli::read(line.split_whitespace().map(OsString::from));
    let definition = command();
    for name in TEXT_ONLY {
        assert!(definition.find_subcommand(name).is_some(), "{name}");
        let help = read(&format!("sala-chat {name} --help")).unwrap_err().to_string();
        assert!(help.contains("--quiet") && !help.contains("--json"), "{help}");
        let argument = if name == "completions" { "bash" } else { "" };
        read(&format!("sala-chat {name} {argument}")).unwrap();
        for line in [format!("sala-chat {name} {argument} --json"), format!("sala-chat --json {name} {argument}")] {
            let failure = super::super::failure::Failure::command_line(&read(&line).unwrap_err());
            assert_eq!(failure.message, format!("--json: {name} writes no JSON; leave it out"));
            assert_eq!(failure.exit, crate::core::Exit::Usage);
        }
    }
    assert!(read("sala-chat ls --help").unwrap_err().to_string().contains("--json"));
}

#[test]
fn a_question_is_answered_in_one_form() {
    let read = |line: &str| Cli::read(line.split_whitespace().map(OsString::from));
    for line in ["-p x --raw --json", "-p x --jsonl --raw", "--json -p x --raw", "-p x --json --jsonl"] {
        let error = read(&format!("sala-chat {line}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
    }
    read("sala-chat -p x --raw").unwrap();
}

#[test]
fn numbers_that_a_measurement_cannot_have_are_refused_with_their_range() {
    let options = [
        ("bench", "context", 1, 1_048_576u64),
        ("bench", "decode", 2, 32_768),
        ("bench", "sample", 0, 524_288),
        ("bench", "sequences", 1, 16),
        ("eval", "lengths", 512, 1_047_552),
    ];
    for (line, option, least, most) in options {
        let read = |value: &str| {
            let words = line.split(' ').map(str::to_owned).chain([format!("--{option}"), value.to_owned()]);
            Cli::read(std::iter::once("sala-chat".to_owned()).chain(words).map(OsString::from))
        };
        for good in [least, most] {
            read(&good.to_string()).unwrap_or_else(|e| panic!("--{option} {good}: {e}"));
        }
        let outside = (i128::from(least) - 1).to_string();
        for bad in [&*outside, &*(most + 1).to_string(), "-7", "1e30", "99999999999999999999", "2.5", "many"] {
            let line = super::super::failure::Failure::command_line(&read(bad).unwrap_err()).message;
            let range = format!("a whole number from {least} to {most}");
            assert!(line.contains(&format!("'{bad}'")) && line.contains(&range), "--{option} {bad}: {line}");
            assert!(line.contains(&format!("--{option}")) && !line.contains('\n'), "--{option} {bad}: {line}");
        }
    }
    // None is left out.
    let definition = command();
    let numbers = |name: &str| {
        let arguments = definition.find_subcommand(name).unwrap().get_arguments();
        let takes = |a: &&Arg| {
            a.get_value_names().is_some_and(|names| names.iter().any(|n| n.as_str() == "N" || n.starts_with("N,")))
        };
        arguments
            .filter(|a| !a.is_hide_set())
            .filter(takes)
            .filter_map(Arg::get_long)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let found: Vec<String> = ["bench", "eval"].into_iter().flat_map(numbers).collect();
    assert_eq!(
        found.iter().filter(|long| !options.iter().any(|(_, option, ..)| option == long)).count(),
        0,
        "{found:?}"
    );
    assert_eq!(found.len(), options.len());
}

#[test]
fn weights_are_chosen_in_the_words_of_the_settings() {
    use crate::config::settings::table::WEIGHTS;
    use crate::model::Recipe;
    let recipes = [Recipe::Stored, Recipe::Bf16].iter().chain(Recipe::PACKING);
    assert_eq!(recipes.map(|recipe| recipe.word()).collect::<Vec<_>>(), WEIGHTS);
}

#[test]
fn words_near_a_command_name_it_wherever_it_is() {
    let meant = |line: &str| suggested_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    for (line, command) in [
        ("serach", "search"),
        ("quantize", "model quantize"),
        ("quantise model", "model quantize"),
        ("modle quantize model", "model quantize"),
        ("modle notes.txt", "model"),
        ("show", "show"),
        ("check", "config check"),
    ] {
        assert_eq!(meant(line).as_deref(), Some(command), "{line}");
    }
    assert_eq!([meant("notes.txt"), meant("books/war.txt")], [None, None]);
}
