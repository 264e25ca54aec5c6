//! What schemas refer to in themselves (`$ref`).

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Keywords with data as their value, even if it looks like a schema.
pub(super) const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords with an object of names, each with a schema.
pub(super) const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

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

/// Undoes the escapes of addresses and of `~` in references: the library that compiles schemas takes the parts of a
/// pointer as they stand. So it reaches no name that holds a `/`.
pub(super) fn spell_out(schema: &mut Value) {
    each(schema, &mut |reference: &mut String| {
        *reference = percent_decode_str(reference).decode_utf8_lossy().replace("~0", "~");
    });
}
