//! The engine's commands and events for an engine that runs elsewhere: in another process of this user ([`attach`]) or behind an
//! OpenAI-style HTTP server ([`remote`]).

pub mod attach;
pub mod remote;
