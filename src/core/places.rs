//! Names at the top of a data directory besides the database. With a folder of data but no home, it is the folder of
//! the settings, too.

/// Files of model state.
pub const SEGMENTS: &str = "segments";
/// Locks, and where a running server is found.
pub const LOCKS: &str = "locks";
/// Bytes that are given back when the disk is full.
pub const RESERVE: &str = "reserve";
/// Logs, crash reports, copied text.
pub const STATE: &str = "state";
/// Packed weights of earlier starts.
pub const WEIGHTS: &str = "weights";
/// A server's store of requests.
pub const REQUESTS: &str = "requests";
/// A server's key.
pub const SERVE_KEY: &str = "serve.key";
/// The settings.
pub const CONFIG_FILE: &str = "config.toml";
/// The user's presets.
pub const PRESETS: &str = "presets";
/// The user's themes.
pub const THEMES: &str = "themes";

/// All of them: what the program may have put into a directory before a database is there.
pub const ALL: [&str; 10] =
    [SEGMENTS, LOCKS, RESERVE, STATE, WEIGHTS, REQUESTS, SERVE_KEY, CONFIG_FILE, PRESETS, THEMES];
