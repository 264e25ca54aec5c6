//! Tokens ruled out by a mask: the text is the same with any drafts.

use std::sync::Arc;

use sala_chat::engine::protocol::{Constrain, Constraint, Generate, SpecMode, Token};

use super::{Head, Rig, Script, alone, finder, params, skill};

/// Allows every third id, favours some, and counts what became text.
struct Thirds(Vec<Token>);

impl Constrain for Thirds {
    fn allows(&mut self, token: Token) -> bool {
        token % 3 == self.0.len() as u32 % 3
    }

    fn favours(&mut self, token: Token) -> Option<f32> {
        self.allows(token).then_some((token % 7) as f32)
    }

    fn accept(&mut self, token: Token) {
        self.0.push(token);
    }

    fn stuck(&self) -> String {
        unreachable!("a third always may")
    }
}

/// Looks ahead twice after these tokens, before the first one is drawn.
struct Looks(Vec<Token>, usize);

impl Constrain for Looks {
    fn allows(&mut self, _: Token) -> bool {
        true
    }

    fn ahead(&mut self, rows: &[Vec<(Token, f32)>]) -> Vec<Token> {
        assert_eq!(rows.len(), if self.1 == 0 { 1 } else { self.0.len() });
        self.1 += 1;
        if self.1 <= 2 { self.0.clone() } else { Vec::new() }
    }

    fn accept(&mut self, _: Token) {
        assert_eq!(self.1, 3);
    }

    fn stuck(&self) -> String {
        unreachable!("all may come")
    }
}

#[test]
fn a_constraint_that_looks_ahead_leaves_no_trace() {
    let _alone = alone();
    let prompt = skill("story").prompts.remove(1);
    let mut rig = Rig::new(Head::Own, 8192);
    for mode in [SpecMode::Off, SpecMode::Depth(5)] {
        let mut texts = Vec::new();
        for looks in [false, true] {
            let path: Vec<Token> = (10..15).collect();
            let constraint = Constraint(Arc::new(move |_| Box::new(Looks(path.clone(), 0))), None);
            rig.reset();
            rig.read(&prompt);
            let (text, _) =
                rig.generate(&Generate { constraint: looks.then_some(constraint), ..params(0.0, mode, 40) });
            texts.push((text, rig.state()));
        }
        assert!(texts[0] == texts[1], "{mode:?}: {:?} {:?}", texts[0].0, texts[1].0);
    }
}

/// Allows only these.
struct Only(Vec<Token>);

impl Constrain for Only {
    fn allows(&mut self, token: Token) -> bool {
        self.0.contains(&token)
    }

    fn accept(&mut self, _: Token) {}

    fn stuck(&self) -> String {
        unreachable!("these always may")
    }
}

#[test]
fn tokens_outside_the_shortlist_are_drawn_by_probability() {
    let _alone = alone();
    let prompt = skill("story").prompts.remove(1);
    let mut rig = Rig::new(Head::Own, 8192);
    rig.read(&prompt);
    let row = rig.live.prefill_logits(&mut rig.b, &rig.model).unwrap();
    let whole = rig.live.logits_of(&mut rig.b, &rig.model, 0).unwrap();
    let mut least: Vec<Token> = (0..whole.len() as Token).collect();
    least.sort_by(|a, b| whole[*a as usize].total_cmp(&whole[*b as usize]));
    least.truncate(3);
    assert!(least.iter().all(|t| !row.ids.contains(t)));
    let only = least.clone();
    let constraint = Some(Constraint(Arc::new(move |_| Box::new(Only(only.clone()))), None));
    let masked = |spec| Generate { constraint: constraint.clone(), stop: vec![], ..params(0.0, spec, 12) };
    rig.reset();
    rig.read(&prompt);
    let (plain, _) = rig.generate(&masked(SpecMode::Off));
    // The least of all is never the likeliest of the three.
    assert!(plain[0] == least[2] && plain.iter().all(|t| least.contains(t)), "{plain:?} of {least:?}");
    let state = rig.state();
    let text: Arc<Vec<Token>> = Arc::new(prompt.iter().chain(&plain).copied().collect());
    for script in [Script::Right, Script::Random] {
        rig.decoder.set_finder(finder(script, text.clone()));
        rig.reset();
        rig.read(&prompt);
        let (drafted, _) = rig.generate(&masked(SpecMode::Depth(7)));
        assert_eq!((&drafted, rig.state()), (&plain, state.clone()), "{script:?}");
    }
}

#[test]
fn a_mask_holds_and_its_text_is_the_same_with_any_drafts() {
    let _alone = alone();
    let prompt = skill("story").prompts.remove(1);
    let mut rig = Rig::new(Head::Own, 8192);
    for temperature in [0.0, 0.9] {
        let constraint = Some(Constraint(Arc::new(|_| Box::new(Thirds(Vec::new()))), None));
        let masked = |spec| Generate { constraint: constraint.clone(), stop: vec![], ..params(temperature, spec, 40) };
        rig.reset();
        rig.read(&prompt);
        let (plain, _) = rig.generate(&masked(SpecMode::Off));
        assert!(plain.iter().enumerate().all(|(i, t)| t % 3 == i as u32 % 3), "{plain:?}");
        let state = rig.state();
        let text: Arc<Vec<Token>> = Arc::new(prompt.iter().chain(&plain).copied().collect());
        for script in [Script::Right, Script::Random, Script::Wrong] {
            rig.decoder.set_finder(finder(script, text.clone()));
            rig.reset();
            rig.read(&prompt);
            let (drafted, _) = rig.generate(&masked(SpecMode::Depth(7)));
            assert_eq!((&drafted, rig.state()), (&plain, state.clone()), "{script:?} at {temperature}");
        }
        assert!(rig.decoder.stats().drafted > 0);
    }
}
