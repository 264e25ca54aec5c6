//! The engine's commands and events for an engine elsewhere: in another process of this user ([`attach`]) or on an
//! OpenAI-style HTTP server ([`remote`]).

pub mod attach;
pub mod remote;
