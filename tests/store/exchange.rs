//! Conversations leaving and entering the store.

mod bundles;
mod imports;
use crate::store_support;

use std::path::Path;

use sala_chat::core::transcript::{Passage, Role, Seen, Sentence, Sources};
use sala_chat::runtime::protocol::ExportFormat;
use sala_chat::store::{Change, Overwrite, RealDisk, Save, Scope, TitleBy, Watch};
use store_support::*;

/// Two turns and a document, then one exchange undone and another one had.
fn branched(bench: &Bench) -> Chat {
    let store = &bench.store;
    let (mut chat, save) = Chat::begin(store, "tree");
    bench.save(save);
    bench.save(chat.turn(store, "hello", "hi"));
    bench.save(chat.document(store, "a ```code``` fence", 2));
    let (head, tip, position) = (chat.head, chat.tip, chat.position);
    let rendered = chat.rendered.clone();
    bench.save(chat.turn(store, "undone", "forgotten"));
    (chat.head, chat.tip, chat.position, chat.rendered) = (head, tip, position, rendered);
    bench.save(chat.turn(store, "kept", "remembered"));
    let mark = Change::Mark { session: chat.session, name: "here".into(), message: head.unwrap() };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    chat
}

fn bench(root: &Path) -> Bench {
    Bench::new(open(root, RealDisk))
}

#[test]
fn text_and_markdown_show_the_branch_or_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let chat = branched(&bench);
    let export = |format, scope| bench.store.export(chat.session, format, scope).unwrap();
    assert_eq!(
        export(ExportFormat::Text, Scope::Tree),
        "You:\nhello\n\nAssistant:\nhi\n\nDocument untitled:\na ```code``` fence\n\nYou:\nkept\n\nAssistant:\nremembered\n\n\
         ----- branch after #3 -----\n\nYou:\nundone\n\nAssistant:\nforgotten\n\n"
    );
    let markdown = export(ExportFormat::Markdown, Scope::Branch);
    assert_eq!(
        markdown,
        "# tree\n\n## You\n\nhello\n\n## Assistant\n\nhi\n\n## Document: untitled\n\n````text\na ```code``` fence\n````\n\n\
         ## You\n\nkept\n\n## Assistant\n\nremembered\n"
    );
    let target = dir.path().join("out.md");
    let write = |overwrite| {
        bench.store.export_to(chat.session, ExportFormat::Markdown, Scope::Branch, &target, overwrite, &Watch::NONE)
    };
    write(Overwrite::No).unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), markdown);
    let refused = write(Overwrite::No).unwrap_err();
    assert!(refused.to_string().ends_with("out.md exists. --force overwrites."), "{refused}");
    write(Overwrite::Yes).unwrap();
    // A socket or a folder is never overwritten.
    let target = dir.path().join("a socket");
    let _socket = std::os::unix::net::UnixListener::bind(&target).unwrap();
    let (format, scope) = (ExportFormat::Markdown, Scope::Branch);
    for path in [target.as_path(), dir.path()] {
        for overwrite in [Overwrite::No, Overwrite::Yes] {
            let refused = bench.store.export_to(chat.session, format, scope, path, overwrite, &Watch::NONE);
            let refused = refused.unwrap_err().to_string();
            let expected = match path.is_dir() {
                true => "is a folder. Name a file in it.",
                false => "is not a regular file: it is not overwritten. Name another one.",
            };
            assert!(refused.ends_with(expected), "{refused}");
        }
        assert!(!path.is_file());
    }
}

