//! Messages between threads. Pure data: no thread owns anything of another.
//!
//! `engine`: desk ⇄ engine thread. `desk`: interface ⇄ desk thread.

pub mod desk;
pub mod engine;
