//! `sala-chat`: one model, MiniCPM-SALA, run well on the user's own machine, with its state kept.
//!
//! # Architecture
//!
//! Rooms form layers; imports point downwards only (`tests/house/layering.rs` enforces it). A room's `protocol` is plain data that every
//! room may import. [`core`], [`backend`], [`model`] and [`engine`] are the crate `sala`: it runs the model and knows no text.
//!
//! | layer | rooms | owns |
//! |---|---|---|
//! | 0 vocabulary | [`core`], [`config`], [`text`], [`engine::protocol`], [`runtime::protocol`] | ids, messages, settings, commands, tokens and documents; no devices, no writes |
//! | 1 backend | [`backend`] | fused operations on one device: CPU (oracle) or CUDA |
//! | 2 model | [`model`] | checkpoint formats, weights, sequence state, the forward pass, the draft head |
//! | 3 engine | [`engine`] | the inference thread: scheduling, prefill, decode, speculation, sampling |
//! | 3 client | [`client`] | the engine's commands and events over a local socket or to an HTTP server |
//! | 3 store | [`store`] | the disk: SQLite, segment files, library, search, trash, import and export |
//! | 4 runtime | [`runtime`] | conversations: joins text, engine and store; the only room that knows all three |
//! | 4 tui | [`tui`] | the terminal interface: state, changed in one function, and drawing, which is read-only |
//! | 5 server | [`server`] | HTTP forms of OpenAI and Anthropic: a queue, the longest kept prefix |
//! | 6 cli | [`cli`] | command line, terminal, one-shot, line mode, doctor |
//! | 7 lab | [`lab`] | bench, eval, kernel checks, replay of golden data |
//!
//! `engine` and `store` do not know each other: state crosses as [`engine::protocol::StateImage`].
//!
//! # Principles
//!
//! 1. Recurrent state is a pure function of the segment path (tokens, which were generated, where one piece of
//!    input ended), bit for bit on one backend. Resume, fork, undo and lossless speculation follow from it.
//! 2. The transcript is the truth; saved state is a cache of work done. Losing it costs time, never text.
//! 3. Nothing is silent: every wait, fallback and failure is named on screen with the next thing to do.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub use sala::{backend, core, engine, model};

pub mod cli;
pub mod client;
pub mod config;
pub mod lab;
pub mod runtime;
pub mod server;
pub mod store;
pub mod text;
pub mod tui;
