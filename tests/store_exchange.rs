//! Conversations leaving and entering the store.

mod store_support;

use std::path::Path;

use sala_chat::protocol::desk::ExportFormat;
use sala_chat::session::{Change, Overwrite, RealDisk, Save, Scope, SegmentId, StoreError};
use sala_chat::transcript::Role;
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
    let write =
        |overwrite| bench.store.export_to(talk.session, ExportFormat::Markdown, Scope::Branch, &target, overwrite);
    write(Overwrite::No).unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), markdown);
    let refused = write(Overwrite::No).unwrap_err();
    assert!(refused.to_string().ends_with("out.md exists. --force overwrites."), "{refused}");
    write(Overwrite::Yes).unwrap();
}

#[test]
fn json_comes_back_with_all_branches_and_marks() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let file = dir.path().join("tree.json");
    from.store.export_to(talk.session, ExportFormat::Json, Scope::Tree, &file, Overwrite::No).unwrap();

    let to = bench(&dir.path().join("to"));
    for wanted in ["tree", "tree-2"] {
        let imported = to.store.import(&file).unwrap();
        let (session, name) = &imported.sessions[0];
        assert_eq!((name.as_str(), imported.messages), (wanted, 7));
        assert!(imported.text_only.unwrap().contains("--with-state"));
        for format in [ExportFormat::Text, ExportFormat::Markdown] {
            let strip = |text: String| text.replacen("# tree-2\n", "# tree\n", 1);
            let theirs = strip(to.store.export(*session, format, Scope::Tree).unwrap());
            assert_eq!(theirs, from.store.export(talk.session, format, Scope::Tree).unwrap());
        }
        let mark = to.store.mark(*session, "here").unwrap();
        assert_eq!(to.store.message(mark).unwrap().role, Role::Document);
    }
    assert_eq!(to.store.search("forgotten", 10).unwrap().len(), 2);
}

#[test]
fn a_bundle_resumes_elsewhere_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let file = dir.path().join("tree.sala");
    let bundled = from.store.export_bundle(talk.session, MODEL, &file, Overwrite::No).unwrap();
    assert_eq!((bundled.state_tokens, bundled.replay_tokens), (talk.position, 0));
    assert_eq!(bundled.bytes, std::fs::metadata(&file).unwrap().len());
    assert!(matches!(
        from.store.export_bundle(talk.session, "another model", &dir.path().join("x"), Overwrite::No),
        Err(StoreError::NoState { .. })
    ));

    let to = bench(&dir.path().join("to"));
    let imported = to.store.import(&file).unwrap();
    assert_eq!((imported.state_tokens, imported.text_only), (talk.position, None));
    let session = to.store.session_named("tree").unwrap();
    assert_eq!((session.messages, session.tokens, session.state_of.as_deref()), (5, talk.position, Some(MODEL)));
    let tip = to.store.tip_segment(session.head.unwrap(), MODEL).unwrap().unwrap().1;
    assert_eq!(Some(tip), talk.tip);
    let (here, there) = (to.store.restore(&tip, 0).unwrap(), from.store.restore(&tip, 0).unwrap());
    assert_eq!(here.plan.usable, 4);
    assert!(here.rows.iter().zip(&there.rows).all(|(a, b)| same_rows(a, b)));
    assert!(same_end(&here.end.unwrap(), &there.end.unwrap()));
    // A second time the files are there already.
    assert_eq!(to.store.import(&file).unwrap().state_tokens, talk.position);
}

#[test]
fn a_damaged_bundle_gives_its_text_or_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let talk = branched(&from);
    let file = dir.path().join("tree.sala");
    from.store.export_bundle(talk.session, MODEL, &file, Overwrite::No).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let to = bench(&dir.path().join("to"));
    // In the state: text comes, state does not, nothing is left behind.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let imported = to.store.import(&file).unwrap();
    assert!(imported.text_only.unwrap().contains("damaged"), "said so");
    assert_eq!((imported.messages, imported.state_tokens), (5, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("to/segments")).unwrap().count(), 0);
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
        assert!(to.store.import(&file).is_err());
    }
    assert_eq!(to.store.sessions(sala_chat::session::SessionFilter::Live, 10).unwrap().len(), 1);
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
        {"chat": {"title": "Old form", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]}}]"#;
    let texts = |session| bench.store.export(session, ExportFormat::Text, Scope::Branch).unwrap();
    let import = |text: &str| {
        let file = dir.path().join("import.json");
        std::fs::write(&file, text).unwrap();
        bench.store.import(&file)
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
    assert_eq!(names, ["Soup", "Old form"]);
    assert_eq!(texts(soup.sessions[0].0), "You:\nA recipe?\n\nAssistant:\nBoil water.\n\n");
    assert_eq!(texts(soup.sessions[1].0), "You:\nHi\n\nAssistant:\nHey\n\n");

    for bad in ["", "[]", "{}", "17", "[{\"mapping\": 3}]", "{\"format\": \"sala-chat session\", \"version\": 9}"] {
        let e = import(bad).unwrap_err();
        assert!(matches!(e, StoreError::Import { .. }) && !e.to_string().contains('\n'), "{bad}: {e}");
    }
    // A ring of parents is cut, not followed for ever.
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
    let ring = import(&ring).unwrap();
    assert_eq!(texts(ring.sessions[0].0), "You:\nm1\n\nYou:\nm2\n\n");
}
