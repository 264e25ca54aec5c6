use super::generation::{Generation, Matched, draw_and_match};
use super::*;
use crate::engine::protocol::{Constrain, Sampling, SpecMode, Steer, Steered};
use crate::engine::sampler::{Sampler, uniform};

const VOCAB: usize = 5;

type Law = [[[f64; VOCAB]; VOCAB]; VOCAB];

fn law(seed: u64) -> Law {
    let mut n = 0;
    let mut next = || {
        n += 1;
        -uniform(seed, n, 0).ln()
    };
    let mut law = [[[0.0; VOCAB]; VOCAB]; VOCAB];
    for p in law.iter_mut().flatten() {
        // Squares of exponentials: sharper than uniform on the simplex.
        p.iter_mut().for_each(|x| *x = next().powi(2));
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|x| *x /= sum);
    }
    law
}

fn row(p: &[f64; VOCAB]) -> TopLogits {
    let mut ids: Vec<Token> = (0..VOCAB as Token).collect();
    ids.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
    let logits = ids.iter().map(|t| p[*t as usize].ln() as f32).collect();
    TopLogits { ids, logits, log_sum_exp: 0.0 }
}

/// Joint law of three emitted tokens against plain sampling: z of the chi-square (docs/speculative.md §6.3).
fn z_of_rounds(seed: u64, trials: usize, depth: usize, propose: impl Fn(&Sampler, &[f64; VOCAB], u64) -> Token) -> f64 {
    let target = law(seed);
    let other = law(seed + 1);
    let mix = |a: usize, b: usize| std::array::from_fn(|v| 0.5 * target[a][b][v] + 0.5 * other[a][b][v]);
    let mut count = vec![0.0; VOCAB * VOCAB * VOCAB];
    for trial in 0..trials {
        let sampling =
            Sampling { temperature: 1.0, top_p: 1.0, seed: seed * 1_000_003 + trial as u64, ..Sampling::default() };
        let mut generation = generation(sampling, &[]);
        let sampler = generation.sampler.clone();
        let mut text: Vec<usize> = vec![0, 1];
        while text.len() < 5 {
            let (mut path, mut drafts, mut rows) = (text.clone(), Vec::new(), Vec::new());
            for _ in 0..=depth {
                let (a, b) = (path[path.len() - 2], path[path.len() - 1]);
                rows.push(row(&target[a][b]));
                let token = propose(&sampler, &mix(a, b), path.len() as u64);
                drafts.push(token);
                path.push(token as usize);
            }
            drafts.pop();
            let matched = draw_and_match(&mut generation, &rows, &drafts, text.len(), no_more).unwrap();
            text.extend(matched.tokens.iter().map(|t| *t as usize));
        }
        count[(text[2] * VOCAB + text[3]) * VOCAB + text[4]] += 1.0;
    }
    let (mut chi, mut cells, mut rest) = (0.0, 0usize, (0.0, 0.0));
    for (i, seen) in count.iter().enumerate() {
        let (x, y, z) = (i / 25, i / 5 % 5, i % 5);
        let expected = target[0][1][x] * target[1][x][y] * target[x][y][z] * trials as f64;
        if expected >= 8.0 {
            chi += (seen - expected).powi(2) / expected;
            cells += 1;
        } else {
            rest = (rest.0 + expected, rest.1 + seen);
        }
    }
    if rest.0 >= 8.0 {
        chi += (rest.1 - rest.0).powi(2) / rest.0;
        cells += 1;
    }
    let dof = (cells - 1) as f64;
    (chi - dof) / (2.0 * dof).sqrt()
}

#[test]
fn emitted_tokens_follow_the_target_whatever_is_drafted() {
    for seed in [11, 12, 13] {
        // The best guess of a wrong model, the same guess with the target's noise, and always token 3.
        let best = |_: &Sampler, q: &[f64; VOCAB], _: u64| row(q).ids[0];
        let coupled = |s: &Sampler, q: &[f64; VOCAB], position| s.propose(&row(q), position, &[]).unwrap().token;
        let fixed = |_: &Sampler, _: &[f64; VOCAB], _: u64| 3;
        for (name, z) in [
            ("none", z_of_rounds(seed, 30_000, 0, best)),
            ("best", z_of_rounds(seed, 30_000, 3, best)),
            ("coupled", z_of_rounds(seed, 30_000, 3, coupled)),
            ("fixed", z_of_rounds(seed, 30_000, 2, fixed)),
        ] {
            assert!(z.abs() < 4.0, "{name}, seed {seed}: z = {z}");
        }
    }
}

