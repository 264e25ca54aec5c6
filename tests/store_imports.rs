//! Exports of other programs: what comes along of them, and what is said to be left out.

mod store_support;

use sala_chat::core::transcript::{Message, Role};
use sala_chat::runtime::export::imported_line;
use sala_chat::store::{Imported, LeftOut, RealDisk, Watch};
use store_support::*;

/// Imports a file; what is said in its first session, from the root on.
fn imported(file: &str) -> (Imported, Vec<Message>) {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(&dir.path().join("data"), RealDisk));
    let path = dir.path().join("export.json");
    std::fs::write(&path, file).unwrap();
    let imported = bench.store.import(&path, &Watch::NOBODY).unwrap();
    let head = bench.store.session(imported.sessions[0].0).unwrap().head.unwrap();
    let path = bench.store.path(head).unwrap();
    (imported, path)
}

#[test]
fn code_and_thoughts_of_chatgpt_come_along_and_the_rest_is_counted() {
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
    let (imported, said) = imported(file);
    let said: Vec<(Role, &str, &str)> = said.iter().map(|m| (m.role, m.thinking.as_str(), m.text.as_str())).collect();
    let thoughts = "Counting\nI need code.\n\nShort code.";
    let code = "```python\nlen(rows)\n```";
    assert_eq!(
        said,
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
    let (imported, said) = imported(file);
    let said: Vec<(&str, &str)> = said.iter().map(|m| (m.thinking.as_str(), m.text.as_str())).collect();
    assert_eq!(said, [("", "A recipe?"), ("1 < 2", "Boil water.")]);
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
    let said = |above: &str, role: &str, text: &str| {
        format!(
            r#"{{"parent": "{above}", "message": {{"author": {{"role": "{role}"}}, "content": {{"parts": ["{text}"]}}}}}}"#
        )
    };
    let file = |head: &str| {
        let nodes = [
            ("ask", said("", "user", "How?")),
            ("one", thought("ask", "First.")),
            ("tool", said("one", "tool", "")),
            ("a", said("tool", "assistant", "A.")),
            ("b", said("tool", "assistant", "B.")),
            ("two", thought("tool", "Second.")),
            ("c", said("two", "assistant", "C.")),
            ("d", said("two", "assistant", "D.")),
            ("on", said("d", "assistant", "On.")),
            ("then", said("two", "user", "Then?")),
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
        let (imported, said) = imported(&file(head));
        let said: Vec<(&str, &str)> = said.iter().map(|m| (m.thinking.as_str(), m.text.as_str())).collect();
        assert_eq!(said, expected, "{head}");
        assert_eq!(imported.left_out, LeftOut { tools: 1, thoughts: 1, ..LeftOut::default() });
    }
}

#[test]
fn code_that_open_webui_ran_is_a_block_and_calls_of_tools_are_counted_wherever_they_stand() {
    let file = r#"[{"chat": {"title": "Rows", "history": {"currentId": "2", "messages": {
        "1": {"parentId": null, "role": "user", "content": "How many rows?"},
        "2": {"parentId": "1", "role": "assistant", "content":
            "I count.\n<details type=\"code_interpreter\" done=\"true\" output=\"{&quot;stdout&quot;: &quot;12\\n&quot;}\">\n<summary>Analyzed</summary>\n```python\nprint(len(rows))\n```\n</details>\n<details type=\"tool_calls\" done=\"true\" name=\"note\">\n<summary>Tool Executed</summary>\n</details>\nTwelve."}}}}}]"#;
    let (imported, said) = imported(file);
    let said: Vec<&str> = said.iter().map(|m| m.text.as_str()).collect();
    let answer = "I count.\n\n```python\nprint(len(rows))\n```\n\n```\n12\n```\n\nTwelve.";
    assert_eq!(said, ["How many rows?", answer]);
    assert_eq!(imported.left_out, LeftOut { tools: 1, ..LeftOut::default() });
}
