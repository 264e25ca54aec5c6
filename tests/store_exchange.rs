//! Conversations leaving and entering the store.

mod store_support;

use std::path::Path;

use sala_chat::protocol::desk::ExportFormat;
use sala_chat::session::{
    Change, Overwrite, RealDisk, Save, Scope, SegmentId, SessionFilter, StoreError, TitleBy, Watch,
};
use sala_chat::transcript::{Passage, Role, Seen, Sentence, Sources};
use store_support::*;

/// Two turns and a document, then one exchange undone and another one had.
fn branched(bench: &Bench) -> Talk {
    let store = &bench.store;
    let (mut talk, save) = Talk::begin(store, "tree");
    bench.save(save);
    bench.save(talk.turn(store, "hello", "hi"));
    bench.save(talk.document(store, "a ```code``` fence", 2));
    let (head, tip, position) = (talk.head, talk.tip, talk.position);
    let rendered = talk.rendered.clone();
    bench.save(talk.turn(store, "undone", "forgotten"));
    (talk.head, talk.tip, talk.position, talk.rendered) = (head, tip, position, rendered);
    bench.save(talk.turn(store, "kept", "remembered"));
    let mark = Change::Mark { session: talk.session, name: "here".into(), message: head.unwrap() };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    talk
}

fn bench(root: &Path) -> Bench {
    Bench::new(open(root, RealDisk))
}

#[test]
fn text_and_markdown_show_the_branch_or_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let talk = branched(&bench);
    let export = |format, scope| bench.store.export(talk.session, format, scope).unwrap();
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
        bench.store.export_to(talk.session, ExportFormat::Markdown, Scope::Branch, &target, overwrite, &Watch::NOBODY)
    };
    write(Overwrite::No).unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), markdown);
    let refused = write(Overwrite::No).unwrap_err();
    assert!(refused.to_string().ends_with("out.md exists. --force overwrites."), "{refused}");
    write(Overwrite::Yes).unwrap();
    // Nobody's old export: a device or a pipe would be gone.
    let target = dir.path().join("a socket");
    let _socket = std::os::unix::net::UnixListener::bind(&target).unwrap();
    let (format, scope) = (ExportFormat::Markdown, Scope::Branch);
    for path in [target.as_path(), dir.path()] {
        for overwrite in [Overwrite::No, Overwrite::Yes] {
            let refused = bench.store.export_to(talk.session, format, scope, path, overwrite, &Watch::NOBODY);
            let refused = refused.unwrap_err().to_string();
            assert!(refused.ends_with("is not a regular file: it is not overwritten. Name another one."), "{refused}");
        }
        assert!(!path.is_file());
    }
}

#[test]
fn text_and_markdown_say_what_an_answer_looked_at_as_json_does() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let (mut talk, save) = Talk::begin(&bench.store, "looks");
    bench.save(save);
    let lines: String = (1..=60).map(|n| format!("line {n} of ```it```\n")).collect();
    bench.save(talk.document(&bench.store, &lines, 2));
    bench.save(talk.turn(&bench.store, "which?", "It is red.\nSo it is. And that is all."));
    let mut answer = bench.store.message(talk.head.unwrap()).unwrap();
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
    let change = Change::PutMessage { session: talk.session, message: Box::new(answer) };
    assert!(is_saved(&bench.save(Save { changes: vec![change], images: vec![] })));
    let export = |format| bench.store.export(talk.session, format, Scope::Tree).unwrap();
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
fn json_comes_back_with_all_branches_and_marks() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let titled = |text: &str, by| Change::Title { session: talk.session, title: text.into(), by };
    assert_eq!(from.store.own_title(talk.session).unwrap(), None);
    // The model's takes the place of the question's words, and of nobody's title.
    for (text, by) in [
        ("Greetings", TitleBy::Model),
        ("Hello!", TitleBy::Model),
        ("Salutations", TitleBy::Person),
        ("Hi", TitleBy::Model),
    ] {
        assert!(is_saved(&from.save(Save { changes: vec![titled(text, by)], images: vec![] })));
    }
    assert_eq!(from.store.own_title(talk.session).unwrap().as_deref(), Some("Salutations"));
    let file = dir.path().join("tree.json");
    from.store.export_to(talk.session, ExportFormat::Json, Scope::Tree, &file, Overwrite::No, &Watch::NOBODY).unwrap();

    let to = bench(&dir.path().join("to"));
    for wanted in ["tree", "tree-2"] {
        let imported = to.store.import(&file, &Watch::NOBODY).unwrap();
        let (session, name) = &imported.sessions[0];
        assert_eq!((name.as_str(), imported.messages), (wanted, 7));
        assert_eq!(to.store.own_title(*session).unwrap().as_deref(), Some("Salutations"));
        assert_eq!(to.store.session(*session).unwrap().title, "Salutations");
        assert!(imported.text_only.unwrap().contains("--with-state"));
        for format in [ExportFormat::Text, ExportFormat::Markdown] {
            let strip = |text: String| text.replacen("# tree-2\n", "# tree\n", 1);
            let theirs = strip(to.store.export(*session, format, Scope::Tree).unwrap());
            assert_eq!(theirs, from.store.export(talk.session, format, Scope::Tree).unwrap());
        }
        let marks = to.store.marks(*session).unwrap();
        assert_eq!((marks.len(), marks[0].name.as_str()), (1, "here"));
        assert_eq!(to.store.message(marks[0].message).unwrap().role, Role::Document);
    }
    assert_eq!(to.store.search("forgotten", 10, &Watch::NOBODY).unwrap().len(), 2);
}

