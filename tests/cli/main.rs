//! The command line: output, failures, hostile input.

#[path = "../support/command.rs"]
mod command;
mod commands;
mod failures;
mod hostile;
mod mcp;
mod tools;
