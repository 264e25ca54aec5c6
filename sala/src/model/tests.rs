//! The bit-exact guarantees of the live state, on the CPU.

use crate::backend::cpu::Cpu;
use crate::backend::prelude::*;
use crate::backend::{BackendError, GRID, fp8};
use crate::core::spec::DenseRule;
use crate::engine::protocol::{CheckpointImage, ImageTensor, Precision, RowsImage, StatePart, Token};

use super::*;

struct Twin {
    b: Cpu,
    model: Model<Cpu>,
    live: Live<Cpu>,
}

/// Two sparse and two lightning layers; rows choose blocks from position 512 on.
fn tiny() -> Twin {
    twin(&Checkpoint::open("synthetic:tiny:3").unwrap())
}

fn twin(checkpoint: &Checkpoint) -> Twin {
    let mut b = Cpu::new();
    let model = Model::load(&mut b, checkpoint, |_| ()).unwrap();
    let live = Live::new(&mut b, &model, 4096, &[]).unwrap();
    Twin { b, model, live }
}

/// A made-up text, different for every `salt`.
fn text(n: usize, salt: u64) -> Vec<Token> {
    (0..n as u64).map(|i| ((i * i * 31 + i * 7 + salt * 13 + i / 5) % 1000) as Token).collect()
}

impl Twin {
    /// Reads one segment in chunks of the given sizes, the last repeated; the logits of its last row.
    fn read(&mut self, tokens: &[Token], sizes: &[usize]) -> Vec<f32> {
        let mut rest = tokens;
        let mut sizes = sizes.iter().chain(std::iter::repeat(sizes.last().unwrap()));
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            self.live.prefill(&mut self.b, &self.model, chunk).unwrap();
            self.live.advance(&mut self.b, chunk.len()).unwrap();
            rest = later;
        }
        self.live.prefill_logits(&mut self.b, &self.model).unwrap();
        self.live.logits(&mut self.b, 1).unwrap()
    }

    /// Verifies rows and accepts the first `accepted`; logits of all rows.
    fn verify(&mut self, tokens: &[Token], accepted: usize) -> Vec<f32> {
        self.live.verify(&mut self.b, &self.model, tokens).unwrap();
        let logits = self.live.logits(&mut self.b, tokens.len()).unwrap();
        self.live.advance(&mut self.b, accepted).unwrap();
        logits
    }

    fn images(&mut self) -> (RowsImage, CheckpointImage) {
        let length = self.live.position();
        (self.live.export_rows(&mut self.b, 0..length).unwrap(), self.live.export_end(&mut self.b).unwrap())
    }

    fn bytes(&mut self) -> Vec<(String, Vec<u8>)> {
        let (rows, end) = self.images();
        rows.tensors.into_iter().chain(end.tensors).map(|t| (t.name, t.data.to_vec())).collect()
    }
}

fn assert_same_state(a: &mut Twin, b: &mut Twin) {
    assert_eq!(a.live.position(), b.live.position());
    for ((name, a), (_, b)) in a.bytes().iter().zip(&b.bytes()) {
        assert!(a == b, "{name} differs");
    }
}

fn relative_error(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs() / size))
}

#[test]
fn prefill_does_not_depend_on_the_chunk_size() {
    let tokens = text(700, 1);
    let mut whole = tiny();
    let logits = whole.read(&tokens, &[512]);
    for sizes in [&[GRID][..], &[2 * GRID], &[5 * GRID, GRID, 3 * GRID]] {
        let mut cut = tiny();
        assert_eq!(logits, cut.read(&tokens, sizes), "{sizes:?}");
        assert_same_state(&mut whole, &mut cut);
    }
}

