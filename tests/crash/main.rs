//! Kills, full disks and damaged files: nothing acknowledged is lost.

#[macro_use]
#[path = "../store_support/real_disk.rs"]
mod real_disk;

mod binary;
#[path = "../support/command.rs"]
mod command;
mod full_disk;
mod kills;
mod not_saved;
#[path = "../store_support/mod.rs"]
mod store_support;
