//! Commands and events on the socket: [`crate::engine::protocol`] by serde. A frame is the length of its head (u64,
//! little-endian), the head in JSON, and the raw bytes of its arrays. Their sizes follow from their shapes.
//!
//! Lengths are limited before use, and memory grows with the bytes that arrive.

use std::io::{self, Read, Write};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::protocol::{Command, EngineEvent, ImageTensor, Job, Quoting, RowsPlace, Watching};

/// Changes with every change of the messages. Sides of different versions do not connect.
pub(super) const VERSION: u32 = 14;

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
    Park,
}

/// The answer to [`Greeting::Join`] and [`Greeting::Park`]: why the server refuses, if it does.
pub(super) type Refused = Option<String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// A command, and substitutes for its parts that are code: the other side makes them again.
    Command {
        command: Box<Command>,
        rows: Vec<RowsPlace>,
        watching: Option<Watching>,
        quoting: Option<Quoting>,
    },
    Cancel {
        id: u64,
    },
}

impl Order {
    /// Fails for rows that lie in no file, or a token mask other than one made from quotes: neither can be sent.
    pub(super) fn of(command: Command) -> Result<Order, &'static str> {
        let (mut rows, mut watching, mut quoting) = (Vec::new(), None, None);
        match &command {
            Command::Restore { rows: sources, .. } => {
                let places: Option<Vec<RowsPlace>> = sources.iter().map(|rows| rows.hand_over()).collect();
                rows = places.ok_or("internal error: rows that lie in no file")?;
            }
            Command::Run(Job { generate: Some(generate), .. }) => {
                watching = generate.steering.as_ref().map(|steering| steering.1);
                quoting = generate.constraint.as_ref().and_then(|constraint| constraint.1.clone());
                if generate.constraint.is_some() && quoting.is_none() {
                    return Err("internal error: a mask cannot be sent to another process");
                }
            }
            _ => {}
        }
        Ok(Order::Command { command: Box::new(command), rows, watching, quoting })
    }
}

pub(super) trait Message: Serialize + DeserializeOwned {
    fn tensors(&mut self) -> Vec<&mut ImageTensor>;
}

