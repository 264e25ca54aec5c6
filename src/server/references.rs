//! Moves a schema into another one: its references to itself are rewritten to the new place.

use serde_json::Value;

use crate::text::references::each;

/// Rewrites a schema for its `place` in another one, a JSON pointer. Only references by pointer are relative to the
/// root: those to an address or an anchor stay. An `$id` moves no root, as in the library that compiles schemas.
pub(super) fn move_to(place: &str, schema: &mut Value) {
    each(schema, &mut |reference: &mut String| {
        let pointer = reference.strip_prefix('#').filter(|p| p.is_empty() || p.starts_with('/'));
        if let Some(pointer) = pointer {
            *reference = format!("#{place}{pointer}");
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
