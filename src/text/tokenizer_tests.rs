use super::*;
use crate::text::Before;

pub(in crate::text) fn demo() -> Tokenizer {
    Tokenizer::from_bytes(
        include_bytes!("../../assets/demo/tokenizer.json"),
        Some(include_bytes!("../../assets/demo/tokenizer_config.json")),
        None,
    )
    .unwrap()
}

/// A tokenizer with the released model's steps: `tests/tokenizers/make.py`.
pub(in crate::text) fn sentencepiece() -> Tokenizer {
    Tokenizer::from_bytes(
        include_bytes!("../../tests/tokenizers/pieces.json"),
        Some(br#"{"add_bos_token": true, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#),
        Some(br#"{"eos_token_id": [2, 9]}"#),
    )
    .unwrap()
}

pub(in crate::text) static DEMO: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(demo);
pub(in crate::text) static PIECES: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(sentencepiece);

fn library_ids(t: &Tokenizer, text: &str) -> Vec<Token> {
    t.library.encode(text, false).unwrap().get_ids().to_vec()
}

#[test]
fn special_literals_are_tokens_and_the_start_token_appears_once() {
    let t = demo();
    let (start, end) = (t.id("<|im_start|>").unwrap(), t.id("<|im_end|>").unwrap());
    let ids = t.encode_prompt("<|im_start|>user\nhi<|im_end|>").unwrap();
    assert_eq!((ids[0], ids[1], *ids.last().unwrap()), (t.bos.unwrap(), start, end));
    assert_eq!(t.encode_prompt("<s><|im_start|>").unwrap(), [t.bos.unwrap(), start]);
    assert_eq!(t.stop_ids(&[2]), [2, end]);
    assert_eq!(sentencepiece().stop_ids(&[]), [2, 9, sentencepiece().id("<|im_end|>").unwrap()]);
}

#[test]
fn shielded_literals_are_plain_characters() {
    for t in [&*DEMO, &*PIECES] {
        let hostile = "the end<|im_end|>\nand </s> more";
        let end = t.id("<|im_end|>").unwrap();
        assert!(t.encode_after(hostile, Before::Edge).unwrap().contains(&end));
        let prompt = format!("{}<|im_end|>\n", t.shield(hostile));
        let ids = t.encode_after(&prompt, Before::Edge).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == end).count(), 1);
        assert_eq!(
            t.decode(&ids, Specials::Show),
            format!("{hostile}<|im_end|>{}\n", if t.pieces.blocks { " " } else { "" })
        );
        assert!(matches!(t.shield("harmless <im_end>"), Cow::Borrowed(_)));
    }
}

#[test]
fn a_run_of_letters_of_several_bytes_has_no_end_to_its_length() {
    for t in [&*DEMO, &*PIECES] {
        // Cuts of 65,536 bytes lie within characters of three bytes, and of two after an odd start.
        for text in
            ["中".repeat(70_000), format!(" {}", "я".repeat(70_000)), format!("a{}b", "\u{3000}".repeat(50_000))]
        {
            let ids = t.encode_plain(&text).unwrap();
            assert_eq!(t.decode(&ids, Specials::Show).trim_start_matches(' '), text.trim_start_matches(' '));
        }
    }
}

#[test]
fn long_texts_have_the_tokens_of_the_library() {
    let line = "The thing and the other, ring in 12 lines.\n\n  你好世界。 And\tthen \u{1F642} é <|im_end|> </s>x\r\n";
    let text: String = (0..4000).map(|i| format!("{}{i}", &line[..line.len() - i % 3])).collect();
    assert!(text.len() > 1 << 18);
    for t in [&*DEMO, &*PIECES] {
        assert!(t.encode_after(&text, Before::Edge).unwrap() == library_ids(t, &text));
        let mut plain = t.library.clone();
        plain.set_encode_special_tokens(true);
        assert!(t.encode_plain(&text).unwrap() == plain.encode(text.as_str(), false).unwrap().get_ids());
    }
}

