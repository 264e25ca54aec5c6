use super::*;
use crate::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use crate::runtime::render::Renderer;
use crate::server::prompt::show;
use crate::server::stream::Event;
use crate::server::turns::{Call, Turn};
use crate::text::grammar::Grammars;
use crate::text::grammar::tests::shortest;
use crate::text::{Before, Begin, ChatRole, TextModel};

fn renderer(template: Option<&str>) -> Renderer {
    let (tokenizer, config) = (DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes());
    Renderer::new(TextModel::from_bytes(tokenizer, config, None, template.map(str::as_bytes)).unwrap())
}

fn tools(choice: Value) -> Result<Tools, Refusal> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "place": { "type": "string" },
            "days": { "type": "integer" },
            "unit": { "type": "string", "enum": ["C", "F"] },
        },
        "required": ["place", "days", "unit"],
    });
    let function = json!({ "name": "weather", "description": "Weather.", "parameters": parameters });
    let body = json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": choice });
    Tools::read(&mut Fields::of(body, "")?, "parameters", &mut [])
}

const RELEASED: &str = include_str!("../../tests/templates/released.jinja");

#[test]
fn a_template_without_functions_reads_them_in_words() {
    let plain = renderer(None);
    let offered = tools(json!("auto")).unwrap();
    let mut turns = vec![Turn::new(ChatRole::User, "Rain?"), Turn::new(ChatRole::Tool, "yes")];
    assert_eq!(show(&offered, &plain, &mut turns), Vec::<Value>::new());
    assert!(turns[0].role == ChatRole::System && turns[0].text.contains("\"weather\""), "{}", turns[0].text);
    assert_eq!(turns[2].text, "<tool_response>\nyes\n</tool_response>");
    let mut turns = vec![Turn::new(ChatRole::User, "Rain?")];
    assert_eq!(show(&offered, &renderer(Some(RELEASED)), &mut turns).len(), 1);
    assert_eq!(turns.len(), 1);
    assert!(!tools(json!("none")).unwrap().may_be_called());
    assert_eq!(
        tools(json!({ "type": "function", "function": { "name": "x" } })).unwrap_err().param.as_deref(),
        Some("tool_choice")
    );
    // The model sees all functions, but may call only these.
    let allowed = |mode: &str, name: &str| {
        tools(json!({ "type": "allowed_tools", "mode": mode, "tools": [{ "type": "function", "name": name }] }))
    };
    let auto = allowed("auto", "weather").unwrap();
    assert_eq!((auto.may_be_called(), auto.grammar()), (true, None));
    assert_eq!(auto.shown().1["tools"], json!([{ "type": "function", "name": "weather" }]));
    assert!(allowed("required", "weather").unwrap().grammar().is_some());
    assert_eq!(allowed("auto", "other").unwrap_err().param.as_deref(), Some("tool_choice"));
    assert_eq!(allowed("never", "weather").unwrap_err().param.as_deref(), Some("tool_choice.mode"));
}

#[test]
fn earlier_calls_are_shown_whatever_may_be_called_now() {
    let made = Call::new("c".into(), "weather".into(), json!({ "place": "Rome" }));
    let turns = vec![
        Turn::new(ChatRole::User, "Rain?"),
        Turn { calls: vec![made], ..Turn::new(ChatRole::Assistant, "") },
        Turn::new(ChatRole::Tool, "yes"),
    ];
    for offered in [tools(json!("none")).unwrap(), Tools::default()] {
        let mut shown = turns.clone();
        assert_eq!(show(&offered, &renderer(None), &mut shown), Vec::<Value>::new());
        let texts: Vec<&str> = shown.iter().map(|turn| turn.text.as_str()).collect();
        let call = "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"place\":\"Rome\"}}\n</tool_call>";
        assert_eq!(texts, ["Rain?", call, "<tool_response>\nyes\n</tool_response>"]);
        assert_eq!(shown[2].role, ChatRole::User);
        // A template with functions has its own form for calls.
        let mut shown = turns.clone();
        assert_eq!(show(&offered, &renderer(Some(RELEASED)), &mut shown), Vec::<Value>::new());
        assert_eq!(shown, turns);
    }
}

#[test]
fn an_answer_that_must_be_a_call_is_one() {
    let renderer = renderer(Some(RELEASED));
    let tokenizer = &renderer.model().tokenizer;
    let stop = tokenizer.stop_ids(&[]);
    let grammars = Grammars::new(tokenizer, &stop).unwrap();
    let forced = tools(json!("required")).unwrap();
    let constraint = grammars.constraint(&forced.grammar().unwrap(), Begin::Answer).unwrap();
    let mut masked = (constraint.0)(&[]);
    let text = shortest(masked.as_mut(), tokenizer);
    let mut calls = forced.calls().unwrap();
    let mut parts = calls.push(&text);
    parts.extend(calls.finish());
    let Some(Event::Call(call)) = parts.last() else { panic!("{text}: {parts:?}") };
    assert_eq!(call.name, "weather");
    assert!(call.arguments["days"].is_number() && call.arguments["place"].is_string(), "{text}");
    assert!(call.arguments["unit"] == "C" || call.arguments["unit"] == "F", "{text}");
}

