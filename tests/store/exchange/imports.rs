//! Texts coming in: of other programs, of any shape, while others write.

use std::path::Path;

use sala_chat::runtime::protocol::ExportFormat;
use sala_chat::store::{Scope, SessionFilter, StoreError, Watch};

use super::bench;
use super::store_support::*;

#[path = "../../support/cpu_time.rs"]
mod cpu_time;

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
        bench.store.import(&file, &Watch::NONE)
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

#[test]
fn imports_are_linear_whatever_hangs_on_what() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let import = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let begun = std::time::Instant::now();
        let imported = bench.store.import(&file, &Watch::NONE);
        println!("{name}: {} KB in {:.2} s", text.len() / 1000, begun.elapsed().as_secs_f64());
        imported
    };
    // A chain of empty nodes, each resolved to its first ancestor with text.
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
        let begun = cpu_time::of_this_thread();
        import(name, &list).unwrap();
        (cpu_time::of_this_thread() - begun).as_secs_f64()
    };
    let (few, many) = (time("few", 8_000), time("many", 32_000));
    assert!(few > 0.01, "an import works on another thread");
    assert!(many < 9.0 * few + 1.0, "{few} s for 8,000 talks, {many} s for 32,000");
}

#[test]
fn an_import_with_an_unknown_head_uses_the_last_message() {
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
        let imported = bench.store.import(&file, &Watch::NONE).unwrap();
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
        let (_, save) = Chat::begin(&bench.store, name);
        assert!(is_saved(&bench.save(save)));
    }
    assert_eq!(bench.store.free_name("hello").unwrap(), "hello-2");
    assert_eq!(bench.store.free_name("hello-18446744073709551615").unwrap(), "hello-18446744073709551615-2");
    let import = |path: &Path| bench.store.import(path, &Watch::NONE).unwrap_err();
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
    let named = bench.store.import(&file, &Watch::NONE).unwrap().sessions.remove(0).1;
    assert!(named.chars().count() <= 200 && !named.chars().any(char::is_control), "{named:?}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_an_export() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let file = dir.path().join("marked.json");
    let chat = r#"[{"chat":{"title":"Marked","messages":[{"role":"user","content":"Hi"}]}}]"#;
    for (text, taken) in [(format!("\u{FEFF}{chat}"), true), (format!("\u{FEFF}\u{FEFF}{chat}"), false)] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(bench.store.import(&file, &Watch::NONE).is_ok(), taken);
    }
}

