//! Samples that a draft head is trained on.

use safetensors::Dtype;
use sala_chat::backend::BufKind;
use sala_chat::backend::cpu::Cpu;
use sala_chat::backend::draft::DraftOps;
use sala_chat::backend::prelude::*;
use sala_chat::engine::protocol::Token;
use sala_chat::model::capture::{Recorder, Sample};
use sala_chat::model::draft::{DraftHead, DraftOptions, Tables};
use sala_chat::model::{Checkpoint, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG, Live, Model};
use sala_chat::text::{ChatMessage, ChatRole, RenderOptions, TextModel};

const DOCUMENT: &str = "Project Harbour started on 3 May. Anna Berg leads it from Oslo. The budget is 420 euros. \
    Marta keeps the keys. The meeting is on Friday at 10:30 in room 7.";
const QUESTIONS: [&str; 3] = ["Who leads Project Harbour?", "When is the meeting?", "What is the capital of France?"];

struct Captured {
    b: Cpu,
    model: Model<Cpu>,
    head: DraftHead<Cpu>,
    recorder: Recorder<Cpu>,
    samples: Vec<Sample>,
    stop: Vec<Token>,
}

fn captured() -> Captured {
    let mut b = Cpu::new();
    let model = Model::load(&mut b, &Checkpoint::open("demo").unwrap(), |_| {}).unwrap();
    let head = DraftHead::demo(&mut b, model.spec(), &DraftOptions::default()).unwrap();
    let text = TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap();
    let stop = text.tokenizer.stop_ids(&[2, 4]);
    let mut recorder = Recorder::new(&mut b, &model, 1024, head.aux_layers()).unwrap();
    let samples = QUESTIONS.map(|question| {
        let mut turns = ChatMessage::document("harbour.txt", DOCUMENT).to_vec();
        turns.push(ChatMessage::new(ChatRole::User, question));
        let prompt =
            text.template.render(&turns, &RenderOptions { add_generation_prompt: true, ..RenderOptions::default() });
        let prompt = text.tokenizer.encode_prompt(&prompt.unwrap()).unwrap();
        recorder.sample(&mut b, &model, &prompt, 96, &stop).unwrap()
    });
    Captured { b, model, head, recorder, samples: samples.to_vec(), stop }
}

#[test]
fn rows_are_those_of_a_plain_forward_pass() {
    let Captured { mut b, model, head, samples, stop, .. } = captured();
    let hidden = model.spec().hidden;
    for sample in &samples {
        let (n, answer) = (sample.tokens.len(), sample.completion_tokens());
        assert!(answer > 2 && stop.contains(sample.tokens.last().unwrap()), "{answer} tokens");
        assert_eq!((sample.written.len(), sample.hidden.len()), (n, n * hidden));
        assert_eq!(sample.aux_hidden.len(), n * hidden * head.aux_layers().len());
        assert!(sample.written.iter().skip(n - answer).all(|w| *w));

        let mut live = Live::new(&mut b, &model, 1024, head.aux_layers()).unwrap();
        live.prefill(&mut b, &model, &sample.tokens[..n - answer]).unwrap();
        let aux_hidden = b.read(live.aux_hidden().unwrap(), n - answer).unwrap();
        let last = b.read(live.hidden(), n - answer).unwrap();
        live.advance(&mut b, n - answer).unwrap();
        assert!(sample.aux_hidden.starts_with(&aux_hidden) && sample.hidden.starts_with(&last));
        // Several rows at once equal single steps, bit for bit.
        for (i, chunk) in sample.tokens[n - answer..].chunks(7).enumerate() {
            live.verify(&mut b, &model, chunk).unwrap();
            let aux_hidden = b.read(live.aux_hidden().unwrap(), chunk.len()).unwrap();
            let at = (n - answer + 7 * i) * hidden * head.aux_layers().len();
            assert_eq!(sample.aux_hidden[at..at + aux_hidden.len()], aux_hidden);
            live.advance(&mut b, chunk.len()).unwrap();
        }
    }
}

#[test]
fn the_models_own_head_drafts_its_answers_from_captured_states() {
    let Captured { mut b, model, mut head, samples, .. } = captured();
    let tables = Tables::from(&model);
    let width = model.spec().hidden * head.aux_layers().len();
    let (mut right, mut all) = (0, 0);
    for sample in &samples {
        let (n, given) = (sample.tokens.len(), sample.tokens.len() - sample.completion_tokens());
        let mut buf = b.draft_buf(given, width, BufKind::Activation).unwrap();
        b.write(&mut buf, &sample.aux_hidden[..given * width]).unwrap();
        head.reset(0);
        head.read(&mut b, &tables, &buf, 0, given, &sample.tokens[..given], 0).unwrap();
        for at in given..n - 1 {
            // Token `at` is pending: the head has the rows before it and predicts the next token.
            let drafted = head.extend(&mut b, &tables, &sample.tokens[..at + 1]).unwrap().ids[0];
            right += usize::from(drafted == sample.tokens[at + 1]);
            all += 1;
            b.write(&mut buf, &sample.aux_hidden[at * width..(at + 1) * width]).unwrap();
            head.keep(&mut b, &tables, &buf, 0..1, at, &sample.tokens[..at + 1]).unwrap();
        }
    }
    assert!(all > 10 && right * 10 >= all * 7, "{right} of {all}");
}

#[test]
fn a_sample_on_disk_is_what_a_trainer_looks_for() {
    let Captured { model, recorder, samples, .. } = captured();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sample-000001.safetensors");
    let about = [("name", "harbour.txt".to_owned())];
    recorder.write(&model, &samples[0], &about, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (_, head) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = head.metadata().clone().unwrap();
    assert_eq!(
        (metadata["format"].as_str(), metadata["layers"].as_str(), metadata["name"].as_str()),
        ("sala-chat capture 1", "1,4,6", "harbour.txt")
    );
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (n, hidden) = (samples[0].tokens.len(), model.spec().hidden);
    for (name, dtype, shape) in [
        ("input_ids", Dtype::I64, vec![n]),
        ("loss_mask", Dtype::I64, vec![n]),
        ("hidden_state", Dtype::BF16, vec![1, n, hidden]),
        ("aux_hidden_state", Dtype::BF16, vec![1, n, 3 * hidden]),
    ] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, shape.as_slice()), "{name}");
    }
    let ids: Vec<i64> = file
        .tensor("input_ids")
        .unwrap()
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert!(ids.iter().zip(&samples[0].tokens).all(|(a, b)| *a == i64::from(*b)));
    let mask: i64 = file
        .tensor("loss_mask")
        .unwrap()
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .sum();
    assert_eq!(mask as usize, samples[0].completion_tokens());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");

    let nowhere = dir.path().join("no/folder.safetensors");
    let error = recorder.write(&model, &samples[0], &[], &nowhere).unwrap_err().to_string();
    assert!(error.contains("folder.safetensors") && !error.contains('\n'), "{error}");
}