#[test]
fn text_and_markdown_say_what_an_answer_looked_at_as_json_does() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let (mut chat, save) = Chat::begin(&bench.store, "looks");
    bench.save(save);
    let lines: String = (1..=60).map(|n| format!("line {n} of ```it```\n")).collect();
    bench.save(chat.document(&bench.store, &lines, 2));
    bench.save(chat.turn(&bench.store, "which?", "It is red.\nSo it is. And that is all."));
    let mut answer = bench.store.message(chat.head.unwrap()).unwrap();
    let passage = |document: Option<&str>, number, lines: (u64, u64), share| Passage {
        document: document.map(str::to_owned),
        number,
        first_line: lines.0,
        last_line: lines.1,
        share,
        ..Passage::default()
    };
    answer.meta.looked = Some(Sources {
        // The third is not on this branch.
        passages: vec![
            passage(Some("notes\n.txt"), 1, (7, 8), 0.31),
            passage(None, 2, (1, 1), 0.1),
            passage(Some("gone.txt"), 9, (1, 50), 0.02),
        ],
        sentences: vec![
            Sentence { end: 10, seen: vec![Seen(1, 7, 8, 4000), Seen(2, 1, 1, 500)] },
            Sentence { end: 20, seen: vec![Seen(1, 9, 9, 300)] },
            Sentence { end: 37, seen: Vec::new() },
        ],
        names: [(1, "notes\n.txt".to_owned())].into(),
        ..Sources::default()
    });
    let change = Change::PutMessage { session: chat.session, message: Box::new(answer) };
    assert!(is_saved(&bench.save(Save { changes: vec![change], images: vec![] })));
    let export = |format| bench.store.export(chat.session, format, Scope::Tree).unwrap();
    let text = export(ExportFormat::Text);
    let (_, looked) = text.split_once("And that is all.\n").unwrap();
    assert_eq!(
        looked,
        "Looked at:\n[1] notes .txt 7-8 (31%)\n      7  line 7 of ```it```\n      8  line 8 of ```it```\n[2] #2 (10%)\n      1  \
         which?\n[3] gone.txt 1-50 (2%)\nLooked at, by sentence:\n- It is red.\n    notes .txt 7-8 (40%), #2 (5%)\n- So it \
         is.\n    notes .txt 9 (3%)\n\n"
    );
    let markdown = export(ExportFormat::Markdown);
    let (_, looked) = markdown.split_once("And that is all.\n").unwrap();
    assert_eq!(
        looked,
        "\n**Looked at**\n\n1. notes .txt 7-8 (31%)\n\n   ````text\n         7  line 7 of ```it```\n         8  line 8 of \
         ```it```\n   ````\n\n2. #2 (10%)\n\n   ```text\n         1  which?\n   ```\n\n3. gone.txt 1-50 (2%)\n\n**Looked at, by \
         sentence**\n\n- It is red. *notes .txt 7-8 (40%), #2 (5%)*\n- So it is. *notes .txt 9 (3%)*\n"
    );
    // The same places as JSON has.
    let json: serde_json::Value = serde_json::from_str(&export(ExportFormat::Json)).unwrap();
    let looked = &json["messages"][2]["meta"]["looked"];
    assert_eq!((looked["passages"][0]["first_line"].as_u64(), looked["sentences"][1][0].as_u64()), (Some(7), Some(20)));
}

#[test]
fn json_restores_all_branches_and_marks() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let chat = branched(&from);
    let titled = |text: &str, by| Change::Title { session: chat.session, title: text.into(), by };
    assert_eq!(from.store.own_title(chat.session).unwrap(), None);
    // A title by the model replaces the words of the question, and never a title by a person.
    for (text, by) in [
        ("Greetings", TitleBy::Model),
        ("Hello!", TitleBy::Model),
        ("Salutations", TitleBy::Person),
        ("Hi", TitleBy::Model),
    ] {
        assert!(is_saved(&from.save(Save { changes: vec![titled(text, by)], images: vec![] })));
    }
    assert_eq!(from.store.own_title(chat.session).unwrap().as_deref(), Some("Salutations"));
    let file = dir.path().join("tree.json");
    from.store.export_to(chat.session, ExportFormat::Json, Scope::Tree, &file, Overwrite::No, &Watch::NONE).unwrap();

    let to = bench(&dir.path().join("to"));
    for wanted in ["tree", "tree-2"] {
        let imported = to.store.import(&file, &Watch::NONE).unwrap();
        let (session, name) = &imported.sessions[0];
        assert_eq!((name.as_str(), imported.messages), (wanted, 7));
        assert_eq!(to.store.own_title(*session).unwrap().as_deref(), Some("Salutations"));
        assert_eq!(to.store.session(*session).unwrap().title, "Salutations");
        assert!(imported.text_only.unwrap().contains("--with-state"));
        for format in [ExportFormat::Text, ExportFormat::Markdown] {
            let strip = |text: String| text.replacen("# tree-2\n", "# tree\n", 1);
            let theirs = strip(to.store.export(*session, format, Scope::Tree).unwrap());
            assert_eq!(theirs, from.store.export(chat.session, format, Scope::Tree).unwrap());
        }
        let marks = to.store.marks(*session).unwrap();
        assert_eq!((marks.len(), marks[0].name.as_str()), (1, "here"));
        assert_eq!(to.store.message(marks[0].message).unwrap().role, Role::Document);
    }
    assert_eq!(to.store.search("forgotten", 10, &Watch::NONE).unwrap().len(), 2);
}

#[test]
fn damaged_settings_survive_an_export_and_import() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let chat = branched(&bench);
    let damaged = "{\"seed\": 7, \"temp";
    let change = Change::Settings { session: chat.session, json: damaged.into() };
    assert!(is_saved(&bench.save(Save { changes: vec![change], images: vec![] })));
    let file = dir.path().join("out.json");
    bench.store.export_to(chat.session, ExportFormat::Json, Scope::Tree, &file, Overwrite::No, &Watch::NONE).unwrap();
    let imported = bench.store.import(&file, &Watch::NONE).unwrap();
    assert_eq!(bench.store.session(imported.sessions[0].0).unwrap().settings, damaged);
}