#[test]
fn the_zip_of_an_export_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let file = dir.path().join("export.zip");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&file).unwrap());
    for (name, text) in [
        ("chat.html", "<html>"),
        ("conversations.json", r#"[{"chat":{"title":"Zipped","messages":[{"role":"user","content":"Hi"}]}}]"#),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    assert_eq!(bench.store.import(&file, &Watch::NONE).unwrap().sessions.len(), 1);
    let whole = std::fs::read(&file).unwrap();
    // Larger exports have parts, and some programs put all into a folder.
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&file).unwrap());
    for (name, text) in [("x/conversations-001.json", "second"), ("x/conversations-000.json", "first")] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        let chat = format!(r#"[{{"chat":{{"title":"{text}","messages":[{{"role":"user","content":"Hi"}}]}}}}]"#);
        std::io::Write::write_all(&mut zip, chat.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    let names = bench.store.import(&file, &Watch::NONE).unwrap().sessions;
    assert_eq!(names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let why = bench.store.import(&file, &Watch::NONE).unwrap_err().to_string();
    assert!(why.contains("a zip without a readable conversations.json ("), "{why}");
}

/// Files of each form with something broken or odd in them, and the texts of each of their sessions.
#[test]
fn broken_parts_of_a_file_are_skipped_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(&dir.path().join("data"));
    let file = dir.path().join("in.json");
    let import = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let imported = bench.store.import(&file, &Watch::NONE).unwrap_or_else(|e| panic!("{e}: {text}"));
        let texts = |(id, name): &(_, String)| {
            let nodes = bench.store.tree(*id, "", 100).unwrap();
            let all = nodes.into_iter().map(|n| bench.store.message(n.message.id).unwrap().text);
            (name.clone(), all.collect::<Vec<_>>().join("|"))
        };
        imported.sessions.iter().map(texts).collect::<Vec<_>>()
    };
    let one = |name: &str, texts: &str| vec![(name.to_owned(), texts.to_owned())];
    let node = |role: &str, parts: &str| format!(r#"{{"author":{{"role":"{role}"}},"content":{{"parts":{parts}}}}}"#);
    // Nodes of other types, fields of other types, the head before the nodes, and what a broken conversation says.
    let nodes = [
        r#""x":7"#.to_owned(),
        r#""y":[{"message":1}]"#.into(),
        format!(
            r#""c":{{"parent":"b","message":{}}}"#,
            node("assistant", r#"[3,null,{"text":9},{"text":"yes"},"no"]"#)
        ),
        format!(r#""a":{{"message":{},"parent":17}}"#, node("user", r#"["begin"]"#)),
        r#""b":{"parent":"a","message":{"author":"me","content":["?"],"create_time":"soon"}}"#.into(),
        format!(r#""d":{{"parent":"a","message":{}}}"#, node("user", r#""no list""#)),
        format!(r#""e":{{"parent":"nowhere","children":[[[]]],"message":{}}}"#, node("user", r#"["root"]"#)),
    ];
    let odd = format!(
        r#"[{{"current_node":"c","mapping":{{{}}},"title":"odd"}},5,null,{{"mapping":"?"}},{{"chat":{{}}}},{{"title":"none"}}]"#,
        nodes.join(",")
    );
    assert_eq!(import(&odd), one("odd", "begin|root|yes\n\nno|no list"));
    // A repeated name: the last one counts, at the position of the first.
    let twice = format!(
        r#"{{"title":"a","title":"twice","mapping":{{"a":{},"b":{{"parent":"a","message":{}}},"a":{{"message":{}}}}}}}"#,
        r#"{"message":null}"#,
        node("assistant", r#"["second"]"#),
        node("user", r#"["first"]"#)
    );
    assert_eq!(import(&twice), one("twice", "first|second"));
    // The plain list before the history, which has priority; a list without a history; content of any type.
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
        bench.store.import(&file, &Watch::NONE).unwrap_err().to_string()
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
    let chat =
        format!(r#"{{"chat":{{"title":"t","messages":[{{"role":"user","content":"{}"}}]}}}}"#, "word ".repeat(2_000));
    std::fs::write(file, format!("[{}]", vec![chat; 300].join(","))).unwrap();
    std::fs::metadata(file).unwrap().len()
}

#[test]
fn others_can_write_during_an_import_and_names_stay_unique() {
    use std::cell::Cell;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (bench, other) = (bench(&data), bench(&data));
    let file = dir.path().join("in.json");
    let bytes = many_talks(&file);
    let saved = Cell::new(false);
    let progress = |done: u64, of: u64| {
        if of == bytes && (1..of).contains(&done) && !saved.replace(true) {
            let (_, save) = Chat::begin(&other.store, "t");
            assert!(is_saved(&other.save(save)), "while {done} of {of} are read");
        }
    };
    let imported = bench.store.import(&file, &Watch { progress: &progress, ..Watch::NONE }).unwrap();
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
        Watch { stop: &|| taken.get() > 1 << 20, progress: &|done, of| taken.set(if of == bytes { done } else { 0 }) };
    assert!(matches!(bench.store.import(&file, &watch), Err(StoreError::Stopped)));
    assert!((1 << 20..bytes).contains(&taken.get()), "{} of {bytes}", taken.get());
    let sessions = || bench.store.sessions(SessionFilter::Live, 1_000).unwrap().len();
    assert_eq!(sessions(), 0);
    // Nor where it is stopped while it is written: the file is read to its end by then.
    let (read, checks) = (Cell::new(false), Cell::new(0));
    let stop = || {
        checks.set(checks.get() + u32::from(read.get()));
        checks.get() > 100
    };
    let progress = |done: u64, of: u64| read.set(read.get() || (done, of) == (bytes, bytes));
    assert!(matches!(bench.store.import(&file, &Watch { stop: &stop, progress: &progress }), Err(StoreError::Stopped)));
    assert!(read.get());
    assert_eq!(sessions(), 0);
    // Its ids are free again, and are never assigned twice.
    let (_, save) = Chat::begin(&bench.store, "one");
    assert!(is_saved(&bench.save(save)));
    assert_eq!(bench.store.import(&file, &Watch::NONE).unwrap().messages, 300);
    assert_eq!(sessions(), 301);
    // What a stopped search has put into the index stays there.
    let indexed = Cell::new(0);
    let watch = Watch { stop: &|| indexed.get() > 50, progress: &|done, _| indexed.set(done) };
    assert!(matches!(bench.store.search("word", 10, &watch), Err(StoreError::Stopped)));
    let left = bench.store.index_texts(&Watch::NONE).unwrap();
    assert!(left > 0 && left < 250, "{left}");
    assert_eq!(bench.store.search("word", 10, &Watch::NONE).unwrap().len(), 10);
}
