use super::*;

#[test]
fn unknown_command_names_the_nearest() {
    assert_eq!(parse("/lod", None).err().unwrap(), "No command /lod. Did you mean /load? (/help lists all)");
    assert_eq!(parse("/zzzzzz", None).err().unwrap(), "No command /zzzzzz. (/help lists all)");
    assert_eq!(nearest("resmue"), Some("resume"));
}

#[test]
fn off_and_show_are_no_system_texts() {
    let outcome = |line: &str| parse(line, None).unwrap().outcome;
    for (line, text) in
        [("/system off", Some("")), ("/system show", None), ("/system", None), ("/system Off.", Some("Off."))]
    {
        assert_eq!(outcome(line), Outcome::Runtime(Request::System(text.map(str::to_owned))), "{line}");
    }
}

#[test]
fn slash_messages_can_be_sent() {
    assert!(!is_command(" /etc") && !is_command("//etc") && !is_command("/") && is_command("/quit"));
    assert_eq!(message_text("//etc is a folder"), "/etc is a folder");
}

#[test]
fn habits_of_other_programs_work_or_are_answered() {
    for (line, name) in [
        ("/clear", "new"),
        ("/bye", "quit"),
        ("/exit", "quit"),
        ("/quit", "quit"),
        ("/add a.txt", "load"),
        ("/drop notes", "unload"),
        ("/tokens", "ctx"),
        ("/save", "save"),
        ("/config", "settings"),
        ("/?", "help"),
    ] {
        assert_eq!(parse(line, None).map(|p| p.command.name), Ok(name), "{line}");
    }
    for (line, says) in [("/model", "sala-chat --model"), ("/history", "/timeline"), ("/reset", "/new")] {
        let refused = parse(line, None).err().unwrap();
        assert!(refused.starts_with(&format!("No command {line}. ")) && refused.contains(says), "{refused}");
    }
    // An answer to a habit never hides a command, and names commands that are there.
    for (words, answer) in table::HABITS {
        assert!(words.iter().all(|w| find(w).is_none()), "{words:?}");
        for word in answer.split(|c: char| c.is_whitespace() || c == ',' || c == '.').filter(|w| w.starts_with('/')) {
            assert!(find(&word[1..]).is_some(), "{answer}");
        }
    }
}

/// A line that each command refuses; a command without one takes free text.
const REFUSED: &[&str] = &[
    "/load --head",
    "/follow --head 4k",
    "/changes now",
    "/refresh now",
    "/watch off all",
    "/docs now",
    "/unload",
    "/open",
    "/library burn",
    "/ask-all",
    "/look two",
    "/quotes two",
    "/why not",
    "/new a b",
    "/resume a b",
    "/split x",
    "/sessions x",
    "/rename",
    "/title",
    "/pin a b",
    "/delete a b",
    "/search",
    "/export talk.pdf",
    "/import",
    "/save x",
    "/timeline x",
    "/undo two",
    "/redo two",
    "/regen temp=hot",
    "/edit three",
    "/fork #x",
    "/branch a b",
    "/mark",
    "/goto",
    "/aside",
    "/when",
    "/set temperature 7",
    "/preset save",
    "/think hard",
    "/spec 40",
    "/theme a b",
    "/stats x",
    "/map x",
    "/ctx x",
    "/doctor x",
    "/copy it",
    "/park now",
    "/unpark now",
    "/keys x",
    "/quit now",
];

#[test]
fn every_command_has_a_working_example_and_a_refused_one() {
    for c in COMMANDS.iter() {
        let refused = REFUSED.iter().find(|line| line[1..].split(' ').next() == Some(c.name));
        assert!(parse(&c.example(), None).is_ok_and(|p| p.command.name == c.name), "{}", c.example());
        assert!(!c.help.is_empty() && c.help.len() < 80, "{}", c.name);
        match refused {
            None => assert!(c.usage.contains('['), "{}: only free text may have no error example", c.name),
            Some(line) => {
                let error = parse(line, None).err().unwrap_or_else(|| panic!("{line} was accepted"));
                assert!(error.starts_with(&format!("/{}: ", c.name)) && error.contains("Example: "), "{error}");
            }
        }
    }
}

