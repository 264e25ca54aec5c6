//! The HTTP server and its benchmark.

#[macro_use]
#[path = "../store_support/real_disk.rs"]
mod real_disk;

mod bench;
#[path = "../support/command.rs"]
mod command;
mod mcp;
mod server;
#[path = "../support/mod.rs"]
mod support;