#[test]
fn what_is_read_for_its_state_alone_leaves_the_same_state_and_the_same_hidden_states() {
    let tokens = text(700, 1);
    // The last layer of one model keeps rows, that of the other a sum of them.
    for (name, last) in [("synthetic:tiny:3", 3), ("demo", 7)] {
        for aux in [&[][..], &[1], &[0, last]] {
            let mut whole = twin(&Checkpoint::open(name).unwrap());
            let mut state = twin(&Checkpoint::open(name).unwrap());
            for twin in [&mut whole, &mut state] {
                twin.live = Live::new(&mut twin.b, &twin.model, 4096, aux).unwrap();
            }
            let (first, rest) = tokens.split_at(512);
            for (twin, alone) in [(&mut whole, false), (&mut state, true)] {
                let Twin { b, model, live } = twin;
                if alone {
                    live.prefill_state(b, model, first).unwrap();
                    assert!(matches!(live.prefill_logits(b, model), Err(ModelError::Order { .. })));
                } else {
                    live.prefill(b, model, first).unwrap();
                }
            }
            let hidden = |twin: &mut Twin| twin.live.aux_hidden().map(|aux| twin.b.read(aux, 512).unwrap());
            assert!(hidden(&mut whole) == hidden(&mut state), "{name} {aux:?}");
            for twin in [&mut whole, &mut state] {
                twin.live.advance(&mut twin.b, 512).unwrap();
            }
            assert_same_state(&mut whole, &mut state);
            assert_eq!(whole.read(rest, &[512]), state.read(rest, &[512]), "{name} {aux:?}");
            assert_same_state(&mut whole, &mut state);
        }
    }
}

#[test]
fn prefill_in_fp8_keeps_the_first_rows_and_does_not_depend_on_the_chunk_size() {
    let mut checkpoint = Checkpoint::open("synthetic:tiny:3").unwrap();
    checkpoint.prefill = Precision::Fp8;
    let tokens = text(700, 1);
    let mut whole = twin(&checkpoint);
    let logits = whole.read(&tokens, &[512]);
    for sizes in [&[GRID][..], &[5 * GRID, GRID, 3 * GRID]] {
        let mut cut = twin(&checkpoint);
        assert_eq!(logits, cut.read(&tokens, sizes), "{sizes:?}");
        assert_same_state(&mut whole, &mut cut);
    }
    let exact = tiny().read(&tokens, &[512]);
    let error = relative_error(&logits, &exact);
    assert!(error > 1e-4 && error < 0.2, "{error}");
    // Short texts and decoding do not change.
    let (mut short, mut plain) = (twin(&checkpoint), tiny());
    assert_eq!(short.read(&tokens[..fp8::PLAIN_ROWS], &[512]), plain.read(&tokens[..fp8::PLAIN_ROWS], &[512]));
    assert_eq!(short.verify(&tokens[..5], 5), plain.verify(&tokens[..5], 5));
    assert_same_state(&mut short, &mut plain);
}

#[test]
fn segments_start_their_own_grid_and_are_cut_independently() {
    let (first, second) = (text(100, 1), text(300, 2));
    let (mut a, mut b) = (tiny(), tiny());
    a.read(&first, &[512]);
    b.read(&first, &[GRID]);
    assert_eq!(a.read(&second, &[512]), b.read(&second, &[GRID, 2 * GRID]));
    assert_same_state(&mut a, &mut b);
}

#[test]
fn verifying_rows_at_once_equals_single_steps() {
    let (prompt, rows) = (text(600, 1), text(16, 5));
    let (mut one, mut many) = (tiny(), tiny());
    one.read(&prompt, &[512]);
    many.read(&prompt, &[512]);
    let singles: Vec<f32> = rows.iter().flat_map(|t| one.verify(&[*t], 1)).collect();
    let mut at_once = Vec::new();
    for part in [&rows[..5], &rows[5..7], &rows[7..]] {
        at_once.extend(many.verify(part, part.len()));
    }
    assert_eq!(singles, at_once);
    assert_same_state(&mut one, &mut many);
}

