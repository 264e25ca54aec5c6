//! Readies a schema for the compiler: objects with listed properties are closed, whole numbers stay exact, and formats that the
//! compiler does not know are annotations.
//!
//! An answer that keeps to the tightened schema keeps to the schema as it was sent.

use std::collections::BTreeSet;

use serde_json::{Map, Number, Value, json};

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
/// Limits of numbers: the keyword, whether it is a lower one, and whether the limit itself is excluded.
const LIMITS: [(&str, bool, bool); 4] = [
    ("minimum", true, false),
    ("maximum", false, false),
    ("exclusiveMinimum", true, true),
    ("exclusiveMaximum", false, true),
];
/// The largest number of 64 bits that a `f64` holds exactly.
const MOST: i128 = (1 << 63) - 1024;
/// The most characters or items that a schema can ask for.
const MOST_SIZE: f64 = 1e9;

/// The error is a phrase about a number that cannot be kept exactly.
pub(super) fn tighten(schema: &mut Value) -> Result<(), String> {
    let mut open = BTreeSet::new();
    // What is referred to from a schema that has to stay open stays open too, and what that refers to.
    loop {
        let known = open.len();
        Pass { open: &mut open, change: false }.schema(schema, "", false)?;
        if open.len() == known {
            return Pass { open: &mut open, change: true }.schema(schema, "", false);
        }
    }
}

struct Pass<'a> {
    /// Pointers of schemas that are combined with others for one value: closing them would forbid the others' properties.
    open: &'a mut BTreeSet<String>,
    /// Changes the schema; else references are followed.
    change: bool,
}

impl Pass<'_> {
    fn schema(&mut self, schema: &mut Value, place: &str, open: bool) -> Result<(), String> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        let open = open || self.open.contains(place);
        let has = |name: &str| keywords.contains_key(name);
        let parts = |name: &str| keywords.get(name).and_then(Value::as_array).map_or(0, Vec::len);
        let combining = SAME_VALUE.iter().filter(|name| has(name)).count();
        let combined = combining > 1 || parts("allOf") > 1 || combining == 1 && (has("properties") || has("not"));
        let opened = OPENS.iter().filter(|name| has(name)).count();
        let opens = opened > 0;
        let within = open || combined || opens;
        if let Some(Value::String(reference)) = keywords.get("$ref")
            && within
            && let Some(pointer) = reference.strip_prefix('#')
        {
            self.open.insert(pointer.to_owned());
        }
        if self.change {
            if !open && !opens && combining == 0 && has("properties") {
                keywords.insert("additionalProperties".to_owned(), json!(false));
                let required = keywords.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
                if let Some(Value::Object(properties)) = keywords.get_mut("properties") {
                    for name in required.iter().filter_map(Value::as_str) {
                        properties.entry(name).or_insert_with(|| json!({}));
                    }
                }
            }
            if keywords.get("format").and_then(Value::as_str).is_some_and(|name| !FORMATS.contains(&name)) {
                keywords.remove("format");
            }
            if keywords.get("unevaluatedProperties") == Some(&json!(false)) && combining == 0 && opened == 1 {
                keywords.insert("additionalProperties".to_owned(), json!(false));
                keywords.remove("unevaluatedProperties");
            }
            let conditional = keywords.contains_key("then") || keywords.contains_key("else");
            keywords.retain(|name, value| !holds_always(name, value, conditional));
            exact(keywords)?;
        }
        for (keyword, value) in keywords.iter_mut() {
            let keyword = keyword.as_str();
            if DATA.contains(&keyword) {
                continue;
            }
            let place = format!("{place}/{keyword}");
            // Closing what a value must not be would let more through.
            let never = matches!(keyword, "not" | "if" | "then" | "else" | "dependentSchemas" | "contains");
            let open = never || (within && SAME_VALUE.contains(&keyword));
            match value {
                Value::Object(named) if NAMED.contains(&keyword) => {
                    for (name, schema) in named.iter_mut() {
                        self.schema(schema, &format!("{place}/{name}"), open)?;
                    }
                }
                Value::Array(schemas) => {
                    for (i, schema) in schemas.iter_mut().enumerate() {
                        self.schema(schema, &format!("{place}/{i}"), open)?;
                    }
                }
                other => self.schema(other, &place, open)?,
            }
        }
        Ok(())
    }
}

