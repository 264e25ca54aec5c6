//! The table of settings and the table of slash commands: each setting and each command is one row.

pub mod commands;
pub mod settings;
