//! Exports of other programs: what is imported, and what is reported as left out.

use crate::store_support;

use sala_chat::core::transcript::{Message, Role};
use sala_chat::runtime::export::imported_line;
use sala_chat::store::{Imported, LeftOut, RealDisk, Watch};
use store_support::*;

/// Imports a file; the messages of its first session, from the root on.
fn imported(file: &str) -> (Imported, Vec<Message>) {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(&dir.path().join("data"), RealDisk));
    let path = dir.path().join("export.json");
    std::fs::write(&path, file).unwrap();
    let imported = bench.store.import(&path, &Watch::NONE).unwrap();
    let head = bench.store.session(imported.sessions[0].0).unwrap().head.unwrap();
    let path = bench.store.path(head).unwrap();
    (imported, path)
}

#[test]
fn code_and_thoughts_of_chatgpt_are_imported() {
    let file = r#"[{"title": "Work", "current_node": "recap2", "mapping": {
        "sys": {"parent": null, "message": {"author": {"role": "system"}, "content": {"content_type": "text", "parts": [""]}}},
        "ask": {"parent": "sys", "message": {"author": {"role": "user"},
            "metadata": {"attachments": [{"mime_type": "image/png"}, {"mimeType": "text/csv", "name": "a.csv"}]},
            "content": {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "How many rows?"]}}},
        "think": {"parent": "ask", "message": {"author": {"role": "assistant"}, "content": {"content_type": "thoughts",
            "thoughts": [{"summary": "Counting", "content": "I need code."}, {"content": "Short code."}]}}},
        "recap": {"parent": "think", "message": {"author": {"role": "assistant"},
            "content": {"content_type": "reasoning_recap", "content": "Thought for 2 seconds"}}},
        "code": {"parent": "recap", "message": {"author": {"role": "assistant"}, "recipient": "python",
            "content": {"content_type": "code", "language": "python", "text": "len(rows)"}}},
        "ran": {"parent": "code", "message": {"author": {"role": "tool"},
            "content": {"content_type": "execution_output", "text": "12"}}},
        "answer": {"parent": "ran", "message": {"author": {"role": "assistant"},
            "content": {"content_type": "text", "parts": ["Twelve."]}}},
        "recap2": {"parent": "answer", "message": {"author": {"role": "assistant"},
            "content": {"content_type": "thoughts", "thoughts": [{"content": "Nothing followed."}]}}}}}]"#;
    let (imported, messages) = imported(file);
    let messages: Vec<(Role, &str, &str)> =
        messages.iter().map(|m| (m.role, m.thinking.as_str(), m.text.as_str())).collect();
    let thoughts = "Counting\nI need code.\n\nShort code.";
    let code = "```python\nlen(rows)\n```";
    assert_eq!(
        messages,
        [(Role::User, "", "How many rows?"), (Role::Assistant, thoughts, code), (Role::Assistant, "", "Twelve.")]
    );
    let left_out = LeftOut { tools: 1, pictures: 1, files: 1, thoughts: 1, other: 1, ..LeftOut::default() };
    assert_eq!(imported.left_out, left_out);
    let line = imported_line(&imported);
    let words = "Left out: 1 message of a tool, 1 picture, 1 attached file, 1 thought without an answer, 1 part of another kind.";
    assert!(line.contains(words), "{line}");
}

#[test]
fn reasoning_of_open_webui_is_thought_and_no_part_of_the_answer() {
    let file = r#"[{"chat": {"title": "Soup", "history": {"currentId": "3", "messages": {
        "1": {"parentId": null, "role": "user", "content": "A recipe?", "files": [{"type": "image"}, {"type": "file"}, {"type": "file"}]},
        "2": {"parentId": "1", "role": "system", "content": "Be kind."},
        "3": {"parentId": "2", "role": "assistant", "content":
            "<details type=\"reasoning\" done=\"true\">\n<summary>Thought</summary>\n&gt; 1 &lt; 2\n</details>\nBoil water."}}}}}]"#;
    let (imported, messages) = imported(file);
    let messages: Vec<(&str, &str)> = messages.iter().map(|m| (m.thinking.as_str(), m.text.as_str())).collect();
    assert_eq!(messages, [("", "A recipe?"), ("1 < 2", "Boil water.")]);
    assert_eq!(imported.left_out, LeftOut { system: 1, pictures: 1, files: 2, ..LeftOut::default() });
    let words = " Left out: 1 system message, 1 picture, 2 attached files.";
    assert!(imported_line(&imported).contains(words), "{}", imported_line(&imported));
}

