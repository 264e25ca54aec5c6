use super::*;
use crate::engine::sampler::uniform;
use crate::protocol::engine::Sampling;

const VOCAB: usize = 5;

type Law = [[[f64; VOCAB]; VOCAB]; VOCAB];

/// A random second-order Markov chain over five tokens.
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

fn row(p: &[f64; VOCAB]) -> Candidates {
    let mut ids: Vec<Token> = (0..VOCAB as Token).collect();
    ids.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
    let logits = ids.iter().map(|t| p[*t as usize].ln() as f32).collect();
    Candidates { ids, logits, log_sum_exp: 0.0 }
}

/// Joint law of three emitted tokens against plain sampling: z of the chi-square (docs/speculative.md §6.5).
fn z_of_rounds(seed: u64, trials: usize, depth: usize, propose: impl Fn(&Sampler, &[f64; VOCAB], u64) -> Token) -> f64 {
    let target = law(seed);
    let other = law(seed + 1);
    let mix = |a: usize, b: usize| std::array::from_fn(|v| 0.5 * target[a][b][v] + 0.5 * other[a][b][v]);
    let mut count = vec![0.0; VOCAB * VOCAB * VOCAB];
    for trial in 0..trials {
        let sampling =
            Sampling { temperature: 1.0, top_p: 1.0, seed: seed * 1_000_003 + trial as u64, ..Sampling::default() };
        let sampler = Sampler::new(sampling, &[]);
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
            let matched = draw_and_match(&sampler, &rows, &drafts, text.len(), &[]);
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

#[test]
fn nothing_behind_a_stop_is_drawn() {
    let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }, &[]);
    let sure = |t: usize| row(&std::array::from_fn(|v| if v == t { 0.96 } else { 0.01 }));
    // Rows say 1, 2, 4; 2 ends the turn although it was drafted and the row behind it agrees.
    let rows = [sure(1), sure(2), sure(4)];
    let got = draw_and_match(&sampler, &rows, &[1, 2], 7, &[2]);
    assert_eq!(got, Matched { tokens: vec![1], accepted: 1, stopped: true });
    let got = draw_and_match(&sampler, &rows, &[1, 2], 7, &[]);
    assert_eq!(got, Matched { tokens: vec![1, 2, 4], accepted: 2, stopped: false });
    let got = draw_and_match(&sampler, &rows, &[3, 2], 7, &[]);
    assert_eq!(got, Matched { tokens: vec![1], accepted: 0, stopped: false });
}