impl Message for Order {
    fn tensors(&mut self) -> Vec<&mut ImageTensor> {
        match self {
            Order::Command { command, .. } => match &mut **command {
                Command::Restore { end: Some(end), .. } => end.tensors.iter_mut().collect(),
                _ => Vec::new(),
            },
            Order::Cancel { .. } => Vec::new(),
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

/// Bytes of an array, by its shape.
fn size(tensor: &ImageTensor) -> io::Result<u64> {
    let size = tensor.shape.iter().try_fold(tensor.dtype.size(), |n, axis| n.checked_mul(*axis));
    let size = size.map(|n| n as u64).filter(|n| *n <= ARRAY);
    size.ok_or_else(|| wrong(format!("{} of shape {:?}", tensor.name, tensor.shape)))
}

pub(super) fn send<M: Message>(to: &mut impl Write, mut message: M) -> io::Result<()> {
    let mut arrays = Vec::new();
    for tensor in message.tensors() {
        let bytes = tensor.data.shared();
        if bytes.len() as u64 != size(tensor)? {
            return Err(wrong(format!("{} of shape {:?} in {} bytes", tensor.name, tensor.shape, bytes.len())));
        }
        arrays.push(bytes);
    }
    send_head(to, &message)?;
    arrays.iter().try_for_each(|bytes| to.write_all(bytes))
}

pub(super) fn receive<M: Message>(from: &mut impl Read) -> io::Result<Option<M>> {
    let Some(mut message) = receive_head::<M>(from)? else { return Ok(None) };
    for tensor in message.tensors() {
        tensor.data = Arc::new(bytes(from, size(tensor)?)?).into();
    }
    Ok(Some(message))
}

const HEAD: u64 = 256 << 20;
const ARRAY: u64 = 64 << 30;

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(super) fn send_head<T: Serialize>(to: &mut impl Write, head: &T) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let length = head.len() as u64;
    if length > HEAD {
        return Err(wrong(format!("a message of {length} bytes")));
    }
    to.write_all(&[&length.to_le_bytes()[..], &head].concat())
}

fn bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

pub(super) fn receive_head<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 8];
    let (first, rest) = length.split_at_mut(1);
    if from.read(first)? == 0 {
        return Ok(None);
    }
    from.read_exact(rest)?;
    let length = u64::from_le_bytes(length);
    if length > HEAD {
        return Err(wrong(format!("a message of {length} bytes")));
    }
    Ok(Some(serde_json::from_slice(&bytes(from, length)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Exit;
    use crate::engine::protocol::{
        BlockLook, Cancel, CheckpointImage, Dtype, Ended, EngineFault, Generate, JobDone, JobStats, Likely, Look,
        Looked, LookedAt, MemoryInfo, RowsImage, Sampling, SequenceId, SpecMode, StateImage, Token,
    };

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
        send(&mut wire, Order::of(Command::Run(job.clone())).unwrap()).unwrap();
        let Some(Order::Command { command, watching: sent, .. }) = receive(&mut wire.as_slice()).unwrap() else {
            panic!("no command")
        };
        assert_eq!(sent, Some(watching));
        let Command::Run(back) = *command else { panic!("no job") };
        assert_eq!(back.generate.unwrap(), Generate { steering: None, ..generate.clone() });
        let mask =
            |_: &[Token]| -> Box<dyn crate::engine::protocol::Constrain> { unreachable!("never made in this test") };
        let masked = |quoting: Option<Quoting>| {
            let constraint = Some(crate::engine::protocol::Constraint(Arc::new(mask), quoting));
            Order::of(Command::Run(Job { generate: Some(Generate { constraint, ..generate.clone() }), ..job.clone() }))
        };
        let (opening, thesaurus) = ("It says: \"".to_owned(), "cost price\nanimal: dog cat\n".to_owned());
        let quoting = Quoting { opening, words: 0.3, length: -1.7, margin: 0.1, related: 0.2, covered: 0.7, thesaurus };
        let sent = masked(Some(quoting.clone())).unwrap();
        assert!(matches!(sent, Order::Command { quoting: Some(sent), .. } if sent == quoting));
        assert!(masked(None).is_err());
    }

    fn restoring(shape: &[usize], data: Vec<u8>) -> Order {
        let tensors = vec![tensor("a", Dtype::F32, shape, data)];
        let (rows, end) = (Vec::new(), Some(CheckpointImage { position: 0, tensors }));
        let restore = Command::Restore { id: 1, sequence: SequenceId(0), keep: 0, rows, end, history: Arc::default() };
        Order::of(restore).unwrap()
    }

    #[test]
    fn an_array_has_the_size_of_its_shape() {
        let mut wire = Vec::new();
        assert_eq!(send(&mut wire, restoring(&[2], vec![0; 4])).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(wire.is_empty());
        send_head(&mut wire, &restoring(&[2], Vec::new())).unwrap();
        assert_eq!(receive::<Order>(&mut wire.as_slice()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        for hostile in [&[usize::MAX, 2][..], &[1 << 40]] {
            let mut wire = Vec::new();
            send_head(&mut wire, &restoring(hostile, Vec::new())).unwrap();
            assert_eq!(receive::<Order>(&mut wire.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_frame_arrives_as_sent_and_an_end_between_two_differs_from_one_inside() {
        let mut wire = Vec::new();
        send(&mut wire, restoring(&[2], vec![7; 8])).unwrap();
        let mut from = wire.as_slice();
        let Some(Order::Command { command, .. }) = receive(&mut from).unwrap() else { panic!("no command") };
        let Command::Restore { end: Some(end), .. } = *command else { panic!("no state") };
        assert_eq!(*end.tensors[0].data, vec![7; 8]);
        assert!(receive::<Order>(&mut from).unwrap().is_none());
        for cut in 1..wire.len() {
            let error = receive::<Order>(&mut &wire[..cut]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
    }

    #[test]
    fn a_length_is_not_believed() {
        assert_eq!(receive_head::<String>(&mut [0xff; 16].as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let short = [HEAD.to_le_bytes(), *b"{}xyxyxy"].concat();
        let error = receive_head::<serde_json::Value>(&mut short.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
