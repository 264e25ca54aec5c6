use super::*;

fn source(name: &str) -> &'static str {
    match name {
        "chatml" => include_str!("../../tests/templates/chatml.jinja"),
        "thoughts" => include_str!("../../tests/templates/thoughts.jinja"),
        "functions" => include_str!("../../tests/templates/functions.jinja"),
        "alternate" => include_str!("../../tests/templates/alternate.jinja"),
        "values" => include_str!("../../tests/templates/values.jinja"),
        other => panic!("no template {other}"),
    }
}

fn template(name: &str) -> Template {
    match name {
        "demo" => Template::from_config(include_bytes!("../../assets/demo/tokenizer_config.json"), None).unwrap(),
        name => Template::new(source(name), "<s>", "<|im_end|>").unwrap(),
    }
}

fn options(json: &serde_json::Value, tools: &serde_json::Value) -> RenderOptions {
    RenderOptions {
        add_generation_prompt: json["add_generation_prompt"] == true,
        thinking: match json.get("enable_thinking") {
            Some(v) if v == true => ThinkMode::On,
            Some(_) => ThinkMode::Off,
            None => ThinkMode::Auto,
        },
        tools: json.get("tools").and(tools.as_array()).cloned().unwrap_or_default(),
    }
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let file: serde_json::Value = serde_json::from_str(include_str!("../../tests/templates/cases.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 150);
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let messages = &file["conversations"][case["conversation"].as_str().unwrap()];
        let got = template(name).render_json(messages, &options(&case["options"], &file["tools"]));
        match (&got, case.get("text").and_then(|t| t.as_str()), case.get("refused").and_then(|t| t.as_str())) {
            (Ok(text), Some(expected), _) if text == expected => {}
            (Err(e), None, Some(refused)) if e.to_string().contains(refused) => {}
            (Ok(text), Some(expected), _) => {
                let same = text.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
                let part = |t: &str| t.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
                wrong.push(format!("{name} {}: {:?}, not {:?}", case["conversation"], part(text), part(expected)));
            }
            _ => wrong.push(format!("{name} {}: {got:?}", case["conversation"])),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong[..wrong.len().min(6)].join("\n"));
}

#[test]
fn the_next_turn_extends_the_prompt_of_a_template_that_keeps_everything() {
    let t = template("demo");
    let mut messages = ChatMessage::document("notes.txt", "the code is 7").to_vec();
    let read = t.render(&messages, &RenderOptions::default()).unwrap();
    assert!(
        read.starts_with("<|im_start|>user\n<document name=\"notes.txt\">\nthe code is 7\n</document><|im_end|>\n")
    );
    messages.push(ChatMessage::new(ChatRole::User, "which code?"));
    let asked = t.render(&messages, &RenderOptions::prompt(ThinkMode::Auto)).unwrap();
    assert!(asked.starts_with(&read) && asked.ends_with("<|im_start|>assistant\n"));
    messages.push(ChatMessage::answer("hm", "7"));
    let answered = t.render(&messages, &RenderOptions::default()).unwrap();
    assert!(answered.starts_with(&asked) && answered.ends_with("<think>\nhm\n</think>\n\n7<|im_end|>\n"));
}

#[test]
fn named_templates_and_a_file_beside_the_config_are_found() {
    let named = br#"{"eos_token": {"content": "E"}, "chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes{{ eos_token }}"}]}"#;
    let t = Template::from_config(named, None).unwrap();
    assert_eq!(t.render(&[], &RenderOptions::default()).unwrap(), "yesE");
    let t = Template::from_config(named, Some(b"file")).unwrap();
    assert_eq!(t.render(&[], &RenderOptions::default()).unwrap(), "file");
    assert!(matches!(Template::from_config(b"{}", None), Err(TextError::NoTemplate)));
}

#[test]
fn a_broken_template_is_refused_with_its_line() {
    let error = Template::new("a\n{% if %}", "", "").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    let t = Template::new("{{ strftime_now('%Y') }}", "", "").unwrap();
    assert!(t.render(&[], &RenderOptions::default()).unwrap().starts_with("20"));
}

#[test]
fn a_template_that_makes_the_engine_panic_is_refused() {
    let messages = [ChatMessage::new(ChatRole::User, "")];
    let options = RenderOptions::prompt(ThinkMode::Auto);
    for source in ["{{ \"\"[::-1] }}", "{{ messages[0]['content'][::-1] }}"] {
        let error = Template::new(source, "", "").and_then(|t| t.render(&messages, &options)).unwrap_err();
        assert!(error.to_string().contains("the template engine fails on it"), "{error}");
    }
    assert!(!crate::text::caught::expected());
}