#[test]
fn refused_rows_leave_no_trace() {
    let (prompt, rows, wrong) = (text(590, 1), text(9, 5), text(7, 99));
    let (mut plain, mut drafted) = (tiny(), tiny());
    plain.read(&prompt, &[512]);
    drafted.read(&prompt, &[512]);
    for (i, token) in rows.iter().enumerate() {
        let expected = plain.verify(&[*token], 1);
        // Some rounds are refused whole and never advanced; the next pass must handle that.
        if i % 3 == 0 {
            drafted.live.verify(&mut drafted.b, &drafted.model, &wrong).unwrap();
        }
        let round: Vec<Token> = std::iter::once(*token).chain(wrong.iter().copied().take(i % 7)).collect();
        assert_eq!(expected, drafted.verify(&round, 1)[..expected.len()], "row {i}");
    }
    let more = text(130, 8);
    assert_eq!(plain.read(&more, &[512]), drafted.read(&more, &[GRID]));
    assert_same_state(&mut plain, &mut drafted);
}

#[test]
fn a_restored_state_continues_with_the_same_bits() {
    let mut a = tiny();
    a.read(&text(300, 1), &[512]);
    a.verify(&text(5, 2), 3);
    let first = a.images();
    a.read(&text(333, 3), &[512]);
    let (rows, end) = (a.live.export_rows(&mut a.b, 303..636).unwrap(), a.live.export_end(&mut a.b).unwrap());

    let mut b = tiny();
    b.read(&text(40, 77), &[512]);
    b.live.restore(&mut b.b, 0, &[first.0.clone(), rows], Some(&end)).unwrap();
    assert_same_state(&mut a, &mut b);
    assert_eq!(a.verify(&[7, 8], 1), b.verify(&[7, 8], 1));

    // Undo: cut back, then continue as if the later segment had never existed.
    let mut c = tiny();
    c.live.restore(&mut c.b, 0, &[first.0], Some(&first.1)).unwrap();
    b.live.restore(&mut b.b, 303, &[], Some(&first.1)).unwrap();
    assert_eq!(b.read(&text(200, 4), &[512]), c.read(&text(200, 4), &[GRID]));
    assert_same_state(&mut b, &mut c);

    b.live.reset(&mut b.b).unwrap();
    let mut fresh = tiny();
    assert_eq!(b.read(&text(50, 4), &[512]), fresh.read(&text(50, 4), &[512]));
    assert_same_state(&mut b, &mut fresh);
}

#[test]
fn token_by_token_agrees_with_prefill() {
    let tokens = text(600, 1);
    let (mut prefilled, mut decoded) = (tiny(), tiny());
    let expected = prefilled.read(&tokens, &[512]);
    decoded.read(&tokens[..450], &[512]);
    let mut logits = Vec::new();
    for token in &tokens[450..] {
        logits = decoded.verify(&[*token], 1);
    }
    assert!(relative_error(&logits, &expected) < 1e-5, "{}", relative_error(&logits, &expected));
}

#[test]
fn a_segment_spans_whole_chunks_and_ends_with_any_other_operation() {
    let tokens = text(300, 1);
    let mut t = tiny();
    let read = |t: &mut Twin, chunk: &[Token]| {
        let before = t.live.now.segment;
        t.read(chunk, &[512]);
        (before, t.live.now.segment)
    };
    assert_eq!(read(&mut t, &tokens[..128]), (0, 128));
    assert_eq!(read(&mut t, &tokens[..64]), (128, 192));
    // Refused rows leave no trace, accepted ones begin a new segment.
    t.verify(&tokens[..3], 0);
    assert_eq!(read(&mut t, &tokens[..64]), (192, 256));
    t.verify(&tokens[..3], 1);
    assert_eq!(read(&mut t, &tokens[..64]), (0, 64));
    // A chunk that is no multiple of the grid is a segment's last.
    assert_eq!(read(&mut t, &tokens[..10]), (64, 0));
    assert_eq!(read(&mut t, &tokens[..64]), (0, 64));
    t.live.begin_segment();
    assert_eq!(read(&mut t, &tokens[..64]), (0, 64));
    let (rows, end) = t.images();
    t.live.restore(&mut t.b, 0, std::slice::from_ref(&rows), Some(&end)).unwrap();
    assert_eq!(t.live.now.segment, 0);
}

