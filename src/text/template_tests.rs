use super::*;

/// For what takes milliseconds on an idle machine.
const SOON: std::time::Duration = std::time::Duration::from_secs(60);

fn source(name: &str) -> &'static str {
    match name {
        "chatml" => include_str!("../../tests/templates/chatml.jinja"),
        "thoughts" => include_str!("../../tests/templates/thoughts.jinja"),
        "functions" => include_str!("../../tests/templates/functions.jinja"),
        "alternate" => include_str!("../../tests/templates/alternate.jinja"),
        "released" => include_str!("../../tests/templates/released.jinja"),
        "methods" => include_str!("../../tests/templates/methods.jinja"),
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
    assert!(cases.len() > 250);
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
fn filters_tests_and_operators_do_what_they_do_in_jinja2() {
    let file: serde_json::Value = serde_json::from_str(include_str!("../../tests/templates/cases.json")).unwrap();
    let tools = file["tools"].as_array().unwrap().clone();
    let options = RenderOptions { tools, ..RenderOptions::prompt(ThinkMode::Auto) };
    let expressions = file["expressions"].as_array().unwrap();
    assert!(expressions.len() > 500);
    let wrong = expressions.iter().filter_map(|expression| {
        let source = expression[0].as_str().unwrap();
        let template = Template::new(source, "<s>", "<|im_end|>");
        let got = template.and_then(|template| template.render_json(&file["conversations"]["calls"], &options));
        let is_equal = got.as_ref().is_ok_and(|text| *text == expression[1]);
        (!is_equal).then(|| format!("{source}: {got:?}, not {}", expression[1]))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expressions.len(), wrong.join("\n"));
}

#[test]
fn what_the_engine_does_not_know_is_refused_where_it_is_reached() {
    for (unknown, expected) in [
        ("{{ 'a' | nofilter }}", "chat template: filter nofilter is unknown (line 2)"),
        ("{% if 'a' is not notest %}{% endif %}", "chat template: test notest is unknown (line 2)"),
        ("{% for m in messages %}{{ m | map('upper') | xmlattr }}{% endfor %}", "filter xmlattr is unknown (line 2)"),
        ("{{ 'a b' | wordwrap(1) }}", "chat template: filter wordwrap is unknown (line 2)"),
        ("{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1) }}", "chat template: too many arguments (line 2)"),
        ("{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(a=1) }}", "unknown keyword argument `a` (line 2)"),
    ] {
        let error = rendered(&format!("a\n{unknown}"));
        assert!(error.contains(expected), "{error}");
        assert_eq!(rendered(&format!("a{{% if false %}}{unknown}{{% endif %}}")), "a");
    }
    // Words that only look like names.
    for source in ["{{ ' | nofilter' }}", "{% raw %}{{ x | nofilter }}{% endraw %}", "{# | nofilter #}", "{{ m.is }}"] {
        assert!(!rendered(source).contains("unknown"), "{source}");
    }
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
    let question = t.render(&messages, &RenderOptions::prompt(ThinkMode::Auto)).unwrap();
    assert!(question.starts_with(&read) && question.ends_with("<|im_start|>assistant\n"));
    messages.push(ChatMessage::answer("hm", "7"));
    let answered = t.render(&messages, &RenderOptions::default()).unwrap();
    assert!(answered.starts_with(&question) && answered.ends_with("<think>\nhm\n</think>\n\n7<|im_end|>\n"));
}

#[test]
fn named_templates_and_a_file_next_to_the_config_are_found() {
    let named = br#"{"eos_token": {"content": "E"}, "chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes{{ eos_token }}"}]}"#;
    let t = Template::from_config(named, None).unwrap();
    assert_eq!(t.render(&[], &RenderOptions::default()).unwrap(), "yesE");
    let t = Template::from_config(named, Some(b"file")).unwrap();
    assert_eq!(t.render(&[], &RenderOptions::default()).unwrap(), "file");
    assert!(matches!(Template::from_config(b"{}", None), Err(TextError::NoTemplate)));
}

#[test]
fn a_template_gets_the_special_tokens_and_no_documents() {
    let config = br#"{"add_bos_token": true, "bos_token": null, "pad_token": {"content": "P"}, "image_token": "I",
        "chat_template": "{{ pad_token }}{{ image_token }}{{ bos_token }}{{ documents is none }}{{ sep_token is defined }}"}"#;
    let rendered = Template::from_config(config, None).unwrap().render(&[], &RenderOptions::default());
    assert_eq!(rendered.unwrap(), "PITrueFalse");
}

#[test]
fn a_broken_template_is_refused_with_its_line() {
    let error = Template::new("a\n{% if %}", "", "").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    for missing in ["{{ 'a' ~ }}", "{{ ['a' ~ ] }}", "{{ {'a': 'b' ~ } }}"] {
        assert!(Template::new(missing, "", "").is_err(), "{missing}");
    }
    let t = Template::new("{{ strftime_now('%Y') }}", "", "").unwrap();
    assert!(t.render(&[], &RenderOptions::default()).unwrap().starts_with("20"));
}

/// A rendering of a question, or why there is none.
fn rendered(source: &str) -> String {
    let question = [ChatMessage::new(ChatRole::User, "a question")];
    let text = Template::new(source, "", "").and_then(|t| t.render(&question, &RenderOptions::prompt(ThinkMode::Auto)));
    text.unwrap_or_else(|e| e.to_string())
}

#[test]
fn line_ends_of_a_source_are_normalised_and_those_of_values_stay() {
    let source = "{% for m in messages %}\n<{{ m.role }}>\n{{ 'a\nb' }}{{ m.content }}\n{% endfor %}\n";
    let question = [ChatMessage::new(ChatRole::User, "x\r\ny")];
    let render =
        |source: &str| Template::new(source, "", "").unwrap().render(&question, &RenderOptions::default()).unwrap();
    assert_eq!(render(source), "<user>\na\nbx\r\ny\n");
    for end in ["\r\n", "\r"] {
        assert_eq!(render(&source.replace('\n', end)), render(source), "{end:?}");
    }
}

#[test]
fn slices_and_percent_are_read_only_where_they_are_operators() {
    for (source, expected) in [
        ("{{ '%s%%' % ('%s' % 'x') }}", "x%"),
        ("{%- set a = messages[::-1][0] -%}{{- '%s' % a.content[::-1] -}}", "noitseuq a"),
        ("{{ (9 % 5) % 3 }}{{ 9 % 5 % 3 }}{{ 2 * 9 % 4 }}{{ 1 + 9 % 4 }}", "1122"),
        ("{{ {'a': {'b': '%s'}}['a']['b'] % 3 }}", "3"),
        ("{{ ['a:b:c', '[::-1]'][1] }}{{ {'a':'b'}['a'] }}{{ 'abc'[1:] }}{{ 'abc'[:-1] }}", "[::-1]bbcab"),
        ("{% raw %}{{ x[::-1] % 2 }}{% endraw %}{# x[::-1] #}{{ '{{ 1 % 2 }}' }}", "{{ x[::-1] % 2 }}{{ 1 % 2 }}"),
        ("{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration %}", "xy"),
        (
            "{%- macro f(a, b=a ~ ',', c=[b, 1], d=2) -%} {{ a }}{{ b }}{{ c }}{{ d }} {%- endmacro -%} {{ f('x') }}{{ f('x', d=3, b='y') }}",
            "xx,['x,', 1]2xy['y', 1]3",
        ),
        ("{%- macro f(a=1, b=a) -%} {{ a }}{{ b }} {%- endmacro -%} {{ f() }}{{ f(2) }}{{ f(b=3) }}", "112213"),
        ("{% macro f(a, b=a) %}\n{{ b }}\n{% endmacro %}\n{{ f(1) }}", "1\n"),
        ("{{ missing[::-1] | length }}{{ 10 % 4 * 2 }}{{ -7 % 3 }}", "042"),
        ("{{ 1[::-1] }}", "chat template: value of type number cannot be sliced (line 1)"),
        ("{{ 'a'.index('b') }}", "chat template: substring not found (line 1)"),
        ("{{ 'a'.split('') }}", "chat template: empty separator (line 1)"),
        ("\n{{ 5 % 0 }}", "chat template: division by zero (line 2)"),
        ("{{ 'a'.nothing() }}", "chat template: string has no method named nothing (line 1)"),
        ("{{ unclosed[::-1] ", "chat template: unexpected end of input, expected end of variable block (line 1)"),
    ] {
        assert_eq!(rendered(source), expected, "{source}");
    }
}

#[test]
fn a_template_that_never_reads_the_switch_has_none() {
    for (name, off) in [("released", false), ("chatml", true), ("thoughts", true), ("demo", true)] {
        assert_eq!(template(name).switch, ThinkingSwitch { on: false, off }, "{name}");
    }
    let both = Template::new("{% if enable_thinking %}<think>{% elif enable_thinking is false %}x{% endif %}", "", "");
    assert_eq!(both.unwrap().switch, ThinkingSwitch { on: true, off: true });
    let none = template("released").switch;
    assert!(
        none.refusal(ThinkMode::Off).unwrap().contains("thinking.budget") && none.refusal(ThinkMode::Auto).is_none()
    );
    assert_eq!(none.refusal(ThinkMode::On), none.refusal(ThinkMode::Off));
    // Off and on again: on is what such a template does by itself.
    let demo = template("demo").switch;
    assert!(demo.refusal(ThinkMode::Off).is_none() && demo.refusal(ThinkMode::On).is_none());
    assert!(!template("released").source.contains("enable_thinking"));
    // Never an empty thought where there is no switch.
    let prompt = [ChatMessage::new(ChatRole::User, "Hi")];
    for mode in [ThinkMode::Off, ThinkMode::On, ThinkMode::Auto] {
        let text = template("released").render(&prompt, &RenderOptions::prompt(mode)).unwrap();
        assert!(text.ends_with("<|im_start|>assistant\n"), "{text}");
    }
}

/// What compiling and rendering a template once says.
fn refusal(source: &str) -> String {
    let messages = vec![ChatMessage::new(ChatRole::User, "x\n".repeat(50)); 3];
    let rendered =
        Template::new(source, "", "").and_then(|t| t.render(&messages, &RenderOptions::prompt(ThinkMode::Auto)));
    rendered.map(|text| format!("{} bytes", text.len())).unwrap_or_else(|e| e.to_string())
}

#[test]
fn hostile_templates_are_refused_in_one_line_and_soon() {
    let deep = |open: &str, n: usize, close: &str| format!("{}x{}", open.repeat(n), close.repeat(n));
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}{% endfor %}{% endfor %}{% endfor %}";
    let cases: Vec<(&str, String, &str)> = vec![
        ("not", format!("{{{{ {}x }}}}", "not ".repeat(50_000)), "words"),
        ("minus", format!("{{{{ {}1 }}}}", "-".repeat(100_000)), "words"),
        ("brackets", format!("{{{{ {} }}}}", deep("(", 3_000, ")")), "words"),
        ("some brackets", format!("{{{{ {} }}}}", deep("[", 1_500, "]")), "recursion"),
        ("remainders", format!("{{{{ 9{} }}}}", " % 7".repeat(80)), "recursion"),
        ("a sum", format!("{{{{ 1{} }}}}", "+1".repeat(100_000)), "words"),
        ("attributes", format!("{{{{ a{} }}}}", ".b".repeat(100_000)), "words"),
        ("filters", format!("{{{{ a{} }}}}", "|e".repeat(100_000)), "words"),
        ("blocks", deep("{% if 1 %}", 5_000, "{% endif %}"), "nested"),
        ("branches", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(50_000)), "nested"),
        ("a macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(), "recursion"),
        ("loops", loops.into(), "too many steps"),
        ("output", "{% for a in range(99999) %}{{ messages[0].content * 100 }}{% endfor %}".into(), "MB"),
        ("repeat", "{{ 'a' * 99999999999 }}".into(), "too many steps"),
        ("width", "{{ '%999999999d'|format(1) }}".into(), "too many steps"),
        ("star", "{{ '%*d'|format(999999999, 1) }}".into(), "conversion type '*'"),
        ("method", "{{ '{:>999999999}'.format(1) }}".into(), "too many steps"),
        ("percent", "{{ '%999999999d' % 1 }}".into(), "too many steps"),
        ("pad", "{{ 'a'.rjust(999999999) }}".into(), "too many steps"),
        ("named pad", "{{ 'a'.zfill(width=999999999) }}".into(), "too many steps"),
        ("indent", "{{ messages[0].content|indent(999999999) }}".into(), "too many steps"),
        ("named indent", "{{ messages[0].content|indent(width=999999999) }}".into(), "too many steps"),
        ("json", "{{ messages|tojson(indent=999999999) }}".into(), "too many steps"),
        ("source", "x".repeat(2 << 20), "bytes, more than"),
    ];
    for (name, source, expected) in cases {
        let begun = std::time::Instant::now();
        let error = refusal(&source);
        assert!(error.contains(expected) && !error.contains('\n'), "{name}: {error}");
        assert!(begun.elapsed() < SOON, "{name} took {:?}", begun.elapsed());
    }
    // What is long and harmless is not refused.
    assert!(refusal(&format!("{{{{ 1{} }}}}", "+1".repeat(1_000))).contains("bytes"));
    assert!(refusal(&deep("{% if 1 %}", 100, "{% endif %}")).contains("bytes"));
}

#[test]
fn a_rendering_can_be_stopped() {
    let t =
        Template::new("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", "", "")
            .unwrap();
    let begun = std::time::Instant::now();
    let error = t.render_until(&[], &RenderOptions::default(), &|| true).unwrap_err();
    assert!(matches!(error, TextError::Stopped) || error.to_string().contains("too many steps"), "{error}");
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_template_that_leaves_the_question_out_is_refused() {
    let config = |template: &str| serde_json::json!({ "chat_template": template }).to_string();
    let check = |template: &str| Template::from_config(config(template).as_bytes(), None).unwrap().check_question();
    for silent in ["", "hello", "{% for m in messages %}{{ m.role }}{% endfor %}"] {
        let refused = check(silent).unwrap_err().to_string();
        assert!(refused.starts_with("chat template: it leaves out what is asked"), "{silent}: {refused}");
    }
    for heard in ["{% for m in messages %}{{ m.content }}{% endfor %}", "{{ raise_exception('roles must alternate') }}"]
    {
        check(heard).unwrap();
    }
}
