use super::*;

/// All parts of an answer in pieces of `size` characters: texts are joined, and of each call the result has the
/// complete one, which equals the sum of its parts.
fn read(mut calls: Calls, text: &str, size: usize) -> Vec<Event> {
    let (mut all, mut name, mut arguments) = (Vec::new(), None, String::new());
    let chars: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
    let mut shown: Vec<Event> = pieces.iter().flat_map(|piece| calls.push(piece)).collect();
    shown.extend(calls.finish());
    for part in shown {
        match (all.last_mut(), part) {
            (Some(Event::Text(before, _)), Event::Text(text, _)) => before.push_str(&text),
            (_, Event::Calling { id, name: of }) => assert_eq!(name.replace((id, of)), None),
            (_, Event::Arguments(piece)) => arguments.push_str(&piece),
            (_, Event::Call(mut call)) => {
                assert_eq!(name.take(), Some((std::mem::take(&mut call.id), call.name.clone())));
                assert_eq!(std::mem::take(&mut arguments), call.text());
                all.push(Event::Call(call));
            }
            (_, text) => all.push(text),
        }
    }
    all
}

/// Pieces of every length give the same parts.
fn parts_of(calls: &Calls, text: &str) -> Vec<Event> {
    let whole = read(calls.clone(), text, text.len().max(1));
    for size in [1, 2, 7] {
        assert_eq!(read(calls.clone(), text, size), whole, "{text} in pieces of {size}");
    }
    whole
}

fn parts(text: &str) -> Vec<Event> {
    parts_of(&Calls::default(), text)
}

fn text_of(text: &str) -> Event {
    Event::Text(text.into(), Vec::new())
}

fn found(name: &str, written: &str) -> Event {
    Event::Call(Call::written(String::new(), name.into(), written.into()))
}

#[test]
fn calls_are_taken_out_of_the_text_in_both_ways_of_writing_them() {
    let json = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 3, \"of\": \"a } \\\" b\"}}\n</tool_call>";
    let look = found("look", "{\"at\": 3, \"of\": \"a } \\\" b\"}");
    assert_eq!(parts(&format!("Let me see. {json}")), [text_of("Let me see. "), look.clone()]);
    assert_eq!(parts(&format!("{json}\n{json} Well.")), [look.clone(), look, text_of("Well.")]);
    let native = "<function name=\"weather\"> <param name=\"place\">Rome &amp; &lt;b></param><param name=\"days\">2</param>\n\
                  <param name=\"note\"><![CDATA[a < b]]></param><param name=\"list\">[1, \"x\"]</param>\
                  <param name=\"not\">true or so</param></function>";
    let weather = found(
        "weather",
        "{\"place\":\"Rome & <b>\",\"days\":2,\"note\":\"a < b\",\"list\":[1,\"x\"],\"not\":\"true or so\"}",
    );
    assert_eq!(parts(native), std::slice::from_ref(&weather));
    assert_eq!(parts(&format!("{native}{native}")), [weather.clone(), weather]);
    assert_eq!(parts("<function name=\"now\"></function>"), [found("now", "{}")]);
}

#[test]
fn a_long_argument_is_streamed() {
    for begin in [
        "<tool_call>{\"name\": \"write\", \"arguments\": {\"text\": \"",
        "<function name=\"write\"><param name=\"text\"><![CDATA[",
    ] {
        let mut calls = Calls::default();
        calls.push(begin);
        let shown = calls.push("Once upon a time \u{e4} there was");
        assert!(
            matches!(shown.last(), Some(Event::Arguments(piece)) if piece.contains("upon a time \u{e4}")),
            "{shown:?}"
        );
    }
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "a < b <tool",
        "<tool_call>never closed",
        "<tool_call>no json</tool_call>",
        "<tool_call>{\"name\": \"x\"",
        "<function name=\"x\">y</function>",
    ] {
        assert_eq!(parts(text), [text_of(text)]);
    }
    // Another order of the fields, and arguments as JSON in a string.
    assert_eq!(
        parts("<tool_call>{\"arguments\": {\"at\": 3}, \"name\": \"look\"}</tool_call>"),
        [found("look", "{\"at\":3}")]
    );
    assert_eq!(
        parts("<tool_call>{\"name\": \"look\", \"arguments\": \"{\\\"at\\\": 3}\"}</tool_call>"),
        [found("look", "{\"at\": 3}")]
    );
}

#[test]
fn a_call_that_breaks_off_has_arguments_that_are_no_json() {
    for (text, written) in [
        ("<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 3", "{\"at\": 3"),
        ("<function name=\"look\"><param name=\"at\">Ro", "{\"at\":\"Ro"),
        ("<function name=\"look\"><param name=\"at\">[1, 2", "{\"at\":[1, 2"),
    ] {
        let parts = parts(text);
        assert_eq!(parts, [found("look", written)]);
        assert!(matches!(&parts[0], Event::Call(call) if call.is_cut()));
    }
    // Complete except for the closing mark.
    let open = "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 3}}";
    assert_eq!(parts(open), [found("look", "{\"at\": 3}")]);
    assert_eq!(parts(&format!("{open} So.")), [found("look", "{\"at\": 3}"), text_of("So.")]);
}

#[test]
fn an_answer_that_must_be_a_call_is_streamed_and_what_is_not_allowed_stays_text() {
    let text = "{\n \"name\": \"look\", \"arguments\": {\"at\": [3, {}]}}";
    let found = [found("look", "{\"at\": [3, {}]}")];
    assert_eq!(parts_of(&Calls::new(true, None), text), found);
    let call = format!("<tool_call>{text}</tool_call>");
    assert_eq!(parts_of(&Calls::new(false, Some(vec!["look".into()])), &call), found);
    assert_eq!(parts_of(&Calls::new(false, Some(vec!["other".into()])), &call), [text_of(&call)]);
}

#[test]
fn a_forced_call_that_breaks_off_is_no_text() {
    for text in ["{", "{\n \"na", "{\"name\": ", "{\"name\": \"lo", "{\"name\": \"look\", \"arguments\": ", ""] {
        assert_eq!(parts_of(&Calls::new(true, None), text), [], "{text}");
    }
    assert_eq!(parts_of(&Calls::new(true, None), "{\"name\": \"go\", \"arguments\": {\"a"), [found("go", "{\"a")]);
}
