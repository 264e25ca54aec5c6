//! The messages a session shows, as parts of queries: its places, its own messages, and all above those.

macro_rules! places {
    () => {
        "place(message, session) AS (
  SELECT head, id FROM session WHERE head IS NOT NULL
  UNION ALL SELECT forked_at, id FROM session WHERE forked_at IS NOT NULL
  UNION ALL SELECT message, session FROM mark)"
    };
}

/// Places of sessions besides their own messages: heads, marks, and fork points, to which a fork can return. An
/// earlier version may have removed the message at a fork point.
pub(super) const PLACES: &str = places!();

/// Messages a session can show: its own, and those at or above one of its places or above one of its own.
pub(super) const REACHED_BY_SESSION: &str = concat!(
    "WITH RECURSIVE ",
    places!(),
    ", reached(id) AS (
  SELECT id FROM message WHERE session = ?1
  UNION SELECT message FROM place WHERE session = ?1
  UNION SELECT m.parent FROM reached CROSS JOIN message m ON m.id = reached.id WHERE m.parent IS NOT NULL)"
);

/// Message ?1 and all above it, itself first.
pub(super) const UP: &str = "WITH RECURSIVE up(id, parent, depth) AS (
  SELECT id, parent, depth FROM message WHERE id = ?1
  UNION SELECT m.id, m.parent, m.depth FROM up CROSS JOIN message m ON m.id = up.parent)";