#[test]
fn settings_that_are_damaged_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let talk = branched(&bench);
    let damaged = "{\"seed\": 7, \"temp";
    let change = Change::Settings { session: talk.session, json: damaged.into() };
    assert!(is_saved(&bench.save(Save { changes: vec![change], images: vec![] })));
    let file = dir.path().join("out.json");
    bench.store.export_to(talk.session, ExportFormat::Json, Scope::Tree, &file, Overwrite::No, &Watch::NOBODY).unwrap();
    let imported = bench.store.import(&file, &Watch::NOBODY).unwrap();
    assert_eq!(bench.store.session(imported.sessions[0].0).unwrap().settings, damaged);
}

#[test]
fn a_bundle_resumes_elsewhere_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let file = dir.path().join("tree.sala");
    let bundled = from.store.export_bundle(talk.session, MODEL, &file, Overwrite::No, &Watch::NOBODY).unwrap();
    assert_eq!((bundled.state_tokens, bundled.replay_tokens), (talk.position, 0));
    assert_eq!(bundled.bytes, std::fs::metadata(&file).unwrap().len());
    assert!(matches!(
        from.store.export_bundle(talk.session, "another model", &dir.path().join("x"), Overwrite::No, &Watch::NOBODY),
        Err(StoreError::NoState { .. })
    ));

    let to = bench(&dir.path().join("to"));
    let imported = to.store.import(&file, &Watch::NOBODY).unwrap();
    assert_eq!((imported.state_tokens, imported.text_only), (talk.position, None));
    let session = to.store.session_named("tree").unwrap();
    assert_eq!((session.messages, session.tokens, session.state_of.as_deref()), (5, talk.position, Some(MODEL)));
    let tip = to.store.tip_segment(session.head.unwrap(), MODEL).unwrap().unwrap().1;
    assert_ne!(Some(tip), talk.tip, "reading the same tokens here finds nothing of it");
    assert!(to.store.segment(&talk.tip.unwrap()).unwrap().is_none());
    let (here, there) = (restore(&to.store, &tip, 0).unwrap(), restore(&from.store, &talk.tip.unwrap(), 0).unwrap());
    assert_eq!(here.plan.usable, 4);
    assert!(here.rows.iter().zip(&there.rows).all(|(a, b)| same_rows(a, b)));
    assert!(same_end(&here.end.unwrap(), &there.end.unwrap()));
    // A second time the files are there already.
    assert_eq!(to.store.import(&file, &Watch::NOBODY).unwrap().state_tokens, talk.position);
}

#[test]
fn a_damaged_bundle_gives_its_text_or_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let file = dir.path().join("tree.sala");
    from.store.export_bundle(talk.session, MODEL, &file, Overwrite::No, &Watch::NOBODY).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let to = bench(&dir.path().join("to"));
    // In the state: text comes, state does not, nothing is left behind.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let imported = to.store.import(&file, &Watch::NOBODY).unwrap();
    assert!(imported.text_only.unwrap().contains("damaged"), "said so");
    assert_eq!((imported.messages, imported.state_tokens), (5, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("to/segments")).unwrap().count(), 0);
    // Without its last byte.
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let why = to.store.import(&file, &Watch::NOBODY).unwrap().text_only.unwrap();
    assert!(why.contains("it ends before the state does"), "{why}");
    // In the manifest, or cut short.
    for damaged in [
        &{
            let mut b = whole.clone();
            b[100] ^= 1;
            b
        }[..],
        &whole[..80],
        &whole[..30],
    ] {
        std::fs::write(&file, damaged).unwrap();
        assert!(to.store.import(&file, &Watch::NOBODY).is_err());
    }
    assert_eq!(to.store.sessions(sala_chat::session::SessionFilter::Live, 10).unwrap().len(), 2);
    assert!(to.store.segment(&SegmentId([0; 32])).unwrap().is_none());
}