#[test]
fn rows_with_few_earlier_blocks_are_dense() {
    let tokens = text(500, 1);
    let (mut sparse, mut dense) = (tiny(), tiny());
    dense.live.sparse_spec_mut().dense_rule = DenseRule::Always;
    assert_eq!(sparse.read(&tokens, &[512]), dense.read(&tokens, &[512]));
    // From 512 on rows choose blocks, which changes the result.
    assert_ne!(sparse.read(&text(200, 2), &[512]), dense.read(&text(200, 2), &[512]));
}

/// Shapes the released model does not have: grouped lightning heads, head counts that are no power of two, other head
/// widths, a residual stream that is not heads × width, no gates, no norms, tied embeddings.
#[test]
fn unusual_shapes_agree_between_both_paths() {
    let shapes = [
        r#""num_attention_heads":6,"num_key_value_heads":3,"head_dim":20,"lightning_nh":6,"lightning_nkv":2,"lightning_head_dim":12"#,
        r#""num_attention_heads":3,"num_key_value_heads":1,"head_dim":64,"lightning_nh":5,"lightning_nkv":5,"lightning_head_dim":48,
           "qk_norm":false,"use_output_norm":false,"use_output_gate":false,"attn_use_output_gate":false,"lightning_use_rope":false"#,
        r#""num_attention_heads":2,"num_key_value_heads":2,"head_dim":36,"lightning_nh":3,"lightning_nkv":1,"lightning_head_dim":8,
           "lightning_scale":"1/d","tie_word_embeddings":true"#,
    ];
    for shape in shapes {
        let config = format!(
            r#"{{{shape},"hidden_size":72,"intermediate_size":100,"num_hidden_layers":3,"vocab_size":1001,
            "mixer_types":["minicpm4","lightning","minicpm4"],"dim_model_base":36,
            "sparse_config":{{"kernel_size":8,"kernel_stride":4,"init_blocks":2,"block_size":16,"window_size":32,"topk":6}}}}"#
        );
        let checkpoint = Checkpoint::made_up("odd", &config, 5, None).unwrap();
        let tokens = text(330, 1);
        let (mut a, mut b, mut c) = (twin(&checkpoint), twin(&checkpoint), twin(&checkpoint));
        let expected = a.read(&tokens, &[512]);
        assert!(expected.iter().all(|v| v.is_finite()));
        assert_eq!(expected, b.read(&tokens, &[GRID]));
        assert_same_state(&mut a, &mut b);
        c.read(&tokens[..180], &[512]);
        let mut logits = Vec::new();
        for token in &tokens[180..] {
            logits = c.verify(&[*token], 1);
        }
        assert!(relative_error(&logits, &expected) < 1e-5, "{shape}: {}", relative_error(&logits, &expected));
    }
}

#[test]
fn auxiliary_hidden_states_hold_the_residual_stream_after_their_layers() {
    let Twin { mut b, model, .. } = tiny();
    let mut live = Live::new(&mut b, &model, 256, &[3, 0]).unwrap();
    live.prefill(&mut b, &model, &text(70, 1)).unwrap();
    let (aux_hidden, last) = (b.read(live.aux_hidden().unwrap(), 70).unwrap(), b.read(live.hidden(), 70).unwrap());
    for (aux_hidden, last) in aux_hidden.chunks_exact(512).zip(last.chunks_exact(256)) {
        assert_eq!(&aux_hidden[..256], last);
        assert_ne!(&aux_hidden[256..], last);
    }
    assert!(Live::new(&mut b, &model, 256, &[4]).is_err());
}

