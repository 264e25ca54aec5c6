//! `sala-chat draft capture`: turns documents into training samples for a draft head.
//!
//! The command cuts every document into pieces that fit and prompts the model as a chat does (the document, then a
//! question). The model answers greedily, and the hidden states of its layers are written ([`crate::model::capture`]
//! has the format). The captured layers are those that the current head reads, or the published default without a
//! head.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::backend::draft::DraftOps;
use crate::cli::args::{DraftCommand, TuningArgs};
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure, open};
use crate::core::{bytes, counted};
use crate::engine::open_head;
use crate::engine::protocol::Token;
use crate::model::capture::Recorder;
use crate::model::draft::DraftConfig;
use crate::model::{Checkpoint, Model};
use crate::runtime::render::safe_name;
use crate::text::TextModel;
use crate::text::sources::Document;

/// Pieces take them in turn, so that a head learns from different kinds of answers.
const QUESTIONS: [&str; 4] = [
    "Summarize this text.",
    "What is this text about?",
    "List the names and numbers in this text.",
    "What is said first, and what last?",
];
const SMALL_PIECE: usize = 64;

pub(super) fn run(context: &Context, action: &DraftCommand) -> Result<Exit, Failure> {
    let DraftCommand::Capture { docs, out, length } = action;
    let documents = open::documents(context, docs)?;
    make_folder(out)?;
    let (name, checkpoint) = open::measured(context)?;
    let (text, stop) = open::text(&name)?;
    let job = Job { context, checkpoint, text, stop, out, length: *length, documents };
    match devices::open(&context.config().model, &TuningArgs::default(), false)? {
        Opened::Cpu(cpu, _) => job.run(*cpu),
        #[cfg(feature = "cuda")]
        Opened::Cuda(cuda) => job.run(*cuda),
    }
}

/// Makes the folder for samples. A folder that holds samples is an error, because file numbers would repeat.
fn make_folder(out: &Path) -> Result<(), Failure> {
    if out.exists() && !out.is_dir() {
        let failure = Failure::new(Exit::Usage, format!("{} is a file; samples go to a folder", out.display()));
        return Err(failure.hint("Name another one: --out DIR"));
    }
    std::fs::create_dir_all(out).map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", out.display())))?;
    if sample_file(out, 1).exists() {
        let failure = Failure::new(Exit::Failure, format!("{} holds samples already", out.display()));
        return Err(failure.hint("Name another folder: --out DIR"));
    }
    Ok(())
}

fn sample_file(out: &Path, number: usize) -> PathBuf {
    out.join(format!("sample-{number:06}.safetensors"))
}

struct Job<'a> {
    context: &'a Context,
    checkpoint: Checkpoint,
    text: TextModel,
    stop: Vec<Token>,
    out: &'a Path,
    length: usize,
    documents: Vec<Document>,
}

impl Job<'_> {
    fn run<B: DraftOps>(&self, mut b: B) -> Result<Exit, Failure> {
        let (begun, checkpoint) = (Instant::now(), &self.checkpoint);
        let model = Model::load(&mut b, checkpoint, |_| {})?;
        let head = open_head(&mut b, &model, checkpoint, &open::draft(self.context)?);
        let layers = match head.map_err(|e| Failure::new(Exit::NoModel, e.to_string()))? {
            Some(head) => head.aux_layers().to_vec(),
            None => DraftConfig::default_aux_layers(model.spec().mixers.len()),
        };
        let mut recorder = Recorder::new(&mut b, &model, self.length, &layers)?;
        let answer = (self.context.config().sampling.max_tokens as usize).min(self.length / 4);
        let (mut samples, mut tokens, mut written, mut size) = (0, 0, 0, 0);
        for document in &self.documents {
            let document_name = safe_name(&document.name);
            let shielded = self.text.tokenizer.shield(&document.text);
            let mut pieces = vec![&*shielded];
            while let Some(piece) = pieces.pop() {
                let (text, question) = (piece.trim_matches(['\n', '\r']), QUESTIONS[samples % QUESTIONS.len()]);
                let prompt = self.text.question_about(&document_name, text, question)?;
                let prompt = self.text.tokenizer.encode_prompt(&prompt)?;
                if prompt.len() + answer > self.length {
                    match halves(piece) {
                        Some((first, second)) => pieces.extend([second, first]),
                        None => self.context.note(&format!("{document_name}: a piece does not fit into --length")),
                    }
                    continue;
                }
                let sample = recorder.sample(&mut b, &model, &prompt, answer, &self.stop)?;
                samples += 1;
                let path = sample_file(self.out, samples);
                let about = [
                    ("model", checkpoint.name().to_owned()),
                    ("fingerprint", checkpoint.fingerprint()),
                    ("document", document_name.clone()),
                ];
                recorder.write(&model, &sample, &about, &path)?;
                tokens += sample.tokens.len();
                written += sample.completion_tokens();
                size += std::fs::metadata(&path).map_or(0, |m| m.len());
            }
            let made = counted(samples as u64, "sample");
            self.context.note(&format!("{document_name}: {made}, {tokens} tokens so far"));
        }
        if samples == 0 {
            return Err(Failure::new(Exit::Failure, "no piece of these documents fits").hint("Raise --length"));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let as_json = || {
            json!({
                "model": checkpoint.name(), "device": b.describe(), "documents": self.documents.len(), "samples": samples,
                "tokens": tokens, "written_tokens": written, "layers": layers, "bytes": size, "seconds": seconds,
                "out": self.out,
            })
        };
        let as_text = || {
            let (samples, tokens) = (counted(samples as u64, "sample"), counted(tokens as u64, "token"));
            let (out, size) = (self.out.display(), bytes(size));
            format!("{samples} in {out}: {tokens}, {written} of them written by the model, {size}, {seconds:.1} s")
        };
        self.context.result(as_json, as_text)
    }
}

fn halves(text: &str) -> Option<(&str, &str)> {
    if text.len() < SMALL_PIECE {
        return None;
    }
    let near = text.floor_char_boundary(text.len() / 2);
    let before = text.get(..near)?;
    let last = |c| before.rfind(c).filter(|at| *at >= text.len() / 4);
    let at = last('\n').or_else(|| last(' ')).map_or(near, |at| at + 1);
    Some((text.get(..at)?, text.get(at..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_lines_then_words_then_anywhere() {
        let lines = "one line of words\n".repeat(8);
        let (first, second) = halves(&lines).unwrap();
        assert!(first.ends_with('\n') && !second.is_empty() && format!("{first}{second}") == lines);
        let words = "word ".repeat(20);
        assert!(halves(&words).unwrap().0.ends_with(' '));
        let one = "é".repeat(50);
        let (first, second) = halves(&one).unwrap();
        assert!(!first.is_empty() && format!("{first}{second}") == one);
        assert_eq!(halves("short"), None);
    }
}