#[test]
fn chatgpt_and_open_webui_exports_give_their_texts() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let chatgpt = r#"[{"title": "Trip", "current_node": "d", "mapping": {
        "d": {"parent": "c", "message": {"author": {"role": "assistant"}, "create_time": 4.5,
              "content": {"content_type": "text", "parts": ["Take a ferry."]}}},
        "root": {"parent": null, "message": null},
        "sys": {"parent": "root", "message": {"author": {"role": "system"}, "content": {"parts": [""]}}},
        "a": {"parent": "sys", "message": {"author": {"role": "user"}, "content": {"parts": ["How do I get there?"]}}},
        "b": {"parent": "a", "message": {"author": {"role": "assistant"}, "content": {"parts": ["By train."]}}},
        "c": {"parent": "b", "message": {"author": {"role": "user"}, "content": {"parts": ["And then?", {"image": 1}]}}},
        "e": {"parent": "a", "message": {"author": {"role": "assistant"}, "content": {"parts": ["By bus."]}}}}}]"#;
    let webui = r#"[{"title": "Outer", "chat": {"title": "Soup", "history": {"currentId": "2", "messages": {
        "1": {"id": "1", "parentId": null, "role": "user", "content": "A recipe?", "timestamp": 1700000000},
        "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "Boil water."}}}}},
        {"chat": {"title": "Old form", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]}},
        {"chat": {"title": "Tools", "history": {"currentId": "5", "messages": {
        "1": {"parentId": null, "role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "image_url"}, "this?"]},
        "2": {"parentId": "1", "role": "tool", "content": "found"},
        "3": {"parentId": "2", "role": "system", "content": "be kind"},
        "4": {"parentId": "3", "role": "assistant", "content": "A cat."},
        "5": {"parentId": "4", "role": "tool", "content": "done"}}}}}]"#;
    let texts = |session| bench.store.export(session, ExportFormat::Text, Scope::Branch).unwrap();
    let import = |text: &str| {
        let file = dir.path().join("import.json");
        std::fs::write(&file, text).unwrap();
        bench.store.import(&file, &Watch::NOBODY)
    };
    let trip = import(chatgpt).unwrap();
    assert!(trip.text_only.unwrap().contains("ChatGPT"));
    assert_eq!(
        texts(trip.sessions[0].0),
        "You:\nHow do I get there?\n\nAssistant:\nBy train.\n\nYou:\nAnd then?\n\nAssistant:\nTake a ferry.\n\n"
    );
    assert_eq!(bench.store.tree(trip.sessions[0].0, "", 100).unwrap().len(), 5);
    let soup = import(webui).unwrap();
    let names: Vec<&str> = soup.sessions.iter().map(|s| s.1.as_str()).collect();
    assert_eq!(names, ["Soup", "Old form", "Tools"]);
    assert_eq!(texts(soup.sessions[0].0), "You:\nA recipe?\n\nAssistant:\nBoil water.\n\n");
    assert_eq!(texts(soup.sessions[1].0), "You:\nHi\n\nAssistant:\nHey\n\n");
    assert_eq!(texts(soup.sessions[2].0), "You:\nWhat is\n\nthis?\n\nAssistant:\nA cat.\n\n");

    for bad in ["", "[]", "{}", "17", "[{\"mapping\": 3}]", "{\"format\": \"sala-chat session\", \"version\": 9}"] {
        let e = import(bad).unwrap_err();
        assert!(matches!(e, StoreError::Import { .. }) && !e.to_string().contains('\n'), "{bad}: {e}");
    }
    // A ring of parents is an error, not followed for ever.
    let message = |id: i64, parent: i64| {
        format!(
            r#"{{"id":{id},"parent":{parent},"role":"user","text":"m{id}","thinking":"","created_ms":0,"meta":{{}}}}"#
        )
    };
    let ring = format!(
        r#"{{"format":"sala-chat session","version":1,"name":"ring","head":2,"messages":[{},{}]}}"#,
        message(1, 2),
        message(2, 1)
    );
    let e = import(&ring).unwrap_err();
    assert!(e.to_string().contains("message 1 is among its own ancestors"), "{e}");
    let itself = format!(
        r#"{{"format":"sala-chat session","version":1,"name":"itself","head":1,"messages":[{}]}}"#,
        message(1, 1)
    );
    assert!(import(&itself).unwrap_err().to_string().contains("among its own ancestors"));
    let twice = format!(
        r#"{{"format":"sala-chat session","version":1,"name":"twice","head":1,"messages":[{},{}]}}"#,
        message(1, 7),
        message(1, 7)
    );
    assert!(import(&twice).unwrap_err().to_string().contains("two messages have the number 1"));
    // Without the message that it follows, the conversation would be another one.
    let missing = format!(
        r#"{{"format":"sala-chat session","version":1,"name":"missing","head":2,"messages":[{},{}]}}"#,
        message(1, 99),
        message(2, 1)
    );
    let e = import(&missing).unwrap_err().to_string();
    assert!(e.contains("message 1 follows message 99, which is not in the file"), "{e}");
}

