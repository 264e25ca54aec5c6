//! The thread that owns model and state: prefill, decode, speculation, sampling.
//!
//! | file | owns |
//! |---|---|
//! | `open`, `fit`, `keep` | from options to a running worker: device, form of the weights, packed weights that are kept |
//! | `worker` | the thread: backend, model, sequences, commands |
//! | `tasks`, `seats` | what is asked of each sequence, in its queue; which sequence is in hand, which are put aside |
//! | `schedule` | whose turn it is: pure |
//! | `jobs`, `score` | turns: a chunk of a prompt, a decode round, rows that are scored; the end of a job |
//! | `room` | memory by need: promised before it is used, given back by idle sequences |
//! | `speculate`, `policy`, `ngram` | rounds: propose, verify, accept; whether and how far to draft; drafts without a head |
//! | `sampler` | a token from a row's top logits |
//! | `look`, `speed` | where an answer looked; tokens a second |
//!
//! Only `worker` and the files that carry out its turns know the model; `schedule`, `policy`, `ngram`, `sampler` and `speed` are pure.

mod jobs;
mod look;
pub mod ngram;
pub mod policy;
pub mod room;
pub mod sampler;
pub mod schedule;
mod score;
mod seats;
pub mod speculate;
mod tasks;
pub mod worker;

pub mod fit;
mod keep;
mod open;
mod speed;
