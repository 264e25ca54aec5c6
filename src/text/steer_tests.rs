use super::*;
use crate::text::tokenizer::tests::{demo, sentencepiece};

fn both() -> [Arc<Tokenizer>; 2] {
    [Arc::new(demo()), Arc::new(sentencepiece())]
}

/// Where a text is taken for a loop, in tokens.
fn looped(tokens: &[Token]) -> Option<usize> {
    let mut repeats = Repeats::default();
    tokens.iter().position(|t| repeats.push(*t))
}

#[test]
fn texts_that_rightly_repeat_are_left_alone() {
    let table = format!(
        "| n | square | cube |\n|---|---|---|\n{}",
        (0..200).map(|n| format!("| {n} | {} | {} |\n", n * n, n * n * n)).collect::<String>()
    );
    let same_table = format!("| name | value |\n{}", "| - | 0 |\n".repeat(60));
    let list: String = (1..300).map(|n| format!("{n}. Check the seal and close the lid.\n")).collect();
    let zeros = format!("let m = [\n{}];\n", format!("    [{}],\n", vec!["0"; 16].join(", ")).repeat(16));
    let code: String = (0..80)
        .map(|n| format!("    case {n}:\n        return handle(&table[{n}]);\n    // -------------------------\n"))
        .collect();
    let ruler = format!("{}\nText\n{}\n", "=".repeat(400), "-".repeat(400));
    let song = "Row, row, row your boat, gently down the stream.\n".repeat(20);
    for tokenizer in both() {
        for text in [&table, &same_table, &list, &zeros, &code, &ruler, &song] {
            let tokens = tokenizer.encode_after(text, Before::Text).unwrap();
            assert_eq!(looped(&tokens), None, "{} tokens: {:?}", tokens.len(), &text[..40]);
        }
    }
}

#[test]
fn a_loop_is_found_whatever_its_period() {
    for period in [1, 2, 7, 40, 128, 512] {
        let start: Vec<Token> = (0..300).map(|i| 10 + i % 97).collect();
        let tokens: Vec<Token> =
            start.iter().copied().chain((0..8_000).map(|i| 1_000 + (i % period) as Token)).collect();
        let at = looped(&tokens).unwrap();
        let expected = 300 + LEAST_TOKENS.max(LEAST_TIMES * period);
        assert!(at.abs_diff(expected) <= 1, "period {period}: found at {at}, not {expected}");
    }
    // Longer than it looks for, or with a counter in it.
    assert_eq!(looped(&(0..9_000).map(|i| i % 700).collect::<Vec<Token>>()), None);
    assert_eq!(
        looped(&(0..9_000).map(|i| if i % 20 == 0 { 500 + i / 20 } else { i % 20 }).collect::<Vec<Token>>()),
        None
    );
}

/// A steered answer: its tokens, and whether it was ended.
fn steered(watched: Watched, tokenizer: &Arc<Tokenizer>, begin: Begin, drawn: &[Token]) -> (Vec<Token>, bool) {
    let steering = steering(watched, tokenizer, begin, 0).unwrap().unwrap();
    let mut steer = (steering.0)();
    let mut out = Vec::new();
    for token in drawn {
        match steer.drawn(*token, false) {
            Steered::Take => out.push(*token),
            Steered::Instead(other) => out.push(other),
            Steered::Last => {
                out.push(*token);
                return (out, true);
            }
        }
    }
    (out, false)
}

#[test]
fn a_thought_is_closed_when_its_budget_is_spent_and_the_answer_continues() {
    for tokenizer in both() {
        let drawn = tokenizer
            .encode_after("<think>\none two three four five six seven eight nine ten eleven twelve", Before::Text)
            .unwrap();
        let watched = Watched { thought_tokens: 6, loops: false };
        let (out, ended) = steered(watched, &tokenizer, Begin::Answer, &drawn);
        assert!(!ended && out.len() == drawn.len());
        let text = tokenizer.spell(&out, Before::Text);
        let (thought, rest) = text.split_once("</think>").unwrap();
        assert!(thought.starts_with("<think>\none") && rest.starts_with("\n\n"), "{text:?}");
        assert!(!rest.contains("</think>"), "closed once: {text:?}");
        assert!(tokenizer.encode_after(thought, Before::Text).unwrap().len() <= 16, "{thought:?}");

        // A prompt that opened the thought; a thought that ends by itself; no limit.
        let inside = tokenizer.encode_after("hm, one two three four five six seven", Before::Text).unwrap();
        let text = tokenizer.spell(&steered(watched, &tokenizer, Begin::Thought, &inside).0, Before::Text);
        assert!(text.contains("\n</think>\n\n"), "{text:?}");
        let answer = "An answer longer than sixteen tokens is fine, as nobody counts its tokens as thoughts.";
        let short = tokenizer.encode_after(&format!("<think>\nhm\n</think>\n\n{answer}"), Before::Text).unwrap();
        let watched = Watched { thought_tokens: 16, loops: false };
        assert_eq!(steered(watched, &tokenizer, Begin::Answer, &short).0, short);
        let unlimited = Watched { thought_tokens: 0, loops: true };
        assert_eq!(steered(unlimited, &tokenizer, Begin::Answer, &drawn).0, drawn);
    }
}

#[test]
fn a_token_that_ends_the_turn_ends_it_and_nothing_is_watched_for_nothing() {
    let tokenizer = Arc::new(demo());
    let steering =
        steering(Watched { thought_tokens: 1, loops: true }, &tokenizer, Begin::Thought, 5).unwrap().unwrap();
    assert_eq!((steering.0)().drawn(4, true), Steered::Take);
    assert!(super::steering(Watched::default(), &tokenizer, Begin::Answer, 0).unwrap().is_none());
}
