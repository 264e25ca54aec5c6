//! The thread that owns model and state: prefill, decode, speculation, sampling.
//!
//! From the bottom to the top: a file imports from its own row and from those before it.
//!
//! | file | owns |
//! |---|---|
//! | `protocol` | commands, events and images of state, as plain data |
//! | `sampler` | a token from a row's top logits |
//! | `look`, `speed` | where an answer looked; tokens a second |
//! | `ngram`, `policy`, `speculate` | rounds: propose, verify, accept; whether and how far to draft; drafts without a head |
//! | `schedule` | whose turn it is: pure |
//! | `failure` | why there is no engine, why a part of a conversation's work came to nothing |
//! | `sequence` | what a sequence has, does and is to do: its state, its job, its queue |
//! | `worker` | what the thread owns: backend, model, sequences |
//! | `seats` | which sequence is in hand, which are put aside |
//! | `room` | memory by need: promised before it is used, given back by idle sequences |
//! | `jobs`, `score` | turns: a chunk of a prompt, a decode round, rows that are scored; the end of a job |
//! | `tasks` | what is asked of each sequence, in its queue, and what of it is next |
//! | `main_loop` | commands are taken in between turns, until the end |
//! | `keep`, `fit`, `open` | from options to a running worker: device, form of the weights, packed weights that are kept |
//! | `thread` | starts the thread, and says what it ended of |
//!
//! Only `worker` and the files that carry out its turns know the model; `schedule`, `policy`, `ngram`, `sampler` and `speed` are pure.

mod failure;
pub mod fit;
mod jobs;
mod keep;
mod look;
mod main_loop;
pub mod ngram;
mod open;
pub mod policy;
pub mod protocol;
pub mod room;
pub mod sampler;
pub mod schedule;
mod score;
mod seats;
mod sequence;
pub mod speculate;
mod speed;
mod tasks;
mod thread;
mod worker;

pub use thread::{Engine, spawn, spawn_on};
