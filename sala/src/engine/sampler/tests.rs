use serde_json::Value;

use super::*;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../../../../tests/fixtures/eagle3/accept.json")).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn ids(v: &Value) -> Vec<i64> {
    v.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

/// Top logits of a whole small vocabulary, sorted as a backend sorts them.
fn row(logits: &[f64]) -> TopLogits {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let lse = logits.iter().map(|z| z.exp()).sum::<f64>().ln();
    TopLogits {
        ids: order.iter().map(|&i| i as Token).collect(),
        logits: order.iter().map(|&i| logits[i] as f32).collect(),
        log_sum_exp: lse as f32,
    }
}

fn sampling(params: &Value) -> Sampling {
    let f = |k: &str, d: f64| params.get(k).and_then(Value::as_f64).unwrap_or(d) as f32;
    Sampling {
        temperature: f("temperature", 1.0),
        top_k: params.get("top_k").and_then(Value::as_u64).unwrap_or(0) as u32,
        top_p: f("top_p", 1.0),
        min_p: f("min_p", 0.0),
        repeat_penalty: f("repetition_penalty", 1.0),
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 1,
    }
}

#[test]
fn distributions_match_the_reference() {
    for case in fixture()["probs"].as_array().unwrap() {
        let history: Vec<Token> = ids(&case["history"]).iter().map(|&i| i as Token).collect();
        let want = floats(&case["p"]);
        // Once with the history accepted, once with half of it on the row's path: both are "seen".
        for split in [history.len(), 2] {
            let sampler = Sampler::new(sampling(&case["params"]), &history[..split]);
            let mut got = vec![0.0; want.len()];
            for (t, p) in sampler.distribution(&row(&floats(&case["logits"])), &history[split..]) {
                got[t as usize] = p;
            }
            // Logits cross as f32, hence not 1e-12; what is cut must be cut exactly.
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() < 1e-6 && (*g == 0.0) == (*w == 0.0), "{}: {got:?} {want:?}", case["params"]);
            }
        }
    }
}

#[test]
fn gumbel_draws_match_the_reference() {
    for case in fixture()["gumbel"].as_array().unwrap() {
        let noise = floats(&case["noise"]);
        for (p, want) in [("p", "target_token"), ("q", "draft_token")] {
            let p: Vec<(Token, f64)> = floats(&case[p]).into_iter().enumerate().map(|(i, p)| (i as Token, p)).collect();
            let got = gumbel_max(&p, |t| noise[t as usize]).unwrap().0;
            assert_eq!(i64::from(got), case[want].as_i64().unwrap());
        }
    }
}

/// Inverse CDF in id order: smallest i with cumsum > u * sum.
fn inverse_cdf(p: &[f64], u: f64) -> usize {
    let total: f64 = p.iter().sum();
    let mut sum = 0.0;
    for (i, x) in p.iter().enumerate() {
        sum += x;
        if sum > u * total {
            return i;
        }
    }
    p.iter().rposition(|x| *x > 0.0).unwrap()
}

fn matrix(v: &Value) -> Vec<Vec<f64>> {
    v.as_array().unwrap().iter().map(floats).collect()
}

#[test]
fn sample_and_match_follows_the_reference_on_chains_and_trees() {
    for case in fixture()["sample"].as_array().unwrap() {
        let (tokens, parents) = (ids(&case["tokens"]), ids(&case["parents"]));
        let (p, u) = (matrix(&case["P"]), floats(&case["u"]));
        let (mut node, mut path, mut emitted) = (-1i64, vec![], vec![]);
        loop {
            let y = inverse_cdf(&p[(node + 1) as usize], u[emitted.len()]) as i64;
            emitted.push(y);
            match (0..tokens.len()).find(|&i| parents[i] == node && tokens[i] == y) {
                Some(i) => {
                    path.push(i as i64);
                    node = i as i64;
                }
                None => break,
            }
        }
        assert_eq!((path, emitted), (ids(&case["path"]), ids(&case["emitted"])));
    }
}

/// max(p - q, 0); `None` when rounding left nothing.
fn residual(p: &[f64], q: &[f64]) -> Option<Vec<f64>> {
    let r: Vec<f64> = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect();
    (r.iter().sum::<f64>() > 0.0).then_some(r)
}

#[test]
fn rejection_rules_match_the_reference() {
    for case in fixture()["reject_chain"].as_array().unwrap() {
        let (tokens, q, p, ua) =
            (ids(&case["tokens"]), matrix(&case["Q"]), matrix(&case["P"]), floats(&case["u_accept"]));
        let refused = (0..tokens.len()).find(|&j| ua[j] * q[j][tokens[j] as usize] >= p[j][tokens[j] as usize]);
        let law = match refused {
            Some(j) => residual(&p[j], &q[j]).unwrap_or_else(|| p[j].clone()),
            None => p[tokens.len()].clone(),
        };
        assert_eq!(refused.unwrap_or(tokens.len()) as i64, case["accepted"].as_i64().unwrap());
        assert_eq!(inverse_cdf(&law, case["u_final"].as_f64().unwrap()) as i64, case["final_token"].as_i64().unwrap());
    }
    for case in fixture()["reject_tree"].as_array().unwrap() {
        let (tokens, parents) = (ids(&case["tokens"]), ids(&case["parents"]));
        let (qs, ps, ua) = (matrix(&case["Q"]), matrix(&case["P"]), floats(&case["u_accept"]));
        let (mut node, mut path) = (-1i64, vec![]);
        let law = loop {
            let (mut p, mut q) = (ps[(node + 1) as usize].clone(), qs[(node + 1) as usize].clone());
            let mut next = None;
            for i in (0..tokens.len()).filter(|&i| parents[i] == node) {
                let t = tokens[i] as usize;
                if ua[i] * q[t] < p[t] {
                    next = Some(i);
                    break;
                }
                if let Some(r) = residual(&p, &q) {
                    let sum: f64 = r.iter().sum();
                    p = r.iter().map(|x| x / sum).collect();
                }
                q[t] = 0.0;
                let sum: f64 = q.iter().sum();
                if sum > 0.0 {
                    q.iter_mut().for_each(|x| *x /= sum);
                }
            }
            match next {
                Some(i) => {
                    path.push(i as i64);
                    node = i as i64;
                }
                None => break p,
            }
        };
        assert_eq!(path, ids(&case["path"]));
        assert_eq!(inverse_cdf(&law, case["u_final"].as_f64().unwrap()) as i64, case["final_token"].as_i64().unwrap());
    }
}

