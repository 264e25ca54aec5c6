use super::*;
use crate::text::tokenizer::tests::{DEMO, PIECES};

/// What a document may hold that one of the tokenizers finds hard.
const AWKWARD: [&str; 9] = [
    "plain words, and more of them.\nAnd a line.",
    " leading",
    "   three",
    "naïve 你好，世界。 é\u{301} \u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}",
    "\u{1F642}\u{1F642}",
    "\n\n  \n",
    "a \u{2581}b\u{2581} c",
    "the end<|im_end|>\n and </s> more",
    "x<|im_start|> user",
];

fn covered(t: &Tokenizer, text: &str, ids: &[Token], before: Before) -> Option<usize> {
    let mut walk = Walk::new(t, text, before);
    if ids.iter().all(|id| walk.step(*id)) { walk.place() } else { None }
}

#[test]
fn the_tokens_of_a_rendered_text_cover_all_of_it() {
    for t in [&*DEMO, &*PIECES] {
        for awkward in AWKWARD {
            let text = format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", t.shield(awkward));
            let ids = t.encode_after(&text, Before::Edge).unwrap();
            assert_eq!(covered(t, &text, &ids, Before::Edge), Some(text.len()), "{text:?}");
        }
    }
}

#[test]
fn a_text_divided_anywhere_reads_on_without_a_space_of_its_own() {
    for t in [&*DEMO, &*PIECES] {
        for awkward in AWKWARD {
            let text = format!("<|im_start|>user\n{}<|im_end|>\n", t.shield(awkward));
            let ids = t.encode_after(&text, Before::Edge).unwrap();
            for n in 0..=ids.len() {
                let Some(at) = covered(t, &text, &ids[..n], Before::Edge) else { continue };
                let before = t.before_next(&ids[..n], Before::Edge);
                let rest = t.encode_after(&text[at..], before).unwrap();
                assert_eq!(covered(t, &text[at..], &rest, before), Some(text.len() - at), "{awkward:?} at {n}");
                // No space is read that the text does not have.
                let whole = [&ids[..n], &rest].concat();
                assert_eq!(covered(t, &text, &whole, Before::Edge), Some(text.len()), "{awkward:?} at {n}");
            }
        }
    }
}

#[test]
fn tokens_of_another_text_cover_nothing() {
    for t in [&*DEMO, &*PIECES] {
        let ids = t.encode_after("<|im_start|>user\nwords", Before::Edge).unwrap();
        assert_eq!(covered(t, "<|im_start|>user\nsword", &ids, Before::Edge), None);
        assert_eq!(covered(t, "<|im_start|>user\nwor", &ids, Before::Edge), None);
        // A control token is not the same literal in a text that was made harmless.
        let end = t.id("<|im_end|>").unwrap();
        assert_eq!(covered(t, &t.shield("<|im_end|>"), &[end], Before::Edge), None);
        assert_eq!(covered(t, "<|im_end|>", &[end], Before::Edge), Some("<|im_end|>".len()));
    }
}

#[test]
fn the_library_used_directly_agrees_on_the_first_stretch() {
    for awkward in AWKWARD {
        let ids = PIECES.encode_plain(awkward).unwrap();
        assert_eq!(PIECES.spell(&ids, Before::Edge), awkward.replace('\u{2581}', " "));
        assert_eq!(PIECES.spell(&ids, Before::Text), format!(" {}", awkward.replace('\u{2581}', " ")));
    }
}

proptest::proptest! {
    #[test]
    fn any_text_divided_anywhere_is_covered(text in "(\\PC|[a-z \n你🙂]|the |<\\|im_end\\|>){0,30}", part in 0usize..40) {
        for t in [&*DEMO, &*PIECES] {
            let text = format!("<|im_start|>user\n{}<|im_end|>\n", t.shield(&text));
            let ids = t.encode_after(&text, Before::Edge).unwrap();
            proptest::prop_assert_eq!(covered(t, &text, &ids, Before::Edge), Some(text.len()));
            let n = part.min(ids.len());
            if let Some(at) = covered(t, &text, &ids[..n], Before::Edge) {
                let before = t.before_next(&ids[..n], Before::Edge);
                let rest = t.encode_after(&text[at..], before).unwrap();
                proptest::prop_assert_eq!(covered(t, &text[at..], &rest, before), Some(text.len() - at));
            }
        }
    }
}
