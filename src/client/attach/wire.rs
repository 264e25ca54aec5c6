//! Commands and events as they cross the socket: what a process cannot hand to another one is said in plain data.
//!
//! Rows are named by the file they lie in, what steers an answer by what it looks for, a stop is a message of its own, and
//! numbers of which every bit counts go as bits.

mod image;

use std::io;

use serde::{Deserialize, Serialize};

use super::frame::Blob;
use crate::engine::protocol::{
    Cancel, Ended, EngineEvent, EngineFault, Generate, Job, JobDone, JobStats, Likely, Look, Looked, LookedAt,
    MemoryInfo, ModelInfo, Quoting, RowsPlace, Sampling, Scoring, SequenceId, SpecMode, Token, Watching,
};
pub(super) use image::Checkpoint;
use image::State;

/// Changes with every change of what is sent. Both sides have the same, or do not speak.
pub(super) const VERSION: u32 = 9;

/// The server's first words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub version: u32,
    /// Of the program.
    pub program: String,
    pub pid: u32,
    /// Where it listens for other programs.
    pub address: String,
    pub loads: super::Loads,
}

/// What a terminal says to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Greeting {
    /// It takes part.
    Join,
    /// It only wanted to know.
    Look,
}

/// The answer to one who takes part: why there is no place, if there is none.
pub(super) type Seated = Option<String>;

/// A [`Generate`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wish {
    sampling: Sampling,
    max_tokens: u64,
    stop: Vec<Token>,
    spec: SpecMode,
    pub(super) watching: Option<Watching>,
    pub(super) quoting: Option<Quoting>,
    look: Look,
    likely: Option<u8>,
}

impl Wish {
    /// What is wished, with what steers it and keeps its quotes still to be made.
    fn generate(self) -> Generate {
        let Wish { sampling, max_tokens, stop, spec, watching: _, quoting: _, look, likely } = self;
        Generate { sampling, max_tokens, stop, spec, steering: None, look, constraint: None, likely }
    }
}

/// A [`Job`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) id: u64,
    sequence: SequenceId,
    prompt: Vec<Token>,
    pub(super) wish: Option<Wish>,
    score: Option<Scoring>,
    export: bool,
}

impl Task {
    /// # Errors
    /// A mask of tokens that is not made from quotes: it is code, and stays where it is.
    pub(super) fn pack(job: Job) -> Result<Task, &'static str> {
        let Job { id, sequence, prompt, generate, score, export, cancel: _ } = job;
        let wish = match generate {
            None => None,
            Some(g) if g.constraint.as_ref().is_some_and(|c| c.1.is_none()) => {
                return Err("internal error: a mask cannot be sent to another process");
            }
            Some(g) => {
                let Generate { sampling, max_tokens, stop, spec, steering, look, constraint, likely } = g;
                let (watching, quoting) = (steering.map(|s| s.1), constraint.and_then(|c| c.1));
                Some(Wish { sampling, max_tokens, stop, spec, watching, quoting, look, likely })
            }
        };
        Ok(Task { id, sequence, prompt, wish, score, export })
    }

    /// The job, with what steers it and keeps its quotes still to be made.
    pub(super) fn unpack(self, cancel: Cancel) -> Job {
        let Task { id, sequence, prompt, wish, score, export } = self;
        Job { id, sequence, prompt, generate: wish.map(Wish::generate), score, export, cancel }
    }
}

/// Terminal to server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Restore {
        id: u64,
        sequence: SequenceId,
        keep: u64,
        rows: Vec<RowsPlace>,
        end: Option<Checkpoint>,
        history: Vec<Token>,
    },
    Run(Box<Task>),
    /// Stops a job.
    Cancel {
        id: u64,
    },
    Fork {
        id: u64,
        from: SequenceId,
        to: SequenceId,
    },
    Release {
        sequence: SequenceId,
    },
    MayEvict {
        sequence: SequenceId,
    },
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|b| f32::from_bits(*b)).collect()
}

/// A [`Likely`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LikelyBits {
    log_prob: u32,
    best: Vec<(Token, u32)>,
}

impl LikelyBits {
    fn of(l: &Likely) -> LikelyBits {
        LikelyBits { log_prob: l.log_prob.to_bits(), best: l.best.iter().map(|(t, p)| (*t, p.to_bits())).collect() }
    }

    fn likely(&self) -> Likely {
        let best = self.best.iter().map(|(t, p)| (*t, f32::from_bits(*p))).collect();
        Likely { log_prob: f32::from_bits(self.log_prob), best }
    }
}

/// A [`JobDone`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    ended: Ended,
    prompt_in_state: u64,
    generated_in_state: u64,
    image: Option<State>,
    stats: JobStats,
    looked_at: LookedAt,
    scored: Vec<Vec<u32>>,
    likely: Vec<LikelyBits>,
    memory: MemoryInfo,
}