#[test]
fn options_are_those_of_the_usage_and_are_parsed() {
    for c in COMMANDS.iter() {
        let flags = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !(c.is_alphanumeric() || c == '-'));
            words.filter(|w| w.starts_with("--")).map(str::to_owned).collect()
        };
        let explained: Vec<String> = c.options.iter().flat_map(|(option, _)| flags(option)).collect();
        assert_eq!(explained, flags(c.usage), "/{}", c.name);
        for flag in explained {
            let line = format!("/{} x {flag} 1", c.name);
            if let Err(e) = parse(&line, None) {
                assert!(!e.contains("unknown option"), "{line}: {e}");
            }
        }
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> =
        COMMANDS.iter().flat_map(|c| std::iter::once(c.name).chain(c.aliases.iter().copied())).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn load_takes_paths_and_options() {
    let home = std::path::Path::new("/home/u");
    let p = parse(r#"/load "my file.txt" ~/b\ c.md --head 4k --pages 2-9 --once"#, Some(home)).unwrap();
    let options = LoadOptions { head: Some(4000), pages: Some((2, 9)), once: true, ..LoadOptions::default() };
    assert_eq!(
        p.outcome,
        Outcome::Runtime(Request::Load { paths: vec!["my file.txt".into(), "/home/u/b c.md".into()], options })
    );
    let p = parse("/load @notes a.txt \"@my book\" ./@x", None).unwrap();
    let options = LoadOptions { library: vec!["notes".into(), "my book".into()], ..LoadOptions::default() };
    assert_eq!(p.outcome, Outcome::Runtime(Request::Load { paths: vec!["a.txt".into(), "./@x".into()], options }));
    assert!(parse("/load @notes", None).is_ok() && parse("/load @", None).is_ok());
    assert!(parse("/load 'open", None).err().unwrap().contains("quote"));
    assert!(parse("/load a --head x", None).is_err());
    let refused = parse("/load a --tial 3", None).err().unwrap();
    assert!(refused.contains("unknown option --tial; known: --as, --head, --tail"), "{refused}");
}

#[test]
fn an_export_writes_what_its_name_says_or_nothing() {
    let format = |line: &str| match parse(line, None).map(|p| p.outcome) {
        Ok(Outcome::Runtime(Request::Export { format, .. })) => Ok(format),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e),
    };
    let refused = format("/export talk.pdf").unwrap_err();
    assert!(refused.contains("PDF is not supported") && refused.contains("--md"), "{refused}");
    assert_eq!(format("/export talk.pdf --md"), Ok(Some(ExportFormat::Markdown)));
    assert_eq!(format("/export talk.tar --with-state"), Ok(None));
    for other in ["--tree", "--md", "--json"] {
        let refused = format(&["/export talk.tar --with-state", other].join(" ")).unwrap_err();
        assert!(refused.contains("--with-state has its own format"), "{refused}");
    }
    let of = |name: &str| ExportFormat::of_path(std::path::Path::new(name));
    assert_eq!((of("a.JSON"), of("talk")), (Ok(ExportFormat::Json), Ok(ExportFormat::Markdown)));
}

#[test]
fn set_reaches_the_owner_of_the_setting() {
    let outcome = |line: &str| parse(line, None).map(|p| p.outcome);
    let set = |k: &str, v: &str| Ok(Outcome::Runtime(Request::Set(Some((k.into(), v.into())))));
    assert_eq!(outcome("/set temp 0.30"), set("temperature", "0.3"));
    assert_eq!(outcome("/set presence-penalty 1"), set("presence_penalty", "1"));
    assert_eq!(outcome("/set seed -1"), set("seed", "auto"));
    let show = |k, v: &str| Ok(Outcome::Local(Local::Show(vec![(k, v.to_owned())])));
    assert_eq!(outcome("/set theme light"), show("ui.theme", "light"));
    assert_eq!(outcome("/theme light"), show("ui.theme", "light"));
    assert_eq!(outcome("/think show"), show("thinking.show", "open"));
    let says = |line: &str| outcome(line).unwrap_err();
    assert!(says("/set temperature").contains("temperature needs a value: 0 to 2"), "{}", says("/set temperature"));
    assert!(says("/set temprature 1").contains("Did you mean temperature?"), "{}", says("/set temprature 1"));
    let saved = says("/set temprature 1 --save");
    assert!(saved.contains("Did you mean sampling.temperature?"), "{saved}");
    assert!(says("/set spec 40").contains("or a whole number from 1 to 15 (got 40)"));
}

