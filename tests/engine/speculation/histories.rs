//! Conversations that were stopped, saved and gone on with: what a drafting one leaves is what a plain one leaves.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use sala_chat::engine::protocol::{Generate, Sampling, SpecMode, Token};

use super::{Head, Rig, Script, alone, finder, full, params, skill};

#[test]
fn a_saved_window_drafts_on_and_a_foreign_one_is_left_alone() {
    let _alone = alone();
    let prompt = &skill("story").prompts[2];
    let mut rig = Rig::new(Head::Own, 4096);
    rig.read(prompt);
    let (first, _) = rig.generate(&params(0.0, SpecMode::Depth(5), 60));
    let (_, mut end) = rig.image();
    end.tensors = rig.decoder.export(&mut rig.b, &rig.model).unwrap();
    let pending = *first.last().unwrap();
    // On, with the window as it was, with the window from the save, and without one.
    let mut rounds = Vec::new();
    let history = rig.decoder.history()[..rig.live.position()].to_vec();
    let (rows, state) = rig.image();
    for saved in [None, Some(true), Some(false)] {
        rig.live.restore(&mut rig.b, 0, std::slice::from_ref(&rows), Some(&state)).unwrap();
        if saved == Some(false) {
            for tensor in end.tensors.iter_mut().filter(|t| t.name == "draft.meta") {
                let text =
                    String::from_utf8(tensor.data.to_vec()).unwrap().replace("fingerprint\":\"", "fingerprint\":\"x");
                tensor.data = text.into_bytes().into();
            }
        }
        if saved.is_some() {
            rig.decoder.restore(&mut rig.b, &history, Some(&end)).unwrap();
        }
        rig.read(&[pending]);
        let (answer, _) = rig.generate(&params(0.0, SpecMode::Depth(5), 60));
        rounds.push((answer, rig.decoder.stats().clone()));
    }
    assert!(rounds.iter().all(|r| r.0 == rounds[0].0));
    assert_eq!((rounds[0].1.accepted, rounds[0].1.rounds), (rounds[1].1.accepted, rounds[1].1.rounds));
    // The foreign window is not used: the head starts from nothing and still drafts.
    assert!(rounds[2].1.eagle_rounds > 0 && rounds[2].1.accepted > 0);
}

/// One thing that happens to a conversation.
#[derive(Clone, Debug)]
enum Event {
    /// Up to this many rounds, then a cancel.
    Rounds(usize),
    /// Saved, and restored into an empty engine.
    Reload,
    /// The user says something, of this many tokens.
    Given(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event =
        prop_oneof![(1usize..8).prop_map(Event::Rounds), Just(Event::Reload), (0usize..70).prop_map(Event::Given)];
    prop::collection::vec(event, 1..7)
}

#[test]
fn any_history_of_rounds_equals_plain_decoding() {
    let _alone = alone();
    let rigs = RefCell::new((Rig::new(Head::Own, 4096), Rig::new(Head::None, 4096)));
    let story = skill("story").prompts.remove(3);
    let more = skill("doc_qa").prompts.remove(0);
    let config =
        ProptestConfig { cases: if full() { 64 } else { 10 }, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(events in events(), seed in 0u64..1000, mode in prop_oneof![Just(SpecMode::Auto), Just(SpecMode::On), Just(SpecMode::Depth(3)), Just(SpecMode::Depth(15))])| {
        let (own, twin) = &mut *rigs.borrow_mut();
        own.reset();
        twin.reset();
        own.read(&story);
        twin.read(&story);
        // Random drafts: a lookup in a text that shares pieces with the answer.
        let text: Vec<Token> = story.iter().chain(&more).copied().collect();
        own.decoder.set_finder(if seed % 2 == 0 { finder(Script::Random, Arc::new(text)) } else { finder(Script::Nothing, Arc::default()) });
        for event in events {
            // A token drawn and not read must be given again.
            let pending = own.decoder.history().get(own.live.position()..).unwrap_or_default().to_vec();
            prop_assert_eq!(&pending[..], twin.decoder.history().get(twin.live.position()..).unwrap_or_default());
            match event {
                Event::Reload => own.reload(),
                Event::Given(n) => {
                    let given: Vec<Token> = pending.iter().chain(more.iter().skip(seed as usize % 400).take(n + 1)).copied().collect();
                    own.read(&given);
                    twin.read(&given);
                    continue;
                }
                Event::Rounds(n) => {
                    let params = Generate { stop: vec![], sampling: Sampling { seed, ..params(0.9, mode, 100).sampling }, ..params(0.9, mode, 100) };
                    let mut tokens = own.decoder.begin(&mut own.b, &own.model, &mut own.live, &params).unwrap().tokens;
                    for _ in 0..n {
                        tokens.extend(own.decoder.round(&mut own.b, &own.model, &mut own.live).unwrap().tokens);
                    }
                    let params = Generate { max_tokens: tokens.len() as u64, spec: SpecMode::Off, ..params };
                    prop_assert_eq!(&twin.generate(&params).0, &tokens);
                }
            }
            if own.live.position() == own.decoder.history().len() {
                // Reloaded without the pending token: give it to both.
                let given = if pending.is_empty() { &more[..3] } else { &pending[..] };
                own.read(given);
                twin.read(given);
            }
            prop_assert_eq!(own.state(), twin.state());
        }
    });
}