fn generation(sampling: Sampling, stop: &[Token]) -> Generation {
    let sampler = Sampler::new(sampling, &[]);
    let (stop, mode) = (stop.to_vec(), SpecMode::Auto);
    let (each_token, thoughts_until, looked) = (false, None, [0, 0]);
    let (steer, constraint, likely) = (None, None, None);
    Generation { sampler, stop, mode, remaining: 100, steer, constraint, likely, each_token, thoughts_until, looked }
}

fn no_more(_: usize) -> Result<Vec<f32>> {
    unreachable!("nothing is left out")
}

fn greedy(stop: &[Token]) -> Generation {
    generation(Sampling { temperature: 0.0, ..Sampling::default() }, stop)
}

fn sure(t: usize) -> TopLogits {
    row(&std::array::from_fn(|v| if v == t { 0.96 } else { 0.01 }))
}

#[test]
fn nothing_after_a_stop_is_drawn() {
    // Rows say 1, 2, 4; 2 ends the turn although it was drafted and the row after it agrees.
    let rows = [sure(1), sure(2), sure(4)];
    let got = draw_and_match(&mut greedy(&[2]), &rows, &[1, 2], 7, no_more).unwrap();
    assert_eq!(got, Matched { tokens: vec![1], accepted: 1, ended: Some(Ended::Stop), ..Matched::default() });
    let got = draw_and_match(&mut greedy(&[]), &rows, &[1, 2], 7, no_more).unwrap();
    assert_eq!(got, Matched { tokens: vec![1, 2, 4], accepted: 2, ended: None, ..Matched::default() });
    let got = draw_and_match(&mut greedy(&[]), &rows, &[3, 2], 7, no_more).unwrap();
    assert_eq!(got, Matched { tokens: vec![1], accepted: 0, ended: None, ..Matched::default() });
}

/// Replays scripted answers, token by token.
struct Script(Vec<Steered>, Vec<(Token, bool)>);

impl Steer for Script {
    fn drawn(&mut self, token: Token, ends: bool) -> Steered {
        self.1.push((token, ends));
        if self.0.is_empty() { Steered::Take } else { self.0.remove(0) }
    }
}

#[test]
fn a_token_put_in_place_of_another_stays_whatever_was_drafted() {
    let rows = [sure(1), sure(2), sure(4)];
    let steered = |script: &[Steered], stop: &[Token], drafts: &[Token]| {
        let mut generation = greedy(stop);
        generation.steer = Some(Box::new(Script(script.to_vec(), Vec::new())));
        draw_and_match(&mut generation, &rows, drafts, 7, no_more).unwrap()
    };
    let instead = [Steered::Take, Steered::Instead(3)];
    // The draft agreed with the draw, but not with its replacement: the row after it is of another text.
    assert_eq!(
        steered(&instead, &[], &[1, 2]),
        Matched { tokens: vec![1, 3], accepted: 1, ended: None, ..Matched::default() }
    );
    assert_eq!(
        steered(&instead, &[], &[1, 3]),
        Matched { tokens: vec![1, 3, 4], accepted: 2, ended: None, ..Matched::default() }
    );
    // In place of a token that would have ended the turn, too.
    assert_eq!(
        steered(&instead, &[2], &[1, 2]),
        Matched { tokens: vec![1, 3], accepted: 1, ended: None, ..Matched::default() }
    );
    let last = [Steered::Take, Steered::Last];
    assert_eq!(
        steered(&last, &[], &[1, 2]),
        Matched { tokens: vec![1, 2], accepted: 1, ended: Some(Ended::Repeats), ..Matched::default() }
    );
}

