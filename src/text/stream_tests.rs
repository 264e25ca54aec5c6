use super::*;
use crate::text::tokenizer::tests::sentencepiece;

static DEMO: std::sync::LazyLock<Arc<Tokenizer>> = std::sync::LazyLock::new(|| {
    Arc::new(
        Tokenizer::from_bytes(
            include_bytes!("../../assets/demo/tokenizer.json"),
            Some(include_bytes!("../../assets/demo/tokenizer_config.json")),
            None,
        )
        .unwrap(),
    )
});

static PIECES: std::sync::LazyLock<Arc<Tokenizer>> = std::sync::LazyLock::new(|| Arc::new(sentencepiece()));

fn both() -> [Arc<Tokenizer>; 2] {
    [DEMO.clone(), PIECES.clone()]
}

fn split(parts: &[&str], begin: Begin) -> (String, String) {
    let mut s = Splitter::new(begin);
    let mut d = Delta::default();
    for p in parts {
        s.push(p, &mut d);
    }
    s.finish(&mut d);
    (d.thinking, d.answer)
}

#[test]
fn deltas_join_to_the_whole_text_and_never_break_a_character() {
    for tokenizer in both() {
        for text in ["naïve 你好，世界 👨‍👩‍👧 end\n", " leads", "  two", "\u{1F642}", "\n a", "a  b"]
        {
            let ids = tokenizer.encode_after(text, Before::Text).unwrap();
            let mut decoder = StreamDecoder::new(tokenizer.clone(), Begin::Answer);
            let mut joined = String::new();
            for &id in &ids {
                let delta = decoder.push(id);
                assert!(!delta.answer.contains('\u{FFFD}'));
                joined.push_str(&delta.answer);
            }
            joined.push_str(&decoder.finish().answer);
            assert_eq!(joined, text);
            assert_eq!(joined, tokenizer.spell(&ids, Before::Text));
        }
    }
}

#[test]
fn an_unfinished_character_is_replaced_at_the_end() {
    for tokenizer in both() {
        let ids = tokenizer.encode_after("a🙂", Before::Text).unwrap();
        let cut = &ids[..ids.len() - 1];
        let mut decoder = StreamDecoder::new(tokenizer.clone(), Begin::Answer);
        let mut text = decoder.push_all(cut).answer;
        assert_eq!(text, "a");
        text.push_str(&decoder.finish().answer);
        assert_eq!(text, "a\u{FFFD}");
        assert_eq!(text, tokenizer.spell(cut, Before::Text));
    }
}

#[test]
fn thought_tags_as_control_tokens_and_as_text_open_and_close_thoughts() {
    for tokenizer in both() {
        let ids = tokenizer.encode_after("<think>\nlet me see\n</think>\n\nYes.<|im_end|>", Before::Text).unwrap();
        let mut decoder = StreamDecoder::new(tokenizer, Begin::Answer);
        let mut all = Delta::default();
        for id in ids {
            let d = decoder.push(id);
            all.thinking.push_str(&d.thinking);
            all.answer.push_str(&d.answer);
        }
        let d = decoder.finish();
        assert_eq!((all.thinking + &d.thinking, all.answer + &d.answer), ("let me see".into(), "Yes.".into()));
    }
}

#[test]
fn tags_split_anywhere_never_leak() {
    let text = "\n<think>\n a < b </thin c \n\n</think>\n\nIt is <b>so</b>, and <think> is a tag.";
    for i in 0..text.len() {
        for j in i..text.len() {
            let (thinking, answer) = split(&[&text[..i], &text[i..j], &text[j..]], Begin::Answer);
            assert_eq!(thinking, "a < b </thin c");
            assert_eq!(answer, "It is <b>so</b>, and <think> is a tag.");
        }
    }
}

#[test]
fn text_without_thoughts_is_left_as_it_is() {
    assert_eq!(split(&["  <th", "ink about it"], Begin::Answer), ("".into(), "  <think about it".into()));
    assert_eq!(split(&[" \n"], Begin::Answer), ("".into(), " \n".into()));
    assert_eq!(split(&["<think>\n\n</think>\n\n", "ok "], Begin::Answer), ("".into(), "ok ".into()));
}

#[test]
fn a_prompt_that_opened_the_thought_is_followed() {
    assert_eq!(Begin::after_prompt("<|im_start|>assistant\n<think>\n"), Begin::Thought);
    assert_eq!(Begin::after_prompt("<think>\n\n</think>\n\n"), Begin::Answer);
    assert_eq!(split(&["hm", "m</th", "ink>\n\nok"], Begin::Thought), ("hmm".into(), "ok".into()));
    assert_eq!(split(&["cut off </thi"], Begin::Thought), ("cut off </thi".into(), "".into()));
}

proptest::proptest! {
    #[test]
    fn any_ids_stream_to_what_they_spell(ids in proptest::collection::vec(11u32..1580, 0..60)) {
        for tokenizer in both() {
            let mut decoder = StreamDecoder::new(tokenizer.clone(), Begin::Answer);
            let mut text = String::new();
            for &id in &ids {
                text.push_str(&decoder.push(id).answer);
            }
            text.push_str(&decoder.finish().answer);
            proptest::prop_assume!(!text.trim_start().starts_with(OPEN));
            proptest::prop_assert_eq!(text, tokenizer.spell(&ids, Before::Text));
        }
    }
}

#[test]
fn what_is_text_of_the_answer_is_known_of_each_token() {
    for tokenizer in both() {
        let places = |begin: Begin, text: &str| {
            let mut decoder = StreamDecoder::new(tokenizer.clone(), begin);
            let one = |token| {
                decoder.push(token);
                decoder.in_answer()
            };
            tokenizer.encode_after(text, Before::Text).unwrap().into_iter().map(one).collect::<Vec<_>>()
        };
        let thoughtful = places(Begin::Thought, "Hm.\n</think>\n\n");
        assert!(thoughtful.iter().all(|place| *place == Some(false)), "{thoughtful:?}");
        // The first character may be several tokens.
        let whole = places(Begin::Thought, "</think>\n\n\u{1F9ED} so");
        let begun = whole.iter().position(|place| *place == Some(true)).unwrap();
        assert!(whole[begun..].iter().all(|place| *place == Some(true)) && whole.len() - begun >= 4, "{whole:?}");
        assert_eq!(places(Begin::Answer, "So be it.").last(), Some(&Some(true)));
        assert_eq!(places(Begin::Answer, "\n").last(), Some(&None));
    }
}

#[test]
fn tokens_of_thoughts_are_counted_and_no_others() {
    for tokenizer in both() {
        let [thought, end, answer] =
            ["Look after the fire.", "</think>", "He returns."].map(|text| tokenizer.encode_plain(text).unwrap());
        let mut decoder = StreamDecoder::new(tokenizer.clone(), Begin::Thought);
        decoder.push_all(&thought);
        assert_eq!(decoder.thought_tokens(), thought.len() as u64);
        decoder.push_all(&end);
        let all = decoder.thought_tokens();
        assert!(!decoder.in_thought() && all < (thought.len() + end.len()) as u64);
        decoder.push_all(&answer);
        assert_eq!(decoder.thought_tokens(), all);
    }
}