/// Keywords that hold for every value; the compiler refuses them by their names.
fn holds_always(keyword: &str, value: &Value, conditional: bool) -> bool {
    let anything = *value == json!(true) || *value == json!({});
    match keyword {
        "propertyNames" => anything || *value == json!({ "type": "string" }),
        "unevaluatedProperties" | "unevaluatedItems" => anything,
        "dependentRequired" | "dependentSchemas" => *value == json!({}),
        "uniqueItems" => *value == json!(false),
        "if" => !conditional,
        _ => false,
    }
}

/// Moves limits inwards to numbers that a `f64` holds, as the compiler has no other, and refuses values that it does not hold.
fn exact(keywords: &mut Map<String, Value>) -> Result<(), String> {
    for name in ["const", "enum", "multipleOf"] {
        if let Some(number) = keywords.get(name).and_then(inexact) {
            return Err(format!("{name} {number} is beyond the whole numbers that can be kept exactly (up to 2^53)"));
        }
    }
    for name in ["minLength", "minItems", "maxLength", "maxItems", "minProperties", "maxProperties"] {
        // `2.0` is a size as well.
        let float = keywords.get(name).filter(|size| size.is_f64()).and_then(Value::as_f64);
        let whole = float.filter(|size| size.fract() == 0.0 && *size >= 0.0);
        keywords.extend(whole.map(|size| (name.to_owned(), json!(size as u64))));
        let Some(size) = keywords.get(name).filter(|size| size.as_f64() > Some(MOST_SIZE)) else { continue };
        if name.starts_with("min") {
            return Err(format!("{name} {size} is more than an answer can hold"));
        }
        keywords.remove(name);
    }
    let of_type = |name: &str| match keywords.get("type") {
        Some(Value::Array(types)) => types.iter().any(|of| of == name),
        of => of.is_some_and(|of| of == name),
    };
    let integer = of_type("integer") && !of_type("number");
    // The largest lower limit, and that of the negated numbers, which are the upper limits.
    let (mut least, mut most) = (None, None);
    for (name, lower, excluded) in LIMITS {
        let Some(number) = keywords.get(name).and_then(Value::as_number) else { continue };
        let sign = if lower { 1 } else { -1 };
        let own = whole(number).map(|number| sign * number);
        let inner = || number.as_f64().map(|f| (sign as f64 * f).ceil() as i128).filter(|_| integer);
        let Some(limit) = own.or_else(inner) else { continue };
        let excluded = integer && excluded;
        let next = limit + i128::from(excluded && own.is_some());
        let moved = up(if integer { next.max(-MOST) } else { next });
        let end = if lower { &mut least } else { &mut most };
        let tightest = end.map_or(moved, |other: i128| moved.max(other));
        *end = Some(tightest);
        if excluded {
            keywords.remove(name);
        } else if own == Some(moved) {
            continue;
        }
        let value = sign * tightest;
        let value = i64::try_from(value).map(Number::from).ok().or_else(|| Number::from_f64(value as f64));
        let name = if excluded { name.replacen("exclusiveM", "m", 1) } else { name.to_owned() };
        keywords.extend(value.map(|value| (name, value.into())));
    }
    let unlimited = integer.then_some(-MOST);
    match (least.or(unlimited), most.or(unlimited)) {
        (Some(least), Some(most)) if least > -most && least.max(most) > 1 << 53 => {
            Err("its limits leave no number that can be kept exactly (beyond 2^53)".to_owned())
        }
        _ => Ok(()),
    }
}

fn whole(number: &Number) -> Option<i128> {
    let float = || number.as_f64().filter(|f| f.fract() == 0.0).map(|f| f.clamp(-1e30, 1e30) as i128);
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(float)
}

