//! Names at the top of a data directory, except the database. With a data folder but no home, the settings are there,
//! too.

pub const SEGMENTS: &str = "segments";
/// Locks, and the files of a running server.
pub const LOCKS: &str = "locks";
pub const RESERVE: &str = "reserve";
/// Logs, crash reports, copied text.
pub const STATE: &str = "state";
pub const WEIGHTS: &str = "weights";
pub const REQUESTS: &str = "requests";
pub const SERVE_KEY: &str = "serve.key";
pub const CONFIG_FILE: &str = "config.toml";
pub const PRESETS: &str = "presets";
pub const THEMES: &str = "themes";

/// All names that the program may create in a directory before there is a database.
pub const ALL: [&str; 10] =
    [SEGMENTS, LOCKS, RESERVE, STATE, WEIGHTS, REQUESTS, SERVE_KEY, CONFIG_FILE, PRESETS, THEMES];