#[test]
fn the_example_of_a_refused_setting_is_of_that_setting() {
    let refused = |line: &str| parse(line, None).map(|p| p.outcome).unwrap_err();
    assert!(refused("/set thinking_budget much").ends_with(". Example: /set thinking_budget 0"));
    assert!(refused("/set temp 0.9 now").ends_with(". Example: /set temperature 0.9"));
    assert!(refused("/set ui.mouse true").ends_with("for the next start. Example: /set ui.mouse true --save"));
    assert!(refused("/set colour red").ends_with(". Example: /set temperature 0.3"));
    for row in crate::config::settings::table::ROWS {
        let refused = refused(&format!("/set {} x y", row.name));
        let (_, example) = refused.split_once("Example: ").unwrap();
        assert!(parse(example, None).is_ok(), "{example}");
    }
}

#[test]
fn help_is_grouped_searchable_and_explains_options() {
    let page = help::page();
    assert!(!page.contains("##") && COMMANDS.iter().all(|c| page.contains(&format!("/{}", c.name))));
    for line in page.lines().filter(|l| l.starts_with("  /")) {
        assert!(line.chars().count() <= 78, "one row each at 80 columns: {line}");
    }
    assert!(page.contains("  /load PATH... ") && page.contains("  /library …"), "{page}");
    let text = help::about("/load").unwrap();
    assert!(text.contains("`--head N`: only its first N tokens") && text.contains("Also: `/add`"), "{text}");
    let text = help::about("clipboard").unwrap();
    assert!(text.contains("/copy") && text.contains("clipboard.method"), "{text}");
    assert!(help::about("zzz").unwrap_err().contains("nothing is found for zzz"));
    assert!(help::about("lod").unwrap_err().contains("Did you mean load?"));
    assert!(help::about("close").unwrap_err().contains("No session needs closing"));
    for command in COMMANDS.iter() {
        for name in command.aliases.iter().chain([&command.name]) {
            assert_eq!(help::about(name), Ok(help::of(command)), "/help {name}");
        }
    }
    let text = help::about("set").unwrap();
    assert!(text.contains("`temperature`: temperature; 0 always") && text.contains("0 to 2"), "{text}");
}

#[test]
fn a_name_runs_alone_when_it_needs_nothing_more() {
    for (name, alone) in [("docs", true), ("undo", true), ("load", true), ("rename", false), ("help", true)] {
        assert_eq!(find(name).unwrap().runs_alone(), alone, "{name}");
    }
}

#[test]
fn an_export_to_standard_output_is_refused_and_says_where_it_can_be_had() {
    let refused = parse("/export - --md", None).err().unwrap();
    assert!(refused.contains("sala-chat export NAME -"), "{refused}");
}

#[test]
fn a_message_converts_back_to_the_line_that_sends_it() {
    for text in ["/quit now", "//x", "/", "plain", " /x", "", "a /b"] {
        let line = line_of(text);
        assert!(!is_command(&line), "{line}");
        assert_eq!(message_text(&line), text);
    }
}

#[test]
fn a_name_that_is_offered_is_read_as_that_name() {
    use crate::core::sanitize::command_word;
    for name in ["x", "x y", "it's", "'tis so", "~", "a \"b\" c\\", "c\\ d", "#3"] {
        let line = format!("/resume {}", command_word(name));
        let read = parse(&line, Some(std::path::Path::new("/home/x"))).map(|p| p.outcome);
        assert_eq!(read, Ok(Outcome::Runtime(Request::Resume(name.into()))), "{line}");
    }
}

#[test]
fn names_with_spaces_are_written_in_quotes_before_a_question_too() {
    let outcome = |line: &str| parse(line, None).map(|p| p.outcome);
    let expected =
        Request::AskAll { question: "Who's \"A\"?".into(), library: Some("my notes*.md".into()), read: true };
    assert_eq!(outcome("/ask-all --read --library \"my notes*.md\"  Who's \"A\"?"), Ok(Outcome::Runtime(expected)));
    assert!(outcome("/ask-all --library \"notes Who?").is_err());
}
