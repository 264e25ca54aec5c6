//! Sampling that a model's authors recommend, in `generation_config.json` or on the family's card; how quotes begin.

use std::path::Path;

use serde_json::Value;

use super::TextError;
use super::quotes::MARK;
use crate::engine::protocol::{MOST_TEMPERATURE, Quoting, TOP_LOGITS};

/// From the card of MiniCPM-SALA, for folders without a value. Greedy answers of this family may never end.
const FAMILY_TEMPERATURE: f64 = 0.9;

/// Where a value is from.
const FILE: &str = "generation_config.json";
const CARD: &str = "the model's card";
const OPENING_BYTES: usize = 64;

/// Highest weight of a piece of evidence, in logits.
const EVIDENCE: f64 = 10.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    /// Values for the settings of the same names, and where each is from.
    pub values: Vec<(&'static str, f64, &'static str)>,
    pub quoting: Option<Quoting>,
}

/// Our name, the file's name, and the valid range.
const FIELDS: [(&str, &str, f64, f64); 5] = [
    ("temperature", "temperature", 0.0, MOST_TEMPERATURE),
    ("top_p", "top_p", 0.0, 1.0),
    ("top_k", "top_k", 0.0, TOP_LOGITS as f64),
    ("min_p", "min_p", 0.0, 1.0),
    ("repeat_penalty", "repetition_penalty", 0.5, 2.0),
];

impl Recommended {
    /// From a folder's `generation_config.json`. Values out of range are ignored. A model that begins quotes may name a
    /// file of its folder with related words, which `read` gives.
    pub fn of_folder(
        generation_config: Option<&[u8]>,
        read: impl FnOnce(&str) -> std::io::Result<Vec<u8>>,
    ) -> Result<Recommended, TextError> {
        let file: Value = generation_config.and_then(|b| serde_json::from_slice(b).ok()).unwrap_or_default();
        let mut values = Vec::new();
        for (name, there, least, most) in FIELDS {
            let value = file.get(there).and_then(Value::as_f64).filter(|v| (least..=most).contains(v));
            values.extend(value.map(|v| (name, v, FILE)));
        }
        // `do_sample: false` means greedy decoding, whatever the temperature.
        if file.get("do_sample") == Some(&Value::Bool(false)) {
            values.retain(|(name, ..)| *name != "temperature");
            values.insert(0, ("temperature", 0.0, FILE));
        }
        if !values.iter().any(|(name, ..)| *name == "temperature") {
            values.push(("temperature", FAMILY_TEMPERATURE, CARD));
        }
        let opening = file.get("quote_opening").and_then(Value::as_str);
        let opening = opening.filter(|words| words.as_bytes().last() == Some(&MARK) && words.len() <= OPENING_BYTES);
        let weight = |name: &str| {
            let value = file.get(name).and_then(Value::as_f64);
            value.filter(|weight| weight.abs() <= EVIDENCE).map_or(0.0, |weight| weight as f32)
        };
        let Some(opening) = opening else { return Ok(Recommended { values, quoting: None }) };
        let thesaurus = file.get("quote_thesaurus").and_then(Value::as_str);
        let quoting = Quoting {
            opening: opening.to_owned(),
            words: weight("quote_words"),
            length: weight("quote_length"),
            margin: weight("quote_margin").max(0.0),
            related: weight("quote_related"),
            covered: weight("quote_covered").max(0.0),
            thesaurus: thesaurus.map_or(Ok(String::new()), |name| related_words(name, read))?,
        };
        Ok(Recommended { values, quoting: Some(quoting) })
    }
}