#[test]
fn arguments_are_an_object_whatever_their_schema_leaves_open() {
    let tokenizer = std::sync::Arc::clone(&renderer(None).model().tokenizer);
    let grammars = Grammars::new(&tokenizer, &tokenizer.stop_ids(&[])).unwrap();
    let number = json!({ "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    for parameters in [
        number.clone(),
        json!({ "type": ["object", "null"], "properties": { "n": { "type": "integer" } }, "required": ["n"] }),
        json!({ "$defs": { "number": number }, "$ref": "#/$defs/number" }),
        json!({ "$defs": { "number": number }, "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/number" }] }),
        json!({ "properties": { "n": { "type": "integer" }, "more": { "$ref": "#" } }, "required": ["n"] }),
    ] {
        let function = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
        let body = json!({ "tools": [function], "tool_choice": "required" });
        let tools = Tools::read(&mut Fields::of(body, "").unwrap(), "parameters", &mut []).unwrap();
        let constraint = grammars.constraint(&tools.grammar().unwrap(), Begin::Answer).unwrap();
        let allowed = |arguments: &str| {
            let mut masked = (constraint.0)(&[]);
            let text = format!(r#"{{"name":"f","arguments":{arguments}}}"#);
            tokenizer.encode_after(&text, Before::Text).unwrap().into_iter().all(|token| {
                let allowed = masked.allows(token);
                masked.accept(token);
                allowed
            })
        };
        assert!(allowed(r#"{"n":7}"#), "{parameters}");
        for other in ["7", "null", "[]", r#""n""#, r#"{"n":"7"}"#] {
            assert!(!allowed(other), "{parameters}: {other}");
        }
    }
}

#[test]
fn a_schema_of_a_function_refers_to_its_own_parts() {
    let tokenizer = std::sync::Arc::clone(&renderer(None).model().tokenizer);
    let stop = tokenizer.stop_ids(&[]);
    let grammars = Grammars::new(&tokenizer, &stop).unwrap();
    let follows = |choice: &str, text: &str| {
        let function = |name: &str, leaf: Value| {
            let parameters = json!({
                "$defs": { "leaf": leaf },
                "type": "object",
                "properties": { "leaf": { "$ref": "#/$defs/leaf" }, "more": { "type": "array", "items": { "$ref": "#" } } },
                "required": ["leaf"],
                "additionalProperties": false,
            });
            json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
        };
        let of = [function("number", json!({ "type": "integer" })), function("truth", json!({ "type": "boolean" }))];
        let choice = match choice {
            "required" => json!(choice),
            name => json!({ "type": "function", "function": { "name": name } }),
        };
        let body = json!({ "tools": of, "tool_choice": choice });
        let tools = Tools::read(&mut Fields::of(body, "").unwrap(), "parameters", &mut []).unwrap();
        let constraint = grammars.constraint(&tools.grammar().unwrap(), Begin::Answer).unwrap();
        let mut masked = (constraint.0)(&[]);
        tokenizer.encode_after(text, Before::Text).unwrap().into_iter().all(|token| {
            let allowed = masked.allows(token);
            masked.accept(token);
            allowed
        }) && masked.allows(stop[0])
    };
    for choice in ["required", "truth"] {
        let tree = |leaf: &str| {
            let arguments = format!(r#"{{"leaf":true,"more":[{{"leaf":{leaf},"more":[]}}]}}"#);
            format!(r#"{{"name":"truth","arguments":{arguments}}}"#)
        };
        assert!(follows(choice, &tree("false")), "{choice}");
        assert!(!follows(choice, &tree("7")), "{choice}");
        assert!(!follows(choice, r#"{"name":"truth","arguments":{"leaf":true,"more":[7]}}"#), "{choice}");
    }
    assert!(follows("required", r#"{"name":"number","arguments":{"leaf":7,"more":[{"leaf":8}]}}"#));
}

#[test]
fn references_to_its_own_root_move_and_nothing_else_does() {
    let pointer = json!({ "$ref": "#/$defs/a" });
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": { "$ref": { "$ref": "#" }, "const": pointer, "x": { "items": [pointer, { "not": pointer }] } },
        "anyOf": [{ "$ref": "other.json#/$defs/a" }, { "$ref": "#anchor" }, { "$ref": "https://x.org/y" }],
        "const": pointer, "enum": [pointer], "default": pointer, "examples": [pointer],
        "components": { "schemas": { "b": pointer } },
        "$defs": { "a": { "additionalProperties": { "$ref": "#/definitions/x~1y" } }, "enum": pointer },
        "$ref": "#/components/schemas/b",
    });
    move_to("/anyOf/1", &mut schema);
    let moved = json!({ "$ref": "#/anyOf/1/$defs/a" });
    assert_eq!(
        schema,
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {
                "$ref": { "$ref": "#/anyOf/1" }, "const": moved, "x": { "items": [moved, { "not": moved }] },
            },
            "anyOf": [{ "$ref": "other.json#/$defs/a" }, { "$ref": "#anchor" }, { "$ref": "https://x.org/y" }],
            "const": pointer, "enum": [pointer], "default": pointer, "examples": [pointer],
            "components": { "schemas": { "b": moved } },
            "$defs": { "a": { "additionalProperties": { "$ref": "#/anyOf/1/definitions/x~1y" } }, "enum": moved },
            "$ref": "#/anyOf/1/components/schemas/b",
        })
    );
}