/// A bundle of one turn whose state was made by `spoil`: an attacker can put anything under checksums of their own.
fn hostile(
    dir: &Path,
    name: &str,
    spoil: impl Fn(&mut sala_chat::protocol::engine::StateImage),
) -> (std::path::PathBuf, Talk) {
    let theirs = bench(&dir.join(format!("theirs {name}")));
    let (mut talk, save) = Talk::begin(&theirs.store, "gift");
    theirs.save(save);
    let mut save = talk.document(&theirs.store, "a document everybody reads", 1);
    spoil(&mut save.images[0].1);
    assert!(is_saved(&theirs.save(save)));
    let file = dir.join(format!("{name}.sala"));
    theirs.store.export_bundle(talk.session, MODEL, &file, Overwrite::No, &Watch::NOBODY).unwrap();
    (file, talk)
}

#[test]
fn state_from_a_file_answers_only_for_the_sessions_that_came_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let zero = |image: &mut sala_chat::protocol::engine::StateImage| {
        let end = image.end.as_mut().unwrap();
        for t in image.rows.tensors.iter_mut().chain(&mut end.tensors) {
            t.data = vec![0; t.data.len()].into();
        }
    };
    let (file, gift) = hostile(dir.path(), "zeros", zero);
    let ours = bench(&dir.path().join("ours"));
    let imported = ours.store.import(&file, &Watch::NOBODY).unwrap();
    assert_eq!((imported.state_tokens, &imported.text_only), (gift.position, &None));
    let theirs = ours.store.session(imported.sessions[0].0).unwrap();
    let given = ours.store.tip_segment(theirs.head.unwrap(), MODEL).unwrap().unwrap().1;
    assert_eq!(restore(&ours.store, &given, 0).unwrap().plan.usable, 1, "for the session it came with it is there");

    // The same document read here has another name, before and after ours is saved, and keeps its own state.
    assert_ne!(Some(given), gift.tip);
    assert!(ours.store.segment(&gift.tip.unwrap()).unwrap().is_none());
    let (mut honest, save) = Talk::begin(&ours.store, "honest");
    ours.save(save);
    assert!(is_saved(&ours.save(honest.document(&ours.store, "a document everybody reads", 1))));
    assert_eq!(honest.tip, gift.tip);
    let here = restore(&ours.store, &honest.tip.unwrap(), 0).unwrap();
    assert!(same_rows(&here.rows[0], &image(&honest.segments[0]).rows));
    // Going on from it stays apart as well: the next segment builds on its name.
    let next = sala_chat::session::SegmentId::compute(MODEL, Some(&given), &[1], &[2]);
    assert_ne!(next, sala_chat::session::SegmentId::compute(MODEL, gift.tip.as_ref(), &[1], &[2]));
    // What we export and take back is ours no more, but works for what came with it.
    let again = dir.path().join("again.sala");
    ours.store.export_bundle(theirs.id, MODEL, &again, Overwrite::No, &Watch::NOBODY).unwrap();
    assert_eq!(ours.store.import(&again, &Watch::NOBODY).unwrap().state_tokens, gift.position);

    // Without its sessions it goes.
    for session in ours.store.sessions(sala_chat::session::SessionFilter::Live, 10).unwrap() {
        if session.name.starts_with("gift") {
            ours.store.delete(session.id).unwrap();
        }
    }
    ours.store.empty_trash(Some(0)).unwrap();
    assert!(ours.store.segment(&given).unwrap().is_none());
    assert_eq!(restore(&ours.store, &honest.tip.unwrap(), 0).unwrap().plan.usable, 1);
    let left = std::fs::read_dir(dir.path().join("ours/segments")).unwrap().count();
    assert_eq!(left, 2, "rows and state of the honest session");
}

