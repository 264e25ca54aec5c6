//! What schemas refer to in themselves (`$ref`), and how the library that compiles schemas reads it: it takes the parts of a pointer
//! as they stand, without the escapes of pointers (`~1`, `~0`) and of addresses (`%25`), and reaches no name that holds a `/`.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

/// Keywords with data as their value, even if it looks like a schema.
pub(super) const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords with an object of names, each with a schema.
pub(super) const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Name among the definitions of copies of schemas that the library cannot reach.
const COPIES: &str = "x-sala-chat-copies";
/// Prefix of a reference without a target, so that the library's error names it.
const NOWHERE: &str = "x-sala-chat-nowhere:";
/// Characters of a reference in a sentence.
const MOST_CHARACTERS: usize = 200;

/// Hands over every reference of a schema.
pub(crate) fn each(schema: &mut Value, change: &mut dyn FnMut(&mut String)) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| each(schema, change)),
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                match (keyword.as_str(), value) {
                    ("$ref", Value::String(reference)) => change(reference),
                    (keyword, _) if DATA.contains(&keyword) => {}
                    (keyword, Value::Object(named)) if NAMED.contains(&keyword) => {
                        named.values_mut().for_each(|schema| each(schema, change));
                    }
                    // Where a pointer leads there may be schemas below any word.
                    (_, value) => each(value, change),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Writes the references of a schema so that the library finds what they mean: what a pointer with escapes leads to is copied.
pub(super) fn spell_out(schema: &mut Value) {
    let mut spelled = BTreeMap::new();
    each(schema, &mut |reference: &mut String| drop(spelled.insert(reference.clone(), String::new())));
    let mut copies = Vec::new();
    for (reference, spelled) in &mut spelled {
        let is_plain = !reference.contains(['~', '%']);
        *spelled = match target(schema, reference) {
            // The whole schema, for the library too.
            _ if reference == "#/" => reference.clone(),
            Some(_) if is_plain => reference.clone(),
            Some(target) => {
                copies.push(target.clone());
                format!("#/$defs/{COPIES}/{}", copies.len() - 1)
            }
            None => format!("{NOWHERE}{reference}"),
        };
    }
    if !copies.is_empty()
        && let Some(keywords) = schema.as_object_mut()
        && let Some(definitions) = keywords.entry("$defs").or_insert_with(|| json!({})).as_object_mut()
    {
        definitions.insert(COPIES.to_owned(), copies.into());
    }
    each(schema, &mut |reference: &mut String| {
        if let Some(spelled) = spelled.get(reference.as_str()) {
            reference.clone_from(spelled);
        }
    });
}

/// The target of a pointer: with its escapes undone, else with its parts as names, as some programs write it.
fn target<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    let part = |part: &str| percent_decode_str(part).decode_utf8().map(|part| part.replace('/', "~1"));
    let meant: Option<Vec<String>> = pointer.split('/').map(|written| part(written).ok()).collect();
    meant.and_then(|meant| schema.pointer(&meant.join("/"))).or_else(|| schema.pointer(pointer))
}

/// What to say where the library's words are about a reference that leads nowhere.
pub(super) fn astray(message: &str) -> Option<String> {
    let (_, reference) = message.split_once(NOWHERE)?;
    let reference = reference.split('\'').next().unwrap_or(reference);
    let shown: String = reference.chars().filter(|c| !c.is_control()).take(MOST_CHARACTERS).collect();
    Some(format!(
        "it refers to '{shown}', which is not in it; a reference is a pointer into the schema, as #/$defs/NAME"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(mut schema: Value) -> Value {
        spell_out(&mut schema);
        schema
    }

    #[test]
    fn escapes_are_undone_and_what_no_pointer_of_the_library_reaches_is_copied() {
        let definitions = json!({
            "a~b": 1, "50%": 2, "ü x": 3, "a/b": { "$ref": "#/$defs/a~1b" }, "n": { "$defs": { "m": [4] } }, "~1": 5, "%41": 6,
        });
        // The library takes the parts of a pointer as they stand.
        let led = |reference: &str| {
            let schema = spelled(json!({ "$ref": reference, "$defs": definitions }));
            let spelled = schema["$ref"].as_str().unwrap().to_owned();
            let step = |at: &Value, part: &str| match at {
                Value::Array(values) => values[part.parse::<usize>().unwrap()].clone(),
                at => at[part].clone(),
            };
            (spelled.clone(), spelled.split('/').skip(1).fold(schema.clone(), |at, part| step(&at, part)))
        };
        for plain in ["#", "#/", "#/$defs/n/$defs/m/0"] {
            assert_eq!(led(plain).0, plain);
        }
        for (reference, value) in [
            ("#/$defs/a~b", 1),
            ("#/$defs/a~0b", 1),
            ("#/$defs/50%", 2),
            ("#/$defs/50%25", 2),
            ("#/%24defs/%C3%BC%20x", 3),
            ("#/$defs/n/$defs/m/0", 4),
            ("#/$defs/~01", 5),
            ("#/$defs/%41", 6),
        ] {
            assert_eq!(led(reference).1, value, "{reference}");
        }
        let copied = spelled(json!({ "$ref": "#/$defs/a~1b", "$defs": definitions }));
        assert_eq!(copied["$ref"], "#/$defs/x-sala-chat-copies/0");
        assert_eq!(copied["$defs"][COPIES], json!([{ "$ref": "#/$defs/x-sala-chat-copies/0" }]));
        // Also where nothing is defined.
        let path =
            spelled(json!({ "properties": { "a/b": { "type": "null" }, "c": { "$ref": "#/properties/a%2Fb" } } }));
        assert_eq!(path["properties"]["c"]["$ref"], "#/$defs/x-sala-chat-copies/0");
        assert_eq!(path["$defs"][COPIES], json!([{ "type": "null" }]));
    }

    #[test]
    fn what_leads_nowhere_is_marked_and_named_with_its_own_words() {
        for lost in
            ["#/$defs/b", "#/anyOf/7", "#/anyOf/x", "#name", "other.json#/a", "https://x.org/y", "#/$defs/%ff", ""]
        {
            let schema = spelled(json!({ "$ref": lost, "anyOf": [{}], "$defs": { "a": {} } }));
            let marked = schema["$ref"].as_str().unwrap();
            let message = astray(&format!("no such ref '{marked}' here\nat all")).unwrap();
            assert!(message.starts_with(&format!("it refers to '{lost}', which is not in it")), "{message}");
        }
        assert_eq!(astray("Unimplemented keys: [\"not\"]"), None);
        // What looks like a reference and is none.
        let data = json!({ "const": { "$ref": "#/nowhere" }, "properties": { "$ref": { "type": "string" } } });
        assert_eq!(spelled(data.clone()), data);
    }
}
