//! The thread that owns model and state: prefill, decode, speculation, sampling.
//!
//! A file imports from its own row of this table and from those above it.
//!
//! | file | owns |
//! |---|---|
//! | `protocol` | commands, events and images of state, as plain data |
//! | `sampler` | a token from a row's top logits |
//! | `look`, `speed` | the blocks an answer attended to; tokens a second |
//! | `ngram`, `policy`, `speculate` | rounds: propose, verify, accept; whether and how far to draft; drafts without a head |
//! | `schedule` | which sequence runs next: pure |
//! | `failure` | why there is no engine, why a sequence's job failed |
//! | `sequence` | a sequence's state, job and queue |
//! | `park` | the engine without model and device, between two loads |
//! | `worker` | what the thread owns: backend, model, sequences |
//! | `slots` | which sequence is active, which are parked |
//! | `room` | memory: reserved before it is used, freed by idle sequences |
//! | `jobs`, `score` | turns: a chunk of a prompt, a decode round, rows that are scored; the end of a job |
//! | `tasks` | the queue of each sequence, and the next task of it |
//! | `main_loop` | commands are received between turns, until the end |
//! | `keep`, `fit`, `open` | from options to a running worker: device, format of the weights, packed weights that are kept |
//! | `thread` | starts the thread, and reports why it ended |
//!
//! Only `worker` and the files that run its turns use the model; `schedule`, `policy`, `ngram`, `sampler` and `speed`
//! are pure.

mod failure;
pub mod fit;
mod jobs;
mod keep;
mod look;
mod main_loop;
pub mod ngram;
mod open;
mod park;
pub mod policy;
pub mod protocol;
pub mod room;
pub mod sampler;
pub mod schedule;
mod score;
mod sequence;
mod slots;
pub mod speculate;
mod speed;
mod tasks;
mod thread;
mod worker;

pub use open::open_head;
pub use protocol::Engine;
pub use thread::{spawn, spawn_on};