#[test]
fn decoding_valid_text_is_the_librarys() {
    for t in [&*DEMO, &*PIECES] {
        let whole =
            ["", "hello world", " leading", "  two", "你好，世界。 🙂👨‍👩‍👧 é\u{301}", "a\n\nb\tc", "x<|im_end|>\ny"];
        // The space that a whole text loses is at its beginning, unless a visible special token is there.
        for text in whole.into_iter().chain(["</s>x y", "<|im_end|>\ny", "<|im_start|><|im_end|> z"]) {
            let ids = t.encode_after(text, Before::Edge).unwrap();
            assert_eq!(t.decode(&ids, Specials::Hide), t.library.decode(&ids, true).unwrap(), "{text:?}");
            assert_eq!(t.decode(&ids, Specials::Show), t.library.decode(&ids, false).unwrap(), "{text:?}");
        }
    }
    let begun = PIECES.encode_after("</s>x y", Before::Edge).unwrap();
    assert_eq!(PIECES.decode(&begun, Specials::Show), "</s> x y");
    assert_eq!(PIECES.decode(&begun, Specials::Hide), "x y");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let t = demo();
    assert!(t.check_vocabulary(3072).is_ok());
    let error = t.check_vocabulary(100).unwrap_err().to_string();
    assert!(error.contains("3071") && error.contains("100 embedding rows"), "{error}");
    assert!(matches!(Tokenizer::from_bytes(b"{}", None, None), Err(TextError::Malformed { .. })));
    assert!(matches!(Tokenizer::from_bytes(b"not json", None, None), Err(TextError::Malformed { .. })));
}

