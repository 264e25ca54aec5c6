//! Readies a schema for the compiler: objects with listed properties are closed, whole numbers stay exact, and formats that the
//! compiler does not know are annotations.
//!
//! An answer that keeps to the tightened schema keeps to the schema as it was sent.

use serde_json::{Map, Value, json};

use super::references::{DATA, NAMED};

/// Formats of strings that the compiler keeps to.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];
/// Keywords with schemas that hold for the same value as the schema around them.
const SAME_VALUE: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];
/// Keywords that let the properties of an object be known from elsewhere, or open it by themselves.
const OPENS: [&str; 10] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "dependentSchemas",
    "if",
    "then",
    "else",
    "not",
    "minProperties",
];
/// Limits of numbers: the keyword, the one that includes its limit, and the sign of limits that many answers are outside of.
const LIMITS: [(&str, &str, f64); 4] = [
    ("minimum", "minimum", 1.0),
    ("maximum", "maximum", -1.0),
    ("exclusiveMinimum", "minimum", 1.0),
    ("exclusiveMaximum", "maximum", -1.0),
];
/// The compiler has numbers of 53 bits.
const EXACT: f64 = (1_u64 << 53) as f64;
/// The most characters or items that a schema can ask for.
const MOST_SIZE: f64 = 1e9;

/// The error is a phrase about a number that cannot be kept exactly.
pub(super) fn tighten(schema: &mut Value) -> Result<(), String> {
    // Closing what a combined schema refers to would forbid the others' properties.
    let mut is_shared = false;
    visit(schema, false, &mut |keywords, open| {
        is_shared |= open && keywords.contains_key("$ref");
        Ok(())
    })?;
    visit(schema, false, &mut |keywords, open| {
        let has = |name: &str| keywords.contains_key(name);
        if !is_shared && !open && has("properties") && !SAME_VALUE.iter().any(|name| has(name)) {
            close(keywords);
        }
        if keywords.get("format").and_then(Value::as_str).is_some_and(|name| !FORMATS.contains(&name)) {
            keywords.remove("format");
        }
        exact(keywords)
    })
}

/// Calls `on` with each schema, and whether it has to stay open: others hold for the same value, or it says so.
fn visit(
    schema: &mut Value,
    open: bool,
    on: &mut dyn FnMut(&mut Map<String, Value>, bool) -> Result<(), String>,
) -> Result<(), String> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    let has = |name: &str| keywords.contains_key(name);
    let parts = keywords.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let combining = SAME_VALUE.iter().filter(|name| has(name)).count();
    let combined = combining > 0 && (combining > 1 || parts > 1 || has("properties") || has("not"));
    let open = open || combined || OPENS.iter().any(|name| has(name));
    on(keywords, open)?;
    for (keyword, value) in keywords.iter_mut().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())) {
        let keyword = keyword.as_str();
        // Closing what a value must not be would let more through.
        let never = matches!(keyword, "not" | "if" | "then" | "else" | "dependentSchemas" | "contains");
        let open = never || (open && SAME_VALUE.contains(&keyword));
        match value {
            Value::Object(named) if NAMED.contains(&keyword) => {
                named.values_mut().try_for_each(|schema| visit(schema, open, on))?;
            }
            Value::Array(schemas) => schemas.iter_mut().try_for_each(|schema| visit(schema, open, on))?,
            other => visit(other, open, on)?,
        }
    }
    Ok(())
}

/// Allows an object the properties that it lists or requires alone.
fn close(keywords: &mut Map<String, Value>) {
    keywords.insert("additionalProperties".to_owned(), json!(false));
    let required = keywords.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = keywords.get_mut("properties") {
        for name in required.iter().filter_map(Value::as_str) {
            properties.entry(name).or_insert_with(|| json!({}));
        }
    }
}