impl End {
    fn pack(done: JobDone, blobs: &mut Vec<Blob>) -> End {
        let JobDone { ended, prompt_in_state, generated_in_state, image, stats, looked_at, scored, likely, memory } =
            done;
        let image = image.map(|image| State::pack(image, blobs));
        let scored = scored.iter().map(|text| bits(text)).collect();
        let likely = likely.iter().map(LikelyBits::of).collect();
        End { ended, prompt_in_state, generated_in_state, image, stats, looked_at, scored, likely, memory }
    }

    fn unpack(self, blobs: &mut impl Iterator<Item = Blob>) -> io::Result<JobDone> {
        let End { ended, prompt_in_state, generated_in_state, image, stats, looked_at, scored, likely, memory } = self;
        let image = image.map(|image| image.unpack(blobs)).transpose()?;
        let scored = scored.iter().map(|text| floats(text)).collect();
        let likely = likely.iter().map(LikelyBits::likely).collect();
        Ok(JobDone { ended, prompt_in_state, generated_in_state, image, stats, looked_at, scored, likely, memory })
    }
}

/// Server to terminal: an [`EngineEvent`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    Loading { what: String, done: f64 },
    Ready(Box<ModelInfo>),
    Restored { id: u64, ms: f64 },
    Reading { id: u64, done: u64, total: u64, tokens_per_s: f64 },
    Tokens { id: u64, tokens: Vec<Token>, tokens_per_s: f64, looked: Vec<Looked>, likely: Vec<LikelyBits> },
    Waiting { id: u64, what: String },
    Evicted { sequence: SequenceId },
    Note(String),
    Done { id: u64, done: Box<End> },
    Failed { id: u64, fault: EngineFault },
}

/// A rate as JSON can say it.
fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate } else { 0.0 }
}

impl Word {
    pub(super) fn pack(event: EngineEvent, blobs: &mut Vec<Blob>) -> Word {
        match event {
            EngineEvent::Loading { what, done } => Word::Loading { what, done: finite(done) },
            EngineEvent::Ready(info) => Word::Ready(Box::new(info)),
            EngineEvent::Restored { id, ms } => Word::Restored { id, ms: finite(ms) },
            EngineEvent::Reading { id, done, total, tokens_per_s } => {
                Word::Reading { id, done, total, tokens_per_s: finite(tokens_per_s) }
            }
            EngineEvent::Tokens { id, tokens, tokens_per_s, looked, likely } => {
                let likely = likely.iter().map(LikelyBits::of).collect();
                Word::Tokens { id, tokens, tokens_per_s: finite(tokens_per_s), looked, likely }
            }
            EngineEvent::Waiting { id, what } => Word::Waiting { id, what },
            EngineEvent::Evicted { sequence } => Word::Evicted { sequence },
            EngineEvent::Note(text) => Word::Note(text),
            EngineEvent::Done { id, done } => Word::Done { id, done: Box::new(End::pack(*done, blobs)) },
            EngineEvent::Failed { id, fault } => Word::Failed { id, fault },
        }
    }