#[test]
fn thoughts_above_a_branch_are_of_every_answer_below_them() {
    let thought = |above: &str, text: &str| {
        format!(
            r#"{{"parent": "{above}", "message": {{"author": {{"role": "assistant"}},
                "content": {{"content_type": "thoughts", "thoughts": [{{"content": "{text}"}}]}}}}}}"#
        )
    };
    let entry = |above: &str, role: &str, text: &str| {
        format!(
            r#"{{"parent": "{above}", "message": {{"author": {{"role": "{role}"}}, "content": {{"parts": ["{text}"]}}}}}}"#
        )
    };
    let file = |head: &str| {
        let nodes = [
            ("ask", entry("", "user", "How?")),
            ("one", thought("ask", "First.")),
            ("tool", entry("one", "tool", "")),
            ("a", entry("tool", "assistant", "A.")),
            ("b", entry("tool", "assistant", "B.")),
            ("two", thought("tool", "Second.")),
            ("c", entry("two", "assistant", "C.")),
            ("d", entry("two", "assistant", "D.")),
            ("on", entry("d", "assistant", "On.")),
            ("then", entry("two", "user", "Then?")),
            ("last", thought("then", "Never answered.")),
        ];
        let nodes: Vec<String> = nodes.iter().map(|(name, node)| format!("\"{name}\": {node}")).collect();
        format!(r#"[{{"title": "n", "current_node": "{head}", "mapping": {{{}}}}}]"#, nodes.join(","))
    };
    for (head, expected) in [
        ("a", &[("", "How?"), ("First.", "A.")][..]),
        ("b", &[("", "How?"), ("First.", "B.")][..]),
        ("c", &[("", "How?"), ("First.\n\nSecond.", "C.")][..]),
        ("on", &[("", "How?"), ("First.\n\nSecond.", "D."), ("", "On.")][..]),
        ("last", &[("", "How?"), ("", "Then?")][..]),
    ] {
        let (imported, entry) = imported(&file(head));
        let entry: Vec<(&str, &str)> = entry.iter().map(|m| (m.thinking.as_str(), m.text.as_str())).collect();
        assert_eq!(entry, expected, "{head}");
        assert_eq!(imported.left_out, LeftOut { tools: 1, thoughts: 1, ..LeftOut::default() });
    }
}

#[test]
fn code_run_by_open_webui_is_a_block_and_tool_calls_are_counted() {
    let file = r#"[{"chat": {"title": "Rows", "history": {"currentId": "2", "messages": {
        "1": {"parentId": null, "role": "user", "content": "How many rows?"},
        "2": {"parentId": "1", "role": "assistant", "content":
            "I count.\n<details type=\"code_interpreter\" done=\"true\" output=\"{&quot;stdout&quot;: &quot;12\\n&quot;}\">\n<summary>Analyzed</summary>\n```python\nprint(len(rows))\n```\n</details>\n<details type=\"tool_calls\" done=\"true\" name=\"note\">\n<summary>Tool Executed</summary>\n</details>\nTwelve."}}}}}]"#;
    let (imported, messages) = imported(file);
    let messages: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
    let answer = "I count.\n\n```python\nprint(len(rows))\n```\n\n```\n12\n```\n\nTwelve.";
    assert_eq!(messages, ["How many rows?", answer]);
    assert_eq!(imported.left_out, LeftOut { tools: 1, ..LeftOut::default() });
}

/// Imports a file that may be refused.
fn try_import(file: &str) -> Result<Imported, String> {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(&dir.path().join("data"), RealDisk));
    let path = dir.path().join("export.json");
    std::fs::write(&path, file).unwrap();
    bench.store.import(&path, &Watch::NONE).map_err(|e| e.to_string())
}

fn names(imported: &Imported) -> Vec<&str> {
    imported.sessions.iter().map(|(_, name)| name.as_str()).collect()
}

