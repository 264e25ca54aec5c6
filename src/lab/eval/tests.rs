//! The parts on the built-in model and on models with a planted error: at least one part reports each error.

use super::numbers::Distances;
use super::*;
use crate::backend::cpu::{Cpu, Planted};
use crate::core::spec::{ModelSpec, ScoreNorm};
use crate::engine::protocol::Cancel;
use crate::model::calibrate::collect;
use crate::model::quantize::{Calibration, Claim, quantize};
use crate::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG, Recipe};

fn text() -> TextModel {
    TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap()
}

/// A CPU for the rest of the test.
fn cpu() -> &'static mut Cpu {
    Box::leak(Box::new(Cpu::new()))
}

fn subject(change: impl FnOnce(&mut ModelSpec)) -> Subject<'static, Cpu> {
    let mut checkpoint = Checkpoint::open("demo").unwrap();
    change(checkpoint.spec_mut());
    Subject::open(cpu(), &checkpoint, 4_200 + EVAL_ROOM).unwrap()
}

fn missed(checks: &[Check]) -> bool {
    checks.iter().any(Check::missed)
}

/// The built-in model's own logits, at lengths where rows choose among blocks.
fn samples() -> Vec<reference::Sample> {
    let texts = [needles::prose(&text(), 512).unwrap(), needles::prose(&text(), 4_200).unwrap()];
    reference::of(&mut subject(|_| ()), &texts).unwrap()
}

#[test]
fn errors_planted_in_the_shape_are_reported_by_the_reference() {
    let samples = samples();
    let same = reference_part(&mut subject(|_| ()), &samples, None).unwrap();
    assert!(!missed(&same.checks) && same.checks.len() == 4, "{:?}", same.checks);
    let planted: [(&str, fn(&mut ModelSpec)); 4] = [
        ("normaliser of the other compressed keys", |s| s.sparse.score_norm = ScoreNorm::Level1),
        ("no gate in lightning layers", |s| s.lightning.output_gate = false),
        ("no gate in sparse layers", |s| s.sparse.gate = false),
        ("another base of the rotation", |s| s.lightning.rope_theta = Some(20_000.0)),
    ];
    for (what, change) in planted {
        let part = reference_part(&mut subject(change), &samples, None).unwrap();
        assert!(missed(&part.checks), "{what}: {:?}", part.checks);
    }
}

#[test]
fn errors_planted_in_the_arithmetic_are_reported() {
    let samples = samples();
    for planted in [Planted::Decay, Planted::StaleBlock, Planted::Rotation] {
        let mut subject = subject(|_| ());
        subject.b.planted = Some(planted);
        let found = match planted {
            Planted::Rotation => consistency::measure(&mut subject, &needles::prose(&text(), 512).unwrap()).unwrap(),
            _ => reference_part(&mut subject, &samples, None).unwrap().checks,
        };
        assert!(missed(&found), "{planted:?}: {found:?}");
    }
}

#[test]
fn the_built_in_model_is_consistent_and_finds_needles() {
    let mut subject = subject(|_| ());
    let checks = consistency::measure(&mut subject, &needles::prose(&text(), 1_024).unwrap()).unwrap();
    assert!(!missed(&checks), "{checks:#?}");
    let cells = needles::measure(&mut subject, &text(), 1_024).unwrap();
    let questions: usize = cells.iter().map(|c| c.questions).sum();
    assert_eq!((cells.len(), questions), (needles::DEPTHS.len(), 2 * needles::DEPTHS.len()));
    assert!(cells.iter().all(|c| c.length.abs_diff(1_024) < 512), "{cells:?}");
    let part = needles_part(&cells);
    assert_eq!(part.lines.len(), 1 + needles::DEPTHS.len());
    assert!(!missed(&part.checks), "{:?}", part.checks);
}

#[test]
fn a_reference_file_is_read_and_a_wrong_one_refused() {
    use safetensors::tensor::{Dtype as D, TensorView};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reference.safetensors");
    let write = |tokens: &[i64], rows: &[i64], logits: &[f32]| {
        let bytes = |v: &[i64]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let (t, r) = (bytes(tokens), bytes(rows));
        let l: Vec<u8> = logits.iter().flat_map(|n| n.to_le_bytes()).collect();
        let view = |d, shape: Vec<usize>, data| TensorView::new(d, shape, data).unwrap();
        let tensors = [
            ("tokens.4".to_owned(), view(D::I64, vec![tokens.len()], &t)),
            ("rows.4".to_owned(), view(D::I64, vec![rows.len()], &r)),
            ("logits.4".to_owned(), view(D::F32, vec![rows.len(), logits.len() / rows.len()], &l)),
        ];
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    };
    write(&[1, 2, 0, 1], &[1, 3], &[0.5, 1.0, 2.0, 3.0, 2.0, 1.0]);
    let samples = reference::read(&path, 3).unwrap();
    assert_eq!(
        (samples.len(), samples[0].tokens.as_slice(), samples[0].rows.as_slice()),
        (1, &[1, 2, 0, 1][..], &[1, 3][..])
    );
    let refused = |vocab| reference::read(&path, vocab).err().map(|f| f.message).unwrap_or_default();
    assert!(refused(4).contains("logits.4"), "{}", refused(4));
    assert!(refused(2).contains("token 2 is outside the vocabulary of 2"), "{}", refused(2));
    write(&[1, 2, 0, 1], &[1, 4], &[0.0; 6]);
    assert!(refused(3).contains("rows"), "{}", refused(3));
    write(&[1, 2, 0, 1], &[1, 3], &[0.0, 1.0, f32::NAN, 0.0, 0.0, 0.0]);
    assert!(refused(3).contains("`logits.4` holds NaN at 2"), "{}", refused(3));
    std::fs::write(&path, b"nothing").unwrap();
    assert!(refused(3).contains("reference.safetensors"), "{}", refused(3));
}

/// Divergence of a packed folder from the built-in model, on a text that its statistics have not seen.
fn divergence(source: &Checkpoint, calibration: Option<&Calibration<'_>>, samples: &[reference::Sample]) -> Distances {
    let folder = tempfile::tempdir().unwrap();
    let claim = Claim::take(folder.path()).unwrap();
    quantize(source, calibration, &claim, &Cancel::default(), &mut |_| ()).unwrap().unwrap().write().unwrap();
    let packed = Checkpoint::open_dir(folder.path()).unwrap();
    let mut subject = Subject::open(cpu(), &packed, 512 + EVAL_ROOM).unwrap();
    reference::compare(&mut subject, samples).unwrap()[0]
}

#[test]
fn calibrated_weights_answer_more_like_their_source() {
    let text = text();
    let samples = reference::of(&mut subject(|_| ()), &[needles::prose(&text, 512).unwrap()]).unwrap();
    let tokens = text.tokenizer.encode_plain(include_str!("../../../assets/calibration/text.txt")).unwrap();
    let texts: Vec<Vec<Token>> = tokens.chunks(1_024).step_by(8).map(<[Token]>::to_vec).collect();
    let mut source = Checkpoint::open("demo").unwrap();
    let statistics = collect(&mut Cpu::new(), &source, &texts, &Cancel::default(), &mut |_| ()).unwrap().unwrap();
    for recipe in [Recipe::Bits8, Recipe::Bits4] {
        source.recipe = recipe;
        let plain = divergence(&source, None, &samples);
        let calibration = Calibration { id: "calibrated", statistics: &statistics };
        let calibrated = divergence(&source, Some(&calibration), &samples);
        assert!(calibrated.mean_kl < 0.9 * plain.mean_kl, "{recipe:?}: {plain:?} {calibrated:?}");
    }
}