    pub(super) fn unpack(self, blobs: Vec<Blob>) -> io::Result<EngineEvent> {
        let mut blobs = blobs.into_iter();
        Ok(match self {
            Word::Loading { what, done } => EngineEvent::Loading { what, done },
            Word::Ready(info) => EngineEvent::Ready(*info),
            Word::Restored { id, ms } => EngineEvent::Restored { id, ms },
            Word::Reading { id, done, total, tokens_per_s } => EngineEvent::Reading { id, done, total, tokens_per_s },
            Word::Tokens { id, tokens, tokens_per_s, looked, likely } => {
                let likely = likely.iter().map(LikelyBits::likely).collect();
                EngineEvent::Tokens { id, tokens, tokens_per_s, looked, likely }
            }
            Word::Waiting { id, what } => EngineEvent::Waiting { id, what },
            Word::Evicted { sequence } => EngineEvent::Evicted { sequence },
            Word::Note(text) => EngineEvent::Note(text),
            Word::Done { id, done } => EngineEvent::Done { id, done: Box::new(done.unpack(&mut blobs)?) },
            Word::Failed { id, fault } => EngineEvent::Failed { id, fault },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::attach::frame;
    use crate::core::Exit;
    use crate::engine::protocol::{BlockLook, CheckpointImage, Dtype, ImageTensor, RowsImage, StateImage};

    fn across(event: EngineEvent) -> EngineEvent {
        let (mut blobs, mut wire) = (Vec::new(), Vec::new());
        let word = Word::pack(event, &mut blobs);
        frame::send(&mut wire, &word, &blobs).unwrap();
        let (word, blobs) = frame::receive::<Word>(&mut wire.as_slice()).unwrap().unwrap();
        word.unpack(blobs).unwrap()
    }

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> ImageTensor {
        ImageTensor { name: name.into(), dtype, shape: shape.to_vec(), data: data.into() }
    }

    #[test]
    fn an_exit_crosses_as_its_number_and_an_unknown_one_is_a_failure() {
        let fault = |exit| EngineFault::Fatal { why: "The device is lost.".into(), exit };
        let mut told = serde_json::to_value(fault(Exit::NoDevice)).unwrap();
        assert_eq!(told["Fatal"]["code"], 4);
        assert_eq!(serde_json::from_value::<EngineFault>(told.clone()).unwrap(), fault(Exit::NoDevice));
        told["Fatal"]["code"] = 99.into();
        assert_eq!(serde_json::from_value::<EngineFault>(told).unwrap(), fault(Exit::Failure));
    }

    #[test]
    fn an_end_of_a_job_crosses_bit_for_bit() {
        let image = StateImage {
            rows: RowsImage {
                start: 7,
                rows: 2,
                tensors: vec![tensor("k.0", Dtype::Bf16, &[2, 1, 2], vec![9; 8])],
                segment: None,
            },
            end: Some(CheckpointImage {
                position: 9,
                tensors: vec![tensor("state.0", Dtype::F32, &[1, 1], vec![0, 0, 192, 127])],
            }),
        };
        let blocks = vec![BlockLook { block: 3, share: 0.1 + f32::EPSILON, forced: 1.0 / 3.0 }];
        let looked_at = LookedAt { answer: Looked { tokens: 1, block_tokens: 64, blocks }, ..LookedAt::default() };
        let scored = vec![vec![f32::NEG_INFINITY, -0.1, f32::from_bits(0x7fc0_0001)]];
        let likely = vec![Likely { log_prob: -1.0 / 3.0, best: vec![(4, f32::MIN_POSITIVE)] }];
        let done = |image| JobDone {
            ended: Ended::Cancelled,
            prompt_in_state: 3,
            generated_in_state: 1,
            image,
            stats: JobStats { decode_ms: 1.25, ..JobStats::default() },
            looked_at: looked_at.clone(),
            scored: scored.clone(),
            likely: likely.clone(),
            memory: MemoryInfo { weights: 1, ..MemoryInfo::default() },
        };
        let sent = |image| EngineEvent::Done { id: 5, done: Box::new(done(Some(image))) };
        let (before, after) = (sent(image.clone()), across(sent(image)));
        // Every field is shown, the bytes of arrays as their number.
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        let EngineEvent::Done { done, .. } = after else { panic!("{after:?}") };
        let (image, scored) = (done.image.unwrap(), done.scored);
        assert_eq!(*image.rows.tensors[0].data, vec![9; 8]);
        assert_eq!(*image.end.unwrap().tensors[0].data, vec![0, 0, 192, 127]);
        assert_eq!(scored[0][2].to_bits(), 0x7fc0_0001);
    }

    #[test]
    fn a_rate_that_is_none_does_not_break_the_line() {
        let event = across(EngineEvent::Reading { id: 1, done: 2, total: 3, tokens_per_s: f64::INFINITY });
        assert!(matches!(event, EngineEvent::Reading { tokens_per_s: 0.0, .. }), "{event:?}");
    }

    #[test]
    fn a_job_crosses_with_what_it_looks_for_and_quotes_and_a_mask_does_not() {
        let watching = Watching { watched: Default::default(), in_thought: true, spent: 4 };
        let steer = || -> Box<dyn crate::engine::protocol::Steer> { unreachable!("never made in this test") };
        let generate = Generate {
            sampling: Sampling { temperature: 0.7, top_p: 0.95, seed: u64::MAX, ..Sampling::default() },
            max_tokens: u64::MAX,
            stop: vec![2],
            spec: SpecMode::Depth(3),
            steering: Some(crate::engine::protocol::Steering(Arc::new(steer), watching)),
            look: Look { thoughts_until: Some(8), each_token: true },
            constraint: None,
            likely: Some(3),
        };
        let job = Job {
            id: 1,
            sequence: SequenceId(2),
            prompt: vec![3],
            generate: Some(generate.clone()),
            score: None,
            export: true,
            cancel: Cancel::default(),
        };
        let mut wire = Vec::new();
        frame::send(&mut wire, &Task::pack(job.clone()).unwrap(), &[]).unwrap();
        let (task, _) = frame::receive::<Task>(&mut wire.as_slice()).unwrap().unwrap();
        assert_eq!(task.wish.as_ref().unwrap().watching, Some(watching));
        let back = task.unpack(Cancel::default());
        assert_eq!(back.generate.unwrap(), Generate { steering: None, ..generate.clone() });
        let mask =
            |_: &[Token]| -> Box<dyn crate::engine::protocol::Constrain> { unreachable!("never made in this test") };
        let masked = |quoting: Option<Quoting>| {
            let constraint = Some(crate::engine::protocol::Constraint(Arc::new(mask), quoting));
            Task::pack(Job { generate: Some(Generate { constraint, ..generate.clone() }), ..job.clone() })
        };
        let (opening, thesaurus) = ("It says: \"".to_owned(), "cost price\nanimal: dog cat\n".to_owned());
        let quoting = Quoting { opening, words: 0.3, length: -1.7, margin: 0.1, related: 0.2, covered: 0.7, thesaurus };
        assert_eq!(masked(Some(quoting.clone())).unwrap().wish.unwrap().quoting, Some(quoting));
        assert!(masked(None).is_err());
    }
}
