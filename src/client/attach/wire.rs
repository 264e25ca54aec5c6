//! Commands and events on the socket: [`crate::engine::protocol`] by serde, arrays as raw bytes after the head.
//!
//! Values that cannot be sent have substitutes: a file place for rows, parameters for steering and quoting, and a
//! separate message for a stop.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::frame::{self, Blob};
use crate::engine::protocol::{
    CheckpointImage, EngineEvent, ImageTensor, Job, Quoting, RowsPlace, SequenceId, Token, Watching,
};

/// Changes with every change of the messages. Sides of different versions do not connect.
pub(super) const VERSION: u32 = 11;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub version: u32,
    pub program: String,
    pub pid: u32,
    pub address: String,
    pub loads: super::Loads,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Greeting {
    Join,
    Look,
    Park,
}

/// The answer to [`Greeting::Join`] and [`Greeting::Park`]: why the server refuses, if it does.
pub(super) type Refused = Option<String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) job: Job,
    pub(super) watching: Option<Watching>,
    pub(super) quoting: Option<Quoting>,
}

impl Task {
    /// # Errors
    /// A token mask other than one made from quotes: it is code and cannot be sent.
    pub(super) fn of(job: Job) -> Result<Task, &'static str> {
        let generate = job.generate.as_ref();
        let watching = generate.and_then(|g| g.steering.as_ref()).map(|steering| steering.1);
        let constraint = generate.and_then(|g| g.constraint.as_ref());
        if constraint.is_some_and(|c| c.1.is_none()) {
            return Err("internal error: a mask cannot be sent to another process");
        }
        let quoting = constraint.and_then(|c| c.1.clone());
        Ok(Task { job, watching, quoting })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Restore {
        id: u64,
        sequence: SequenceId,
        keep: u64,
        rows: Vec<RowsPlace>,
        end: Option<CheckpointImage>,
        history: Vec<Token>,
    },
    Run(Box<Task>),
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
    Park,
    Unpark,
}

pub(super) trait Message: Serialize + for<'de> Deserialize<'de> {
    fn tensors(&mut self) -> Vec<&mut ImageTensor>;
}

impl Message for Order {
    fn tensors(&mut self) -> Vec<&mut ImageTensor> {
        match self {
            Order::Restore { end: Some(end), .. } => end.tensors.iter_mut().collect(),
            _ => Vec::new(),
        }
    }
}

impl Message for EngineEvent {
    fn tensors(&mut self) -> Vec<&mut ImageTensor> {
        match self {
            EngineEvent::Done { done, .. } => {
                done.image.as_mut().map(|image| image.tensors_mut().collect()).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }
}

pub(super) fn send<M: Message>(to: &mut impl Write, mut message: M) -> io::Result<()> {
    let blobs: Vec<Blob> = message.tensors().iter().map(|tensor| tensor.data.shared()).collect();
    frame::send(to, &message, &blobs)
}

/// The next message; `None` at the end of the connection.
///
/// # Errors
/// No frame, or arrays of other sizes than their shapes.
pub(super) fn receive<M: Message>(from: &mut impl BufRead) -> io::Result<Option<M>> {
    let Some((mut message, blobs)) = frame::receive::<M>(from)? else { return Ok(None) };
    let mut blobs = blobs.into_iter();
    for tensor in message.tensors() {
        let data = blobs.next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let bytes = tensor.shape.iter().try_fold(tensor.dtype.size(), |n, axis| n.checked_mul(*axis));
        if bytes != Some(data.len()) {
            let what = format!("{} of shape {:?} in {} bytes", tensor.name, tensor.shape, data.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        tensor.data = data.into();
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::Exit;
    use crate::engine::protocol::{
        BlockLook, Cancel, Dtype, Ended, EngineFault, Generate, JobStats, Likely, Look, Looked, LookedAt, MemoryInfo,
        RowsImage, Sampling, SpecMode,
    };
    use crate::engine::protocol::{JobDone, StateImage};

    fn across(event: EngineEvent) -> EngineEvent {
        let mut wire = Vec::new();
        send(&mut wire, event).unwrap();
        receive(&mut wire.as_slice()).unwrap().unwrap()
    }

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> ImageTensor {
        ImageTensor { name: name.into(), dtype, shape: shape.to_vec(), data: data.into() }
    }

    #[test]
    fn an_exit_crosses_as_its_number_and_an_unknown_one_is_a_failure() {
        let fault = |exit| EngineFault::Fatal { why: "The device is lost.".into(), exit };
        let mut reported = serde_json::to_value(fault(Exit::NoDevice)).unwrap();
        assert_eq!(reported["Fatal"]["code"], 4);
        assert_eq!(serde_json::from_value::<EngineFault>(reported.clone()).unwrap(), fault(Exit::NoDevice));
        reported["Fatal"]["code"] = 99.into();
        assert_eq!(serde_json::from_value::<EngineFault>(reported).unwrap(), fault(Exit::Failure));
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
        // The debug form shows every field, and arrays by their length.
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
        send(&mut wire, Order::Run(Box::new(Task::of(job.clone()).unwrap()))).unwrap();
        let Some(Order::Run(task)) = receive(&mut wire.as_slice()).unwrap() else { panic!("no task") };
        assert_eq!(task.watching, Some(watching));
        let back = task.job;
        assert_eq!(back.generate.unwrap(), Generate { steering: None, ..generate.clone() });
        let mask =
            |_: &[Token]| -> Box<dyn crate::engine::protocol::Constrain> { unreachable!("never made in this test") };
        let masked = |quoting: Option<Quoting>| {
            let constraint = Some(crate::engine::protocol::Constraint(Arc::new(mask), quoting));
            Task::of(Job { generate: Some(Generate { constraint, ..generate.clone() }), ..job.clone() })
        };
        let (opening, thesaurus) = ("It says: \"".to_owned(), "cost price\nanimal: dog cat\n".to_owned());
        let quoting = Quoting { opening, words: 0.3, length: -1.7, margin: 0.1, related: 0.2, covered: 0.7, thesaurus };
        assert_eq!(masked(Some(quoting.clone())).unwrap().quoting, Some(quoting));
        assert!(masked(None).is_err());
    }

    #[test]
    fn an_array_of_another_size_than_its_shape_is_refused() {
        let order = |values| Order::Restore {
            id: 1,
            sequence: SequenceId(0),
            keep: 0,
            rows: Vec::new(),
            end: Some(CheckpointImage { position: 0, tensors: vec![tensor("a", Dtype::F32, &[values], vec![0; 4])] }),
            history: Vec::new(),
        };
        let mut wire = Vec::new();
        send(&mut wire, order(2)).unwrap();
        assert_eq!(receive::<Order>(&mut wire.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut wire = Vec::new();
        frame::send(&mut wire, &order(1), &[]).unwrap();
        assert!(receive::<Order>(&mut wire.as_slice()).is_err());
    }
}