/// Moves limits inwards to numbers that the compiler holds, and refuses values that it does not.
fn exact(keywords: &mut Map<String, Value>) -> Result<(), String> {
    for name in ["const", "enum", "multipleOf"] {
        if let Some(number) = keywords.get(name).and_then(inexact) {
            return Err(format!("{name} {number} is beyond the whole numbers that can be kept exactly (up to 2^53)"));
        }
    }
    for name in ["minLength", "minItems", "maxLength", "maxItems"] {
        let Some(size) = keywords.get(name).filter(|size| size.as_f64() > Some(MOST_SIZE)) else { continue };
        if name.starts_with("min") {
            return Err(format!("{name} {size} is more than an answer can hold"));
        }
        keywords.remove(name);
    }
    for (name, including, outside) in LIMITS {
        let limit = keywords.get(name).and_then(Value::as_f64).filter(|limit| limit.abs() >= EXACT);
        let Some(limit) = limit else { continue };
        if limit * outside > 0.0 {
            return Err("its limits are beyond the numbers that can be kept exactly (up to 2^53)".to_owned());
        }
        keywords.remove(name);
        keywords.entry(including).or_insert_with(|| json!(-outside as i64 * (1 << 53)));
    }
    Ok(())
}

/// A whole number in a value that the compiler would round.
fn inexact(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            let is_large = number.as_f64().is_some_and(|number| number.abs() >= EXACT);
            let is_kept = number.as_i64().is_some_and(|whole| whole as f64 as i128 == i128::from(whole));
            (is_large && !is_kept).then(|| number.to_string())
        }
        Value::Array(values) => values.iter().find_map(inexact),
        Value::Object(fields) => fields.values().find_map(inexact),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tightened(mut schema: Value) -> Result<Value, String> {
        tighten(&mut schema).map(|()| schema)
    }

    /// Pointers of the objects that were closed.
    fn closed(schema: Value) -> Vec<String> {
        fn look(value: &Value, place: &str, found: &mut Vec<String>) {
            if value.get("properties").is_some() && value.get("additionalProperties") == Some(&json!(false)) {
                found.push(place.to_owned());
            }
            if let Some(fields) = value.as_object() {
                fields.iter().for_each(|(name, value)| look(value, &format!("{place}/{name}"), found));
            }
            for (i, value) in value.as_array().into_iter().flatten().enumerate() {
                look(value, &format!("{place}/{i}"), found);
            }
        }
        let mut found = Vec::new();
        look(&tightened(schema).unwrap(), "", &mut found);
        found
    }

    fn object(properties: Value) -> Value {
        json!({ "type": "object", "properties": properties })
    }

    #[test]
    fn objects_are_closed_where_nothing_else_adds_to_them() {
        let inner = object(json!({ "b": {} }));
        let deep = json!({
            "type": "object",
            "properties": { "a": inner, "list": { "items": inner }, "either": { "anyOf": [inner, { "type": "null" }] } },
        });
        let places = ["", "/properties/a", "/properties/list/items", "/properties/either/anyOf/0"];
        assert_eq!(closed(deep), places);
        // Pydantic's references are those of one schema alone.
        let named = json!({
            "$defs": { "B": inner, "C": inner },
            "type": "object",
            "properties": { "b": { "$ref": "#/$defs/B" }, "c": { "allOf": [{ "$ref": "#/$defs/C" }], "default": 1 } },
        });
        assert_eq!(closed(named), ["", "/$defs/B", "/$defs/C"]);
    }

    #[test]
    fn what_says_otherwise_or_is_put_together_stays_open() {
        let inner = object(json!({ "b": {} }));
        for schema in [
            json!({ "type": "object" }),
            json!({ "type": "object", "properties": {}, "additionalProperties": true }),
            json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "string" } }),
            json!({ "type": "object", "properties": {}, "patternProperties": { "^x": {} } }),
            json!({ "allOf": [inner, object(json!({ "c": {} }))] }),
            json!({ "not": inner }),
            json!({ "type": "object", "properties": { "a": {} }, "anyOf": [inner] }),
            json!({ "$defs": { "B": inner }, "allOf": [{ "$ref": "#/$defs/B" }, { "required": ["c"] }] }),
            json!({ "$defs": { "A": { "$ref": "#/$defs/B" }, "B": inner }, "properties": { "c": {} }, "$ref": "#/$defs/A" }),
            json!({ "const": { "properties": {} }, "default": inner }),
        ] {
            assert_eq!(closed(schema.clone()), Vec::<String>::new(), "{schema}");
        }
    }

    #[test]
    fn a_closed_object_has_what_it_requires() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a", "b"] });
        let properties = tightened(schema).unwrap()["properties"].take();
        assert_eq!(properties, json!({ "a": { "type": "null" }, "b": {} }));
    }

    #[test]
    fn an_unknown_format_is_an_annotation() {
        let schema = |format: &str| json!({ "items": { "type": "string", "format": format } });
        assert_eq!(tightened(schema("date")).unwrap(), schema("date"));
        assert_eq!(tightened(schema("phone")).unwrap(), json!({ "items": { "type": "string" } }));
        // A property of that name is none.
        let property = json!({ "properties": { "format": { "type": "string" } }, "additionalProperties": true });
        assert_eq!(tightened(property.clone()).unwrap(), property);
    }

    #[test]
    fn whole_numbers_are_exact_or_refused() {
        const EVEN: i64 = 1 << 60;
        for exact in [json!({ "const": 9_007_199_254_740_992_i64 }), json!({ "enum": [EVEN, -EVEN, 1.5, "x"] })] {
            assert_eq!(tightened(exact.clone()), Ok(exact));
        }
        for lost in [
            json!({ "const": 9_007_199_254_740_993_i64 }),
            json!({ "enum": [1, -123_456_789_012_345_678_i64] }),
            json!({ "const": { "a": [u64::MAX] } }),
            json!({ "const": 1e25 }),
            json!({ "const": 9_007_199_254_740_992.0 }),
            json!({ "enum": [{ "a": -9_007_199_254_740_994.0 }] }),
            json!({ "type": "integer", "minimum": i64::MAX }),
            json!({ "type": "integer", "maximum": i64::MIN }),
            json!({ "type": ["integer", "null"], "exclusiveMinimum": EVEN, "exclusiveMaximum": EVEN + 2 }),
            json!({ "type": "integer", "minimum": 9_007_199_254_740_993_i64, "maximum": 9_007_199_254_740_993_i64 }),
            json!({ "properties": { "id": { "const": 9_007_199_254_740_993_i64 } } }),
        ] {
            let why = tightened(lost.clone()).unwrap_err();
            assert!(why.contains("2^53"), "{lost}: {why}");
        }
    }

    #[test]
    fn sizes_that_no_answer_has_are_refused_or_left_out() {
        let none = json!({ "type": "string", "minLength": 9_007_199_254_740_993_i64 });
        assert_eq!(tightened(none).unwrap_err(), "minLength 9007199254740993 is more than an answer can hold");
        let all = json!({ "type": "array", "maxItems": 1_i64 << 60, "minItems": 2 });
        assert_eq!(tightened(all).unwrap(), json!({ "type": "array", "minItems": 2 }));
    }

    #[test]
    fn limits_move_inwards() {
        let limits = |of: Value| {
            let of = tightened(of).unwrap();
            let get = |name: &str| of.get(name).and_then(Value::as_f64);
            let least = get("minimum").into_iter().chain(get("exclusiveMinimum")).reduce(f64::max);
            (least, get("maximum").into_iter().chain(get("exclusiveMaximum")).reduce(f64::min))
        };
        assert_eq!(limits(json!({ "minimum": i64::MIN, "maximum": i64::MAX })), (Some(-EXACT), Some(EXACT)));
        assert_eq!(limits(json!({ "minimum": 0, "maximum": u64::MAX })), (Some(0.0), Some(EXACT)));
        assert_eq!(limits(json!({ "maximum": 1e300 })), (None, Some(EXACT)));
        assert_eq!(limits(json!({ "exclusiveMaximum": 9_007_199_254_740_994_i64 })), (None, Some(EXACT)));
        assert_eq!(limits(json!({ "maximum": 9_007_199_254_740_993_i64 })), (None, Some(EXACT)));
        assert_eq!(limits(json!({ "maximum": 5, "exclusiveMaximum": i64::MAX })), (None, Some(5.0)));
        assert_eq!(limits(json!({ "exclusiveMinimum": -1e300, "minimum": -5.5 })), (Some(-5.5), None));
        assert_eq!(limits(json!({ "exclusiveMinimum": 3, "minimum": 9, "maximum": 12 })), (Some(9.0), Some(12.0)));
    }
}