/// The least number from this one on that a `f64` holds exactly.
fn up(number: i128) -> i128 {
    let near = number as f64;
    if near as i128 >= number { near as i128 } else { near.next_up() as i128 }
}

/// A whole number in a value that the compiler would round.
fn inexact(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            // A number with a point is rounded already.
            let kept = |n: i128| up(n) == n && n.unsigned_abs() <= MOST.unsigned_abs() && !number.is_f64();
            let is_large = |n: &i128| n.unsigned_abs() >= 1 << 53;
            whole(number).filter(|n| is_large(n) && !kept(*n)).map(|_| number.to_string())
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
    fn keywords_that_hold_for_every_value_are_left_out() {
        let schema = json!({
            "type": "object", "additionalProperties": { "type": "string", "maxLength": 2.0 },
            "propertyNames": { "type": "string" }, "unevaluatedProperties": true, "dependentRequired": {},
            "dependentSchemas": {}, "if": { "required": ["a"] },
        });
        let left = json!({ "type": "object", "additionalProperties": { "type": "string", "maxLength": 2 } });
        assert_eq!(tightened(schema), Ok(left));
        let list = json!({ "type": "array", "uniqueItems": false });
        assert_eq!(tightened(list), Ok(json!({ "type": "array" })));
        for kept in [json!({ "uniqueItems": true }), json!({ "if": true, "then": { "required": ["a"] } })] {
            assert_eq!(tightened(kept.clone()), Ok(kept));
        }
        let flat = |word: &str| json!({ "type": "object", "properties": { "a": {} }, word: false });
        assert_eq!(tightened(flat("unevaluatedProperties")), Ok(flat("additionalProperties")));
        for both in [
            json!({ "properties": {}, "allOf": [{}], "unevaluatedProperties": false }),
            json!({ "anyOf": [{ "properties": {}, "additionalProperties": false }], "unevaluatedProperties": false }),
        ] {
            assert_eq!(tightened(both.clone()), Ok(both));
        }
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
        let limits = |mut of: Value| {
            of["type"] = json!("integer");
            let of = tightened(of).unwrap();
            let get = |name: &str| of.get(name).and_then(Value::as_i64);
            assert!(of.get("exclusiveMinimum").is_none() && of.get("exclusiveMaximum").is_none(), "{of}");
            (get("minimum"), get("maximum"))
        };
        let most = i64::try_from(MOST).unwrap();
        assert_eq!(limits(json!({ "minimum": i64::MIN, "maximum": i64::MAX })), (Some(-most), Some(most)));
        assert_eq!(limits(json!({ "minimum": 0, "maximum": u64::MAX })), (Some(0), Some(most)));
        assert_eq!(limits(json!({ "maximum": 1e300 })), (None, Some(most)));
        assert_eq!(limits(json!({ "minimum": 9_007_199_254_740_993_i64 })), (Some(9_007_199_254_740_994), None));
        assert_eq!(
            limits(json!({ "exclusiveMaximum": 9_007_199_254_740_994_i64 })),
            (None, Some(9_007_199_254_740_992))
        );
        const ODD: i64 = 9_007_199_254_740_992;
        assert_eq!(
            limits(json!({ "exclusiveMinimum": ODD - 2, "exclusiveMaximum": ODD, "maximum": ODD })),
            (Some(ODD - 1), Some(ODD - 1))
        );
        assert_eq!(
            limits(json!({ "exclusiveMinimum": 0, "minimum": 5.5, "exclusiveMaximum": 9.5 })),
            (Some(6), Some(9))
        );
        assert_eq!(limits(json!({ "exclusiveMinimum": 3, "minimum": 9, "maximum": 12 })), (Some(9), Some(12)));
        let number = tightened(json!({ "type": "number", "maximum": 9_007_199_254_740_993_i64 })).unwrap();
        assert_eq!(number["maximum"], 9_007_199_254_740_992_i64);
    }
}
