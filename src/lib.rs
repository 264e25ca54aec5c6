//! `sala-chat`: one model, MiniCPM-SALA, run well on the user's own machine, with its state kept.
//!
//! # Architecture
//!
//! Modules form layers; imports point downwards only (`tests/layering.rs` enforces it).
//!
//! | layer | modules | owns |
//! |---|---|---|
//! | 0 vocabulary | [`base`], [`spec`], [`settings`], [`commands`], [`protocol`], [`transcript`], [`text`] | the words everybody shares; no devices, no files beyond reading |
//! | 1 backend | [`backend`] | fused operations on one device: CPU (oracle) or CUDA |
//! | 2 model | [`model`] | weights, live state, the one forward pass, the draft head |
//! | 3 engine | [`engine`] | the thread that owns model and state: prefill, decode, speculation, sampling |
//! | 3 remote | [`remote`] | the same thread for a server elsewhere: requests, streams, retries; its state is text |
//! | 3 attach | [`attach`] | one engine for several terminals: the same commands and events over a socket of this machine |
//! | 3 session | [`session`] | the disk: SQLite, immutable segments, library, search, trash |
//! | 4 desk | [`desk`] | one conversation: joins text, engine and session; the only place that knows both |
//! | 4 app | [`app`] | interface state, changed in one function |
//! | 5 ui | [`ui`] | drawing, read-only |
//! | 5 server | [`server`] | the model for other programs: HTTP, a queue, the longest kept prefix |
//! | 6 shell | [`shell`] | command line, terminal, one-shot, doctor |
//! | 7 lab | [`lab`] | kernel checks, golden data, rates, bench, eval, capture: what proves and measures the rest |
//!
//! `engine` and `session` do not know each other: state crosses as [`protocol::engine::StateImage`].
//!
//! # Principles
//!
//! 1. Recurrent state is a pure function of the segment path (tokens, which were generated, where one piece of
//!    input ended), bit for bit on one backend. Resume, fork, undo and lossless speculation follow from it.
//! 2. The transcript is the truth; saved state is a cache of work done. Losing it costs time, never text.
//! 3. Nothing is silent: every wait, fallback and failure is named on screen with the next thing to do.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod app;
pub mod attach;
pub mod backend;
pub mod base;
pub mod commands;
pub mod desk;
pub mod engine;
pub mod lab;
pub mod model;
pub mod protocol;
pub mod remote;
pub mod server;
pub mod session;
pub mod settings;
pub mod shell;
pub mod spec;
pub mod text;
pub mod transcript;
pub mod ui;
