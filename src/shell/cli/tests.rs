use super::*;

fn parse(line: &str) -> Cli {
    Cli::try_parse_from(format!("sala-chat {line}").split_whitespace()).unwrap()
}

fn task(line: &str) -> Task {
    parse(line).task(false).unwrap()
}

#[test]
fn the_definition_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn questions_and_chats_are_told_apart() {
    let Task::Ask(ask) = task("-p hello -f a.txt -f b.txt -r war --no-save --json") else { panic!() };
    assert_eq!((ask.prompt.as_str(), ask.files.len(), ask.save, ask.format), ("hello", 2, false, Format::Json));
    assert_eq!(ask.session, SessionChoice::Named("war".into()));
    let Task::Chat(chat) = task("notes.txt -r") else { panic!() };
    assert_eq!((chat.paths, chat.session), (vec!["notes.txt".to_owned()], SessionChoice::Pick));
    let Task::Chat(chat) = parse("").task(true).unwrap() else { panic!() };
    assert_eq!(chat.session, SessionChoice::Last);
    let Task::Chat(chat) = task("-c --plain") else { panic!() };
    assert!(chat.session == SessionChoice::Last && chat.plain);
    assert!(parse("-p hi -r").task(false).is_err());
    assert!(parse("--json").task(false).is_err());
    assert!(Cli::try_parse_from(["sala-chat", "-c", "-r", "x"]).is_err());
    assert!(Cli::try_parse_from(["sala-chat", "--jsonl"]).is_err());
}

#[test]
fn options_before_and_after_a_command_are_the_same() {
    for line in ["--data-dir /d --json ls --sizes", "ls --sizes --json --data-dir /d"] {
        let cli = parse(line);
        assert!(cli.global.json && cli.global.data_dir == Some("/d".into()));
        assert!(matches!(cli.task(false).unwrap(), Task::Command(Command::Ls(LsArgs { sizes: true }))));
    }
    let Task::Command(Command::Bench(bench)) = task("bench --context 1,2 --decode 9") else { panic!() };
    assert_eq!((bench.what, bench.context, bench.decode), (BenchWhat::Model, vec![1, 2], 9));
    let Task::Command(Command::Bench(bench)) = task("bench sessions") else { panic!() };
    assert_eq!(bench.what, BenchWhat::Sessions);
    assert!(matches!(task("doctor --fixtures x --device cpu"), Task::Command(Command::Doctor(_))));
}

#[test]
fn options_become_settings() {
    let cli = parse("--demo --spec 5 --temp 0 --seed 3 --think hide --ctx 4096 --ascii");
    let names: Vec<&str> = cli.overrides().unwrap().into_iter().map(|(k, _)| k).collect();
    assert_eq!(
        names,
        [
            "model.source",
            "model.max_context",
            "speculation.mode",
            "speculation.depth",
            "sampling.seed",
            "sampling.temperature",
            "thinking.show",
            "ui.glyphs"
        ]
    );
    assert!(names.iter().all(|n| crate::config::keys::find(n).is_some()));
    assert!(parse("--spec 16").overrides().is_err());
}