#[test]
fn top_logits_are_sorted_with_ties_to_the_lower_id() {
    let mut t = tiny();
    let logits = t.read(&text(20, 1), &[512]);
    let found = t.live.prefill_logits(&mut t.b, &t.model).unwrap();
    assert_eq!(found.ids.len(), crate::backend::TOP_LOGITS);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    assert!(found.ids.iter().zip(&order).all(|(a, b)| *a as usize == *b));
    let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    assert!((f64::from(found.log_sum_exp) - sum.ln()).abs() < 1e-5);
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let mut t = tiny();
    t.read(&text(70, 1), &[512]);
    let before = t.bytes();
    let Twin { b, model, live } = &mut t;
    assert!(matches!(live.prefill(b, model, &[1024]), Err(ModelError::Token { token: 1024, .. })));
    assert!(matches!(live.verify(b, model, &[0; 17]), Err(ModelError::Order { .. })));
    assert!(matches!(live.verify(b, model, &[]), Err(ModelError::Order { .. })));
    assert!(matches!(live.advance(b, 1), Err(ModelError::Order { .. })));
    assert!(matches!(live.export_rows(b, 60..71), Err(ModelError::Order { .. })));
    live.verify(b, model, &[1, 2]).unwrap();
    assert!(matches!(live.advance(b, 3), Err(ModelError::Order { .. })));
    let (rows, end) = (live.export_rows(b, 10..70).unwrap(), live.export_end(b).unwrap());
    assert!(matches!(live.restore(b, 5, std::slice::from_ref(&rows), Some(&end)), Err(ModelError::Image(_))));
    assert!(matches!(live.restore(b, 10, &[], Some(&end)), Err(ModelError::Image(_))));
    assert!(matches!(live.restore(b, 71, &[], Some(&end)), Err(ModelError::Image(_))));
    assert!(matches!(live.restore(b, 10, &[rows], None), Err(ModelError::Image(_))));
    assert_eq!(before, t.bytes());

    let Twin { b, model, .. } = &mut t;
    let mut small = Live::new(b, model, 100, &[]).unwrap();
    small.prefill(b, model, &text(64, 1)).unwrap();
    assert!(matches!(small.prefill(b, model, &text(3, 1)), Err(ModelError::Order { .. })));
    small.advance(b, 64).unwrap();
    assert!(matches!(small.prefill(b, model, &text(37, 1)), Err(ModelError::Context { needed: 101, limit: 100 })));
}

#[test]
fn damaged_images_are_refused() {
    let mut t = tiny();
    t.read(&text(200, 1), &[512]);
    let (rows, end) = t.images();
    let mut fresh = tiny();
    let before = fresh.bytes();
    let named = RowsImage { segment: Some([7; 32]), ..rows.clone() };
    // The error names the segment and part, and marks the fault as lasting.
    let mut lost = |rows: RowsImage, end: &CheckpointImage, part: StatePart| match fresh.live.restore(
        &mut fresh.b,
        0,
        &[rows],
        Some(end),
    ) {
        Err(ModelError::Backend(BackendError::Rows(fault))) => {
            assert_eq!((fault.segment, fault.part, fault.lasting), (Some([7; 32]), part, true), "{fault}");
        }
        other => panic!("{other:?}"),
    };
    for i in 0..rows.tensors.len() {
        let mut bad = named.clone();
        let removed = bad.tensors.remove(i);
        lost(bad.clone(), &end, StatePart::Rows);
        let mut shape = removed.shape.clone();
        shape[0] += 1;
        bad.tensors.push(ImageTensor { shape, ..removed });
        lost(bad, &end, StatePart::Rows);
    }
    let mut bad = end.clone();
    bad.tensors[0].shape = vec![1, 2, 3];
    lost(named.clone(), &bad, StatePart::End);
    bad.tensors.remove(0);
    lost(named, &bad, StatePart::End);
    assert_eq!(fresh.bytes(), before);
    fresh.live.restore(&mut fresh.b, 0, &[rows], Some(&end)).unwrap();
    assert_same_state(&mut t, &mut fresh);
}
