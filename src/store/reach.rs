//! Which messages a session shows, as parts of queries: by where it stands, what was said in it, and what is above that.

macro_rules! places {
    () => {
        "place(message, session) AS (
  SELECT head, id FROM session WHERE head IS NOT NULL
  UNION ALL SELECT forked_at, id FROM session WHERE forked_at IS NOT NULL
  UNION ALL SELECT message, session FROM mark)"
    };
}

/// Places that sessions hold beside what was said in them: heads, marks, and where they were forked, which a fork that
/// went back behind it can still return to. An earlier version may have removed the message at a fork point.
pub(super) const PLACES: &str = places!();

/// Messages a session can show: said in it, or at or above one of its places, or above anything said in it.
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