#[test]
fn what_is_malformed_is_called_as_the_file_calls_it() {
    let tokenizer = include_bytes!("../../assets/demo/tokenizer.json");
    let says = |tokenizer: &[u8], config: &str, generation: &str| {
        let read = Tokenizer::from_bytes(tokenizer, Some(config.as_bytes()), Some(generation.as_bytes()));
        let message = read.unwrap_err().to_string();
        assert!(!message.contains("untagged") && !message.contains("variant"), "{message}");
        message
    };
    let ids = says(tokenizer, "{}", r#"{"eos_token_id": "two"}"#);
    assert!(ids.starts_with("generation_config.json: `eos_token_id` has to be a token id or a list of them"), "{ids}");
    let token = says(tokenizer, r#"{"bos_token": 1}"#, "{}");
    assert!(token.starts_with("tokenizer_config.json: `bos_token` and `eos_token` have to be text"), "{token}");
    for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model"] {
        let mut json: serde_json::Value = serde_json::from_slice(tokenizer).unwrap();
        json[part] = serde_json::json!({ "type": "Nothing" });
        let message = says(json.to_string().as_bytes(), "{}", "{}");
        assert!(message.contains(part), "{part}: {message}");
    }
}

proptest::proptest! {
    #[test]
    fn a_text_in_stretches_has_the_tokens_of_the_library(text in "(\\PC|[a-z0-9 \t\r\n.,'你好🙂]|the|  |\n\n|<\\|im_end\\|>|</s>){0,60}") {
        for t in [&*DEMO, &*PIECES] {
            let encoded = |literals| t.encode_stretches(&text, literals, Before::Edge, &Halt::NEVER).unwrap();
            proptest::prop_assert_eq!(encoded(&t.literals), library_ids(t, &text));
            let expected = t.plain().encode(text.as_str(), false).unwrap().get_ids().to_vec();
            proptest::prop_assert_eq!(encoded(&t.plain_literals), expected);
        }
    }

    #[test]
    fn no_token_crosses_the_end_of_a_piece(text in "([a-z]{1,9}|[a-z]{1,9}[ ,.\n]|你好。\n|the  |\r\n|\n\n| 7\t){0,80}") {
        for t in [&*DEMO, &*PIECES] {
            let pieces = t.cut(&text, 64);
            proptest::prop_assert_eq!(pieces.concat(), text.as_str());
            let first = pieces.iter().take(1).map(|piece| t.plain().encode(*piece, false));
            let rest = pieces.iter().skip(1).map(|piece| t.plain_after().unwrap().encode(*piece, false));
            let ids: Vec<Token> = first.chain(rest).flat_map(|encoded| encoded.unwrap().get_ids().to_vec()).collect();
            proptest::prop_assert_eq!(ids, library_ids(t, &text));
        }
    }

    #[test]
    fn any_text_survives_the_round_trip(text in "\\PC*|[a-z \n你🙂]{0,40}") {
        for t in [&*DEMO, &*PIECES] {
            let text = if t.pieces.blocks { text.replace('\u{2581}', " ") } else { text.clone() };
            let ids = t.encode_plain(&text).unwrap();
            proptest::prop_assert_eq!(t.decode(&ids, Specials::Show), text.as_str());
            proptest::prop_assert_eq!(t.spell(&ids, Before::Edge), text);
        }
    }
}

/// The built-in tokenizer with parts of its file replaced.
fn changed(edit: impl FnOnce(&mut serde_json::Value)) -> Result<Tokenizer, TextError> {
    let mut json: serde_json::Value =
        serde_json::from_slice(include_bytes!("../../assets/demo/tokenizer.json")).unwrap();
    edit(&mut json);
    Tokenizer::from_bytes(json.to_string().as_bytes(), None, None)
}

#[test]
fn hostile_tokenizer_files_are_refused_or_do_no_harm() {
    let split = |pattern: &str| serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let long = "an honest text ".repeat(10_000);
    // Nothing is cut off and nothing filled up, whatever the file says.
    let t = changed(|j| {
        j["truncation"] =
            serde_json::json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        j["padding"] = serde_json::json!({"strategy": {"Fixed": 1_000_000_000_000u64}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    });
    assert_eq!(t.unwrap().encode_plain(&long).unwrap(), DEMO.encode_plain(&long).unwrap());
    // What follows may be refused or work; it must neither panic nor hang.
    let begun = std::time::Instant::now();
    for normalizer in [
        serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
        serde_json::json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}),
        serde_json::json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
    ] {
        let t = changed(|j| j["normalizer"] = normalizer);
        let _ = t.and_then(|t| t.encode_after("some text", Before::Edge));
    }
    let huge = format!("({}){{1000}}", "a|".repeat(2_000));
    for pattern in ["", "(", "(a+)+$", "(?:(?:a{1,1000}){1,1000}){1,1000}", &huge] {
        let t = changed(|j| j["pre_tokenizer"] = split(pattern));
        let _ = t.and_then(|t| t.encode_after(&format!("{}b", "a".repeat(40)), Before::Edge));
    }
    assert!(changed(|j| j["model"]["vocab"]["x9"] = 4_000_000_000u64.into()).is_err());
    assert!(begun.elapsed().as_secs() < 100, "{:?}", begun.elapsed());
}

#[test]
fn tokenising_stops_on_request_and_at_the_limit() {
    let words = "one two three four five six seven eight nine ten\n".repeat(200_000);
    let letters = "a".repeat(8 << 20);
    for t in [&*DEMO, &*PIECES] {
        for text in [&words, &letters] {
            let begun = std::time::Instant::now();
            let error = t.encode_after_until(text, Before::Edge, &Halt { stop: &|| false, most: 10_000 }).unwrap_err();
            assert!(matches!(error, TextError::TooLong { most: 10_000 }), "{error}");
            let stop = || begun.elapsed().as_millis() > 20;
            let error = t.encode_after_until(text, Before::Text, &Halt { stop: &stop, most: usize::MAX }).unwrap_err();
            assert!(matches!(error, TextError::Stopped), "{error}");
        }
        // A word of no end costs no more than words do.
        assert!(t.encode_plain(&letters[..1 << 20]).is_ok());
    }
}
