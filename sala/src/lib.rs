//! MiniCPM-SALA on a GPU or the CPU. This crate knows tokens, tensors and state; text, disk and people are `sala-chat`'s.
//!
//! | layer | room | owns |
//! |---|---|---|
//! | 0 | [`core`], [`engine::protocol`] | ids, messages, the model's shape, files that are read with a limit; commands and events as plain data |
//! | 1 | [`backend`] | fused operations on one device: CPU (oracle) or CUDA |
//! | 2 | [`model`] | checkpoint formats, weights, sequence state, the forward pass, the draft head |
//! | 3 | [`engine`] | the inference thread: scheduling, prefill, decode, speculation, sampling |
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod backend;
pub mod core;
pub mod engine;
pub mod model;