#[test]
fn a_row_that_is_no_number_is_an_error_and_no_token() {
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let rows = [sure(1), TopLogits { log_sum_exp: broken, ..sure(2) }];
        let error = draw_and_match(&mut greedy(&[]), &rows, &[1], 7, no_more).unwrap_err();
        assert!(matches!(error, DecodeError::NotFinite { position: 8 }), "{error}");
        assert!(
            error.to_string().contains("token 8") && error.to_string().contains("sala-chat model verify"),
            "{error}"
        );
    }
}

struct Only(Vec<Vec<Token>>);

impl Constrain for Only {
    fn allows(&mut self, token: Token) -> bool {
        self.0.first().is_some_and(|now| now.contains(&token))
    }

    fn accept(&mut self, _: Token) {
        self.0.remove(0);
    }

    fn stuck(&self) -> String {
        "all was said".into()
    }
}

#[test]
fn where_none_of_the_likeliest_is_allowed_the_likeliest_of_all_that_may_does() {
    let only = |next: &[&[Token]]| -> Option<Box<dyn Constrain>> {
        Some(Box::new(Only(next.iter().map(|n| n.to_vec()).collect())))
    };
    // A row knows its two likeliest; of those that row 0 does not know 4 is likelier than 3.
    let two = |mut row: TopLogits| {
        row.ids.truncate(2);
        row.logits.truncate(2);
        row
    };
    let rows = [two(sure(1)), two(sure(2))];
    let whole = |row: usize| Ok(if row == 0 { vec![-9.0, 5.0, -4.0, -7.0, -6.0] } else { vec![0.0; VOCAB] });
    let mut generation = Generation { constraint: only(&[&[3, 4], &[2, 3]]), ..greedy(&[]) };
    let got = draw_and_match(&mut generation, &rows, &[4], 7, whole).unwrap();
    assert_eq!((got.tokens, got.accepted), (vec![4, 2], 1));
    // Whatever was drafted, and with noise as well: of those alone.
    let mut generation = Generation { constraint: only(&[&[3]]), ..generation_at(0.9) };
    assert_eq!(draw_and_match(&mut generation, &rows, &[1], 7, whole).unwrap().tokens, [3]);
    // No token is allowed: an error, never a silent end.
    let mut generation = Generation { constraint: only(&[&[1]]), ..greedy(&[0]) };
    let error = draw_and_match(&mut generation, &rows, &[1], 7, whole).unwrap_err();
    assert!(matches!(&error, DecodeError::Stuck(why) if why == "all was said"), "{error}");
}

struct Favour(Token, f32);

impl Constrain for Favour {
    fn allows(&mut self, _: Token) -> bool {
        true
    }

    fn favours(&mut self, token: Token) -> Option<f32> {
        Some(if token == self.0 { self.1 } else { 0.0 })
    }

    fn accept(&mut self, _: Token) {}

    fn stuck(&self) -> String {
        unreachable!("all may come")
    }
}

#[test]
fn a_token_that_is_favoured_is_drawn_as_if_it_were_as_much_likelier() {
    let likely = sure(1);
    let gap = likely.logits[0] - likely.logits[1];
    let second = likely.ids[1];
    let by = |more: f32| -> Option<Box<dyn Constrain>> { Some(Box::new(Favour(second, more))) };
    for drafts in [&[1][..], &[second], &[]] {
        for (more, drawn) in [(gap - 0.5, 1), (gap + 0.5, second)] {
            let mut generation = Generation { constraint: by(more), ..greedy(&[]) };
            let got = draw_and_match(&mut generation, std::slice::from_ref(&likely), drafts, 7, no_more).unwrap();
            assert_eq!(got.tokens, [drawn], "{drafts:?} {more}");
        }
        // With noise, too.
        let mut generation = Generation { constraint: by(1e6), ..generation_at(0.9) };
        let got = draw_and_match(&mut generation, std::slice::from_ref(&likely), drafts, 7, no_more).unwrap();
        assert_eq!(got.tokens, [second]);
    }
}

fn generation_at(temperature: f32) -> Generation {
    generation(Sampling { temperature, ..Sampling::default() }, &[])
}