/// Keskar et al. 2019, with the usual rule for signs: each token of the history is weakened once, a positive logit by division and a
/// negative one by multiplication.
#[test]
fn the_repetition_penalty_weakens_tokens_of_the_history_once() {
    let logits: Vec<f64> = (0..64).map(|i| f64::from(uniform(3, 0, i) as f32 * 8.0 - 4.0)).collect();
    let history: Vec<Token> = vec![1, 5, 5, 9, 33, 63];
    assert!(history.iter().any(|t| logits[*t as usize] < 0.0) && history.iter().any(|t| logits[*t as usize] > 0.0));
    let sampler = Sampler::new(Sampling { repeat_penalty: 1.7, ..Sampling::default() }, &history);
    let found = sampler.penalised(&row(&logits), &[]);
    assert_eq!(found.len(), logits.len());
    for (t, z) in found {
        let before = logits[t as usize];
        let want = if history.contains(&t) { before * 1.7f64.powf(-before.signum()) } else { before };
        assert!((z - want).abs() < 1e-6, "token {t}: {z} {want}");
    }
}

#[test]
fn presence_counts_once_and_frequency_per_occurrence_along_the_path() {
    let s = Sampling { temperature: 0.0, presence_penalty: 1.0, frequency_penalty: 0.5, ..Sampling::default() };
    let mut sampler = Sampler::new(s, &[]);
    sampler.accept(2);
    sampler.accept(2);
    let z: HashMap<Token, f64> = sampler.penalised(&row(&[4.0, 4.0, 4.0]), &[1]).into_iter().collect();
    assert_eq!((z[&0], z[&1], z[&2]), (4.0, 2.5, 2.0));
}

#[test]
fn the_prompt_counts_for_the_repetition_penalty_alone() {
    let s = Sampling { repeat_penalty: 2.0, presence_penalty: 1.0, frequency_penalty: 0.5, ..Sampling::default() };
    let z = |sampler: &Sampler, path: &[Token]| {
        let z: HashMap<Token, f64> = sampler.penalised(&row(&[4.0, 4.0, 4.0, 4.0]), path).into_iter().collect();
        [z[&0], z[&1], z[&2], z[&3]]
    };
    let mut sampler = Sampler::new(s, &[1, 1, 1, 2]);
    sampler.accept(2);
    assert_eq!(z(&sampler, &[]), [4.0, 2.0, 0.5, 4.0]);
    // A draft counts as what it would be: a token of the answer.
    assert_eq!(z(&sampler, &[1, 3]), [4.0, 0.5, 0.5, 0.5]);
    let sampler = Sampler::new(Sampling { repeat_penalty: 1.0, ..s }, &[1, 1, 1, 2]);
    assert_eq!(z(&sampler, &[]), [4.0; 4]);
}

#[test]
fn greedy_ties_go_to_the_lowest_id() {
    let s = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }, &[]);
    assert_eq!(s.draw(&row(&[1.0, 3.0, 3.0]), 9, &[]), Some(1));
    // A penalty that makes a tie keeps the rule.
    let mut s = Sampler::new(Sampling { temperature: 0.0, presence_penalty: 1.0, ..Sampling::default() }, &[]);
    s.accept(0);
    assert_eq!(s.draw(&row(&[3.0, 2.0, 2.0]), 9, &[]), Some(0));
}

#[test]
fn draws_follow_the_distribution_and_depend_on_seed_and_position_only() {
    let r = row(&[0.0, 1.0, 2.0, -1.0]);
    let at = |seed| Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() }, &[]);
    let s = at(7);
    let n = 40_000u64;
    let mut count = [0f64; 4];
    for position in 0..n {
        let y = s.draw(&r, position, &[]).unwrap();
        assert_eq!(Some(y), s.clone().draw(&r, position, &[]));
        count[y as usize] += 1.0;
    }
    let chi: f64 =
        s.distribution(&r, &[]).iter().map(|&(t, p)| (count[t as usize] - p * n as f64).powi(2) / (p * n as f64)).sum();
    assert!(chi < 16.3, "chi-square with 3 degrees of freedom: {chi}"); // 0.999 quantile
    assert!((0..64).any(|p| s.draw(&r, p, &[]) != at(8).draw(&r, p, &[])));
}

#[test]
fn shared_noise_makes_close_distributions_agree() {
    let s = Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, seed: 5, ..Sampling::default() }, &[]);
    let z: Vec<f64> = (0..100).map(|i| uniform(1, 1, i) * 3.0).collect();
    let near: Vec<f64> = z.iter().enumerate().map(|(i, x)| x + uniform(2, 2, i as Token) * 0.2).collect();
    let (p, q) = (row(&z), row(&near));
    let same = (0..4000).filter(|&t| s.draw(&p, t, &[]) == s.propose(&q, t, &[]).map(|d| d.token)).count();
    // Total variation is below 0.04, so at least (1 - tv)/(1 + tv) of the draws agree.
    assert!(same > 3600, "{same}");
}