#[test]
fn wild_values_and_other_shapes_are_found_at_import_and_cost_the_state_only() {
    use sala_chat::protocol::engine::{Dtype, StateImage, TensorData};
    let dir = tempfile::tempdir().unwrap();
    let ours = bench(&dir.path().join("ours"));
    // State of the same model made here says what shapes it has.
    let (mut own, save) = Talk::begin(&ours.store, "own");
    ours.save(save);
    assert!(is_saved(&ours.save(own.turn(&ours.store, "q", "a"))));
    fn put(data: &mut TensorData, at: usize, bytes: &[u8]) {
        let mut copy = data.to_vec();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        *data = copy.into();
    }
    type Spoil = fn(&mut StateImage);
    let cases: [(&str, &str, Spoil); 7] = [
        ("nan", "is no number", |i| put(&mut i.end.as_mut().unwrap().tensors[0].data, 8, &f32::NAN.to_le_bytes())),
        ("inf", "is no number", |i| put(&mut i.rows.tensors[1].data, 4, &[0x80, 0x7f])),
        ("heads", "belongs", |i| {
            for t in &mut i.rows.tensors {
                t.shape = vec![t.shape[0], 2, 4];
            }
        }),
        ("type", "belongs", |i| {
            for t in &mut i.rows.tensors {
                (t.dtype, t.shape) = (Dtype::F32, vec![t.shape[0], 1, 4]);
            }
        }),
        ("state", "belongs", |i| i.end.as_mut().unwrap().tensors[0].shape = vec![8, 2, 8]),
        ("missing", "has no v.0", |i| i.rows.tensors.retain(|t| t.name != "v.0")),
        ("another", "is no array", |i| i.rows.tensors[0].name = "weights".into()),
    ];
    for (name, why, spoil) in cases {
        let (file, _) = hostile(dir.path(), name, spoil);
        let imported = ours.store.import(&file, &Watch::NOBODY).unwrap();
        let said = imported.text_only.unwrap_or_default();
        assert!(said.contains(why), "{name}: {said:?}");
        assert_eq!((imported.messages, imported.state_tokens), (1, 0), "{name}");
        let session = ours.store.session(imported.sessions[0].0).unwrap();
        assert_eq!(ours.store.tip_segment(session.head.unwrap(), MODEL).unwrap(), None, "{name}");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("ours/segments")).unwrap().count(), 2, "nothing is left of them");
}