/// The text of the file that `quote_thesaurus` names.
fn related_words(name: &str, read: impl FnOnce(&str) -> std::io::Result<Vec<u8>>) -> Result<String, TextError> {
    // Only files of the model's folder may be named.
    if Path::new(name).file_name() != Some(name.as_ref()) || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = format!("quote_thesaurus {name:?} is not the name of a file in this folder");
        return Err(TextError::malformed("generation_config.json", reason));
    }
    let named = |e| format!("{e} (named by quote_thesaurus in generation_config.json)");
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned());
    let text = read(name).map_err(named).and_then(utf8);
    text.map_err(|reason| TextError::malformed(name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_folder(file: Option<&str>) -> Recommended {
        Recommended::of_folder(file.map(str::as_bytes), |_| Ok(Vec::new())).unwrap()
    }

    #[test]
    fn files_take_precedence_and_the_card_fills_in() {
        let of = |text: &str| of_folder(Some(text)).values;
        let card = ("temperature", FAMILY_TEMPERATURE, CARD);
        // The released file has no sampling values.
        assert_eq!(of(r#"{"bos_token_id": 1, "eos_token_id": [2, 73440], "pad_token_id": 2}"#), [card]);
        assert_eq!(of_folder(None).values, [card]);
        assert_eq!(
            of(r#"{"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}"#),
            [("temperature", 0.7, FILE), ("top_p", 0.8, FILE), ("top_k", 20.0, FILE), ("repeat_penalty", 1.05, FILE)]
        );
        let greedy = ("temperature", 0.0, FILE);
        assert_eq!(of(r#"{"do_sample": false}"#), [greedy]);
        assert_eq!(of(r#"{"do_sample": false, "temperature": 0.8}"#), [greedy]);
        assert_eq!(of(r#"{"do_sample": true}"#), [card]);
        assert_eq!(of(r#"{"temperature": -1, "top_p": "x", "top_k": 1e9}"#), [card]);
        assert_eq!(of("not json"), [card]);
    }

    #[test]
    fn a_folder_says_how_its_model_begins_a_quote() {
        let of = |opening: &str| {
            let file = serde_json::json!({ "quote_opening": opening }).to_string();
            of_folder(Some(&file)).quoting
        };
        let says = "The document says: \"";
        assert_eq!(of(says), Some(Quoting { opening: says.to_owned(), ..Quoting::default() }));
        // Without its mark it is none, and so is a page.
        assert_eq!(of("The document says: "), None);
        assert_eq!(of(&format!("{}\"", "x".repeat(OPENING_BYTES))), None);
        assert_eq!(of_folder(None).quoting, None);
        let weights = |words: Value, length: Value, margin: Value| {
            let mut file = serde_json::json!({ "quote_opening": says, "quote_words": words, "quote_length": length });
            file["quote_margin"] = margin;
            let quoting = of_folder(Some(&file.to_string())).quoting.unwrap();
            (quoting.words, quoting.length, quoting.margin)
        };
        assert_eq!(weights(1.5.into(), (-1).into(), 4.into()), (1.5, -1.0, 4.0));
        assert_eq!(weights(1e3.into(), "much".into(), (-2).into()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_folder_names_a_file_with_related_words() {
        let keys = serde_json::json!({"quote_opening": "Says: \"", "quote_related": 1.5, "quote_covered": 6, "quote_thesaurus": "w.txt"});
        let with = |file: Value, words: &'static [u8]| {
            let mut read = None;
            let found = Recommended::of_folder(Some(file.to_string().as_bytes()), |name| {
                read = Some(name.to_owned());
                Ok(words.to_vec())
            });
            (read, found.map(|found| found.quoting).map_err(|e| e.to_string()))
        };
        let (read, quoting) = with(keys.clone(), b"cost price\n");
        assert_eq!(read.as_deref(), Some("w.txt"));
        let quoting = quoting.unwrap().unwrap();
        assert_eq!((quoting.related, quoting.covered, quoting.thesaurus.as_str()), (1.5, 6.0, "cost price\n"));
        let refused = with(keys.clone(), b"cost \xff").1.unwrap_err();
        assert!(refused.starts_with("w.txt: it is not UTF-8 text"), "{refused}");
        // Of use to quotes alone.
        let mut without = keys;
        without["quote_opening"] = Value::Null;
        assert_eq!(with(without, b"a b"), (None, Ok(None)));
    }
}
