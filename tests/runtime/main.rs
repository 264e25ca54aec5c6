//! Conversations: ask, load, undo, fork, branches, time travel.

#[macro_use]
#[path = "../store_support/real_disk.rs"]
mod real_disk;

mod branches;
mod conversations;
#[allow(dead_code)]
#[path = "../store_support/fault.rs"]
mod fault;
mod long_texts;
mod slots;
#[path = "../support/mod.rs"]
mod support;
mod time_travel;
