//! Answers from a server elsewhere, and clients of a running program.

mod attach;
#[path = "../support/chat_server.rs"]
mod chat_server;
mod client;
#[path = "../support/command.rs"]
mod command;
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../support/mod.rs"]
mod support;
