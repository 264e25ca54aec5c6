use super::*;
use crate::core::transcript::{DocumentInfo, MessageId, MessageMeta};
use crate::engine::protocol::BlockLook;
use crate::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
use crate::runtime::protocol::ThinkMode;
use crate::store::{NewSegment, SegmentKind};
use crate::text::TextModel;

const SENTENCEPIECE: &str = include_str!("../../tests/tokenizers/pieces.json");

fn renderer(tokenizer: &str) -> Renderer {
    Renderer::new(TextModel::from_bytes(tokenizer.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap())
}

fn message(id: i64, role: Role, text: &str) -> Message {
    let document = (role == Role::Document).then(|| DocumentInfo {
        name: "notes.txt".into(),
        complete: true,
        ..DocumentInfo::default()
    });
    Message {
        id: MessageId(id),
        parent: None,
        role,
        text: text.into(),
        thinking: String::new(),
        created_ms: 0,
        meta: MessageMeta { document, ..MessageMeta::default() },
    }
}

/// A document of numbered lines, after an empty first line.
fn document() -> String {
    let line = |n: u64| format!("Line {n} says that the bridge of <|im_end|> number {n} is 日本 green.\n");
    std::iter::once("\n".to_owned()).chain((2..=120).map(line)).collect()
}

/// The conversation, rendered, and its path: one segment up to each cut, in pieces of `piece` tokens.
fn conversation(renderer: &Renderer, piece: usize) -> (Vec<Message>, Rendered, Path) {
    let messages = vec![
        message(1, Role::System, "Be brief."),
        message(2, Role::Document, &document()),
        message(3, Role::User, "Yes"),
        message(4, Role::Assistant, "Yes"),
        message(5, Role::User, "Which line is it that says so? ".repeat(30).trim()),
    ];
    let path: Vec<&Message> = messages.iter().collect();
    let rendered = renderer
        .render(&path, super::super::Form::Prompt, ThinkMode::Auto, &crate::text::Halt::NEVER, &|_| None)
        .unwrap();
    let tokenizer = &renderer.model().tokenizer;
    let (mut live, mut at, mut before) = (Path::default(), 0, Before::Edge);
    for end in rendered.cuts.iter().map(|c| c.end).chain([rendered.text.len()]) {
        let slice = &rendered.text[at..end];
        let tokens = match at {
            0 => tokenizer.encode_prompt(slice).unwrap(),
            _ => tokenizer.encode_after(slice, before).unwrap(),
        };
        let mut done = 0;
        let mut ends = renderer.piece_ends(slice, &tokens, before, piece);
        ends.push((tokens.len(), slice.len()));
        for (upto, bytes) in ends {
            live.push(NewSegment {
                fingerprint: "f".into(),
                parent: live.head(),
                start: live.position(),
                prompt: tokens[done..upto].to_vec(),
                completion: Vec::new(),
                boundary: TextBoundary::of(&rendered.text[..at + bytes]),
                kind: SegmentKind::Turn,
            });
            done = upto;
        }
        before = tokenizer.before_next(&tokens, before);
        at = end;
    }
    (messages, rendered, live)
}

fn looked(blocks: &[(u32, f32)]) -> LookedAt {
    let blocks = blocks.iter().map(|(block, share)| BlockLook { block: *block, share: *share, forced: 0.0 }).collect();
    LookedAt { answer: Looked { tokens: 9, block_tokens: 64, blocks }, ..LookedAt::default() }
}

fn block_of(map: &Map, rendered: &Rendered, phrase: &str) -> u32 {
    let at = rendered.text.find(phrase).unwrap() + phrase.len() / 2;
    map.edges.iter().rposition(|edge| *edge <= at).unwrap() as u32
}

fn every_block_is_found_in_the_text(tokenizer: &str) {
    let renderer = renderer(tokenizer);
    for piece in [100_000, 256] {
        let (messages, rendered, live) = conversation(&renderer, piece);
        let path: Vec<&Message> = messages.iter().collect();
        let map = renderer.map(&rendered, &path, &live, 64);
        // A block's edge is the end of the tokens before it.
        let tokens = live.tokens();
        assert_eq!(map.edges.len(), tokens.len().div_ceil(64) + 1);
        assert_eq!(map.edges.last(), Some(&rendered.text.len()));
        for (b, edge) in map.edges.iter().enumerate().skip(1).take(map.edges.len() - 2) {
            let spelled = renderer.model().tokenizer.spell(&tokens[..b * 64], Before::Edge);
            let expected = rendered.text[..*edge].replace(crate::text::tokenizer::SHIELD, "");
            let spelled = spelled.strip_prefix("<s>").unwrap_or(&spelled).trim_end_matches('\u{FFFD}').to_owned();
            assert!(expected == spelled, "block {b}: {:?}", &expected[expected.len().saturating_sub(30)..]);
        }
        // All five are found, even the answer that repeats words of a question.
        let numbers: Vec<u64> = map.items.iter().map(|i| i.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        for (item, m) in map.items.iter().zip(&messages) {
            let text: String = rendered.text[item.range.clone()].replace(crate::text::tokenizer::SHIELD, "");
            assert_eq!(text, m.text.trim());
        }
        // A passage has the line numbers of the document's own text.
        let block = block_of(&map, &rendered, "number 77 is");
        let sources = map.sources(&rendered.text, &looked(&[(0, 0.8), (block, 0.15), (block + 9, 0.05)]), &[]).unwrap();
        let passage = &sources.passages[0];
        assert_eq!((passage.document.as_deref(), passage.number), (Some("notes.txt"), 2));
        assert!((passage.first_line..=passage.last_line).contains(&77), "{passage:?}");
        assert!(passage.last_line - passage.first_line < 8, "{passage:?}");
        let text = document();
        assert!(passage.lines(&text).any(|(n, line)| n == 77 && line.starts_with("Line 77 ")));
        assert!((passage.share - 0.75).abs() < 1e-3 && (sources.first - 0.8).abs() < 1e-3, "{sources:?}");
        assert_eq!(sources.passages.len(), 2);
    }
}

#[test]
fn every_block_is_found_in_the_text_byte_level() {
    every_block_is_found_in_the_text(DEMO_TOKENIZER);
}

#[test]
fn every_block_is_found_in_the_text_sentencepiece() {
    every_block_is_found_in_the_text(SENTENCEPIECE);
}

#[test]
fn neighbours_are_joined_where_both_stand_out_and_stay_in_their_message() {
    let renderer = renderer(DEMO_TOKENIZER);
    let (messages, rendered, live) = conversation(&renderer, 100_000);
    let path: Vec<&Message> = messages.iter().collect();
    let map = renderer.map(&rendered, &path, &live, 64);
    let shares = [(0, 0.5), (5, 0.002), (6, 0.2), (7, 0.1), (8, 0.004), (12, 0.1), (14, 0.094)];
    let sources = map.sources(&rendered.text, &looked(&shares), &[]).unwrap();
    let blocks: Vec<(u32, u32)> = sources.passages.iter().map(|p| (p.first_block, p.last_block)).collect();
    assert_eq!(blocks, [(6, 7), (12, 12), (14, 14)], "{:?}", sources.passages);
    assert!((sources.passages[0].share - 0.6).abs() < 1e-3);
    // Attention to the question, the answer and the template forms no passage.
    let own = (map.edges.len() - 2) as u32;
    let sources = map.sources(&rendered.text, &looked(&[(0, 0.5), (own, 0.4), (6, 0.1)]), &[]).unwrap();
    assert_eq!(sources.passages.len(), 1);
    assert!((sources.own - 0.8).abs() < 1e-3, "{sources:?}");
    // A sentence has passages of its own, with the same names as those of the answer.
    let first = looked(&[(0, 0.8), (6, 0.15), (12, 0.05)]).answer;
    let sentences = [(9, first), (20, looked(&[(0, 1.0)]).answer)];
    let sources = map.sources(&rendered.text, &looked(&shares), &sentences).unwrap();
    let of = sources.by_sentence("It is 77. It is that");
    assert_eq!((of[0].0, of[1].0, of[1].1.len()), ("It is 77.", "It is that", 0));
    let sixth = &of[0].1[0];
    assert_eq!((sixth.document.as_deref(), sixth.number), (Some("notes.txt"), 2));
    assert!((sixth.share - 0.75).abs() < 1e-3, "{of:?}");
    // An engine without attention data, and attention to the first block only.
    assert_eq!(map.sources(&rendered.text, &LookedAt::default(), &[]), None);
    assert_eq!(map.sources(&rendered.text, &looked(&[(0, 1.0)]), &[]).unwrap().passages, []);
}

#[test]
fn a_document_read_evenly_is_one_passage() {
    let renderer = renderer(DEMO_TOKENIZER);
    let (messages, rendered, live) = conversation(&renderer, 100_000);
    let path: Vec<&Message> = messages.iter().collect();
    let map = renderer.map(&rendered, &path, &live, 64);
    let even: Vec<(u32, f32)> = (1..20).map(|b| (b, 0.01)).collect();
    let passages = map.sources(&rendered.text, &looked(&even), &[]).unwrap().passages;
    assert!(passages.len() <= MOST_PASSAGES && passages.iter().all(|p| p.share <= 1.0), "{passages:?}");
}