#[test]
fn imports_are_linear_whatever_hangs_on_what() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let import = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let begun = std::time::Instant::now();
        let imported = bench.store.import(&file, &Watch::NOBODY);
        println!("{name}: {} KB in {:.2} s", text.len() / 1000, begun.elapsed().as_secs_f64());
        imported
    };
    // Silent nodes in a row, each asked for the one above it that speaks.
    let n = 60_000;
    let mut mapping =
        String::from(r#""n0":{"parent":null,"message":{"author":{"role":"user"},"content":{"parts":["begin"]}}}"#);
    for i in 1..n {
        mapping.push_str(&format!(r#","n{i}":{{"parent":"n{}","message":null}}"#, i - 1));
        if i % 3 == 0 {
            mapping.push_str(&format!(
                r#","w{i}":{{"parent":"n{i}","message":{{"author":{{"role":"assistant"}},"content":{{"parts":["{i}"]}}}}}}"#
            ));
        }
    }
    let silent =
        import("silent.json", &format!(r#"[{{"title":"s","current_node":"n{}","mapping":{{{mapping}}}}}]"#, n - 1));
    assert_eq!(silent.unwrap().messages, 1 + (n as u64 - 1) / 3);
    // A ring of silent ones ends.
    let ring = r#"[{"title":"r","mapping":{"a":{"parent":"b"},"b":{"parent":"a"},
        "c":{"parent":"a","message":{"author":{"role":"user"},"content":{"parts":["x"]}}}}}]"#;
    assert_eq!(import("ring.json", ring).unwrap().messages, 1);
    // One long path, last message first; and many conversations of one name.
    let message = |i: usize| {
        let parent = if i == 0 { "null".into() } else { (i - 1).to_string() };
        format!(
            r#"{{"id":{i},"parent":{parent},"role":"user","text":"m{i}","thinking":"","created_ms":0,"meta":{{}}}}"#
        )
    };
    let messages: Vec<String> = (0..40_000).rev().map(message).collect();
    let path = format!(
        r#"{{"format":"sala-chat session","version":1,"name":"long","head":39999,"messages":[{}]}}"#,
        messages.join(",")
    );
    let long = import("long.json", &path).unwrap();
    assert_eq!(bench.store.session(long.sessions[0].0).unwrap().messages, 40_000);
    let one = r#"{"chat":{"title":"New Chat","messages":[{"role":"user","content":"Hi"}]}}"#;
    let many = import("many.json", &format!("[{}]", vec![one; 4_000].join(","))).unwrap();
    assert_eq!(many.sessions.last().unwrap().1, "New Chat-4000");
    // Four times as many take no more than about four times as long, whatever else the machine does.
    let time = |name: &str, count: usize| {
        let one =
            |i: usize| format!(r#"{{"chat":{{"title":"{name} {i}","messages":[{{"role":"user","content":"Hi"}}]}}}}"#);
        let list = format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(","));
        let begun = std::time::Instant::now();
        import(name, &list).unwrap();
        begun.elapsed().as_secs_f64()
    };
    let (few, many) = (time("few", 8_000), time("many", 32_000));
    assert!(many < 9.0 * few + 1.0, "{few} s for 8,000 talks, {many} s for 32,000");
}

#[test]
fn a_session_that_stands_at_no_message_of_its_file_stands_at_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let file = dir.path().join("in.json");
    let import = |head: &str| {
        // The last message that nothing hangs on is not the last of the file.
        let message = |id: i64, parent: &str| {
            format!(
                r#"{{"id":{id},"parent":{parent},"role":"user","text":"m{id}","thinking":"","created_ms":0,"meta":{{}}}}"#
            )
        };
        let messages = [message(7, "5"), message(9, "5"), message(5, "null")].join(",");
        let text =
            format!(r#"{{"format":"sala-chat session","version":1,"name":"s","head":{head},"messages":[{messages}]}}"#);
        std::fs::write(&file, text).unwrap();
        let imported = bench.store.import(&file, &Watch::NOBODY).unwrap();
        let head = bench.store.session(imported.sessions[0].0).unwrap().head;
        let texts = head.map(|h| bench.store.path(h).unwrap().into_iter().map(|m| m.text).collect::<Vec<_>>());
        (imported.without_place, texts.unwrap_or_default())
    };
    let path = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
    assert_eq!(import("999"), (1, path(["m5", "m9"])));
    assert_eq!(import("7"), (0, path(["m5", "m7"])));
    assert_eq!(import("null"), (0, Vec::new()));
}

#[test]
fn numbers_at_the_edge_and_files_that_are_none_are_plain_errors() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    for name in ["hello", "hello-18446744073709551615", "hello-9223372036854775807", "hello-99999999999999999999999"] {
        let (_, save) = Talk::begin(&bench.store, name);
        assert!(is_saved(&bench.save(save)));
    }
    assert_eq!(bench.store.free_name("hello").unwrap(), "hello-2");
    assert_eq!(bench.store.free_name("hello-18446744073709551615").unwrap(), "hello-18446744073709551615-2");
    let import = |path: &Path| bench.store.import(path, &Watch::NOBODY).unwrap_err();
    assert!(matches!(import(&dir.path().join("missing")), StoreError::NoInput { .. }));
    assert!(import(dir.path()).to_string().ends_with(": a folder. Name a file in it: an export can be imported"));
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    for odd in [Path::new("/dev/zero"), &dir.path().join("socket")] {
        assert!(import(odd).to_string().ends_with(": not a regular file. Copy it to a file first"), "{odd:?}");
    }
    // Names are one short line.
    let file = dir.path().join("name.json");
    let name = format!("a\\u001b]0;x\\u0007\\n{}", "b".repeat(1000));
    std::fs::write(
        &file,
        format!(r#"{{"format":"sala-chat session","version":1,"name":"{name}","head":null,"messages":[]}}"#),
    )
    .unwrap();
    let named = bench.store.import(&file, &Watch::NOBODY).unwrap().sessions.remove(0).1;
    assert!(named.chars().count() <= 200 && !named.chars().any(char::is_control), "{named:?}");
}

/// Files of each form with something broken or odd in them, and the texts of each of their sessions.
#[test]
fn what_is_broken_in_one_place_is_stepped_over_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let file = dir.path().join("in.json");
    let import = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let imported = bench.store.import(&file, &Watch::NOBODY).unwrap_or_else(|e| panic!("{e}: {text}"));
        let texts = |(id, name): &(_, String)| {
            let nodes = bench.store.tree(*id, "", 100).unwrap();
            let all = nodes.into_iter().map(|n| bench.store.message(n.message.id).unwrap().text);
            (name.clone(), all.collect::<Vec<_>>().join("|"))
        };
        imported.sessions.iter().map(texts).collect::<Vec<_>>()
    };
    let one = |name: &str, texts: &str| vec![(name.to_owned(), texts.to_owned())];
    let said = |role: &str, parts: &str| format!(r#"{{"author":{{"role":"{role}"}},"content":{{"parts":{parts}}}}}"#);
    // Nodes of other types, fields of other types, the head before the nodes, and what a broken conversation says.
    let nodes = [
        r#""x":7"#.to_owned(),
        r#""y":[{"message":1}]"#.into(),
        format!(
            r#""c":{{"parent":"b","message":{}}}"#,
            said("assistant", r#"[3,null,{"text":9},{"text":"yes"},"no"]"#)
        ),
        format!(r#""a":{{"message":{},"parent":17}}"#, said("user", r#"["begin"]"#)),
        r#""b":{"parent":"a","message":{"author":"me","content":["?"],"create_time":"soon"}}"#.into(),
        format!(r#""d":{{"parent":"a","message":{}}}"#, said("user", r#""no list""#)),
        format!(r#""e":{{"parent":"nowhere","children":[[[]]],"message":{}}}"#, said("user", r#"["root"]"#)),
    ];
    let odd = format!(
        r#"[{{"current_node":"c","mapping":{{{}}},"title":"odd"}},5,null,{{"mapping":"?"}},{{"chat":{{}}}},{{"title":"none"}}]"#,
        nodes.join(",")
    );
    assert_eq!(import(&odd), one("odd", "begin|root|yes\n\nno"));
    // A name that comes twice: the last one counts, in the place of the first.
    let twice = format!(
        r#"{{"title":"a","title":"twice","mapping":{{"a":{},"b":{{"parent":"a","message":{}}},"a":{{"message":{}}}}}}}"#,
        r#"{"message":null}"#,
        said("assistant", r#"["second"]"#),
        said("user", r#"["first"]"#)
    );
    assert_eq!(import(&twice), one("twice", "first|second"));
    // The plain list before the history, which goes before it; a list where there is no history; content of any type.
    let webui = r#"[{"title":"outer","chat":{"messages":[{"role":"user","content":"list"}],
        "history":{"messages":{"2":{"parentId":"1","role":"assistant","content":{"a":1}},"1":{"role":"user","content":"q"}},"currentId":"2"}}},
        {"title":"list","chat":{"history":{"messages":[]},"messages":[4,{"role":"user","content":[{"text":"x"},"y"]},{"role":"tool","content":"no"}]}},
        {"chat":7},[],{"title":3,"chat":{"title":null,"messages":[{"role":"assistant","timestamp":true,"content":"z"}]}}]"#;
    let names = import(webui);
    let texts: Vec<&str> = names.iter().map(|(_, texts)| texts.as_str()).collect();
    assert_eq!(texts, ["q|", "x\n\ny", "z"]);
    // Ours, its fields in any order and with others among them.
    let ours = r#"{"later":{"a":[1]},"messages":[{"meta":{"new":1},"id":2,"parent":1,"role":"assistant","text":"b","thinking":"","created_ms":0},
        {"id":1,"parent":null,"role":"user","text":"a","thinking":"","created_ms":0,"meta":{}}],"head":2,"name":"ours","version":1,"format":"sala-chat session"}"#;
    assert_eq!(import(ours), one("ours", "a|b"));
    let error = |text: &str| {
        std::fs::write(&file, text).unwrap();
        bench.store.import(&file, &Watch::NOBODY).unwrap_err().to_string()
    };
    for (text, why) in [
        (r#"{"format":"sala-chat session","version":2}"#, "written by a newer sala-chat: update this one"),
        (r#"{"format":"sala-chat session"}"#, "a damaged sala-chat export (its version is not 1)"),
        (
            r#"{"format":"sala-chat session","version":1,"name":4}"#,
            "a damaged sala-chat export (invalid type: integer `4`",
        ),
        (r#"[{"mapping":{"a":{}}}]"#, "there is no conversation in it"),
        (r#"[[{"mapping":{}}]]"#, "neither a sala-chat, ChatGPT nor Open WebUI export"),
        (r#"[{"mapping":{"a":{}}},"#, "not JSON (EOF while parsing a value"),
        (r#"{"chat":{}} x"#, "not JSON (trailing characters"),
    ] {
        let e = error(text);
        assert!(e.contains(why), "{text}: {e}");
    }
}

/// A file of 300 conversations of another program, 3 MB, all of one title, and its size.
fn many_talks(file: &Path) -> u64 {
    let talk =
        format!(r#"{{"chat":{{"title":"t","messages":[{{"role":"user","content":"{}"}}]}}}}"#, "word ".repeat(2_000));
    std::fs::write(file, format!("[{}]", vec![talk; 300].join(","))).unwrap();
    std::fs::metadata(file).unwrap().len()
}

#[test]
fn others_write_while_an_import_reads_its_file_and_names_are_those_that_are_free_then() {
    use std::cell::Cell;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (bench, other) = (bench(&data), bench(&data));
    let file = dir.path().join("in.json");
    let bytes = many_talks(&file);
    let saved = Cell::new(false);
    let told = |done: u64, of: u64| {
        if of == bytes && (1..of).contains(&done) && !saved.replace(true) {
            let (_, save) = Talk::begin(&other.store, "t");
            assert!(is_saved(&other.save(save)), "while {done} of {of} are read");
        }
    };
    let imported = bench.store.import(&file, &Watch { told: &told, ..Watch::NOBODY }).unwrap();
    assert!(saved.get());
    let names: std::collections::BTreeSet<&str> = imported.sessions.iter().map(|(_, name)| name.as_str()).collect();
    assert!(names.len() == 300 && !names.contains("t") && names.contains("t-2"), "{names:?}");
    assert_eq!(other.store.sessions(SessionFilter::Live, 1_000).unwrap().len(), 301);
}

#[test]
fn an_import_that_is_stopped_has_written_nothing() {
    use std::cell::Cell;
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let file = dir.path().join("in.json");
    let bytes = many_talks(&file);
    // As soon as some of it was taken.
    let taken = Cell::new(0);
    let watch =
        Watch { stop: &|| taken.get() > 1 << 20, told: &|done, of| taken.set(if of == bytes { done } else { 0 }) };
    assert!(matches!(bench.store.import(&file, &watch), Err(StoreError::Stopped)));
    assert!((1 << 20..bytes).contains(&taken.get()), "{} of {bytes}", taken.get());
    let sessions = || bench.store.sessions(SessionFilter::Live, 1_000).unwrap().len();
    assert_eq!(sessions(), 0);
    // Nor where it is stopped while it is written: the file is read to its end by then.
    let (read, asked) = (Cell::new(false), Cell::new(0));
    let stop = || {
        asked.set(asked.get() + u32::from(read.get()));
        asked.get() > 100
    };
    let told = |done: u64, of: u64| read.set(read.get() || (done, of) == (bytes, bytes));
    assert!(matches!(bench.store.import(&file, &Watch { stop: &stop, told: &told }), Err(StoreError::Stopped)));
    assert!(read.get());
    assert_eq!(sessions(), 0);
    // Its ids are free again, and go to nobody twice.
    let (_, save) = Talk::begin(&bench.store, "one");
    assert!(is_saved(&bench.save(save)));
    assert_eq!(bench.store.import(&file, &Watch::NOBODY).unwrap().messages, 300);
    assert_eq!(sessions(), 301);
    // What a stopped search has put into the index stays there.
    let indexed = Cell::new(0);
    let watch = Watch { stop: &|| indexed.get() > 50, told: &|done, _| indexed.set(done) };
    assert!(matches!(bench.store.search("word", 10, &watch), Err(StoreError::Stopped)));
    let left = bench.store.index_texts(&Watch::NOBODY).unwrap();
    assert!(left > 0 && left < 250, "{left}");
    assert_eq!(bench.store.search("word", 10, &Watch::NOBODY).unwrap().len(), 10);
}
