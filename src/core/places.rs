//! Names at the top of a data directory besides the database. With a folder of data but no home, it is the folder of
//! the settings, too.

pub const SEGMENTS: &str = "segments";
/// Locks, and where a running server is found.
pub const LOCKS: &str = "locks";
/// Bytes that are given back when the disk is full.
pub const RESERVE: &str = "reserve";
/// Logs, crash reports, copied text.
pub const STATE: &str = "state";
pub const WEIGHTS: &str = "weights";
pub const REQUESTS: &str = "requests";
pub const SERVE_KEY: &str = "serve.key";
pub const CONFIG_FILE: &str = "config.toml";
pub const PRESETS: &str = "presets";
pub const THEMES: &str = "themes";

/// All of them: what the program may have put into a directory before a database is there.
pub const ALL: [&str; 10] =
    [SEGMENTS, LOCKS, RESERVE, STATE, WEIGHTS, REQUESTS, SERVE_KEY, CONFIG_FILE, PRESETS, THEMES];