#[test]
fn the_list_replaces_an_empty_map_and_empty_chats_are_named() {
    let list =
        r#"[{"role": "user", "content": "What is a lighthouse?"}, {"role": "assistant", "content": "A tower."}]"#;
    for map in [
        "{}",
        "null",
        r#"{"9": {"done": true}}"#,
        r#"{"1": {"role": "system", "content": "s"}}"#,
        r#"{"1": {"role": "assistant", "content": ""}}"#,
        r#"{"1": {"role": "user", "content": "What is a lighthouse?"}}"#,
        "[]",
        "7",
    ] {
        let other =
            format!(r#"{{"chat": {{"title": "Other", "history": {{"messages": {map}}}, "messages": {list}}}}}"#);
        let (imported, messages) = imported(&format!("[{other}]"));
        assert_eq!(
            (names(&imported), messages.len(), messages[1].text.as_str()),
            (vec!["Other"], 2, "A tower."),
            "{map}"
        );
    }
    let in_history = format!(r#"[{{"chat": {{"title": "Other", "history": {{"messages": {list}}}}}}}]"#);
    assert_eq!(imported(&in_history).1.len(), 2);
    let empty = r#"{"title": "Empty", "chat": {"history": {"messages": {}}, "messages": []}}"#;
    let good = format!(r#"{{"chat": {{"title": "Good", "messages": {list}}}}}"#);
    let with_empty =
        try_import(&format!("[{empty}, {good}, {{\"mapping\": {{}}}}, 5, {{\"title\": \"Bad\"}}]")).unwrap();
    assert_eq!(names(&with_empty), ["Good"]);
    let line = imported_line(&with_empty);
    let words = "Not imported: 2 conversations without a message (\"Empty\", \"number 3 of the file\"); \
                 2 conversations, not a conversation (\"number 4 of the file\", \"Bad\").";
    assert!(line.contains(words), "{line}");
    let e = try_import(&format!("[{empty}]")).unwrap_err();
    assert!(e.contains("there is no conversation in it: 1 conversation without a message (\"Empty\")"), "{e}");
}

#[test]
fn hidden_messages_and_calls_of_tools_are_left_out_and_counted() {
    let node = |name: &str, parent: &str, role: &str, rest: &str| {
        format!(r#""{name}": {{"parent": "{parent}", "message": {{"author": {{"role": "{role}"}}, {rest}}}}}"#)
    };
    let text = |text: &str| format!(r#""content": {{"content_type": "text", "parts": ["{text}"]}}"#);
    let hidden = format!("{}, \"metadata\": {{\"is_visually_hidden_from_conversation\": true}}", text("instructions"));
    let nodes = [
        node("h", "r", "user", &hidden),
        node("a", "h", "user", &format!("\"recipient\": \"all\", {}", text("first"))),
        node("t", "a", "assistant", &format!("\"recipient\": \"bio\", {}", text("User likes lamps."))),
        node("u", "t", "tool", &text("Model set context updated.")),
        node(
            "v",
            "u",
            "assistant",
            r#""recipient": "canmore.create_textdoc", "content": {"content_type": "code", "language": "json", "text": "{}"}"#,
        ),
        node("c", "v", "assistant", &text("second")),
    ];
    let file = format!(r#"[{{"title": "T", "current_node": "c", "mapping": {{{}}}}}]"#, nodes.join(", "));
    let (imported, messages) = imported(&file);
    assert_eq!(messages.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(imported.left_out, LeftOut { tools: 3, hidden: 1, ..LeftOut::default() });
}

#[test]
fn marks_of_sources_go_and_names_in_marks_stay() {
    let node = |name: &str, parent: &str, role: &str, parts: &str| {
        let content = format!(r#"{{"content_type": "text", "parts": {parts}}}"#);
        let message = format!(r#"{{"author": {{"role": "{role}"}}, "content": {content}}}"#);
        format!(r#""{name}": {{"parent": "{parent}", "message": {message}}}"#)
    };
    let marked = r#"["Fact\ue200cite\ue202turn0search0\ue202turn1\ue201. \ue200entity\ue202[\"city\",\"Oslo\",0]\ue201, \ue200url\ue202a page\ue202turn2\ue201"]"#;
    let nodes = [
        node("a", "r", "user", r#"["asked", ["nested"]]"#),
        node("b", "a", "assistant", marked),
        node("c", "b", "assistant", r#"{"0": "lost"}"#),
    ];
    let (imported, messages) = imported(&format!(r#"[{{"title": "T", "mapping": {{{}}}}}]"#, nodes.join(", ")));
    let texts: Vec<_> = messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!(texts, ["asked", "Fact. Oslo, a page"]);
    assert_eq!(imported.left_out, LeftOut { other: 2, ..LeftOut::default() });
}

#[test]
fn one_broken_conversation_is_named_and_the_others_are_imported() {
    let node = |parent: &str, text: &str| {
        format!(
            r#"{{"parent": {parent}, "message": {{"author": {{"role": "user"}}, "content": {{"parts": ["{text}"]}}}}}}"#
        )
    };
    let good = format!(r#"{{"title": "Good", "mapping": {{"a": {}}}}}"#, node("null", "fine \\ud83d end"));
    let ring =
        format!(r#"{{"title": "Ring", "mapping": {{"a": {}, "b": {}}}}}"#, node("\"b\"", "1"), node("\"a\"", "2"));
    for file in [format!("[{good}, {ring}]"), format!("[{ring}, {good}]")] {
        let (imported, path) = imported(&file);
        assert_eq!((names(&imported), imported.messages), (vec!["Good"], 1));
        assert!(path[0].text.starts_with("fine ") && path[0].text.ends_with(" end"), "{:?}", path[0].text);
        let line = imported_line(&imported);
        assert!(
            line.contains("Not imported: 1 conversation, message 1 is among its own ancestors (\"Ring\")."),
            "{line}"
        );
    }
    let e = try_import(&format!("[{ring}]")).unwrap_err();
    assert!(e.contains("\"Ring\"") && e.contains("among its own ancestors"), "{e}");
}

#[test]
fn times_of_every_unit_are_days_and_unknown_ones_stay_unknown() {
    for (time, ms) in [
        ("1755000000", 1_755_000_000_000),
        ("1755000000123", 1_755_000_000_123),
        ("1755000000123456789", 1_755_000_000_123),
        ("\"2026-08-12T10:00:00Z\"", 1_786_528_800_000),
        ("\"1755000000\"", 1_755_000_000_000),
        ("1e300", 0),
        ("null", 0),
    ] {
        let webui = format!(
            r#"[{{"chat": {{"title": "T", "messages": [{{"role": "user", "content": "x", "timestamp": {time}}}]}}}}]"#
        );
        let chatgpt = format!(
            r#"[{{"title": "T", "mapping": {{"a": {{"message": {{"author": {{"role": "user"}}, "create_time": {time},
               "content": {{"parts": ["x"]}}}}}}}}}}]"#
        );
        for file in [webui, chatgpt] {
            assert_eq!(imported(&file).1[0].created_ms, ms, "{time}");
        }
    }
}

#[test]
fn a_long_conversation_is_written_in_parts_and_appears_whole() {
    use sala_chat::store::SessionFilter;
    use std::cell::Cell;
    let dir = tempfile::tempdir().unwrap();
    let (bench, other) = (Bench::new(open(dir.path(), RealDisk)), open(dir.path(), RealDisk));
    let list = vec![r#"{"role": "user", "content": "Hi"}"#; 3_500].join(",");
    let file = dir.path().join("in.json");
    std::fs::write(&file, format!(r#"[{{"chat": {{"title": "Long", "messages": [{list}]}}}}]"#)).unwrap();
    let (read, hidden) = (Cell::new(false), Cell::new(false));
    let stop = || {
        if read.get() {
            assert!(other.sessions(SessionFilter::Live, 10).unwrap().is_empty(), "half of it is shown");
            hidden.set(hidden.get() || !other.sessions(SessionFilter::Trashed, 10).unwrap().is_empty());
        }
        false
    };
    let progress = |done: u64, of: u64| read.set(done == of);
    let imported = bench.store.import(&file, &Watch { stop: &stop, progress: &progress }).unwrap();
    assert!(hidden.get(), "all of it was written at once");
    let session = other.session(imported.sessions[0].0).unwrap();
    assert_eq!((session.name.as_str(), session.messages, session.trashed_ms), ("Long", 3_500, None));
    // Stopped in the middle of it, nothing stays.
    let (read, checks) = (Cell::new(false), Cell::new(0));
    let stop = || {
        checks.set(checks.get() + u32::from(read.get()));
        checks.get() > 2_500
    };
    let progress = |done: u64, of: u64| read.set(done == of);
    assert!(bench.store.import(&file, &Watch { stop: &stop, progress: &progress }).is_err());
    let left = |filter| other.sessions(filter, 10).unwrap().len();
    assert_eq!((left(SessionFilter::Live), left(SessionFilter::Trashed)), (1, 0));
}

#[test]
fn odd_forms_of_chatgpt_lose_no_text() {
    // Nodes in a list, children without parents, and texts outside of the parts.
    let nodes = r#"{"id": "r", "children": ["a"]},
        {"id": "a", "children": ["b"], "message": {"author": "user", "content": "first"}},
        {"id": "b", "children": ["c"], "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "text": "second"}}},
        {"id": "c", "message": {"author": {"role": "user"}, "content": {"parts": "third"}}}"#;
    let (done, messages) = imported(&format!(r#"[{{"title": "List", "mapping": [{nodes}]}}]"#));
    let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!((texts.as_slice(), done.left_out), (&["first", "second", "third"][..], LeftOut::default()));
    // Nodes of a list are named by themselves, by their messages, or by their numbers.
    let list = r#"{"message": {"author": "user", "content": "first"}},
        {"parent": 0, "message": {"id": "m", "author": "assistant", "content": "second"}},
        {"parent": "m", "message": {"author": "user", "content": "third"}}"#;
    let (done, messages) = imported(&format!(r#"[{{"title": "List", "mapping": [{list}]}}]"#));
    let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
    assert_eq!((done.messages, texts.as_slice()), (3, &["first", "second", "third"][..]));
    let twice = r#"{"id": "a", "message": {"author": "user", "content": "lost, and counted"}},
        {"id": "a", "message": {"author": "user", "content": "kept"}}"#;
    let (done, messages) = imported(&format!(r#"[{{"title": "Twice", "mapping": [{twice}]}}]"#));
    assert_eq!((messages[0].text.as_str(), done.left_out), ("kept", LeftOut { other: 1, ..LeftOut::default() }));
    // Names of nodes that are numbers, in one place or the other.
    let nodes = r#""1": {"parent": null, "message": {"author": {"role": "user"}, "content": {"parts": ["first"]}}},
        "2": {"parent": 1, "message": {"author": {"role": "assistant"}, "content": {"parts": ["second"]}}},
        "3": {"parent": 2, "message": {"author": {"role": "user"}, "content": {"parts": ["left"]}}}"#;
    let (_, messages) = imported(&format!(r#"[{{"title": "N", "current_node": 2, "mapping": {{{nodes}}}}}]"#));
    assert_eq!(messages.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    // Parents that are not in the file, and children that are above.
    for (of_first, of_second) in [
        (r#""parent": null, "children": ["2"]"#, r#""parent": """#),
        (r#""children": ["2"]"#, r#""parent": "gone""#),
        (r#""parent": null, "children": ["2"]"#, r#""parent": "1", "children": ["1"]"#),
        (r#""children": ["1", "2"]"#, r#""children": ["2", "1"]"#),
    ] {
        let nodes = format!(
            r#""1": {{{of_first}, "message": {{"author": "user", "content": "first"}}}},
            "2": {{{of_second}, "message": {{"author": "assistant", "content": "second"}}}}"#
        );
        let (_, messages) = imported(&format!(r#"[{{"title": "N", "mapping": {{{nodes}}}}}]"#));
        let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(texts, ["first", "second"], "{of_first}; {of_second}");
    }
    // A conversation of a program that is not known is named.
    let other = r#"{"name": "Elsewhere", "chat_messages": [{"text": "Hi"}]}"#;
    let (done, _) = imported(&format!(r#"[{{"title": "N", "mapping": {{{nodes}}}}}, {other}]"#));
    assert!(imported_line(&done).contains("\"Elsewhere\""), "{}", imported_line(&done));
}
