//! The terminal interface: screens, keys, the program in a pseudo terminal.

#[path = "../support/command.rs"]
mod command;
mod e2e;
mod program;
#[path = "../pty/mod.rs"]
mod pty;
mod screens;
